"""Metrics of the eval model's results, over all rows of the validation data.

A metric is defined here and nowhere else. It sums up each batch by nodes that are appended to the eval model, so that
only the sums leave the kernels' memory. A formula gives its value from the sums of all batches. A page gets formulas
with its plans. It joins sums (`web/src/worker/fit/metrics.ts`), all in float64 and in the same order as `Totals`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trainweb import messages
from trainweb.formulas import Formula, Row, evaluated, number, total
from trainweb.loss_counts import CROSS_ENTROPIES, PASSING, Maker, counted_loss, row_count
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import SAMPLE_WEIGHT, TRAINWEB, Graph, Node, take_name
from trainweb.model.graph import Value as GraphValue
from trainweb.settings import Choice, Whole, checked, fields_of, make
from trainweb.spelling import DIFFERENCE

if TYPE_CHECKING:
    import numpy as np


Value = float | list[float] | list[list[int]]
Ignored = Annotated[int, Whole(least=-(2**31), most=2**31 - 1)] | None
Classes = Annotated[int, Whole(least=1, most=2**31 - 1)]
OutputMetric = tuple[str | None, Any]
"""An output, or None for the one that the loss compares, and a metric of it."""
Average = Annotated[str, Choice(("macro", "micro", "weighted", "none"))]

PAIRS: Formula = ["+", "targets", "predictions"]
OCCURS: Formula = [">", PAIRS, 0]


@dataclass(frozen=True)
class Sums:
    """The sums of a batch, by an operator of domain ai.trainweb on predictions and targets.

    `rows` are names of the rows of its result in formulas, none for a matrix that is the metric itself. With
    `has_faults` a second result counts targets that are no class. `pooled` joins rows of `ErrorSums` (`is_pooled`);
    others are added. With `is_collected` predictions and targets of all batches are kept instead.
    """

    operator: str
    attributes: dict[str, int | str]
    rows: tuple[str, ...]
    has_faults: bool = False
    is_pooled: bool = False
    is_collected: bool = False


class Metric(ABC):
    """Base class: what is summed up for a metric, and how its value follows."""

    name: str
    better: str | None = "max"
    """Which is better, "min" or "max"; None: it is not a number."""
    reads_outputs = True
    """True if it reads predictions and targets, not only the loss."""

    @checked
    def __init__(self) -> None:
        super().__init__()

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


def make_metric(metric: str | Mapping[str, Any]) -> Metric:
    """A metric by its name, or by a dict with its "type" and settings. Raise ModelError for another name or value."""
    return make("metric", METRICS, metric)


class Classified(Metric):
    """Base class of metrics that compare the class of the highest score with the target.

    Parameters
    ----------
    ignore_index : int or None
        Class of targets to ignore. None: the one that the loss of these targets ignores, if it does.
    """

    count = "parts"

    @checked
    def __init__(self, ignore_index: Ignored = None) -> None:
        self.ignore_index = ignore_index

    @property
    def ignored(self) -> dict[str, int | str]:
        """Attributes that leave out a class of targets."""
        return {} if self.ignore_index is None else {"ignores": 1, "ignored": int(self.ignore_index)}

    def sums(self) -> Sums:
        rows = {"right": ("right", "all"), "parts": ("right", "targets", "predictions"), "matrix": ()}
        return Sums("ClassCounts", {"count": self.count, **self.ignored}, rows[self.count], has_faults=True)

    def formula(self) -> Formula:
        return ["/", "right", "all"]


@metric("accuracy")
class Accuracy(Classified):
    """Share of places whose highest score is the target's."""

    count = "right"


@metric("topK")
class TopK(Classified):
    """Share of places where fewer than `k` classes have a higher score than the target.

    Parameters
    ----------
    k : int
        Number of highest scores among which the target must be, less than the number of classes.
    ignore_index : int or None
        Class of targets to ignore.
    """

    @checked
    def __init__(self, k: Classes = 5, ignore_index: Ignored = None) -> None:
        self.ignore_index = ignore_index
        self.k = k

    def sums(self) -> Sums:
        return Sums("TopCounts", {"k": int(self.k), **self.ignored}, ("right", "all"), has_faults=True)


class OfClasses(Classified):
    """Base class of scores that each class has: a share of counts.

    Parameters
    ----------
    average : {"macro", "micro", "weighted", "none"}
        Mean over classes ("macro"), over all places ("micro"), or over classes by their number of targets ("weighted").
        "none" gives a value for each class.
    ignore_index : int or None
        Class of targets to ignore.
    """

    score: Formula
    """Numerator and divisor of the score of a class."""

    @checked
    def __init__(self, average: Average = "macro", ignore_index: Ignored = None) -> None:
        self.ignore_index = ignore_index
        self.average = average
        self.better = None if average == "none" else "max"

    def formula(self) -> Formula:
        assert isinstance(self.score, list)
        part, divisor = self.score
        if self.average == "none":
            return ["each", ["over", part, divisor]]
        if self.average == "micro":
            return ["/", ["sum", part], ["sum", divisor]]
        weights: Formula = "targets" if self.average == "weighted" else OCCURS
        return ["/", ["sum", ["*", weights, ["over", part, divisor]]], ["sum", weights]]


@metric("f1")
class F1(OfClasses):
    """Harmonic mean of precision and recall, of the classes that occur."""

    score = [["*", 2, "right"], PAIRS]


@metric("precision")
class Precision(OfClasses):
    """Share of the places with a predicted class that are right, of the classes that occur."""

    score = ["right", "predictions"]


@metric("recall")
class Recall(OfClasses):
    """Share of the places with a target class that are predicted, of the classes that occur."""

    score = ["right", "targets"]


@metric("confusionMatrix")
class ConfusionMatrix(Classified):
    """Counts of each predicted class (columns) for each target (rows)."""

    better = None
    count = "matrix"

    def formula(self) -> Formula:
        return "matrix"


@metric("mIoU")
class MeanIoU(Classified):
    """Intersection over union of targets and predictions, the mean over the classes that occur."""

    def formula(self) -> Formula:
        return ["/", ["sum", ["over", "right", ["-", PAIRS, "right"]]], ["sum", OCCURS]]


ERRORS = ("rows", "shift", "mean", "squares", "errors", "magnitudes", "count")


@metric("mae")
class MeanAbsoluteError(Metric):
    """Mean of the magnitudes of the errors."""

    better = "min"

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 0}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        return ["/", ["*", "scale", "magnitudes"], "rows"]


class MeanColumnError(MeanAbsoluteError):
    """The same of columns with different units; it is not among `METRICS`."""

    name = "column_mae"

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 1}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        return ["/", ["sum", ["*", "scale", "magnitudes"]], ["sum", "rows"]]


@metric("rmse")
class RootMeanSquaredError(Metric):
    """Root of the mean of the squared errors."""

    better = "min"

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 1}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        squares: Formula = ["sum", ["*", ["*", "scale", "scale"], "errors"]]
        return ["pow", ["/", squares, ["sum", "rows"]], 0.5]


@metric("r2")
class R2(Metric):
    """Coefficient of determination: 1 less the share of the variance that is not explained, the mean over columns."""

    def sums(self) -> Sums:
        return Sums("ErrorSums", {"columns": 1}, ERRORS, is_pooled=True)

    def formula(self) -> Formula:
        # With equal targets: 1 if all are met, else 0.
        explained: Formula = ["if", ["=", "squares", 0], ["=", "errors", 0], ["-", 1, ["/", "errors", "squares"]]]
        # One row has no score.
        scores: Formula = ["if", [">", "count", 1], explained, ["/", 0, 0]]
        return ["/", ["sum", scores], ["size", "rows"]]


@metric("auc")
class AreaUnderCurve(Metric):
    """Area under the ROC curve, of one class against the rest; predictions are [rows, classes], [rows, 1] or [rows].

    Parameters
    ----------
    average : {"macro", "none"}
        The mean over the classes that occur, or a value for each class. Two classes have one value.
    """

    @checked
    def __init__(self, average: Annotated[str, Choice(("macro", "none"))] = "macro") -> None:
        self.average = average
        self.better = None if average == "none" else "max"

    def sums(self) -> Sums:
        return Sums("Identity", {}, ("scores", "targets"), is_collected=True)

    def formula(self) -> Formula:
        return ["auc", "scores", "targets", self.average]


@metric("perplexity")
class Perplexity(Metric):
    """The exponential of the mean loss, or of a term of it, which must be a mean cross entropy."""

    better = "min"
    reads_outputs = False

    def formula(self) -> Formula:
        return ["exp", "loss"]


class Rows(Metric):
    """Predictions and targets of all rows, for metrics that are functions; it is not among `METRICS`."""

    name = "rows"
    better = None

    def sums(self) -> Sums:
        return Sums("Identity", {}, ("predictions", "targets"), is_collected=True)

    def formula(self) -> Formula:
        return 0  # The functions give the values.


WEIGHTED: Formula = ["*", ["/", "weighted", "all"], ["/", "total", "all"]]
"""The part of a term in the loss."""


class TermLoss(Metric):
    """The mean of a term of the loss over all rows; it is not among `METRICS`.

    "weighted" is the divisor "all" times the weight of the term. The weighted sum of all terms is the loss.
    """

    name = "term"
    better = "min"

    def sums(self) -> Sums:
        return Sums("", {}, ("total", "all", "weighted"))

    def formula(self) -> Formula:
        return ["/", "total", "all"]


@dataclass(frozen=True)
class Asked:
    """A metric of an evaluation, whose value is named `key`. It compares predictions with targets, by their names.

    Of a `TermLoss`, and of a metric of a term, the predictions are the term. `scale` has the units of errors:
    deviations of standardized targets.
    """

    key: str
    metric: Metric
    predictions: str = ""
    targets: str = ""
    scale: Sequence[float] = (1.0,)

    def of(self, deviations: Sequence[float]) -> Asked:
        """The same of targets with these deviations."""
        has_columns = isinstance(self.metric, MeanAbsoluteError) and len(deviations) > 1
        return replace(self, metric=MeanColumnError() if has_columns else self.metric, scale=deviations)


def metrics_of(metrics: Any) -> list[OutputMetric]:
    """A list of metrics with their outputs; `metrics` may be a mapping of outputs to metrics."""
    if is_by_output(metrics):
        return [(output, metric) for output, some in metrics.items() for _, metric in metrics_of(some)]
    if isinstance(metrics, (str, Mapping)):
        return [(None, metrics)]
    if not isinstance(metrics, Iterable):
        raise messages.BAD_SETTING(name="metrics", value=metrics, expected="a list of metrics")
    return [one for metric in metrics for one in (metrics_of(metric) if is_by_output(metric) else [(None, metric)])]


def is_by_output(metrics: object) -> bool:
    """Return whether metrics are a mapping of outputs."""
    if not isinstance(metrics, Mapping) or "type" in metrics:
        return False
    return bool(metrics) and all(isinstance(some, (str, Mapping, list, tuple)) for some in metrics.values())


def request_of(metrics: Iterable[Asked]) -> list[Any]:
    """The request of an eval step that sums up metrics; metrics of only the loss are left out."""
    return [
        [one.key, one.metric.name, [getattr(one.metric, name) for name in fields_of(type(one.metric))], *pair]
        for one in sorted(metrics, key=lambda one: one.key)
        for pair in [(one.predictions, one.targets)]
        if one.metric.reads_outputs
    ]


def read_request(request: Sequence[Any]) -> list[Asked]:
    """The reverse of `request_of`."""
    kinds = METRICS | {kind.name: kind for kind in (Rows, TermLoss, MeanColumnError)}
    return [
        Asked(
            key,
            make("metric", kinds, {"type": name, **dict(zip(fields_of(kinds[name]), settings, strict=True))}),
            *pair,
        )
        for key, name, settings, *pair in request
    ]


@dataclass(frozen=True)
class Described:
    """A metric of a plan, by the name of its value: `as_data` is its form for a page.

    `sums` and `faults` ("" without) are outputs of the plan; of what is collected they are predictions and targets.
    `Sums` explains `rows`, `is_pooled` and `is_collected`.
    """

    name: str
    sums: str
    faults: str
    rows: tuple[str, ...]
    is_pooled: bool
    formula: Formula
    is_collected: bool = False

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        names = {"name": self.name, "sums": self.sums, "faults": self.faults, "rows": list(self.rows)}
        joins = {"isPooled": self.is_pooled, "isCollected": self.is_collected}
        return {**names, **joins, "formula": self.formula}


def with_metrics(graph: Graph, request: Sequence[Any], inputs: Sequence[GraphValue]) -> tuple[Graph, list[Described]]:
    """An eval model with nodes that sum up, and what their outputs are; `inputs` are fed."""
    graph = graph.with_nodes(graph.nodes)
    graph.opsets.setdefault(TRAINWEB, 1)
    described, weights = [], weights_in(graph)
    for one in read_request(request):
        if isinstance(one.metric, Classified) and one.metric.ignore_index is None:
            one.metric.ignore_index = ignored_label(graph, one.targets)
        sums, weight = one.metric.sums(), weights.get(one.targets, weights.get(""))
        if sums is None:
            continue
        if not isinstance(one.metric, (Rows, TermLoss)):
            labels = [v.name for v in inputs if v.name not in weights.values()]
            _, moved = met_by(graph, one.targets, labels, [one.predictions])
            one = replace(one, predictions=moved or one.predictions)
        if isinstance(one.metric, TermLoss):
            graph, names = _sum_term(graph, one, inputs)
        elif not sums.is_collected:
            names = _sum(graph, one, sums, weight)
        elif weight is None:
            names = _collect(graph, one)
        else:
            weights_of_rows = _weights_like(graph, weight, one.targets, one.targets)
            make, sums = Maker(graph, len(graph.nodes), f"metrics.{one.key}.rows"), replace(sums, rows=WEIGHED_ROWS)
            columns = [make.node("Flatten", [name], axis=1) for name in (one.predictions, weights_of_rows)]
            one = replace(one, predictions=make.node("Concat", columns, axis=1))
            graph, names = make.graph, _collect(make.graph, one)
        formula, is_collected = one.metric.formula(), sums.is_collected
        described.append(Described(one.key, *names, sums.rows, sums.is_pooled, formula, is_collected))
    return graph, described


WEIGHED_ROWS = ("scores", "targets", "weights")
"""Rows of an area under a curve whose last scores are weights."""


def _collect(graph: Graph, one: Asked) -> tuple[str, str]:
    used = set(graph.names())
    outputs = take_name(f"metrics.{one.key}", used), take_name(f"metrics.{one.key}.targets", used)
    for name, output in zip((one.predictions, one.targets), outputs, strict=True):
        graph.nodes.append(Node("Identity", [name], [output], {}, "", one.key))
    return outputs


def weights_in(graph: Graph) -> dict[str, str]:
    """Inputs of an eval model that have weights of rows or labels, by the labels; those under "" are of all labels."""
    weights: dict[str, str] = json.loads(graph.metadata.get(SAMPLE_WEIGHT, "{}"))
    return weights


def _weights_like(graph: Graph, weight: str, labels: str, targets: str) -> str:
    """The weights of `targets`: fed `labels`, or their classes. Each has its own, or all of a row share one."""
    ranks = {v.name: len(v.shape or ()) for v in graph.inputs if isinstance(v, GraphValue)}
    rank = ranks[labels] - (targets != labels)  # without the axis of classes
    if ranks[weight] == rank:
        return weight
    make = Maker(graph, len(graph.nodes), f"metrics.{weight}")
    column = make.node("Reshape", [weight, make.constant([-1] + [1] * (rank - 1))])
    weights = make.node("Expand", [column, make.node("Shape", [targets])])
    graph.nodes, graph.initializers = make.graph.nodes, make.graph.initializers
    return weights


def _sum(graph: Graph, one: Asked, sums: Sums, weight: str | None) -> tuple[str, str]:
    used, targets = set(graph.names()), one.targets
    if (margins := margins_of(graph)) is not None:
        if not isinstance(one.metric, Accuracy):
            raise messages.BAD_SETTING(name="metrics", value=one.metric.name, expected=OF_PREFERENCES)
        one, targets = replace(one, predictions=margins), take_name(f"metrics.{one.key}.chosen", used)
        graph.nodes.append(Node("Equal", [margins, margins], [targets], {}, "", one.key))
    outputs, distribution = [take_name(f"metrics.{one.key}", used)], distribution_of(graph, targets)
    has_scores = any(one.predictions in node.inputs for node in graph.nodes if node.op_type == "LogSoftmax")
    if distribution is not None and has_scores and not sums.has_faults:
        raise messages.BAD_SETTING(name="metrics", value=one.metric.name, expected=OF_PROBABILITIES)
    if sums.has_faults:
        outputs.append(take_name(f"metrics.{one.key}.faults", used))
        if distribution is not None:
            targets = take_name(f"metrics.{one.key}.classes", used)
            name, axis = distribution
            graph.nodes.append(Node("ArgMax", [name], [targets], {"axis": axis, "keepdims": 0}, "", one.key))
    inputs = [one.predictions, targets]
    if weight is not None:
        inputs.append(_weights_like(graph, weight, one.targets, targets))
    graph.nodes.append(Node(sums.operator, inputs, outputs, dict(sums.attributes), TRAINWEB, one.key))
    return outputs[0], outputs[1] if sums.has_faults else ""


def _sum_term(graph: Graph, one: Asked, inputs: Sequence[GraphValue]) -> tuple[Graph, tuple[str, str]]:
    """Add the total of a term, its divisor, and this times its weight; without labels that count, all are 0."""
    weight = next((n.inputs[1] for n in graph.nodes if n.op_type == "Mul" and n.inputs[0] == one.predictions), None)
    graph, count = counted_loss(graph, one.predictions, inputs)
    make = Maker(graph, len(graph.nodes), f"metrics.{one.key}")
    shape = make.constant([1, 1])
    term = make.node("Reshape", [one.predictions, shape])
    divisor = make.node("Reshape", [count.output or row_count(make, inputs), shape])
    total = term if count.is_sum else make.node("Mul", [term, divisor])
    has_none = make.node("Equal", [divisor, make.constant([0], "float32")])
    total, weighted = make.node("Where", [has_none, divisor, total]), divisor
    if weight is not None:
        weighted = make.node("Mul", [divisor, weight])
    sums = make.node("Concat", [total, divisor, weighted], axis=0)
    return make.graph, (make.node("Cast", [sums], to=DTYPE_CODES["float64"]), "")


OF_PROBABILITIES = "a metric of classes, or a function: the targets are probabilities, and the predictions scores"
OF_PREFERENCES = "'accuracy' for a DPOLoss: the share of pairs whose margin is positive"


def margins_of(graph: Graph) -> str | None:
    """The margins of the pairs of a DPOLoss: how much more than the reference the model prefers the chosen texts."""
    factors = (node for node in graph.nodes if node.op_type == "MatMul" and DIFFERENCE in node.inputs[1])
    return next((node.outputs[0] for node in factors), None)


def ignored_label(graph: Graph, labels: str) -> int | None:
    """The label that a cross entropy of these labels ignores, if one does."""
    same = {labels}
    for node in graph.nodes:
        if node.op_type in (*PASSING, "Flatten", "Transpose") and node.inputs[0] in same:
            same.update(node.outputs)
        elif node.op_type in CROSS_ENTROPIES and node.inputs[1] in same and "ignore_index" in node.attrs:
            return int(node.attrs["ignore_index"])
    return None


def distribution_of(graph: Graph, targets: str) -> tuple[str, int] | None:
    """The targets where the loss multiplies them by logarithms of a softmax, and the axis of the classes; else None."""
    same, logarithms = {targets}, dict[str, int]()
    for node in graph.nodes:
        first, *others = node.inputs or [""]
        is_cleared = node.op_type == "Where" and others[1] in same  # labels of weight 0 are 0
        if is_cleared or (node.op_type == "Transpose" and first in same):
            same.update(node.outputs)
        elif node.op_type == "LogSoftmax":
            logarithms[node.outputs[0]] = node.attrs.get("axis", -1)
        elif node.op_type == "Mul" and first in logarithms and others[0] in graph.initializers:
            logarithms[node.outputs[0]] = logarithms[first]
        elif node.op_type == "Mul" and first in same and others[0] in logarithms:
            return first, logarithms[others[0]]
    return None


def compared_with(graph: Graph, inputs: Sequence[str]) -> str | None:
    """Return the tensor that nodes compare with targets, the last of the fed `inputs`; None if it is not only one."""
    compared = all_compared(graph, inputs)
    return compared[0] if len(compared) == 1 else None


def all_compared(graph: Graph, inputs: Sequence[str]) -> list[str]:
    """The tensors that nodes compare with targets, the last of the fed `inputs`, or with results of only targets."""
    *_, targets = inputs
    known = {*graph.initializers, *(v.name for v in graph.inputs), ""}.difference(inputs)
    compared: dict[str, None] = {}
    of_targets, results = {targets}, set[str]()
    for node in graph.nodes:
        names = [name for name in node.inputs if name not in known]
        if not names:
            known.update(node.outputs)
        elif of_targets.issuperset(names):
            of_targets.update(node.outputs)
        elif not (of_targets | results).isdisjoint(names):
            if not of_targets.isdisjoint(names):
                compared.update(dict.fromkeys(name for name in names if name not in of_targets | results))
            results.update(node.outputs)
    return list(compared)


VIEWS = ("Flatten", "Reshape", "Transpose")


def met_by(graph: Graph, targets: str, inputs: Iterable[str], own: Collection[str]) -> tuple[str | None, str | None]:
    """The output among `own` that the loss compares with targets, and that with moved axes, as the targets have them.

    None for an output that the loss does not tell, and for axes that it does not move.
    """
    found: dict[str, str | None] = {}
    passed = VIEWS if distribution_of(graph, targets) is None else (*VIEWS, "LogSoftmax", "Mul")
    makers = {node.outputs[0]: node for node in graph.nodes if node.op_type in passed}
    for output in all_compared(graph, [*(name for name in inputs if name != targets), targets]):
        moved = None
        while output not in own and output in makers:
            if makers[output].op_type == "Transpose":
                moved = moved or output
            output = makers[output].inputs[0]
        found[output] = found.get(output) or moved
    ((met, moved),) = found.items() if len(found) == 1 else [("", None)]
    return (met, moved) if met in own else (None, None)


def part_of(results: dict[str, np.ndarray], described: Sequence[Described], times: int) -> dict[str, np.ndarray]:
    """Return the sums of a batch without repetition, in which its first rows come so many times."""
    parts = dict(results)
    for one in described if times > 1 else ():
        sums = results[one.sums]
        if one.is_collected:
            parts |= {name: results[name][: len(results[name]) // times] for name in (one.sums, one.faults)}
        else:
            parts[one.sums] = sums / times
            if one.is_pooled:  # what is no sum
                parts[one.sums][1:3] = sums[1:3]
    return parts


class Totals:
    """Sums of all batches, and values of metrics that follow from them."""

    def __init__(self, described: Sequence[Described]) -> None:
        self.described = described
        self._sums: dict[str, np.ndarray] = {}
        self._parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def add(self, results: Mapping[str, np.ndarray]) -> None:
        """Add the sums of a batch, by the names of outputs.

        Raises
        ------
        FeedError
            A target is not one of the classes.
        """
        for one in self.described:
            if one.is_collected:
                self._parts.setdefault(one.name, []).append((results[one.sums], results[one.faults]))
                continue
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

    def rows(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Predictions and targets of each batch, if `Rows` is among the metrics."""
        return self._parts.get(Rows.name, [])

    def values(self, metrics: Sequence[Asked], loss: float) -> dict[str, Value]:
        """The loss, and the value of each metric; `loss` is the mean loss of the rows, if the loss has no terms."""
        rows = {one.name: one.rows for one in self.described}
        terms = [asked.key for asked in metrics if isinstance(asked.metric, TermLoss)]
        parts = [number(WEIGHTED, dict(zip(rows[key], self._sums[key].tolist(), strict=True))) for key in terms]
        loss = number(["sum", "parts"], {"parts": parts}) if terms else loss
        values: dict[str, Value] = {"loss": loss}
        for asked in metrics:
            key, one = asked.key, asked.metric
            if key in self._parts:
                scores, targets = (list(part) for part in zip(*self._parts[key], strict=True))
                areas = areas_under_curves(key, scores, targets, is_weighed=rows[key] == WEIGHED_ROWS)
                each = isinstance(one, AreaUnderCurve) and one.average == "none"
                values[key] = areas if each else mean_of(areas)
                continue
            sums = self._sums[key].tolist() if one.reads_outputs else []
            if one.reads_outputs and not rows[key]:
                values[key] = [[int(x) if x == int(x) else x for x in row] for row in sums]
            else:
                names = dict(zip(rows.get(key, ()), sums, strict=True))
                if not one.reads_outputs and asked.predictions:
                    of_term = dict(zip(rows[asked.predictions], self._sums[asked.predictions].tolist(), strict=True))
                    names["loss"] = number(TermLoss().formula(), of_term)
                scale = list(asked.scale)
                has_units = isinstance(one, (MeanColumnError, RootMeanSquaredError)) and len(scale) > 1
                if has_units and len(names["rows"]) != len(scale):
                    raise messages.TABLE_WIDTH(name=asked.targets, actual=len(names["rows"]), expected=len(scale))
                values[key] = value_of(one.formula(), {"loss": loss, "scale": scale, **names})
        return values


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


def areas_under_curves(
    name: str, scores: Sequence[np.ndarray], targets: Sequence[np.ndarray], *, is_weighed: bool = False
) -> list[float]:
    """The area under the curve of each class against the rest, or of the second of two; NaN for one without rows.

    Scores of three classes and more that are no probabilities go through a softmax, as in torchmetrics. The order
    within a class depends on it. If `is_weighed`, the last score of a row is its weight. Raise FeedError unless each
    row has a prediction and a target that is a class.
    """
    rows: list[list[float]] = [row if isinstance(row, list) else [row] for part in scores for row in part.tolist()]
    labels = [label for part in targets for label in part.reshape(-1).tolist()]
    if len(labels) != len(rows) or any(part.ndim > 2 for part in scores):
        raise messages.AUC_SHAPE(name=name, scores=list(scores[0].shape), targets=list(targets[0].shape))
    weights = [row.pop() for row in rows] if is_weighed else [1.0] * len(rows)
    classes = len(rows[0])
    for label in labels:
        if classes > 1 and label not in range(classes):
            raise messages.METRIC_CLASS(name=name, value=int(label), count=classes)
    if classes <= 2:
        ranked = [row[-1] - (row[0] if classes == 2 else 0.0) for row in rows]
        return [area_under_curve(ranked, [label > 0.5 for label in labels], weights)]
    if any(not 0 <= score <= 1 for row in rows for score in row):
        rows = [softmax(row) for row in rows]
    columns = ([row[c] for row in rows] for c in range(classes))
    return [area_under_curve(row, [label == c for label in labels], weights) for c, row in enumerate(columns)]


def softmax(row: list[float]) -> list[float]:
    """Probabilities of scores."""
    powers = [math.exp(score - max(row)) for score in row]
    sum_ = total(powers)
    return [power / sum_ for power in powers]


def area_under_curve(scores: Sequence[float], is_right: Sequence[bool], weights: Sequence[float]) -> float:
    """The share of pairs of a right row and another in which the right one scores higher; equal scores count half.

    A pair counts as the product of the weights of its rows.
    """
    rows = sorted(zip(scores, is_right, weights, strict=True), key=itemgetter(0))
    right = below = wins = 0.0
    for _, equal in groupby(rows, itemgetter(0)):
        hits = others = 0.0
        for _, is_hit, weight in equal:
            if is_hit:
                hits += weight
            else:
                others += weight
        # Twice the pairs, so that halves are whole.
        wins += hits * (2 * below + others)
        below += others
        right += hits
    pairs = right * below
    return wins / (2 * pairs) if pairs and not any(map(math.isnan, scores)) else math.nan


def mean_of(areas: Sequence[float]) -> float:
    """The mean of the areas that are numbers; NaN without any."""
    known = [area for area in areas if not math.isnan(area)]
    return total(known) / len(known) if known else math.nan


def value_of(formula: Formula, names: Mapping[str, Row]) -> Value:
    """The value of a metric's formula: one number, or a row of "each"."""
    if isinstance(formula, list) and formula[0] == "each":
        row = evaluated(formula[1], names)
        return row if isinstance(row, list) else [row]
    return number(formula, names)
