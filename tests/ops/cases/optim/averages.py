"""Cases of trainweb.ops.optim.averages."""

from __future__ import annotations

from typing import Any

from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.cases.optim.operators import FIRST_MOMENTS, PARAMETERS
from tests.ops.literals import f32, i64

from trainweb.ops.optim import averages

CASES[averages.ExponentialMovingAverage] = Cases(
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


@reference(averages.ExponentialMovingAverage)
def exponential_moving_average(op: averages.ExponentialMovingAverage, step: Any, w: Any, average: Any) -> Any:
    """The average after step number `step` (1 at the first)."""
    t = step - 1
    decay = op.decay
    if op.warmup_power:
        decay = min(decay, 1 - (1 + t / op.warmup_gamma) ** -op.warmup_power)
    return w if t == 0 else decay * average + (1 - decay) * w
