"""Remarks on a file that trains, but maybe not as its maker means.

`build_artifacts` warns of them, `trainweb.check` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainweb.artifacts.buffers import folded_norms
from trainweb.artifacts.parameters import Selection
from trainweb.control.repeat import with_bodies
from trainweb.model.graph import SMOOTHING, Graph, Node, Tensor
from trainweb.model.uses import MOVES_OF_ONE
from trainweb.onnxblock.transforms import retrained_norms, running_statistics
from trainweb.settings import matching
from trainweb.spelling import ARGUMENT

_ACTIVATED = {
    "CrossEntropyLoss": "Softmax",
    "FocalLoss": "Softmax",
    "CTCLoss": "Softmax",
    "BCEWithLogitsLoss": "Sigmoid",
}
"""The operator that a loss applies itself, by the name of the loss."""
TF = "tf2onnx"
_CAPTURED = re.compile(r".+/.+:\d+")
"""Names of TensorFlow's tensors that are made within a layer; inputs of the model have no path."""
_NOT_LOG_PROBABILITIES = {"Gemm", "MatMul", "Conv", "Softmax"}
"""Operators whose results are scores or probabilities, where KLDivLoss takes log-probabilities."""
_KEEPS = MOVES_OF_ONE | {"Flatten", "Normalizer"}
"""Operators that leave numbers as they are; Normalizer does it to probabilities."""


def remark_on_file(graph: Graph, constants: Mapping[str, Tensor]) -> list[str]:
    """Remarks on inputs and Dropout, for which no loss is needed; `constants` are initializers and Constant nodes."""
    return [*_remark_on_inputs(graph), *_remark_on_dropout(graph, constants)]


def _remark_on_inputs(graph: Graph) -> list[str]:
    """Inputs that are tensors within a layer, as tf2onnx makes of mean and variance of Keras' Normalization."""
    inner = [value.name for value in graph.inputs if _CAPTURED.fullmatch(value.name)] if graph.producer == TF else []
    if not inner:
        return []
    names = ", ".join(map(repr, inner))
    return [
        f"Tensors within a layer became inputs of the file: {names}. Their values are not in it: feed them in every "
        "step, or make them initializers of the file, as docs/export.md shows for Keras' Normalization."
    ]


def remark_on_smoothing(graph: Graph) -> list[str]:
    """Label smoothings that reading put back into losses."""
    shares = dict.fromkeys(node.notes[SMOOTHING] for node in graph.nodes if SMOOTHING in node.notes)
    return [
        f"Label smoothing of {share}, which torch's exporter leaves out, was put back from the file's notes."
        for share in shares
    ]


def remark_on_unread(graph: Graph) -> list[str]:
    """Inputs that no node reads, as torch leaves one of two that were given one tensor in the export."""
    read = {name for node in with_bodies(graph).nodes for name in node.inputs}.union(v.name for v in graph.outputs)
    names = ", ".join(repr(value.name) for value in graph.inputs if value.name not in read)
    way = "The exporter takes one tensor, given for two inputs, for one input: give each a tensor of its own."
    return [f"No node reads these inputs, so their data changes nothing: {names}. {way}"] if names else []


def _remark_on_dropout(graph: Graph, constants: Mapping[str, Tensor]) -> list[str]:
    """Dropout nodes in inference mode, as inference models have them: they drop nothing in training either."""

    def number(node: Node, position: int, default: float) -> Any:
        name = node.inputs[position] if position < len(node.inputs) else ""
        tensor = constants.get(name)
        return tensor.values()[0] if tensor is not None and tensor.size == 1 else name or default

    nodes = [node for node in graph.nodes if node.op_type == "Dropout" and not node.domain]
    trains = [number(node, 2, False) for node in nodes if number(node, 1, node.attrs.get("ratio", 0.5)) != 0]
    count = sum(not one for one in trains)
    if not count:
        return []
    way = "Export the module in training mode to drop as it does; a trained session's export drops nothing."
    if count < len(trains):
        way = "PyTorch's exporter turns off dropout in 'sdpa' attention; with attn_implementation='eager' it stays."
    return [f"{count} of {len(trains)} Dropout nodes are in inference mode in this file, and drop nothing. {way}"]


def remark_on_norms(graph: Graph, chosen: Selection, batch_norm: str | None) -> list[str]:
    """Batch normalizations that are not as the file or the option says: folded, retrained, or none to decide for."""
    return [*_remark_on_folded_norms(graph, chosen), *_remark_on_modes(graph, chosen, batch_norm)]


def _remark_on_folded_norms(graph: Graph, chosen: Selection) -> list[str]:
    """Norms folded into layers. In training mode, those whose statistics no frozen parameter would keep anyway."""
    statistics = {f"{name}.running_mean": name for name in folded_norms(graph)}
    modules = [name for key, name in statistics.items() if not any(matching(one, [key]) for one in chosen.held)]
    if not modules and chosen.folded:
        return [
            f"{len(chosen.trainable)} tensors are trained. Batch normalizations ({len(chosen.folded)}, such as "
            f"{chosen.folded[0]!r}) are folded into the layers before them and trained with these. For training "
            "exactly as in PyTorch export with optimize=False."
        ]
    if not modules:
        return []
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return [
        f"Batch normalization {modules[0]!r}{more}, in training mode, is folded into weights as for inference. It "
        "keeps the statistics of the file. To normalize by each batch as PyTorch does, export with optimize=False."
    ]


def _remark_on_modes(graph: Graph, chosen: Selection, batch_norm: str | None) -> list[str]:
    norms = retrained_norms(graph, chosen.trainable, batch_norm and "train", chosen.frozen)
    if batch_norm is not None:
        in_vain = (
            f"{ARGUMENT.batch_norm}={batch_norm!r} changes nothing here: leave it out. It is for batch normalizations "
            "that are in inference mode in the file and are trained, and there are none."
        )
        if running_statistics(graph, chosen.trainable, batch_norm, chosen.frozen):
            in_vain += (
                " To hold the statistics of one in training mode, name its running mean and variance in "
                f"{ARGUMENT.frozen_params}."
            )
        return [] if norms else [in_vain]
    if not norms:
        return []
    nodes = f"{norms} BatchNormalization node{' is' if norms == 1 else 's are'}"
    return [
        f"{nodes} in inference mode in this file. Training normalizes by the statistics of each batch: "
        f"{ARGUMENT.batch_norm}='as_exported' keeps those of the file, {ARGUMENT.batch_norm}='train' says that this is "
        "meant."
    ]


def remark_on_loss(graph: Graph, loss: Any, names: Iterable[str], *, is_by_output: bool) -> list[str]:
    """Outputs that went through the operator which the loss applies itself, or lack the one that it needs."""
    kind = loss.get("type", loss.get("name")) if isinstance(loss, Mapping) else loss
    name = kind if isinstance(kind, str) else getattr(kind, "name", type(kind).__name__)
    operator = _ACTIVATED.get(name)
    producers = {output: node for node in graph.nodes for output in node.outputs}
    remarks = []
    for output in names if operator or name == "KLDivLoss" else ():
        node = producers.get(output)
        while node is not None and (node.op_type in _KEEPS or (not operator and _adds_bias(graph, node))):
            node = producers.get(node.inputs[0])
        if node is not None and node.op_type == operator:
            scores = repr(node.inputs[0])
            hint = f"loss={{{scores}: ...}}" if is_by_output else f"{ARGUMENT.loss_input_names}=[{scores}]"
            remarks.append(
                f"{name} takes scores and applies {operator} itself, but {output!r} went through {node} already. "
                f"Give it the scores: {hint}."
            )
        elif node is not None and not operator and node.op_type in _NOT_LOG_PROBABILITIES:
            remarks.append(
                f"{name} takes log-probabilities, but {output!r} is made by {node}. End the model with LogSoftmax."
            )
    return remarks


def _adds_bias(graph: Graph, node: Node) -> bool:
    return node.op_type == "Add" and node.inputs[1] in graph.initializers
