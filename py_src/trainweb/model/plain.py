"""Nodes, attributes and tensors as exporters write most of them, decoded without protobuf.

In a page protobuf is written in Python, and makes an object with dicts of each message. If these functions return None,
protobuf decodes. The classes here have only the fields of its messages that the reader asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
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
ATTRIBUTE_TYPE = bytes((0xA0, 0x01))  # field 20, a varint
DIMS, PACKED_DIMS, DATA_TYPE, LOCATION = 1 << 3, 1 << 3 | 2, 2 << 3, 14 << 3
TENSOR_NAME, RAW_DATA, TENSOR_DOC, EXTERNAL_DATA = (k << 3 | 2 for k in (8, 9, 12, 13))
TENSOR_PROPERTY = bytes((0x82, 0x01))  # field 16, with a size

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
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag == ATTRIBUTE_TYPE[0]:
            if data[at + 1] != ATTRIBUTE_TYPE[1]:
                raise _OtherError
            attribute.type, at = data[at + 2], at + 3
            continue
        used, given, at = _attribute_field(data, tag, at + 1, attribute)
        if kind and used and used != kind:
            raise _OtherError
        kind = kind or used
        values += given
    if at != end or attribute.type not in KINDS or kind not in (0, KINDS[attribute.type]):
        raise _OtherError
    if attribute.type in LISTS:
        attribute.value = values
    elif values:
        attribute.value = values[-1]
    else:
        raise _OtherError
    return attribute


def _attribute_field(data: bytes, tag: int, at: int, attribute: PlainAttribute) -> tuple[int, list[Any], int]:
    """The field of the value (0: another field), what is in it, and where the next field begins."""
    if tag in (INTEGER, INTEGERS):
        number, at = _signed(data, at)
        return tag, [number], at
    if tag in (FLOAT, FLOATS):
        return tag, [*struct.unpack_from("<f", data, at)], at + 4
    size, at = _number(data, at)
    stop = at + size
    part = data[at:stop]
    if len(part) != size:
        raise _OtherError
    if tag == ATTRIBUTE_NAME:
        attribute.name = part.decode()
    elif tag == ATTRIBUTE_DOC:
        part.decode()
    elif tag in (STRING, STRINGS):
        return tag, [part], stop
    elif tag == PACKED_INTEGERS:
        return INTEGERS, _signed_numbers(part), stop
    elif tag == PACKED_FLOATS:
        return FLOATS, [*struct.unpack(f"<{size // 4}f", part)], stop
    else:
        raise _OtherError
    return 0, [], stop


def _tensor(data: bytes) -> PlainTensor:
    tensor = PlainTensor()
    at, end = 0, len(data)
    while at < end:
        tag, at = data[at], at + 1
        if tag == DIMS:
            dim, at = _signed(data, at)
            tensor.dims.append(dim)
            continue
        if tag in (DATA_TYPE, LOCATION):
            number, at = data[at], at + 1
            if number >= SHORT or (tag == LOCATION and number > 1):
                raise _OtherError
            if tag == DATA_TYPE:
                tensor.data_type = number
            else:
                tensor.data_location = number
            continue
        if tag == TENSOR_PROPERTY[0]:
            if data[at] != TENSOR_PROPERTY[1]:
                raise _OtherError
            at += 1
        size, at = _number(data, at)
        stop = at + size
        part = data[at:stop]
        if tag == TENSOR_NAME:
            tensor.name = part.decode()
        elif tag == RAW_DATA:
            tensor.raw_data, tensor.has_raw_data = part, True
        elif tag == EXTERNAL_DATA:
            entry = plain_property(part)
            if entry is None:
                raise _OtherError
            tensor.external_data.append(Entry(*entry))
        elif tag == TENSOR_PROPERTY[0]:
            tensor.metadata_props.append(part)
        elif tag == PACKED_DIMS:
            tensor.dims += _signed_numbers(part)
        elif tag == TENSOR_DOC:
            part.decode()
        else:
            raise _OtherError
        at = stop
    if at != end:
        raise _OtherError
    return tensor


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


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """An int64, and where it ends."""
    number, at = _number(data, at)
    number %= WORD
    return (number - WORD if number >= WORD // 2 else number), at


def _signed_numbers(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = _signed(data, at)
        numbers.append(number)
    return numbers
