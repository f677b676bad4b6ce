"""Convolution, transposed convolution, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, equal_shapes, maximum, minimum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.ir.windows import Axes, Ends
from trainweb.model.graph import MS, Node
from trainweb.ops.frame.arguments import unknown
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Ints, Names, Op, Str
from trainweb.ops.matmul import multiply
from trainweb.ops.padding import WindowSizes

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over 1 to 3 spatial axes, padded to three axes with leading ones."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    pad_end: tuple[int, ...]

    def arguments(self) -> Axes:
        """Kernel arguments: three axes, with size 1 for absent ones."""
        absent = 3 - len(self.size)
        ones = (1,) * absent
        return {
            "size": ones + self.size,
            "kernel": ones + self.kernel,
            "out": ones + self.out,
            "stride": ones + self.stride,
            "dilation": ones + self.dilation,
            "pad": (0,) * absent + self.pad,
        }


def counts(op: Op, name: str, values: tuple[int, ...], n: int, low: int) -> tuple[int, ...]:
    """`values`, which must be `n` numbers from `low` on."""
    if len(values) != n or not all(at_most(low, v) for v in values):
        raise op.error(f"{name} {list(values)} must be {n} numbers >= {low}.")
    return values


def window(
    op: Op,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: bool = False,
) -> Window:
    """Check the attributes of a sliding window and find its output size."""
    rank = len(size)
    if not 1 <= rank <= 3:
        raise op.unsupported(f"{rank} spatial dimensions")
    stride, dilation = strides or (1,) * rank, dilations or (1,) * rank
    for name, values in (("kernel_shape", kernel), ("strides", stride), ("dilations", dilation)):
        counts(op, name, values, rank, 1)
    if pads is not None:
        counts(op, "pads", pads, 2 * rank, 0)
    begin: list[int] = []
    end: list[int] = []
    out: list[int] = []
    for k in range(rank):
        span = (kernel[k] - 1) * dilation[k] + 1
        if auto_pad.startswith("SAME"):
            o = -(-size[k] // stride[k])
            total = maximum(0, (o - 1) * stride[k] + span - size[k])
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            begin, end, out = [*begin, first], [*end, total - first], [*out, o]
            continue
        b, e = (pads[k], pads[k + rank]) if pads is not None and auto_pad == "NOTSET" else (0, 0)
        room = size[k] + b + e - span
        # With ceil_mode a window may end beyond the input, if it begins within.
        if not at_most(1 - stride[k] if ceil_mode else 0, room):
            raise op.error(f"a window of {span} is larger than the padded input of {size[k] + b + e} (axis {k}).")
        o = (-(-room // stride[k]) if ceil_mode else room // stride[k]) + 1
        if ceil_mode and not static(o):
            o = minimum(o, -(-(size[k] + b) // stride[k])) if e < span else unknown(op, 2 + k, o)
        elif ceil_mode and (o - 1) * stride[k] >= size[k] + b:
            o -= 1  # A window that starts in the end padding is left out.
        begin, end, out = [*begin, b], [*end, e], [*out, o]
    return Window(size, tuple(kernel), tuple(out), stride, dilation, tuple(begin), tuple(end))


class _Convolution(Op, abstract=True):
    unit_axis = 1
    attrs = {
        "auto_pad": Str("NOTSET", among=AUTO_PADS),
        "dilations": Ints(),
        "group": Int(1),
        "kernel_shape": Ints(),
        "pads": Ints(),
        "strides": Ints(),
    }
    auto_pad: str
    dilations: tuple[int, ...] | None
    group: int
    kernel_shape: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    strides: tuple[int, ...] | None

    def window_of(self, x: tuple[int, ...], w: tuple[int, ...]) -> Window:
        """The window over an input of shape `x` (N, C, ...) with weights (M, C/group, ...)."""
        self.check_operands(x, w, channels=w[1] * self.group if len(w) > 1 else 0)
        return window(
            self, x[2:], w[2:], strides=self.strides, dilations=self.dilations, pads=self.pads, auto_pad=self.auto_pad
        )

    def check_operands(self, x: tuple[int, ...], w: tuple[int, ...], *, channels: int) -> None:
        """Raise unless an input of shape `x` fits weights of shape `w`, which take `channels` channels."""
        if len(x) != len(w) or len(x) < 3:
            raise self.error(f"input of shape {list(x)} and weights of shape {list(w)} do not fit.")
        if self.group < 1 or not equal(x[1], channels) or not equal(w[0] % self.group, 0):
            raise self.error(f"{x[1]} input channels, weights of shape {list(w)} and {self.group} groups do not fit.")
        if self.kernel_shape is not None and not equal_shapes(self.kernel_shape, w[2:]):
            raise self.error(f"kernel_shape {list(self.kernel_shape)} is not that of the weights {list(w[2:])}.")

    def convolve(self, b: Builder, win: Window, w: Buf, x: Buf, y: Buf, bias: Buf | None, *, back: bool) -> None:
        """y = x * w + bias; `back`: as the gradient by the data, from the outputs of the window to its inputs."""
        is_pointwise = {*win.kernel, *win.stride} == {1} and win.out == win.size and not any(win.pad)
        if self.group == 1 and is_pointwise:
            self.mix_channels(b, w, x, y, bias, transposed=back)
            return
        axes, g, n = win.arguments(), self.group, x.shape[0]
        if back:
            ends: Ends = {"n": n, "c": y.shape[1], "m": x.shape[1]}
            gradient = calls.ConvDataGradient(
                dy=x, w=w, bias=bias, dx=y, groups=g, accumulate=0, activation=0, **ends, **axes
            )
            b.emit(gradient)
        else:
            ends = {"n": n, "c": x.shape[1], "m": y.shape[1]}
            b.emit(calls.Conv(x=x, w=w, bias=bias, y=y, groups=g, accumulate=0, activation=0, **ends, **axes))

    def mix_channels(self, b: Builder, w: Buf, x: Buf, y: Buf, bias: Buf | None, *, transposed: bool) -> None:
        """Compute y = w x + bias for each image, or with the transpose of w; planes are columns of matrices."""
        images, k, m, n = x.shape[0], x.shape[1], y.shape[1], prod(x.shape[2:])
        batch, steps = (1, images), ((0, 0), (0, k * n), (0, m * n))
        multiply(
            b, w, x, y, (m, n, k), (transposed, 0), bias=bias, bias_strides=(1, 0), batch=batch, steps=steps, beta=1
        )


class Conv(_Convolution):
    """Convolution (N, C, ...) with weights (M, C/group, ...). https://onnx.ai/onnx/operators/onnx__Conv.html"""

    versions = (1, 11, 22)
    differentiable = (0, 1, 2)

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        self.need_float32(x, w, b)
        self.need_shape("the bias", b, w.shape[:1])
        return TensorType("float32", (x.shape[0], w.shape[0], *self.window_of(x.shape, w.shape).out))

    def lower(self, b: Builder, outs: list[Buf], x: Buf, w: Buf, bias: Buf | None) -> None:
        if not outs[0].size:
            return
        self.convolve(b, self.window_of(x.shape, w.shape), w, x, outs[0], bias, back=False)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        wanted = [bool(name) and g.wants(name) for name in (*ins, *[""] * (3 - len(ins)))]
        dy, x, w = douts[0], ins[0], ins[1]
        attrs, pads = self.explicit(g, x, w)
        if pads:
            x = g.op("Pad", [x, pads], mode="constant")
        names = g.ops("ConvGrad", [dy, x, w], wanted, domain=MS, **attrs)
        if pads and wanted[0]:
            names[0] = g.op("Pad", [names[0], g.op("Neg", [pads])], mode="constant")
        return [name if want else None for name, want in zip(names, wanted, strict=True)][: len(ins)]

    def explicit(self, g: GradientBuilder, x: str, w: str) -> tuple[dict[str, Any], str]:
        """Attributes with `auto_pad` turned into pads, which ONNX Runtime's ConvGrad ignores otherwise.

        If sizes that these depend on are not known, the pads are a tensor, and zeros in the attributes.
        """
        attrs = self.copied_attrs()
        auto = self.auto_pad
        if auto == "NOTSET":
            return attrs, ""
        attrs.pop("auto_pad", None)
        if not auto.startswith("SAME"):
            return attrs, ""
        size, kernel = g.shape(x), g.shape(w)
        if static(*size[2:], *kernel):
            win = self.window_of((1, kernel[1] * self.group, *size[2:]), tuple(kernel))
            attrs["pads"] = [*win.pad, *win.pad_end]
            return attrs, ""
        return attrs, WindowSizes(g, self, x, w).same_pads(auto)


def convolution_of(op: Op) -> Conv:
    """The convolution with the attributes of another operator, of two inputs."""
    attrs = {name: value for name, value in op.node.attrs.items() if name in Conv.attrs}
    return Conv(Node("Conv", ["x", "w"], op.node.outputs[:1], attrs, "", op.node.name), Conv.versions[-1])


class ConvGrad(_Convolution):
    """Gradients of Conv by input, weights and bias from (dY, X, W) (com.microsoft)."""

    domain = MS
    n_outputs = 3

    def infer(self, dy: TensorType, x: TensorType, w: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        self.need_float32(dy, x, w)
        self.need_shape("dY", dy, (x.shape[0], w.shape[0], *self.window_of(x.shape, w.shape).out))
        return TensorType("float32", x.shape), TensorType("float32", w.shape), TensorType("float32", w.shape[:1])

    def lower(self, b: Builder, outs: list[Buf | None], dy: Buf, x: Buf, w: Buf) -> None:
        dx, dw, db = outs
        win = self.window_of(x.shape, w.shape)
        if dx is not None:
            self.convolve(b, win, w, dy, dx, None, back=True)
        if dw is None and db is None:
            return
        dw = dw or b.temp("float32", w.shape)
        ends: Ends = {"n": x.shape[0], "c": x.shape[1], "m": w.shape[0]}
        call = calls.ConvWeightGradient(
            x=x, dy=dy, dw=dw, db=db, groups=self.group, accumulate=0, **ends, **win.arguments()
        )
        b.emit(call)


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
        return {name: value for name, value in self.copied_attrs().items() if name not in dropped}

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
