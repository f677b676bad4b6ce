"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal_shapes, static
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.conv import AUTO_PADS, Window, window
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Ints, Names, Op, Str

BYTES = ("int8", "uint8")
"""Integers that ONNX pools."""


class _Pool(Op, abstract=True):
    """An operator on windows of (N, C, *size)."""

    attrs = {
        "auto_pad": Str("NOTSET", among=AUTO_PADS),
        "ceil_mode": Int(0),
        "dilations": Ints(),
        "kernel_shape": Ints(required=True),
        "pads": Ints(),
        "strides": Ints(),
    }

    def window_of(self, shape: tuple[int, ...]) -> Window:
        """The window over an input of this shape (N, C, ...)."""
        win = window(
            self,
            shape[2:],
            self.kernel_shape,
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            auto_pad=self.auto_pad,
            ceil_mode=bool(self.ceil_mode),
        )
        if self.pads is not None and self.auto_pad == "NOTSET":
            self.check_pads(self.pads, win)
        return win

    def check_pads(self, pads: tuple[int, ...], w: Window) -> None:
        """A window must not lie in the padding as a whole: there is nothing to pool, and the maximum is -infinity."""
        for k, pad in enumerate(pads):
            axis = k % len(w.kernel)
            span = (w.kernel[axis] - 1) * w.dilation[axis] + 1
            if pad >= span:
                raise self.error(
                    f"pads {list(pads)} must be smaller than the window, which is {span} wide (axis {axis})."
                )

    def pooled(self, x: TensorType) -> tuple[int, ...]:
        """Shape of the output."""
        self.need_float32(x)
        return (*x.shape[:2], *self.window_of(x.shape).out)

    @staticmethod
    def planes(shape: tuple[int, ...]) -> int:
        """Number of (sample, channel) pairs."""
        return prod(shape[:2])


class MaxPool(_Pool):
    """Largest value of each window. https://onnx.ai/onnx/operators/onnx__MaxPool.html"""

    versions = (1, 8, 10, 11, 12, 22)
    attrs = {**_Pool.attrs, "storage_order": Int(0)}
    n_outputs = 2
    differentiable = (0,)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        shape = self.pooled(TensorType("float32", x.shape) if x.dtype in BYTES else x)
        return TensorType(x.dtype, shape), TensorType("int64", shape)

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf) -> None:
        arguments = self.window_of(x.shape).arguments()
        if x.dtype in BYTES:
            # Numbers of 8 bits are the same as floats.
            floats, result = b.temp("float32", x.shape), outs[0]
            b.elementwise([floats], [x], lambda e, v: e.cast(v, "float32"))
            pooled = None if result is None else b.temp("float32", result.shape)
            self.lower(b, [pooled, *outs[1:]], floats)
            if result is not None and pooled is not None and result.size:
                b.elementwise([result], [pooled], lambda e, v: e.cast(v, result.dtype))
            return
        if x.size:
            out = outs[0] or b.temp("float32", outs[1].shape if outs[1] else ())
            indices = b.temp("int64", outs[1].shape) if outs[1] and self.storage_order else outs[1]
            b.emit(calls.MaxPool(x=x, y=out, indices=indices, planes=self.planes(x.shape), **arguments))
            if self.storage_order:
                renumber(b, outs[1], indices, x.shape[2:])

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        indices = g.extra_output(1, "_mask")
        return [g.op("MaxPoolGrad", [douts[0] or "", indices], **self.copied_attrs())]


def renumber(b: Builder, out: Buf | None, indices: Buf | None, sizes: Sequence[int]) -> None:
    """Indices into planes of these sizes, as they count if the first axis is the one that runs fastest.

    With the sizes in the reverse order it is the way back.
    """
    if out is None or indices is None:
        return

    def compute(e: Emitter, index: Expr) -> Expr:
        number, left = e.like(index, 0), index
        for axis in reversed(range(len(sizes))):
            rest = e.div(left, e.like(index, sizes[axis]))
            digit = e.sub(left, e.mul(rest, e.like(index, sizes[axis])))
            number, left = e.add(number, e.mul(digit, e.like(index, prod(sizes[:axis])))), rest
        return e.add(number, e.mul(left, e.like(index, prod(sizes))))

    b.elementwise([out], [indices], compute)


class MaxPoolGrad(_Pool):
    """dY scattered to the Indices of MaxPool (ai.onnx 9 of ONNX Runtime training)."""

    attrs = {**_Pool.attrs, "storage_order": Int(0)}

    def infer(self, dy: TensorType, indices: TensorType) -> TensorType:
        x = self.forward_type()
        fits = equal_shapes(dy.shape, self.pooled(x)) and equal_shapes(indices.shape, dy.shape)
        if not fits or indices.dtype != "int64":
            raise self.error(f"dY {list(dy.shape)} and Indices {list(indices.shape)} do not fit X {list(x.shape)}.")
        return TensorType("float32", x.shape)

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, indices: Buf) -> None:
        if outs[0].size:
            shape = outs[0].shape
            if self.storage_order:
                row_major = b.temp("int64", indices.shape)
                renumber(b, row_major, indices, shape[:1:-1])
                indices = row_major
            call = calls.MaxPoolGradient(
                dy=dy,
                indices=indices,
                dx=outs[0],
                planes=self.planes(shape),
                size=prod(shape[2:]),
                out_size=prod(dy.shape[2:]),
            )
            b.emit(call)


class AveragePool(_Pool):
    """Mean of each window. https://onnx.ai/onnx/operators/onnx__AveragePool.html"""

    versions = (1, 7, 10, 11, 19, 22)
    attrs = {**_Pool.attrs, "count_include_pad": Int(0)}
    differentiable: ClassVar[Sequence[int]] = (0,)

    def infer(self, x: TensorType) -> TensorType:
        return TensorType("float32", self.pooled(x))

    def pool_arguments(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Kernel arguments for an input of this shape."""
        w = self.window_of(shape)
        return {
            "planes": self.planes(shape),
            "pad_end": (0,) * (3 - len(w.size)) + w.pad_end,
            "count_include_pad": int(bool(self.count_include_pad)),
            **w.arguments(),
        }

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        if x.size:
            b.emit(calls.AveragePool(x=x, y=outs[0], **self.pool_arguments(x.shape)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.op("AveragePoolGrad", [douts[0]], **self.copied_attrs())]


class AveragePoolGrad(AveragePool):
    """dY spread over each window (ai.onnx 9 of ONNX Runtime training)."""

    name = "AveragePoolGrad"
    differentiable = ()

    def infer(self, dy: TensorType) -> TensorType:
        x = self.forward_type()
        self.need_shape("dY", dy, self.pooled(x))
        return TensorType("float32", x.shape)

    def lower(self, b: Builder, outs: list[Buf], dy: Buf) -> None:
        if outs[0].size:
            b.emit(calls.AveragePoolGradient(dy=dy, dx=outs[0], **self.pool_arguments(outs[0].shape)))


class _GlobalPool(Op, abstract=True):
    """A reduction over all spatial dims, which stay as dims of size 1."""

    versions = (1, 22)
    differentiable = (0,)
    operation = 0

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if x.rank < 3:
            raise self.error(f"X has shape {list(x.shape)}; it needs spatial dims.")
        return TensorType("float32", (*x.shape[:2], *[1] * (x.rank - 2)))

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        if outs[0].size:
            outer, n = prod(x.shape[:2]), prod(x.shape[2:])
            b.emit(calls.Reduce(x=x, y=outs[0], outer=outer, n=n, inner=1, op=self.operation))


class GlobalAveragePool(_GlobalPool):
    """Mean over the spatial dims. https://onnx.ai/onnx/operators/onnx__GlobalAveragePool.html"""

    operation = 1

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        shape = g.shape(ins[0])
        if static(*shape[2:]):
            count = g.constant("float32", (1,), (float(prod(shape[2:])),))
        else:
            count = g.op("Cast", [g.op("Div", [g.op("Size", [ins[0]]), g.op("Size", [outs[0]])])], to=1)
        scaled = g.op("Scale", [douts[0], count], domain=MS, scale_down=1)
        return [g.op("Expand", [scaled, g.op("Shape", [ins[0]])])]


class GlobalMaxPool(_GlobalPool):
    """Maximum over the spatial dims; its gradient goes to the first of equal ones, as in PyTorch.

    https://onnx.ai/onnx/operators/onnx__GlobalMaxPool.html
    """

    operation = 2

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        flat = g.constant("int64", (3,), [0, 0, -1])
        x, dy = (g.op("Reshape", [name or "", flat]) for name in (ins[0], douts[0]))
        chosen = g.op("ArgMax", [x], axis=2, keepdims=1)
        dx = g.op("GatherElementsGrad", [dy, g.op("Shape", [x]), chosen], domain=MS, axis=2)
        return [g.op("Reshape", [dx, g.op("Shape", [ins[0]])])]
