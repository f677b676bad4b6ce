"""Positions of extrema: ArgMax, ArgMin, TopK; and integers of all sizes as int64 in the same order."""

from __future__ import annotations

from math import prod
from typing import Any

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ITEM_SIZE, MS
from trainweb.ops.frame.arguments import scalar
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import INTS, Int, Names, Op

ORDERED = ("float32", *INTS)
"""Types with a largest element, after types of floats became float32."""
_SIGN = -(2**63)


def as_int64(b: Builder, x: Buf, *, ordered: bool = True) -> Buf:
    """Convert integers or bools to int64, where sums and products wrap to the same bits.

    If they are to stay in the same order, the first bit of uint64 changes.
    """
    if x.dtype == "int64":
        return x
    wide = b.temp("int64", x.shape)
    b.elementwise([wide], [x], lambda e, v: _flipped(e, e.cast(v, "int64"), x.dtype, ordered))
    return wide


def from_int64(b: Builder, out: Buf, x: Buf, *, ordered: bool = True) -> None:
    """Invert `as_int64`."""
    b.elementwise([out], [x], lambda e, v: e.cast(_flipped(e, v, out.dtype, ordered), out.dtype))


def _flipped(e: Emitter, v: Expr, dtype: str, ordered: bool) -> Expr:
    return e.xor(v, e.const(_SIGN, "int64")) if ordered and dtype == "uint64" else v


def extreme(dtype: str, *, largest: bool) -> int:
    """The largest or the smallest number of an integer type."""
    if dtype == "bool":
        return int(largest)
    bits: int = 8 * ITEM_SIZE[dtype]
    if dtype.startswith("u"):
        return (1 << bits) - 1 if largest else 0
    return (1 << bits - 1) - 1 if largest else -(1 << bits - 1)


class ArgReduction(Op, abstract=True):
    """Position of the largest or smallest element along an axis; NaN wins."""

    versions = (1, 11, 12, 13)
    attrs = {"axis": Int(0), "keepdims": Int(1), "select_last_index": Int(0)}
    select_max: int

    def infer(self, x: TensorType) -> TensorType:
        self.need_dtype(ORDERED, x.dtype)
        axis = self.axis_of(self.axis, x.rank)
        if x.shape[axis] == 0:
            raise self.error(f"dimension {axis} is empty.")
        return TensorType("int64", x.shape[:axis] + (1,) * bool(self.keepdims) + x.shape[axis + 1 :])

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        shape = x.shape
        axis = self.axis % len(shape)
        x = x if x.dtype == "float32" else as_int64(b, x)
        b.emit(
            (calls.ArgReduce if x.dtype == "float32" else calls.ArgReduceI64)(
                x=x,
                y=outs[0],
                outer=prod(shape[:axis]),
                n=shape[axis],
                inner=prod(shape[axis + 1 :]),
                select_max=self.select_max,
                last_index=int(bool(self.select_last_index)),
            )
        )


class ArgMax(ArgReduction):
    """Position of the largest element. https://onnx.ai/onnx/operators/onnx__ArgMax.html"""

    select_max = 1


class ArgMin(ArgReduction):
    """Position of the smallest element. https://onnx.ai/onnx/operators/onnx__ArgMin.html"""

    select_max = 0


class TopK(Op):
    """The k largest or smallest elements along an axis, in order. https://onnx.ai/onnx/operators/onnx__TopK.html"""

    versions = (1, 10, 11, 24)
    attrs = {"axis": Int(-1), "k": Int(), "largest": Int(1), "sorted": Int(1)}
    n_outputs = 2
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, k: TensorType | None = None) -> Any:
        self.need_dtype(ORDERED, x.dtype)
        axis = self.axis_of(self.axis, x.rank)
        count = self.k if k is None else scalar(self, k, "k")
        if count is None or not at_most(0, count) or not at_most(count, x.shape[axis]):
            raise self.error(f"k is {count}; dimension {axis} has {x.shape[axis]} elements.")
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return TensorType(x.dtype, shape), TensorType("int64", shape)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        x, result = ins[0], outs[0] or outs[1]
        if x is None or result is None:
            return
        axis, best = self.axis % len(x.shape), outs[0]
        if x.dtype != "float32":
            x = as_int64(b, x)
            best = best and b.temp("int64", best.shape)
        b.emit(
            (calls.Topk if x.dtype == "float32" else calls.TopkI64)(
                x=x,
                y=best,
                at=outs[1],
                outer=prod(x.shape[:axis]),
                n=x.shape[axis],
                inner=prod(x.shape[axis + 1 :]),
                k=result.shape[axis],
                largest=int(bool(self.largest)),
            )
        )
        if outs[0] is not None and best is not None and best is not outs[0]:
            from_int64(b, outs[0], best)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        inputs = [douts[0], g.op("Shape", [ins[0]]), g.extra_output(1, "_indices")]
        dx = g.op("GatherElementsGrad", inputs, domain=MS, axis=self.axis)
        return [dx, *[None] * (len(ins) - 1)]
