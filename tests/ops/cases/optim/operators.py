"""Cases of trainweb.ops.optim.operators."""

from math import inf, nan
from typing import Any

import numpy as np
from tests.ops.cases import CASES, REFERENCES, Bad, Cases, Sample, cases_of, reference
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops.optim import operators
from trainweb.ops.optim.update import Moments

PARAMETERS = f32([1.0, -0.5, 3.0, 0.0, -2.0, 0.25, 1e-3])
GRADIENTS = f32([0.5, -2.0, 0.0, 0.125, 1.5, -1e-3, -0.75])
FIRST_MOMENTS = f32([-0.25, 0.5, 0.01, -1.0, 0.0, 0.75, 0.3])
SECOND_MOMENTS = f32([0.04, 2.25, 0.0, 1e-4, 0.5, 1.0, 0.09])
THIRD_MOMENTS = f32([0.1, -0.5, 0.0, 0.005, 0.2, -0.9, 0.25])
FOURTH_MOMENTS = f32([0.4, -1.0, 0.5, 0.25, 1.0, -0.002, -0.5])
UPDATES = f32([0.02, 1.0, 0.0, 2e-4, 0.3, 0.1, 0.05])
"""Initial moments of samples at later steps."""


def update_at(step: int, rate: float = 0.1, **attrs: Any) -> Sample:
    """A sample of an optimizer with two moments, at a step that is 1 for the first."""
    return Sample([f32([rate]), i64([step]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS], attrs)


CASES[operators.AdamWOptimizer] = Cases(
    samples=(
        update_at(1),
        update_at(7, 0.01, alpha=0.8, beta=0.95, adam_mode=1, epsilon=1e-3, weight_decay=0.0),
        update_at(1000, adam_mode=1, correct_bias=0, weight_decay=0.1),
        update_at(2**32, 0.01),
    ),
    bad=(
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 0, "correct_bias": 0}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
    ),
)

CASES[operators.OlderAdamOptimizer] = Cases(
    samples=(*cases_of(operators.AdamWOptimizer).samples, update_at(3, adam_mode=0, correct_bias=0, weight_decay=0.3)),
    bad=(Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 2}),),
)

CASES[operators.SGDOptimizerV2] = Cases(
    samples=(Sample([f32([0.1]), PARAMETERS, GRADIENTS]),),
    bad=(Bad([f32([0.1]), PARAMETERS, GRADIENTS, bools([True])], error=UnsupportedError),),
)

CASES[operators.Subsequence] = Cases(
    samples=(Sample([(37,)], {"indices": [1]}),),
    bad=(Bad([(37,)]),),
)

CASES[operators.InplaceClipGradValue] = Cases(
    samples=(Sample([(37,)], {"max_value": 0.5}), Sample([f32([0.0, inf, -inf, nan])])),
    bad=(),
)

CASES[operators.InplaceClipGradNorm] = Cases(
    samples=(Sample([(37,)]), Sample([(37,)], {"max_norm": 100.0}), Sample([f32([0.0, 0.0])])),
    bad=(Bad([(37,)], {"norm_type": "inf"}, error=UnsupportedError),),
)

CASES[operators.ClipGradients] = Cases(tested_through="InplaceClipGradNorm")

CASES[operators.InPlaceAccumulatorV2] = Cases(
    samples=(
        Sample([(3, 4), (3, 4)], outputs=2),
        Sample([(3, 4), (3, 4), bools([True])], outputs=2),
        Sample([(3, 4), (3, 4), bools([False])], outputs=2),
    ),
    bad=(Bad([(3, 4), (4, 3)]), Bad([(3,), i64([1, 2, 3])], error=UnsupportedError)),
)

CASES[operators.Assign] = Cases(
    samples=(Sample([(3, 4), (3, 4)]), Sample([(5,), (5,)])),
    bad=(Bad([(3, 4), (4, 3)]), Bad([(3,), i64([1, 2, 3])], error=UnsupportedError)),
)

CASES[operators.LinearLearningRate] = Cases(
    samples=tuple(
        Sample([i64(step), i64(warmup), i64(total), f32(0.1)])
        for step, warmup, total in ((0, 2, 6), (1, 2, 6), (3, 2, 6), (6, 2, 6), (7, 2, 6), (2, 0, 5), (4, 10, 4))
    ),
)


class Elements(np.ndarray):
    """Numbers in float64 with the functions of `Term`."""

    def larger(self, other: Any) -> Any:
        return np.maximum(self, other)

    def smaller(self, other: Any) -> Any:
        return np.minimum(self, other)

    def is_more(self, other: Any) -> Any:
        return elements(np.where(self > other, 1.0, 0.0))

    def where(self, chosen: Any, other: Any) -> Any:
        return elements(np.where(self != 0, chosen, other))

    def mean_square(self, axis: int | None = None) -> Any:
        return (self * self).mean(axis)

    def product(self, other: Any, turned: tuple[bool, bool] = (False, False)) -> Any:
        return (self.T if turned[0] else self) @ (other.T if turned[1] else other)


def mean(x: Elements, axis: int | None = None) -> Any:
    """The mean of all elements, or along an axis that stays."""
    return elements(np.asarray(x).mean(axis, keepdims=axis is not None))


FUNCTIONS = {"abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "floor": np.floor, "sign": np.sign}
for name, method in {**FUNCTIONS, "mean": mean}.items():
    setattr(Elements, name, lambda x, *axis, method=method: method(x, *axis))


def elements(x: Any) -> Any:
    return np.asarray(x, np.float64).view(Elements)


@reference(operators.Optimizer)
def optimizer(op: operators.Optimizer, *inputs: Any) -> tuple[Any, ...]:
    """(w, moments) after step number `step` (1 at the first)."""
    rate, *step, w, g = map(elements, inputs[: len(op.inputs) - op.most_moments()])
    moments = Moments(dict(zip(op.kept(), map(elements, inputs[len(step) + 3 :]), strict=True)))
    w = op.update(w, g, moments, rate, *step or [None])
    return tuple(map(np.asarray, (w, *vars(moments).values())))


REFERENCES.update(
    {
        operators.Assign: lambda op, buffer, value: value,
        operators.Subsequence: lambda op, given: (),
        operators.InplaceClipGradValue: lambda op, g: np.clip(g, -op.max_value, op.max_value),
        operators.InplaceClipGradNorm: lambda op, g: g * min(1.0, op.max_norm / (np.sqrt((g * g).sum()) + 1e-6)),
    }
)


@reference(operators.InPlaceAccumulatorV2)
def in_place_accumulator_v2(
    op: operators.InPlaceAccumulatorV2, buffer: Any, value: Any, flag: Any = None
) -> tuple[Any, Any]:
    return np.ones(1, bool), value if flag is not None and flag.all() else buffer + value


@reference(operators.LinearLearningRate)
def linear_learning_rate(op: operators.LinearLearningRate, step: Any, warmup: Any, total: Any, initial: Any) -> Any:
    """The rate after `step` optimizer steps; the session keeps what it depends on, not the graph."""
    if step < warmup:
        return initial * step / max(1, warmup)
    return initial * max(0.0, (total - step) / max(1, total - warmup))


CASES[operators.ExponentialMovingAverage] = Cases(
    samples=(
        Sample([i64([1]), PARAMETERS, FIRST_MOMENTS]),
        Sample([i64([7]), PARAMETERS, FIRST_MOMENTS], {"decay": 0.9}),
        Sample([i64([4]), PARAMETERS, FIRST_MOMENTS], {"warmup_power": 2 / 3}),
        Sample([i64([900]), PARAMETERS, FIRST_MOMENTS], {"decay": 0.5, "warmup_power": 0.75, "warmup_gamma": 10.0}),
    ),
    bad=(
        Bad([i64([1]), PARAMETERS, FIRST_MOMENTS], {"decay": 1.0}),
        Bad([i64([1]), PARAMETERS, f32([1.0] * 7)], {"warmup_power": -1.0}),
        Bad([i64([1]), PARAMETERS, f32([1.0] * 7)], {"warmup_gamma": 0.0}),
    ),
)


@reference(operators.ExponentialMovingAverage)
def exponential_moving_average(op: operators.ExponentialMovingAverage, step: Any, w: Any, average: Any) -> Any:
    """The average after step number `step` (1 at the first)."""
    t = step - 1
    decay = op.decay
    if op.warmup_power:
        decay = min(decay, 1 - (1 + t / op.warmup_gamma) ** -op.warmup_power)
    return w if t == 0 else decay * average + (1 - decay) * w
