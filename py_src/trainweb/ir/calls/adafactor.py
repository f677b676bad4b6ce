"""Calls of adafactor. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable

from trainweb.ir.calls.sizes import bands, chunks
from trainweb.ir.instructions import Buf, KernelCall


class Adafactor(KernelCall):
    """A call of `adafactor_f32`.

    A step of a parameter [batch, n, m], whose squares are averaged by row and by column: torch.optim.Adafactor
    """

    __slots__ = (
        "w",
        "g",
        "rows",
        "columns",
        "partial",
        "inverse",
        "means",
        "sums",
        "state",
        "batch",
        "n",
        "m",
        "beta2_decay",
        "epsilon",
        "scale_epsilon",
        "clip_threshold",
        "weight_decay",
    )
    KERNEL = "adafactor_f32"
    OPCODE = 49
    WORDS = 17
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "rows", "columns", "partial", "inverse", "means", "sums", "state")
    FLOATS = ("beta2_decay", "epsilon", "scale_epsilon", "clip_threshold", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        rows: Buf,
        columns: Buf,
        state: Buf,
        batch: int,
        n: int,
        m: int,
        beta2_decay: float,
        epsilon: float,
        scale_epsilon: float,
        clip_threshold: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.rows = rows
        self.columns = columns
        self.partial: Buf
        self.inverse: Buf
        self.means: Buf
        self.sums: Buf
        self.state = state
        self.batch = batch
        self.n = n
        self.m = m
        self.beta2_decay = beta2_decay
        self.epsilon = epsilon
        self.scale_epsilon = scale_epsilon
        self.clip_threshold = clip_threshold
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.rows, self.columns, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.rows, self.columns, self.partial, self.inverse, self.means, self.sums]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.partial = temp("float32", (max(1, (bands(self.n) > 1) * self.batch * bands(self.n) * self.m),))
        self.inverse = temp("float32", (max(1, self.batch * self.m),))
        self.means = temp("float32", (max(1, self.batch),))
        self.sums = temp("float32", (max(1, 16 * chunks(self.batch * self.n * self.m) + 4),))


class AdafactorVector(KernelCall):
    """A call of `adafactor_vector_f32`.

    The same of a vector, whose squares are averaged themselves
    """

    __slots__ = (
        "w",
        "g",
        "s",
        "sums",
        "state",
        "n",
        "beta2_decay",
        "epsilon",
        "scale_epsilon",
        "clip_threshold",
        "weight_decay",
    )
    KERNEL = "adafactor_vector_f32"
    OPCODE = 50
    WORDS = 11
    ARGUMENTS = __slots__
    OPERANDS = ("w", "g", "s", "sums", "state")
    FLOATS = ("beta2_decay", "epsilon", "scale_epsilon", "clip_threshold", "weight_decay")

    def __init__(
        self,
        *,
        w: Buf,
        g: Buf,
        s: Buf,
        state: Buf,
        n: int,
        beta2_decay: float,
        epsilon: float,
        scale_epsilon: float,
        clip_threshold: float,
        weight_decay: float,
        node: str = "",
    ) -> None:
        self.node = node
        self.w = w
        self.g = g
        self.s = s
        self.sums: Buf
        self.state = state
        self.n = n
        self.beta2_decay = beta2_decay
        self.epsilon = epsilon
        self.scale_epsilon = scale_epsilon
        self.clip_threshold = clip_threshold
        self.weight_decay = weight_decay

    @property
    def reads(self) -> list[Buf]:
        return [self.w, self.g, self.s, self.state]

    @property
    def writes(self) -> list[Buf]:
        return [self.w, self.s, self.sums]

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.sums = temp("float32", (max(1, 4 * chunks(self.n)),))
