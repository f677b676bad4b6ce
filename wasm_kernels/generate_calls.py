"""Emit the package `ir/calls`: one typed class a kernel, from `kernels.def`."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence

from definition import FUNCTIONS, Alias, Arg, Definition, DefinitionError, Expression, Kernel

WIDTH = 120
FIELD_TYPES = {"i32": "int", "s32": "int", "f32": "float"}
DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8"}
IMPORTED = ("ceil4", "reach_down", "reach_up")
TAKEN = (
    *("node", "position", "reads", "writes", "result", "accumulated", "checked", "flops", "make_scratch", "pays"),
    *("operands", "arguments", "optional_results", "map_operands", "replace_operand", "moved"),
    *("without", "without_updates"),
)
"""What a call has besides its arguments."""
UNIONS = {
    "TakesRelu": ("relu", "Calls that apply relu to their `result` where `activation` is ACTIVATION_RELU."),
    "TakesFactor": ("factor", "Calls that multiply what they make by `alpha`."),
    "TakesBias": ("bias", "Calls that add `bias`, a vector along the columns of the result where `bias_col` is 1."),
    "Accumulates": ("", "Calls that add to what `accumulated` hold where `accumulate` is 1."),
}
"""Names for the classes that have a fact in common, so that a pass may ask for it."""

MADE = "Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."
HEAD = f'''"""The calls of kernels. {MADE}

A class a kernel, in a module a family of kernels, which is named like their C file. A field is an argument of the
kernel, by its name; None where an optional buffer is absent. Scratch is made by `Builder.emit`. What each call reads
and writes is exact: a result that is only written is not among the reads.
"""
'''
SIZES = "sizes"
"""The module of the aliases."""


def class_name(kernel: Kernel) -> str:
    """`gemm_f32` -> `Gemm`; other types keep theirs: `reduce_int` -> `ReduceInt`."""
    return "".join(part.capitalize() for part in kernel.name.removesuffix("_f32").split("_"))


def emit_calls(definition: Definition) -> dict[str, str]:
    """The modules of the package, by name."""
    names = [class_name(kernel) for kernel in definition.kernels]
    for name in (*names, *UNIONS):
        if (*names, *UNIONS).count(name) > 1:
            raise DefinitionError(f"two kernels would be the class {name}")
    families: dict[str, dict[str, str]] = {}
    for opcode, kernel in enumerate(definition.kernels, 1):
        if not kernel.family or kernel.family == SIZES:
            raise DefinitionError(f"{kernel.name} stands below no heading that names its C file")
        families.setdefault(kernel.family, {})[class_name(kernel)] = emit_class(kernel, opcode)
    aliases = emit_aliases(definition, "\n".join(text for classes in families.values() for text in classes.values()))
    modules = {family: emit_module(family, list(classes.values()), aliases) for family, classes in families.items()}
    if aliases:
        modules[SIZES] = emit_sizes(list(aliases.values()))
    exported = {family: list(classes) for family, classes in families.items()} | {SIZES: list(aliases)}
    return modules | {"__init__": emit_package(definition, exported)}


def emit_module(family: str, classes: list[str], aliases: dict[str, str]) -> str:
    """The classes of a family."""
    body = "\n\n\n".join(classes)
    imports = [
        *["from collections.abc import Callable", ""] * ("Callable[" in body),
        *imported("trainweb.ir.calls.sizes", aliases, body),
        *imported("trainweb.ir.extents", IMPORTED, body),
        "from trainweb.ir.instructions import Buf, KernelCall",
    ]
    return module(f"Calls of {family}. {MADE}", with_prod(imports, body), body)


def emit_sizes(aliases: list[str]) -> str:
    """The aliases."""
    body = "\n\n\n".join(aliases)
    imports = imported("trainweb.ir.extents", IMPORTED, body)
    return module(f"Sizes and conditions that kernels.def names. {MADE}", with_prod(imports, body), body)


def module(doc: str, imports: Sequence[str], body: str) -> str:
    """A file."""
    return "\n".join([f'"""{doc}"""', "", "from __future__ import annotations", "", *imports, "", "", body, ""])


def with_prod(imports: list[str], body: str) -> list[str]:
    """The imports, with that of `prod` where it belongs."""
    if "prod(" not in body:
        return imports
    at = next((i + 1 for i, line in enumerate(imports) if line.startswith("from collections")), 0)
    return [*imports[:at], "from math import prod", *[""] * (at == 0), *imports[at:]]


def imported(source: str, names: Iterable[str], body: str) -> list[str]:
    """The import of those names that a body calls."""
    used = sorted(name for name in names if re.search(rf"\b{name}\(", body))
    line = f"from {source} import {', '.join(used)}"
    if len(line) > 120:
        return [f"from {source} import (", *(f"    {name}," for name in used), ")"]
    return [line] * bool(used)


def emit_package(definition: Definition, exported: dict[str, list[str]]) -> str:
    """The package: all classes and aliases, and the classes with a fact in common."""
    lines = [HEAD, "from __future__ import annotations", ""]
    for family, names in sorted(exported.items()):
        if names:
            lines += exported_from(family, sorted(names, key=import_order))
    unions = emit_unions(definition)
    found = [name for names in exported.values() for name in names] + [
        union for union in UNIONS if any(line.startswith(f"{union} = ") for line in unions)
    ]
    listed_names = [f'    "{name}",' for name in sorted(found, key=import_order)]
    return "\n".join([*lines, "", *unions, "", "__all__ = [", *listed_names, "]", ""])


def exported_from(family: str, names: list[str]) -> list[str]:
    """An import as ruff formats it."""
    line = f"from trainweb.ir.calls.{family} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from trainweb.ir.calls.{family} import (", *(f"    {name}," for name in names), ")"]


def import_order(name: str) -> tuple[bool, str]:
    """Classes before functions, as ruff sorts them."""
    return not name[0].isupper(), name


def emit_unions(definition: Definition) -> list[str]:
    """The classes with a fact in common."""
    lines = []
    for name, (part, doc) in UNIONS.items():
        members = [class_name(k) for k in definition.kernels if (part in k.epilogue if part else k.accumulated)]
        if members:
            lines += [f"{name} = {' | '.join(members)}", f'"""{doc}"""']
    return lines


def emit_aliases(definition: Definition, text: str) -> dict[str, str]:
    """The aliases that `text` uses, and those that are shared, by name."""
    found: dict[str, str] = {}
    for alias in reversed(definition.aliases.values()):
        if alias.is_shared or re.search(rf"\b{alias.name}\(", text):
            found[alias.name] = emit_alias(alias)
            text += alias.body.source
    return dict(reversed(found.items()))


def emit_alias(alias: Alias) -> str:
    """An alias as a function."""
    params = [
        f"{name}: {'tuple[int, ...]' if is_array else 'int'}"
        for name, is_array in zip(alias.names(), alias.arrays(), strict=True)
    ]
    tree = ast.parse(alias.body.source, mode="eval").body
    result = "bool" if isinstance(tree, (ast.BoolOp, ast.Compare)) else "int"
    doc = f"`{alias.name}` of kernels.def."
    lines = [*called(f"def {alias.name}", params, f" -> {result}:"), *described(doc, alias.doc)]
    return "\n".join([*lines, f"    return {alias.body.source}"])


def emit_class(kernel: Kernel, opcode: int) -> str:
    """One kernel."""
    for arg in kernel.args:
        if arg.name in TAKEN:
            raise DefinitionError(f"{kernel.name}: every call has a {arg.name!r} of another kind")
    lines = [f"class {class_name(kernel)}(KernelCall):"]
    lines += listed("__slots__", [arg.name for arg in kernel.args])
    words = sum(arg.words for arg in kernel.args)
    lines += [f'KERNEL = "{kernel.name}"', f"OPCODE = {opcode}", f"WORDS = {words}", "ARGUMENTS = __slots__"]
    facts = {
        "OPERANDS": [arg.name for arg in kernel.args if arg.is_pointer],
        "FLOATS": [arg.name for arg in kernel.args if arg.kind == "f32"],
        "OPTIONAL_RESULTS": [arg.name for arg in kernel.args if arg.kind == "out" and arg.optional],
        "ACCUMULATED": kernel.accumulated,
        "UPDATES": kernel.updates,
        "FAILS": kernel.fails,
        "PARTS": kernel.parts,
    }
    for name, fact in facts.items():
        lines += listed(name, fact) if fact else []
    methods = (constructor, reads, writes, result, scratch, flops, pays)
    for part in (method(kernel) for method in methods):
        if part:
            lines += ["", *part]
    head = [lines[0], *described(f"A call of `{kernel.name}`.", kernel.doc), ""]
    return "\n".join([*head, *(f"    {line}" if line else "" for line in lines[1:])])


def described(first: str, doc: str) -> list[str]:
    """A docstring; `doc` is the comment above an entry."""
    if not doc:
        return [f'    """{first}"""']
    return [f'    """{first}', "", *(f"    {line}" for line in textwrap.wrap(doc, WIDTH - 4)), '    """']


def listed(name: str, items: Sequence[str]) -> list[str]:
    """A tuple of strings as `ruff format` writes it."""
    flat = f"{name} = ({', '.join(quoted(item) for item in items)}{',' if len(items) == 1 else ''})"
    if len(flat) + 4 <= WIDTH:
        return [flat]
    return [f"{name} = (", *(f"    {quoted(item)}," for item in items), ")"]


def quoted(text: str) -> str:
    """A Python string."""
    return f'"{text}"'


def called(head: str, items: Sequence[str], tail: str) -> list[str]:
    """Something with parameters as `ruff format` writes it: on one line, or these on one, or each on its own."""
    joined = ", ".join(items)
    if 4 + len(head) + len(joined) + 2 + len(tail) <= WIDTH:
        return [f"{head}({joined}){tail}"]
    if 8 + len(joined) <= WIDTH:
        return [f"{head}(", f"    {joined}", f"){tail}"]
    return [f"{head}(", *(f"    {item}," for item in items), f"){tail}"]


def field_type(arg: Arg) -> str:
    """The Python type of an argument."""
    if arg.is_pointer:
        return "Buf | None" if arg.optional else "Buf"
    scalar = FIELD_TYPES[arg.kind]
    return f"tuple[{scalar}, ...]" if arg.words > 1 else scalar


def constructor(kernel: Kernel) -> list[str]:
    """`__init__`, written out: a dataclass of each kernel takes 70 ms to make when trainweb is imported."""
    given = [arg for arg in kernel.args if arg.kind != "scratch"]
    fields = [f"{arg.name}: {field_type(arg)}{' = None' * arg.optional}" for arg in given]
    lines = called("def __init__", ["self", "*", *fields, 'node: str = ""'], " -> None:")
    lines.append("    self.node = node")
    lines += [
        f"    self.{arg.name}: Buf" if arg.kind == "scratch" else f"    self.{arg.name} = {arg.name}"
        for arg in kernel.args
    ]
    return lines


def reads(kernel: Kernel) -> list[str]:
    """The property `reads`."""
    return buffers("reads", [(arg, arg.read_if) for arg in kernel.args if arg.kind in ("in", "inout")])


def writes(kernel: Kernel) -> list[str]:
    """The property `writes`."""
    return buffers("writes", [(arg, "") for arg in kernel.args if arg.is_pointer and arg.kind != "in"])


def buffers(name: str, args: Sequence[tuple[Arg, str]]) -> list[str]:
    """A property that lists the buffers which are there, in the order of the arguments."""
    lines = ["@property", f"def {name}(self) -> list[Buf]:"]
    start = 0
    while start < len(args) and not args[start][0].optional and not args[start][1]:
        start += 1
    always = ", ".join(f"self.{arg.name}" for arg, _ in args[:start])
    if start == len(args):
        return [*lines, f"    return [{always}]"]
    lines.append(f"    found = [{always}]" if always else "    found: list[Buf] = []")
    for arg, condition in args[start:]:
        needed = [f"self.{condition}"] * bool(condition) + [f"self.{arg.name} is not None"] * arg.optional
        add = f"found.append(self.{arg.name})"
        lines += [f"    if {' and '.join(needed)}:", f"        {add}"] if needed else [f"    {add}"]
    return [*lines, "    return found"]


def result(kernel: Kernel) -> list[str]:
    """The property `result`, of a kernel with an epilogue."""
    if not kernel.result:
        return []
    getter = ["@property", "def result(self) -> Buf:", f"    return self.{kernel.result}"]
    return [*getter, "", "@result.setter", "def result(self, b: Buf) -> None:", f"    self.{kernel.result} = b"]


def scratch(kernel: Kernel) -> list[str]:
    """The method that makes workspace of the size that the arguments ask for."""
    made = [arg for arg in kernel.args if arg.kind == "scratch"]
    if not made:
        return []
    lines = ["def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:"]
    for arg in made:
        size = of_fields(kernel, arg.extent)
        line = f'    self.{arg.name} = temp("{DTYPES[arg.type]}", (max(1, {size}),))'
        if len(line) + 4 > WIDTH:
            lines.append(f"    size = {size}")
            line = f'    self.{arg.name} = temp("{DTYPES[arg.type]}", (max(1, size),))'
        lines.append(line)
    return lines


def flops(kernel: Kernel) -> list[str]:
    """The method `flops`, of a kernel with products."""
    return ["def flops(self) -> int:", f"    return {of_fields(kernel, kernel.flops)}"] if kernel.flops else []


def pays(kernel: Kernel) -> list[str]:
    """The function `pays`, of a kernel that is not always worth taking."""
    if not kernel.pays:
        return []
    conditions = [part for part in (kernel.where, kernel.pays) if part]
    used = {n.id for part in conditions for n in ast.walk(ast.parse(part.text)) if isinstance(n, ast.Name)}
    params = [f"{arg.name}: {field_type(arg)}" for arg in kernel.args if arg.name in used]
    lines = ["@staticmethod", *called("def pays", ["*", *params], " -> bool:")]
    lines.append('    """Whether the kernel takes these arguments and is worth taking."""')
    return [*lines, f"    return bool({' and '.join(f'({part.source})' for part in conditions)})"]


class _Fields(ast.NodeTransformer):
    def __init__(self, kernel: Kernel) -> None:
        self.names = {arg.name for arg in kernel.args} - FUNCTIONS.keys()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.Attribute(ast.Name("self", ast.Load()), node.id, ast.Load())


def of_fields(kernel: Kernel, expression: Expression) -> str:
    """The expression over the fields of `self`."""
    return ast.unparse(_Fields(kernel).visit(ast.parse(expression.source, mode="eval").body))
