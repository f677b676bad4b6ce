"""Cases of trainweb.ops.optim.averages."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
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
