"""Which bytes of a storage a call writes: parts of one tensor may lie among each other without sharing any."""

from __future__ import annotations

from dataclasses import dataclass

from trainweb.ir.calls import Copy, Gemm, StridedCopy
from trainweb.ir.instructions import Buf, Storage

Part = Gemm | StridedCopy | Copy
"""Calls of which it is known what part of a storage they write."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Runs of `width` bytes from `start` on, as far apart as `steps` say: (size, stride in bytes) of each loop."""

    storage: Storage
    start: int
    steps: tuple[tuple[int, int], ...]
    width: int

    def is_apart(self, other: Footprint) -> bool:
        """Return whether no byte is in both; False if this is undecided."""
        if self.storage is not other.storage or not (self.width and other.width):
            return True
        low, high, other_low, other_high = *self._range(), *other._range()
        if high <= other_low or other_high <= low:
            return True
        # Both may go over the rows of one tensor and keep to columns of their own.
        pitches = {abs(stride) for _, stride in (*self.steps, *other.steps) if stride}
        return any(self._columns(p, other) for p in pitches)

    def _range(self) -> tuple[int, int]:
        reach = [(size - 1) * stride for size, stride in self.steps]
        return self.start + sum(min(r, 0) for r in reach), self.start + sum(max(r, 0) for r in reach) + self.width

    def _columns(self, pitch: int, other: Footprint) -> bool:
        mine, others = (f._within(pitch) for f in (self, other))
        return mine is not None and others is not None and (mine[1] <= others[0] or others[1] <= mine[0])

    def _within(self, pitch: int) -> tuple[int, int] | None:
        """First and last column of a tensor with rows of `pitch` bytes, if no run leaves its row."""
        first = self.start % pitch
        steps = [(size, stride) for size, stride in self.steps if stride % pitch]
        last = first + sum((size - 1) * stride for size, stride in steps) + self.width
        return (first, last) if last <= pitch and all(stride > 0 for _, stride in steps) else None


def footprint(call: Part) -> Footprint:
    """Return the footprint of a call's result."""
    if isinstance(call, Gemm):
        return _footprint(call.c, 0, (*call.batch, call.m), (*call.c_batch, call.c_row), call.n, 4)
    if isinstance(call, Copy):
        return _footprint(call.dst, 0, (), (), call.n, 1)
    return _footprint(call.dst, call.dst_offset, call.dims, call.dst_strides, 1, call.size)


def _footprint(
    b: Buf, offset: int, dims: tuple[int, ...], strides: tuple[int, ...], width: int, size: int
) -> Footprint:
    """Offset, strides and width in elements of `size` bytes."""
    steps = tuple((d, s * size) for d, s in zip(dims, strides, strict=True) if d > 1)
    return Footprint(b.storage, b.shift + offset * size, steps, width * size if all(dims) else 0)
