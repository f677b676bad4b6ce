"""With which instructions each dtype is computed, one element and four at a time.

An operation that is in no table of its dtype is made of several (`expressions.py`). bool is 0 or 1 in memory and as one
element, and a mask of all bits in a vector; uint8 is an i32 from 0 to 255 in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainweb.backend.wasm.codegen.assembler import F32, F64, I32, I64
from trainweb.ir.expr import COMPARISONS

_SIGNED = ("lt", "le", "gt", "ge", "min", "max")
"""What integer instructions have an unsigned form of as well."""
_FLOAT = ("add", "sub", "mul", "div", "min", "max", "abs", "neg", "ceil", "floor", "nearest", "sqrt", *COMPARISONS)
_INTEGER = ("add", "sub", "mul", *COMPARISONS)


def _floats(lanes: str) -> dict[str, str]:
    return {op: f"{lanes}.{op}" for op in _FLOAT}


def _integers(lanes: str, *more: str) -> dict[str, str]:
    return {op: f"{lanes}.{op}_s" if op in _SIGNED else f"{lanes}.{op}" for op in (*_INTEGER, *more)}


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


_I32X4 = _integers("i32x4", "min", "max", "abs", "neg")
_I32X4 |= {"pmin": _I32X4["min"], "pmax": _I32X4["max"]}
_BOOL = {op: f"i32.{op}" for op in ("and", "or", "xor", "eq", "ne")} | {"not": "i32.eqz"}
_MASK = {op: f"v128.{op}" for op in ("and", "or", "xor", "not")} | {op: f"i32x4.{op}" for op in ("eq", "ne")}

DTYPES = {
    "float32": Dtype(
        F32,
        "f32.load",
        "f32.store",
        _floats("f32"),
        _floats("f32x4") | {"pmin": "f32x4.pmin", "pmax": "f32x4.pmax"},
    ),
    "float64": Dtype(F64, "f64.load", "f64.store", _floats("f64")),
    "int32": Dtype(I32, "i32.load", "i32.store", _integers("i32"), _I32X4),
    "int64": Dtype(I64, "i64.load", "i64.store", _integers("i64")),
    "uint8": Dtype(I32, "i32.load8_u", "i32.store8", _integers("i32"), _I32X4),
    "bool": Dtype(I32, "i32.load8_u", "i32.store8", _BOOL, _MASK),
}

CONVERSIONS = {
    (F32, F64): "f64.promote_f32",
    (F64, F32): "f32.demote_f64",
    (I32, F32): "f32.convert_i32_s",
    (I64, F32): "f32.convert_i64_s",
    (I32, F64): "f64.convert_i32_s",
    (I64, F64): "f64.convert_i64_s",
    (I32, I64): "i64.extend_i32_s",
    (I64, I32): "i32.wrap_i64",
    (F32, I32): "i32.trunc_sat_f32_s",
    (F64, I32): "i32.trunc_sat_f64_s",
    (F32, I64): "i64.trunc_sat_f32_s",
    (F64, I64): "i64.trunc_sat_f64_s",
}
"""Instructions from one type of number to another; floats saturate."""
