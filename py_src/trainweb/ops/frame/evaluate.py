"""Expressions computed in Python, for shape arithmetic."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trainweb.ir.dims import SymbolicDim, UndecidedError, maximum, minimum, same, static
from trainweb.ir.expr import COMPARISONS, Expr
from trainweb.model.graph import ITEM_SIZE

INT_BITS = {name: 8 * size for name, size in ITEM_SIZE.items() if "int" in name}

_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "nearest": round,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "tanh": math.tanh,
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "log1p": math.log1p,
    "expm1": math.expm1,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "not": operator.not_,
    "cast": lambda x: x,
    "select": lambda condition, a, b: a if condition else b,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "pow": operator.pow,
    "min": minimum,
    "max": maximum,
    "pmax": maximum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
    **{how: getattr(operator, how) for how in COMPARISONS},
    # On expressions == and != compare the expressions, not their values.
    "eq": lambda a, b: a == b if static(a, b) else same(a, b),
    "ne": lambda a, b: a != b if static(a, b) else not same(a, b),
}


def evaluate(root: Expr, columns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Values of `root` for all elements; `columns` has the elements of each input.

    Raise ArithmeticError or ValueError where Python has no value and IEEE has NaN or infinity: the engine computes it.
    """
    if not all(static(*column) for column in columns):
        return tuple(_element(root, row) for row in zip(*columns, strict=True))
    done: dict[Expr, Sequence[Any]] = {}

    def walk(x: Expr) -> Sequence[Any]:
        if x not in done:
            if x.op == "input":
                values = columns[int(x.imm or 0)]
            else:
                values = [x.imm] * len(columns[0]) if x.op == "const" else [*map(_function(x), *map(walk, x.args))]
            done[x] = _rounded(values, x.dtype)
        return done[x]

    return tuple(walk(root))


def _element(root: Expr, inputs: Sequence[Any]) -> Any:
    """Value of `root` for one element of each input, which may depend on sizes that are not known."""
    done: dict[Expr, Any] = {}

    def walk(x: Expr) -> Any:
        if x not in done:
            if x.op in ("and", "or") and x.dtype == "bool":
                done[x] = _decided(x, [partial(walk, a) for a in x.args])
            elif x.op in ("input", "const"):
                done[x] = _round(inputs[int(x.imm or 0)] if x.op == "input" else x.imm, x.dtype)
            else:
                done[x] = _round(_function(x)(*map(walk, x.args)), x.dtype)
        return done[x]

    return walk(root)


def _decided(x: Expr, args: Sequence[Callable[[], Any]]) -> bool:
    """And, or: decided by one operand where the other one depends on a size that is not known."""
    unknown: UndecidedError | None = None
    for arg in args:
        try:
            if bool(arg()) is (x.op == "or"):
                return x.op == "or"
        except UndecidedError as error:
            unknown = error
    if unknown is not None:
        raise unknown
    return x.op == "and"


def _function(x: Expr) -> Callable[..., Any]:
    if x.op == "div":
        return operator.truediv if x.dtype.startswith("float") else _divide
    return _FUNCTIONS[x.op]


def _divide(a: int, b: int) -> int:
    # As the kernels do: towards zero, and 0 where b is 0.
    if b == 0:
        return 0
    if not static(a, b):
        return a // b if (a >= 0) == (b > 0) else -(-a // b)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _round(value: Any, dtype: str) -> Any:
    """`value` as `dtype` holds it; sizes are small enough for all."""
    if isinstance(value, SymbolicDim):
        return same(value, 0) is False if dtype == "bool" else value if dtype.startswith("float") else math.trunc(value)
    return _rounded([value], dtype)[0]


def _rounded(values: Sequence[Any], dtype: str) -> Sequence[Any]:
    """`values` as `dtype` holds them: integers wrap, floats round."""
    if dtype == "bool":
        return [*map(bool, values)]
    if dtype in _FLOATS:
        form = f"<{len(values)}{_FLOATS[dtype]}"
        return struct.unpack(form, struct.pack(form, *map(float, values)))
    least = 0 if dtype.startswith("u") else -(1 << (INT_BITS[dtype] - 1))
    mask = (1 << INT_BITS[dtype]) - 1
    return [((int(value) - least) & mask) + least for value in values]
