"""Cuts the instructions of a step in two: the head, which the kernels run before, and the body on the GPU.

The head reads feeds, constants and the session's state: checks of labels and indices, counters, schedules, and scalars
in float64. All else is the body. Nothing of the body may be needed on the host within a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainweb import messages
from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates import kernels_of
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, STATE

HEAD_CALLS = (calls.CheckIndices, calls.OptimizerAdvance, calls.LinearLr, calls.RandomAdvance, calls.NoteChange)
"""Calls about state and feeds, which only the head makes."""
LEFT_OUT = (calls.FlushMoments,)
"""Calls that a GPU does without: it may flush subnormal numbers, and is not slowed down by them."""


@dataclass(slots=True)
class BodyPart:
    """An instruction of the body; the memory plan sees the scratch of its kernels as results."""

    call: Instruction
    kernels: list[Kernel]

    def for_memory(self) -> Instruction:
        """What the memory plan is to see: an elementwise call may take an operand's place."""
        scratch = [s for k in self.kernels for s in k.scratch]
        if isinstance(self.call, ElementwiseCall) and not scratch:
            return self.call
        return _Accesses(self.call.reads, [*self.call.writes, *(Buf(s, "uint8", (s.nbytes,)) for s in scratch)])


class _Accesses(KernelCall):
    def __init__(self, reads: list[Buf], writes: list[Buf]) -> None:
        self._read, self._written, self.node = reads, writes, ""

    @property
    def reads(self) -> list[Buf]:
        return self._read

    @property
    def writes(self) -> list[Buf]:
        return self._written


@dataclass(slots=True)
class Parts:
    """The head, on storages of its own, and the body; `uploads` are made by the one and read by the other."""

    head: list[Instruction] = field(default_factory=list)
    body: list[BodyPart] = field(default_factory=list)
    uploads: dict[Storage, Storage] = field(default_factory=dict)
    """By the storage in the body, the one in the head."""
    places: dict[Storage, Storage] = field(default_factory=dict)
    """By a storage of the program, the head's."""

    def in_head(self, b: Buf) -> Buf:
        """The tensor as the head has it: its arena and its constants are the kernels'."""
        s = b.storage
        if s.segment not in (ARENA, CONSTANTS):
            return b
        if s not in self.places:
            self.places[s] = Storage(s.segment, s.nbytes, data=s.data, is_feed=s.is_feed, name=s.name)
        return b.among(self.places)


def cut(instructions: Iterable[Instruction], outputs: Iterable[Buf]) -> Parts:
    """Cut a program.

    Raises
    ------
    UnsupportedError
        An instruction of the body has no template.
    """
    parts, made = Parts(), set[Storage]()
    for i in instructions:
        if isinstance(i, LEFT_OUT):
            continue
        given = all(b.is_given or b.storage.segment == STATE or b.storage in made for b in i.reads)
        may_be_head = given and all(b.storage.segment in (ARENA, STATE) for b in i.writes)
        kernels, reason = _kernels(i)
        if may_be_head and not kernels:
            parts.head.append(i.moved(parts.in_head, i.node))
            made |= {b.storage for b in i.writes if b.storage.segment == ARENA}
        elif not kernels or any(b.storage in made for b in i.writes):
            raise messages.NO_GPU_KERNEL(node=i.node, what=reason or "a result that the host made before")
        else:
            parts.body.append(BodyPart(i, kernels))
    needed = [b.storage for part in parts.body for b in part.call.reads] + [b.storage for b in outputs]
    parts.uploads = {s: parts.places[s] for s in needed if s in made}
    return parts


def _kernels(i: Instruction) -> tuple[list[Kernel], str]:
    """The kernels of an instruction of the body, or the reason why it has none."""
    if isinstance(i, HEAD_CALLS):
        return [], f"the kernel {i.KERNEL}"
    try:
        return kernels_of(i), ""
    except NoKernelError as error:
        return [], str(error)
