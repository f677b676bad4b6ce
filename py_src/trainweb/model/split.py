"""A model taken apart before protobuf sees it: nodes, constants and value infos are decoded one by one.

There are thousands of them, which `trainweb.model.plain` decodes faster; the rest is one small message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import LimitError, ModelError
from .checks import (
    FUNCTION_NODE,
    GRAPH_NODE,
    MODEL_FUNCTION,
    MODEL_GRAPH,
    Limits,
    TruncatedError,
    describe_bytes,
    message_fields,
    varint,
)
from .encoded import parse
from .plain import plain_node, plain_tensor
from .remote import FUNCTION, GRAPH_INITIALIZER, NODE, TENSOR, Form, RangedFile, detach
from .schema import messages

ENTRIES_PER_NODE = 8
"""A graph may have so many fields per allowed node: inputs, initializers, value infos, nodes. A model may have one."""
GRAPH_VALUE_INFO = 13
LENGTH_DELIMITED = 2

Range = tuple[int, int]


class SplitModel:
    """A model in its encoded form: `proto` is without nodes, initializers and value infos of the main graph.

    Large tensors of a RangedFile stay there. Nodes are counted before they are decoded: a graph of 2-byte empty nodes
    would grow a thousandfold. Raise ModelError, which says where a file is cut off, for damage at the outermost levels,
    and LimitError for too many nodes.
    """

    def __init__(self, data: bytes | RangedFile, limits: Limits) -> None:
        self._data = data
        self._where = f"; {describe_bytes(data)}"
        self._parts: dict[int, list[Range]] = {GRAPH_NODE: [], GRAPH_INITIALIZER: [], GRAPH_VALUE_INFO: []}
        self._nodes = self._entries = 0
        self._most = ENTRIES_PER_NODE * limits.nodes + 1000
        try:
            rest = self._split()
        except TruncatedError as error:
            raise ModelError(f"the model is not valid ONNX: {error}{self._where}") from error
        if self._nodes > limits.nodes:
            raise LimitError(f"the model has {self._nodes} nodes; the limit is {limits.nodes}")
        self.proto: Any = parse(messages().ModelProto(), rest, self._where)
        if not self.proto.HasField("graph"):
            raise ModelError(f"the model has no graph{self._where}")

    def nodes(self) -> Iterator[Any]:
        """The nodes of the main graph: PlainNode or NodeProto."""
        return self._messages(GRAPH_NODE, NODE, plain_node, messages().NodeProto)

    def initializers(self) -> Iterator[Any]:
        """The initializers of the main graph: PlainTensor or TensorProto."""
        return self._messages(GRAPH_INITIALIZER, TENSOR, plain_tensor, messages().TensorProto)

    def value_info(self) -> Iterator[bytes]:
        """The value infos of the main graph, encoded."""
        return (self._data[start:stop] for start, stop in self._parts[GRAPH_VALUE_INFO])

    def protos(self) -> Iterator[Any]:
        """All of the model as protobuf decodes it, in parts."""
        yield self.proto
        for field, form, kind in (
            (GRAPH_NODE, NODE, messages().NodeProto),
            (GRAPH_INITIALIZER, TENSOR, messages().TensorProto),
            (GRAPH_VALUE_INFO, {}, messages().ValueInfoProto),
        ):
            yield from self._messages(field, form, lambda data: None, kind)

    def _messages(
        self, field: int, form: Form, plain: Callable[[bytes], Any], kind: Callable[[], Any]
    ) -> Iterator[Any]:
        for start, stop in self._parts[field]:
            data = self._cut(start, stop, form)
            yield plain(data) or parse(kind(), data, self._where)

    def _cut(self, start: int, stop: int, form: Form) -> bytes:
        data = self._data
        return detach(data, start, stop, form) if isinstance(data, RangedFile) else data[start:stop]

    def _fields(self, start: int, stop: int, weight: int = 1) -> Iterator[tuple[int, int, int, int, int]]:
        """The fields of a message, which are counted: a damaged file may hold millions of empty ones."""
        for field in message_fields(self._data, start, stop):
            self._entries += weight
            if self._entries > self._most:
                raise LimitError(f"the model has more fields before byte {field[2]} than its limit of nodes allows")
            yield field

    def _split(self) -> bytes:
        """Find the parts; returns the rest."""
        data, rest, copied = self._data, bytearray(), 0
        for field, kind, begin, start, stop in self._fields(0, len(data), ENTRIES_PER_NODE):
            if kind != LENGTH_DELIMITED or field not in (MODEL_GRAPH, MODEL_FUNCTION):
                continue
            if field == MODEL_GRAPH:
                changed = self._split_graph(start, stop)
            else:
                inner = self._fields(start, stop)
                self._nodes += sum(n == FUNCTION_NODE and kind == LENGTH_DELIMITED for n, kind, *_ in inner)
                changed = self._cut(start, stop, FUNCTION)
            rest += data[copied:begin]
            rest += varint(field << 3 | LENGTH_DELIMITED) + varint(len(changed)) + changed
            copied = stop
        return bytes(rest + data[copied : len(data)])

    def _split_graph(self, start: int, stop: int) -> bytes:
        data, rest, copied = self._data, bytearray(), start
        for field, kind, begin, at, end in self._fields(start, stop):
            if kind == LENGTH_DELIMITED and field in self._parts:
                self._nodes += field == GRAPH_NODE
                self._parts[field].append((at, end))
                if copied < begin:
                    rest += data[copied:begin]
                copied = end
        return bytes(rest + data[copied:stop])
