"""Tensors whose bytes lie elsewhere, and files that are made of parts: large bytes need not pass through Python.

In a page Python's memory ends at 2 GiB. There the bytes of large tensors stay in the file that the page holds, or in
the kernels' memory; Python knows dtype, shape and place, and the page's worker copies from place to place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from .graph import Tensor

LARGE = 16 * 1024
"""Bytes from which on a tensor stays where it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place of bytes outside Python: a "segment" of a session in kernel memory, or a "file" that the page holds.

    `conversion` names the type of float there and the wanted one; () if they are equal. `rows` counts the rows of the
    matrix there, if its transpose is wanted; else 0.
    """

    kind: str
    index: int
    offset: int
    nbytes: int
    conversion: tuple[str, str] | tuple[()] = ()
    rows: int = 0


class LazyTensor(Tensor):
    """A tensor whose data lies elsewhere. Every use of `data` reads it anew; it is not kept.

    `read_into` fills a writable buffer of as many bytes. Others can read the data at `place`, if it is not None.
    """

    __slots__ = ("_digest", "place", "read_into")

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        read_into: Callable[[memoryview], None],
        place: Place | None = None,
        notes: dict[str, str] | None = None,
    ) -> None:
        self.name, self.dtype, self.shape, self.notes = name, dtype, shape, notes or {}
        self.read_into, self.place = read_into, place
        self._digest = ""

    @property
    def data(self) -> bytes | bytearray | memoryview:
        """A copy of the data."""
        data = bytearray(self.nbytes)
        self.read_into(memoryview(data))
        return data

    @data.setter
    def data(self, value: bytes | bytearray | memoryview) -> None:
        raise AttributeError(f"the data of {self.name!r} lies elsewhere")

    def pieces(self) -> Iterator[bytes | bytearray | memoryview]:
        """The data from its start to its end, not all of it at once where that can be helped."""
        yield self.data

    def digest(self) -> str:
        """SHA-256 of the data, which is read for it once."""
        if not self._digest:
            hashed = hashlib.sha256()
            for piece in self.pieces():
                hashed.update(piece)
            self._digest = hashed.hexdigest()
        return self._digest

    def renamed(self, name: str) -> Tensor:
        return LazyTensor(name, self.dtype, self.shape, self.read_into, self.place, self.notes)


def pieces_of(tensor: Tensor) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
    """The data of a tensor from its start to its end, not all of it at once where that can be helped, with offsets."""
    at = 0
    for piece in tensor.pieces() if isinstance(tensor, LazyTensor) else [memoryview(tensor.data).cast("B")]:
        yield at, piece
        at += len(piece)


def stays_outside(tensor: object) -> TypeGuard[LazyTensor]:
    """Return whether a tensor's data stays outside of Python: it is large, and others can read it where it lies."""
    return isinstance(tensor, LazyTensor) and tensor.place is not None and tensor.nbytes >= LARGE


def form_at_place(tensor: Tensor) -> tuple[str | int, ...]:
    """The types of float at a tensor's place and of it, and rows of a matrix to transpose; empty for the same form."""
    place = tensor.place if isinstance(tensor, LazyTensor) else None
    if place is None or not place.rows:
        return () if place is None else place.conversion
    return *(place.conversion or (tensor.dtype, tensor.dtype)), place.rows


def identity(tensor: Tensor) -> Hashable:
    """Equal for tensors that are equal but for their names; data that lies elsewhere counts by its place."""
    place = tensor.place if isinstance(tensor, LazyTensor) else None
    return tensor.dtype, tensor.shape, bytes(tensor.data) if place is None else place


Part = bytes | bytearray | memoryview | LazyTensor
"""Bytes of a file, or a tensor whose data comes there."""


def data_part(tensor: Tensor) -> Part:
    """The data of a tensor as a part of a file."""
    return tensor if isinstance(tensor, LazyTensor) else memoryview(tensor.data).cast("B")


def nbytes_of(part: Part) -> int:
    """Bytes that a part has in the file."""
    return part.nbytes if isinstance(part, LazyTensor) else len(part)


def join_parts(parts: Iterable[Part]) -> bytes:
    """The file as bytes."""
    parts = list(parts)
    if not any(isinstance(part, LazyTensor) for part in parts):
        return b"".join(parts)  # type: ignore[arg-type]
    file, at = bytearray(sum(map(nbytes_of, parts))), 0
    with memoryview(file) as view:
        for part in parts:
            end = at + nbytes_of(part)
            if isinstance(part, LazyTensor):
                if end > at:
                    part.read_into(view[at:end])
            else:
                view[at:end] = part
            at = end
    return bytes(file)
