"""What depends on parameters alone is made when they have changed, and kept from run to run.

Instructions that read only parameters, constants and results of such instructions go to the front of the plan. What the
rest reads of their results lies in a segment of its own, where plans of a session that keep the same value share it.
Before them stands an instruction that leaves them out while nothing they read has changed. There are two such groups:
what loading alone changes, such as frozen parameters, and what steps change, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from trainweb.backend.wasm.memory import Arena, align
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Expr
from trainweb.ir.layout import ARENA, CONSTANTS, PARAMETERS, PREPARED, SEEN_WORDS
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, Storage

MAX_RATIO = 8
"""A value is kept if it has at most so many times the bytes of what it is made of, as floats of 4-bit numbers do."""
SMALL_BYTES = 256 << 10
"""Or if it has no more bytes than this."""
FIXED, TRAINED = 0, 1
SEEN = "seen"
"""How the names of guards' words start. New, they hold zeros."""


Kept = dict[str, tuple[int, int]]
"""Offset and bytes in the segment of kept values, by what lies there."""


class Prepared:
    """The segment of kept values, for one compilation.

    Parameters
    ----------
    fixed
        Byte offsets of parameters that only loading changes.
    in_use
        What other plans of the session keep, and where: equal values are shared, the rest is left alone.

    Attributes
    ----------
    kept : dict
        What the plan that is compiled keeps.
    """

    def __init__(self, fixed: Collection[int], in_use: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.fixed, self.in_use = fixed, dict(in_use or {})
        self.kept: Kept = {}
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
        """Offset of the two words of a guard, which are its own."""
        start = self._arena.take(align(4 * SEEN_WORDS))
        self.kept[f"{SEEN} {start}"] = (start, 4 * SEEN_WORDS)
        return start

    def place(self, key: str, nbytes: int) -> int:
        """Offset of the value `key`."""
        if key not in self.kept:
            self.kept[key] = self.in_use.get(key) or (self._arena.take(align(nbytes)), nbytes)
        return self.kept[key][0]


def hoist(
    instructions: list[Instruction], outputs: list[Buf], prepared: Prepared, *, trained: bool
) -> tuple[list[list[Instruction]], list[Instruction]]:
    """Take out what depends on parameters and constants alone, and give what is read of it a place to stay.

    Parameters
    ----------
    trained
        Also what depends on parameters that steps change.

    Returns
    -------
    groups, rest
        By FIXED and TRAINED the instructions that were taken out, and those that were not.
    """
    found = _Independent(instructions, outputs, prepared.fixed, trained=trained)
    groups: list[list[Instruction]] = [[], []]
    for k, level in sorted(found.levels.items()):
        groups[level].append(instructions[k])
    keys: dict[Storage, str] = {}
    for i in (*groups[FIXED], *groups[TRAINED]):
        text = _describe(i, keys)
        for n, s in enumerate(dict.fromkeys(b.storage for b in i.writes)):
            keys[s] = hashlib.sha256(f"{keys.get(s)} {text} {n}".encode()).hexdigest()
    for s in found.kept:
        s.segment, s.offset = PREPARED, prepared.place(keys[s], s.nbytes)
    return groups, [i for k, i in enumerate(instructions) if k not in found.levels]


def guard(groups: Sequence[Sequence[Instruction]], prepared: Prepared, builder: Builder) -> list[Instruction]:
    """The groups, each behind an instruction that leaves it out where it would make the same again."""
    builder.instructions = []
    for level, group in enumerate(groups):
        if group:
            seen = Buf(Storage(PREPARED, 4 * SEEN_WORDS, prepared.take_seen()), "int32", (SEEN_WORDS,))
            builder.node = f"prologue: what {('loading', 'loading or training')[level]} changes"
            builder.emit(
                calls.SkipIfCurrent(state=builder.state, seen=seen, instructions=len(group) + 1, trained=level)
            )
            builder.instructions += group
            builder.emit(calls.NoteCurrent(state=builder.state, seen=seen))
    return builder.instructions


class _Independent:
    """The instructions that depend on parameters and constants alone, by number, and the group of each."""

    def __init__(
        self, instructions: list[Instruction], outputs: list[Buf], fixed: Collection[int], *, trained: bool
    ) -> None:
        self.instructions, self.fixed, self.trained = instructions, fixed, trained
        self.outputs = {b.storage for b in outputs}
        self.writers: dict[Storage, list[int]] = {}
        self.readers: dict[Storage, list[int]] = {}
        for k, i in enumerate(instructions):
            for s in {b.storage for b in i.writes}:
                self.writers.setdefault(s, []).append(k)
            for s in {b.storage for b in i.reads}:
                self.readers.setdefault(s, []).append(k)
        chosen = {k for k, i in enumerate(instructions) if self._may_move(i)}
        while True:
            chosen = self._closed(chosen)
            self.levels = self._levels(chosen)
            self.kept = self._kept()
            large = {k for s in self.kept if not self._worth_keeping(s) for k in self.writers[s]}
            if not large:
                break
            chosen -= large

    def _may_move(self, i: Instruction) -> bool:
        return all(b.storage.segment == ARENA and b.storage not in self.outputs for b in i.writes) and all(
            self._level(b.storage) is not None for b in i.reads
        )

    def _level(self, s: Storage) -> int | None:
        """The group that what a storage holds at the start allows; None where it may change from run to run."""
        if s.segment == ARENA:
            return None if s.is_feed else FIXED
        if s.segment == PARAMETERS and s not in self.writers:
            level = FIXED if s.offset in self.fixed else TRAINED
            return level if level == FIXED or self.trained else None
        return FIXED if s.segment == CONSTANTS else None

    def _closed(self, chosen: set[int]) -> set[int]:
        """Those of `chosen` that need none of the others."""
        while True:
            stay = {k for k in chosen if not self._is_independent(self.instructions[k], chosen)}
            if not stay:
                return chosen
            chosen = chosen - stay

    def _is_independent(self, i: Instruction, chosen: set[int]) -> bool:
        for b in (*i.reads, *i.writes):
            if b.storage.segment != ARENA:
                continue
            made = self.writers.get(b.storage, [])
            if not made or not chosen.issuperset(made):
                return False
            # The others see what the last one leaves.
            if any(r < made[-1] and r not in chosen for r in self.readers.get(b.storage, ())):
                return False
        return bool(i.writes)

    def _levels(self, chosen: set[int]) -> dict[int, int]:
        levels = dict.fromkeys(chosen, FIXED)
        while True:
            before = dict(levels)
            for k in chosen:
                i = self.instructions[k]
                needed = [self._level(b.storage) or FIXED for b in i.reads]
                # All that write a value are in one group.
                needed += [levels[w] for b in (*i.reads, *i.writes) for w in self.writers.get(b.storage, ())]
                levels[k] = max(needed)
            if levels == before:
                return levels

    def _kept(self) -> list[Storage]:
        """What is read by instructions that are not in the same group."""
        kept: list[Storage] = []
        for k in sorted(self.levels):
            for s in dict.fromkeys(b.storage for b in self.instructions[k].writes):
                if s not in kept and any(self.levels.get(r) != self.levels[k] for r in self.readers.get(s, ())):
                    kept.append(s)
        return kept

    def _worth_keeping(self, s: Storage) -> bool:
        sources, stack = set[Storage](), [s]
        while stack:
            for k in self.writers.get(stack.pop(), ()):
                new = {b.storage for b in self.instructions[k].reads} - sources
                sources |= new
                stack += new
        made_of = sum(r.nbytes for r in sources if r.segment != ARENA)
        # What is made of nothing is cheaper to make than to read.
        return 0 < s.nbytes <= max(MAX_RATIO * made_of, SMALL_BYTES * (made_of > 0))


def _describe(i: Instruction, keys: dict[Storage, str]) -> str:
    """What an instruction makes, whatever the storages are called."""

    def described(value: object) -> str:
        if not isinstance(value, Buf):
            return repr(value)
        s = value.storage
        if s.segment == CONSTANTS:
            where = hashlib.sha256(s.data or b"").hexdigest()
        else:
            where = keys.get(s, "") if s.segment != PARAMETERS else f"{s.offset}"
        return f"{s.segment} {where} {value.shift} {value.dtype} {value.shape}"

    if isinstance(i, ElementwiseCall):
        parts = [_text(i.roots), str(i.shape), *map(described, (*i.ins, *i.outs))]
    else:
        parts = [i.KERNEL, *(f"{name}={described(value)}" for name, value in i.args.items())]
    return "\n".join(parts)


def _text(roots: Sequence[Expr]) -> str:
    numbers: dict[Expr, int] = {}
    lines: list[str] = []

    def walk(x: Expr) -> int:
        if x not in numbers:
            args = [walk(a) for a in x.args]
            numbers[x] = len(numbers)
            lines.append(f"{x.op} {x.dtype} {args} {x.imm!r}")
        return numbers[x]

    return "; ".join([*map(str, [walk(r) for r in roots]), *lines])
