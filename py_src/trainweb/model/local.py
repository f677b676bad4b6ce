"""Large files and bytes natively, read by ranges: no tensor is held beside them, or beside a session."""

from __future__ import annotations

import os
import weakref

from ..errors import ModelError
from .graph import ITEM_SIZE
from .remote import RangedFile, RemoteTensor

HELD = 1024 * 1024
"""Bytes up to which a file is read at once."""

STAYS_OPEN = os.name != "nt"
"""Windows refuses to replace or remove a file that is open: there files are read at once."""

LONGEST_READ = 1 << 30
"""Bytes that are asked for at once; some systems give no more than 2 GiB."""

Buffer = bytes | bytearray | memoryview


class _LocalFile(RangedFile):
    """A file that only this process can read."""

    def place(self, offset: int, nbytes: int) -> None:
        return None

    def is_transpose(self, a: RemoteTensor, b: RemoteTensor) -> bool:
        return are_transposes(a.data, b.data, a.shape, ITEM_SIZE[a.dtype])


class HeldFile(_LocalFile):
    """Bytes that the caller holds."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self._data = data

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._data[offset : offset + nbytes]


class OpenFile(_LocalFile):
    """A file that stays open while a tensor lies in it; it closes the descriptor. Errors call it `name`."""

    def __init__(self, descriptor: int, name: str) -> None:
        weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._name = descriptor, name
        self._state = self._status()
        super().__init__(self._state[0])

    def read(self, offset: int, nbytes: int) -> bytes:
        parts = []
        while nbytes and self._status() == self._state:
            part = os.pread(self._descriptor, min(nbytes, LONGEST_READ), offset)
            if not part:
                break
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        if nbytes or self._status() != self._state:
            raise ModelError(f"file {self._name!r} was changed after the model was read from it; read the model again")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _status(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


def of_descriptor(descriptor: int, name: str) -> OpenFile | bytes:
    """An open file, which is closed where its tensors no longer need it."""
    if STAYS_OPEN:
        return OpenFile(descriptor, name)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def are_transposes(a: Buffer, b: Buffer, shape: tuple[int, ...], size: int) -> bool:
    """Return whether elements [rows, width] of `size` bytes are bit for bit the transpose of some [width, rows]."""
    rows, width = shape
    left, right = (elements(data, size) for data in (a, b))
    return all(left[j::width] == right[j * rows : (j + 1) * rows] for j in range(width))


def elements(data: Buffer, size: int) -> memoryview:
    """Elements as unsigned integers of their size."""
    flat = memoryview(data).cast("B")
    if size == 1:
        return flat
    if size == 2:
        return flat.cast("H")
    return flat.cast("I") if size == 4 else flat.cast("Q")
