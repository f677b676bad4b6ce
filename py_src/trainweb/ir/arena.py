"""Allocation of offsets in one run of memory."""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Alignment of storages: a cache line."""


def align(n: int, alignment: int = ALIGNMENT) -> int:
    """`n` rounded up to an alignment."""
    return -(-n // alignment) * alignment


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
        free = self.free
        at = bisect_left(free, (start, nbytes))
        before = after = at
        # No two free runs touch: at most one on either side joins this one.
        if at < len(free) and free[at][0] == start + nbytes:
            nbytes += free[at][1]
            after = at + 1
        if at and sum(free[at - 1]) == start:
            start, nbytes = free[at - 1][0], free[at - 1][1] + nbytes
            before = at - 1
        free[before:after] = [(start, nbytes)]
