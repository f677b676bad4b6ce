"""Allocation of offsets in one run of memory."""

from __future__ import annotations

from bisect import insort

ALIGNMENT = 64
"""Of storages: a cache line."""


def align(n: int) -> int:
    """`n` rounded up to ALIGNMENT."""
    return -(-n // ALIGNMENT) * ALIGNMENT


class Arena:
    """Best-fit allocation of offsets with merging of free runs."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.size = 0

    def take(self, nbytes: int) -> int:
        """Offset of a free run of `nbytes`."""
        fitting = [(length, start) for start, length in self.free if length >= nbytes]
        if fitting:
            length, start = min(fitting)
            self.free.remove((start, length))
            if length > nbytes:
                insort(self.free, (start + nbytes, length - nbytes))
            return start
        if self.free and sum(self.free[-1]) == self.size:
            start, length = self.free.pop()
            self.size = start + nbytes
            return start
        start = self.size
        self.size += nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Return a run."""
        insort(self.free, (start, nbytes))
        merged: list[tuple[int, int]] = []
        for begin, length in self.free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self.free = merged
