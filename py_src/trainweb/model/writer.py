"""`Graph` -> ONNX. The same graph gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import LimitError, ModelError
from .checks import DTYPE_CODES, INT32_MAX, MODEL_GRAPH, check_data, varint
from .encoded import encode_property
from .graph import TRAINWEB, Graph, LocalFunction, Node, Sequence, Tensor, Value, as_float32
from .lazy import LazyTensor, Part, data_part, join_parts, nbytes_of
from .schema import messages

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)
"""`AttributeProto.AttributeType`."""

GRAPH_INITIALIZER, TENSOR_RAW_DATA = 5, 9
"""Field numbers in onnx.proto."""


def write_model(graph: Graph, functions: Iterable[LocalFunction] = ()) -> bytes:
    """The model as bytes; see `model_parts`."""
    return join_parts(model_parts(graph, functions))


def model_parts(graph: Graph, functions: Iterable[LocalFunction] = ()) -> list[Part]:
    """Write a main graph as an ONNX model: bytes, and initializers whose data lies elsewhere, from start to end.

    Opsets, IR version, producer and metadata come from the graph. A graph without a name, which ONNX does not allow,
    becomes "graph". `functions` define operators of ours for other runtimes. Tensors are stored raw; an empty list
    attribute is stored as ints. Raise ModelError for data or an attribute that ONNX cannot hold, and LimitError beyond
    2 GiB, which protobuf cannot hold.
    """
    check_size(graph)
    before, after = messages().ModelProto(), messages().ModelProto()
    before.ir_version = graph.ir_version
    before.producer_name = graph.producer
    for domain, version in graph.opsets.items():
        entry = after.opset_import.add()
        entry.domain, entry.version = domain, version
    _fill_notes(after, graph.metadata)
    for function in functions:
        _fill_function(after.functions.add(), function)
    return [_encoded(before), *_field(MODEL_GRAPH, _graph_parts(graph)), _encoded(after)]


def _graph_parts(graph: Graph) -> list[Part]:
    """The main graph; as protobuf writes it, with fields in the order of their numbers."""
    before, after = messages().GraphProto(), messages().GraphProto()
    _fill_nodes(before, graph)
    _fill_edges(after, graph)
    _fill_notes(after, graph.notes)
    parts: list[Part] = [_encoded(before)]
    for name, tensor in graph.initializers.items():
        parts += _field(GRAPH_INITIALIZER, _initializer_parts(tensor, name))
    return [*parts, _encoded(after)]


def _initializer_parts(tensor: Tensor, name: str) -> list[Part]:
    before, after = messages().TensorProto(), messages().TensorProto()
    _fill_notes(after, tensor.notes)
    _fill_type(before, tensor, name)
    data = data_part(tensor)
    if not isinstance(data, LazyTensor):
        check_data(tensor.dtype, tensor.shape, data, f"tensor {name!r}")
    return [_encoded(before), *_field(TENSOR_RAW_DATA, [data]), _encoded(after)]


def _encoded(proto: Any) -> bytes:
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _field(number: int, contents: list[Part]) -> list[Part]:
    """A length-delimited field."""
    return [varint(number << 3 | 2) + varint(sum(map(nbytes_of, contents))), *contents]


def round_attributes(graph: Graph) -> None:
    """Round float attributes to float32, in place: what a file of the graph holds."""
    for node in graph.nodes:
        for name, value in node.attrs.items():
            if isinstance(value, float):
                node.attrs[name] = as_float32(value)
            elif isinstance(value, (list, tuple)) and any(isinstance(v, float) for v in value):
                node.attrs[name] = [as_float32(v) for v in value]


def check_size(graph: Graph) -> None:
    """Check that the constants fit into a protobuf message."""
    nbytes = sum(nbytes_of(data_part(tensor)) for tensor in graph.initializers.values())
    if nbytes > INT32_MAX:
        raise LimitError(f"the model has {nbytes} bytes of constants; an ONNX file holds at most {INT32_MAX}")


def _fill_graph(proto: Any, graph: Graph) -> None:
    """A subgraph."""
    _fill_nodes(proto, graph)
    for name, tensor in graph.initializers.items():
        entry = proto.initializer.add()
        _fill_tensor(entry, tensor, name)
    _fill_edges(proto, graph)
    _fill_notes(proto, graph.notes)


def _fill_nodes(proto: Any, graph: Graph) -> None:
    proto.name = graph.name or "graph"
    for node in graph.nodes:
        _fill_node(proto.node.add(), node)


def _fill_edges(proto: Any, graph: Graph) -> None:
    for values, edges in ((proto.input, graph.inputs), (proto.output, graph.outputs)):
        for edge in edges:
            _fill_value(values.add(), edge)
    for value in graph.value_info.values():
        declared = messages().ValueInfoProto()
        _fill_value(declared, value)
        proto.value_info.append(_encoded(declared))


def _fill_value(proto: Any, value: Value | Sequence) -> None:
    proto.name = value.name
    if isinstance(value, Sequence):
        proto.type.sequence_type.elem_type.tensor_type.elem_type = _code(value.dtype, value.name)
        return
    _fill_notes(proto, value.notes)
    if value.dtype == "":
        return
    tensor = proto.type.tensor_type
    tensor.elem_type = _code(value.dtype, value.name)
    if value.shape is None:
        return
    tensor.shape.SetInParent()
    for size in value.shape:
        dim = tensor.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size is not None:
            dim.dim_param = size


def _fill_node(proto: Any, node: Node) -> None:
    proto.op_type, proto.domain, proto.name = node.op_type, node.domain, node.name
    _fill_notes(proto, node.notes)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    for name, value in node.attrs.items():
        attribute = proto.attribute.add()
        attribute.name = name
        try:
            _fill_attribute(attribute, value)
        except (TypeError, ValueError) as error:
            raise ModelError(f"attribute {name!r} of {node} cannot be {value!r:.80}: {error}") from error


def _fill_function(proto: Any, function: LocalFunction) -> None:
    proto.name, proto.domain = function.name, TRAINWEB
    proto.input.extend(function.inputs)
    proto.output.extend(function.outputs)
    proto.attribute.extend(function.attributes)
    for node in function.nodes:
        _fill_node(proto.node.add(), node)
    for domain, version in function.opsets.items():
        entry = proto.opset_import.add()
        entry.domain, entry.version = domain, version


def _fill_notes(proto: Any, notes: dict[str, str]) -> None:
    proto.metadata_props.extend(encode_property(key, value) for key, value in notes.items())


def _fill_attribute(proto: Any, value: Any) -> None:
    if isinstance(value, (list, tuple)):
        _fill_list(proto, value)
    elif isinstance(value, (str, bytes)):
        proto.type, proto.s = STRING, _bytes(value)
    elif isinstance(value, Tensor):
        proto.type = TENSOR
        _fill_tensor(proto.t, value, value.name)
    elif isinstance(value, Graph):
        proto.type = GRAPH
        _fill_graph(proto.g, value)
    elif isinstance(value, float):
        proto.type, proto.f = FLOAT, value
    else:
        proto.type, proto.i = INT, int(value)


def _fill_list(proto: Any, values: list[Any] | tuple[Any, ...]) -> None:
    first = values[0] if values else 0
    if isinstance(first, (str, bytes)):
        proto.type = STRINGS
        proto.strings.extend(map(_bytes, values))
    elif isinstance(first, Tensor):
        proto.type = TENSORS
        for tensor in values:
            _fill_tensor(proto.tensors.add(), tensor, tensor.name)
    elif isinstance(first, Graph):
        proto.type = GRAPHS
        for graph in values:
            _fill_graph(proto.graphs.add(), graph)
    elif any(isinstance(value, float) for value in values):
        proto.type = FLOATS
        proto.floats.extend(values)
    else:
        proto.type = INTS
        proto.ints.extend(map(int, values))


def _fill_type(proto: Any, tensor: Tensor, name: str) -> None:
    proto.name = name
    proto.data_type = _code(tensor.dtype, name)
    proto.dims.extend(tensor.shape)


def _fill_tensor(proto: Any, tensor: Tensor, name: str) -> None:
    _fill_type(proto, tensor, name)
    data = bytes(tensor.data)
    check_data(tensor.dtype, tensor.shape, data, f"tensor {name!r}")
    proto.raw_data = data
    _fill_notes(proto, tensor.notes)


def _code(dtype: str, name: str) -> int:
    if dtype not in DTYPE_CODES:
        raise ModelError(f"{name!r} has dtype {dtype!r}, which ONNX does not define")
    return DTYPE_CODES[dtype]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
