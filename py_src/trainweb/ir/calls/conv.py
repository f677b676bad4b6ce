"""Calls of conv. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.ir.calls.sizes import conv_weights, few_positions, winograd_tiled, winograd_window
from trainweb.ir.extents import ceil4
from trainweb.ir.instructions import Buf, KernelCall


class Conv(KernelCall):
    """A call of `conv_f32`.

    Convolutions over (depth, height, width); fewer spatial axes have leading sizes 1 (kernel, stride, dilation 1, pad
    0). `pad` is the padding at the begin of each axis; the end follows from `out`. y = activation(x * w + bias +
    (accumulate ? y : 0)).
    """

    __slots__ = (
        "x",
        "w",
        "bias",
        "y",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "conv_f32"
    OPCODE = 66
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("x", "w", "bias", "y")
    ACCUMULATED = ("y",)

    def __init__(
        self,
        *,
        x: Buf,
        w: Buf,
        bias: Buf | None = None,
        y: Buf,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.w = w
        self.bias = bias
        self.y = y
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.w]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.y)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.y]

    @property
    def result(self) -> Buf:
        return self.y

    @result.setter
    def result(self, b: Buf) -> None:
        self.y = b

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvDataGradient(KernelCall):
    """A call of `conv_data_gradient_f32`.

    dx = activation(transposed convolution of dy + bias + (accumulate ? dx : 0)): also ConvTranspose, whose input is dy
    and output dx.
    """

    __slots__ = (
        "dy",
        "w",
        "bias",
        "dx",
        "ordered",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "conv_data_gradient_f32"
    OPCODE = 67
    WORDS = 29
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "w", "bias", "dx", "ordered")
    ACCUMULATED = ("dx",)

    def __init__(
        self,
        *,
        dy: Buf,
        w: Buf,
        bias: Buf | None = None,
        dx: Buf,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.w = w
        self.bias = bias
        self.dx = dx
        self.ordered: Buf
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.dy, self.w]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.dx)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.dx, self.ordered]

    @property
    def result(self) -> Buf:
        return self.dx

    @result.setter
    def result(self, b: Buf) -> None:
        self.dx = b

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.ordered = temp("float32", (max(1, conv_weights(self.c, self.m, self.groups, self.kernel)),))

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvWeightGradient(KernelCall):
    """A call of `conv_weight_gradient_f32`.

    dw (+)= gradient by the weights, db (+)= sum of dy per channel; `accumulate` adds to what they hold.
    """

    __slots__ = (
        "x",
        "dy",
        "dw",
        "db",
        "partial",
        "n",
        "c",
        "m",
        "groups",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
    )
    KERNEL = "conv_weight_gradient_f32"
    OPCODE = 68
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("x", "dy", "dw", "db", "partial")
    ACCUMULATED = ("dw", "db")

    def __init__(
        self,
        *,
        x: Buf,
        dy: Buf,
        dw: Buf,
        db: Buf | None = None,
        n: int,
        c: int,
        m: int,
        groups: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        accumulate: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.dy = dy
        self.dw = dw
        self.db = db
        self.partial: Buf
        self.n = n
        self.c = c
        self.m = m
        self.groups = groups
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.accumulate = accumulate

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.dy]
        if self.accumulate:
            found.append(self.dw)
        if self.accumulate and self.db is not None:
            found.append(self.db)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.dw]
        if self.db is not None:
            found.append(self.db)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        size = 8 * self.m * self.c * prod(self.kernel) * (self.groups == 1) * (self.m * self.c * prod(self.kernel) <= 4096)
        self.partial = temp("float32", (max(1, size),))

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class WinogradWeights(KernelCall):
    """A call of `winograd_weights_f32`."""

    __slots__ = ("w", "u", "m", "c", "stride", "flipped")
    KERNEL = "winograd_weights_f32"
    OPCODE = 69
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("w", "u")

    def __init__(self, *, w: Buf, u: Buf, m: int, c: int, stride: int, flipped: int, node: str = "") -> None:
        self.node = node
        self.w = w
        self.u = u
        self.m = m
        self.c = c
        self.stride = stride
        self.flipped = flipped

    @property
    def reads(self) -> list[Buf]:
        return [self.w]

    @property
    def writes(self) -> list[Buf]:
        return [self.u]


class WinogradConv(KernelCall):
    """A call of `winograd_conv_f32`.

    As conv_f32; flipped 1: as conv_data_gradient_f32, with dy as x, where the paddings must be both even or both odd if
    the stride is 2. Its flops are those of a direct sum. It pays from 4 channels on where half of the tiles (stride 2:
    3/4) lies inside.
    """

    __slots__ = (
        "x",
        "u",
        "bias",
        "y",
        "n",
        "c",
        "m",
        "size",
        "out",
        "stride",
        "pad",
        "flipped",
        "accumulate",
        "activation",
    )
    KERNEL = "winograd_conv_f32"
    OPCODE = 70
    WORDS = 17
    ARGUMENTS = __slots__
    OPERANDS = ("x", "u", "bias", "y")
    ACCUMULATED = ("y",)

    def __init__(
        self,
        *,
        x: Buf,
        u: Buf,
        bias: Buf | None = None,
        y: Buf,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        flipped: int,
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.u = u
        self.bias = bias
        self.y = y
        self.n = n
        self.c = c
        self.m = m
        self.size = size
        self.out = out
        self.stride = stride
        self.pad = pad
        self.flipped = flipped
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.u]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.y)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.y]

    @property
    def result(self) -> Buf:
        return self.y

    @result.setter
    def result(self, b: Buf) -> None:
        self.y = b

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * (prod(self.out) * (self.flipped == 0) + prod(self.size) * (self.flipped > 0))

    @staticmethod
    def pays(
        *,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        flipped: int,
        activation: int,
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((winograd_window(n, c, m, size, out, stride, pad) and flipped <= 1 and (activation <= 1) and ((pad[0] - pad[0] // 2 * 2 == pad[1] - pad[1] // 2 * 2) + (stride == 1) + (flipped == 0) >= 1)) and (min(c, m) >= 4 and 4 * prod(out) >= (1 + stride) * winograd_tiled(out[0], stride, flipped) * winograd_tiled(out[1], stride, flipped)))


class WinogradWeightGradient(KernelCall):
    """A call of `winograd_weight_gradient_f32`.

    As conv_weight_gradient_f32; pays where winograd_conv_f32 does, but for few positions.
    """

    __slots__ = ("x", "dy", "dw", "db", "partial", "n", "c", "m", "size", "out", "stride", "pad", "accumulate")
    KERNEL = "winograd_weight_gradient_f32"
    OPCODE = 71
    WORDS = 16
    ARGUMENTS = __slots__
    OPERANDS = ("x", "dy", "dw", "db", "partial")
    ACCUMULATED = ("dw", "db")

    def __init__(
        self,
        *,
        x: Buf,
        dy: Buf,
        dw: Buf,
        db: Buf | None = None,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        out: tuple[int, ...],
        stride: int,
        pad: tuple[int, ...],
        accumulate: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.dy = dy
        self.dw = dw
        self.db = db
        self.partial: Buf
        self.n = n
        self.c = c
        self.m = m
        self.size = size
        self.out = out
        self.stride = stride
        self.pad = pad
        self.accumulate = accumulate

    @property
    def reads(self) -> list[Buf]:
        found = [self.x, self.dy]
        if self.accumulate:
            found.append(self.dw)
        if self.accumulate and self.db is not None:
            found.append(self.db)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.dw]
        if self.db is not None:
            found.append(self.db)
        found.append(self.partial)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        size = min(8 * 36 * (self.m * ceil4(self.c) + 16), max(36 * (self.m * ceil4(self.c) + 16), 1048576))
        self.partial = temp("float32", (max(1, size),))

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * prod(self.out)

    @staticmethod
    def pays(
        *, n: int, c: int, m: int, size: tuple[int, ...], out: tuple[int, ...], stride: int, pad: tuple[int, ...]
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((winograd_window(n, c, m, size, out, stride, pad)) and ((few_positions(n, m, 9 * m * c, out) == 0) + (n * prod(out) > 64) >= 1))
