"""Linear models of ai.onnx.ml, whose numbers are attributes: written out with tensors, which a step can train."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trainweb.errors import ModelError, UnsupportedError
from trainweb.model.graph import ML, Graph, Node, Tensor, take_name

_TRANSFORMS = {"NONE": "", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
"""The operators of ONNX by what `post_transform` calls them."""
_LINEAR = ("LinearClassifier", "LinearRegressor")
_FLOAT = 1
"""float32 as attributes of ONNX call it."""


def write_out_linear(graph: Graph) -> list[Node]:
    """Write each linear model as Gemm, with its coefficients and intercepts as initializers of the graph."""
    nodes = graph.nodes
    if not any(_is_linear(node) for node in nodes):
        return nodes
    read = {name for node in nodes for name in node.inputs} | {value.name for value in graph.outputs}
    used = {*graph.initializers, *(value.name for value in graph.inputs), *read}
    used.update(name for node in nodes for name in node.outputs)
    written: list[Node] = []
    for node in nodes:
        written += _Written(node, graph.initializers, used, read).nodes if _is_linear(node) else [node]
    return written


def _is_linear(node: Node) -> bool:
    return node.domain == ML and node.op_type in _LINEAR


class _Written:
    """The nodes of one linear model."""

    def __init__(self, node: Node, initializers: dict[str, Tensor], used: set[str], read: set[str]) -> None:
        self.nodes: list[Node] = []
        self._node, self._initializers, self._used = node, initializers, used
        self._transform = node.attrs.get("post_transform", "NONE")
        if self._transform not in _TRANSFORMS:
            raise self._unsupported(f"post_transform {self._transform!r}")
        is_classifier = node.op_type == "LinearClassifier"
        # A classifier makes labels first.
        label, scores = [*node.outputs, ""][:2] if is_classifier else ["", node.outputs[0]]
        scores = scores or take_name(f"{label}/scores", used)
        labels = self._labels() if is_classifier else []
        raw = self._product(is_classifier, labels)
        operator = _TRANSFORMS[self._transform]
        axis = {"axis": 1} if operator == "Softmax" else {}
        self.nodes.append(Node(operator or "Identity", [raw], [scores], axis, "", node.name))
        if label and type(labels[0]) is int:
            self._pick(label, scores, labels)
        elif label in read:
            # No operator makes text: what needs the label is refused, and nothing else.
            self.nodes.append(Node(node.op_type, node.inputs, [label], {}, ML, node.name))

    def _product(self, is_classifier: bool, labels: Collection[Any]) -> str:
        """Scores before the transform."""
        node = self._node
        numbers, intercepts = self._floats("coefficients"), self._floats("intercepts")
        rows = len(intercepts) or len(labels) or node.attrs.get("targets", 1)
        if not numbers or type(rows) is not int or rows < 1 or len(numbers) % rows:
            raise ModelError(f"{node} has {len(numbers)} coefficients for {rows!r} rows: each needs the same number.")
        # Of one row for two classes, runtimes agree on the other class's score after LOGISTIC only.
        is_halved = is_classifier and rows == 1 and len(labels) == 2 and self._transform == "LOGISTIC"
        if is_classifier and not is_halved and rows != len(labels):
            raise self._unsupported(f"{rows} rows of coefficients for {len(labels)} classes, {self._transform},")
        if is_classifier and rows == 1 and not is_halved:
            raise self._unsupported("a classifier with one class")
        prefix = node.name or node.outputs[0]
        inputs = [self._op("Cast", [node.inputs[0]], to=_FLOAT)]
        inputs.append(self._tensor(f"{prefix}.coefficients", (rows, len(numbers) // rows), numbers))
        if intercepts:
            inputs.append(self._tensor(f"{prefix}.intercepts", (rows,), intercepts))
        raw = self._op("Gemm", inputs, transB=1)
        return self._op("Concat", [self._op("Neg", [raw]), raw], axis=1) if is_halved else raw

    def _labels(self) -> list[Any]:
        """The labels of the classes."""
        attrs = self._node.attrs
        labels = attrs.get("classlabels_ints") or attrs.get("classlabels_strings")
        if not isinstance(labels, list):
            raise ModelError(f"{self._node} has neither classlabels_ints nor classlabels_strings.")
        return labels

    def _pick(self, label: str, scores: str, labels: list[Any]) -> None:
        """The label of the largest score."""
        best = self._op("ArgMax", [scores], axis=1, keepdims=0)
        table = take_name(f"{label}/labels", self._used)
        value = Tensor.of("", "int64", (len(labels),), labels)
        self.nodes.append(Node("Constant", [], [table], {"value": value}, "", table))
        self.nodes.append(Node("Gather", [table, best], [label], {"axis": 0}, "", f"{label}/gather"))

    def _floats(self, name: str) -> list[float]:
        numbers = self._node.attrs.get(name, [])
        if not isinstance(numbers, list) or not all(isinstance(number, (int, float)) for number in numbers):
            raise ModelError(f"Attribute {name!r} of {self._node} is {numbers!r:.80}, which is not a list of numbers.")
        return numbers

    def _tensor(self, name: str, shape: tuple[int, ...], numbers: list[float]) -> str:
        name = take_name(name, self._used)
        self._initializers[name] = Tensor.of(name, "float32", shape, numbers)
        return name

    def _op(self, op_type: str, inputs: list[str], **attrs: Any) -> str:
        name = take_name(f"{self._node.name or self._node.outputs[0]}/{op_type.lower()}", self._used)
        self.nodes.append(Node(op_type, inputs, [name], attrs, "", name))
        return name

    def _unsupported(self, what: str) -> UnsupportedError:
        node, way = self._node, "Replace the node by MatMul and Add."
        return UnsupportedError(f"{node}: {what} is not supported. {way}", op=node.op_type, domain=ML, node=node.name)
