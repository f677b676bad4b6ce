"""The number by which the loss of a batch was divided, which combines the losses of batches to a loss of all rows.

The mean of two batches is ``(loss_1 n_1 + loss_2 n_2) / (n_1 + n_2)``. Each loss was divided by its n: rows, labels
that are not ignored, or the sum of their weights. The graph tells which; `worker/fit/loop.ts` is given the name of
the output that has n.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import Graph, Node, Tensor, Value, take_name

FLOAT, INT64 = DTYPE_CODES["float32"], DTYPE_CODES["int64"]
PASSING = ("Identity", "Squeeze", "Unsqueeze", "Reshape", "Cast", "Neg")
"""Operators behind which one number stays the same mean."""
REDUCING_NOTHING = (
    *PASSING,
    *("Add", "Sub", "Mul", "Div", "Pow", "Abs", "Sqrt", "Exp", "Log", "Relu", "Softplus", "Max", "Min", "Where"),
    *("Equal", "Not", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Sign", "Clip", "Gather"),
    *("Transpose", "Flatten", "LogSoftmax", "Sigmoid", "Tanh"),
)
"""Operators whose results have the rows of what they read."""
CROSS_ENTROPIES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
LINEAR = (*PASSING, "Add", "Mul", "ReduceSum", "ReduceMean", "Flatten", "Transpose", "Where")
TAKING = ("Gather", "GatherElements", "GatherND")
"""Operators by which cross entropies are made of logarithms of probabilities."""
SHARE = "trainweb.share"
"""Input of the steps that add gradients: `share` of the state, see `layout state` of kernels.def."""


@dataclass(frozen=True, slots=True)
class LossCount:
    """The divisor of the loss of a batch: a float32 `output` of its plan, or the batch's rows.

    If the loss `is_sum`, it was not divided. The loss of several batches is then the loss of a row. A loss of several
    `terms` is the first number of the output `losses`, and they follow; it was divided by the rows.
    """

    output: str | None = None
    is_sum: bool = False
    losses: str | None = None
    terms: Sequence[str] = ()

    def weight(self, rows: int, results: Mapping[str, Any]) -> float:
        """The divisor of a batch's loss, from its rows and the results of its step; the rows, if the loss is a sum."""
        return float(rows) if self.output is None else float(results[self.output].reshape(()))


class MeanLoss:
    """The loss of several batches; `count` says by what each loss was divided."""

    def __init__(self, count: LossCount) -> None:
        self.count, self.total, self.weight = count, 0.0, 0.0

    def add(self, loss: float, rows: int, results: Mapping[str, Any], times: int = 1) -> None:
        """Take the loss of a batch of so many rows, whose step gave these results; each row is in it so many times."""
        weight = self.count.weight(rows, results) / times
        loss = loss / times if self.count.is_sum else loss
        if weight:  # of no label there is no loss, or one of 0 / 0
            self.total += loss if self.count.is_sum else loss * weight
            self.weight += weight

    @property
    def value(self) -> float:
        """The loss of all rows; NaN where every label is ignored, as PyTorch's."""
        return self.total / self.weight if self.weight else math.nan


def counted_loss(graph: Graph, loss: str, inputs: Iterable[Value]) -> tuple[Graph, LossCount]:
    """A training or eval model that also gives the count of its loss, the first output.

    Rows, the first axes of `inputs`, are counted if the graph does not tell.
    """
    fed, producers = {v.name: v for v in inputs}, graph.producers()
    node = producers.get(loss)
    while node is not None and node.op_type in PASSING and node.inputs:
        node = producers.get(node.inputs[0])
    if node is None or node.domain not in ("", "ai.onnx"):
        return graph, LossCount()
    if node.op_type in CROSS_ENTROPIES:
        return _of_labels(Maker(graph, _place(graph, loss)), node, fed.values())
    divisor = producers.get(next(reversed(node.inputs), ""))
    if node.op_type == "Div" and divisor is not None and divisor.op_type == "ReduceSum":
        return graph, LossCount(node.inputs[-1] if _has_rows(divisor.inputs[0], producers, fed) else None)
    if node.op_type not in ("ReduceMean", "ReduceSum") or not _has_rows(node.inputs[0], producers, fed):
        return graph, LossCount()
    if node.op_type == "ReduceSum":
        return graph, LossCount(is_sum=True)
    return _of(node.inputs[0], Maker(graph, _place(graph, loss)), fed.values())


def is_mean_entropy(graph: Graph, loss: str) -> bool:
    """True for a mean of cross entropies, also of smoothed labels and with weights of classes."""
    producers, logarithms = graph.producers(), ("LogSoftmax", *CROSS_ENTROPIES)
    node = producers.get(loss)
    while node is not None and node.op_type in PASSING:
        node = producers.get(node.inputs[0])
    if node is None or node.op_type in CROSS_ENTROPIES:
        return node is not None and node.attrs.get("reduction", "mean") == "mean"
    divisor = producers.get(node.inputs[-1])
    is_quotient = node.op_type == "Div" and divisor is not None and divisor.op_type == "ReduceSum"
    of_logarithms = set[str]()
    for one in graph.nodes:
        if one.op_type in logarithms or (one.op_type != "Shape" and not of_logarithms.isdisjoint(one.inputs)):
            of_logarithms.update(one.outputs)
    waiting = [node.inputs[0]] if node.op_type == "ReduceMean" or is_quotient else []
    is_entropy = not of_logarithms.isdisjoint(waiting)
    while waiting and is_entropy:
        one = producers[waiting.pop()]
        is_entropy = one.op_type in (*logarithms, *LINEAR, *TAKING)
        waiting += [] if one.op_type in logarithms else [name for name in one.inputs if name in of_logarithms]
    return is_entropy


def with_terms(graph: Graph, loss: str, terms: Sequence[str]) -> tuple[Graph, LossCount]:
    """A training model that also gives its loss, a weighted sum of terms, and these as one output."""
    make = Maker(graph, _place(graph, loss) + 1, "loss.terms")
    numbers = [make.node("Reshape", [name, make.constant([1])]) for name in (loss, *terms)]
    return make.graph, LossCount(losses=make.node("Concat", numbers, axis=0), terms=terms)


def uneven_terms(graph: Graph, terms: Sequence[str], inputs: Collection[Value]) -> list[str]:
    """The terms that are sums, or that were divided by labels that count or their weights: not by rows or elements."""
    counted = [(term, *counted_loss(graph, term, inputs)) for term in terms]
    summed = {node.outputs[0] for _, made, _ in counted for node in made.nodes if node.op_type == "ReduceSum"}
    return [term for term, _, count in counted if count.is_sum or count.output in summed]


def _place(graph: Graph, loss: str) -> int:
    """The node of a loss: for the compiler, the forward pass ends with the last output."""
    return next(k for k, node in enumerate(graph.nodes) if loss in node.outputs)


def weighted_gradients(graph: Graph, loss: str, count: LossCount, inputs: Collection[Value]) -> Graph | None:
    """A training model with gradients of the loss times its divisor and the fed `SHARE`, unless `SHARE` is 0.

    None if the model does not start from the gradient of its loss as an initializer, or has no rows.
    """
    start = graph.initializers.get(f"{loss}_grad")
    readers = [k for k, node in enumerate(graph.nodes) if f"{loss}_grad" in node.inputs]
    if start is None or start.dtype != "float32" or start.size != 1 or not readers or not any(v.shape for v in inputs):
        return None
    make = Maker(graph, readers[0], start.name)
    divisor = make.node("Reshape", [count.output or row_count(make, inputs), make.constant([1])])
    zero, one = make.constant([0], "float32"), make.constant([1], "float32")
    is_sum = make.node("Equal", [SHARE, zero])
    weighted = make.node("Where", [is_sum, one, make.node("Mul", [divisor, SHARE])])
    make.graph.nodes.insert(make.at, Node("Reshape", [weighted, make.constant(start.shape)], [start.name]))
    del make.graph.initializers[start.name]
    make.graph.inputs = [*make.graph.inputs, Value(SHARE, "float32", (1,))]
    return make.graph


def _has_rows(name: str, producers: Mapping[str, Node], fed: Container[str]) -> bool:
    """True if the elements of a tensor belong to rows: operators that reduce nothing make it of a feed."""
    seen, waiting = {name}, [name]
    while waiting:
        name = waiting.pop()
        if name in fed:
            return True
        node = producers.get(name)
        is_each = node is not None and node.op_type in CROSS_ENTROPIES and node.attrs.get("reduction") == "none"
        if node is not None and (is_each or node.op_type in REDUCING_NOTHING):
            waiting += [source for source in node.inputs if source and source not in seen]
            seen.update(node.inputs)
    return False


def _of(name: str, make: Maker, inputs: Iterable[Value]) -> tuple[Graph, LossCount]:
    """Count the elements of a tensor, unless there are as many in each row."""
    if all(v.shape is not None and all(isinstance(dim, int) for dim in v.shape[1:]) for v in inputs):
        return make.source, LossCount()
    return make.graph, LossCount(make.node("Cast", [make.node("Size", [name])], to=FLOAT))


def _of_labels(make: Maker, node: Node, inputs: Iterable[Value]) -> tuple[Graph, LossCount]:
    """Count the labels of a cross entropy."""
    if (reduction := node.attrs.get("reduction", "mean")) != "mean":
        return make.source, LossCount(is_sum=reduction == "sum")
    count = label_count(make, node)
    return _of(node.inputs[1], make, inputs) if count is None else (make.graph, LossCount(count))


def label_count(make: Maker, node: Node) -> str | None:
    """The number of labels of a cross entropy that are not ignored, times their weights; None: all of them."""
    ignored, (_, labels, *weights) = node.attrs.get("ignore_index"), node.inputs
    weight = weights[0] if weights else ""
    if ignored is None and not weight:
        return None
    labels = make.node("Cast", [labels], to=INT64)
    counted = None
    if ignored is not None:
        same = make.node("Equal", [labels, make.constant([int(ignored)])])
        counted = make.node("Not", [same])
        labels = make.node("Mul", [labels, make.node("Cast", [counted], to=INT64)])
    each = make.node("Gather", [weight, labels], axis=0) if weight else ""
    if counted is not None:
        shares = make.node("Cast", [counted], to=FLOAT)
        each = make.node("Mul", [each, shares]) if each else shares
    return make.node("ReduceSum", [each], keepdims=0)


class Maker:
    """Adds nodes to a copy of a graph, before the node `at`."""

    def __init__(self, graph: Graph, at: int, name: str = "loss.count") -> None:
        self.source, self.graph, self.at, self._name = graph, graph.with_nodes(graph.nodes), at, name
        self._used = set(graph.names())

    def take(self) -> str:
        """A new name."""
        return take_name(self._name, self._used)

    def add(self, node: Node) -> None:
        """Add a node."""
        self.graph.nodes.insert(self.at, node)
        self.at += 1

    def node(self, op_type: str, inputs: list[str], **attrs: Any) -> str:
        """The result of a new node."""
        name = self.take()
        self.add(Node(op_type, inputs, [name], attrs, name=name))
        return name

    def constant(self, values: Sequence[float], dtype: str = "int64") -> str:
        """A new vector."""
        name = self.take()
        self.graph.initializers[name] = Tensor.of(name, dtype, (len(values),), tuple(values))
        return name


def row_count(make: Maker, inputs: Iterable[Value]) -> str:
    """The number of rows of a batch, as a float32."""
    first = next(v.name for v in inputs if v.shape)
    return make.node("Cast", [make.node("Gather", [make.node("Shape", [first]), make.constant([0])])], to=FLOAT)
