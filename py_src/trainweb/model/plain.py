"""Nodes, attributes and tensors as exporters write most of them, decoded without protobuf.

In a page protobuf is written in Python, and makes an object with dicts of each message. If these functions return None,
protobuf decodes. The classes here have only the fields of its messages that the reader asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from .encoded import SHORT, plain_property

Message = TypeVar("Message")

# Tags: field number and wire type. 0 is a varint, 2 has a size, 5 takes 4 bytes.
INPUT, OUTPUT, NAME, OP_TYPE, ATTRIBUTE, NODE_DOC, DOMAIN, NODE_PROPERTY = (
    k << 3 | 2 for k in (1, 2, 3, 4, 5, 6, 7, 9)
)
ATTRIBUTE_NAME, STRING, STRINGS, ATTRIBUTE_DOC = (k << 3 | 2 for k in (1, 4, 9, 13))
FLOAT, FLOATS, PACKED_FLOATS = 2 << 3 | 5, 7 << 3 | 5, 7 << 3 | 2
INTEGER, INTEGERS, PACKED_INTEGERS = 3 << 3, 8 << 3, 8 << 3 | 2
ATTRIBUTE_TYPE = 20 << 3
DIMS, PACKED_DIMS, DATA_TYPE, LOCATION = 1 << 3, 1 << 3 | 2, 2 << 3, 14 << 3
TENSOR_NAME, RAW_DATA, TENSOR_DOC, EXTERNAL_DATA, TENSOR_PROPERTY = (k << 3 | 2 for k in (8, 9, 12, 13, 16))

LISTS = {6: FLOATS, 7: INTEGERS, 8: STRINGS}
KINDS = {1: FLOAT, 2: INTEGER, 3: STRING, **LISTS}
"""The field that holds the value, by `AttributeProto.AttributeType`."""

WORD = 2**64


@dataclass(slots=True)
class PlainAttribute:
    """An AttributeProto that is a number, a text, or a list of these; a text is bytes."""

    name: str
    type: int
    value: Any
    ref_attr_name: ClassVar[str] = ""


@dataclass(slots=True)
class PlainNode:
    """A NodeProto; attributes and properties are encoded."""

    op_type: str
    domain: str
    name: str
    input: list[str]
    output: list[str]
    attribute: list[bytes]
    metadata_props: list[bytes]
    overload: ClassVar[str] = ""


class Entry(NamedTuple):
    """A StringStringEntryProto."""

    key: str
    value: str


@dataclass(slots=True)
class PlainTensor:
    """A TensorProto with its elements in `raw_data` or in another file."""

    name: str = ""
    data_type: int = 0
    data_location: int = 0
    dims: list[int] = field(default_factory=list)
    raw_data: bytes = b""
    external_data: list[Entry] = field(default_factory=list)
    metadata_props: list[bytes] = field(default_factory=list)
    has_raw_data: bool = False
    float_data: ClassVar[tuple[()]] = ()
    double_data: ClassVar[tuple[()]] = ()
    int32_data: ClassVar[tuple[()]] = ()
    int64_data: ClassVar[tuple[()]] = ()
    uint64_data: ClassVar[tuple[()]] = ()
    string_data: ClassVar[tuple[()]] = ()

    def HasField(self, name: str) -> bool:  # noqa: N802 (protobuf's name)
        """Return whether a field is set, as of a message."""
        return name == "raw_data" and self.has_raw_data


class _OtherError(Exception):
    """Not written as exporters do, or damaged."""


def plain_node(data: bytes) -> PlainNode | None:
    """Decode a NodeProto; None where protobuf must."""
    return _decoded(_node, data)


def plain_attribute(data: bytes) -> PlainAttribute | None:
    """Decode an AttributeProto; None where protobuf must."""
    return _decoded(_attribute, data)


def plain_tensor(data: bytes) -> PlainTensor | None:
    """Decode a TensorProto; None where protobuf must."""
    return _decoded(_tensor, data)


def _decoded(decode: Callable[[bytes], Message], data: bytes) -> Message | None:
    try:
        return decode(data)
    except (_OtherError, IndexError, UnicodeDecodeError, struct.error):
        return None


def _node(data: bytes) -> PlainNode:
    node = PlainNode("", "", "", [], [], [], [])
    at, end = 0, len(data)
    while at < end:
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= SHORT:
            size, at = _number(data, at - 1)
        stop = at + size
        part = data[at:stop]
        if tag == NODE_PROPERTY:
            node.metadata_props.append(part)
        elif tag == INPUT:
            node.input.append(part.decode())
        elif tag == OUTPUT:
            node.output.append(part.decode())
        elif tag == ATTRIBUTE:
            node.attribute.append(part)
        elif tag == NAME:
            node.name = part.decode()
        elif tag == OP_TYPE:
            node.op_type = part.decode()
        elif tag == DOMAIN:
            node.domain = part.decode()
        elif tag == NODE_DOC:
            part.decode()
        else:
            raise _OtherError
        at = stop
    if at != end:
        raise _OtherError
    return node


def _attribute(data: bytes) -> PlainAttribute:
    attribute = PlainAttribute("", 0, None)
    values: list[Any] = []
    kind = 0
    for tag, content in _fields(data):
        if tag == ATTRIBUTE_TYPE:
            attribute.type = content
        elif tag == ATTRIBUTE_NAME:
            attribute.name = content.decode()
        elif tag == ATTRIBUTE_DOC:
            content.decode()
        else:
            used, items = _items(tag, content)
            if kind not in (0, used):
                raise _OtherError
            kind = used
            values += items
    if attribute.type not in KINDS or kind not in (0, KINDS[attribute.type]):
        raise _OtherError
    if attribute.type in LISTS:
        attribute.value = values
    elif values:
        attribute.value = values[-1]
    else:
        raise _OtherError
    return attribute


def _items(tag: int, content: Any) -> tuple[int, list[Any]]:
    """The field of an attribute's value, and the values in it."""
    if tag in (INTEGER, INTEGERS):
        return tag, [_signed(content)]
    if tag in (FLOAT, FLOATS):
        return tag, [*struct.unpack("<f", content)]
    if tag in (STRING, STRINGS):
        return tag, [content]
    if tag == PACKED_INTEGERS:
        return INTEGERS, _signed_numbers(content)
    if tag == PACKED_FLOATS:
        return FLOATS, [*struct.unpack(f"<{len(content) // 4}f", content)]
    raise _OtherError


def _tensor(data: bytes) -> PlainTensor:
    tensor = PlainTensor()
    for tag, content in _fields(data):
        if tag == DIMS:
            tensor.dims.append(_signed(content))
        elif tag == PACKED_DIMS:
            tensor.dims += _signed_numbers(content)
        elif tag == DATA_TYPE and content < SHORT:
            tensor.data_type = content
        elif tag == LOCATION and content <= 1:
            tensor.data_location = content
        elif tag == TENSOR_NAME:
            tensor.name = content.decode()
        elif tag == RAW_DATA:
            tensor.raw_data, tensor.has_raw_data = content, True
        elif tag == EXTERNAL_DATA and (entry := plain_property(content)) is not None:
            tensor.external_data.append(Entry(*entry))
        elif tag == TENSOR_PROPERTY:
            tensor.metadata_props.append(content)
        elif tag == TENSOR_DOC:
            content.decode()
        else:
            raise _OtherError
    return tensor


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The tags of a message's fields, with the number or the bytes in each."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _number(data, at)
        number, at = (4, at) if tag & 7 == 5 else _number(data, at)
        if not tag & 7:
            yield tag, number
        else:
            yield tag, data[at : at + number]
            at += number
    if at != end:
        raise _OtherError


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    byte = data[at]
    if byte < SHORT:
        return byte, at + 1
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < SHORT:
            return number, at
        shift += 7
        if shift > 63:
            raise _OtherError


def _signed(number: int) -> int:
    """The int64 of the same bits."""
    number %= WORD
    return number - WORD if number >= WORD // 2 else number


def _signed_numbers(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = _number(data, at)
        numbers.append(_signed(number))
    return numbers
