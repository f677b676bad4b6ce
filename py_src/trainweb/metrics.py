"""Metrics of the eval model's results, over all rows of the validation data.

A metric is defined here and nowhere else. It sums up each batch by nodes that are appended to the eval model, so that
only the sums leave the kernels' memory. A formula gives its value from the sums of all batches. A page gets formulas
with its plans. It joins sums (`web/src/worker/metrics.ts`), all in float64 and in the same order as `Totals`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trainweb import messages
from trainweb.formulas import Formula, number
from trainweb.model.graph import TRAINWEB, Graph, Node, take_name
from trainweb.settings import Choice, Whole, checked, fields_of, make

if TYPE_CHECKING:
    import numpy as np

Value = float | list[list[int]]
Ignored = Annotated[int, Whole(least=-(2**31), most=2**31 - 1)] | None
Classes = Annotated[int, Whole(least=1, most=2**31 - 1)]
Average = Annotated[str, Choice(("macro", "micro", "weighted"))]

PAIRS: Formula = ["+", "targets", "predictions"]
OCCURS: Formula = [">", PAIRS, 0]


@dataclass(frozen=True)
class Sums:
    """The sums of a batch.

    Attributes
    ----------
    operator : str
        Of domain ai.trainweb, on predictions and targets.
    attributes : dict
        Of its node.
    rows : tuple of str
        Names of the rows of its result in formulas; none where the result is a matrix that is the metric itself.
    has_faults : bool
        True if its second result counts targets that are no class.
    is_pooled : bool
        True if rows are rows of `ErrorSums`, which `pooled` joins; else all are added.
    """

    operator: str
    attributes: dict[str, int | str]
    rows: tuple[str, ...]
    has_faults: bool = False
    is_pooled: bool = False


class Metric(ABC):
    """Base class: what is summed up for a metric, and how its value follows."""

    name: str
    better: str | None = "max"
    """Which is better, "min" or "max"; None: it is no number."""
    reads_outputs = True
    """True if it reads predictions and targets, not only the loss."""

    def sums(self) -> Sums | None:
        """Return the sums of each batch; None: nothing."""
        return None

    @abstractmethod
    def formula(self) -> Formula:
        """The value of all sums."""


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
        No metric has that name, or a setting is wrong.
    """
    return make("metric", METRICS, given)


class Classified(Metric):
    """Base class of metrics that compare the class of the highest score with the target."""

    count = "parts"

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = ignore_index

    @property
    def ignored(self) -> dict[str, int | str]:
        """Attributes that leave out a class of targets."""
        return {} if self.ignore_index is None else {"ignores": 1, "ignored": int(self.ignore_index)}

    def sums(self) -> Sums:
        rows = {"right": ("right", "all"), "parts": ("right", "targets", "predictions"), "matrix": ()}
        return Sums("ClassCounts", {"count": self.count, **self.ignored}, rows[self.count], has_faults=True)


@metric("accuracy")
class Accuracy(Classified):
    """Share of places whose highest score is the target's.

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    count = "right"

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)

    def formula(self) -> Formula:
        return ["/", "right", "all"]


@metric("topK")
class TopK(Classified):
    """Share of places where fewer than `k` classes have a higher score than the target.

    Parameters
    ----------
    k : int
        Number of classes that may be named.
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, k: Classes = 5, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)
        self.k = k

    def sums(self) -> Sums:
        return Sums("TopCounts", {"k": int(self.k), **self.ignored}, ("right", "all"), has_faults=True)

    def formula(self) -> Formula:
        return ["/", "right", "all"]


@metric("f1")
class F1(Classified):
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

    def formula(self) -> Formula:
        if self.average == "micro":
            return ["/", ["*", 2, ["sum", "right"]], ["sum", PAIRS]]
        weights: Formula = "targets" if self.average == "weighted" else OCCURS
        return ["/", ["sum", ["*", weights, ["over", ["*", 2, "right"], PAIRS]]], ["sum", weights]]


@metric("confusionMatrix")
class ConfusionMatrix(Classified):
    """How often each class was predicted (columns) for each target (rows).

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    better = None
    count = "matrix"

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)

    def formula(self) -> Formula:
        return "matrix"


@metric("mIoU")
class MeanIoU(Classified):
    """Intersection over union of targets and predictions, the mean over the classes that occur.

    Parameters
    ----------
    ignore_index : int or None
        Targets of this class do not count.
    """

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        super().__init__(ignore_index)

    def formula(self) -> Formula:
        return ["/", ["sum", ["over", "right", ["-", PAIRS, "right"]]], ["sum", OCCURS]]


ERRORS = ("rows", "shift", "mean", "squares", "errors", "magnitudes")


@metric("mae")
class MeanAbsoluteError(Metric):
    """Mean of the magnitudes of the errors."""

    better = "min"

    @checked
    def __init__(self) -> None:
        pass

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 0}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        return ["/", "magnitudes", "rows"]


@metric("r2")
class R2(Metric):
    """Coefficient of determination: 1 less the share of the variance that is not explained, the mean over columns."""

    @checked
    def __init__(self) -> None:
        pass

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 1}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        # With equal targets: 1 if all are met, else 0.
        explained: Formula = ["if", ["=", "squares", 0], ["=", "errors", 0], ["-", 1, ["/", "errors", "squares"]]]
        # One row has no score.
        scores: Formula = ["if", [">", "rows", 1], explained, ["/", 0, 0]]
        return ["/", ["sum", scores], ["size", "rows"]]


@metric("perplexity")
class Perplexity(Metric):
    """The exponential of the mean loss, where that is a cross entropy in nats."""

    better = "min"
    reads_outputs = False

    @checked
    def __init__(self) -> None:
        pass

    def formula(self) -> Formula:
        return ["exp", "loss"]


# Sums of an eval step, as a text by which its plan is found: [predictions, targets, [[name, settings], ...]].


def request_of(metrics: Iterable[Metric], predictions: str, targets: str) -> str:
    """The text that names metrics and what they compare; metrics of only the loss are left out."""
    asked = [
        [m.name, [getattr(m, setting) for setting in fields_of(type(m))]]
        for m in sorted(metrics, key=lambda m: m.name)
        if m.reads_outputs
    ]
    return json.dumps([predictions, targets, asked], separators=(",", ":"), ensure_ascii=False)


def read_request(text: str) -> tuple[str, str, list[Metric]]:
    """The reverse of `request_of`: predictions, targets, metrics."""
    predictions, targets, asked = json.loads(text)
    metrics = [
        make_metric({"type": name, **dict(zip(fields_of(METRICS[name]), settings, strict=True))})
        for name, settings in asked
    ]
    return predictions, targets, metrics


@dataclass(frozen=True)
class Described:
    """A metric of a plan: `as_data` is its form for a page.

    Attributes
    ----------
    name : str
        The metric.
    sums, faults : str
        Outputs of the plan; `faults` is "" where there are none.
    rows, is_pooled
        As in `Sums`.
    formula : Formula
        Its value.
    """

    name: str
    sums: str
    faults: str
    rows: tuple[str, ...]
    is_pooled: bool
    formula: Formula

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        names = {"name": self.name, "sums": self.sums, "faults": self.faults, "rows": list(self.rows)}
        return {**names, "isPooled": self.is_pooled, "formula": self.formula}


def with_metrics(graph: Graph, request: str) -> tuple[Graph, list[Described]]:
    """An eval model with nodes that sum up, and what their outputs are."""
    predictions, targets, metrics = read_request(request)
    graph = graph.with_nodes(graph.nodes)
    graph.opsets.setdefault(TRAINWEB, 1)
    used, described = set(graph.names()), []
    for one in metrics:
        sums = one.sums()
        if sums is None:
            continue
        outputs = [take_name(f"metrics.{one.name}", used)]
        if sums.has_faults:
            outputs.append(take_name(f"metrics.{one.name}.faults", used))
        graph.nodes.append(
            Node(sums.operator, [predictions, targets], outputs, dict(sums.attributes), TRAINWEB, one.name)
        )
        faults = outputs[1] if sums.has_faults else ""
        described.append(Described(one.name, outputs[0], faults, sums.rows, sums.is_pooled, one.formula()))
    return graph, described


def compared_with(graph: Graph, inputs: Sequence[str]) -> str | None:
    """Return the one tensor that nodes compare with targets, or with results of only targets; None: it is not one.

    Parameters
    ----------
    inputs
        The graph's fed inputs, the targets last.
    """
    *_, targets = inputs
    known = {*graph.initializers, *(v.name for v in graph.inputs), ""}.difference(inputs)
    found: set[str] = set()
    of_targets = {targets}
    for node in graph.nodes:
        given = [name for name in node.inputs if name not in known]
        if not given:
            known.update(node.outputs)
        elif of_targets.issuperset(given):
            of_targets.update(node.outputs)
        elif not of_targets.isdisjoint(given):
            found.update(name for name in given if name not in of_targets)
    return found.pop() if len(found) == 1 else None


class Totals:
    """Sums of all batches, and what follows from them.

    Parameters
    ----------
    described
        The metrics of the plan.
    """

    def __init__(self, described: Sequence[Described]) -> None:
        self.described = described
        self._sums: dict[str, np.ndarray] = {}

    def add(self, results: Mapping[str, np.ndarray]) -> None:
        """Add the sums of a batch, by the names of outputs.

        Raises
        ------
        FeedError
            A target is not one of the classes.
        """
        for one in self.described:
            if one.faults:
                count, value, classes = results[one.faults]
                if count:
                    error = messages.METRIC_CLASS(name=one.name, value=int(value), count=int(classes))
                    vars(error)["value"] = int(value)
                    raise error
            before, sums = self._sums.get(one.name), results[one.sums]
            if before is not None:
                sums = pooled(before, sums) if one.is_pooled else before + sums
            self._sums[one.name] = sums

    def values(self, metrics: Iterable[Metric], loss: float) -> dict[str, Value]:
        """Of each metric; `loss` is the mean loss of the rows."""
        found: dict[str, Value] = {}
        rows = {one.name: one.rows for one in self.described}
        for one in metrics:
            sums = self._sums[one.name].tolist() if one.reads_outputs else []
            if one.reads_outputs and not rows[one.name]:
                found[one.name] = [list(map(int, row)) for row in sums]
            else:
                names = dict(zip(rows.get(one.name, ()), sums, strict=True))
                found[one.name] = number(one.formula(), {**names, "loss": loss})
        return found


def pooled(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows, means and squares around them of two parts together; what follows them is added.

    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances. Means are kept
    as differences from a target, so that large numbers that lie close together keep their digits.
    """
    if not a[0].all():
        return b
    joined: np.ndarray = a + b
    apart, share = (b[1] - a[1]) + (b[2] - a[2]), b[0] / joined[0]
    joined[1] = a[1]
    joined[2] = a[2] + apart * share
    joined[3] = a[3] + b[3] + apart * apart * a[0] * share
    return joined
