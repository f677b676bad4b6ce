"""Hoist instructions that depend only on parameters out of the step, and cache their results from run to run.

Instructions that read only parameters, constants and results of such instructions are hoisted to the front of the plan.
Results that other instructions read lie in the cache, a separate segment. Plans of a session that cache the same value
share it there. An instruction before the hoisted ones skips them while the cache is valid. There are two such groups.
Only loading invalidates the first, such as results of frozen parameters. Steps invalidate the second, too.

With a memory budget, only results of constants outside of Python are hoisted, and all of them are cached. They take no
workspace, and as much memory as folding would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trainweb.compiler.context import Context
from trainweb.ir import calls
from trainweb.ir.expr import Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, PARAMETERS, PREPARED, SEEN_WORDS
from trainweb.ir.loop import LoopCall
from trainweb.ir.program import POSITION, Program
from trainweb.model.lazy import LazyTensor, stays_outside

MAX_RATIO = 8
"""A value is cached if it has at most this many times the bytes of its sources, as floats of 4-bit numbers do."""
SMALL_BYTES = 256 << 10
"""Or if it has no more bytes than this."""
FIXED, TRAINED = 0, 1
"""Groups: results of parameters that only loading changes, and results of parameters that steps change."""


def hoist(program: Program, context: Context) -> None:
    """Hoist instructions that depend only on parameters and constants, and place their results in the cache."""
    assert context.cache is not None
    independent = _Independent(program, context)
    groups: dict[int, list[Instruction]] = {FIXED: [], TRAINED: []}
    for i in sorted(independent.levels, key=POSITION):
        groups[independent.levels[i]].append(i)
    keys: dict[Storage, str] = {}
    for i in (*groups[FIXED], *groups[TRAINED]):
        text = _describe(i, keys)
        for n, s in enumerate(dict.fromkeys(b.storage for b in i.writes)):
            keys[s] = hashlib.sha256(f"{keys.get(s)} {text} {n}".encode()).hexdigest()
    for s in independent.cached:
        s.segment, s.offset = PREPARED, context.cache.place(keys[s], s.nbytes)
    for level, group in groups.items():
        if group:
            for i in group:
                program.remove(i)
            program.hoisted[level] = Program(program.builder, program.feeds, program.outputs, group)


def restore_hoisted(program: Program, context: Context) -> None:
    """Put the hoisted groups first, each after an instruction that skips it while the cache is valid."""
    assert context.cache is not None
    front: list[Instruction] = []
    for level, group in sorted(program.hoisted.items()):
        seen = Buf(Storage(PREPARED, 4 * SEEN_WORDS, context.cache.take_seen()), "int32", (SEEN_WORDS,))
        builder = program.build(f"hoisted: what {('loading', 'loading or training')[level]} changes")
        builder.emit(calls.SkipIfCurrent(state=builder.state, seen=seen, instructions=len(group) + 1, trained=level))
        builder.instructions += group
        builder.emit(calls.NoteCurrent(state=builder.state, seen=seen))
        front += builder.instructions
    program.insert_first(*front)


class _Independent:
    """The instructions that depend only on parameters and constants, and the group of each."""

    def __init__(self, program: Program, context: Context) -> None:
        assert context.cache is not None
        self.program, self.fixed, self.trained = program, context.cache.fixed, context.cache_trained
        self.budgeted = context.memory_budget is not None
        chosen: set[Instruction] = set()
        for i in program:
            if self._may_move(i, chosen):
                chosen.add(i)
        if self.budgeted:
            chosen = self._of_large_constants(chosen)
        while True:
            self._close(chosen)
            self.levels = self._levels([i for i in program if i in chosen])
            self.cached = self._cached()
            large = {i for s in self.cached if not self._is_worth_caching(s) for i in program.writers(s)}
            if not large:
                break
            chosen -= large

    def _of_large_constants(self, chosen: set[Instruction]) -> set[Instruction]:
        """Return the instructions of `chosen` that read large constants from outside, or are connected with such."""
        stack = [i for i in chosen if any(stays_outside(b.storage.data) for b in i.reads)]
        members: set[Instruction] = set()
        while stack:
            i = stack.pop()
            if i in chosen and i not in members:
                members.add(i)
                for s in {b.storage for b in (*i.reads, *i.writes) if b.storage.segment == ARENA}:
                    stack += self.program.users(s)
        return members

    def _may_move(self, i: Instruction, chosen: set[Instruction]) -> bool:
        """Return whether nothing before `i` keeps it in the step."""
        if isinstance(i, LoopCall) or not all(self.program.is_temporary(b.storage) for b in i.writes):
            return False  # a group counts its instructions, of which a loop is several
        for b in i.reads:
            if self._level(b.storage) is None:
                return False
            if any(w.position < i.position and w not in chosen for w in self.program.writers(b.storage)):
                return False
        return True

    def _level(self, s: Storage) -> int | None:
        """The group that what a storage holds at the start allows; None where it may change from run to run."""
        if s.segment == ARENA:
            return None if s.is_feed else FIXED
        if s.segment == PARAMETERS and not self.budgeted and not self.program.writers(s):
            level = FIXED if s.offset in self.fixed else TRAINED
            return level if level == FIXED or self.trained else None
        return FIXED if s.segment == CONSTANTS else None

    def _close(self, chosen: set[Instruction]) -> None:
        """Take out of `chosen` what needs one that is not in it."""
        stack = list(chosen)
        while stack:
            i = stack.pop()
            if i in chosen and not self._is_independent(i, chosen):
                chosen.remove(i)
                for s in {b.storage for b in (*i.reads, *i.writes) if b.storage.segment == ARENA}:
                    stack += chosen.intersection(self.program.users(s))

    def _is_independent(self, i: Instruction, chosen: set[Instruction]) -> bool:
        for b in (*i.reads, *i.writes):
            if b.storage.segment != ARENA:
                continue
            makers = self.program.writers(b.storage)
            if not makers or not chosen.issuperset(makers):
                return False
            # Instructions that are not hoisted may only read what the last writer stores.
            last = makers[-1].position
            if any(r.position < last and r not in chosen for r in self.program.readers(b.storage)):
                return False
        return bool(i.writes)

    def _levels(self, chosen: list[Instruction]) -> dict[Instruction, int]:
        levels = dict.fromkeys(chosen, FIXED)
        while True:
            before = dict(levels)
            for i in chosen:
                needed = [self._level(b.storage) or FIXED for b in i.reads]
                # All that write a value are in one group.
                needed += [levels[w] for b in (*i.reads, *i.writes) for w in self.program.writers(b.storage)]
                levels[i] = max(needed)
            if levels == before:
                return levels

    def _cached(self) -> list[Storage]:
        """Return the results that instructions outside of their group read; with a budget, all results."""
        cached: dict[Storage, None] = {}
        for i in sorted(self.levels, key=POSITION):
            for s in dict.fromkeys(b.storage for b in i.writes):
                if self.budgeted or any(self.levels.get(r) != self.levels[i] for r in self.program.readers(s)):
                    cached[s] = None
        return list(cached)

    def _is_worth_caching(self, s: Storage) -> bool:
        sources, stack = set[Storage](), [s]
        while stack:
            for i in self.program.writers(stack.pop()):
                new = {b.storage for b in i.reads} - sources
                sources |= new
                stack += new
        made_of = sum(r.nbytes for r in sources if r.segment != ARENA)
        # A value without sources, such as a filled tensor, is cheaper to compute than to read.
        return 0 < s.nbytes <= max(MAX_RATIO * made_of, SMALL_BYTES * (made_of > 0))


def _describe(i: Instruction, keys: dict[Storage, str]) -> str:
    """Return the computation of an instruction, independent of the names of its storages."""

    def described(value: object) -> str:
        if not isinstance(value, Buf):
            return repr(value)
        s = value.storage
        where = f"{s.offset}" if s.segment == PARAMETERS else _hash_of(s) if s.segment == CONSTANTS else keys.get(s, "")
        return f"{s.segment} {where} {value.shift} {value.dtype} {value.shape}"

    if isinstance(i, ElementwiseCall):
        parts = [_text(i.roots), str(i.shape), *map(described, (*i.ins, *i.outs))]
    else:
        parts = [i.KERNEL, *(f"{name}={described(value)}" for name, value in i.arguments())]
    return "\n".join(parts)


def _hash_of(s: Storage) -> str:
    """Hash of the contents of a constant: a later visit finds kept values by it, and numbers its files otherwise."""
    return s.data.digest() if isinstance(s.data, LazyTensor) else hashlib.sha256(s.data or b"").hexdigest()


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
