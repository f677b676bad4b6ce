"""Calls of copy. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class Copy(KernelCall):
    """A call of `copy`."""

    __slots__ = ("src", "dst", "n")
    KERNEL = "copy"
    OPCODE = 1
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("src", "dst")
    PARTS = ("dst",)

    def __init__(self, *, src: Buf, dst: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.src = src
        self.dst = dst
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.src]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]


class StridedCopy(KernelCall):
    """A call of `strided_copy`.

    Element dst_offset + sum i_k dst_strides_k of dst = element src_offset + sum i_k src_strides_k of src, for all i <
    dims. Offsets and strides count elements of `size` bytes; unused leading dims are 1. Slice, Pad, Concat, Split,
    Transpose, Expand.
    """

    __slots__ = ("src", "dst", "size", "dims", "src_offset", "src_strides", "dst_offset", "dst_strides")
    KERNEL = "strided_copy"
    OPCODE = 2
    WORDS = 29
    ARGUMENTS = __slots__
    OPERANDS = ("src", "dst")
    PARTS = ("dst",)

    def __init__(
        self,
        *,
        src: Buf,
        dst: Buf,
        size: int,
        dims: tuple[int, ...],
        src_offset: int,
        src_strides: tuple[int, ...],
        dst_offset: int,
        dst_strides: tuple[int, ...],
        node: str = "",
    ) -> None:
        self.node = node
        self.src = src
        self.dst = dst
        self.size = size
        self.dims = dims
        self.src_offset = src_offset
        self.src_strides = src_strides
        self.dst_offset = dst_offset
        self.dst_strides = dst_strides

    @property
    def reads(self) -> list[Buf]:
        return [self.src]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]


class ConvertHalf(KernelCall):
    """A call of `convert_half`."""

    __slots__ = ("x", "y", "n", "conversion")
    KERNEL = "convert_half"
    OPCODE = 3
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, n: int, conversion: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.n = n
        self.conversion = conversion

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]
