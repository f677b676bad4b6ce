"""The safetensors format, written and read whole; model/safetensors.py has its header."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainweb.errors import CheckpointError
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.safetensors import ALIGNMENT, DTYPES, entries_of, header_of

CODES = {dtype: code for code, dtype in DTYPES.items()}


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
    """The tensors of a file, by name.

    Raises
    ------
    CheckpointError
        It is no such file, is cut off, or says what does not fit: every byte belongs to one tensor.
    """
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
        """Read a file.

        Raises
        ------
        CheckpointError
            It is no such file.
        """
        metadata = header_of(data)[0].get("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise CheckpointError("The metadata of the safetensors file are no texts.")
        return cls(read_safetensors(data), metadata)
