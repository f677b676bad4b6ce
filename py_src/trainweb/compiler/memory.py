"""Places every storage: arena offsets by liveness, constants one after the other."""

from __future__ import annotations

from bisect import insort
from math import prod

from trainweb.compiler.lower import ARENA, CONSTANTS, Buf, ElementwiseCall, Instruction, Storage

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
        nbytes = align(max(nbytes, 1))
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
        insort(self.free, (start, align(max(nbytes, 1))))
        merged: list[tuple[int, int]] = []
        for begin, length in self.free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self.free = merged


def place(instructions: list[Instruction], feeds: list[Buf], outputs: list[Buf]) -> tuple[int, bytes]:
    """Give every storage an offset.

    Returns
    -------
    arena_bytes, constants
        Size of the arena, and the contents of the constants segment.
    """
    last: dict[Storage, int] = {}
    for k, instruction in enumerate(instructions):
        for b in (*instruction.reads, *instruction.writes):
            last[b.storage] = k
    for b in outputs:
        last[b.storage] = len(instructions)
    arena = Arena()
    for s in (*last, *(b.storage for b in feeds)):
        if s.segment in (ARENA, CONSTANTS):
            s.offset = None  # of an earlier attempt
    for b in feeds:
        if b.storage.offset is None:
            b.storage.offset = arena.take(b.storage.nbytes)
    ends: dict[int, list[Storage]] = {}
    for storage, k in last.items():
        if storage.segment == ARENA:
            ends.setdefault(k, []).append(storage)
    owners: dict[Storage, Storage] = {}
    for k, instruction in enumerate(instructions):
        for b in instruction.writes:
            storage = b.storage
            if storage.segment == ARENA and storage.offset is None:
                donor = _in_place_donor(instruction, b, last, k, owners)
                if donor is not None:
                    storage.offset = donor.offset
                    owners[donor] = storage
                else:
                    storage.offset = arena.take(storage.nbytes)
        for storage in ends.get(k, ()):
            # A donor's place now belongs to the output that took it over.
            if storage not in owners and storage.offset is not None:
                arena.give(storage.offset, storage.nbytes)
    for b in outputs:
        if b.storage.segment == ARENA and b.storage.offset is None:
            b.storage.offset = arena.take(b.storage.nbytes)
    return arena.size, _constants(instructions, outputs)


def _in_place_donor(
    instruction: Instruction, out: Buf, last: dict[Storage, int], k: int, owners: dict[Storage, Storage]
) -> Storage | None:
    # An elementwise result may overwrite an operand that nobody reads afterwards, as long as it goes where the same
    # element was read.
    if not isinstance(instruction, ElementwiseCall):
        return None
    size = prod(instruction.shape)
    for b in instruction.ins:
        s = b.storage
        if (
            s.segment == ARENA and last[s] == k and s.offset is not None and s not in owners
            and b.shift == 0 and out.shift == 0 and b.size == size and not s.is_feed
            and s.nbytes == out.storage.nbytes and b.nbytes == out.nbytes == s.nbytes
            and sum(other.storage is s for other in (*instruction.ins, *instruction.outs)) == 1
        ):  # fmt: skip
            return s
    return None


def _constants(instructions: list[Instruction], outputs: list[Buf]) -> bytes:
    blob = bytearray()
    for b in [*(b for i in instructions for b in i.reads), *outputs]:
        s = b.storage
        if s.segment == CONSTANTS and s.offset is None:
            blob += bytes(align(len(blob)) - len(blob))
            s.offset = len(blob)
            blob += s.data or b""
    return bytes(blob)
