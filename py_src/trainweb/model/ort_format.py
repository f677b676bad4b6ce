"""ORT format -> ONNX: the flatbuffer of a `.ort` file becomes the ModelProto that it was converted from.

Fields are numbered as in onnxruntime's `ort.fbs`. Edges of memory, hashes of kernels and recorded optimizations, which
only a runtime needs, are left out. Large tensors stay in the file, with references in their place (`remote.refer`).
https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/flatbuffers/schema/ort.fbs
"""

from __future__ import annotations

from typing import Any

from ..errors import LimitError, ModelError, UnsupportedError
from .checks import INT32_MAX, MAX_RANK, Encoded, Limits, describe_bytes
from .flatbuffer import Buffer, Table
from .graph import Graph, Tensor
from .lazy import LARGE
from .remote import DETACHED, RangedFile, refer
from .schema import messages

IDENTIFIER = b"ORTM"
MAX_NESTING = 30
"""Subgraphs inside each other, as protobuf has them."""
MAX_SEQUENCES = 8
"""Sequences of sequences, of which no operator here has two."""

TENSOR_TYPE, SEQUENCE_TYPE, MAP_TYPE = 1, 2, 3
"""Members of the union `TypeInfoValue`."""
DIM_VALUE, DIM_PARAM = 1, 2
"""`DimensionValueType`."""
ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_STRING, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH = range(1, 6)
"""`AttributeType`, as in ONNX; the same plus 5 are lists of these."""
NO_OFFSET = -1
"""The default of a tensor's external_data_offset."""


def is_ort_format(data: Encoded) -> bool:
    """Tell an ORT format model by its identifier."""
    return bytes(data[4:8]) == IDENTIFIER


def onnx_of_ort(data: bytes | memoryview | RangedFile, limits: Limits) -> bytes:
    """The ONNX model that an ORT format model holds, as bytes of a ModelProto.

    Its large tensors are external data at `remote.LOCATION`, which is the file itself. Raise ModelError for a corrupt
    file, UnsupportedError for tensors in another file, LimitError for too many nodes or levels.
    """
    model = Buffer(data, "ORT format model", ModelError).root().table(1, "the model")
    if model is None:
        raise ModelError(f"the ORT format model has no model in it; {describe_bytes(data)}")
    return _Converter(data, limits).model(model)


def by_use(graph: Graph) -> dict[str, Tensor]:
    """Order the initializers as nodes read them: a file has the order of a hash table."""
    used = dict.fromkeys(name for node in graph.nodes for name in node.inputs if name in graph.initializers)
    return {name: graph.initializers[name] for name in used | graph.initializers}


class _Converter:
    """State of converting one model."""

    def __init__(self, data: bytes | memoryview | RangedFile, limits: Limits) -> None:
        self._data, self._limits = data, limits
        self._nodes = self._depth = 0

    def model(self, table: Table) -> bytes:
        proto = messages().ModelProto()
        proto.ir_version = table.scalar(0, "q", 0, "the IR version")
        for entry in table.tables(1, "opset import") or ():
            opset = proto.opset_import.add()
            opset.domain = entry.string(0, "the domain of an opset import") or ""
            opset.version = entry.scalar(1, "q", 0, "the version of an opset import")
        for field, name in ((2, "producer_name"), (3, "producer_version"), (4, "domain"), (6, "doc_string")):
            setattr(proto, name, table.string(field, f"the {name}") or "")
        proto.model_version = table.scalar(5, "q", 0, "the model version")
        for entry in table.tables(9, "metadata property") or ():
            pair = messages().StringStringEntryProto()
            pair.key, pair.value = (
                entry.string(k, f"the {what} of a property") or "" for k, what in enumerate(("key", "value"))
            )
            proto.metadata_props.append(pair.SerializeToString())
        graph = table.table(7, "the graph")
        if graph is None:
            raise ModelError("the ORT format model has no graph")
        self._graph(graph, proto.graph)
        proto.graph.doc_string = table.string(8, "the text of the graph") or ""
        data: bytes = proto.SerializeToString()
        return data

    def _graph(self, table: Table, proto: Any) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise LimitError(f"the ORT format model has subgraphs nested more than {MAX_NESTING} deep")
        for entry in table.tables(2, "node") or ():
            self._node(entry, proto.node.add())
        for entry in table.tables(0, "initializer") or ():
            self._tensor(entry, proto.initializer.add())
        for entry in table.tables(7, "sparse initializer") or ():
            self._sparse(entry, proto.sparse_initializer.add())
        declared = {}
        for entry in table.tables(1, "node argument") or ():
            value = messages().ValueInfoProto()
            value.name = entry.string(0, "the name of a node argument") or ""
            self._type(entry.table(2, f"the type of {value.name!r}"), value.type)
            declared[value.name] = value
        for field, values, what in ((5, proto.input, "input"), (6, proto.output, "output")):
            for name in table.strings(field, f"graph {what}"):
                values.add().CopyFrom(declared.get(name) or messages().ValueInfoProto(name=name))
        known = {value.name for value in (*proto.input, *proto.output)}
        proto.value_info.extend(
            value.SerializeToString() for name, value in declared.items() if name not in known and value.type.ByteSize()
        )
        self._depth -= 1

    def _node(self, table: Table, proto: Any) -> None:
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            raise LimitError(f"the model has more than {self._limits.nodes} nodes, the limit")
        for field, name in ((0, "name"), (2, "domain"), (5, "op_type")):
            setattr(proto, name, table.string(field, f"the {name} of a node") or "")
        proto.input.extend(table.strings(8, f"input of node {proto.name!r}"))
        proto.output.extend(table.strings(9, f"output of node {proto.name!r}"))
        for entry in table.tables(10, "attribute") or ():
            self._attribute(entry, proto.attribute.add())

    def _attribute(self, table: Table, proto: Any) -> None:
        proto.name = table.string(0, "the name of an attribute") or ""
        what = f"attribute {proto.name!r}"
        kind = table.scalar(2, "i", 0, f"the type of {what}")
        if not ATTRIBUTE_FLOAT <= kind <= 2 * ATTRIBUTE_GRAPH:
            raise ModelError(f"{what} has type {kind}; the ORT format has 1 to {2 * ATTRIBUTE_GRAPH}")
        # From the tensors on ONNX counts these types alike.
        proto.type = kind
        if kind == ATTRIBUTE_FLOAT:
            proto.f = table.scalar(3, "f", 0.0, what)
        elif kind == ATTRIBUTE_INT:
            proto.i = table.scalar(4, "q", 0, what)
        elif kind == ATTRIBUTE_STRING:
            proto.s = (table.string(5, what) or "").encode()
        elif kind == ATTRIBUTE_TENSOR:
            self._tensor(_present(table.table(6, what), what), proto.t)
        elif kind == ATTRIBUTE_GRAPH:
            self._graph(_present(table.table(7, what), what), proto.g)
        else:
            self._list(table, kind - 5, proto, what)

    def _list(self, table: Table, kind: int, proto: Any, what: str) -> None:
        if kind == ATTRIBUTE_FLOAT:
            proto.floats.extend(table.numbers(8, "f", INT32_MAX, what))
        elif kind == ATTRIBUTE_INT:
            proto.ints.extend(table.numbers(9, "q", INT32_MAX, what))
        elif kind == ATTRIBUTE_STRING:
            proto.strings.extend(text.encode() for text in table.strings(10, f"text of {what}"))
        elif kind == ATTRIBUTE_TENSOR:
            for entry in table.tables(11, f"tensor of {what}") or ():
                self._tensor(entry, proto.tensors.add())
        else:
            for entry in table.tables(12, f"graph of {what}") or ():
                self._graph(entry, proto.graphs.add())

    def _tensor(self, table: Table, proto: Any) -> None:
        proto.name = table.string(0, "the name of a tensor") or ""
        what = f"tensor {proto.name!r}"
        proto.dims.extend(table.numbers(2, "q", MAX_RANK, f"the shape of {what}"))
        proto.data_type = table.scalar(3, "i", 0, f"the data type of {what}")
        if table.scalar(6, "q", NO_OFFSET, f"the offset of {what}") != NO_OFFSET:
            raise UnsupportedError(
                f"{what} lies in a file beside the ORT format model, which is not read; give the .onnx file that it "
                "was converted from, with its external data"
            )
        start, nbytes = table.span(4, f"the data of {what}") or (0, 0)
        if nbytes < LARGE or proto.data_type not in DETACHED:
            proto.raw_data = bytes(self._data[start : start + nbytes])
        else:
            refer(proto, start, nbytes)

    def _sparse(self, table: Table, proto: Any) -> None:
        self._tensor(_present(table.table(0, "the values"), "a sparse initializer"), proto.values)
        self._tensor(_present(table.table(1, "the indices"), "a sparse initializer"), proto.indices)
        proto.dims.extend(table.numbers(2, "q", MAX_RANK, "the shape of a sparse initializer"))

    def _type(self, table: Table | None, proto: Any, depth: int = 0) -> None:
        kind = 0 if table is None else table.scalar(1, "B", 0, "the kind of a type")
        held = table.table(2, "a type") if table is not None else None
        if held is None or depth > MAX_SEQUENCES:
            return
        if kind == SEQUENCE_TYPE:
            proto.sequence_type.SetInParent()
            self._type(held.table(0, "the type of elements"), proto.sequence_type.elem_type, depth + 1)
        elif kind == MAP_TYPE:
            proto.map_type.SetInParent()
        elif kind == TENSOR_TYPE:
            proto.tensor_type.elem_type = held.scalar(0, "i", 0, "the data type of a node argument")
            shape = held.table(1, "a shape")
            if shape is not None:
                proto.tensor_type.shape.SetInParent()
                for entry in shape.tables(0, "dimension") or ():
                    self._dim(entry.table(0, "a dimension"), proto.tensor_type.shape.dim.add())

    @staticmethod
    def _dim(table: Table | None, proto: Any) -> None:
        kind = 0 if table is None else table.scalar(0, "b", 0, "the kind of a dimension")
        if table is not None and kind == DIM_VALUE:
            proto.dim_value = table.scalar(1, "q", 0, "a dimension")
        elif table is not None and kind == DIM_PARAM:
            proto.dim_param = table.string(2, "the symbol of a dimension") or ""


def _present(table: Table | None, what: str) -> Table:
    if table is None:
        raise ModelError(f"the ORT format model is corrupt: {what} has no value")
    return table
