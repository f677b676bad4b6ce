"""With which instructions each dtype is computed, one element and four at a time.

An operation that is in no table of its dtype is made of several (`expressions.py`). bool is 0 or 1 in memory and as one
element, and a mask of all bits in a vector. Integers of 8 and 16 bits are an i32 within their range; uint32 and
uint64 are computed by unsigned instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainweb.backend.wasm.codegen.assembler import F32, F64, I32, I64
from trainweb.ir.expr import COMPARISONS

_SIGNED = ("lt", "le", "gt", "ge", "min", "max", "shr")
"""Integer instructions that have an unsigned form as well."""
_FLOAT = ("add", "sub", "mul", "div", "min", "max", "abs", "neg", "ceil", "floor", "nearest", "sqrt", *COMPARISONS)
_INTEGER = ("add", "sub", "mul", *COMPARISONS)
_BITS = ("and", "or", "xor")
_SHIFTS = ("shl", "shr")


def _floats(lanes: str) -> dict[str, str]:
    return {op: f"{lanes}.{op}" for op in _FLOAT}


def _integers(lanes: str, *more: str, sign: str = "s") -> dict[str, str]:
    return {op: f"{lanes}.{op}_{sign}" if op in _SIGNED else f"{lanes}.{op}" for op in (*_INTEGER, *more)}


def _words(lanes: str, sign: str = "s") -> dict[str, str]:
    return _integers(lanes, *_BITS, *_SHIFTS, sign=sign)


@dataclass(frozen=True, slots=True)
class Dtype:
    """Type of a local, and instructions.

    `scalar` and `vector` name the instruction of each operation on operands of this dtype; `vector` is None where an
    expression with this dtype is computed one element at a time.
    """

    kind: str
    load: str
    store: str
    scalar: dict[str, str]
    vector: dict[str, str] | None = None
    is_signed: bool = True
    """Which of two forms division and conversion take; integers that an i32 holds whole are signed."""
    narrow: tuple[int, str] | None = None
    """Brings a result back into the range of a small integer: an i32 operand, if not 0, and the instruction."""


_I32X4 = _integers("i32x4", "min", "max", "abs", "neg")
_I32X4 |= {"pmax": _I32X4["max"]} | {op: f"v128.{op}" for op in _BITS}
_BOOL = {op: f"i32.{op}" for op in ("and", "or", "xor", "eq", "ne")} | {"not": "i32.eqz"}
_MASK = {op: f"v128.{op}" for op in ("and", "or", "xor", "not")} | {op: f"i32x4.{op}" for op in ("eq", "ne")}

DTYPES = {
    "float32": Dtype(
        F32,
        "f32.load",
        "f32.store",
        _floats("f32"),
        _floats("f32x4") | {"pmax": "f32x4.pmax"},
    ),
    "float64": Dtype(F64, "f64.load", "f64.store", _floats("f64")),
    "int8": Dtype(I32, "i32.load8_s", "i32.store8", _words("i32"), narrow=(0, "i32.extend8_s")),
    "int16": Dtype(I32, "i32.load16_s", "i32.store16", _words("i32"), narrow=(0, "i32.extend16_s")),
    "int32": Dtype(I32, "i32.load", "i32.store", _words("i32"), _I32X4),
    "int64": Dtype(I64, "i64.load", "i64.store", _words("i64")),
    "uint8": Dtype(I32, "i32.load8_u", "i32.store8", _words("i32"), _I32X4, narrow=(0xFF, "i32.and")),
    "uint16": Dtype(I32, "i32.load16_u", "i32.store16", _words("i32"), narrow=(0xFFFF, "i32.and")),
    "uint32": Dtype(I32, "i32.load", "i32.store", _words("i32", "u"), is_signed=False),
    "uint64": Dtype(I64, "i64.load", "i64.store", _words("i64", "u"), is_signed=False),
    "bool": Dtype(I32, "i32.load8_u", "i32.store8", _BOOL, _MASK),
}

_CONVERSIONS = {
    (F32, F64): "f64.promote_f32",
    (F64, F32): "f32.demote_f64",
    (I32, F32): "f32.convert_i32_{source}",
    (I64, F32): "f32.convert_i64_{source}",
    (I32, F64): "f64.convert_i32_{source}",
    (I64, F64): "f64.convert_i64_{source}",
    (I32, I64): "i64.extend_i32_{source}",
    (I64, I32): "i32.wrap_i64",
    (F32, I32): "i32.trunc_sat_f32_{target}",
    (F64, I32): "i32.trunc_sat_f64_{target}",
    (F32, I64): "i64.trunc_sat_f32_{target}",
    (F64, I64): "i64.trunc_sat_f64_{target}",
}
"""Instructions from one type of number to another, with the signs of both; floats saturate."""


def conversion(source: str, target: str) -> str | None:
    """The instruction that converts between dtypes, None where both are of one kind."""
    start, end = DTYPES[source], DTYPES[target]
    if start.kind == end.kind:
        return None
    source_sign, target_sign = ("s" if t.is_signed else "u" for t in (start, end))
    return _CONVERSIONS[start.kind, end.kind].format(source=source_sign, target=target_sign)
