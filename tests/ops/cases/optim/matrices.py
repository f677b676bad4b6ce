"""Cases of trainweb.ops.optim.matrices."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.cases.optim.operators import GRADIENTS, PARAMETERS, SECOND_MOMENTS, update_at
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops.optim import matrices

CASES[matrices.AdafactorOptimizer] = Cases(
    samples=(
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, f32([])]),
        Sample(
            [f32([0.2]), i64([7]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, f32([])],
            {"beta2_decay": -0.5, "epsilon": 0.01, "scale_epsilon": 10.0, "clip_threshold": 0.7, "weight_decay": 0.1},
        ),
    ),
    bad=(Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 3, f32([]), bools([True])], error=UnsupportedError),),
)

CASES[matrices.MuonOptimizer] = Cases(
    samples=(update_at(1), update_at(9, weight_decay=0.0)),
    bad=(
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"nesterov": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"match_rms": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"steps": -1}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
    ),
)
