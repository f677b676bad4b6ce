"""Calls of loop. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class LoopBegin(KernelCall):
    """A call of `loop_begin`.

    Up to its loop_end the instructions run `trips` times, with 0, 1, ... in `counter`. The verifier finds what belongs
    together: `begin` and `instruction` are where the loop begins, and `left` is how many iterations are left, whatever
    the plan says.
    """

    __slots__ = ("counter", "trips", "left")
    KERNEL = "loop_begin"
    OPCODE = 57
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("counter",)

    def __init__(self, *, counter: Buf, trips: int, left: int, node: str = "") -> None:
        self.node = node
        self.counter = counter
        self.trips = trips
        self.left = left

    @property
    def reads(self) -> list[Buf]:
        return []

    @property
    def writes(self) -> list[Buf]:
        return [self.counter]


class LoopEnd(KernelCall):
    """A call of `loop_end`."""

    __slots__ = ("counter", "begin", "instruction")
    KERNEL = "loop_end"
    OPCODE = 58
    WORDS = 3
    ARGUMENTS = __slots__
    OPERANDS = ("counter",)

    def __init__(self, *, counter: Buf, begin: int, instruction: int, node: str = "") -> None:
        self.node = node
        self.counter = counter
        self.begin = begin
        self.instruction = instruction

    @property
    def reads(self) -> list[Buf]:
        return []

    @property
    def writes(self) -> list[Buf]:
        return [self.counter]


class LoopWhile(KernelCall):
    """A call of `loop_while`.

    Leave the loop, which ends `skip` instructions further on, where `condition` is false or `count` iterations have
    run: `counter` says how many did. To go on beyond `limit` iterations is an error.
    """

    __slots__ = ("condition", "count", "counter", "limit", "skip")
    KERNEL = "loop_while"
    OPCODE = 59
    WORDS = 5
    ARGUMENTS = __slots__
    OPERANDS = ("condition", "count", "counter")
    FAILS = ("condition", "count")

    def __init__(
        self,
        *,
        condition: Buf | None = None,
        count: Buf | None = None,
        counter: Buf,
        limit: int,
        skip: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.condition = condition
        self.count = count
        self.counter = counter
        self.limit = limit
        self.skip = skip

    @property
    def reads(self) -> list[Buf]:
        found: list[Buf] = []
        if self.condition is not None:
            found.append(self.condition)
        if self.count is not None:
            found.append(self.count)
        found.append(self.counter)
        return found

    @property
    def writes(self) -> list[Buf]:
        return []


class LoopTake(KernelCall):
    """A call of `loop_take`.

    Part `counter` of `trips` parts of src, counted from the end if `reverse`.
    """

    __slots__ = ("src", "counter", "dst", "n", "trips", "reverse")
    KERNEL = "loop_take"
    OPCODE = 60
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("src", "counter", "dst")
    FAILS = ("counter",)

    def __init__(self, *, src: Buf, counter: Buf, dst: Buf, n: int, trips: int, reverse: int, node: str = "") -> None:
        self.node = node
        self.src = src
        self.counter = counter
        self.dst = dst
        self.n = n
        self.trips = trips
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        return [self.src, self.counter]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]


class LoopPut(KernelCall):
    """A call of `loop_put`.

    The same of dst.
    """

    __slots__ = ("src", "counter", "dst", "n", "trips", "reverse")
    KERNEL = "loop_put"
    OPCODE = 61
    WORDS = 6
    ARGUMENTS = __slots__
    OPERANDS = ("src", "counter", "dst")
    FAILS = ("counter",)
    PARTS = ("dst",)

    def __init__(self, *, src: Buf, counter: Buf, dst: Buf, n: int, trips: int, reverse: int, node: str = "") -> None:
        self.node = node
        self.src = src
        self.counter = counter
        self.dst = dst
        self.n = n
        self.trips = trips
        self.reverse = reverse

    @property
    def reads(self) -> list[Buf]:
        return [self.src, self.counter]

    @property
    def writes(self) -> list[Buf]:
        return [self.dst]
