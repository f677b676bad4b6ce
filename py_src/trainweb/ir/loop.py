"""A loop as one instruction: passes see its reads and writes; plans contain the instructions of its body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainweb.ir import calls
from trainweb.ir.instructions import Buf, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA


class LoopCall(KernelCall):
    """Instructions of which those between `loop_begin` and `loop_end` run `trips` times, or less often.

    The other instructions of `body` bring first states in and last ones out. Storages in `inner` are known to nobody
    outside; their offsets are those in `workspace`. `may_fail`: a condition in the workspace may make it fail.
    """

    KERNEL = "loop"

    def __init__(
        self,
        body: Sequence[Instruction],
        trips: int,
        inner: frozenset[Storage],
        workspace: Buf,
        node: str,
        *,
        may_fail: bool = False,
    ) -> None:
        self.body, self.trips, self.inner, self.workspace, self.node = list(body), trips, inner, workspace, node
        self.may_fail = may_fail

    def _outer(self, bufs: Iterator[Buf]) -> list[Buf]:
        """The buffers that other instructions also use, each once."""
        return list({(b.storage, b.shift, b.nbytes): b for b in bufs if b.storage not in self.inner}.values())

    @property
    def reads(self) -> list[Buf]:
        return self._outer(b for i in self.body for b in i.reads)

    @property
    def writes(self) -> list[Buf]:
        return [*self._outer(b for i in self.body for b in i.writes), self.workspace]

    @property
    def checked(self) -> list[Buf]:
        return [self.workspace] if self.may_fail else []

    def flops(self) -> int:
        return self.trips * sum(i.flops() for i in self.body if isinstance(i, KernelCall))

    def operands(self) -> Iterator[tuple[str, Buf]]:
        yield from ((f"in{k}", b) for k, b in enumerate(self.reads))
        yield from ((f"out{k}", b) for k, b in enumerate(self.writes))

    def arguments(self) -> Iterator[tuple[str, Any]]:
        yield "trips", self.trips
        yield "instructions", len(self.body)
        yield from self.operands()

    def map_operands(self, change: Callable[[Buf], Buf]) -> None:
        def outer(b: Buf) -> Buf:
            return b if b.storage in self.inner else change(b)

        self.body = [i.moved(outer, i.node) for i in self.body]
        self.workspace = change(self.workspace)

    def replace_operand(self, old: Buf, new: Buf) -> None:
        self.map_operands(lambda b: new if b is old else b)

    def __copy__(self) -> LoopCall:
        return LoopCall(self.body, self.trips, self.inner, self.workspace, self.node, may_fail=self.may_fail)

    def placed(self) -> list[Instruction]:
        """The instructions with nested loops expanded; the workspace must be placed."""
        start = (self.workspace.storage.offset or 0) + self.workspace.shift
        moved = {s: Storage(ARENA, s.nbytes, start + (s.offset or 0)) for s in self.inner if s.segment == ARENA}
        return written_out([i.moved(lambda b: b.among(moved), i.node) for i in self.body])


def written_out(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions with loops expanded; the workspace of each loop must be placed."""
    flat: list[Instruction] = []
    for i in instructions:
        flat += i.placed() if isinstance(i, LoopCall) else [i]
    return flat


def n_instructions(body: Sequence[Instruction]) -> int:
    """The number of these instructions in a plan."""
    return sum(n_instructions(i.body) if isinstance(i, LoopCall) else 1 for i in body)


def depth_of(body: Sequence[Instruction]) -> int:
    """Depth of nested loops in these instructions."""
    return max((1 + depth_of(i.body) for i in body if isinstance(i, LoopCall)), default=0)


def nested_trips(body: Sequence[Instruction]) -> int:
    """The largest product of the iterations of nested loops in these instructions."""
    inner = [i for i in body if isinstance(i, LoopCall)]
    begins = ((begin, i) for i in inner for begin in i.body if isinstance(begin, calls.LoopBegin))
    return max((begin.trips * nested_trips(i.body) for begin, i in begins), default=1)


def inner_storages(body: Sequence[Instruction], outer: Sequence[Buf]) -> frozenset[Storage]:
    """The storages of the workspace that instructions use, without `outer`."""
    known = {b.storage for b in outer}
    used = {b.storage for i in body for b in (*i.reads, *i.writes)}
    return frozenset(s for s in used if s.segment == ARENA and s not in known)
