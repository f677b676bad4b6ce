"""Optimizers that look at whole matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import REDUCE_SUM_SQUARES, STATE_LEARNING_RATE
from trainweb.ops.frame.lazy_numpy import np
from trainweb.ops.frame.op import Float, Int, register
from trainweb.ops.matmul import multiply
from trainweb.ops.optim.operators import (
    GRADS,
    PARAMS,
    SCALARS,
    TRAINWEB,
    KernelOptimizer,
    Optimizer,
)
from trainweb.ops.optim.update import Moments, sqrt

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder
    from trainweb.ir.expr import Emitter, Expr


def learning_rate(state: Buf) -> Buf:
    """The learning rate in the state of a session."""
    return Buf(state.storage, "float32", (1,), shift=state.shift + 4 * STATE_LEARNING_RATE)


@register
class AdafactorOptimizer(KernelOptimizer):
    """Adafactor over sequences, as torch.optim.Adafactor: for a matrix it keeps means of g * g by row and by column.

    u = g / sqrt(v), v being the product of both means over the mean of the rows. For vectors, v is the average of g *
    g.; u is scaled to a root mean square of `clip_threshold` at most. w loses `weight_decay` * lr * w and
    max(scale_epsilon, root mean square of w) * min(lr, 1 / sqrt(step)) * u. The averages take step ** beta2_decay of
    what is new. Shazeer & Stern, https://arxiv.org/abs/1804.04235.
    """

    domain = TRAINWEB
    attrs = {
        "beta2_decay": Float(-0.8),
        "epsilon": Float(2.0**-23),
        "scale_epsilon": Float(1e-3),
        "clip_threshold": Float(1.0),
        "weight_decay": Float(0.0),
    }
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2:
            return (0,) if moment else shape
        return (*shape[:-2], 1, shape[-1]) if moment else (*shape[:-1], 1)

    def emit_parameter(self, b: Builder, state: Buf, w: Buf, g: Buf, *moments: Buf) -> None:
        rows, columns = moments
        settings = {name: getattr(self, name) for name in self.attrs}
        if len(w.shape) < 2:
            b.emit(calls.AdafactorVector(w=w, g=g, s=rows, state=state, n=w.size, **settings))
            return
        n, m = w.shape[-2:]
        batch = w.size // (n * m)
        b.emit(calls.Adafactor(w=w, g=g, rows=rows, columns=columns, state=state, batch=batch, n=n, m=m, **settings))

    def reference(self, lr: Any, step: Any, w: Any, g: Any, rows: Any, columns: Any) -> tuple[Any, Any, Any]:
        mix = step**self.beta2_decay
        if w.ndim > 1:
            rows = rows + mix * ((g * g).mean(-1, keepdims=True) - rows)
            columns = columns + mix * ((g * g).mean(-2, keepdims=True) - columns)
            v = rows * columns / np.maximum(rows.mean(-2, keepdims=True), self.epsilon)
        else:
            v = rows = rows + mix * (g * g - rows)
        u = g / np.sqrt(np.maximum(v, self.epsilon**2))
        size = max(self.scale_epsilon, np.sqrt((w * w).mean())) * min(lr, step**-0.5)
        scale = size / max(1.0, np.sqrt((u * u).mean()) / self.clip_threshold)
        return w * (1 - lr * self.weight_decay) - scale * u, rows, columns


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration, from https://kellerjordan.github.io/posts/muon/."""


@register
class MuonOptimizer(KernelOptimizer):
    """Muon over sequences: the momentum of a matrix is brought close to the nearest orthogonal one before each step.

    As torch.optim.Muon, in float32: m = momentum * m + (1 - momentum) * g. With nesterov, u = momentum * m + (1 -
    momentum) * g. Then u = newton_schulz(u / |u|). w loses weight_decay * lr * w and lr * u times a scale. It is 0.2 *
    sqrt(max(rows, columns)) with `match_rms` 1, else sqrt(max(1, rows / columns)). Axes after the first are one.
    Parameters of fewer than two axes are updated by AdamW with `alpha`, `beta` and `epsilon`.
    https://kellerjordan.github.io/posts/muon/
    """

    domain = TRAINWEB
    attrs = {
        "momentum": Float(0.95),
        "nesterov": Int(1),
        "weight_decay": Float(0.1),
        "steps": Int(5),
        "match_rms": Int(1),
        "alpha": Float(0.9),
        "beta": Float(0.999),
        "epsilon": Float(1e-8),
    }
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) if moment and len(shape) > 1 else shape

    def emit(self, b: Builder, given: Mapping[str, Any], runs: Sequence[tuple[Buf, ...]]) -> None:
        Optimizer.emit(self, b, given, [run for run in runs if len(run[0].shape) < 2])
        super().emit(b, given, [run for run in runs if len(run[0].shape) >= 2])

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        """AdamW's, of a vector."""
        s.m = self.alpha * s.m + (1 - self.alpha) * g
        s.v = self.beta * s.v + (1 - self.beta) * g * g
        unbiased = sqrt(s.v) * (1 / sqrt(1 - self.beta**step))
        return w * (1 - lr * self.weight_decay) - lr / (1 - self.alpha**step) * s.m / (unbiased + self.epsilon)

    def check(self) -> None:
        for name in ("nesterov", "match_rms"):
            if getattr(self, name) not in (0, 1):
                raise self.error(f"{name} is {getattr(self, name)}; it must be 0 or 1.")
        if not 0 <= self.steps <= 100:
            raise self.error(f"steps is {self.steps}; it must be from 0 to 100.")

    def emit_parameter(self, b: Builder, state: Buf, w: Buf, g: Buf, *moments: Buf) -> None:
        m = moments[0]
        rows, columns = w.shape[0], prod(w.shape[1:])
        direction = b.temp("float32", (rows, columns))

        def moved(e: Emitter, m: Expr, g: Expr) -> tuple[Expr, Expr]:
            keep, take = e.const(self.momentum), e.const(1 - self.momentum)
            m = e.add(e.mul(keep, m), e.mul(take, g))
            return m, e.add(e.mul(keep, m), e.mul(take, g)) if self.nesterov else m

        b.elementwise([m, direction.view(m.shape)], [m, g], moved)
        squares = b.temp("float32", (1,))
        b.emit(calls.Reduce(x=direction, y=squares, outer=1, n=w.size, inner=1, op=REDUCE_SUM_SQUARES))
        x = b.temp("float32", (rows, columns))
        small = 1e-7
        b.elementwise([x], [direction, squares], lambda e, u, s: e.div(u, e.max(e.sqrt(s), e.const(small))))
        for _ in range(self.steps):
            x = self._iterate(b, x)
        ratio = 0.2 * math.sqrt(max(rows, columns)) if self.match_rms else math.sqrt(max(1, rows / columns))

        def stepped(e: Emitter, w: Expr, u: Expr, lr: Expr) -> Expr:
            kept = e.sub(e.const(1.0), e.mul(lr, e.const(self.weight_decay)))
            return e.sub(e.mul(w, kept), e.mul(e.mul(lr, e.const(ratio)), u))

        b.elementwise([w], [w, x.view(w.shape), learning_rate(state)], stepped)

    def _iterate(self, b: Builder, x: Buf) -> Buf:
        """a X + (b G + c G G) X, G being X X^T; of tall X the transpose of that of X^T."""
        rows, columns = x.shape
        is_tall, size = rows > columns, min(rows, columns)
        first, second, third = NEWTON_SCHULZ
        gram, series = b.temp("float32", (size, size)), b.temp("float32", (size, size))
        multiply(b, x, x, gram, (size, size, max(rows, columns)), (is_tall, not is_tall))
        square = (size, size, size)
        multiply(b, gram, gram, series, square, bias=gram, bias_strides=(size, 1), alpha=third, beta=second)
        new = b.temp("float32", x.shape)
        operands = (x, series) if is_tall else (series, x)
        multiply(b, *operands, new, (rows, columns, size), bias=x, bias_strides=(columns, 1), beta=first)
        return new

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        kept = w * (1 - lr * self.weight_decay)
        if w.ndim < 2:
            m, v = self.alpha * m + (1 - self.alpha) * g, self.beta * v + (1 - self.beta) * g * g
            unbiased = np.sqrt(v / (1 - self.beta**step))
            return kept - lr * m / (1 - self.alpha**step) / (unbiased + self.epsilon), m, v
        m = self.momentum * m + (1 - self.momentum) * g
        u = (self.momentum * m + (1 - self.momentum) * g if self.nesterov else m).reshape(len(w), -1)
        x = u / max(np.linalg.norm(u), 1e-7)
        for _ in range(self.steps):
            gram = x @ x.T
            x = NEWTON_SCHULZ[0] * x + (NEWTON_SCHULZ[1] * gram + NEWTON_SCHULZ[2] * gram @ gram) @ x
        rows, columns = x.shape
        ratio = 0.2 * math.sqrt(max(rows, columns)) if self.match_rms else math.sqrt(max(1, rows / columns))
        return kept - lr * ratio * x.reshape(w.shape), m, v
