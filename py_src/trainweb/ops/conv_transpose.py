"""Transposed convolution."""

from __future__ import annotations

from typing import Any

from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, maximum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.conv import Window, _Convolution, counts
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Ints, Names
from trainweb.ops.padding import WindowSizes


class ConvTranspose(_Convolution):
    """Transposed convolution (N, C, ...) with weights (C, M/group, ...): the gradient of Conv by its input.

    https://onnx.ai/onnx/operators/onnx__ConvTranspose.html; Dumoulin & Visin, https://arxiv.org/abs/1603.07285.
    """

    versions = (1, 11, 22)
    attrs = {**_Convolution.attrs, "output_padding": Ints(), "output_shape": Ints()}
    differentiable = (0, 1, 2)
    output_padding: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None

    def transposed(self, x: tuple[int, ...], w: tuple[int, ...]) -> Window:
        """The window of the convolution from the output (`size`) to the input (`out`)."""
        self.check_operands(x, w, channels=w[0] if w else 0)
        rank = len(x) - 2
        if rank > 3:
            raise self.unsupported(f"{rank} spatial dimensions")
        stride = counts(self, "strides", self.strides or (1,) * rank, rank, 1)
        dilation = counts(self, "dilations", self.dilations or (1,) * rank, rank, 1)
        extra = counts(self, "output_padding", self.output_padding or (0,) * rank, rank, 0)
        given_pads = self.pads if self.auto_pad == "NOTSET" else None
        pads = counts(self, "pads", given_pads or (0,) * 2 * rank, 2 * rank, 0)
        begin, end, size = list(pads[:rank]), list(pads[rank:]), []
        output = self._output_shape(x[2:], stride)
        for k in range(rank):
            span = (w[2 + k] - 1) * dilation[k] + 1
            full = (x[2 + k] - 1) * stride[k] + span + extra[k]
            if output is not None:
                total = maximum(0, full - output[k])
                upper = self.auto_pad == "SAME_UPPER"
                begin[k] = total // 2 if upper else total - total // 2
                end[k] = total - begin[k]
                size.append(output[k])
            else:
                size.append(full - begin[k] - end[k])
            if not at_most(1, size[k]):
                raise self.error(f"axis {k} of the output would have {size[k]} elements.")
        return Window(tuple(size), w[2:], x[2:], stride, dilation, tuple(begin), tuple(end))

    def _output_shape(self, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
        """Spatial output shape where the attributes give it, which the padding then follows from."""
        if self.output_shape:
            if len(self.output_shape) != len(size):
                raise self.error(f"output_shape {list(self.output_shape)} must be {len(size)} numbers.")
            return self.output_shape
        if self.auto_pad.startswith("SAME"):
            return tuple(n * s for n, s in zip(size, stride, strict=True))
        return None

    def channels(self, w: tuple[int, ...]) -> int:
        """Number of output channels."""
        return w[1] * self.group

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        self.need_float32(x, w, b)
        win = self.transposed(x.shape, w.shape)
        self.need_shape("the bias", b, (self.channels(w.shape),))
        return TensorType("float32", (x.shape[0], self.channels(w.shape), *win.size))

    def lower(self, b: Builder, outs: list[Buf], x: Buf, w: Buf, bias: Buf | None) -> None:
        y = outs[0]
        if not y.size:
            return
        self.convolve(b, self.transposed(x.shape, w.shape), w, x, y, bias, back=True)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        dy, x, w = douts[0], ins[0], ins[1]
        padded = dy
        if not static(*g.shape(x)[2:], *g.shape(w)) and (self.auto_pad.startswith("SAME") or self.output_shape):
            pads = WindowSizes(g, self, x, w).transposed_pads(self.auto_pad, self.output_shape, self.output_padding)
            attrs, dy = self.unpadded_attrs(), g.op("Pad", [dy, pads], mode="constant")
        else:
            attrs = self.backward(g.shape(x), g.shape(w))
        dx = g.op("Conv", [dy, w], **attrs) if g.wants(x) else None
        dw = None
        if g.wants(w):
            dw = g.ops("ConvGrad", [x, dy, w], [False, True, False], domain=MS, **attrs)[1]
        if len(ins) < 3:
            return [dx, dw]
        axes = [0, *range(2, g.rank(ins[0]))]
        return [dx, dw, g.reduce_sum(padded, axes, keepdims=False) if g.wants(ins[2]) else None]

    def unpadded_attrs(self) -> dict[str, Any]:
        """Attributes of a convolution of the output without its padding."""
        dropped = ("auto_pad", "output_padding", "output_shape", "pads")
        return {name: value for name, value in self.given_attrs().items() if name not in dropped}

    def backward(self, x: tuple[Any, ...], w: tuple[Any, ...]) -> dict[str, Any]:
        """Attributes of the convolution from the output's gradient to the input's."""
        attrs = self.unpadded_attrs()
        if self.auto_pad != "VALID" and self.pads:
            attrs["pads"] = list(self.pads)
        spare = list(self.output_padding or ())
        if self.auto_pad.startswith("SAME") or self.output_shape:
            win = self.transposed((1, w[0], *x[2:]), tuple(w))
            attrs["pads"] = [*win.pad, *win.pad_end]
            spare = [
                size + begin + end - (kernel - 1) * dilation - 1 - (out - 1) * stride
                for size, begin, end, kernel, dilation, out, stride in zip(
                    win.size, win.pad, win.pad_end, win.kernel, win.dilation, win.out, win.stride, strict=True
                )
            ]
        strides = list(self.strides or (1,) * len(spare))
        if spare and any(n >= s for n, s in zip(spare, strides, strict=True)):
            raise self.unsupported(f"the gradient with {spare} elements behind the last window and strides {strides}")
        return attrs
