"""Emit `ir/calls.py`: one typed class a kernel, from `kernels.def`."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence

from definition import FUNCTIONS, Alias, Arg, Definition, DefinitionError, Expression, Kernel

WIDTH = 120
SCALARS = {"i32": "int", "s32": "int", "f32": "float"}
ARRAYS = {"i32": "Ints", "s32": "Ints"}
POINTERS = {"in": "In", "out": "Out", "inout": "InOut"}
DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8"}
IMPORTED = ("ceil4", "reach_up")
TAKEN = (
    *("node", "position", "reads", "writes", "result", "accumulated", "checked", "flops", "make_scratch", "pays"),
    *("operands", "arguments", "map_operands", "replace_operand", "moved", "without"),
)
"""Attributes of every call besides its arguments."""
UNIONS = {
    "TakesRelu": ("relu", "Calls that apply relu to their `result` where `activation` is ACTIVATION_RELU."),
    "TakesFactor": ("factor", "Calls that multiply their `result` by `alpha`."),
    "TakesBias": ("bias", "Calls that add `bias`, a vector along the columns of the result where `bias_col` is 1."),
    "Accumulates": ("", "Calls that add to their `accumulated` results where `accumulate` is 1."),
}
"""Names for the classes that have a fact in common, so that a pass can ask for it."""

HEAD = '''"""The calls of kernels. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.

One class per kernel, in the order of their opcodes. A field is an argument of the kernel; an absent optional buffer is
None. `Builder.emit` allocates scratch buffers. `KernelCall` derives the rest from the fields.
"""

from __future__ import annotations

from math import prod
'''


def class_name(kernel: Kernel) -> str:
    """`gemm_f32` -> `Gemm`; other types keep theirs: `reduce_int` -> `ReduceInt`."""
    return "".join(part.capitalize() for part in kernel.name.removesuffix("_f32").split("_"))


def emit_calls(definition: Definition) -> str:
    """The module."""
    names = [class_name(kernel) for kernel in definition.kernels]
    for name in (*names, *UNIONS):
        if (*names, *UNIONS).count(name) > 1:
            raise DefinitionError(f"two kernels would be the class {name}")
    classes = [emit_class(kernel) for kernel in definition.kernels]
    aliases = emit_aliases(definition, "\n".join(classes))
    body = "\n\n\n".join([*aliases, *classes, "\n".join(emit_unions(definition))])
    kinds = sorted({*re.findall(r"^    \w+: (In|InOut|Ints|Optional\w+|Out|Scratch|Sum)\b", body, re.MULTILINE)})
    helpers = ["scratch"] * ("= scratch(" in body)
    extents = [name for name in IMPORTED if re.search(rf"\b{name}\(", body)]
    imports = [f"from trainweb.ir.extents import {', '.join(extents)}"] * bool(extents)
    imports.append(f"from trainweb.ir.instructions import {', '.join([*sorted(['KernelCall', *kinds]), *helpers])}")
    return "\n".join([HEAD, *imports, "", "", body, ""])


def emit_unions(definition: Definition) -> list[str]:
    """The classes with a fact in common."""
    lines = []
    for name, (part, doc) in UNIONS.items():
        members = [class_name(k) for k in definition.kernels if (part in k.epilogue if part else k.accumulated)]
        if members:
            lines += [f"{name} = {' | '.join(members)}", f'"""{doc}"""']
    return lines


def emit_aliases(definition: Definition, text: str) -> list[str]:
    """The aliases that `text` uses and the shared ones."""
    found: list[str] = []
    for alias in reversed(definition.aliases.values()):
        if alias.is_shared or re.search(rf"\b{alias.name}\(", text):
            found.append(emit_alias(alias))
            text += alias.body.source
    return found[::-1]


def emit_alias(alias: Alias) -> str:
    """An alias as a function."""
    params = [
        f"{name}: {'Ints' if is_array else 'int'}" for name, is_array in zip(alias.names(), alias.arrays(), strict=True)
    ]
    tree = ast.parse(alias.body.source, mode="eval").body
    result = "bool" if isinstance(tree, (ast.BoolOp, ast.Compare)) else "int"
    head = f"def {alias.name}({', '.join(params)}) -> {result}:"
    return "\n".join([head, *(described(alias.doc) if alias.doc else ()), f"    return {alias.body.source}"])


def emit_class(kernel: Kernel) -> str:
    """One kernel."""
    for arg in kernel.args:
        if arg.name in TAKEN:
            raise DefinitionError(f"{kernel.name}: every call has a {arg.name!r} of another kind")
    facts = {"result": kernel.result, "updates": kernel.updates, "fails": kernel.fails, "parts": kernel.parts}
    words = sum(arg.words for arg in kernel.args)
    keywords = [f'kernel="{kernel.name}"', f"words={words}", *(f"{k}={quoted(v)}" for k, v in facts.items() if v)]
    lines = [f"class {class_name(kernel)}(KernelCall, {', '.join(keywords)}):"]
    lines += [*described(kernel.doc), ""] if kernel.doc else []
    lines += [f"    {field(kernel, arg)}" for arg in kernel.args]
    if kernel.flops:
        lines += ["", "    def flops(self) -> int:", f"        return {of_fields(kernel, kernel.flops, 'self')}"]
    return "\n".join([*lines, *(f"    {line}" if line else "" for line in pays(kernel))])


def described(doc: str) -> list[str]:
    """A docstring; `doc` is the comment above an entry."""
    doc += "." * (doc[-1] not in ".:")
    if len(doc) + 10 <= WIDTH:
        return [f'    """{doc}"""']
    return [*(f"    {line}" for line in textwrap.wrap(f'"""{doc}', WIDTH - 4)), '    """']


def quoted(value: str | Sequence[str]) -> str:
    """A Python string, or a tuple of some."""
    if isinstance(value, str):
        return f'"{value}"'
    return f"({', '.join(map(quoted, value))}{',' * (len(value) == 1)})"


def field(kernel: Kernel, arg: Arg) -> str:
    """An argument as a field."""
    if arg.kind == "scratch":
        size = of_fields(kernel, arg.extent, "call")
        return f'{arg.name}: Scratch = scratch("{DTYPES[arg.type]}", lambda call: {size})'
    if not arg.is_pointer:
        return f"{arg.name}: {ARRAYS[arg.kind] if arg.words > 1 else SCALARS[arg.kind]}"
    kind = "Sum" if arg.read_if else POINTERS[arg.kind]
    return f"{arg.name}: Optional{kind} = None" if arg.optional else f"{arg.name}: {kind}"


def pays(kernel: Kernel) -> list[str]:
    """The function `pays`, of a kernel that is not always worth taking."""
    if not kernel.pays:
        return []
    conditions = [part for part in (kernel.where, kernel.pays) if part]
    used = {n.id for part in conditions for n in ast.walk(ast.parse(part.text)) if isinstance(n, ast.Name)}
    params = [field(kernel, arg) for arg in kernel.args if arg.name in used]
    return [
        *("", "@staticmethod", f"def pays(*, {', '.join(params)}) -> bool:"),
        f"    return bool({' and '.join(f'({part.source})' for part in conditions)})",
    ]


class _Fields(ast.NodeTransformer):
    def __init__(self, kernel: Kernel, owner: str) -> None:
        self.names, self.owner = {arg.name for arg in kernel.args} - FUNCTIONS.keys(), owner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.Attribute(ast.Name(self.owner, ast.Load()), node.id, ast.Load())


def of_fields(kernel: Kernel, expression: Expression, owner: str) -> str:
    """The expression over the fields of `owner`."""
    return ast.unparse(_Fields(kernel, owner).visit(ast.parse(expression.source, mode="eval").body))
