"""Cuts the instructions of a step: the kernels run the head before the body on the GPU, and the tail after it.

The head reads feeds, constants and the session's state: checks of labels and indices, counters, schedules, and scalars
in float64. All else is the body. A step that only looks has a tail, too: calls without a kernel for the GPU, such as
metrics in float64, and what depends on them. Nothing goes from the GPU to the host and back within a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainweb import messages
from trainweb.backend.memory import Accesses
from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates import TEMPLATES
from trainweb.ir import calls
from trainweb.ir.expr import walk
from trainweb.ir.indices import Bounds, check_of
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, LARGE_CONSTANTS, STATE

OF_TAIL = (ARENA, CONSTANTS, LARGE_CONSTANTS)
"""Segments that a tail uses. All others stay on the GPU."""
LEFT_OUT = (calls.FlushMoments,)
"""Calls that a GPU does without: it may flush subnormal numbers, and is not slowed down by them."""


def for_memory(kernels: list[Kernel]) -> Instruction | Accesses:
    """The call of some kernels for the memory plan. Their scratch is a result; an elementwise one may take a place."""
    call: Instruction = kernels[0].call
    if isinstance(call, ElementwiseCall):
        return call
    accessed = {b.storage for k in kernels for b in k.operands}
    writes = [b for b in call.writes if b.storage.segment != ARENA or b.storage in accessed]
    return Accesses(call.reads, [*writes, *kernels[0].rooms.values()])


@dataclass(slots=True)
class Parts:
    """Head and tail, on separate storages, and the body."""

    head: list[Instruction] = field(default_factory=list)
    body: list[list[Kernel]] = field(default_factory=list)
    """By instruction."""
    tail: list[Instruction] = field(default_factory=list)
    uploads: dict[Storage, Storage] = field(default_factory=dict)
    """By a storage in the body, that of the head, whose bytes go up."""
    downloads: dict[Storage, Storage] = field(default_factory=dict)
    """By a storage in the body, that of the tail, to which its bytes come down: also results, where there is a tail."""
    places: dict[Storage, Storage] = field(default_factory=dict)
    """By a storage of the program, that of head and tail."""
    results: set[Storage] = field(default_factory=set)
    """Storages of the program that the head writes."""
    late: set[Storage] = field(default_factory=set)
    """Storages of the program that the tail writes."""
    used: set[Storage] = field(default_factory=set)
    """Storages of the program that the tail reads or writes."""
    bounds: Bounds = field(default_factory=Bounds)
    """Of indices that the body computes."""
    state: dict[tuple[int | None, int, int], Buf] = field(default_factory=dict)
    """Copies of words of the session's state, by their place."""

    def in_head(self, b: Buf) -> Buf:
        """The tensor as head and tail have it: their arena and constants are the kernels'."""
        s = b.storage
        if s.segment not in (ARENA, CONSTANTS, LARGE_CONSTANTS):
            return b
        if s not in self.places:
            segment = ARENA if s.segment == ARENA else CONSTANTS
            self.places[s] = Storage(segment, s.nbytes, data=s.data, is_feed=s.is_feed, name=s.name)
        return b.among(self.places)

    def is_known(self, b: Buf) -> bool:
        """Return whether the head can read it."""
        return b.is_initial or b.storage.segment in (STATE, LARGE_CONSTANTS) or b.storage in self.results

    def add_to_head(self, i: Instruction) -> None:
        """Let the kernels run an instruction."""
        self.head.append(i.moved(self.in_head, i.node))
        self.results |= {b.storage for b in i.writes if b.storage.segment == ARENA}
        if any(b.storage.segment == STATE for b in i.writes):
            self.state.clear()

    def add_to_tail(self, i: Instruction) -> None:
        """Let the kernels run an instruction after the body."""
        self.tail.append(i.moved(self.in_head, i.node))
        self.late |= {b.storage for b in i.writes}
        self.used |= {b.storage for b in (*i.reads, *i.writes)}

    def is_late(self, i: Instruction) -> bool:
        """Return whether an instruction needs what the tail makes, or changes what it uses."""
        return any(b.storage in self.late for b in i.reads) or any(b.storage in self.used for b in i.writes)

    def with_state(self, i: Instruction) -> Instruction:
        """The call of the body on a copy of the state, which the head makes."""
        is_body = not all(map(self.is_known, i.reads)) if isinstance(i, ElementwiseCall) else type(i) in TEMPLATES
        if not is_body or all(b.storage.segment != STATE for b in i.reads):
            return i
        return i.moved(lambda b: self._copied(b, i.node) if b.storage.segment == STATE else b, i.node)

    def _copied(self, state: Buf, node: str) -> Buf:
        place = (state.storage.offset, state.shift, state.nbytes)
        if place not in self.state:
            copy = Buf(Storage(ARENA, state.nbytes), state.dtype, state.shape, name="state")
            call = calls.Copy(src=state, dst=copy, n=state.nbytes)
            call.node = node
            self.add_to_head(call)
            self.state[place] = copy
        return self.state[place]

    def add_to_body(self, i: Instruction, kernels: list[Kernel]) -> None:
        """Let the GPU run an instruction, and the head check integers that it computed for it."""
        self.body.append(kernels)
        self.bounds.note(i)
        for b in i.reads:
            if b.storage in self.results and (b.dtype == "int64" or b in i.checked):
                check = check_of(i, b)
                check.node = i.node
                self.add_to_head(check)


def cut(instructions: Sequence[Instruction], outputs: Iterable[Buf]) -> Parts:
    """Cut a program; raise UnsupportedError for an instruction of the body without a template."""
    parts, of_head = Parts(), _of_head(instructions)
    only_looks = all(b.storage.segment in (ARENA, STATE) for i in instructions for b in i.writes)
    only_looks &= all(b.storage.segment in OF_TAIL for b in outputs)
    for original in instructions:
        if isinstance(original, LEFT_OUT):
            continue
        i = parts.with_state(original)
        is_late = parts.is_late(i)
        may_be_head = all(map(parts.is_known, i.reads)) and all(b.storage.segment in (ARENA, STATE) for b in i.writes)
        kernels, reason = ([], "") if is_late else _kernels(i, parts)
        goes_on = any(b.storage in parts.results for b in i.writes)
        if may_be_head and not is_late and (not kernels or goes_on or original in of_head):
            parts.add_to_head(original)
        elif kernels and not goes_on:
            parts.add_to_body(i, kernels)
        elif only_looks and all(b.storage.segment in OF_TAIL for b in (*i.reads, *i.writes)):
            parts.add_to_tail(i)
        else:
            raise messages.NO_GPU_KERNEL(node=i.node, what=reason or "a result that the host makes")
    written = {b.storage for k, *_ in parts.body for b in k.call.writes}
    needed = [b.storage for k, *_ in parts.body for b in k.call.reads]
    if parts.tail:
        parts.used |= {b.storage for b in outputs}
        parts.places |= {b.storage: parts.in_head(b).storage for b in outputs}
    else:
        needed += [b.storage for b in outputs]
    parts.uploads = {s: parts.places[s] for s in needed if s in parts.results}
    parts.downloads = {s: place for s, place in parts.places.items() if s in parts.used & written}
    return parts


def _of_head(instructions: Sequence[Instruction]) -> set[Instruction]:
    """The instructions that the head runs where it can, though the body could.

    They compute indices, or integers for calls that only the kernels can run, such as counters.
    """
    makers, wanted = set[Instruction](), set[Storage]()
    for i in reversed(instructions):
        is_of_integers = all(b.dtype != "float32" for b in i.reads)
        if any(b.storage in wanted for b in i.writes) or (is_of_integers and not _kernels(i, Parts())[0]):
            makers.add(i)
            wanted |= {b.storage for b in i.reads}
        wanted |= {b.storage for b in i.checked if not b.is_initial}
    return makers


def _kernels(i: Any, parts: Parts) -> tuple[list[Kernel], str]:
    """The kernels of an instruction of the body, or the reason why it has none."""
    make = TEMPLATES.get(type(i))
    if not all(b.size for b in i.writes):
        return [], "results without elements"
    if make is None:
        return [], f"the kernel {i.KERNEL}"
    if not all(parts.is_known(b) or parts.bounds.are_inside(i, b) for b in i.checked):
        return [], "indices that the GPU computes"
    known = [b.storage for b in i.reads if b.dtype == "int64" and parts.is_known(b)]
    constants = (array("q", bytes(getattr(s.data, "data", s.data))) for s in known if s.data)
    if any(not -(2**31) <= n < 2**31 for values in constants for n in values):
        return [], "constants of int64 beyond 32 bits"
    # What the head knows has 32 bits, but a sum may have more.
    adds = isinstance(i, ElementwiseCall) and any(x.dtype == "int64" and x.op in ("add", "sub") for x in walk(i.roots))
    if adds and not all(s.data for s in known):
        return [], "sums of int64"
    try:
        return make(i), ""
    except NoKernelError as error:
        return [], str(error)
