"""Facts that passes know besides the program: the session's requests and the target of the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainweb.backend.base import Target
from trainweb.backend.plan import SEEN
from trainweb.ir.arena import Arena, align
from trainweb.ir.layout import SEEN_WORDS
from trainweb.ir.program import Recomputation

Places = dict[str, tuple[int, int]]
"""Offset and bytes in the cache, by what lies there."""


class Cache:
    """The segment of values that stay from run to run, as one compilation sees it.

    `fixed` are byte offsets of parameters that only loading changes. `in_use` are values that other plans of the
    session cache, and their places. Plans share equal values and leave the rest unchanged. `places` are the values that
    the compiled plan caches.
    """

    def __init__(self, fixed: Collection[int], in_use: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.fixed, self.in_use = fixed, dict(in_use or {})
        self.places: Places = {}
        self._arena = Arena()
        for start, nbytes in sorted(set(self.in_use.values())):
            if start > self._arena.size:
                self._arena.free.append((self._arena.size, start - self._arena.size))
            self._arena.size = max(self._arena.size, start + align(nbytes))

    @property
    def nbytes(self) -> int:
        """Size that the segment must have."""
        return self._arena.size

    def take_seen(self) -> int:
        """Offset of the two words of a group of hoisted instructions, which are its own."""
        start = self._arena.take(align(4 * SEEN_WORDS))
        self.places[f"{SEEN} {start}"] = (start, 4 * SEEN_WORDS)
        return start

    def place(self, key: str, nbytes: int) -> int:
        """Offset of the value `key`."""
        if key not in self.places:
            self.places[key] = self.in_use.get(key) or (self._arena.take(align(nbytes)), nbytes)
        return self.places[key][0]


@dataclass(slots=True)
class Context:
    """Facts and choices of one compilation."""

    target: Target
    """The back end that the plan is for."""
    memory_budget: int | None = None
    """Bytes of workspace beyond which values are computed again instead of kept; None: no limit."""
    cache: Cache | None = None
    """Place of the results of hoisted instructions; None: nothing is hoisted."""
    cache_trained: bool = False
    """True if instructions that depend on trained parameters are hoisted, too."""
    saves_little: bool = False
    """True if cheap results are recomputed instead of kept for the backward pass."""
    recomputation: Recomputation | None = None
    """Cost of the memory budget; set by `rematerialise`."""
