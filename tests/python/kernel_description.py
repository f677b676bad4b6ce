"""The kernels' description of themselves, and its expressions evaluated: for tests that call kernels directly."""

import ast
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainweb.backend.wasm.engine import Engine
from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.ir.extents import ceil4, reach_up

Numbers = Mapping[str, Any]
"""Integer arguments of a call by name; an array argument is a sequence of ints."""

POINTER_KINDS = ("in", "out", "inout", "scratch")


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument of a kernel.

    Attributes
    ----------
    kind : str
        "in", "out", "inout", "scratch" for pointers; "i32" (>= 0), "s32", "f32" for scalars.
    type : str
        Element type of a pointer: "f32" "f64" "i32" "i64" "u8".
    extent : str
        Number of elements a pointer must have, an expression over the integer arguments.
    optional : bool
        Whether the pointer may be null.
    count : int
        Number of words of the plan.
    read_if : str
        Of an "inout": the argument that says whether its contents are read; empty where they always are.
    """

    name: str
    kind: str
    type: str = ""
    extent: str = ""
    optional: bool = False
    count: int = 1
    read_if: str = ""

    @property
    def is_pointer(self) -> bool:
        """True if the argument is a buffer."""
        return self.kind in POINTER_KINDS


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its opcode, its arguments in plan order, the condition they must fulfil, and its facts."""

    name: str
    opcode: int
    args: tuple[Arg, ...]
    where: str
    facts: dict[str, Any]

    @property
    def n_words(self) -> int:
        """Argument words of an instruction."""
        return sum(arg.count for arg in self.args)

    def numbers(self, args: Numbers) -> dict[str, Any]:
        """The integer arguments among `args`, which extents are made of."""
        return {arg.name: args[arg.name] for arg in self.args if arg.kind in ("i32", "s32") and arg.name in args}

    def extent(self, arg: Arg, numbers: Numbers) -> int:
        """Number of elements that pointer `arg` must have for these integer arguments."""
        return int(_compiled(arg.extent)(numbers))

    def holds(self, numbers: Numbers) -> bool:
        """True if the kernel's condition is fulfilled."""
        return not self.where or bool(_compiled(self.where)(numbers))


def description_of(engine: Engine) -> dict[str, Any]:
    """The JSON that the kernels of an engine export."""
    assert isinstance(engine, WasmtimeEngine)
    at, size = engine.call("tw_description"), engine.call("tw_description_size")
    return dict(json.loads(engine.read(at, size)))


@functools.cache
def kernels_of(engine: Engine) -> dict[str, Kernel]:
    """By name."""
    return {
        k["name"]: Kernel(k["name"], k["opcode"], tuple(Arg(**a) for a in k["args"]), k["where"], k["facts"])
        for k in description_of(engine)["kernels"]
    }


# Expressions: compiled once to closures; nothing but integer arithmetic can be said.

Expression = Callable[[Numbers], Any]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "ceil4": ceil4,
    "prod": math.prod,
    "reach_up": reach_up,
    "reach_down": lambda dims, strides: reach_up(dims, [-stride for stride in strides]),
}

_cache: dict[str, Expression] = {}


def _compiled(text: str) -> Expression:
    expression = _cache.get(text)
    if expression is None:
        expression = _cache[text] = _compile(ast.parse(text, mode="eval").body)
    return expression


def _compile(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
        return lambda numbers: value
    if isinstance(node, ast.Name):
        name = node.id
        return lambda numbers: numbers[name]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        array, index = node.value.id, node.slice.value
        return lambda numbers: numbers[array][index]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        binary, left, right = _BINARY[type(node.op)], _compile(node.left), _compile(node.right)
        return lambda numbers: binary(left(numbers), right(numbers))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _compile(node.operand)
        return lambda numbers: -operand(numbers)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        compare, left, right = (
            _COMPARE[type(node.ops[0])],
            _compile(node.left),
            _compile(node.comparators[0]),
        )
        return lambda numbers: compare(left(numbers), right(numbers))
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        parts = [_compile(value) for value in node.values]
        return lambda numbers: all(part(numbers) for part in parts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        function, args = _FUNCTIONS[node.func.id], [_compile(arg) for arg in node.args]
        return lambda numbers: function(*(arg(numbers) for arg in args))
    raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")
