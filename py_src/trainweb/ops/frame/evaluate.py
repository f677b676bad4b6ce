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

_UNARY: dict[str, Callable[[Any], Any]] = {
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
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
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


def evaluate(root: Expr, inputs: Sequence[Any]) -> Any:
    """Value of `root` for one element of each input.

    Raise ArithmeticError or ValueError where Python has no value and IEEE has NaN or infinity: the engine computes it.
    """
    done: dict[int, Any] = {}

    def walk(x: Expr) -> Any:
        if id(x) not in done and x.op in ("and", "or") and x.dtype == "bool":
            done[id(x)] = _decided(x, [partial(walk, a) for a in x.args])
        if id(x) not in done:
            done[id(x)] = _round(_apply(x, [walk(a) for a in x.args], inputs), x.dtype)
        return done[id(x)]

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


def _apply(x: Expr, args: list[Any], inputs: Sequence[Any]) -> Any:
    if x.op == "const":
        return x.imm
    if x.op == "input":
        return inputs[int(x.imm or 0)]
    if x.op == "select":
        return args[1] if args[0] else args[2]
    if x.op == "cast":
        return args[0]
    if x.op == "div":
        return args[0] / args[1] if x.dtype.startswith("float") else _divide(args[0], args[1])
    if len(args) == 1:
        return _UNARY[x.op](args[0])
    return _BINARY[x.op](args[0], args[1])


def _divide(a: int, b: int) -> int:
    # As the kernels do: towards zero, and 0 where b is 0.
    if b == 0:
        return 0
    if not static(a, b):
        return a // b if (a >= 0) == (b > 0) else -(-a // b)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _round(value: Any, dtype: str) -> Any:
    """`value` as `dtype` holds it: integers wrap, float32 rounds; sizes are small enough for both."""
    if isinstance(value, SymbolicDim):
        return same(value, 0) is False if dtype == "bool" else value if dtype.startswith("float") else math.trunc(value)
    if dtype == "bool":
        return bool(value)
    if dtype == "float32":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if dtype == "float64":
        return float(value)
    if dtype == "float16":
        return struct.unpack("<e", struct.pack("<e", value))[0]
    bits = INT_BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    signed = not dtype.startswith("u") and wrapped >> (bits - 1)
    return wrapped - (1 << bits) if signed else wrapped
