"""The label smoothing of a cross entropy, which torch's dynamo exporter notes and leaves out of the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainweb.model.calls import label_smoothing
from trainweb.model.graph import FX_NODE, SMOOTHING, Node, Tensor, take_name

_AXES_SINCE = 18
"""The opset from which ReduceMean has its axes as an input."""


def smooth_labels(nodes: Iterable[Node], opset: int) -> list[Node]:
    """Write out (1 - s) * loss + s * (mean over all classes) for each cross entropy with a label smoothing s."""
    nodes = list(nodes)
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    written: list[Node] = []
    for node in nodes:
        share = label_smoothing(node) if node.op_type == "SoftmaxCrossEntropyLoss" and not node.domain else 0.0
        written += _Smoothed(node, share, used, opset).nodes if share else [node]
    return written


class _Smoothed:
    """The nodes of one loss.

    NegativeLogLikelihoodLoss handles ignored labels, the reduction and weights. It gets the mean over the classes in
    the place of each logarithm.
    """

    def __init__(self, node: Node, share: float, used: set[str], opset: int) -> None:
        self.nodes: list[Node] = []
        self._node, self._used, self._opset = node, used, opset
        weight = node.inputs[2] if len(node.inputs) > 2 else ""
        reduction = node.attrs.get("reduction", "mean")
        log_prob = node.outputs[1] if len(node.outputs) > 1 and node.outputs[1] else self._fresh("log_prob")
        plain = self._fresh("plain")
        notes = {key: value for key, value in node.notes.items() if key != FX_NODE}
        self.nodes.append(Node(node.op_type, node.inputs, [plain, log_prob], node.attrs, "", node.name, notes))
        shape = self._op("Shape", [log_prob])
        terms = log_prob
        if weight:
            weight = self._op("Expand", [self._along_classes(weight, shape), shape])
            terms = self._op("Mul", [log_prob, weight])
        total = reduction == "mean" and bool(weight)
        smooth = self._picked(self._op("Expand", [self._mean(terms), shape]), "sum" if total else reduction)
        if total:
            smooth = self._op("Div", [smooth, self._picked(self._op("Neg", [weight]), "sum")])
        parts = [self._scaled(plain, 1 - share), self._scaled(smooth, share)]
        note = {SMOOTHING: f"{share:g}"}
        self.nodes.append(Node("Add", parts, [node.outputs[0]], {}, "", f"{node.name}/smoothed", note))

    def _fresh(self, what: str) -> str:
        return take_name(f"{self._node.outputs[0]}/smoothing/{what}", self._used)

    def _op(self, op_type: str, inputs: list[str], **attrs: Any) -> str:
        name = self._fresh(op_type.lower())
        self.nodes.append(Node(op_type, inputs, [name], attrs, "", f"{self._node.name}/{name}"))
        return name

    def _constant(self, dtype: str, shape: tuple[int, ...], value: float) -> str:
        return self._op("Constant", [], value=Tensor.of("", dtype, shape, [value]))

    def _scaled(self, name: str, factor: float) -> str:
        return self._op("Mul", [name, self._constant("float32", (), factor)])

    def _mean(self, name: str) -> str:
        """Over the classes, which are along axis 1."""
        if self._opset < _AXES_SINCE:
            return self._op("ReduceMean", [name], axes=[1], keepdims=1)
        return self._op("ReduceMean", [name, self._constant("int64", (1,), 1)], keepdims=1)

    def _along_classes(self, weight: str, shape: str) -> str:
        """Weights of the classes as (C, 1, ...), beside the scores' (N, C, ...)."""
        rank = self._op("Shape", [shape])
        after = self._op("Sub", [rank, self._constant("int64", (1,), 2)])
        ones = self._op("ConstantOfShape", [after], value=Tensor.of("", "int64", (1,), [1]))
        return self._op("Reshape", [weight, self._op("Concat", [self._op("Shape", [weight]), ones], axis=0)])

    def _picked(self, name: str, reduction: str) -> str:
        attrs = {key: value for key, value in self._node.attrs.items() if key == "ignore_index"}
        return self._op("NegativeLogLikelihoodLoss", [name, self._node.inputs[1]], reduction=reduction, **attrs)
