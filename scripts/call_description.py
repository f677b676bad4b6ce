"""The texts of what follows from the list of calls: methods of the public classes, and what the cores must have."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from trainweb.spelling import ARGUMENT, camel_case
from trainweb.training.calls import CALLS, FORM, NOTHING, OF_STATES, REQUIRED, Argument, Call, Public
from trainweb.training.core import SessionCore

WIDTH = 120
NAMES_IN_PAGE = {"ValueError": "RangeError", "KeyError": "RangeError", "InvalidValueError": "RangeError"}
"""What Python's own exceptions become in a page."""

PYTHON_MODULES = {
    "Any": "typing",
    "Mapping": "collections.abc",
    "NodeArg": "trainweb.training.ort.interface",
    "Sequence": "collections.abc",
    "SessionMemory": "trainweb.training.core",
    "flag": "trainweb.arguments",
    "parameter_bytes": "trainweb.training.arrays",
    "to_numpy": "trainweb.training.arrays",
}
"""Sources of the names in the expressions and types of `ValueKind`."""

WIRE_TYPES = (
    *("AdapterFiles", "DeadUnits", "Feed", "FileBytes", "FileForm", "NamedTensor", "PropertyKind", "PropertyValue"),
    *("SessionMemory", "TensorType", "ValueMetadata", "WireTensor"),
)
PAGE_MODULES = {
    "type Tensor": "onnxruntime-common",
    "type PropertyKind": "../wire/protocol.js",
    "type PropertyValue": "../wire/protocol.js",
    "type SessionMemory": "../wire/protocol.js",
    "type ValueMetadata": "../wire/protocol.js",
    "type AdapterFiles": "../wire/protocol.js",
    "type FileForm": "../wire/protocol.js",
    "type FileOf": "../wire/protocol.js",
    "type SessionCalls": "../wire/session-calls.js",
    "type StateCallNames": "../wire/session-calls.js",
    "checkForm": "./call-arguments.js",
    "checkKind": "./call-arguments.js",
    "checkAdapter": "./call-values.js",
    "checkBuffer": "./call-values.js",
    "checkBytes": "./call-values.js",
    "checkFlag": "./call-values.js",
    "checkNames": "./call-values.js",
    "checkNumber": "./call-values.js",
    "checkOptions": "../data/nearest.js",
    "strictOf": "./call-values.js",
    "trainableOnlyOf": "./call-values.js",
    "type Strict": "./call-values.js",
    "type TrainableOnly": "./call-values.js",
    "typeAndShape": "./call-values.js",
    "type ParameterTypeAndShape": "./call-values.js",
    "copyBytes": "./tensors.js",
    "unpackNamed": "./tensors.js",
    "unpackTensor": "./tensors.js",
}


def used(names: Iterable[str], text: str) -> list[str]:
    """Those names that are in a text."""
    return [name for name in names if re.search(rf"\b{name.split()[-1]}\b", text)]


def page_name(what: Call | Argument) -> str:
    """How the page's public class spells it."""
    return what.page_name or camel_case(what.name)


# Python.


def shown(value: Any) -> str:
    """A default as Python has it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def core_parameters(call: Call) -> list[str]:
    """Names of the arguments of Python's core."""
    return [a.name for a in call.arguments if not a.page_only]


def core_faults() -> list[str]:
    """The calls that `SessionCore` lacks or declares differently."""
    faults = []
    for call in CALLS:
        if call.python is Public.NO_CORE:
            continue
        method = getattr(SessionCore, call.name, None)
        wanted = core_parameters(call)
        if method is None:
            faults.append(f"SessionCore (training/core.py) has no {call.name}({', '.join(wanted)})")
        elif (found := list(inspect.signature(method).parameters)[1:]) != wanted:
            faults.append(f"SessionCore.{call.name} takes {found}, training/calls.py says {wanted}")
    return faults


def signature(call: Call, name: str, parts: Iterable[str], result: str, end: str = ":") -> str:
    """A `def`, as ruff formats it."""
    parts = ["self", *parts]
    line = f"    def {name}({', '.join(parts)}) -> {result}{end}"
    if len(line) <= WIDTH:
        return line
    line = f"        {', '.join(parts)}"
    if len(line) <= WIDTH:
        return f"    def {name}(\n{line}\n    ) -> {result}{end}"
    return f"    def {name}(\n" + "".join(f"        {part},\n" for part in parts) + f"    ) -> {result}{end}"


def wrapped(text: str, indent: int) -> str:
    """A paragraph."""
    margin = " " * indent
    return textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


def raised(call: Call) -> dict[str, str]:
    """When a call raises what."""
    found = dict(call.raises)
    if call.needs_optimizer:
        others = found.get("SessionError", "").removesuffix(".")
        found["SessionError"] = f"{others}; or the" if others else "The"
        found["SessionError"] += " session has no optimizer model."
    return found


def python_docs(call: Call) -> str:
    """The docstring of a public method."""
    first, *more = call.does.split("\n\n")
    parts = [f'        """{first}', *(wrapped(paragraph, 8) for paragraph in more)]
    if call.arguments:
        lines = ["        Parameters", "        ----------"]
        for a in call.arguments:
            default = "" if a.default is REQUIRED else f", default {shown(a.default)}"
            lines += [f"        {a.name} : {a.kind.documented or a.kind.python}{default}", wrapped(a.does, 12)]
        parts.append("\n".join(lines))
    if call.returns:
        head = f"        Returns\n        -------\n        {call.result.documented or call.result.python}\n"
        parts.append(head + wrapped(call.returns, 12))
    if raised(call):
        lines = ["        Raises", "        ------"]
        for error, when in raised(call).items():
            lines += [f"        {error}", wrapped(when, 12)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + ('"""' if len(parts) == 1 else '\n        """')


def python_method(call: Call) -> str:
    """A public method that passes a call on."""
    arguments = [a for a in call.arguments if not a.page_only]
    parts = [
        f"{a.name}: {a.kind.python}" + ("" if a.default is REQUIRED else f" = {shown(a.default)}") for a in arguments
    ]
    values = ", ".join(a.kind.to_core.replace("$name", a.name).replace("$", a.name) for a in arguments)
    value = call.result.from_core.replace("$", f"self._core.{call.name}({values})")
    statement = value if call.result is NOTHING else f"return {value}"
    return f"{signature(call, call.name, parts, call.result.python)}\n{python_docs(call)}\n        {statement}\n"


def python_imports(text: str) -> str:
    """The imports that a text needs, sorted as ruff does."""
    groups: dict[str, list[str]] = {}
    for name in used(PYTHON_MODULES, text):
        groups.setdefault(PYTHON_MODULES[name], []).append(name)
    groups.setdefault("trainweb.arguments", []).append("checks_keywords")
    groups["abc"] = ["ABC", "abstractmethod"]
    groups.setdefault("trainweb.training.core", []).append("SessionCore")
    lines = {m: f"from {m} import {', '.join(sorted(names, key=import_order))}" for m, names in groups.items()}
    ours = sorted(m for m in lines if m.startswith("trainweb"))
    standard = sorted(m for m in lines if not m.startswith("trainweb"))
    numpy = "import numpy as np\n\n" if "np." in text else ""
    return "\n".join(lines[m] for m in standard) + f"\n\n{numpy}" + "\n".join(lines[m] for m in ours)


def import_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name


def python_methods() -> str:
    """The file `training/session_methods.py`."""
    methods = "\n".join(python_method(call) for call in CALLS if call.python is Public.FORWARD)
    return f'''"""Made by scripts/session_description.py of training/calls.py: edit that."""

from __future__ import annotations

{python_imports(methods)}


@checks_keywords
class SessionMethods(ABC):
    """The calls that `TrainingSession` passes on to its core."""

    @property
    @abstractmethod
    def _core(self) -> SessionCore:
        """The session on bytes."""

{methods}'''


# TypeScript.


def wire_type(call: Call) -> str:
    """The entry of a call in the worker's interface."""
    arguments = ", ".join(f"{camel_case(a.name)}: {a.kind.wire or a.kind.page}" for a in call.arguments)
    result = call.result.wire or call.result.page
    return f"  readonly {camel_case(call.name)}: Call<[{arguments}], {result}>;"


def wire_calls() -> str:
    """The interface that the worker's core implements."""
    of_page = [call for call in CALLS if call.page is not Public.NO_CORE]
    types = "\n".join(map(wire_type, of_page))
    held = "\n".join(
        f"  {camel_case(c.name)}: {{ reads: {list(c.held.reads)}, writes: {list(c.held.writes)} }}," for c in of_page
    )
    return f"""import type {{
{textwrap.fill(", ".join(used(WIRE_TYPES, types)) + ",", WIDTH, initial_indent="  ", subsequent_indent="  ")}
}} from "./values.js";

interface Call<A extends readonly unknown[], R> {{
  readonly args: A;
  readonly result: R;
}}

export type ArtifactName = "training_model" | "eval_model" | "optimizer_model" | "checkpoint";

/** The calls of a training session besides its steps; training/calls.py says what they do. */
export interface SessionCalls {{
{types}
}}

/** The calls of a checkpoint state apart from sessions. */
export type StateCallNames = {" | ".join(json.dumps(camel_case(name)) for name in OF_STATES)};

export interface Held {{
  readonly reads: readonly number[];
  readonly writes: readonly number[];
}}

/** Segments of which each call reads or changes bytes in the host's memory. */
export const HELD: Readonly<Record<keyof SessionCalls, Held>> = {{
{held}
}};
"""


def in_page(text: str, call: Call) -> str:
    """A text with the names in backticks as the page spells them."""
    words: tuple[Call | Argument, ...] = (*CALLS, *call.arguments)
    names = {w.name: page_name(w) for w in words}
    return re.sub(r"`(\w+)`", lambda m: f"`{names.get(m[1], camel_case(m[1]))}`", text)


def lower_first(text: str) -> str:
    """The text as the rest of a line, without its full stop."""
    start = text[0] if len(text) > 1 and not text[1].islower() and text[1] != " " else text[0].lower()
    return start + text[1:].removesuffix(".")


def page_docs(call: Call) -> str:
    """The comment of a public method."""
    paragraphs = [in_page(p, call) for p in call.does.split("\n\n")]
    tags: list[str] = []
    for a in call.arguments:
        if a.in_options and not any("options." in tag for tag in tags):
            tags.append("@param options - settings by name")
        name = f"options.{page_name(a)}" if a.in_options else page_name(a)
        default = "" if a.default is REQUIRED else f"; default {json.dumps(a.default)}"
        tags.append(f"@param {name} - {lower_first(in_page(a.does, call))}{default}")
    if call.returns:
        tags.append(f"@returns {lower_first(in_page(call.returns, call))}")
    for error, when in raised(call).items():
        tags.append(f"@throws {NAMES_IN_PAGE.get(error, error)}: {lower_first(in_page(when, call))}")
    if not tags and len(paragraphs) == 1:
        return f"  /** {paragraphs[0]} */"
    lines = [line for p in paragraphs for line in (*textwrap.wrap(p, WIDTH - 5), "")]
    lines += [line for tag in tags for line in textwrap.wrap(tag, WIDTH - 5, subsequent_indent="  ")]
    return "\n".join(["  /**", *(f"   * {line}".rstrip() for line in lines), "   */"])


def page_parameters(call: Call) -> str:
    """The arguments of a public method."""
    own = [a for a in call.arguments if not a.in_options]
    options = [a for a in call.arguments if a.in_options]
    parts = []
    for a in own:
        # TypeScript takes the type of a default, but for a choice among texts.
        kind = f": {a.kind.page}" if a.default is REQUIRED or isinstance(a.default, str) or "|" in a.kind.page else ""
        default = "" if a.default is REQUIRED else f" = {json.dumps(a.default)}"
        parts.append(f"{page_name(a)}{kind}{default}")
    if options:
        types = "; ".join(f"readonly {page_name(a)}?: {a.kind.page}" for a in options)
        parts.append(f"options: {{ {types} }} = {{}}")
    return ", ".join(parts)


def taken_options(call: Call) -> list[str]:
    """The statement that takes the options of a public method, which refuses unknown ones."""
    options = [a for a in call.arguments if a.in_options]
    if not options:
        return []
    names = ", ".join(f"{page_name(a)} = {json.dumps(a.default)}" for a in options)
    known = ", ".join(f"{page_name(a)}: true" for a in options)
    return [f"    const {{ {names} }} = checkOptions({json.dumps(page_name(call))}, options, {{ {known} }});"]


def page_method(call: Call) -> str:
    """A public method that passes a call on."""
    lines = ["    this.#calls.checkOptimizer();"] if call.needs_optimizer else []
    lines += taken_options(call)
    checks = [(a.kind.check, page_name(a)) for a in call.arguments if a.kind.check]
    lines += [f"    {check.replace('$name', name).replace('$', name)};" for check, name in checks]
    given = [a.kind.to_wire.replace("$", page_name(a)) for a in call.arguments]
    sent = f"this.#calls.call({', '.join([json.dumps(camel_case(call.name)), *given])})"
    if call.result is NOTHING:
        lines.append(f"    await {sent};")
    elif call.result.from_wire == "$":
        lines.append(f"    return {sent};")
    else:
        lines.append(f"    return {call.result.from_wire.replace('$', f'await {sent}')};")
    generic = '<Form extends FileForm = "bytes">' if any(a.kind is FORM for a in call.arguments) else ""
    head = f"  async {page_name(call)}{generic}({page_parameters(call)}): Promise<{call.result.page}> {{"
    return "\n".join([page_docs(call), head, *lines, "  }"])


def page_imports(text: str) -> str:
    """The imports that a text needs."""
    groups: dict[str, list[str]] = {}
    for name in used(PAGE_MODULES, text):
        groups.setdefault(PAGE_MODULES[name], []).append(name)

    def line(module: str, names: list[str]) -> str:
        if all(n.startswith("type ") for n in names):
            return f'import type {{ {", ".join(n.removeprefix("type ") for n in names)} }} from "{module}";'
        return f'import {{ {", ".join(names)} }} from "{module}";'

    lines = [line(module, names) for module, names in groups.items()]
    ours = ['import { Opaque } from "../wire/opaque.js";', 'import type { Channel } from "./channel.js";']
    return "\n".join([lines[0], "", *lines[1:], *ours])


STATE_CALLER = """/** Runs the calls of a checkpoint state. */
export interface StateCaller {
  call<Name extends StateCallNames>(
    name: Name,
    ...args: SessionCalls[Name]["args"]
  ): Promise<SessionCalls[Name]["result"]>;
}"""


def is_of_states(call: Call) -> bool:
    """Return whether a checkpoint state forwards the call, too: its `save` is `saveCheckpoint`."""
    return call.name in OF_STATES and call.name != "save_checkpoint"


def page_methods() -> str:
    """The file `web/src/page/session-methods.ts`."""
    forwarded = [call for call in CALLS if call.page is Public.FORWARD]
    of_states = "\n\n".join(page_method(call) for call in forwarded if is_of_states(call))
    methods = "\n\n".join(page_method(call) for call in forwarded if not is_of_states(call))
    by_hand = " | ".join(json.dumps(camel_case(call.name)) for call in CALLS if call.page is Public.BY_HAND)
    return f"""/** Made by scripts/session_description.py of training/calls.py: edit that. */

{page_imports(of_states + methods + STATE_CALLER)}

{STATE_CALLER}

/** The calls that `TrainingSession` and `CheckpointState` pass on. */
export class StateMethods extends Opaque {{
  readonly #calls: StateCaller;

  constructor(calls: StateCaller) {{
    super();
    this.#calls = calls;
  }}

{of_states}
}}

/** The further calls that `TrainingSession` passes on to its worker. */
export class SessionMethods extends StateMethods {{
  readonly #calls: Channel;

  constructor(calls: Channel) {{
    super(calls);
    this.#calls = calls;
  }}

{methods}
}}

/** The calls that `TrainingSession` has besides. @internal */
export type MethodsByHand = Readonly<
  Record<
    {by_hand},
    (...args: never[]) => Promise<unknown>
  >
>;
"""


def page_text(message: Any) -> str:
    """The text of a message in a page, with the names of arguments as it spells them."""
    with ARGUMENT.spelled_for_a_page():
        return re.sub(r"\{argument\.(\w+)\}", lambda m: ARGUMENT[m[1]], message.page or message.text)


def message_table(messages: Mapping[str, Any]) -> str:
    """The texts of messages by name, under the page's classes of errors."""
    groups = dict[str, str]()
    for name, message in messages.items():
        kind = NAMES_IN_PAGE.get(message.error.__name__, message.error.__name__)
        groups[kind] = groups.get(kind, "") + f"    {name}: {json.dumps(page_text(message))},\n"
    return "".join(f"  {kind}: {{\n{rows}  }},\n" for kind, rows in groups.items())
