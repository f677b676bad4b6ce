"""Elementwise expressions in WGSL, from the roots that backend/wasm/codegen compiles as well."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from trainweb.backend.webgpu.shader import NoKernelError
from trainweb.ir.expr import COMPARISONS, MATH, Expr
from trainweb.model.graph import as_float32

TYPES = {"float32": "f32", "uint8": "u32", "uint32": "u32", "bool": "bool"}
TYPES |= dict.fromkeys(("int64", "int32", "int16", "int8"), "i32")
"""Types of values. An int64 is its low word: feeds are checked to have 32 bits."""
ANY = {"add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "neg": "(-({0}))", "abs": "abs({0})"}
FLOAT = ANY | {
    "div": "({0} / {1})",
    "max": "larger({0}, {1})",
    "min": "smaller({0}, {1})",
    "pmax": "p_max({0}, {1})",
    "nearest": "round({0})",
    **{name: f"{name}({{0}})" for name in ("sqrt", "floor", "ceil")},
}
INTEGER = ANY | {
    "div": "select({0} / {1}, 0, {1} == 0)",
    "max": "max({0}, {1})",
    "min": "min({0}, {1})",
    "pmax": "max({0}, {1})",
    **{name: f"({{0}} {sign} {{1}})" for name, sign in (("and", "&"), ("or", "|"), ("xor", "^"))},
    **{name: f"({{0}} {sign} u32({{1}}))" for name, sign in (("shl", "<<"), ("shr", ">>"))},
}
BOOL = {"and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} != {1})", "not": "!({0})"}
OPERATIONS = {"float32": FLOAT, "bool": BOOL}
"""Texts of operations by the type of their results; other types are integers."""
RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OVERFLOWING = ("mul", "div", "shl", "shr", "xor")
"""Operations of int64 that need more than the low word."""
NARROW = {"uint8": "({} & 255u)", "int8": "(({} << 24u) >> 24u)", "int16": "(({} << 16u) >> 16u)"}
"""Texts that bring a result back into the range of a small integer: it wraps."""


def literal(value: float, dtype: str) -> str:
    """A constant; floats by their bits where they have no literal."""
    if dtype != "float32":
        if TYPES[dtype] == "i32" and not -(2**31) <= int(value) < 2**31:
            raise NoKernelError(f"the constant {int(value)}")
        return f"{TYPES[dtype]}({int(value)})"
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    exponent = bits >> 23 & 0xFF
    if exponent == 0xFF or bits == 0x80000000 or (exponent == 0 and bits):
        return f"from_bits({bits}u)"  # a constant expression must be finite
    return f"{as_float32(value).hex()}f"


def write_expressions(roots: Sequence[Expr], load: Callable[[int], str]) -> tuple[list[str], list[str]]:
    """Statements, and an expression for each root; `load` is the element of an input."""
    names: dict[int, str] = {}
    lines: list[str] = []

    def value(x: Expr) -> str:
        if x.op == "const":
            return literal(x.imm or 0, x.dtype)
        if id(x) not in names:
            text = load(int(x.imm or 0)) if x.op == "input" else operation(x, [value(a) for a in x.args])
            names[id(x)] = f"v{len(names)}"
            lines.append(f"let {names[id(x)]} = {text};")
        return names[id(x)]

    return lines, [value(root) for root in roots]


def operation(x: Expr, args: list[str]) -> str:
    """An operation on its arguments."""
    source = x.args[0].dtype
    if x.dtype not in TYPES or source not in TYPES:
        raise NoKernelError(f"{x.op} of {x.dtype if x.dtype not in TYPES else source}")
    if x.dtype == "int64" and x.op in OVERFLOWING:
        raise NoKernelError(f"{x.op} of {x.dtype}")
    if x.op in MATH:
        return f"{x.op}_({', '.join(args)})"
    if x.op in COMPARISONS:
        return _comparison(x.op, source, args)
    if x.op == "cast":
        return _cast(source, x.dtype, args[0])
    if x.op == "select":
        return f"select({args[2]}, {args[1]}, {args[0]})"
    text = OPERATIONS.get(x.dtype, INTEGER).get(x.op)
    if text is None:
        raise NoKernelError(f"the operation {x.op}")
    return NARROW.get(x.dtype, "{}").format(text.format(*args))


def _comparison(op: str, dtype: str, args: list[str]) -> str:
    """A comparison; with NaN only `ne` holds."""
    text = f"({args[0]} {RELATIONS[op]} {args[1]})"
    unordered = " | ".join(f"is_nan({a})" for a in dict.fromkeys(args) if not a.endswith("f"))
    if dtype != "float32" or not unordered:
        return text
    return f"({text} | {unordered})" if op == "ne" else f"({text} & !({unordered}))"


def _cast(source: str, target: str, x: str) -> str:
    if target == "bool":
        return _comparison("ne", source, [x, "0.0f"]) if source == "float32" else f"({x} != {TYPES[source]}(0))"
    kind = TYPES[target]
    if source == "bool":
        return f"select({kind}(0), {kind}(1), {x})"
    if source == "float32" and target != source:
        least, most = ("0.0f", "4294967040.0f") if target == "uint32" else ("-2147483648.0f", "2147483520.0f")
        x = f"{'u' if target == 'uint32' else 'i'}32(clamp(select({x}, 0.0f, is_nan({x})), {least}, {most}))"
    return NARROW.get(target, "{}").format(x if TYPES[source] == kind else f"{kind}({x})")
