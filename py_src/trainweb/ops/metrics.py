"""Sums of metrics over a batch: what `trainweb.metrics` appends to an eval model. Results are float64."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from trainweb import messages
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes, maximum, static
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import COUNT_MATRIX, COUNT_PARTS, COUNT_RIGHT, ERROR_SUMS
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB
from trainweb.ops.frame.op import Int, Op, Str

MODES = {"right": COUNT_RIGHT, "parts": COUNT_PARTS, "matrix": COUNT_MATRIX}
NUMBERS = ("float32", "int64", "int32", "uint8", "int8", "bool")
"""Types of predictions and targets."""


class Scores(NamedTuple):
    """Scores as [outer, classes, inner]; if `is_binary` there is one, the score of the second of two classes."""

    outer: int
    classes: int
    inner: int
    is_binary: bool


class _Metric(Op, abstract=True):
    """Common base of the operators: (predicted, target, weights of targets)."""

    domain = TRAINWEB
    min_inputs, max_inputs = 2, 3

    def need_weights(self, target: TensorType, weights: TensorType | None) -> None:
        """Raise unless there are as many weights as targets, if any."""
        if weights is not None and not equal(prod(weights.shape), prod(target.shape)):
            raise self.misfit(weights.shape, target.shape)

    def need_numbers(self, *types: TensorType) -> None:
        """Raise unless the dtypes are numbers that can be compared."""
        self.need_dtype(NUMBERS, *(t.dtype for t in types))

    def scores(self, predicted: tuple[int, ...], target: tuple[int, ...]) -> Scores:
        """The axis of classes is the last, or the second; as many predictions as targets are of two classes.

        If sizes are not known, ranks decide; the plan is compiled when they are. Raise FeedError if the shapes do not
        fit.
        """
        is_known, ranks = static(*predicted, *target), len(predicted) - len(target)
        if prod(predicted) == prod(target) if is_known else ranks == 0 and equal_shapes(predicted, target):
            return Scores(prod(target), 2, 1, True)
        if len(predicted) > 1 and is_known and target == predicted[:-1]:
            return Scores(prod(target), predicted[-1], 1, False)
        if len(predicted) > 1 and equal_shapes(target, predicted[:1] + predicted[2:]):
            # One class with a score is one of two.
            return Scores(predicted[0], maximum(predicted[1], 2), prod(predicted[2:]), False)
        raise self.misfit(predicted, target)

    def misfit(self, predicted: tuple[int, ...], target: tuple[int, ...]) -> Exception:
        """The error of shapes that do not fit."""
        return messages.METRIC_SHAPES(name=self.node.name, predicted=list(predicted), target=list(target))


def as_dtype(b: Builder, x: Buf, dtype: str) -> Buf:
    """`x`, converted where it is of another type."""
    if x.dtype == dtype:
        return x
    y = b.temp(dtype, x.shape)
    b.elementwise([y], [x], lambda e, v: e.cast(v, dtype))
    return y


def is_above(b: Builder, x: Buf, limit: float) -> Buf:
    """1 where an element is above a limit or NaN, else 0, as int64."""
    x, y = as_dtype(b, x, "float32"), b.temp("int64", x.shape)

    def above(e: Emitter, v: Expr) -> Expr:
        return e.cast(e.not_(e.compare("le", v, e.const(limit))), "int64")

    b.elementwise([y], [x], above)
    return y


class _Counts(_Metric, abstract=True):
    """Metrics of classes: sums, and [targets that are no class, the first of them, classes]."""

    n_outputs = 2
    attrs = {"ignores": Int(0), "ignored": Int(0)}

    def operands(
        self, b: Builder, predicted: Buf, target: Buf, weights: Buf | None = None
    ) -> tuple[Scores, Buf, Buf, Buf | None]:
        """The layout of the scores; the scores, the targets as int64, and weights."""
        form = self.scores(predicted.shape, target.shape)
        classes = is_above(b, target, 0.5) if form.is_binary else as_dtype(b, target, "int64")
        return form, as_dtype(b, predicted, "float32"), classes, weights


class ClassCounts(_Counts):
    """Counts of the classes with the highest score: right ones and all, "parts" per class, or confusion "matrix"."""

    attrs = {"count": Str("right"), **_Counts.attrs}

    def infer(
        self, predicted: TensorType, target: TensorType, weights: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        self.need_numbers(predicted, target)
        self.need_weights(target, weights)
        if self.count not in MODES:
            raise self.error(f"count is {self.count!r}; it must be one of {', '.join(MODES)}.")
        n = self.scores(predicted.shape, target.shape).classes
        return TensorType("float64", self.sums_shape(n)), TensorType("float64", (3,))

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf) -> None:
        (outer, n, inner, is_binary), scores, targets, weights = self.operands(b, *ins)
        if is_binary:
            predicted = is_above(b, scores, 0)
        else:
            predicted = b.temp("int64", targets.shape)
            b.emit(calls.ArgReduce(x=scores, y=predicted, outer=outer, n=n, inner=inner, select_max=1, last_index=0))
        call = calls.CountClasses(
            predicted=predicted,
            targets=targets,
            weights=weights,
            sums=outs[0] or b.temp("float64", self.sums_shape(n)),
            faults=outs[1] or b.temp("float64", (3,)),
            n=prod(targets.shape),
            classes=n,
            mode=MODES[self.count],
            ignores=self.ignores,
            ignored=self.ignored,
        )
        b.emit(call)

    def sums_shape(self, n: int) -> tuple[int, int]:
        """Shape of the sums for so many classes."""
        return {"right": (2, 1), "parts": (3, n), "matrix": (n, n)}[self.count]


class TopCounts(_Counts):
    """The number of targets with fewer than `k` classes of a higher score, and the number of targets (NaN: highest)."""

    attrs = {"k": Int(1), **_Counts.attrs}

    def infer(
        self, predicted: TensorType, target: TensorType, weights: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        self.need_numbers(predicted, target)
        self.need_weights(target, weights)
        classes = self.scores(predicted.shape, target.shape).classes
        if self.k < 1:
            raise self.error(f"k is {self.k}; it must be at least 1.")
        if static(classes) and self.k >= classes:
            raise messages.TOP_OF_ALL(k=self.k, count=classes)
        return TensorType("float64", (2, 1)), TensorType("float64", (3,))

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf) -> None:
        (outer, n, inner, is_binary), scores, targets, weights = self.operands(b, *ins)
        if is_binary:
            both = b.temp("float32", (outer, 2))
            pair = b.constant("float32", (1, 2), [0.0, 1.0])

            def second(e: Emitter, score: Expr, place: Expr) -> Expr:
                return e.select(e.compare("gt", place, e.const(0)), score, place)

            b.elementwise([both], [scores.view((outer, 1)), pair], second)
            scores = both
        call = calls.CountTop(
            scores=scores,
            targets=targets,
            weights=weights,
            sums=outs[0] or b.temp("float64", (2, 1)),
            faults=outs[1] or b.temp("float64", (3,)),
            outer=outer,
            classes=n,
            inner=inner,
            k=self.k,
            ignores=self.ignores,
            ignored=self.ignored,
        )
        b.emit(call)


class ErrorSums(_Metric):
    """Sums by column or of all: rows, first target, mean minus it, squares around it, errors, magnitudes, count."""

    attrs = {"columns": Int(0)}

    def shape(self, target: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of the targets."""
        total = prod(target)
        columns = prod(target[1:]) if self.columns else 1
        return total // columns if columns else 0, columns

    def infer(self, predicted: TensorType, target: TensorType, weights: TensorType | None = None) -> TensorType:
        self.need_numbers(predicted, target)
        self.need_weights(target, weights)
        if not equal(prod(predicted.shape), prod(target.shape)):
            raise self.misfit(predicted.shape, target.shape)
        return TensorType("float64", (ERROR_SUMS, self.shape(target.shape)[1]))

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf) -> None:
        rows, columns = self.shape(ins[1].shape)
        predicted, target = (as_dtype(b, x, "float32") for x in ins[:2])
        weight, sums = ins[2] if len(ins) > 2 else None, outs[0]
        b.emit(
            calls.ErrorSums(predicted=predicted, target=target, weights=weight, sums=sums, rows=rows, columns=columns)
        )
