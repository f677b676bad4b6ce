"""Emit `ir/layout.py` and `layout.ts`: the numbers that C, Python and TypeScript share, from `kernels.def`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

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


def emit_python(definition: Definition) -> str:
    """The Python module."""
    lines = ['"""Words of plans, segments and state.', "", NOTICE, '"""', "", "from __future__ import annotations", ""]
    lines += ["from typing import Final", ""]
    lines += [
        f"FINGERPRINT: Final = {definition.fingerprint()}",
        '"""Of the kernels that this package compiles for."""',
    ]
    for _, doc, numbers in groups(definition):
        lines += ["", *textwrap.wrap(doc, WIDTH, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"{name}: Final = {value}" for name, value in numbers.items()]
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


def emit_typescript(definition: Definition) -> str:
    """The TypeScript module."""
    lines = ["/**", " * Words of plans, segments and state.", f" * {NOTICE}", " */"]
    for name, doc, numbers in groups(definition):
        if name not in definition.for_page:
            continue
        lines += ["", *textwrap.wrap(doc, WIDTH - 20, initial_indent="// ", subsequent_indent="// ")]
        lines += [f"export const {constant} = {value};" for constant, value in numbers.items()]
    lines += ["", f"export const SEGMENT_NAMES: readonly string[] = [{', '.join(segment_names(definition))}];"]
    return "\n".join([*lines, ""])


def segment_names(definition: Definition) -> list[str]:
    """As strings, in order."""
    return [f'"{name.lower()}"' for name in definition.enumeration("segment")]
