"""Calls of index. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class CheckIndices(KernelCall):
    """A call of `check_indices`.

    fails unless lo <= index < hi (or index == ignore); label 1: with TW_BAD_LABEL
    """

    __slots__ = ("indices", "n", "index_size", "lo", "hi", "has_ignore", "ignore", "label")
    KERNEL = "check_indices"
    OPCODE = 26
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices",)
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        indices: Buf,
        n: int,
        index_size: int,
        lo: int,
        hi: int,
        has_ignore: int,
        ignore: int,
        label: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.n = n
        self.index_size = index_size
        self.lo = lo
        self.hi = hi
        self.has_ignore = has_ignore
        self.ignore = ignore
        self.label = label

    @property
    def reads(self) -> list[Buf]:
        return [self.indices]

    @property
    def writes(self) -> list[Buf]:
        return []


class Gather(KernelCall):
    """A call of `gather`.

    data [outer, dim, inner bytes], y [outer, n, inner bytes]
    """

    __slots__ = ("data", "indices", "y", "outer", "dim", "n", "inner", "index_size")
    KERNEL = "gather"
    OPCODE = 27
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        outer: int,
        dim: int,
        n: int,
        inner: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.outer = outer
        self.dim = dim
        self.n = n
        self.inner = inner
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class GatherGrad(KernelCall):
    """A call of `gather_grad_f32`.

    dx [outer, dim, inner] = sum of the rows of dy [outer, n, inner] that came from each row
    """

    __slots__ = ("indices", "dy", "dx", "outer", "dim", "n", "inner", "index_size")
    KERNEL = "gather_grad_f32"
    OPCODE = 28
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices", "dy", "dx")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        indices: Buf,
        dy: Buf,
        dx: Buf,
        outer: int,
        dim: int,
        n: int,
        inner: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.dy = dy
        self.dx = dx
        self.outer = outer
        self.dim = dim
        self.n = n
        self.inner = inner
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.indices, self.dy]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class GatherElements(KernelCall):
    """A call of `gather_elements`.

    GatherElements: y has shape dims, that of indices; strides are those of data with 0 at the axis
    """

    __slots__ = ("data", "indices", "y", "dims", "strides", "axis_dim", "axis_stride", "size", "index_size")
    KERNEL = "gather_elements"
    OPCODE = 29
    WORDS = 23
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        axis_dim: int,
        axis_stride: int,
        size: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.dims = dims
        self.strides = strides
        self.axis_dim = axis_dim
        self.axis_stride = axis_stride
        self.size = size
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ScatterElements(KernelCall):
    """A call of `scatter_elements`.

    ScatterElements into y, which holds data; `type` is that of the elements where reduction is not SCATTER_SET:
    integers wrap
    """

    __slots__ = (
        "updates",
        "indices",
        "y",
        "dims",
        "strides",
        "axis_dim",
        "axis_stride",
        "size",
        "index_size",
        "reduction",
        "type",
    )
    KERNEL = "scatter_elements"
    OPCODE = 30
    WORDS = 25
    ARGUMENTS = __slots__
    OPERANDS = ("updates", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        updates: Buf,
        indices: Buf,
        y: Buf,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        axis_dim: int,
        axis_stride: int,
        size: int,
        index_size: int,
        reduction: int,
        type: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.updates = updates
        self.indices = indices
        self.y = y
        self.dims = dims
        self.strides = strides
        self.axis_dim = axis_dim
        self.axis_stride = axis_stride
        self.size = size
        self.index_size = index_size
        self.reduction = reduction
        self.type = type

    @property
    def reads(self) -> list[Buf]:
        return [self.updates, self.indices, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class GatherNd(KernelCall):
    """A call of `gather_nd`.

    GatherND: data [batch, dims..., slice bytes], indices [batch, n, k] into the first k of dims (the others are 1)
    """

    __slots__ = ("data", "indices", "y", "batch", "n", "k", "dims", "slice", "index_size")
    KERNEL = "gather_nd"
    OPCODE = 31
    WORDS = 16
    ARGUMENTS = __slots__
    OPERANDS = ("data", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        data: Buf,
        indices: Buf,
        y: Buf,
        batch: int,
        n: int,
        k: int,
        dims: tuple[int, ...],
        slice: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.data = data
        self.indices = indices
        self.y = y
        self.batch = batch
        self.n = n
        self.k = k
        self.dims = dims
        self.slice = slice
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.data, self.indices]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ScatterNd(KernelCall):
    """A call of `scatter_nd`.

    ScatterND into y, which holds data; reductions as in scatter_elements, slice then a multiple of an element
    """

    __slots__ = ("updates", "indices", "y", "batch", "n", "k", "dims", "slice", "index_size", "reduction", "type")
    KERNEL = "scatter_nd"
    OPCODE = 32
    WORDS = 18
    ARGUMENTS = __slots__
    OPERANDS = ("updates", "indices", "y")
    FAILS = ("indices",)

    def __init__(
        self,
        *,
        updates: Buf,
        indices: Buf,
        y: Buf,
        batch: int,
        n: int,
        k: int,
        dims: tuple[int, ...],
        slice: int,
        index_size: int,
        reduction: int,
        type: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.updates = updates
        self.indices = indices
        self.y = y
        self.batch = batch
        self.n = n
        self.k = k
        self.dims = dims
        self.slice = slice
        self.index_size = index_size
        self.reduction = reduction
        self.type = type

    @property
    def reads(self) -> list[Buf]:
        return [self.updates, self.indices, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class OneHot(KernelCall):
    """A call of `one_hot`.

    y [outer, depth, inner] = values[1] where the index [outer, inner] says so, else values[0]; others leave a row all
    off
    """

    __slots__ = ("indices", "values", "y", "outer", "depth", "inner", "size", "index_size")
    KERNEL = "one_hot"
    OPCODE = 33
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("indices", "values", "y")

    def __init__(
        self,
        *,
        indices: Buf,
        values: Buf,
        y: Buf,
        outer: int,
        depth: int,
        inner: int,
        size: int,
        index_size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.indices = indices
        self.values = values
        self.y = y
        self.outer = outer
        self.depth = depth
        self.inner = inner
        self.size = size
        self.index_size = index_size

    @property
    def reads(self) -> list[Buf]:
        return [self.indices, self.values]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]
