"""Protobuf messages written by hand, so that they may be wrong."""

VARINT, FIXED64, LEN, GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def sub(field: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return tag(field, LEN) + varint(len(payload)) + payload


def number(field: int, value: int) -> bytes:
    return tag(field, VARINT) + varint(value % 2**64)


HEADER = number(1, 10) + sub(8, number(2, 17))
"""IR version 10, opset 17."""


def model(graph: bytes, header: bytes = HEADER) -> bytes:
    return header + sub(7, graph)


def node(op: bytes, inputs: list[bytes], outputs: list[bytes], rest: bytes = b"") -> bytes:
    edges = b"".join(sub(1, name) for name in inputs) + b"".join(sub(2, name) for name in outputs)
    return sub(1, edges + sub(4, op) + rest)


def nested_ifs(depth: int) -> bytes:
    """A graph with `depth` subgraphs inside each other, built from the inside in linear time."""
    graph = b""
    for _ in range(depth):
        attribute = sub(1, b"then_branch") + sub(6, graph) + number(20, 5)
        graph = node(b"If", [b"c"], [b"y"], sub(5, attribute))
    return graph
