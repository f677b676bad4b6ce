"""Conversion to other dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb.ir import calls, layout
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import ONNX_DTYPES
from trainweb.model.floats import HALVES
from trainweb.model.graph import Node
from trainweb.ops.frame.evaluate import evaluate
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import FLOATS, Elementwise, Int, Names, Str
from trainweb.ops.frame.pointwise import Pointwise
from trainweb.ops.frame.symbolic import Var, names


def cast(b: Builder, out: Buf | None, x: Buf) -> None:
    """Convert elements; half precision goes through float32, which holds all its values."""
    if out is None or not out.size:
        return
    if x.dtype in HALVES:
        if x.dtype == out.dtype:
            b.copy(out, x)
            return
        wide = out if out.dtype == "float32" else b.temp("float32", x.shape)
        if x.storage.segment == layout.PARAMETERS and wide is out:
            _unpack(b, out, x)
            return
        conversion = layout.HALF_TO_FLOAT if x.dtype == "float16" else layout.BFLOAT_TO_FLOAT
        b.emit(calls.ConvertHalf(x=x, y=wide, n=x.size, conversion=conversion))
        if wide is out:
            return
        x = wide
    if out.dtype in HALVES:
        if x.dtype != "float32":
            wide = b.temp("float32", x.shape)
            b.elementwise([wide], [x], lambda e, v: e.cast(v, "float32"))
            x = wide
        conversion = layout.FLOAT_TO_HALF if out.dtype == "float16" else layout.FLOAT_TO_BFLOAT
        b.emit(calls.ConvertHalf(x=x, y=out, n=x.size, conversion=conversion))
        return
    b.elementwise([out], [x], lambda e, v: e.cast(v, out.dtype))


def _unpack(b: Builder, out: Buf, x: Buf) -> None:
    """Make float32 of weights, which products and lookups may read as they are stored."""
    rows = x.shape[0] if x.shape else 1
    cols = x.size // rows
    packing = layout.PACKED_HALF if x.dtype == "float16" else layout.PACKED_BFLOAT
    stored = Buf(x.storage, "uint8", (x.nbytes,), None, x.shift, x.name)
    sizes = {"rows": rows, "cols": cols, "pitch": cols, "block_rows": rows, "block_cols": cols}
    unscaled = dict.fromkeys(("flip", "center", "scale_row", "scale_col", "zero_row", "zero_col"), 0)
    b.emit(calls.Dequantize(x=stored, scale=None, zero=None, y=out, packing=packing, **sizes, **unscaled))


_INSTEAD = {
    "complex128": (
        " (torch's TorchScript exporter writes bfloat16 so: export with dynamo=True and optimize=False, or compute in "
        "float32; of complex numbers, compute real and imaginary parts)"
    ),
    "complex64": " (compute real and imaginary parts: with torch, by view_as_real)",
    "string": " (number what the strings say before the model is fed)",
}
"""Advice for dtypes that nothing is computed in."""


class Cast(Pointwise):
    """Conversion to another dtype. https://onnx.ai/onnx/operators/onnx__Cast.html"""

    dtypes = (*Elementwise.dtypes, *HALVES)

    versions = (6, 9, 13, 19, 21, 23, 24, 25, 28)
    attrs = {"to": Int(required=True), "saturate": Int(1), "round_mode": Str("up")}
    differentiable = (0,)

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if self.to not in ONNX_DTYPES:
            raise self.error(f"there is no data type {self.to}.")
        if ONNX_DTYPES[self.to] not in self.dtypes:
            raise self.unsupported(f"dtype {ONNX_DTYPES[self.to]}{_INSTEAD.get(ONNX_DTYPES[self.to], '')}")
        self.is_view = inputs[0] is not None and inputs[0].dtype == ONNX_DTYPES[self.to]
        return super().infer(*inputs)

    def result(self, *dtypes: str) -> str:
        return ONNX_DTYPES[self.to]

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        return None if ONNX_DTYPES[self.to] == "bfloat16" else super().evaluate(*inputs)

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.cast(x, ONNX_DTYPES[self.to])

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        cast(b, outs[0], x)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if ONNX_DTYPES[self.to] not in (*FLOATS, *HALVES):
            return [None]
        (dy,) = Var.of(g, douts[0])
        return names(dy.cast(g.dtype(ins[0])))


class CastLike(Pointwise):
    """Conversion to the dtype of the second input. https://onnx.ai/onnx/operators/onnx__CastLike.html"""

    versions = (15, 19, 21, 23, 24, 25)
    attrs = {"saturate": Int(1), "round_mode": Str("up")}
    differentiable = (0,)

    def infer(self, x: TensorType, like: TensorType) -> TensorType:
        self.need_dtype(self.dtypes, x.dtype, like.dtype)
        self.is_view = x.dtype == like.dtype
        return TensorType(like.dtype, x.shape)

    def rewire(self, consumers: Mapping[str, list[Node]], known: Mapping[str, Any]) -> list[str]:
        # Only the dtype of the second input counts: of a constant, the result is one, too.
        x, like = self.node.inputs
        return [x, x if x in known and like in known and known[x].dtype == known[like].dtype else like]

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        x, like = (t for t in inputs if t is not None)
        e = Emitter()
        try:
            root = e.cast(e.input(0, x.dtype), like.dtype)
            return evaluate(root, [x.value or ()])
        except (ArithmeticError, ValueError, TypeError):
            return None

    def lower(self, b: Builder, outs: list[Buf], x: Buf, like: Buf) -> None:
        b.elementwise(outs[:1], [x], lambda e, v: e.cast(v, like.dtype))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        (dy,) = Var.of(g, douts[0])
        return names(dy.cast(g.dtype(ins[0])))
