"""Calls of hoist. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class SkipIfCurrent(KernelCall):
    """A call of `skip_if_current`.

    Skip the next `instructions` if they ran since parameters changed last; trained 0: since they were loaded.
    """

    __slots__ = ("state", "seen", "instructions", "trained")
    KERNEL = "skip_if_current"
    OPCODE = 54
    WORDS = 4
    ARGUMENTS = __slots__
    OPERANDS = ("state", "seen")

    def __init__(self, *, state: Buf, seen: Buf, instructions: int, trained: int, node: str = "") -> None:
        self.node = node
        self.state = state
        self.seen = seen
        self.instructions = instructions
        self.trained = trained

    @property
    def reads(self) -> list[Buf]:
        return [self.state, self.seen]

    @property
    def writes(self) -> list[Buf]:
        return []


class NoteCurrent(KernelCall):
    """A call of `note_current`.

    They ran.
    """

    __slots__ = ("state", "seen")
    KERNEL = "note_current"
    OPCODE = 55
    WORDS = 2
    ARGUMENTS = __slots__
    OPERANDS = ("state", "seen")

    def __init__(self, *, state: Buf, seen: Buf, node: str = "") -> None:
        self.node = node
        self.state = state
        self.seen = seen

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.seen]


class NoteChange(KernelCall):
    """A call of `note_change`.

    This plan has changed parameters.
    """

    __slots__ = ("state",)
    KERNEL = "note_change"
    OPCODE = 56
    WORDS = 1
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, node: str = "") -> None:
        self.node = node
        self.state = state

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]
