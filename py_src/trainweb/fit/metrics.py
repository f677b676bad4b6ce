"""Metrics of the eval model's results, over all rows of the validation data.

They are computed of the outputs, batch by batch, as counts and sums in float64. `web/src/worker/metrics.ts` is the
same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np

from trainweb import messages
from trainweb.settings import Choice, Whole, checked, make

Value = float | list[list[int]]
Ignored = Annotated[int, Whole()] | None
Classes = Annotated[int, Whole(least=1)]
Average = Annotated[str, Choice(("macro", "micro", "weighted"))]


class Metric(ABC):
    """Base class: what a metric counts of each batch."""

    name: str
    better: str | None = "max"
    """Which is better, "min" or "max"; None: it is no number."""
    reads_outputs = True
    """Whether it looks at predictions and targets, not at the loss alone."""

    @abstractmethod
    def update(self, predicted: np.ndarray, target: np.ndarray) -> None:
        """Count a batch."""

    @abstractmethod
    def result(self, loss: float) -> Value:
        """The metric of all that was counted; `loss` is the mean loss of the rows."""


METRICS: dict[str, type[Metric]] = {}
"""By name."""
T = TypeVar("T", bound="type[Metric]")


def metric(name: str) -> Callable[[T], T]:
    """Class decorator that makes a metric known by its name."""

    def register(cls: T) -> T:
        cls.name = name
        METRICS[name] = cls
        return cls

    return register


def make_metric(given: str | Mapping[str, Any]) -> Metric:
    """A metric by its name, or by a dict of its name as "type" and of its settings.

    Raises
    ------
    ModelError
        There is none of that name, or a setting is wrong.
    """
    return make("metric", METRICS, given)


def by_class(name: str, predicted: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores as [places, classes] and classes as [places].

    The axis of classes is the last, or the second. Where predictions and targets have as many elements, they are of two
    classes: a score above 0 is the second, a target above 0.5 too.

    Raises
    ------
    FeedError
        The shapes do not fit.
    """
    if predicted.size == target.size:
        score = predicted.reshape(-1)
        return np.stack([np.zeros_like(score), score], 1), (target.reshape(-1) > 0.5).astype(np.int64)
    if predicted.ndim > 1 and target.shape == predicted.shape[:-1]:
        return predicted.reshape(-1, predicted.shape[-1]), target.reshape(-1).astype(np.int64)
    if predicted.ndim > 1 and target.shape == predicted.shape[:1] + predicted.shape[2:]:
        last = np.moveaxis(predicted, 1, -1)
        return last.reshape(-1, last.shape[-1]), target.reshape(-1).astype(np.int64)
    raise messages.METRIC_SHAPES(name=name, predicted=list(predicted.shape), target=list(target.shape))


class Classified(Metric):
    """Base class of those that compare the class of the highest score with the target."""

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = ignore_index

    def update(self, predicted: np.ndarray, target: np.ndarray) -> None:
        scores, classes = by_class(self.name, predicted, target)
        if self.ignore_index is not None:
            kept = classes != self.ignore_index
            scores, classes = scores[kept], classes[kept]
        wrong = (classes < 0) | (classes >= scores.shape[1])
        if wrong.any():
            raise messages.METRIC_CLASS(name=self.name, value=int(classes[wrong][0]), count=scores.shape[1])
        self.count(scores, classes)

    @abstractmethod
    def count(self, scores: np.ndarray, classes: np.ndarray) -> None:
        """Count scores [places, classes] and the classes of the places."""


@metric("accuracy")
class Accuracy(Classified):
    """Share of places whose highest score is that of the target.

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)
        self.right = self.all = 0

    def count(self, scores: np.ndarray, classes: np.ndarray) -> None:
        self.right += int((scores.argmax(1) == classes).sum())
        self.all += len(classes)

    def result(self, loss: float) -> float:
        return ratio(self.right, self.all)


@metric("topK")
class TopK(Classified):
    """Share of places where fewer than `k` classes have a higher score than the target.

    Parameters
    ----------
    k : int
        How many classes may be named.
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, k: Classes = 5, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)
        self.k = k
        self.right = self.all = 0

    def count(self, scores: np.ndarray, classes: np.ndarray) -> None:
        own = np.take_along_axis(scores, classes[:, None], 1)
        self.right += int(((scores > own).sum(1) < self.k).sum())
        self.all += len(classes)

    def result(self, loss: float) -> float:
        return ratio(self.right, self.all)


class Confused(Classified):
    """Base class of those that follow from the confusion matrix: rows are targets, columns predictions."""

    def __init__(self, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index)
        self.matrix = np.zeros((0, 0), np.int64)

    def count(self, scores: np.ndarray, classes: np.ndarray) -> None:
        n = scores.shape[1]
        if not self.matrix.size:
            self.matrix = np.zeros((n, n), np.int64)
        self.matrix += np.bincount(classes * n + scores.argmax(1), minlength=n * n).reshape(n, n)

    def parts(self) -> tuple[list[int], list[int], list[int]]:
        """Of each class: rightly predicted, targets, predictions."""
        return (
            np.diag(self.matrix).tolist(),
            self.matrix.sum(1).tolist(),
            self.matrix.sum(0).tolist(),
        )


@metric("f1")
class F1(Confused):
    """Harmonic mean of precision and recall, of the classes that occur.

    Parameters
    ----------
    average : {"macro", "micro", "weighted"}
        Over classes: each alike, all places together, or each by how often it is the target.
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, average: Average = "macro", ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)
        self.average = average

    def result(self, loss: float) -> float:
        right, targets, predictions = self.parts()
        if self.average == "micro":
            return ratio(2 * sum(right), sum(targets) + sum(predictions))
        total = weights = 0.0
        for r, t, p in zip(right, targets, predictions, strict=True):
            weight = t if self.average == "weighted" else int(t + p > 0)
            total += weight * (2 * r / (t + p) if t + p else 0.0)
            weights += weight
        return ratio(total, weights)


@metric("confusionMatrix")
class ConfusionMatrix(Confused):
    """How often each class was predicted (columns) for each target (rows).

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    better = None

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)

    def result(self, loss: float) -> list[list[int]]:
        rows: list[list[int]] = self.matrix.tolist()
        return rows


@metric("mIoU")
class MeanIoU(Confused):
    """Intersection over union of targets and predictions, the mean over the classes that occur.

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)

    def result(self, loss: float) -> float:
        total, count = 0.0, 0
        for r, t, p in zip(*self.parts(), strict=True):
            if t + p > 0:
                total += r / (t + p - r)
                count += 1
        return ratio(total, count)


class Compared(Metric):
    """Base class of those that compare numbers."""

    def update(self, predicted: np.ndarray, target: np.ndarray) -> None:
        if predicted.size != target.size:
            raise messages.METRIC_SHAPES(name=self.name, predicted=list(predicted.shape), target=list(target.shape))
        rows = len(target)
        self.compare(predicted.reshape(rows, -1).astype(np.float64), target.reshape(rows, -1).astype(np.float64))

    @abstractmethod
    def compare(self, predicted: np.ndarray, target: np.ndarray) -> None:
        """Count [rows, columns]."""


@metric("mae")
class MeanAbsoluteError(Compared):
    """Mean of the magnitudes of the errors."""

    better = "min"

    @checked
    def __init__(self) -> None:
        self.total, self.all = 0.0, 0

    def compare(self, predicted: np.ndarray, target: np.ndarray) -> None:
        self.total += float(np.abs(predicted - target).sum())
        self.all += target.size

    def result(self, loss: float) -> float:
        return ratio(self.total, self.all)


@metric("r2")
class R2(Compared):
    """Coefficient of determination: 1 less the share of the variance that is not explained, the mean over columns."""

    @checked
    def __init__(self) -> None:
        self.rows = 0
        self.shift = self.sums = self.squares = self.errors = np.zeros(0)

    def compare(self, predicted: np.ndarray, target: np.ndarray) -> None:
        if not self.rows:
            # Around the mean: sums of squares of large numbers would lose the digits of their difference.
            self.shift = target[0].copy()
            self.sums = self.squares = self.errors = np.zeros(target.shape[1])
        around = target - self.shift
        self.sums = self.sums + around.sum(0)
        self.squares = self.squares + (around**2).sum(0)
        self.errors = self.errors + ((predicted - target) ** 2).sum(0)
        self.rows += len(target)

    def result(self, loss: float) -> float:
        spread = self.squares - self.sums**2 / max(self.rows, 1)
        scores = [1 - e / s if s > 0 else float(e == 0) for e, s in zip(self.errors, spread, strict=True)]
        return ratio(float(sum(scores)), len(scores))


@metric("perplexity")
class Perplexity(Metric):
    """The exponential of the mean loss, where that is a cross entropy in nats."""

    better = "min"
    reads_outputs = False

    @checked
    def __init__(self) -> None:
        pass

    def update(self, predicted: np.ndarray, target: np.ndarray) -> None:
        raise AssertionError

    def result(self, loss: float) -> float:
        return math.exp(loss) if loss < 709 else math.inf


def ratio(part: float, whole: float) -> float:
    """A part of a whole; of nothing, NaN."""
    return part / whole if whole else math.nan
