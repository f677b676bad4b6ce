"""Optimizers that look at whole matrices."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from trainweb.ops.frame.op import Float, Int, register
from trainweb.ops.optim.operators import (
    GRADS,
    PARAMS,
    SCALARS,
    TRAINWEB,
    Optimizer,
)
from trainweb.ops.optim.update import Moments, larger, mean, mean_square, product, smaller, sqrt


@register
class AdafactorOptimizer(Optimizer):
    """Adafactor over sequences, as torch.optim.Adafactor: for a matrix it keeps means of g * g by row and by column.

    u = g / sqrt(v), v being the product of both means over the mean of the rows. For vectors, v is the average of g *
    g.; u is scaled to a root mean square of `clip_threshold` at most. w loses `weight_decay` * lr * w and
    max(scale_epsilon, root mean square of w) * min(lr, 1 / sqrt(step)) * u. The averages take step ** beta2_decay of
    what is new. Shazeer & Stern, https://arxiv.org/abs/1804.04235.
    """

    domain = TRAINWEB
    per_parameter = True
    names = ("rows", "columns")
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

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        mix = step**self.beta2_decay
        if w.ndim < 2:
            s.rows = (1 - mix) * s.rows + mix * g * g
            u = -g / sqrt(larger(s.rows, self.epsilon**2))
        else:
            s.rows = (1 - mix) * s.rows + mix * mean_square(g, -1)
            s.columns = (1 - mix) * s.columns + mix * mean_square(g, -2)
            row = sqrt(larger(mean(s.rows, -2), self.epsilon) / s.rows)
            u = g * larger(row * (-1 / sqrt(s.columns)), -1 / self.epsilon)  # of both limits the faster one
        # Of -u, which is not stored: u is computed again below, in less memory.
        length = larger(sqrt(mean_square(-u)) * (1 / self.clip_threshold), 1.0)
        scale = larger(sqrt(mean_square(w)), self.scale_epsilon) * smaller(lr, 1 / sqrt(step)) / length
        return w * (1 - lr * self.weight_decay) + scale * u


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration, from https://kellerjordan.github.io/posts/muon/."""


def newton_schulz(x: Any) -> Any:
    """One iteration: a X + (b G + c G G) X, where G is X X^T; for a tall X the transpose of that of X^T."""
    first, second, third = NEWTON_SCHULZ
    is_tall = x.shape[0] > x.shape[1]
    gram = product(x, x, (is_tall, not is_tall))
    series = second * gram + third * product(gram, gram)
    return first * x + (product(x, series) if is_tall else product(series, x))


@register
class MuonOptimizer(Optimizer):
    """Muon over sequences: the momentum of a matrix is brought close to the nearest orthogonal one before each step.

    As torch.optim.Muon, in float32: m = momentum * m + (1 - momentum) * g. With nesterov, u = momentum * m + (1 -
    momentum) * g. Then u = newton_schulz(u / |u|). w loses weight_decay * lr * w and lr * u times a scale. It is 0.2 *
    sqrt(max(rows, columns)) with `match_rms` 1, else sqrt(max(1, rows / columns)). Axes after the first are one.
    Parameters of fewer than two axes are updated by AdamW with `alpha`, `beta` and `epsilon`.
    https://kellerjordan.github.io/posts/muon/
    """

    domain = TRAINWEB
    per_parameter = True
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

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        if w.ndim < 2:
            return self._update_vector(w, g, s, lr, step)
        s.m = self.momentum * s.m + (1 - self.momentum) * g
        u = self.momentum * s.m + (1 - self.momentum) * g if self.nesterov else s.m
        rows, columns = w.shape[0], prod(w.shape[1:])
        x = (u / larger(sqrt(mean_square(u) * (rows * columns)), 1e-7)).reshape((rows, columns))
        for _ in range(self.steps):
            x = newton_schulz(x)
        ratio = 0.2 * math.sqrt(max(rows, columns)) if self.match_rms else math.sqrt(max(1, rows / columns))
        return w * (1 - lr * self.weight_decay) - lr * ratio * x.reshape(w.shape)

    def _update_vector(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        """AdamW's update."""
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
