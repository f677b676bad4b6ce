"""Quantization as seen in training: values on the grid of integers, gradients straight through."""

from __future__ import annotations

from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Names, Op


class FakeQuant(Op):
    """x rounded to multiples of scale within [quant_min, quant_max], and a mask of the unclipped numbers."""

    domain = MS
    attrs = {"quant_min": Int(0), "quant_max": Int(255)}
    n_outputs = 2
    differentiable = (0,)

    def infer(self, x: TensorType, scale: TensorType, zero_point: TensorType) -> tuple[TensorType, TensorType]:
        self.need_float32(x)
        for t, what in ((scale, "scale"), (zero_point, "zero_point")):
            if t.dtype != "float32" or not equal(t.size, 1):
                raise self.error(f"{what} is {t.dtype}{list(t.shape)}; it must be one float32.")
        if self.quant_min > self.quant_max:
            raise self.error(f"quant_min {self.quant_min} is above quant_max {self.quant_max}.")
        return TensorType("float32", x.shape), TensorType("bool", x.shape)

    def compute(self, e: Emitter, x: Expr, scale: Expr, zero: Expr) -> tuple[Expr, Expr]:
        """The rounded value, and whether it was within the range."""
        low, high = e.like(x, self.quant_min), e.like(x, self.quant_max)
        steps = e.round(e.add(e.div(x, scale), zero))
        inside = e.and_(e.compare("ge", steps, low), e.compare("le", steps, high))
        return e.mul(e.sub(e.min(e.max(steps, low), high), zero), scale), inside

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, scale: Buf, zero_point: Buf) -> None:
        b.elementwise(outs[:2], [x, scale.view(()), zero_point.view(())], self.compute)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        mask = g.extra_output(1, "_mask")
        return [g.op("FakeQuantGrad", [douts[0], mask], domain=MS), None, None]


class FakeQuantGrad(Op):
    """dY where the mask holds, else 0."""

    domain = MS

    def infer(self, dy: TensorType, mask: TensorType) -> TensorType:
        if mask.dtype != "bool" or not equal_shapes(mask.shape, dy.shape):
            raise self.error("the mask must be a bool for each element of dY.")
        return TensorType(dy.dtype, dy.shape)

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, mask: Buf) -> None:
        b.elementwise(outs[:1], [dy, mask], lambda e, d, m: e.select(m, d, e.like(d, 0)))
