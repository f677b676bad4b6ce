"""Faults of files with one possible meaning, which are repaired: other tools let them pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainweb.errors import UnsupportedError
from trainweb.model.graph import Graph, Node, Tensor, Value

STATISTICS = slice(1, 3)
"""Outputs of a BatchNormalization before opset 14 that are the updated mean and variance, its inputs 3 and 4."""

_LOOKED_AT = 1 << 20
"""Elements up to which it is looked whether all are zero."""


def rename_duplicates(nodes: Iterable[Node], names: set[str]) -> None:
    """Give nodes a name of their own where exporters gave several the same; tensors, not nodes, are what counts."""
    last: dict[str, int] = {}
    for node in nodes:
        name, k = node.name, last.get(node.name, 0)
        while name and name in names:
            k += 1
            name = f"{node.name}_{k}"
        if k:
            last[node.name] = k
        node.name = name
        names.add(name)


def part_statistics(nodes: Iterable[Node], initializers: dict[str, Tensor]) -> None:
    """Let a BatchNormalization make statistics of other names than those it reads.

    Up to opset 6 they were updated in place, and some exporters of opset 7 to 13 name them so.
    """
    for node in nodes:
        if node.op_type == "BatchNormalization" and node.domain == "":
            statistics = node.outputs[STATISTICS]
            node.outputs[STATISTICS] = [
                f"{n}_updated" if n in initializers and n in node.inputs else n for n in statistics
            ]


def drop_zero_biases(nodes: Iterable[Node]) -> None:
    """Let a convolution have no bias where the exporter made it of zeros, and of a matrix.

    torch's dynamo exporter (onnxscript 0.7) writes the bias of a Conv3d without one as zeros of shape (channels, 2).
    Its optimizer may take them away: https://github.com/microsoft/onnxscript, `aten_conv3d`.
    """
    nodes = list(nodes)
    producers = {name: node for node in nodes for name in node.outputs}
    for node in nodes:
        bias = producers.get(node.inputs[2]) if node.op_type == "Conv" and len(node.inputs) == 3 else None
        if bias is not None and bias.op_type == "Expand" and _is_zero(producers.get(bias.inputs[0]), producers):
            shape = producers.get(bias.inputs[1])
            if shape is not None and shape.op_type == "Concat" and len(shape.inputs) > 1:
                node.inputs.pop()


def _is_zero(node: Node | None, producers: dict[str, Node]) -> bool:
    """Return whether a node makes the constant 0."""
    while node is not None and node.op_type in ("Cast", "CastLike", "Identity"):
        node = producers.get(node.inputs[0])
    value = node.attrs.get("value") if node is not None and node.op_type == "Constant" else None
    return isinstance(value, Tensor) and value.size == 1 and not any(bytes(value.data))


def add_where_indices_meet(nodes: Iterable[Node], initializers: Mapping[str, Tensor]) -> None:
    """Let what is scattered into zeros and then added to something add up where indices meet.

    The TorchScript exporter writes `index_add`, `index_put(accumulate=True)` and, up to opset 15, `scatter_add` so,
    without the reduction. ONNX does not define the result of such a node where indices meet. PyTorch does not either,
    except for equal numbers. Constants stay as they are, since they may be multi-hot codes, unless they come from
    `index_add`.
    """
    nodes = list(nodes)
    producers = {name: node for node in nodes for name in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    for node in nodes:
        if node.op_type not in _SCATTERS or node.domain or node.attrs.get("reduction", "none") != "none":
            continue
        reading = readers.get(node.outputs[0], [])
        if len(reading) != 1 or reading[0].op_type != "Add" or not _is_zeros(node.inputs[0], producers, initializers):
            continue
        others = [name for name in reading[0].inputs if name != node.outputs[0]]
        if _is_of_index_add(node, others, producers) or not _is_constant(node.inputs[2], producers, initializers):
            node.attrs["reduction"] = "add"


_SCATTERS = ("ScatterElements", "ScatterND")
_FILLS = ("Cast", "CastLike", "Identity", "Expand", "Reshape", "Unsqueeze", "Tile", "ConstantOfShape")


def _is_zeros(name: str, producers: Mapping[str, Node], initializers: Mapping[str, Tensor]) -> bool:
    """Return whether a tensor is a constant of zeros, of a shape that may vary."""
    node = producers.get(name)
    if node is not None and node.op_type == "ConstantOfShape":
        value = node.attrs.get("value")
        return value is None or (isinstance(value, Tensor) and not any(bytes(value.data)))
    value = initializers.get(name) if node is None else node.attrs.get("value") if node.op_type == "Constant" else None
    return isinstance(value, Tensor) and value.size <= _LOOKED_AT and not any(bytes(value.data))


def _is_constant(name: str, producers: Mapping[str, Node], initializers: Mapping[str, Tensor]) -> bool:
    while name in producers and producers[name].op_type in _FILLS:
        if producers[name].op_type == "ConstantOfShape":
            return True
        name = producers[name].inputs[0]
    return name in initializers or (name in producers and producers[name].op_type == "Constant")


def _is_of_index_add(node: Node, others: Iterable[str], producers: Mapping[str, Node]) -> bool:
    """Return whether updates have the shape of a part of the result, which exporters write only for `index_add`."""
    expand = producers.get(node.inputs[2])
    shape = producers.get(expand.inputs[1]) if expand is not None and expand.op_type == "Expand" else None
    part = producers.get(shape.inputs[0]) if shape is not None and shape.op_type == "Shape" else None
    return part is not None and part.op_type == "Slice" and part.inputs[0] in others


def unknown_fields(message: Any, path: str = "the model") -> Iterator[str]:
    """Yield the places of fields that this version of the format does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown: Any = UnknownFieldSet(message)
    for field in unknown:
        yield f"field {field.field_number} of {path}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for part in value if descriptor.is_repeated else (value,):
            yield from unknown_fields(part, f"a {descriptor.message_type.name}")


def check_newer(parts: Iterable[Any], version: int, newest: int) -> None:
    """Raise where a part of a model of a newer version of the format says what only that version knows."""
    place = next((place for message in parts for place in unknown_fields(message)), None)
    if place is not None:
        raise UnsupportedError(
            f"the model has IR version {version} and uses {place}, which is newer than version {newest}, that this "
            "trainweb reads; export it with an older version"
        )


def count_axes_from_front(nodes: Iterable[Node]) -> None:
    """Let Transpose count its axes from 0, where the TorchScript exporter wrote `permute(0, -2, -1, 1)` as it stood."""
    for node in nodes:
        perm = node.attrs.get("perm") if node.op_type == "Transpose" and not node.domain else None
        if isinstance(perm, list) and all(type(axis) is int and -len(perm) <= axis for axis in perm):
            node.attrs["perm"] = [axis + len(perm) if axis < 0 else axis for axis in perm]


def part_dims(graph: Graph) -> None:
    """Dims of an output that have one name, which no input has, need not be the same and lose it.

    The TorchScript exporter makes names up, and calls batch and length by the same one (`Convy_dim_0`).
    """
    dims_of_inputs = {dim for value in graph.inputs if isinstance(value, Value) for dim in value.shape or ()}
    for k, value in enumerate(graph.outputs):
        shape = value.shape or () if isinstance(value, Value) else ()
        twice = {dim for dim in shape if isinstance(dim, str) and shape.count(dim) > 1} - dims_of_inputs
        if isinstance(value, Value) and twice:
            graph.outputs[k] = replace(value, shape=tuple(None if dim in twice else dim for dim in shape))
