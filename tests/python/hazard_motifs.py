"""Instructions that passes look for in each other's company, with somebody interfering between them now and then.

Each motif emits what operators would lower to, on buffers of a random program; `meddle` reads or overwrites one of the
buffers that a pass wants to leave alone. Only a wrong guess about the order would allow that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import TYPE_CHECKING, Any

import numpy as np
from trainweb.ir.layout import ARENA, GRADIENTS, PARAMETERS

from trainweb.ir import calls
from trainweb.ir.instructions import Buf, Storage
from trainweb.ops.copies import copy_axis, transpose

if TYPE_CHECKING:
    from tests.python.test_compiler_hazards import RandomProgram

M, N, WIDTH = 4, 6, 4
"""Queries, keys, and elements of each: q is [M, WIDTH], k and v [N, WIDTH]."""
MEDDLING = 0.12
"""How often somebody interferes at each place where that may break a pattern: most patterns stay whole."""
KEPT = 0.3
"""How often others may read what a motif computes on the way, later."""

IMAGE, WINDOWS = (1, 6, 4), (1, 3, 2)
"""Sizes before and after pooling by 2x2."""
POOLING: dict[str, Any] = {
    "planes": 1,
    "size": IMAGE,
    "kernel": (1, 2, 2),
    "out": WINDOWS,
    "stride": (1, 2, 2),
    "dilation": (1, 1, 1),
    "pad": (0, 0, 0),
}
CONVOLUTION: dict[str, Any] = {
    "n": 1,
    "c": 2,
    "m": 2,
    "groups": 1,
    "size": (1, 3, 4),
    "kernel": (1, 2, 2),
    "out": (1, 2, 3),
    "stride": (1, 1, 1),
    "dilation": (1, 1, 1),
    "pad": (0, 0, 0),
}
NORMALISATION: dict[str, Any] = {"batch": 3, "channels": 2, "size": 4, "epsilon": 0.1, "momentum": 0.9}


def meddle(p: RandomProgram, *near: Buf) -> None:
    """Now and then read, overwrite or change one of these buffers, or a part of it."""
    if p.rng.random() >= MEDDLING:
        return
    b = p.pick(near)
    if p.rng.random() < 0.4:
        b = p.part(b, b.size // 2)
    how = int(p.rng.integers(3))
    if how == 0 or b.storage.is_feed:
        seen = p.new(b.shape)
        p.builder.elementwise([seen], [b], lambda e, x: e.sub(x, e.const(1)))
        p.done(seen)
    elif how == 1:
        p.builder.elementwise([b], [b], lambda e, x: e.mul(x, e.const(-0.5)))
    else:
        other = p.part(p.pick([x for x in p.bufs if x.size >= b.size]), b.size).view(b.shape)
        if not other.collides(b):
            p.builder.elementwise([b], [other], lambda e, x: e.add(x, e.const(0.5)))


def bounded(p: RandomProgram, size: int) -> Buf:
    """Something of this size, not larger than 1: where rounding errors must not grow."""
    b = p.part(p.recent([b for b in p.bufs if b.size >= size]), size)
    y = p.new((size,))
    p.builder.elementwise([y], [b], lambda e, x: e.tanh(x))
    return y


def multiply(
    p: RandomProgram, a: Buf, b: Buf, m: int, n: int, k: int, *, a_turned: bool = False, b_turned: bool = False
) -> Buf:
    """a b in new memory or in some that was used; [m, k], perhaps stored transposed, by [k, n]."""
    c = p.target((m, n))
    if c.storage in (a.storage, b.storage):
        c = p.new((m, n))
    p.emit_product(a, b, c, m, n, k, turned=(a_turned, False))
    return c


def softmax(p: RandomProgram) -> None:
    """Along the rows or the columns, perhaps its logarithm, perhaps with its gradient."""
    x = bounded(p, 24)
    outer, n, inner = p.pick(((4, 6, 1), (2, 3, 4), (1, 6, 4), (6, 4, 1)))
    y, log = p.target((24,)), int(p.rng.integers(2))
    numbers = {"outer": outer, "n": n, "inner": inner, "log": log}
    p.builder.emit(calls.Softmax(x=x, y=y, **numbers))
    p.done(y)
    if p.rng.random() < 0.5:
        meddle(p, x, y)
        dy, dx = p.part(p.recent([b for b in p.bufs if b.size >= 24]), 24), p.new((24,))
        p.builder.emit(calls.SoftmaxGrad(dy=dy, y=y, dx=dx, **numbers))
        p.done(dx)


def attention(p: RandomProgram) -> None:
    """softmax(q k') v, its scores scaled or masked, and (often) its gradients in one of two orders."""
    q, k, v = bounded(p, M * WIDTH), bounded(p, N * WIDTH), p.part(p.recent([b for b in p.bufs if b.size >= 24]), 24)
    near = [q, k, v]
    scores = p.new((M, N))
    p.emit_product(q, k, scores, M, N, WIDTH, turned=(False, True))
    scaled = p.rng.random() < 0.5
    if scaled:
        scores = elementwise(p, scores, lambda e, s: e.mul(s, e.const(0.5)))
    if p.rng.random() < 0.4:
        mask = bounded(p, N)
        near.append(mask)
        masked = p.new((M, N))
        p.builder.elementwise([masked], [scores, mask], lambda e, s, x: e.add(s, x))
        scores = masked
    meddle(p, *near, scores)
    weights = p.new((M, N))
    p.builder.emit(calls.Softmax(x=scores, y=weights, outer=M, n=N, inner=1, log=0))
    meddle(p, *near, weights)
    y = multiply(p, weights, v, M, WIDTH, N)
    p.done(y, *([weights, scores] if p.rng.random() < KEPT / 3 else []))
    meddle(p, *near, weights, y)
    if p.rng.random() < 0.7:
        attention_gradient(p, q, k, v, y, weights, scaled)
    p.done(q, k)


def attention_gradient(p: RandomProgram, q: Buf, k: Buf, v: Buf, y: Buf, weights: Buf, scaled: bool) -> None:
    dy = p.part(p.recent([b for b in p.bufs if b.size >= M * WIDTH]), M * WIDTH)
    near = [q, k, v, y, dy, weights]
    made: list[Buf] = []

    def by_values() -> None:
        made.append(multiply(p, weights, dy, N, WIDTH, M, a_turned=True))

    if values_first := p.rng.random() < 0.5:
        by_values()
        meddle(p, *near, *made)
    d = p.new((M, N))
    p.emit_product(dy, v, d, M, N, WIDTH, turned=(False, True))
    meddle(p, *near, d)
    ds = p.new((M, N))
    p.builder.emit(calls.SoftmaxGrad(dy=d, y=weights, dx=ds, outer=M, n=N, inner=1, log=0))
    if scaled:
        ds = elementwise(p, ds, lambda e, s: e.mul(s, e.const(0.5)))
    meddle(p, *near, ds)
    made.append(multiply(p, ds, k, M, WIDTH, N))
    meddle(p, *near, ds, *made)
    made.append(multiply(p, ds, q, N, WIDTH, M, a_turned=True))
    if not values_first:
        meddle(p, *near, *made)
        by_values()
    p.done(*made)


def elementwise(p: RandomProgram, x: Buf, fn: Callable[..., Any]) -> Buf:
    y = p.new(x.shape)
    p.builder.elementwise([y], [x], fn)
    return y


def pooling(p: RandomProgram) -> None:
    """Relu, max pooling and the gradients of both: exchanged if nobody looks."""
    x = p.part(p.recent([b for b in p.bufs if b.size >= 24]), 24)
    r = elementwise(p, x, lambda e, a: e.pmax(a, e.const(0)))
    meddle(p, r)
    y, indices = p.new((6,)), Buf(Storage(ARENA, 8 * 6), "int64", (6,), name="indices")
    p.builder.emit(calls.MaxPool(x=r, y=y, indices=indices, **POOLING))
    meddle(p, r, y)
    dy = elementwise(p, y, lambda e, a: e.tanh(a))
    if p.rng.random() < 0.3:
        dy = p.part(p.recent([b for b in p.bufs if b.size >= 6]), 6)
    meddle(p, r, y, dy)
    g = p.new((24,))
    p.builder.emit(calls.MaxPoolGradient(dy=dy, indices=indices, dx=g, planes=1, size=24, out_size=6))
    meddle(p, r, y, dy, g)
    dx = p.target((24,))
    if any(dx.collides(b) or dx.same_place(b) for b in (g, r)):
        dx = p.new((24,))

    def mask(e: Any, gradient: Any, sign: Any) -> Any:
        return e.select(e.compare("gt", sign, e.const(0)), gradient, e.const(0))

    p.builder.elementwise([dx], [g, r], mask)
    p.done(dx, y, *([g, r] if p.rng.random() < KEPT else []))


def accumulation(p: RandomProgram) -> None:
    """A product or a gradient by weights that is added to gradient buffers; both gradients of one kernel, or one."""
    if p.rng.random() < 0.6:
        a, b = (p.part(p.recent([b for b in p.bufs if b.size >= 16]), 16) for _ in range(2))
        c = p.new((4, 4))
        p.emit_product(a, b, c, 4, 4, 4, turned=(False, bool(p.rng.integers(2))))
        add_to_gradient(p, c)
        return
    x, dy = (p.part(p.recent([b for b in p.bufs if b.size >= size]), size) for size in (24, 12))
    dw, db = p.new((16,)), p.pick((p.new((2,)), None))
    p.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, db=db, accumulate=0, **CONVOLUTION))
    if db is not None and p.rng.random() < 0.8:
        add_to_gradient(p, db)
    elif db is not None:
        p.done(db)
    add_to_gradient(p, dw)


def add_to_gradient(p: RandomProgram, value: Buf) -> None:
    buffer = p.part(p.pick([b for b in p.state if b.storage.segment == GRADIENTS]), value.size).view(value.shape)
    meddle(p, buffer, value)
    operands = [buffer, value] if p.rng.random() < 0.5 else [value, buffer]
    p.builder.elementwise([buffer], operands, lambda e, x, y: e.add(x, y))
    if p.rng.random() < KEPT:
        p.done(value)


def statistics(p: RandomProgram) -> None:
    """Batch normalization that moves running statistics, which others read and write before and after."""
    x = bounded(p, 24)
    state = p.pick([b for b in p.state if b.storage.segment == PARAMETERS])
    first, second = (int(k) for k in p.rng.choice(STATISTICS_PLACES, 2, replace=False))
    running = [state.view((2,), at) for at in (first, second)]
    others = [b for b in p.bufs if b.size >= 2 and b.storage is not state.storage]
    scale, bias = (p.part(p.recent(others), 2) for _ in range(2))
    meddle(p, *running)
    y = p.target((24,))
    if any(y.storage is b.storage for b in (scale, bias, state)):
        y = p.new((24,))
    mean, inv_std = p.pick(((None, None), (p.new((2,)), p.new((2,)))))
    p.builder.emit(
        calls.BatchNormTrain(
            x=x,
            scale=scale,
            bias=bias,
            y=y,
            mean=mean,
            inv_std=inv_std,
            running_mean=running[0],
            running_var=running[1],
            **NORMALISATION,
        )
    )
    p.done(y, *(b for b in (mean, inv_std) if b is not None))
    meddle(p, *running, y, x)


HEADS, POSITIONS = 2, 3
"""Of rows of `WIDTH` elements that are turned in pairs."""


def rotary(p: RandomProgram) -> None:
    """Rows turned by the angles of their positions, or the gradient, between two transpositions."""
    shape, half = (HEADS, POSITIONS, WIDTH), WIDTH // 2
    rows = p.part(p.recent([b for b in p.bufs if b.size >= 24]), 24).view((POSITIONS, HEADS, WIDTH))
    kind = p.pick((turned_whole, turned_halves, turned_back))
    width = half if kind is turned_halves else WIDTH
    cos, sin = (bounded(p, POSITIONS * width).view((1, POSITIONS, width)) for _ in range(2))
    x = p.new(shape)
    transpose(p.builder, x, rows, (1, 0, 2))
    meddle(p, rows, x, cos, sin)
    y = kind(p, x, cos, sin)
    meddle(p, x, cos, sin, y)
    z = p.new((POSITIONS, HEADS, WIDTH))
    transpose(p.builder, z, y, (1, 0, 2))
    p.done(z, *([x, y] if p.rng.random() < KEPT else []))


def halves(p: RandomProgram, x: Buf) -> list[Buf]:
    """Copies of the first and the second columns."""
    half = x.shape[-1] // 2
    found = [p.new((*x.shape[:-1], half)) for _ in range(2)]
    for k, b in enumerate(found):
        copy_axis(p.builder, b, x, 2, half, source_start=k * half)
    return found


def joined(p: RandomProgram, *parts: Buf | None) -> Buf:
    """A tensor whose first and second columns these are; zeros where there is None."""
    shape = next(b.shape for b in parts if b is not None)
    y = p.new((*shape[:-1], 2 * shape[-1]))
    if None in parts:
        p.builder.fill(y, 0.0)
    for k, b in enumerate(parts):
        if b is not None:
            copy_axis(p.builder, y, b, 2, shape[-1], out_start=k * shape[-1])
    return y


def combined(p: RandomProgram, combine: Callable[..., Any], *ins: Buf) -> Buf:
    y = p.new(ins[0].shape)
    p.builder.elementwise([y], list(ins), combine)
    return y


def turned_whole(p: RandomProgram, x: Buf, cos: Buf, sin: Buf) -> Buf:
    """x cos + [-x2, x1] sin"""
    real = combined(p, lambda e, a, c: e.mul(a, c), x, cos)
    first, second = halves(p, x)
    other = joined(p, combined(p, lambda e, a: e.neg(a), second), first)
    meddle(p, x, cos, sin, first, second, other)
    imaginary = combined(p, lambda e, a, s: e.mul(a, s), other, sin)
    return combined(p, lambda e, a, b: e.add(a, b), real, imaginary)


def turned_halves(p: RandomProgram, x: Buf, cos: Buf, sin: Buf) -> Buf:
    """[x1 cos - x2 sin, x1 sin + x2 cos]"""
    first, second = halves(p, x)
    meddle(p, x, first, second)
    real = combined(p, lambda e, a, b, c, s: e.sub(e.mul(c, a), e.mul(s, b)), first, second, cos, sin)
    imaginary = combined(p, lambda e, a, b, c, s: e.add(e.mul(s, a), e.mul(c, b)), first, second, cos, sin)
    return joined(p, real, imaginary)


def turned_back(p: RandomProgram, dy: Buf, cos: Buf, sin: Buf) -> Buf:
    """The gradient of `turned_whole`."""
    first, second = halves(p, combined(p, lambda e, a, s: e.mul(a, s), dy, sin))
    parts = joined(p, None, combined(p, lambda e, a: e.neg(a), first)), joined(p, second, None)
    meddle(p, dy, first, second, *parts)
    real = combined(p, lambda e, a, c: e.mul(a, c), dy, cos)
    return combined(p, lambda e, a, b, c: e.add(e.add(a, b), c), *parts, real)


STATISTICS_PLACES = np.arange(0, 24, 2)
Motif = Callable[["RandomProgram"], None]
MOTIFS: tuple[Motif, ...] = (softmax, attention, pooling, accumulation, statistics, rotary)


class MotifKernels:
    """The motifs' kernels in float64, on what `memory` gives."""

    def memory(self, b: Buf) -> np.ndarray:
        """The elements of a buffer, to read or write."""
        raise NotImplementedError

    def rotary_f32(self, g: calls.Rotary) -> None:
        rows = np.array(list(np.ndindex(*g.dims)))

        def columns(b: Buf, strides: tuple[int, ...], start: int) -> tuple[np.ndarray, np.ndarray]:
            return self.memory(b), (rows @ strides)[:, None] + start + np.arange(g.half)

        def values(b: Buf, strides: tuple[int, ...], start: int) -> np.ndarray:
            memory, places = columns(b, strides, start)
            return memory[places]

        x = [values(g.x, g.x_strides, k * g.half) for k in range(2)]
        cos = [values(g.cos, g.cos_strides, k * g.cos_half) for k in range(2)]
        sin = [values(g.sin, g.sin_strides, k * g.sin_half) for k in range(2)]
        first = x[0] * cos[0] + x[1] * (sin[1] if g.back else -sin[0])
        second = x[1] * cos[1] + x[0] * (-sin[0] if g.back else sin[1])
        for k, value in enumerate((first, second)):
            memory, places = columns(g.y, g.y_strides, k * g.half)
            memory[places] = value

    def softmax_f32(self, g: calls.Softmax) -> None:
        x = self.memory(g.x).reshape(g.outer, g.n, g.inner)
        e = np.exp(x - x.max(1, keepdims=True))
        y = e / e.sum(1, keepdims=True)
        self.memory(g.y)[:] = (np.log(y) if g.log else y).ravel()

    def softmax_grad_f32(self, g: calls.SoftmaxGrad) -> None:
        dy, y = (self.memory(b).reshape(g.outer, g.n, g.inner) for b in (g.dy, g.y))
        dx = dy - np.exp(y) * dy.sum(1, keepdims=True) if g.log else y * (dy - (dy * y).sum(1, keepdims=True))
        self.memory(g.dx)[:] = dx.ravel()

    def max_pool_f32(self, g: calls.MaxPool) -> None:
        assert g.indices is not None
        _, rows, columns = IMAGE
        x = self.memory(g.x).reshape(rows, columns)
        y, indices = self.memory(g.y), self.memory(g.indices)
        for k, (i, j) in enumerate(pairs(range(0, rows, 2), range(0, columns, 2))):
            at = int(np.argmax(x[i : i + 2, j : j + 2]))
            y[k], indices[k] = x[i : i + 2, j : j + 2].flat[at], (i + at // 2) * columns + j + at % 2

    def max_pool_gradient_f32(self, g: calls.MaxPoolGradient) -> None:
        dx = np.zeros(g.size)
        dx[self.memory(g.indices).astype(int)] = self.memory(g.dy)
        self.memory(g.dx)[:] = dx

    def conv_weight_gradient_f32(self, g: calls.ConvWeightGradient) -> None:
        x, dy = self.memory(g.x).reshape(2, 3, 4), self.memory(g.dy).reshape(2, 2, 3)
        windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (1, 2))
        self.memory(g.dw)[:] = np.einsum("mij,cklij->mckl", dy, windows).ravel()
        if g.db is not None:
            self.memory(g.db)[:] = dy.sum((1, 2))

    def batch_norm_train_f32(self, g: calls.BatchNormTrain) -> None:
        x = self.memory(g.x).reshape(g.batch, g.channels, g.size)
        mean, var = x.mean((0, 2)), x.var((0, 2))
        inv = 1 / np.sqrt(var + g.epsilon)
        y = (x - mean[:, None]) * (inv * self.memory(g.scale))[:, None] + self.memory(g.bias)[:, None]
        for b, value in ((g.mean, mean), (g.inv_std, inv)):
            if b is not None:
                self.memory(b)[:] = value
        for b, value in ((g.running_mean, mean), (g.running_var, var)):
            assert b is not None
            self.memory(b)[:] = g.momentum * self.memory(b) + (1 - g.momentum) * value
        self.memory(g.y)[:] = y.ravel()
