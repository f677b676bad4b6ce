"""The instructions of a step, which passes rewrite."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter
from trainweb.ir.instructions import Buf, Instruction, Storage
from trainweb.ir.layout import ARENA


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The cost of a memory budget for a plan."""

    full_bytes: int
    """Workspace of the plan without a budget."""
    instructions: int = 0
    """Number of instructions that run again."""
    flops: int = 0
    """Operations of products and convolutions in them."""
    share: float = 0.0
    """Rough time of them, in parts of the time without a budget."""


ATTENTION, HEAD = "attention", "the loss of the head"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pass left a candidate as it was."""

    what: str
    """The instructions that the pass was about, such as "attention"."""
    node: str
    """The node that they were made of."""
    reason: str
    """The fact that kept the pass from firing."""

    def __str__(self) -> str:
        return f"{self.what} at {self.node} stays as it is: {self.reason}"


POSITION = attrgetter("position")
GAP_BITS = 16
"""Bits of the distance between two positions, for instructions that come between them."""


class Program:
    """The instructions of one step in order, with the readers and the writers of every storage.

    Instructions are values. A pass never changes one that stands here, but puts another in its place (`replace`), so
    that the index is right at any time. Their order is the order of `position`.
    """

    def __init__(
        self, builder: Builder, feeds: Sequence[Buf], outputs: Sequence[Buf], instructions: Iterable[Instruction] = ()
    ) -> None:
        self.builder, self.feeds, self.outputs = builder, list(feeds), list(outputs)
        self.output_storages = frozenset(b.storage for b in outputs)
        self.hoisted: dict[int, Program] = {}
        """Instructions that need not run in every step, by what changes their results (`passes/hoist.py`)."""
        self.refusals: list[Refusal] = []
        """The passes' reasons for not firing, in order."""
        self.rebuild(instructions)

    @property
    def emitter(self) -> Emitter:
        """The emitter of expressions for elementwise calls."""
        return self.builder.emitter

    @property
    def instructions(self) -> Sequence[Instruction]:
        """The instructions as they stand now."""
        return self._instructions

    def __len__(self) -> int:
        return len(self._instructions)

    def __iter__(self) -> Iterator[Instruction]:
        """Each instruction in turn; the loop may insert, replace and remove instructions anywhere."""
        k = 0
        while True:
            changes, bits = self._changes, self._bits
            for i in islice(self._instructions, k, None):
                position = i.position
                yield i
                if changes != self._changes:
                    break
            else:
                return
            position <<= self._bits - bits
            k = bisect_right(self._instructions, position, key=POSITION)

    # Questions.

    def readers(self, s: Storage) -> tuple[Instruction, ...]:
        """The instructions that read (part of) a storage, in order."""
        return tuple(self._readers.get(s, ()))

    def writers(self, s: Storage) -> tuple[Instruction, ...]:
        """The instructions that write (part of) a storage, in order."""
        return tuple(self._writers.get(s, ()))

    def users(self, s: Storage) -> list[Instruction]:
        """The instructions that read or write a storage, in order."""
        readers, writers = self._readers.get(s, ()), self._writers.get(s, ())
        return sorted(dict.fromkeys((*readers, *writers)), key=POSITION)

    def is_temporary(self, s: Storage) -> bool:
        """Return whether only instructions see what a storage holds."""
        return s.segment == ARENA and not s.is_feed and s not in self.output_storages

    def is_read_between(self, s: Storage, first: Instruction, last: Instruction) -> bool:
        """Return whether an instruction after `first` and before `last` reads a storage."""
        return any(first.position < i.position < last.position for i in self._readers.get(s, ()))

    def is_written_between(self, s: Storage, first: Instruction, last: Instruction) -> bool:
        """Return whether an instruction after `first` and before `last` writes a storage."""
        return any(first.position < i.position < last.position for i in self._writers.get(s, ()))

    def is_written_from(self, s: Storage, first: Instruction, last: Instruction) -> bool:
        """Return whether `first` or an instruction after it and before `last` writes a storage."""
        return any(first.position <= i.position < last.position for i in self._writers.get(s, ()))

    def is_used_from(self, s: Storage, first: Instruction, last: Instruction) -> bool:
        """Return whether `first` or an instruction after it and before `last` reads or writes a storage."""
        some = (*self._readers.get(s, ()), *self._writers.get(s, ()))
        return any(first.position <= i.position < last.position for i in some)

    # Changes.

    def build(self, node: str) -> Builder:
        """A builder of instructions for this program; they are in it once they are inserted."""
        return self.builder.fresh(node)

    def append(self, *new: Instruction) -> None:
        """Add instructions at the end."""
        self._insert(len(self._instructions), new)

    def insert_first(self, *new: Instruction) -> None:
        """Add instructions at the beginning."""
        self._insert(0, new)

    def insert_before(self, anchor: Instruction, *new: Instruction) -> None:
        """Add instructions right before `anchor`."""
        self._insert(self._at(anchor), new)

    def remove(self, i: Instruction) -> None:
        """Take an instruction out."""
        del self._instructions[self._at(i)]
        self._forget(i)
        self._changes += 1

    def replace(self, old: Instruction, *new: Instruction) -> None:
        """Put instructions (or nothing) in the place of `old`."""
        if not new:
            self.remove(old)
            return
        at, position = self._at(old), old.position
        self._forget(old)
        self._instructions[at], new[0].position = new[0], position
        self._note(new[0])
        if len(new) > 1:
            self._insert(at + 1, new[1:])

    def rebuild(self, instructions: Iterable[Instruction]) -> None:
        """Replace all instructions."""
        self._instructions: list[Instruction] = list(instructions)
        self._readers: dict[Storage, list[Instruction]] = {}
        self._writers: dict[Storage, list[Instruction]] = {}
        self._changes, self._bits = 0, GAP_BITS
        for k, i in enumerate(self._instructions, 1):
            i.position = k << GAP_BITS
            self._note(i)

    def _at(self, i: Instruction) -> int:
        return bisect_left(self._instructions, i.position, key=POSITION)

    def _insert(self, at: int, new: Sequence[Instruction]) -> None:
        before = self._instructions[at - 1].position if at else 0
        if at == len(self._instructions):
            after = before + ((len(new) + 1) << self._bits)
        else:
            while self._instructions[at].position - before <= len(new):
                for i in self._instructions:  # makes room between them
                    i.position <<= GAP_BITS
                self._bits += GAP_BITS
                before <<= GAP_BITS
            after = self._instructions[at].position
        for k, i in enumerate(new, 1):
            i.position = before + (after - before) * k // (len(new) + 1)
            self._note(i)
        self._instructions[at:at] = new
        self._changes += 1

    def _note(self, i: Instruction) -> None:
        for index, bufs in ((self._readers, i.reads), (self._writers, i.writes)):
            for b in bufs:
                users = index.get(b.storage)
                if users is None:
                    index[b.storage] = [i]
                elif users[-1].position < i.position:
                    users.append(i)
                else:
                    at = bisect_left(users, i.position, key=POSITION)
                    if at == len(users) or users[at] is not i:
                        users.insert(at, i)

    def _forget(self, i: Instruction) -> None:
        for index, bufs in ((self._readers, i.reads), (self._writers, i.writes)):
            for s in {b.storage for b in bufs}:
                users = index[s]
                if len(users) == 1:
                    del index[s]
                else:
                    del users[bisect_left(users, i.position, key=POSITION)]
        i.position = -1
