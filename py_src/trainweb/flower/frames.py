"""Messages between the bridge and a page: a WebSocket message is a header of JSON and the numbers of its arrays.

Bytes 0 to 3 are the length of the header (little-endian). Then come the header in UTF-8, and the numbers of all arrays,
one after the other, as little-endian float32. `web/src/federated/frames.ts` is the same.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

VERSION = 1
"""Version of the messages; a page of another one is refused."""
MAX_HEADER = 1 << 20
"""Bytes: names and shapes of some ten thousand parameters."""
MAX_RANK = 16
MAX_NUMBERS = 2**53
"""Product of all sizes that are not 0, of an array; numpy counts the bytes of an empty one, too, and has 63 bits."""

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, np.ndarray]
KINDS = ("train", "evaluate")
"""Kinds of tasks that a page can do."""


@dataclass(frozen=True)
class Task:
    """A node's task, which its answer names by `id`.

    `kind` is "train" or "evaluate"; others are refused. `config` has numbers, strings, truth values and lists of them.
    `arrays` are the common parameters.
    """

    id: str
    kind: str
    config: Mapping[str, Any]
    arrays: Arrays


class BadMessageError(Exception):
    """A page's message is not valid; its text says what is wrong with it."""


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Pack a message. Raise ValueError for a number in the header that is not finite."""
    payload = arrays or {}
    described = [{"name": name, "shape": list(array.shape)} for name, array in payload.items()]
    text = json.dumps({**header, "arrays": described}, allow_nan=False).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(a.astype("<f4").tobytes() for a in payload.values())])


def unpack(message: bytes | str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a message. Raise BadMessageError for what is no message."""
    if isinstance(message, str):
        raise BadMessageError("a text message; messages are binary")
    if len(message) < 4:
        raise BadMessageError(f"a message of {len(message)} bytes")
    (length,) = struct.unpack_from("<I", message)
    if length > min(MAX_HEADER, len(message) - 4):
        raise BadMessageError(f"a header of {length} bytes in a message of {len(message)}")
    try:
        header = json.loads(message[4 : 4 + length].decode(), parse_constant=_refuse)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BadMessageError(f"a header that is not JSON ({type(error).__name__})") from None
    if not isinstance(header, dict):
        raise BadMessageError("a header that is not an object")
    shapes = read_shapes(header.pop("arrays", []))
    return header, _arrays(shapes, memoryview(message)[4 + length :])


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def read_shapes(fields: object) -> Shapes:
    """Shapes by name, from a header. Raise BadMessageError for what are no shapes."""
    if not isinstance(fields, list):
        raise BadMessageError("arrays that are no list")
    shapes: Shapes = {}
    for item in fields:
        name, shape = (item.get("name"), item.get("shape")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > MAX_RANK:
            raise BadMessageError("an array without a name and a shape")
        if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise BadMessageError(f"the shape {shape!r:.80} of {name!r:.80}")
        if math.prod(size or 1 for size in shape) > MAX_NUMBERS:
            raise BadMessageError(f"the shape {shape!r:.80} of {name!r:.80}, too large even where a size is 0")
        if name in shapes:
            raise BadMessageError(f"two arrays of the name {name!r:.80}")
        if name != name.encode(errors="replace").decode():
            raise BadMessageError(f"the name {name!r:.80}, which is not text")
        shapes[name] = tuple(shape)
    return shapes


def _arrays(shapes: Shapes, payload: memoryview) -> Arrays:
    sizes = [math.prod(shape) for shape in shapes.values()]
    if 4 * sum(sizes) != len(payload):
        raise BadMessageError(f"{len(payload)} bytes of numbers for arrays of {4 * sum(sizes)}")
    arrays: Arrays = {}
    start = 0
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        arrays[name] = np.frombuffer(payload, "<f4", size, start).astype(np.float32).reshape(shape)
        start += 4 * size
    return arrays


def difference(wanted: Mapping[str, tuple[int, ...]], arrays: Iterable[tuple[str, tuple[int, ...]]]) -> str | None:
    """Describe the first difference between names and shapes and the wanted ones; None: they are."""
    shapes = dict(arrays)
    for name, shape in wanted.items():
        if name not in shapes:
            return f"{name!r:.80} is missing"
        if shapes[name] != shape:
            return f"{name!r:.80} has the shape {list(shapes[name])}, expected {list(shape)}"
    others = [name for name in shapes if name not in wanted]
    return f"{others[0]!r:.80} is not among the parameters" if others else None
