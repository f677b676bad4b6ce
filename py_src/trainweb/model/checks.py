"""Limits, and the checks that a model passes before anything else looks at it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Protocol, SupportsBytes, cast, overload

from ..errors import LimitError, ModelError, UnsupportedError
from ..spelling import ARGUMENT
from .graph import ITEM_SIZE, LOOP_ITERATIONS, NIBBLES, Dim, Graph, Node, data_bytes

ONNX_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
    27: "float6e2m3",
    28: "float6e3m2",
}
"""Names of the values of `TensorProto.DataType`; those neither in `ITEM_SIZE` nor in `NIBBLES` are refused."""

DTYPE_CODES = {name: code for code, name in ONNX_DTYPES.items()}

OLDEST_OPSET, NEWEST_OPSET = 7, 28
"""Versions of ai.onnx that the operators here are written for; a test compares with `onnx`."""

MAX_RANK = 64
"""Beyond every operator's definition; a longer shape is an attack."""

MAX_DIM = 2**31 - 1
"""Kernels count elements with int32."""

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest costs of a model or request; beyond is a `LimitError`. Defaults leave real models room.

    Attributes
    ----------
    arena_bytes : int
        Bytes of all tensors together: 4 GiB, the size of a WebAssembly memory.
    nodes : int
        Nodes after inlining functions: 250 000, some fifty times the training graph of a 24-layer
        transformer.
    loop_iterations : int
        Iterations of a Loop whose end is only known as it runs: 1024. At most 65 535; a session that trains keeps what
        each of so many iterations starts from.
    file_bytes : int
        Bytes of one model or checkpoint: 2 GiB - 1, the most that protobuf and flatbuffers can
        hold.
    """

    arena_bytes: int = 4 * 2**30
    nodes: int = 250_000
    loop_iterations: int = LOOP_ITERATIONS
    file_bytes: int = 2**31 - 1

    @classmethod
    def of(cls, limits: Limits | Mapping[str, int] | None) -> Limits:
        """Limits from a dict that names some of them; the others keep their defaults."""
        if isinstance(limits, Limits):
            return limits
        if limits is not None and not isinstance(limits, Mapping):
            raise TypeError(f"limits must be a dict, got {type(limits).__name__}")
        known = [field.name for field in fields(cls)]
        for name, value in (limits or {}).items():
            if name not in known:
                raise LimitError(f"unknown limit {name!r}; there are {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise LimitError(f"limit {name} must be a whole number >= 0, not {value!r}")
        return cls(**(limits or {}))


def check_name(value: str | bytes, what: str) -> str:
    """`value` when it is text: protobuf hands out strings that are no UTF-8 as bytes."""
    if type(value) is not str:
        raise ModelError(f"{what} is not UTF-8: {value[:40]!r}")
    return value


def check_dtype(code: int, what: str) -> str:
    """The name of a `TensorProto.DataType`, one that tensors here can have."""
    name = ONNX_DTYPES.get(code)
    if name is None:
        raise ModelError(f"{what} has unknown data type {code}; ONNX has 1 to {max(ONNX_DTYPES)}")
    if name not in ITEM_SIZE and name not in NIBBLES:
        advice = ": fit a classifier with integers as classes" if name == "string" else ""
        raise UnsupportedError(f"{what} has data type {name}, which is not supported{advice}")
    return name


def check_shape(dims: Iterable[int], what: str) -> tuple[int, ...]:
    """The shape of a constant: sizes that are not negative, not too many, none too large."""
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise LimitError(f"{what} has rank {len(shape)}; at most {MAX_RANK} is supported")
    for axis, size in enumerate(shape):
        if size < 0:
            raise ModelError(f"{what} has negative size {size} in dimension {axis}")
        if size > MAX_DIM:
            raise LimitError(f"{what} has size {size} in dimension {axis}; at most {MAX_DIM} is supported")
    return shape


def check_dims(dims: Iterable[Dim], what: str) -> tuple[Dim, ...]:
    """The declared shape of an edge, where a size may be a symbol or unknown."""
    shape = tuple(dims)
    check_shape((dim if isinstance(dim, int) else 0 for dim in shape), what)
    return shape


def check_data(
    dtype: str,
    shape: tuple[int, ...],
    data: Sized,
    what: str,
    error: type[Exception] = ModelError,
) -> None:
    """Check that `data` holds just the elements of the shape, and that its booleans are 0 or 1."""
    check_size(dtype, shape, len(data), what, error)
    if dtype == "bool" and bytes(cast(SupportsBytes, data)).translate(None, b"\0\1"):
        raise error(f"{what} is bool but has bytes other than 0 and 1")


def check_size(dtype: str, shape: tuple[int, ...], nbytes: int, what: str, error: type[Exception] = ModelError) -> None:
    """Check that so many bytes are the elements of the shape."""
    needed = data_bytes(dtype, prod(shape))
    if nbytes != needed:
        hint = ". If another file has them, give 'weights'. A folder has them in model.safetensors."
        elsewhere = "" if nbytes or error is not ModelError else hint
        raise error(f"{what} has {nbytes} bytes of data; {dtype} {list(shape)} needs {needed}{elsewhere}")


# --- the bytes of a model, before protobuf makes objects of them


class Encoded(Protocol):
    """The bytes of a file, wherever they are."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes | memoryview: ...


class TruncatedError(ValueError):
    """A field reaches beyond the end of its message, or is no field."""


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: Encoded, pos: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, pos
        shift += 7
    raise TruncatedError(f"the number at byte {pos} does not end")


def message_fields(data: Encoded, pos: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, begin, start, stop) of the fields of a message between two positions.

    `begin` is where the field begins, `start` where what it holds does; both end at `stop`.
    """
    while pos < end:
        at = pos
        head = data[pos : min(pos + 3, end)]
        if len(head) == 3 and head[0] & 0x87 == 2 and head[2] < 0x80:
            # Most fields: a tag of one byte, a size of one or two.
            tag, kind = head[0], 2
            size, start = (head[1], pos + 2) if head[1] < 0x80 else (head[1] & 0x7F | head[2] << 7, pos + 3)
        else:
            tag, pos = _read_varint(data, pos, end)
            kind, start = tag & 7, pos
            size, start = _read_varint(data, pos, end) if kind == 2 else (0, start)
        if tag < 8:
            raise TruncatedError(f"the field at byte {at} has number 0, which no message has")
        if kind == 2:
            if size > end - start:
                raise TruncatedError(f"field {tag >> 3} at byte {at} says it has {size} bytes, {end - start} are left")
            pos = start + size
        elif kind == 0:
            _, pos = _read_varint(data, pos, end)
        elif kind in (1, 5):
            pos += 8 if kind == 1 else 4
        else:
            raise TruncatedError(f"field {tag >> 3} at byte {at} has wire type {kind}, which ONNX does not use")
        yield tag >> 3, kind, at, start, pos
    if pos > end:
        raise TruncatedError(f"the message ends at byte {end}, within a number")


MODEL_GRAPH, MODEL_FUNCTION, GRAPH_NODE, FUNCTION_NODE = 7, 25, 1, 7
"""Field numbers in onnx.proto."""

FOREIGN = (
    (b"\x1f\x8b", "gzip data"),
    (b"PK\x03\x04", "a zip archive"),
    (
        b"version https://git-lfs",
        "a git-lfs pointer (the file itself was not fetched: run `git lfs pull`)",
    ),
    (b"<", "HTML or XML, perhaps an error page of a web server"),
    (b"{", "JSON"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x80\x02", "a Python pickle"),
)


def describe_bytes(data: Encoded) -> str:
    """Describe the start of a file, for an error message."""
    head = bytes(data[:64])
    if not head:
        return "it is empty"
    if head[4:8] == b"ORTM":
        return "it looks like an ORT format model (.ort)"
    if head[4:8] == b"ODTC":
        return "it looks like a checkpoint"
    for magic, what in FOREIGN:
        if head.lstrip().startswith(magic) or head.startswith(magic):
            return f"it looks like {what}"
    return f"it starts with {head[:8].hex(' ')}"


# --- the order of nodes


Reader = Node | str
"""The reader of an edge, for messages."""


def captured(node: Node, free: Mapping[int, Mapping[str, Reader]]) -> Iterator[tuple[str, Reader]]:
    """(name, who reads it) of the outer edges that the subgraphs of `node` read.

    `free` has these per subgraph, by `id`.
    """
    for graph in node.bodies():
        yield from free[id(graph)].items()


def check_edges(graph: Graph, free: Mapping[int, Mapping[str, Reader]]) -> dict[str, Reader]:
    """Check that every edge has one definition, and put the nodes in an order that can be executed.

    `free` has names that subgraphs read from here, by `id` of the subgraph. Return names that nothing in this graph
    defines, with what reads each: edges of an outer graph, or errors.
    """
    maker = _makers(graph)
    outer: dict[str, Reader] = {}
    needs: list[list[int]] = []
    in_order = True
    for index, node in enumerate(graph.nodes):
        before = set()
        edges: list[tuple[str, Reader]] = [(name, node) for name in node.inputs if name]
        for name, reader in (*edges, *captured(node, free)):
            made_by = maker.get(name)
            if made_by is None:
                outer.setdefault(name, reader)
            elif made_by >= 0:
                before.add(made_by)
                in_order = in_order and made_by < index
        needs.append(sorted(before))
    if not in_order:
        graph.nodes[:] = _sorted_nodes(graph.nodes, needs)
    for value in graph.outputs:
        if value.name not in maker:
            outer.setdefault(value.name, f"the outputs of graph {graph.name!r}")
    return outer


def _makers(graph: Graph) -> dict[str, int]:
    """The index of the node that makes each edge, -1 for inputs and initializers."""
    maker: dict[str, int] = {}
    for value in graph.inputs:
        if value.name in maker:
            raise ModelError(f"graph {graph.name!r} has two inputs named {value.name!r}")
        maker[value.name] = -1
    maker.update(dict.fromkeys(graph.initializers, -1))
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name and name in maker:
                other = maker[name]
                what = str(graph.nodes[other]) if other >= 0 else "a graph input or initializer"
                raise ModelError(f"{node} makes {name!r}, which {what} defines already")
            if name:
                maker[name] = index
    return maker


def _sorted_nodes(nodes: list[Node], needs: list[list[int]]) -> list[Node]:
    """Kahn's algorithm; among the nodes that are ready, the one that stood first goes first."""
    waiting = [len(before) for before in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for index, before in enumerate(needs):
        for made_by in before:
            users[made_by].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for user in users[index]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        raise ModelError(f"the graph has a cycle: {_describe_cycle(nodes, needs, waiting)}")
    return order


def _describe_cycle(nodes: list[Node], needs: list[list[int]], waiting: list[int]) -> str:
    index = next(i for i, count in enumerate(waiting) if count)
    path: dict[int, None] = {}
    while index not in path:
        path[index] = None
        index = next(before for before in needs[index] if waiting[before])
    walk = list(path)
    cycle = [str(nodes[i]) for i in walk[walk.index(index) :]][::-1]
    shown = cycle if len(cycle) <= 6 else [*cycle[:5], f"{len(cycle) - 5} more"]
    return " -> ".join([*shown, cycle[0]])


def check_opsets(imports: Iterable[Any], where: str) -> dict[str, int]:
    """Opset version by domain, from `opset_import`."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = check_name(entry.domain, f"a domain in the opset imports of {where}")
        domain = "" if domain == "ai.onnx" else domain
        if not 1 <= entry.version <= INT32_MAX:
            raise ModelError(f"{where} imports opset {entry.version} of domain {domain or 'ai.onnx'!r}")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{where} imports opsets {opsets[domain]} and {entry.version} of domain {domain or 'ai.onnx'!r}"
            )
    if not OLDEST_OPSET <= opsets.get("", OLDEST_OPSET) <= NEWEST_OPSET:
        raise UnsupportedError(
            f"{where} uses opset {opsets['']} of ai.onnx; {OLDEST_OPSET} to {NEWEST_OPSET} are supported",
            domain="",
            opset=opsets[""],
        )
    return opsets


def check_memory_budget(budget: object) -> int | None:
    """The option memory_budget of a session, if it is a number of bytes; None for no budget."""
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
        raise LimitError(f"The option {ARGUMENT.memory_budget!r} must be a whole number of bytes >= 1, not {budget!r}.")
    return budget
