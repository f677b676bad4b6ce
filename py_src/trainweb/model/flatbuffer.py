"""Bounds-checked reading of flatbuffers: what the C++ verifier checks, checked at each access.

A flatbuffer is tables, vectors and strings that point at each other by relative offsets. A table
starts with the (signed, backward) offset of its vtable, which lists where in the table each field
lies. Nothing in a file is believed: positions, alignment, sizes and terminators are checked before
they are used. https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ..errors import TrainwebError
from .remote import RangedFile, RemoteRange

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_SCALARS = {code: struct.Struct(f"<{code}") for code in "?bBifq"}

SHARING = 4
"""Limit of reads, in whole files: objects may be shared, but not endlessly."""


class Buffer:
    """A file being read: bytes or a RangedFile, which errors of the class `error` call `kind`.

    `identifier` has the four bytes that tell the kind of file.
    """

    def __init__(self, data: bytes | memoryview | RangedFile, kind: str, error: type[TrainwebError]) -> None:
        self.data = data if isinstance(data, RangedFile) else memoryview(data)
        self.kind, self.error = kind, error
        self.size = len(data)
        if self.size < 8:
            raise error(f"a {kind} has at least 8 bytes, this has {self.size}")
        self.identifier = bytes(self.data[4:8])
        self._budget = SHARING * self.size + 1024

    def corrupt(self, how: str) -> TrainwebError:
        """The error on a file that contradicts itself."""
        return self.error(f"the {self.kind} is corrupt: {how}")

    def root(self) -> Table:
        """The root table."""
        return Table(self, self.follow(0, "the root"), "the root")

    def unpack(self, form: struct.Struct, pos: int) -> tuple[Any, ...]:
        """Numbers at a position that was checked."""
        return form.unpack(self.data[pos : pos + form.size])

    def spend(self, nbytes: int, what: str) -> None:
        """Account for bytes read; keeps overlapping objects from multiplying the work."""
        self._budget -= nbytes
        if self._budget < 0:
            raise self.corrupt(f"its parts overlap, found at {what}")

    def require(self, pos: int, nbytes: int, align: int, what: str) -> int:
        """`pos`, when it is aligned and `nbytes` bytes lie from there on."""
        if pos < 0 or nbytes > self.size - pos:
            raise self.error(
                f"the {self.kind} is corrupt or truncated: {what} lies at bytes {pos} to {pos + nbytes} of {self.size}"
            )
        if pos % align:
            raise self.corrupt(f"{what} at byte {pos} is not aligned to {align}")
        return pos

    def follow(self, pos: int, what: str) -> int:
        """The position that the offset at `pos` points to."""
        (offset,) = self.unpack(_U32, self.require(pos, 4, 4, f"the offset of {what}"))
        if offset == 0:
            raise self.corrupt(f"the offset of {what} at byte {pos} is 0")
        return self.require(pos + offset, 4, 4, what)

    def vector(self, pos: int, item: int, what: str) -> tuple[int, int]:
        """Start of the elements and number of elements of the vector at `pos`."""
        (count,) = self.unpack(_U32, pos)
        self.require(pos + 4, count * item, 8 if item == 8 and count else 1, what)
        self.spend(4 + count * item, what)
        return pos + 4, count

    def text(self, pos: int, what: str) -> str:
        """The string at `pos`."""
        start, count = self.vector(pos, 1, what)
        end = self.require(start + count, 1, 1, f"the end of {what}")
        if self.data[end] != 0:
            raise self.corrupt(f"{what} at byte {start} does not end with a zero byte")
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} at byte {start} is not UTF-8") from error


class Table:
    """A table; fields are asked for by their number in the schema."""

    __slots__ = ("_buffer", "_fields", "_pos", "_size", "what")

    def __init__(self, buffer: Buffer, pos: int, what: str) -> None:
        self._buffer, self._pos, self.what = buffer, pos, what
        (back,) = buffer.unpack(_I32, pos)
        vtable = buffer.require(pos - back, 4, 2, f"the vtable of {what}")
        (vtable_size,) = buffer.unpack(_U16, vtable)
        (self._size,) = buffer.unpack(_U16, vtable + 2)
        if vtable_size < 4 or vtable_size % 2 or self._size < 4:
            raise buffer.corrupt(f"{what} has a vtable of {vtable_size} bytes and a table of {self._size}")
        buffer.require(vtable, vtable_size, 2, f"the vtable of {what}")
        buffer.require(pos, self._size, 4, what)
        buffer.spend(self._size + vtable_size, what)
        self._fields = buffer.unpack(struct.Struct(f"<{vtable_size // 2 - 2}H"), vtable + 4)
        # All fields are checked, also unread ones: no writer makes such a file.
        outside = next((k for k in self._fields if k and not 4 <= k < self._size), None)
        if outside is not None:
            raise buffer.corrupt(f"a field of {what} lies at {outside}, and the table has {self._size} bytes")

    def _at(self, field: int, nbytes: int, what: str) -> int | None:
        """Position of a field; None where it is absent."""
        offset = self._fields[field] if field < len(self._fields) else 0
        if offset == 0:
            return None
        if offset + nbytes > self._size:
            raise self._buffer.corrupt(f"{what} lies at {offset} of {self.what}, which has {self._size} bytes")
        return self._buffer.require(self._pos + offset, nbytes, nbytes, what)

    def scalar(self, field: int, code: str, default: float, what: str) -> Any:
        """A number, in `struct` notation."""
        form = _SCALARS[code]
        pos = self._at(field, form.size, what)
        return default if pos is None else self._buffer.unpack(form, pos)[0]

    def _target(self, field: int, what: str) -> int | None:
        pos = self._at(field, 4, what)
        return None if pos is None else self._buffer.follow(pos, what)

    def table(self, field: int, what: str) -> Table | None:
        """A table, or None."""
        pos = self._target(field, what)
        return None if pos is None else Table(self._buffer, pos, what)

    def tables(self, field: int, what: str) -> Iterator[Table] | None:
        """The tables of a vector, or None where there is no vector; `what` names one of them."""
        pos = self._target(field, f"the {what}s")
        if pos is None:
            return None
        start, count = self._buffer.vector(pos, 4, f"the {what}s")
        return (
            Table(
                self._buffer,
                self._buffer.follow(start + 4 * index, f"{what} {index}"),
                f"{what} {index}",
            )
            for index in range(count)
        )

    def string(self, field: int, what: str) -> str | None:
        """A text, or None."""
        pos = self._target(field, what)
        return None if pos is None else self._buffer.text(pos, what)

    def strings(self, field: int, what: str) -> Iterator[str]:
        """The texts of a vector, none where absent; `what` names one of them."""
        pos = self._target(field, f"the {what}s")
        if pos is None:
            return
        start, count = self._buffer.vector(pos, 4, f"the {what}s")
        for index in range(count):
            item = f"{what} {index}"
            yield self._buffer.text(self._buffer.follow(start + 4 * index, item), item)

    def numbers(self, field: int, code: str, max_count: int, what: str) -> tuple[Any, ...]:
        """A vector of numbers in `struct` notation, empty where absent."""
        pos = self._target(field, what)
        if pos is None:
            return ()
        start, count = self._buffer.vector(pos, _SCALARS[code].size, what)
        if count > max_count:
            raise self._buffer.error(f"{what} has {count} elements; at most {max_count} are supported")
        return self._buffer.unpack(struct.Struct(f"<{count}{code}"), start)

    def span(self, field: int, what: str) -> tuple[int, int] | None:
        """Return the start in the file of a vector of bytes, and its size; None where absent."""
        pos = self._target(field, what)
        return None if pos is None else self._buffer.vector(pos, 1, what)

    def blob(self, field: int, what: str) -> bytes | memoryview | RemoteRange | None:
        """A vector of bytes, as a view of the file, or None."""
        span = self.span(field, what)
        if span is None:
            return None
        (start, count), data = span, self._buffer.data
        return data.range(start, start + count) if isinstance(data, RangedFile) else data[start : start + count]
