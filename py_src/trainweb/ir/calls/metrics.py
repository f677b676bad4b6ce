"""Calls of metrics. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class CountClasses(KernelCall):
    """A call of `count_classes`.

    Faults: how many targets are no class, the first of them, and how many classes there are. Where `ignores` is not 0,
    targets that are `ignored` do not count.
    """

    __slots__ = ("predicted", "targets", "sums", "faults", "n", "classes", "mode", "ignores", "ignored")
    KERNEL = "count_classes"
    OPCODE = 79
    WORDS = 9
    ARGUMENTS = __slots__
    OPERANDS = ("predicted", "targets", "sums", "faults")

    def __init__(
        self,
        *,
        predicted: Buf,
        targets: Buf,
        sums: Buf,
        faults: Buf,
        n: int,
        classes: int,
        mode: int,
        ignores: int,
        ignored: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.predicted = predicted
        self.targets = targets
        self.sums = sums
        self.faults = faults
        self.n = n
        self.classes = classes
        self.mode = mode
        self.ignores = ignores
        self.ignored = ignored

    @property
    def reads(self) -> list[Buf]:
        return [self.predicted, self.targets]

    @property
    def writes(self) -> list[Buf]:
        return [self.sums, self.faults]


class CountTop(KernelCall):
    """A call of `count_top_f32`.

    Right are those where fewer than k classes have a higher score than the target; sums: right ones and all.
    """

    __slots__ = ("scores", "targets", "sums", "faults", "outer", "classes", "inner", "k", "ignores", "ignored")
    KERNEL = "count_top_f32"
    OPCODE = 80
    WORDS = 10
    ARGUMENTS = __slots__
    OPERANDS = ("scores", "targets", "sums", "faults")

    def __init__(
        self,
        *,
        scores: Buf,
        targets: Buf,
        sums: Buf,
        faults: Buf,
        outer: int,
        classes: int,
        inner: int,
        k: int,
        ignores: int,
        ignored: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.scores = scores
        self.targets = targets
        self.sums = sums
        self.faults = faults
        self.outer = outer
        self.classes = classes
        self.inner = inner
        self.k = k
        self.ignores = ignores
        self.ignored = ignored

    @property
    def reads(self) -> list[Buf]:
        return [self.scores, self.targets]

    @property
    def writes(self) -> list[Buf]:
        return [self.sums, self.faults]


class ErrorSums(KernelCall):
    """A call of `error_sums_f32`."""

    __slots__ = ("predicted", "target", "sums", "rows", "columns")
    KERNEL = "error_sums_f32"
    OPCODE = 81
    WORDS = 5
    ARGUMENTS = __slots__
    OPERANDS = ("predicted", "target", "sums")

    def __init__(self, *, predicted: Buf, target: Buf, sums: Buf, rows: int, columns: int, node: str = "") -> None:
        self.node = node
        self.predicted = predicted
        self.target = target
        self.sums = sums
        self.rows = rows
        self.columns = columns

    @property
    def reads(self) -> list[Buf]:
        return [self.predicted, self.target]

    @property
    def writes(self) -> list[Buf]:
        return [self.sums]
