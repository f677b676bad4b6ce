"""Cases of trainweb.ops.optim.operators."""

from __future__ import annotations

from math import inf, nan
from typing import Any

from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops.optim import operators

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

CASES[operators.LambOptimizer] = Cases(
    samples=(
        update_at(1),
        update_at(7, 0.01, alpha=0.8, beta=0.95, epsilon=1e-3, weight_decay=0.2),
        Sample([f32([0.1]), i64([1]), *[f32([0.0, 0.0]), f32([0.5, -1.0])], *[f32([0.0, 0.0])] * 2]),
        update_at(7, ratio_max=0.125, correct_bias=0),
        update_at(7, ratio_min=8.0),
        update_at(7, ratio_min=0.25, ratio_max=0.25, weight_decay=0.1),
    ),
    bad=(
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"ratio_min": 2.0, "ratio_max": 1.0}),
    ),
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
