"""Calls of reduce. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.instructions import Buf, KernelCall


class Reduce(KernelCall):
    """A call of `reduce_f32`."""

    __slots__ = ("x", "y", "outer", "n", "inner", "op")
    KERNEL = "reduce_f32"
    OPCODE = 4
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, op: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.op = op

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ReduceInt(KernelCall):
    """A call of `reduce_int`.

    sum, max, min or prod; size 4 or 8 bytes
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "size", "op")
    KERNEL = "reduce_int"
    OPCODE = 5
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, size: int, op: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.size = size
        self.op = op

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ArgReduce(KernelCall):
    """A call of `arg_reduce_f32`.

    index of the largest (select_max 1) or smallest element; the last one of equals if last_index; a NaN wins
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "select_max", "last_index")
    KERNEL = "arg_reduce_f32"
    OPCODE = 6
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, select_max: int, last_index: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.select_max = select_max
        self.last_index = last_index

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class ArgReduceI64(KernelCall):
    """A call of `arg_reduce_i64`.

    the same of integers
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "select_max", "last_index")
    KERNEL = "arg_reduce_i64"
    OPCODE = 7
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, select_max: int, last_index: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.select_max = select_max
        self.last_index = last_index

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Cumsum(KernelCall):
    """A call of `cumsum_f32`."""

    __slots__ = ("x", "y", "outer", "n", "inner", "exclusive", "reverse")
    KERNEL = "cumsum_f32"
    OPCODE = 8
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(
        self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, exclusive: int, reverse: int, node: str = ""
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.exclusive = exclusive
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class Topk(KernelCall):
    """A call of `topk_f32`.

    the k largest (or smallest) elements in order, and where they were; NaN comes first (topk.c)
    """

    __slots__ = ("x", "y", "at", "heap", "outer", "n", "inner", "k", "largest")
    KERNEL = "topk_f32"
    OPCODE = 9
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "at", "heap")
    OPTIONAL_RESULTS = ("y", "at")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf | None = None,
        at: Buf | None = None,
        outer: int,
        n: int,
        inner: int,
        k: int,
        largest: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.at = at
        self.heap: Buf
        self.outer = outer
        self.n = n
        self.inner = inner
        self.k = k
        self.largest = largest

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.y is not None:
            found.append(self.y)
        if self.at is not None:
            found.append(self.at)
        found.append(self.heap)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.heap = temp("int32", (max(1, self.n),))


class TopkI64(KernelCall):
    """A call of `topk_i64`.

    the same of integers
    """

    __slots__ = ("x", "y", "at", "heap", "outer", "n", "inner", "k", "largest")
    KERNEL = "topk_i64"
    OPCODE = 10
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "at", "heap")
    OPTIONAL_RESULTS = ("y", "at")

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf | None = None,
        at: Buf | None = None,
        outer: int,
        n: int,
        inner: int,
        k: int,
        largest: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.at = at
        self.heap: Buf
        self.outer = outer
        self.n = n
        self.inner = inner
        self.k = k
        self.largest = largest

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.y is not None:
            found.append(self.y)
        if self.at is not None:
            found.append(self.at)
        found.append(self.heap)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.heap = temp("int32", (max(1, self.n),))
