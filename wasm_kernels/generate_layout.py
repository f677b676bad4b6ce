"""Emit `ir/layout.py` and `layout.ts`: what C, Python and TypeScript share.

The numbers come from `kernels.def`, and the functions on a session from the exports of `wasm_kernels/session/`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from definition import Definition

WIDTH = 120
FORMATS = {"u32": "I", "i32": "i", "f32": "f", "u64": "Q", "i64": "q", "f64": "d"}
"""Types of fields as Python's `struct` calls them."""
NOTICE = "Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."


def groups(definition: Definition) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Name, comment and numbers of each constant, enumeration and layout that is not C's alone."""
    for constant in definition.constants:
        if constant.is_shared:
            yield constant.name, constant.doc, {constant.name: constant.value}
    for enumeration in definition.enumerations:
        yield enumeration.name, enumeration.doc, enumeration.members
    for layout in definition.layouts:
        yield layout.name, layout.doc, dict(layout.constants())


EXPORT = re.compile(r"TW_EXPORT\((tw_\w+)\)\s+\w+ \1\(uint32_t session([^)]*)\)")

OTHER = re.compile(r"TW_EXPORT\((tw_\w+)\)\s+(void )?[\w *]*?\1\((?!uint32_t session)([^)]*)\)")

Calls = Mapping[str, Sequence[str]]
"""Names of functions on a session, and of their arguments after it."""


def session_calls(sources: Iterable[str]) -> Calls:
    """The functions on a session that C sources export."""
    found = [match for source in sources for match in EXPORT.finditer(source)]
    return {match[1]: re.findall(r"(\w+)(?:,|$)", match[2]) for match in found}


def other_functions(sources: Iterable[str]) -> list[str]:
    """The other functions that C sources export, as methods in TypeScript."""
    found = [match for source in sources for match in OTHER.finditer(source)]
    arguments = [[name for name in re.findall(r"(\w+)(?:,|$)", m[3]) if name != "void"] for m in found]
    return [
        f"{m[1]}({', '.join(f'{name}: number' for name in names)}): {'void' if m[2] else 'number'}"
        for m, names in zip(found, arguments, strict=True)
    ]


def emit_python(definition: Definition, calls: Calls) -> str:
    """The Python module."""
    lines = ['"""Words of plans, segments and state.', "", NOTICE, '"""', "", "from __future__ import annotations", ""]
    lines += ["from typing import Final, Literal", ""]
    lines += [
        f"FINGERPRINT: Final = {definition.fingerprint()}",
        '"""Of the kernels that this package compiles for."""',
    ]
    for _, doc, numbers in groups(definition):
        lines += ["", *textwrap.wrap(doc, WIDTH, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"{name}: Final = {value}" for name, value in numbers.items()]
    lines += ["", "# Coefficients of wasm_kernels/math.h, which shaders have as well."]
    lines += [f"{name}: Final = ({', '.join(map(json.dumps, terms))})" for name, terms in definition.polynomials.items()]
    lines += ["", "# Functions of wasm_kernels/session/, and those on a fit without the start of their names."]
    fits = [name.removeprefix("tw_fit_") for name in calls if name.startswith("tw_fit_")]
    for kind, names in (("SessionCall", calls), ("FitCall", fits)):
        lines += [f"{kind} = Literal[", *(f'    "{name}",' for name in names), "]"]
    lines += ["", "SEGMENT_NAMES: Final = (", *(f"    {name}," for name in segment_names(definition)), ")"]
    for layout in definition.layouts:
        if any(type_ in ("f32", "f64") for _, type_, _ in layout.fields):
            types = ", ".join(f'{at}: "{FORMATS[type_]}"' for name, type_, at in layout.fields if name != "_")
            lines += [
                "",
                "# Types of the words, as `struct` calls them.",
                f"{layout.name.upper()}_TYPES: Final = {{{types}}}",
            ]
    return "\n".join([*lines, ""])


def emit_typescript(definition: Definition, calls: Calls, others: Sequence[str] = ()) -> str:
    """The TypeScript module."""
    lines = ["/**", " * Words of plans, segments and state.", f" * {NOTICE}", " */"]
    for name, doc, numbers in groups(definition):
        if name not in definition.for_page:
            continue
        lines += ["", *textwrap.wrap(doc, WIDTH - 20, initial_indent="// ", subsequent_indent="// ")]
        lines += [f"export const {constant} = {value};" for constant, value in numbers.items()]
    lines += [
        "",
        "/** Arguments of the functions of wasm_kernels/session/ after the session; their comments are there. */",
    ]
    lines += ["export interface SessionCalls {"]
    for name, given in calls.items():
        arguments = [re.sub(r"_(\w)", lambda match: match[1].upper(), argument) for argument in given]
        lines.append(f"  readonly {name}: [{', '.join(f'{argument}: number' for argument in arguments)}];")
    lines += [
        "}",
        "",
        "/** The other functions of the kernels; those of parallel.c are in builds with threads only. */",
    ]
    lines += ["export interface KernelFunctions {", *(f"  {function};" for function in others)]
    lines += ["}", "", f"export const SEGMENT_NAMES: readonly string[] = [{', '.join(segment_names(definition))}];"]
    return "\n".join([*lines, ""])


def segment_names(definition: Definition) -> list[str]:
    """As strings, in order."""
    return [f'"{name.lower()}"' for name in definition.enumeration("segment")]
