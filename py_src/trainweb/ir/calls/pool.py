"""Calls of pool. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class MaxPool(KernelCall):
    """A call of `max_pool_f32`.

    Pooling over the last three axes (depth, height, width) of `planes` planes; fewer spatial axes have leading sizes 1.
    indices: position of each maximum in the whole of x (the first one of equals); -1 where a window holds padding
    alone.
    """

    __slots__ = ("x", "y", "indices", "planes", "size", "kernel", "out", "stride", "dilation", "pad")
    KERNEL = "max_pool_f32"
    OPCODE = 75
    WORDS = 22
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "indices")
    OPTIONAL_RESULTS = ("indices",)

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        indices: Buf | None = None,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.indices = indices
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.indices is not None:
            found.append(self.indices)
        return found


class MaxPoolGradient(KernelCall):
    """A call of `max_pool_gradient_f32`.

    dx = 0, then dx[indices[i]] += dy[i]. An index must lie in its own plane, as all do that max_pool_f32 makes.
    """

    __slots__ = ("dy", "indices", "dx", "planes", "size", "out_size")
    KERNEL = "max_pool_gradient_f32"
    OPCODE = 76
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "indices", "dx")

    def __init__(
        self, *, dy: Buf, indices: Buf, dx: Buf, planes: int, size: int, out_size: int, node: str = ""
    ) -> None:
        self.node = node
        self.dy = dy
        self.indices = indices
        self.dx = dx
        self.planes = planes
        self.size = size
        self.out_size = out_size

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class AveragePool(KernelCall):
    """A call of `average_pool_f32`.

    Mean over the window; with count_include_pad it counts the positions of the padding, which ends pad_end after the
    input.
    """

    __slots__ = (
        "x",
        "y",
        "planes",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "pad_end",
        "count_include_pad",
    )
    KERNEL = "average_pool_f32"
    OPCODE = 77
    WORDS = 25
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        pad_end: tuple[int, ...],
        count_include_pad: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.pad_end = pad_end
        self.count_include_pad = count_include_pad

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class AveragePoolGradient(KernelCall):
    """A call of `average_pool_gradient_f32`."""

    __slots__ = (
        "dy",
        "dx",
        "planes",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "pad_end",
        "count_include_pad",
    )
    KERNEL = "average_pool_gradient_f32"
    OPCODE = 78
    WORDS = 25
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "dx")

    def __init__(
        self,
        *,
        dy: Buf,
        dx: Buf,
        planes: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        pad_end: tuple[int, ...],
        count_include_pad: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.dx = dx
        self.planes = planes
        self.size = size
        self.kernel = kernel
        self.out = out
        self.stride = stride
        self.dilation = dilation
        self.pad = pad
        self.pad_end = pad_end
        self.count_include_pad = count_include_pad

    @property
    def reads(self) -> list[Buf]:
        return [self.dy]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]
