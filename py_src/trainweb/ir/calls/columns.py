"""Calls of columns. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.ir.calls.sizes import few_positions, grouped, positions, windows
from trainweb.ir.instructions import Buf, KernelCall


class ColumnsConv(KernelCall):
    """A call of `columns_conv_f32`.

    Convolutions without groups as products of matrices, over all positions of all images at once: where these are so
    few that reading the weights is most of the work. As conv_f32, conv_data_gradient_f32 and conv_weight_gradient_f32.
    """

    __slots__ = (
        "x",
        "w",
        "bias",
        "y",
        "columns",
        "rows",
        "table",
        "n",
        "c",
        "m",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "columns_conv_f32"
    OPCODE = 72
    WORDS = 30
    ARGUMENTS = __slots__
    OPERANDS = ("x", "w", "bias", "y", "columns", "rows", "table")
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
        self.columns: Buf
        self.rows: Buf
        self.table: Buf
        self.n = n
        self.c = c
        self.m = m
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
        return [self.y, self.columns, self.rows, self.table]

    @property
    def result(self) -> Buf:
        return self.y

    @result.setter
    def result(self, b: Buf) -> None:
        self.y = b

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.columns = temp("float32", (max(1, self.c * prod(self.kernel) * positions(self.n, self.out)),))
        self.rows = temp("float32", (max(1, self.m * positions(self.n, self.out)),))
        self.table = temp("int32", (max(1, prod(self.kernel) * prod(self.out)),))

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(
        *,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        activation: int,
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad) and (activation <= 1)) and (few_positions(n, m, m * c * prod(kernel), out)))


class ColumnsDataGradient(KernelCall):
    """A call of `columns_data_gradient_f32`."""

    __slots__ = (
        "dy",
        "w",
        "bias",
        "dx",
        "columns",
        "rows",
        "table",
        "n",
        "c",
        "m",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
        "activation",
    )
    KERNEL = "columns_data_gradient_f32"
    OPCODE = 73
    WORDS = 30
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "w", "bias", "dx", "columns", "rows", "table")
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
        self.columns: Buf
        self.rows: Buf
        self.table: Buf
        self.n = n
        self.c = c
        self.m = m
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
        return [self.dx, self.columns, self.rows, self.table]

    @property
    def result(self) -> Buf:
        return self.dx

    @result.setter
    def result(self, b: Buf) -> None:
        self.dx = b

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.columns = temp("float32", (max(1, self.c * prod(self.kernel) * positions(self.n, self.out)),))
        self.rows = temp("float32", (max(1, self.m * positions(self.n, self.out)),))
        self.table = temp("int32", (max(1, prod(self.kernel) * prod(self.out)),))

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(
        *,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
        activation: int,
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad) and (activation <= 1) and (4 * prod(size) <= 1048576)) and (few_positions(n, m, m * c * prod(kernel), out)))


class ColumnsWeightGradient(KernelCall):
    """A call of `columns_weight_gradient_f32`."""

    __slots__ = (
        "x",
        "dy",
        "dw",
        "db",
        "columns",
        "rows",
        "table",
        "n",
        "c",
        "m",
        "size",
        "kernel",
        "out",
        "stride",
        "dilation",
        "pad",
        "accumulate",
    )
    KERNEL = "columns_weight_gradient_f32"
    OPCODE = 74
    WORDS = 29
    ARGUMENTS = __slots__
    OPERANDS = ("x", "dy", "dw", "db", "columns", "rows", "table")
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
        self.columns: Buf
        self.rows: Buf
        self.table: Buf
        self.n = n
        self.c = c
        self.m = m
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
        found.append(self.columns)
        found.append(self.rows)
        found.append(self.table)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.columns = temp("float32", (max(1, self.c * prod(self.kernel) * positions(self.n, self.out)),))
        self.rows = temp("float32", (max(1, self.m * positions(self.n, self.out)),))
        self.table = temp("int32", (max(1, prod(self.kernel) * prod(self.out)),))

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(
        *,
        n: int,
        c: int,
        m: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        out: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        pad: tuple[int, ...],
    ) -> bool:
        """Whether the kernel takes these arguments and is worth taking."""
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad)) and (few_positions(n, m, m * c * prod(kernel), out)))
