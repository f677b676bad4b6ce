"""Emit `py_src/trainweb/ir/calls.py`: one typed class a kernel, from the entries of `kernels.def`."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from generate import Arg, DefinitionError, Kernel

WIDTH = 120
FIELD_TYPES = {"i32": "int", "s32": "int", "f32": "float"}
DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8"}
FUNCTIONS = ("ceil4", "reach_down", "reach_up")

TAKEN = ("node", "reads", "writes", "args", "operands", "map_operands", "replace_operand", "moved", "make_scratch")
"""What every call has besides its arguments."""

HEAD = '''"""The calls of kernels. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.

A field is an argument of the kernel, by its name; None where an optional buffer is absent. Scratch is made by
`Builder.emit`. What each call reads and writes is exact: a result that is only written is not among the reads.
"""
'''


def class_name(kernel: Kernel) -> str:
    """`gemm_f32` -> `Gemm`; other types keep theirs: `reduce_int` -> `ReduceInt`."""
    return "".join(part.capitalize() for part in kernel.name.removesuffix("_f32").split("_"))


def emit_calls(kernels: Sequence[Kernel]) -> str:
    """The whole module."""
    names = [class_name(kernel) for kernel in kernels]
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(f"two kernels would be the class {name}")
    classes = [emit_class(kernel) for kernel in kernels]
    body = "\n\n\n".join(classes)
    used = [name for name in FUNCTIONS if f"{name}(" in body]
    imports = [
        "from __future__ import annotations",
        "",
        "from collections.abc import Callable",
        *["from math import prod"] * ("prod(" in body),
        "",
        f"from trainweb.ir.extents import {', '.join(used)}",
        "from trainweb.ir.program import Buf, KernelCall",
    ]
    return "\n".join([HEAD, *imports, "", "", body, ""])


def emit_class(kernel: Kernel) -> str:
    """One kernel."""
    for arg in kernel.args:
        if arg.name in TAKEN:
            raise DefinitionError(f"{kernel.name}: every call has a {arg.name!r} of another kind")
    lines = [f"class {class_name(kernel)}(KernelCall):", *docstring(kernel), ""]
    names = [f'"{arg.name}"' for arg in kernel.args]
    pointers = [f'"{arg.name}"' for arg in kernel.args if arg.is_pointer]
    droppable = [f'"{arg.name}"' for arg in kernel.args if arg.kind == "out" and arg.optional]
    lines += listed("__slots__ = ", names)
    lines += [f'KERNEL = "{kernel.name}"']
    lines += ["ARGUMENTS = __slots__"]
    lines += listed("OPERANDS = ", pointers)
    if droppable:
        lines += listed("OPTIONAL_RESULTS = ", droppable)
    for part in (constructor(kernel), reads(kernel), writes(kernel), scratch(kernel)):
        if part:
            lines += ["", *part]
    return "\n".join([lines[0], *(f"    {line}" if line else "" for line in lines[1:])])


def docstring(kernel: Kernel) -> list[str]:
    """The comment above the entry."""
    if not kernel.doc:
        return [f'"""A call of `{kernel.name}`."""']
    wrapped = textwrap.wrap(" ".join(kernel.doc), WIDTH - 4, break_long_words=False)
    return [f'"""A call of `{kernel.name}`.', "", *wrapped, '"""']


def listed(head: str, items: Sequence[str]) -> list[str]:
    """A tuple as `ruff format` writes it."""
    flat = f"{head}({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(flat) + 4 <= WIDTH:
        return [flat]
    return [f"{head}(", *(f"    {item}," for item in items), ")"]


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


def called(head: str, items: Sequence[str], tail: str) -> list[str]:
    """Something with parameters as `ruff format` writes it: on one line, or these on one, or each on its own."""
    joined = ", ".join(items)
    if 4 + len(head) + len(joined) + 2 + len(tail) <= WIDTH:
        return [f"{head}({joined}){tail}"]
    if 8 + len(joined) <= WIDTH:
        return [f"{head}(", f"    {joined}", f"){tail}"]
    return [f"{head}(", *(f"    {item}," for item in items), f"){tail}"]


def reads(kernel: Kernel) -> list[str]:
    """The property `reads`."""
    read = [(arg, arg.read_if) for arg in kernel.args if arg.kind in ("in", "inout")]
    return buffers("reads", read)


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


def scratch(kernel: Kernel) -> list[str]:
    """The method that makes workspace of the size that the arguments ask for."""
    made = [arg for arg in kernel.args if arg.kind == "scratch"]
    if not made:
        return []
    lines = ["def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:"]
    for arg in made:
        size = python_expression(kernel, arg.extent)
        line = f'    self.{arg.name} = temp("{DTYPES[arg.type]}", (max(1, {size}),))'
        if len(line) + 4 > WIDTH:
            lines.append(f"    size = {size}")
            line = f'    self.{arg.name} = temp("{DTYPES[arg.type]}", (max(1, size),))'
        lines.append(line)
    return lines


class _Fields(ast.NodeTransformer):
    def __init__(self, kernel: Kernel) -> None:
        self.names = {arg.name for arg in kernel.args}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.Attribute(ast.Name("self", ast.Load()), node.id, ast.Load())


def python_expression(kernel: Kernel, expression: str) -> str:
    """The expression over the fields of `self`."""
    return ast.unparse(_Fields(kernel).visit(ast.parse(expression, mode="eval").body))
