"""Weights of rows or labels: the parts of a loss are multiplied by fed numbers, and labels of weight 0 are not read.

The divisor of the loss stays, such as the number of rows, as that of Keras with `sample_weight` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

from trainweb import messages
from trainweb.errors import ModelError
from trainweb.loss_counts import CROSS_ENTROPIES, PASSING, Maker, label_count
from trainweb.model.graph import SAMPLE_WEIGHT, Dim, Graph, Node, Value
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.loss import CrossEntropyLoss, CTCLoss, DPOLoss
from trainweb.settings import Choice, Field, Text, checked_values
from trainweb.spelling import ARGUMENT

SETTINGS = {
    "name": Field(Text(), Parameter.empty, is_optional=False),
    "of": Field(Choice(("rows", "labels")), "rows", is_optional=False),
}
"""The name of the input, and what has a weight: a row (N,), or a label, in the shape of the labels."""

EVERY = ""
"""In the place of an output or of labels: all of them."""


@dataclass(frozen=True)
class RowWeights:
    """An input of weights, with the settings of `SETTINGS`."""

    name: str
    of: str = "rows"

    @classmethod
    def of_setting(cls, setting: Any, path: str = "sample_weight") -> RowWeights:
        """Weights by the name of their input, or by settings."""
        if hasattr(setting, "shape"):
            raise messages.BAD_SETTING(name=path, value=type(setting), expected="the name of the column of weights")
        settings = setting if isinstance(setting, Mapping) else {"name": setting}
        return cls(**checked_values(path, settings, SETTINGS, f"{path}."))

    def weigh(self, loss: str, labels: Sequence[Value], first: int, axis: int | None = None) -> None:
        """Weigh the parts of a loss of the current model.

        `labels` are the inputs that it compares; its nodes start at `first`. Labels that are distributions have the
        classes on `axis`, which their weights lack.
        """
        accessor = context.current()
        accessor.sync()
        shape = self._add_input(labels, axis)
        graph = accessor.graph
        for value in labels:
            if value.dtype == "float32" and value.shape:
                graph = self._without_labels(graph, value, first, axis)
        accessor.graph = self._weighed(graph, loss)
        try:
            accessor.inference()
        except ModelError as error:
            if self.of == "rows":
                raise
            raise _of_rows(f"the loss has no part for each label of the shape {list(shape)}. {error}") from error

    def _add_input(self, labels: Sequence[Value], axis: int | None) -> tuple[Dim, ...]:
        """Add the input of weights, and return its shape."""
        accessor = context.current()
        graph = accessor.graph
        inputs = [v for v in (*labels, *graph.inputs) if isinstance(v, Value) and v.shape]
        shape = (inputs[0].shape or ())[: None if self.of == "labels" else 1] if inputs else ()
        if self.of == "labels" and axis is not None:
            shape = shape[:axis] + shape[axis + 1 :]
        known = next((v for v in inputs if v.name == self.name), None)
        is_other = known is None and accessor.has(self.name)
        if known is not None:
            is_rank = len(known.shape or ()) == len(shape)
            is_other = known.dtype != "float32" or not is_rank or self.name in [v.name for v in labels]
        if is_other or not inputs or (self.of == "labels" and not labels):
            expected = "the name of a new input, or of a float32 input of weights"
            raise messages.BAD_SETTING(name=ARGUMENT.sample_weight, value=self.name, expected=expected)
        if known is None:
            accessor.add_input(Value(self.name, "float32", shape))
        return shape

    def _without_labels(self, graph: Graph, labels: Value, first: int, axis: int | None) -> Graph:
        """The graph in which labels of weight 0, which may be NaN, are 0 for the nodes from `first`."""
        make = Maker(graph, first, f"{self.name}.labels")
        weights, zero = self.shaped(make, len(labels.shape or ())), make.constant([0], "float32")
        if self.of == "labels" and axis is not None:
            row = make.node("ArgMax", [labels.name], axis=axis, keepdims=1)
            weights = make.node("Reshape", [weights, make.node("Shape", [row])])
        cleared = make.node("Where", [make.node("Equal", [weights, zero]), zero, labels.name])
        nodes = make.graph.nodes
        for k in range(make.at, len(nodes)):
            if labels.name in nodes[k].inputs:
                names = [cleared if name == labels.name else name for name in nodes[k].inputs]
                nodes[k] = replace(nodes[k], inputs=names)
        return make.graph

    def shaped(self, make: Maker, rank: int) -> str:
        """The weights as a factor of labels of a rank."""
        if self.of == "labels" or rank == 1:
            return self.name
        return make.node("Reshape", [self.name, make.constant([-1] + [1] * (rank - 1))])

    def _weighed(self, graph: Graph, loss: str) -> Graph:
        node = _reduction_of(graph, loss)
        at = next(k for k, one in enumerate(graph.nodes) if one is node)
        make = Maker(graph, at, f"{self.name}.loss")
        if node.op_type in CROSS_ENTROPIES:
            reduced = self._of_entropies(make, node)
        else:
            reduced = replace(node, inputs=[self._times(make, node.inputs[0]), *node.inputs[1:]])
        make.graph.nodes[make.at] = reduced
        return make.graph

    def _of_entropies(self, make: Maker, node: Node) -> Node:
        """The reduction of the cross entropies of rows."""
        reduction, (loss, *others) = node.attrs.get("reduction", "mean"), node.outputs
        each = make.take()
        attrs = {**node.attrs, "reduction": "none"}
        count = label_count(make, node) if reduction == "mean" else None
        make.add(replace(node, outputs=[each, *others], attrs=attrs))
        weighed = self._times(make, each)
        if count is None:
            return Node(f"Reduce{reduction.capitalize()}", [weighed], [loss], {"keepdims": 0}, name=node.name)
        return Node("Div", [make.node("ReduceSum", [weighed], keepdims=0), count], [loss], name=node.name)

    def _times(self, make: Maker, each: str) -> str:
        """The parts of a loss, in any shape of whole rows, times their weights."""
        shape = make.node("Shape", [self.name])
        if self.of == "rows":
            shape = make.node("Concat", [shape, make.constant([-1])], axis=0)
        weighed = make.node("Mul", [make.node("Reshape", [each, shape]), self.shaped(make, 2)])
        return make.node("Reshape", [weighed, make.node("Shape", [each])])


def labels_of(output: str) -> str:
    """The input of labels of an output that has a loss of its own."""
    return f"{output}_labels"


def weights_of(setting: Any, outputs: Sequence[str] = ()) -> dict[str, RowWeights]:
    """Weights by the outputs of a loss of several terms; those under `EVERY` are of all outputs.

    Raise ModelError for another output, and for one mask of several outputs, whose labels differ in shape.
    """
    if setting is None:
        return {}
    path = ARGUMENT.sample_weight
    if outputs and isinstance(setting, Mapping) and not isinstance(setting.get("name"), str):
        for output, weights in setting.items():
            if output not in outputs:
                expected = f"of an output with a loss: {', '.join(outputs)}"
                raise messages.BAD_SETTING(name=f"{path}.{output}", value=weights, expected=expected)
        return {output: RowWeights.of_setting(one, f"sample_weight.{output}") for output, one in setting.items()}
    weights = RowWeights.of_setting(setting)
    if weights.of == "labels" and len(outputs) > 1:
        mask = {outputs[0]: {"name": f"{outputs[0]}_{weights.name}", "of": "labels"}}
        expected = f"'rows', or {path} has a mask for each output, such as {mask}"
        raise messages.BAD_SETTING(name=f"{path}.of", value="labels", expected=expected)
    return {EVERY: weights}


def note_weights(evaluation: Graph, weights: Mapping[str, RowWeights]) -> None:
    """Note weights in an eval model, by their labels."""
    names = {output and labels_of(output): one.name for output, one in weights.items()}
    if names:
        evaluation.metadata[SAMPLE_WEIGHT] = json.dumps(names, ensure_ascii=False)


def weighed(
    loss: Block | None, build: Callable[[], str], weights: RowWeights | None, labels: Collection[str] = ()
) -> str:
    """The name that `build` gives to a loss, whose parts are then multiplied by weights, if there are some.

    It compares the inputs that it adds, and `labels`.
    """
    accessor = context.current()
    accessor.sync()
    before, first = {value.name for value in accessor.graph.inputs}, len(accessor.graph.nodes)
    name = build()
    if weights is not None:
        if isinstance(loss, DPOLoss):  # of pairs of rows
            raise messages.NO_SAMPLE_WEIGHT(name=type(loss).__name__)
        if isinstance(loss, CTCLoss) and weights.of == "labels":
            raise _of_rows("the labels of a row have one loss")
        inputs = [v for v in accessor.graph.inputs if isinstance(v, Value)]
        values = [v for v in inputs if v.name not in before or v.name in labels]
        axis = None
        if isinstance(loss, CrossEntropyLoss) and loss.probabilities:
            axis = loss.class_axis % len(values[0].shape or ())
        weights.weigh(name, values, first, axis)
    return name


def _of_rows(reason: str) -> Exception:
    """The error of weights of labels that do not fit the loss."""
    expected = f"'rows', because {reason}"
    return messages.BAD_SETTING(name=f"{ARGUMENT.sample_weight}.of", value="labels", expected=expected)


def _reduction_of(graph: Graph, loss: str) -> Node:
    """The node that makes one number of the parts of a loss."""
    producers = graph.producers()
    node = producers.get(loss)
    while node is not None:
        before = producers.get(node.inputs[0]) if node.inputs else None
        is_passing = node.op_type in PASSING or (node.op_type == "Div" and before is not None)
        if node.op_type == "ReduceSum" and before is not None and before.op_type == "Div":
            first = producers.get(before.inputs[0])
            is_passing = first is not None and first.op_type == "ReduceSum"  # of "batchmean"
        if not is_passing:
            break
        node = before
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum", *CROSS_ENTROPIES):
        raise messages.NO_SAMPLE_WEIGHT(name=loss)
    return node
