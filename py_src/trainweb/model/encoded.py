"""Messages that the schema leaves encoded: properties and types of edges, of which exporters write thousands.

Python's own protobuf, which a page uses, takes a third of the time of opening a model for them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import ModelError
from .checks import check_name
from .graph import EXPORTER_NOTES, FX_NODE
from .schema import messages

TELLS = re.compile(r"%detach|aten\.(_?embedding|(max|min)\.dim\b|clamp\.Tensor|cross_entropy_loss)")
"""The kinds of the exporter's own nodes that matter."""
_NAMES = re.compile(r"%[pbc]_|%(new_)?(ones|zeros|full)|%clone|_norm")
"""These tell which of equal tensors a node reads: parameters, buffers and constants among its arguments, and norms."""
KEPT_KEYS = frozenset(key.encode() for key in EXPORTER_NOTES)

# Tags of the fields of a length up to 127, field number and wire type; the byte after a tag is that length.
NAME, TYPE, PROPERTY = 1 << 3 | 2, 2 << 3 | 2, 4 << 3 | 2
TENSOR_TYPE, ELEMENT_TYPE, SHAPE = 1 << 3 | 2, 1 << 3, 2 << 3 | 2
DIM, DIM_VALUE = 1 << 3 | 2, 1 << 3
KEY, VALUE = 1 << 3 | 2, 2 << 3 | 2
SHORT = 0x80


def parse(message: Any, data: bytes, where: str = "") -> Any:
    """Decode bytes into a message. Raise ModelError for other bytes; `where` says what more is known of them."""
    from google.protobuf.message import DecodeError

    try:
        message.MergeFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"the model is not valid ONNX: {error}{where}") from error
    except (ValueError, IndexError, OverflowError, RecursionError, struct.error) as error:
        # the pure-python implementation lets these through on some malformed messages
        raise ModelError(f"the model is not valid ONNX: {error!r}{where}") from error
    return message


def properties(entries: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Keys and values of metadata_props."""
    for data in entries:
        plain = plain_property(data)
        if plain:
            yield plain
            continue
        entry = parse(messages().StringStringEntryProto(), data)
        yield check_name(entry.key, "a metadata key"), check_name(entry.value, "a metadata value")


def plain_property(data: bytes) -> tuple[str, str] | None:
    """Key and value, in this order, of sizes that take one and at most two bytes; None for all others."""
    try:
        if data[0] != KEY or data[1] >= SHORT:
            return None
        middle = 2 + data[1]
        size, start = data[middle + 1], middle + 2
        if size >= SHORT:
            size, start = size & 0x7F | data[start] << 7, start + 1
            if data[start - 1] >= SHORT:
                return None
        if data[middle] != VALUE or start + size != len(data):
            return None
        return data[2:middle].decode(), data[start:].decode()
    except (IndexError, UnicodeDecodeError):
        return None


def notes(entries: Sequence[bytes]) -> dict[str, str]:
    """Return the notes of exporters that decisions need; others are not looked into."""
    if not entries:
        return {}
    # Python's protobuf goes through a copy faster than through its own list.
    entries_read = properties(data for data in entries[:] if _may_be_kept(data))
    return {
        key: value
        for key, value in entries_read
        if key in EXPORTER_NOTES and (key != FX_NODE or TELLS.search(value) or _NAMES.search(value))
    }


def _may_be_kept(data: bytes) -> bool:
    # Serializers write the key first.
    return not (len(data) > 1 and data[0] == KEY and data[1] < SHORT) or data[2 : 2 + data[1]] in KEPT_KEYS


def encode_property(key: str, value: str) -> bytes:
    """An entry of metadata_props."""
    data: bytes = messages().StringStringEntryProto(key=key, value=value).SerializeToString()
    return data


@dataclass(slots=True)
class Declaration:
    """The content of a ValueInfoProto for a tensor whose sizes are all known; `code` is ONNX's of its type."""

    name: str
    code: int
    shape: tuple[int, ...]
    properties: list[bytes]


def plain_declaration(data: bytes) -> Declaration | None:
    """Decode a ValueInfoProto as exporters write most of them; None for all others, which protobuf decodes."""
    try:
        if data[0] != NAME or data[1] >= SHORT:
            return None
        at = 2 + data[1]
        kind = at + 2
        if data[at] != TYPE or data[at + 1] >= SHORT:
            return None
        end = kind + data[at + 1]
        type_and_shape = _plain_type(data[kind:end])
        if type_and_shape is None:
            return None
        declaration = Declaration(data[2:at].decode(), *type_and_shape, [])
        while end < len(data):
            if data[end] != PROPERTY or data[end + 1] >= SHORT:
                return None
            start, end = end + 2, end + 2 + data[end + 1]
            declaration.properties.append(data[start:end])
        return declaration if end == len(data) else None
    except (IndexError, UnicodeDecodeError):
        return None


@lru_cache(maxsize=256)
def _plain_type(data: bytes) -> tuple[int, tuple[int, ...]] | None:
    """ONNX's code and the shape of a TypeProto that is a tensor of one-byte type with sizes; few types are many's."""
    end = len(data)
    if data[0] != TENSOR_TYPE or 2 + data[1] != end:
        return None
    if data[2] != ELEMENT_TYPE or data[3] >= SHORT:
        return None
    if data[4] != SHAPE or 6 + data[5] != end:
        return None
    shape, at = [], 6
    while at < end:
        stop = at + 2 + data[at + 1]
        if data[at] != DIM or data[at + 2] != DIM_VALUE or stop > end:
            return None
        size = shift = 0
        for byte in data[at + 3 : stop]:
            size |= (byte & 0x7F) << shift
            shift += 7
        # Exactly one varint: all of its bytes but the last have the continuation bit.
        if not 0 < shift < 63 or data[stop - 1] >= SHORT or (shift > 7 and min(data[at + 3 : stop - 1]) < SHORT):
            return None
        shape.append(size)
        at = stop
    return (data[3], tuple(shape)) if at == end else None
