"""Cuts the instructions of a step in two: the head, which the kernels run before, and the body on the GPU.

The head reads feeds, constants and the session's state: checks of labels and indices, counters, schedules, and scalars
in float64. All else is the body. Nothing of the body may be needed on the host within a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainweb import messages
from trainweb.backend.memory import Accesses
from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates import TEMPLATES
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, STATE
from trainweb.model.graph import ITEM_SIZE

LEFT_OUT = (calls.FlushMoments,)
"""Calls that a GPU does without: it may flush subnormal numbers, and is not slowed down by them."""


@dataclass(slots=True)
class BodyPart:
    """An instruction of the body; the memory plan sees the scratch of its kernels as results."""

    call: Instruction
    kernels: list[Kernel]

    def for_memory(self) -> Instruction | Accesses:
        """The call for the memory plan: an elementwise call may take an operand's place."""
        if isinstance(self.call, ElementwiseCall):
            return self.call
        scratch = [s for k in self.kernels for s in k.scratch]
        accessed = {b.storage for k in self.kernels for b in k.operands}
        writes = [b for b in self.call.writes if b.storage.segment != ARENA or b.storage in accessed]
        return Accesses(self.call.reads, [*writes, *(Buf(s, "uint8", (s.nbytes,)) for s in scratch)])


@dataclass(slots=True)
class Parts:
    """The head, on separate storages, and the body; the head writes `uploads`, and the body reads them."""

    head: list[Instruction] = field(default_factory=list)
    body: list[BodyPart] = field(default_factory=list)
    uploads: dict[Storage, Storage] = field(default_factory=dict)
    """By the storage in the body, the one in the head."""
    places: dict[Storage, Storage] = field(default_factory=dict)
    """By a storage of the program, the head's."""
    made: set[Storage] = field(default_factory=set)
    """Storages of the program that the head writes."""
    state: dict[tuple[int | None, int, int], Buf] = field(default_factory=dict)
    """Copies of words of the session's state, by their place."""

    def in_head(self, b: Buf) -> Buf:
        """The tensor as the head has it: its arena and its constants are the kernels'."""
        s = b.storage
        if s.segment not in (ARENA, CONSTANTS):
            return b
        if s not in self.places:
            self.places[s] = Storage(s.segment, s.nbytes, data=s.data, is_feed=s.is_feed, name=s.name)
        return b.among(self.places)

    def is_known(self, b: Buf) -> bool:
        """Return whether the head can read it."""
        return b.is_initial or b.storage.segment == STATE or b.storage in self.made

    def add_to_head(self, i: Instruction) -> None:
        """Let the kernels run an instruction."""
        self.head.append(i.moved(self.in_head, i.node))
        self.made |= {b.storage for b in i.writes if b.storage.segment == ARENA}
        if any(b.storage.segment == STATE for b in i.writes):
            self.state.clear()

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

    def check(self, i: Instruction) -> None:
        """Let the head check indices that it computed and that a call of the body reads.

        Raises
        ------
        NoKernelError
            The body computed them: nobody would check them.
        """
        for b in i.checked if isinstance(i, KernelCall) else ():
            if b.storage not in self.made:
                if not b.is_initial:
                    raise NoKernelError("indices that the GPU computes")
                continue
            call: Any = i
            is_label = hasattr(call, "has_ignore")
            size = getattr(call, "c" if is_label else "dim" if hasattr(call, "dim") else "axis_dim", None)
            if size is None:
                raise NoKernelError("computed indices along several axes")
            ignore = (call.has_ignore, call.ignore_index) if is_label else (0, 0)
            check = calls.CheckIndices(
                indices=b, n=b.size, index_size=ITEM_SIZE[b.dtype], lo=0 if is_label else -size, hi=size,
                has_ignore=ignore[0], ignore=ignore[1], label=int(is_label),
            )  # fmt: skip
            check.node = i.node
            self.add_to_head(check)


def cut(instructions: Sequence[Instruction], outputs: Iterable[Buf]) -> Parts:
    """Cut a program.

    Raises
    ------
    UnsupportedError
        An instruction of the body has no template.
    """
    parts, of_indices = Parts(), _makers_of_indices(instructions)
    for original in instructions:
        if isinstance(original, LEFT_OUT):
            continue
        i = parts.with_state(original)
        may_be_head = all(map(parts.is_known, i.reads)) and all(b.storage.segment in (ARENA, STATE) for b in i.writes)
        kernels, reason = _kernels(i, parts)
        if may_be_head and (not kernels or original in of_indices):
            parts.add_to_head(original)
        elif not kernels or any(b.storage in parts.made for b in i.writes):
            raise messages.NO_GPU_KERNEL(node=i.node, what=reason or "a result that the host made before")
        else:
            parts.body.append(BodyPart(i, kernels))
    needed = [b.storage for part in parts.body for b in part.call.reads] + [b.storage for b in outputs]
    parts.uploads = {s: parts.places[s] for s in needed if s in parts.made}
    return parts


def _makers_of_indices(instructions: Sequence[Instruction]) -> set[Instruction]:
    """The instructions that compute indices, or copies of the state to advance: the head makes them, where it can."""
    makers, wanted = set[Instruction](), set[Storage]()
    for i in reversed(instructions):
        if any(b.storage in wanted for b in i.writes):
            makers.add(i)
            wanted |= {b.storage for b in i.reads}
        if isinstance(i, KernelCall):
            wanted |= {b.storage for b in i.checked if not b.is_initial}
        if isinstance(i, calls.RandomAdvance):
            wanted |= {b.storage for b in i.reads if b.storage.segment == ARENA}
    return makers


def _kernels(i: Instruction, parts: Parts) -> tuple[list[Kernel], str]:
    """The kernels of an instruction of the body, or the reason why it has none."""
    make = TEMPLATES.get(type(i))
    if make is None:
        assert isinstance(i, KernelCall)
        return [], f"the kernel {i.KERNEL}"
    try:
        kernels = make(i)
        parts.check(i)
        return kernels, ""
    except NoKernelError as error:
        return [], str(error)
