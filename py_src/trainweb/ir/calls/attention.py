"""Calls of attention. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.ir.calls.sizes import mask_spans
from trainweb.ir.instructions import Buf, KernelCall


class Attention(KernelCall):
    """A call of `attention_f32`.

    y = softmax(scale * q k' + mask) v for every item of the batch: q [m, d], k [n, d], v [n, e], mask [m, n]. Strides
    are those of the batch and of rows, whose elements lie side by side. Where the mask is -infinity the score is
    `fill`. For the gradient: `top`, the largest score of each row, and `inverse`, 1 / sum(e^(score - top)). With
    `state` the probabilities go through the Dropout that dropout_f32 does with these numbers, before v.
    """

    __slots__ = (
        "q",
        "k",
        "v",
        "mask",
        "state",
        "y",
        "top",
        "inverse",
        "spans",
        "batch",
        "m",
        "n",
        "d",
        "e",
        "q_strides",
        "k_strides",
        "v_strides",
        "mask_strides",
        "y_strides",
        "scale",
        "fill",
        "ratio",
        "salt",
        "draw",
    )
    KERNEL = "attention_f32"
    OPCODE = 17
    WORDS = 35
    ARGUMENTS = __slots__
    OPERANDS = ("q", "k", "v", "mask", "state", "y", "top", "inverse", "spans")
    FLOATS = ("scale", "fill", "ratio")
    OPTIONAL_RESULTS = ("top", "inverse")
    PARTS = ("y",)

    def __init__(
        self,
        *,
        q: Buf,
        k: Buf,
        v: Buf,
        mask: Buf | None = None,
        state: Buf | None = None,
        y: Buf,
        top: Buf | None = None,
        inverse: Buf | None = None,
        batch: tuple[int, ...],
        m: int,
        n: int,
        d: int,
        e: int,
        q_strides: tuple[int, ...],
        k_strides: tuple[int, ...],
        v_strides: tuple[int, ...],
        mask_strides: tuple[int, ...],
        y_strides: tuple[int, ...],
        scale: float,
        fill: float,
        ratio: float,
        salt: int,
        draw: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.q = q
        self.k = k
        self.v = v
        self.mask = mask
        self.state = state
        self.y = y
        self.top = top
        self.inverse = inverse
        self.spans: Buf
        self.batch = batch
        self.m = m
        self.n = n
        self.d = d
        self.e = e
        self.q_strides = q_strides
        self.k_strides = k_strides
        self.v_strides = v_strides
        self.mask_strides = mask_strides
        self.y_strides = y_strides
        self.scale = scale
        self.fill = fill
        self.ratio = ratio
        self.salt = salt
        self.draw = draw

    @property
    def reads(self) -> list[Buf]:
        found = [self.q, self.k, self.v]
        if self.mask is not None:
            found.append(self.mask)
        if self.state is not None:
            found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found = [self.y]
        if self.top is not None:
            found.append(self.top)
        if self.inverse is not None:
            found.append(self.inverse)
        found.append(self.spans)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.spans = temp("int32", (max(1, mask_spans(self.batch, self.m, self.n, self.mask_strides)),))

    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * (self.d + self.e)


class AttentionGradient(KernelCall):
    """A call of `attention_gradient_f32`.

    Its gradients (the product of the scores, made again, is not among its flops); the blocks of keys of an item go to
    `parts` tasks, one at least to each. conditional 1: none through a score where the mask is -infinity.
    """

    __slots__ = (
        "q",
        "k",
        "v",
        "mask",
        "y",
        "dy",
        "top",
        "inverse",
        "state",
        "dq",
        "dk",
        "dv",
        "delta",
        "partial",
        "spans",
        "batch",
        "m",
        "n",
        "d",
        "e",
        "q_strides",
        "k_strides",
        "v_strides",
        "mask_strides",
        "y_strides",
        "dy_strides",
        "dq_strides",
        "dk_strides",
        "dv_strides",
        "scale",
        "fill",
        "ratio",
        "salt",
        "draw",
        "conditional",
        "parts",
    )
    KERNEL = "attention_gradient_f32"
    OPCODE = 18
    WORDS = 55
    ARGUMENTS = __slots__
    OPERANDS = (
        "q",
        "k",
        "v",
        "mask",
        "y",
        "dy",
        "top",
        "inverse",
        "state",
        "dq",
        "dk",
        "dv",
        "delta",
        "partial",
        "spans",
    )
    FLOATS = ("scale", "fill", "ratio")
    OPTIONAL_RESULTS = ("dq", "dk", "dv")
    PARTS = ("dq", "dk", "dv")

    def __init__(
        self,
        *,
        q: Buf,
        k: Buf,
        v: Buf,
        mask: Buf | None = None,
        y: Buf,
        dy: Buf,
        top: Buf,
        inverse: Buf,
        state: Buf | None = None,
        dq: Buf | None = None,
        dk: Buf | None = None,
        dv: Buf | None = None,
        batch: tuple[int, ...],
        m: int,
        n: int,
        d: int,
        e: int,
        q_strides: tuple[int, ...],
        k_strides: tuple[int, ...],
        v_strides: tuple[int, ...],
        mask_strides: tuple[int, ...],
        y_strides: tuple[int, ...],
        dy_strides: tuple[int, ...],
        dq_strides: tuple[int, ...],
        dk_strides: tuple[int, ...],
        dv_strides: tuple[int, ...],
        scale: float,
        fill: float,
        ratio: float,
        salt: int,
        draw: int,
        conditional: int,
        parts: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.q = q
        self.k = k
        self.v = v
        self.mask = mask
        self.y = y
        self.dy = dy
        self.top = top
        self.inverse = inverse
        self.state = state
        self.dq = dq
        self.dk = dk
        self.dv = dv
        self.delta: Buf
        self.partial: Buf
        self.spans: Buf
        self.batch = batch
        self.m = m
        self.n = n
        self.d = d
        self.e = e
        self.q_strides = q_strides
        self.k_strides = k_strides
        self.v_strides = v_strides
        self.mask_strides = mask_strides
        self.y_strides = y_strides
        self.dy_strides = dy_strides
        self.dq_strides = dq_strides
        self.dk_strides = dk_strides
        self.dv_strides = dv_strides
        self.scale = scale
        self.fill = fill
        self.ratio = ratio
        self.salt = salt
        self.draw = draw
        self.conditional = conditional
        self.parts = parts

    @property
    def reads(self) -> list[Buf]:
        found = [self.q, self.k, self.v]
        if self.mask is not None:
            found.append(self.mask)
        found.append(self.y)
        found.append(self.dy)
        found.append(self.top)
        found.append(self.inverse)
        if self.state is not None:
            found.append(self.state)
        return found

    @property
    def writes(self) -> list[Buf]:
        found: list[Buf] = []
        if self.dq is not None:
            found.append(self.dq)
        if self.dk is not None:
            found.append(self.dk)
        if self.dv is not None:
            found.append(self.dv)
        found.append(self.delta)
        found.append(self.partial)
        found.append(self.spans)
        return found

    def make_scratch(self, temp: Callable[[str, tuple[int, ...]], Buf]) -> None:
        self.delta = temp("float32", (max(1, self.batch[0] * self.batch[1] * self.parts * self.m),))
        self.partial = temp("float32", (max(1, self.batch[0] * self.batch[1] * (self.parts - 1) * self.m * self.d),))
        self.spans = temp("int32", (max(1, mask_spans(self.batch, self.m, self.n, self.mask_strides)),))

    def flops(self) -> int:
        return 4 * prod(self.batch) * self.m * self.n * (self.d + self.e)
