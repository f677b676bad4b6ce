"""Calls of random. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class Dropout(KernelCall):
    """A call of `dropout_f32`.

    y = x / (1 - ratio) where a random number is >= ratio, else 0; mask 1 where kept
    """

    __slots__ = ("x", "y", "mask", "state", "n", "ratio", "salt", "draw")
    KERNEL = "dropout_f32"
    OPCODE = 51
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("x", "y", "mask", "state")
    FLOATS = ("ratio",)
    OPTIONAL_RESULTS = ("mask",)

    def __init__(
        self,
        *,
        x: Buf,
        y: Buf,
        mask: Buf | None = None,
        state: Buf,
        n: int,
        ratio: float,
        salt: int,
        draw: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.x = x
        self.y = y
        self.mask = mask
        self.state = state
        self.n = n
        self.ratio = ratio
        self.salt = salt
        self.draw = draw

    @property
    def reads(self) -> list[Buf]:
        return [self.x, self.state]

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.mask is not None:
            found.append(self.mask)
        return found


class Random(KernelCall):
    """A call of `random_f32`.

    normal 0: uniform in [a, b); 1: normal with mean a and standard deviation b
    """

    __slots__ = ("y", "state", "n", "salt", "draw", "normal", "a", "b")
    KERNEL = "random_f32"
    OPCODE = 52
    WORDS = 8
    ARGUMENTS = __slots__
    OPERANDS = ("y", "state")
    FLOATS = ("a", "b")

    def __init__(
        self, *, y: Buf, state: Buf, n: int, salt: int, draw: int, normal: int, a: float, b: float, node: str = ""
    ) -> None:
        self.node = node
        self.y = y
        self.state = state
        self.n = n
        self.salt = salt
        self.draw = draw
        self.normal = normal
        self.a = a
        self.b = b

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.y]


class RandomAdvance(KernelCall):
    """A call of `random_advance`.

    random offset += n: the next step draws other numbers
    """

    __slots__ = ("state", "n")
    KERNEL = "random_advance"
    OPCODE = 53
    WORDS = 2
    ARGUMENTS = __slots__
    OPERANDS = ("state",)

    def __init__(self, *, state: Buf, n: int, node: str = "") -> None:
        self.node = node
        self.state = state
        self.n = n

    @property
    def reads(self) -> list[Buf]:
        return [self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.state]
