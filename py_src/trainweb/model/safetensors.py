"""The safetensors format: 8 bytes of length, a header of JSON, then the tensors without gaps.

https://huggingface.co/docs/safetensors. Written here because the library of that name is native code, of which there is
no WebAssembly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Self, TypeGuard

from trainweb.errors import CheckpointError
from trainweb.model.checks import MAX_RANK, Encoded
from trainweb.model.graph import ITEM_SIZE, Tensor

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
HEADER_LIMIT = 100_000_000
"""Bytes that a header may have, as in the library."""
TENSOR_LIMIT = 200_000
"""Tensors of a file: the largest mixtures of experts have half as many, in over a hundred files."""
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file: its type, and where its bytes start and stop in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def entries_of(data: Encoded) -> dict[str, Entry]:
    """The tensors of a file, by name; only the header is read.

    Raise CheckpointError unless every byte belongs to one tensor.
    """
    header, length = header_of(data)
    header.pop("__metadata__", None)
    first = ALIGNMENT + length
    places = {name: _place(name, entry) for name, entry in header.items()}
    nbytes, at = len(data) - first, 0
    for name, (start, end, _, _) in sorted(places.items(), key=lambda item: item[1][:2]):
        if start != at or end > nbytes:
            raise CheckpointError(
                f"Tensor {name!r:.80} of the safetensors file lies at {[start, end]!r:.80}; it must start at {at} and "
                f"end within {nbytes} bytes."
            )
        at = end
    if at != nbytes:
        raise CheckpointError(f"The tensors of the safetensors file end at {at}; it has {nbytes} bytes of them.")
    return {n: Entry(dtype, shape, first + start, first + end) for n, (start, end, dtype, shape) in places.items()}


def header_of(data: Encoded) -> tuple[dict[str, Any], int]:
    """The header of a file, and its bytes."""
    if len(data) < ALIGNMENT:
        raise CheckpointError(f"A safetensors file has at least {ALIGNMENT} bytes, this one {len(data)}.")
    (length,) = struct.unpack("<Q", data[:ALIGNMENT])
    if length > HEADER_LIMIT or ALIGNMENT + length > len(data):
        raise CheckpointError(f"The safetensors file has {len(data)} bytes, and its header would have {length}.")
    text = bytes(data[ALIGNMENT : ALIGNMENT + length])
    if text.count(b"data_offsets") > TENSOR_LIMIT:  # before it is parsed, which takes seconds for a million
        raise CheckpointError(f"The safetensors file has more than {TENSOR_LIMIT} tensors, the limit. Split the file.")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"The header of the safetensors file is not JSON: {error!s:.200}") from error
    if not isinstance(header, dict):
        raise CheckpointError("The header of the safetensors file is not an object.")
    return header, length


def _place(name: str, entry: Any) -> tuple[int, int, str, tuple[int, ...]]:
    """Start, end, dtype and shape that a header gives, which fit each other."""
    fields = (entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")) if isinstance(entry, dict) else ()
    code, shape, offsets = fields or (None, None, None)
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise CheckpointError(f"The safetensors header of {name!r:.80} is not what it should be: {entry!r:.80}.")
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(
            f"Tensor {name!r:.80} of the safetensors file has dtype {code!r:.20}; there are {', '.join(DTYPES)}."
        )
    if len(shape) > MAX_RANK or offsets[1] - offsets[0] != prod(shape) * ITEM_SIZE[DTYPES[code]]:
        raise CheckpointError(
            f"Tensor {name!r:.80} of the safetensors file lies at {offsets!r:.80}, which is not the size of {code} of "
            f"shape {shape!r:.80}."
        )
    return offsets[0], offsets[1], DTYPES[code], tuple(shape)


def _naturals(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def write_safetensors(tensors: Iterable[Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file of these tensors, widest elements first and then by name, as the library orders them."""
    ordered = sorted(tensors, key=lambda t: (-ITEM_SIZE[t.dtype], t.name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in ordered:
        place = [at, at + tensor.nbytes]
        header[tensor.name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *(bytes(t.data) for t in ordered)])


def read_safetensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file, by name. Raise CheckpointError as `entries_of`."""
    view = memoryview(data)
    return {
        name: Tensor(name, entry.dtype, entry.shape, bytes(view[entry.start : entry.stop]))
        for name, entry in entries_of(data).items()
    }


@dataclass(slots=True)
class TensorFile:
    """Tensors and texts of a file, by name."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def to_bytes(self) -> bytes:
        """The file."""
        return write_safetensors(self.tensors.values(), self.metadata)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a file. Raise CheckpointError for another format."""
        metadata = header_of(data)[0].get("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise CheckpointError("The metadata of the safetensors file are no texts.")
        return cls(read_safetensors(data), metadata)
