"""Rematerialisation: values that a memory budget has no room for are given up, and computed again where they are read.

The method is Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021, https://arxiv.org/abs/2006.09616) at compile
time, where the next use of every value is known. Instructions are taken in order. When a result has no room, a value is
evicted. It is the one with the least work to recompute, per byte and per instruction until its next use. An instruction
that reads an evicted value is preceded by instructions that recompute it from present values. They are the same
instructions on the same operands: results are the same bytes as without a budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from trainweb.compiler.context import Context
from trainweb.errors import LimitError
from trainweb.ir.arena import align
from trainweb.ir.expr import MATH, walk
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Program, Recomputation
from trainweb.spelling import ARGUMENT

WORK_PER_BYTE = 4
"""Operations in the time that it takes to move a byte: some 50 GFLOP/s against 12 GB/s."""
WORK_PER_FUNCTION = 100
"""Operations in the time of an exponential, an error function and alike: some 2 ns."""
DISTANCE_POWERS = (0.0, 0.5, 1.0)
"""Weights of the time until the next read; the best one for a model is found by trying."""
N_LIMITS = 64
"""Limits that are tried, from the peak without recomputation down in equal steps."""


def rematerialise(program: Program, context: Context) -> None:
    """Limit the workspace to `context.memory_budget` bytes, and report the cost in `context.recomputation`.

    Raise LimitError where there is no way; it names the smallest budget for which there is one.
    """
    budget = context.memory_budget
    assert budget is not None
    full = context.target.workspace_bytes(program.instructions, program.feeds, program.outputs)
    context.recomputation = Recomputation(full)
    if full <= budget:
        return
    values = Values(program)
    # A limit is on values alive at a time; gaps between them come on top. The limits do not depend on the
    # budget, so that a budget which is named as the smallest is met.
    limits = [full * k // N_LIMITS for k in range(N_LIMITS, 0, -1)]
    low = [limit for limit in limits if limit <= budget]
    reachable = full
    for limit in (*low, *reversed(limits[: len(limits) - len(low)])):
        if limit > budget and reachable < full:
            break
        tried = [Schedule(values, limit, power) for power in DISTANCE_POWERS]
        for schedule in sorted((s for s in tried if s.run()), key=lambda s: values.work(s.repeated)):
            needed = context.target.workspace_bytes(schedule.instructions, program.feeds, program.outputs)
            if needed <= budget:
                program.rebuild(schedule.instructions)
                context.recomputation = values.cost(schedule.repeated, full)
                return
            reachable = min(reachable, max(needed, limit))
    raise LimitError(
        f"The option '{ARGUMENT.memory_budget}' must be at least {reachable} for these shapes, not {budget}: bytes of "
        "the workspace with everything computed again that can be. A smaller batch needs less. "
        f"Without a budget it takes {full}."
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """An instruction that can be repeated: the storages of the arena that it reads and writes."""

    call: Instruction
    reads: frozenset[Storage]
    writes: tuple[Storage, ...]
    work: float


class Values:
    """Facts about the values of a program before any of them is evicted; instructions go by number."""

    def __init__(self, program: Program) -> None:
        self.instructions = list(program)
        self.feeds = {b.storage for b in program.feeds}
        self.kept = program.output_storages
        self.steps = [_step(i) for i in self.instructions]
        self.makers: dict[Storage, list[int]] = {}
        self.uses: dict[Storage, list[int]] = {}
        self.written: dict[Storage, list[int]] = {}
        numbers = {i: k for k, i in enumerate(self.instructions)}
        for s in dict.fromkeys(b.storage for i in self.instructions for b in (*i.reads, *i.writes)):
            self.written[s] = [numbers[w] for w in program.writers(s)]
            if s.segment == ARENA:
                self.uses[s] = [numbers[u] for u in program.users(s)]
                if self.written[s]:
                    self.makers[s] = self.written[s]
        for s in self.kept & self.uses.keys():
            self.uses[s].append(len(self.instructions))
        self.sources = {
            s: {r for k in makers for r in self.steps[k].reads if r is not s} for s, makers in self.makers.items()
        }
        """Sources of each value."""
        self.expiry: dict[Storage, float] = {}
        """The instruction before which a value can be recomputed. Values that cannot be recomputed are missing."""
        for k in range(len(self.instructions)):
            for s in self.steps[k].writes:
                if self.makers[s][-1] == k:
                    self._analyse(s)

    def next_use(self, s: Storage, k: int) -> int | None:
        """The first instruction from `k` on that reads a value, one past the last for an output."""
        uses = self.uses[s]
        at = bisect_left(uses, k)
        return uses[at] if at < len(uses) else None

    def _analyse(self, s: Storage) -> None:
        makers = self.makers[s]
        reads_between = [u for u in self.uses[s] if u < makers[-1] and u not in makers]
        if s in self.feeds or reads_between or not all(self._can_repeat(k, s) for k in makers):
            return
        expiry = min((self.expiry.get(r, inf) for r in self.sources[s]), default=inf)
        for k in makers:
            for b in self.steps[k].call.reads:
                later = [w for w in self.written[b.storage] if w > k] if b.storage is not s else []
                expiry = min(expiry, *later, inf)
        self.expiry[s] = expiry

    def _can_repeat(self, k: int, s: Storage) -> bool:
        step = self.steps[k]
        if s not in step.writes or any(b.storage.segment != ARENA for b in step.call.writes):
            return False
        # Other storages that it changes must not have had contents before.
        return not any(t is not s and t in step.reads and self.makers[t][0] < k for t in step.writes)

    def work(self, instructions: Iterable[int]) -> float:
        """Rough time of these instructions, in operations of a product."""
        return sum(self.steps[k].work for k in instructions)

    def cost(self, repeated: Sequence[int], full: int) -> Recomputation:
        """Return the cost of repeating these instructions."""
        calls = [self.instructions[k] for k in repeated]
        flops = sum(c.flops() for c in calls if isinstance(c, KernelCall))
        return Recomputation(full, len(repeated), flops, self.work(repeated) / self.work(range(len(self.steps))))


def _step(i: Instruction) -> _Step:
    # Made again, it leaves state alone.
    call = i.without(i.UPDATES) if isinstance(i, KernelCall) and i.UPDATES else i
    reads = frozenset(b.storage for b in call.reads if b.storage.segment == ARENA)
    writes = tuple(dict.fromkeys(b.storage for b in call.writes if b.storage.segment == ARENA))
    return _Step(call, reads, writes, work_of(i))


def work_of(i: Instruction) -> float:
    """Rough time of an instruction, in operations of a product."""
    moved = WORK_PER_BYTE * sum(b.nbytes for b in (*i.reads, *i.writes))
    if isinstance(i, KernelCall):
        return moved + i.flops()
    functions = sum(x.op in MATH for x in walk(i.roots))
    return moved + WORK_PER_FUNCTION * functions * prod(i.shape)


class Schedule:
    """The instructions in order, within a limit of bytes that values take at a time."""

    def __init__(self, values: Values, limit: int, power: float) -> None:
        self.values, self.limit, self.power = values, limit, power
        self.instructions: list[Instruction] = []
        self.repeated: list[int] = []
        self.present: dict[Storage, Storage] = {s: s for s in values.feeds}
        """Values in memory, and the storage of each: its own, or the storage of a repetition."""
        self.used = sum(align(s.nbytes) for s in values.feeds)
        self.roots: dict[Storage, set[Storage]] = {}
        """Values from which a value can be recomputed in the end. They are in memory, cannot be recomputed, and are no
        keys.
        """
        self.dependents: dict[Storage, list[Storage]] = {}
        """Values by their roots."""
        self.given_up: set[Storage] = set()
        self.held = Counter[Storage]()
        """Number of evicted values that have this root."""
        self.pending = Counter[Storage]()
        """Number of the next instructions that read a value."""
        self.works: dict[Storage, float] = {}
        self.watchers: dict[Storage, set[Storage]] = {}
        """Values whose `works` are void when a value comes or goes."""
        self.now = 0

    def run(self) -> bool:
        """Schedule all instructions; False where the limit is too low."""
        for now, i in enumerate(self.values.instructions):
            self.now = now
            reads = {b.storage for b in i.reads if b.storage.segment == ARENA}
            # A result that is updated in place is read before it has any contents.
            reads = {s for s in reads if s in self.present or self.values.makers[s][0] < self.now}
            if not self._restore(reads) or not self._emit(i, reads, None):
                return False
        return True

    def _restore(self, reads: set[Storage]) -> bool:
        """Rematerialize the evicted values among `reads`. All of `reads` stays until it was read."""
        missing = self._missing(s for s in reads if s not in self.present)
        again = sorted({k for s in missing for k in self.values.makers[s]})
        steps = [self.values.steps[k] for k in again]
        sources = [step.reads.difference(step.writes) for step in steps]
        for some in (reads, *sources):
            self.pending.update(some)
        for k, step, some in zip(again, steps, sources, strict=True):
            self.repeated.append(k)
            if not self._emit(step.call, some, missing):
                return False
        return True

    def _missing(self, wanted: Iterable[Storage]) -> set[Storage]:
        """Return `wanted` and the missing values among their sources."""
        missing, stack = set[Storage](), list(wanted)
        while stack:
            s = stack.pop()
            if s not in missing:
                missing.add(s)
                stack.extend(r for r in self.values.sources[s] if r not in self.present)
        return missing

    def _emit(self, i: Instruction, reads: Iterable[Storage], missing: set[Storage] | None) -> bool:
        """Add an instruction: of the program, or one that makes what is `missing`; False where there is no room."""
        after = self.now + (missing is None)
        fresh, unused = dict[Storage, Storage](), dict[Storage, Storage]()
        for s in dict.fromkeys(b.storage for b in i.writes if b.storage.segment == ARENA):
            if missing is None:
                fresh |= {s: s} if s not in self.present else {}
            elif s not in missing:
                unused[s] = Storage(ARENA, s.nbytes)
            elif s not in self.present:
                fresh[s] = Storage(ARENA, s.nbytes)
        ending = [s for s in reads if self.pending[s] == 1 and self._ends(s, after)]
        need = sum(align(s.nbytes) for s in (*fresh, *unused)) - _taken_over(i, fresh, ending)
        while self.used + need > self.limit:
            if not self._give_up():
                return False
        released = [r for s in fresh.keys() & self.given_up for r in self.roots[s]]
        self.given_up.difference_update(fresh)
        self.held.subtract(released)
        self.present |= fresh
        for s in fresh:
            self._changed(s)
        for b in i.writes if missing is None else ():
            if b.storage.segment == ARENA and self.values.makers[b.storage][-1] == self.now:
                self._trace(b.storage)
        self.used += sum(align(s.nbytes) for s in fresh)
        places = self.present | unused

        def place(b: Buf) -> Buf:
            return replace(b, storage=places.get(b.storage, b.storage))

        self.instructions.append(i.moved(place, i.node if missing is None else f"{i.node}, again"))
        self.pending.subtract(reads)
        for s in (*reads, *fresh, *released):
            if not self.pending[s] and self._ends(s, after):
                self._remove(s)
        return True

    def _ends(self, s: Storage, after: int) -> bool:
        return not self.held[s] and self.values.next_use(s, after) is None

    def _remove(self, s: Storage) -> None:
        if self.present.pop(s, None):
            self.used -= align(s.nbytes)
            self._changed(s)
            for other in self.dependents.pop(s, ()):
                if s in self.roots.get(other, ()):
                    self._trace(other)

    def _trace(self, s: Storage) -> None:
        """Find the roots of a value. One whose operands were overwritten is its own root."""
        roots = set[Storage]().union(*(self.roots.get(r, (r,)) for r in self.values.sources.get(s, ())))
        if s not in self.values.expiry or not roots <= self.present.keys():
            self.roots.pop(s, None)
            return
        self.roots[s] = roots
        for r in roots:
            self.dependents.setdefault(r, []).append(s)

    def _changed(self, s: Storage) -> None:
        for other in self.watchers.pop(s, ()):
            self.works.pop(other, None)

    def _give_up(self) -> bool:
        """Remove the value that costs least; False where there is none."""
        prices = {s: self._price(s) for s in self.present}
        best = min(prices, key=prices.__getitem__, default=None)
        if best is None or prices[best] == inf:
            return False
        self._remove(best)
        self.given_up.add(best)
        self.held.update(self.roots[best])
        return True

    def _price(self, s: Storage) -> float:
        """Work to make a value again, per byte and (in some measure) instruction until it is read."""
        p = self.values
        if s not in self.roots or s in p.kept or self.pending[s]:
            return inf
        use = p.next_use(s, self.now)
        if use is None or p.expiry[s] < use or use == self.now:
            return inf
        distance: float = (use - self.now) ** self.power
        return self._work(s) / (s.nbytes * distance)

    def _work(self, s: Storage) -> float:
        """Work to make a value again."""
        if s not in self.works:
            missing = self._missing([s])
            self.works[s] = self.values.work({k for m in missing for k in self.values.makers[m]})
            for r in missing.union(*(self.values.sources[m] for m in missing)):
                self.watchers.setdefault(r, set()).add(s)
        return self.works[s]


def _taken_over(i: Instruction, starting: Iterable[Storage], ending: Iterable[Storage]) -> int:
    """Bytes of results that take the place of an operand which ends."""
    if not isinstance(i, ElementwiseCall):
        return 0
    results, operands = (Counter(s.nbytes for s in some) for some in (starting, ending))
    return sum(align(nbytes) * n for nbytes, n in (results & operands).items())
