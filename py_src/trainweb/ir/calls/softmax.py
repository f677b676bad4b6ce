"""Calls of softmax. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.instructions import Buf, KernelCall


class Softmax(KernelCall):
    """A call of `softmax_f32`.

    along the middle axis of [outer, n, inner]; log 1: the logarithm of it
    """

    __slots__ = ("x", "y", "outer", "n", "inner", "log")
    KERNEL = "softmax_f32"
    OPCODE = 11
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y")

    def __init__(self, *, x: Buf, y: Buf, outer: int, n: int, inner: int, log: int, node: str = "") -> None:
        self.node = node
        self.x = x
        self.y = y
        self.outer = outer
        self.n = n
        self.inner = inner
        self.log = log

    @property
    def reads(self) -> list[Buf]:
        return [self.x]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class SoftmaxGrad(KernelCall):
    """A call of `softmax_grad_f32`."""

    __slots__ = ("dy", "y", "dx", "outer", "n", "inner", "log")
    KERNEL = "softmax_grad_f32"
    OPCODE = 12
    WORDS = 7
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "y", "dx")

    def __init__(self, *, dy: Buf, y: Buf, dx: Buf, outer: int, n: int, inner: int, log: int, node: str = "") -> None:
        self.node = node
        self.dy = dy
        self.y = y
        self.dx = dx
        self.outer = outer
        self.n = n
        self.inner = inner
        self.log = log

    @property
    def reads(self) -> list[Buf]:
        return [self.dy, self.y]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]


class CrossEntropy(KernelCall):
    """A call of `cross_entropy_f32`.

    scores [n, c, inner] (from_log 1: already log-probabilities), labels [n, inner] of label_size 4 or 8 bytes. The loss
    of each is [n, inner]. A label outside [0, c) that is not ignored fails with TW_BAD_LABEL.
    """

    __slots__ = (
        "scores",
        "labels",
        "weights",
        "loss",
        "log_prob",
        "row_loss",
        "n",
        "c",
        "inner",
        "label_size",
        "has_ignore",
        "ignore_index",
        "reduction",
        "from_log",
    )
    KERNEL = "cross_entropy_f32"
    OPCODE = 13
    WORDS = 14
    ARGUMENTS = __slots__
    OPERANDS = ("scores", "labels", "weights", "loss", "log_prob", "row_loss")
    OPTIONAL_RESULTS = ("log_prob",)
    FAILS = ("labels",)

    def __init__(
        self,
        *,
        scores: Buf,
        labels: Buf,
        weights: Buf | None = None,
        loss: Buf,
        log_prob: Buf | None = None,
        n: int,
        c: int,
        inner: int,
        label_size: int,
        has_ignore: int,
        ignore_index: int,
        reduction: int,
        from_log: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.scores = scores
        self.labels = labels
        self.weights = weights
        self.loss = loss
        self.log_prob = log_prob
        self.row_loss: Buf
        self.n = n
        self.c = c
        self.inner = inner
        self.label_size = label_size
        self.has_ignore = has_ignore
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.from_log = from_log

    @property
    def reads(self) -> list[Buf]:
        found = [self.scores, self.labels]
        if self.weights is not None:
            found.append(self.weights)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.loss]
        if self.log_prob is not None:
            found.append(self.log_prob)
        found.append(self.row_loss)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.row_loss = temp("float32", (max(1, self.n * self.inner),))


class CrossEntropyGrad(KernelCall):
    """A call of `cross_entropy_grad_f32`.

    dx = (exp(log_prob) - onehot) * weight * dy / D; from_log 1: -onehot * weight * dy / D
    """

    __slots__ = (
        "dy",
        "log_prob",
        "labels",
        "weights",
        "dx",
        "n",
        "c",
        "inner",
        "label_size",
        "has_ignore",
        "ignore_index",
        "reduction",
        "from_log",
    )
    KERNEL = "cross_entropy_grad_f32"
    OPCODE = 14
    WORDS = 13
    ARGUMENTS = __slots__
    OPERANDS = ("dy", "log_prob", "labels", "weights", "dx")
    FAILS = ("labels",)

    def __init__(
        self,
        *,
        dy: Buf,
        log_prob: Buf | None = None,
        labels: Buf,
        weights: Buf | None = None,
        dx: Buf,
        n: int,
        c: int,
        inner: int,
        label_size: int,
        has_ignore: int,
        ignore_index: int,
        reduction: int,
        from_log: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dy = dy
        self.log_prob = log_prob
        self.labels = labels
        self.weights = weights
        self.dx = dx
        self.n = n
        self.c = c
        self.inner = inner
        self.label_size = label_size
        self.has_ignore = has_ignore
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.from_log = from_log

    @property
    def reads(self) -> list[Buf]:
        found = [self.dy]
        if self.log_prob is not None:
            found.append(self.log_prob)
        found.append(self.labels)
        if self.weights is not None:
            found.append(self.weights)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]
