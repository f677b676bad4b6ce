"""Places every storage: arena offsets by liveness, constants one after the other, large ones in a segment apart."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import prod

from trainweb.backend.plan import LargeConstants, TensorPlace
from trainweb.ir.arena import ALIGNMENT, Arena, align
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, LARGE_CONSTANTS
from trainweb.model.lazy import LARGE, LazyTensor


@dataclass(frozen=True, slots=True)
class Accesses:
    """Tensors that some kernels read and write."""

    reads: list[Buf]
    writes: list[Buf]


@dataclass(eq=False, slots=True)
class _Allocation:
    """Storages that take one place after the other, and from which to which instruction it is theirs."""

    storages: list[Storage]
    nbytes: int
    first: int
    last: int
    offset: int = 0


def place(
    instructions: Sequence[Instruction | Accesses],
    feeds: Sequence[Buf],
    outputs: Sequence[Buf],
    inner: frozenset[Storage] | None = None,
    alignment: int = ALIGNMENT,
) -> int:
    """Give every storage of the arena an offset, or only the storages of `inner`; returns the size of the arena."""
    allocations = _allocations(instructions, feeds, outputs, inner, alignment)
    size = _place_in_order(allocations)
    # No placement takes less than what is there at one time.
    if size > max(_there(allocations, lambda t: t.nbytes).values(), default=0):
        offsets = [t.offset for t in allocations]
        by_size = _place_by_size(allocations, size)
        if by_size < size:
            size = by_size
        else:
            for t, offset in zip(allocations, offsets, strict=True):
                t.offset = offset
    for t in allocations:
        for s in t.storages:
            s.offset = t.offset
    return size


def _allocations(
    instructions: Sequence[Instruction | Accesses],
    feeds: Sequence[Buf],
    outputs: Sequence[Buf],
    inner: frozenset[Storage] | None,
    alignment: int,
) -> list[_Allocation]:
    """Allocations of the arena, in the order in which they come."""
    last: dict[Storage, int] = {}
    for k, instruction in enumerate(instructions):
        for b in (*instruction.reads, *instruction.writes):
            last[b.storage] = k
    for b in outputs:
        last[b.storage] = len(instructions)
    allocations: dict[Storage, _Allocation] = {}
    in_order: list[_Allocation] = []

    def add(s: Storage, k: int) -> None:
        if s.segment == ARENA and s not in allocations and (inner is None or s in inner):
            nbytes = align(max(s.nbytes, 1), alignment)
            allocations[s] = allocation = _Allocation([s], nbytes, k, last.get(s, len(instructions)))
            in_order.append(allocation)

    for b in feeds:
        add(b.storage, -1)
    for k, instruction in enumerate(instructions):
        for b in instruction.writes:
            is_new = b.storage not in allocations and (inner is None or b.storage in inner)
            donor = _in_place_donor(instruction, b, last, k, allocations) if is_new else None
            if donor is not None:
                allocations[b.storage] = donor
                donor.storages.append(b.storage)
                donor.last = last[b.storage]
            else:
                add(b.storage, k)
    for b in outputs:
        add(b.storage, len(instructions))
    return in_order


def _there(allocations: list[_Allocation], weight: Callable[[_Allocation], int]) -> dict[int, int]:
    """The weights of the allocations that are there together, from each instruction on where they change."""
    changes: dict[int, int] = {}
    for t in allocations:
        changes[t.first] = changes.get(t.first, 0) + weight(t)
        changes[t.last + 1] = changes.get(t.last + 1, 0) - weight(t)
    order = sorted(changes)
    return dict(zip(order, accumulate(changes[k] for k in order), strict=True))


def _place_in_order(allocations: list[_Allocation]) -> int:
    """Place allocations as they come, each where it fits best; returns the size of the arena."""
    arena = Arena()
    leaving: list[tuple[int, int, _Allocation]] = []
    for k, t in enumerate(allocations):
        while leaving and leaving[0][0] < t.first:
            gone = heappop(leaving)[2]
            arena.give(gone.offset, gone.nbytes)
        t.offset = arena.take(t.nbytes)
        heappush(leaving, (t.last, k, t))
    return arena.size


RUN = 32
"""Instructions that share a list of who is there, in `_place_by_size`. Half of the allocations live through fewer."""


def _place_by_size(allocations: list[_Allocation], limit: int) -> int:
    """Place the largest first, each as low as those allow that are there at the same time.

    Returns the size, or no less than `limit` as soon as it is known to be no smaller; then some have no place.

    Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy by size.
    """
    counts = _there(allocations, lambda t: 1)
    crowded = max(counts, key=counts.__getitem__)
    placed: list[_Span] = []
    there: dict[int, list[_Span]] = {}
    # Storages that live through the crowded instruction all meet each other, so that they are as one where they lie
    # side by side.
    others: list[_Span] = []
    together = Arena()
    size = 0
    for t in sorted(allocations, key=lambda t: -t.nbytes):
        first, last, nbytes = t.first, t.last, t.nbytes
        runs = range(first // RUN, last // RUN + 1)
        lives_through = first <= crowded <= last
        if lives_through:
            near = sorted([*others, *((start, start + n, crowded, crowded) for start, n in together.free)])
        else:
            # A storage that lives in one run only meets storages that are there in it.
            near = there.get(runs[0], []) if len(runs) == 1 else placed
        offset = _lowest(near, first, last, nbytes)
        t.offset = offset
        size = max(size, offset + nbytes)
        if size >= limit:
            break
        span = (offset, offset + nbytes, first, last)
        insort(placed, span)
        if lives_through:
            together.give(offset, nbytes)
        else:
            insort(others, span)
        for run in runs:
            insort(there.setdefault(run, []), span)
    return size


_Span = tuple[int, int, int, int]
"""Start and end of an allocation, and its first and last instruction."""


def _lowest(near: list[_Span], first: int, last: int, nbytes: int) -> int:
    """Return the lowest gap of so many bytes between the spans of `near`, in order, that live in these instructions."""
    offset, above = 0, nbytes
    for start, end, begins, ends in near:
        if begins <= last and first <= ends:
            if start >= above:
                break
            if end > offset:
                offset, above = end, end + nbytes
    return offset


def _in_place_donor(
    instruction: Instruction | Accesses,
    out: Buf,
    last: dict[Storage, int],
    k: int,
    allocations: dict[Storage, _Allocation],
) -> _Allocation | None:
    # An elementwise result may overwrite an operand that nobody reads afterwards, as long as it goes where the same
    # element was read.
    if not isinstance(instruction, ElementwiseCall) or out.storage.segment != ARENA:
        return None
    size = prod(instruction.shape)
    for b in instruction.ins:
        s = b.storage
        if (
            s in allocations
            and last[s] == k
            and allocations[s].storages[-1] is s
            and b.shift == 0
            and out.shift == 0
            and b.size == size
            and not s.is_feed
            and s.nbytes == out.storage.nbytes
            and b.nbytes == out.nbytes == s.nbytes
            and sum(other.storage is s for other in (*instruction.ins, *instruction.outs)) == 1
        ):
            return allocations[s]
    return None


def place_constants(instructions: Sequence[Instruction], outputs: Sequence[Buf]) -> tuple[bytes, LargeConstants]:
    """Give every constant its segment and offset; returns the contents of the two segments.

    Large constants that are tensors of the graph lie in the order of their names. Plans that read the same constants
    therefore share them.
    """
    large, end = [], 0
    storages = [b.storage for b in [*(b for i in instructions for b in i.reads), *outputs]]
    constants = dict.fromkeys(s for s in storages if s.segment == CONSTANTS)
    for s in sorted(constants, key=lambda s: s.name):
        if isinstance(s.data, LazyTensor) or (s.data and s.name and s.nbytes >= LARGE):
            s.segment, s.offset = LARGE_CONSTANTS, align(end)
            end = s.offset + s.nbytes
            large.append((s.offset, s.data))
    pieces, end = [], 0
    for s in constants:
        if not isinstance(s.data, LazyTensor) and s.segment == CONSTANTS:
            data = s.data or b""
            s.offset = align(end)
            pieces += [bytes(s.offset - end), data]
            end = s.offset + len(data)
    return b"".join(pieces), LargeConstants(tuple(large))


def place_of(b: Buf) -> TensorPlace:
    """The place of a tensor, once its storage is placed."""
    return TensorPlace(b.name, b.storage.segment, (b.storage.offset or 0) + b.shift, b.nbytes, b.dtype, b.shape)
