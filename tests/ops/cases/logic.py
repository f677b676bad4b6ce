"""Cases of trainweb.ops.logic."""

from __future__ import annotations

from math import inf

from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of
from tests.ops.literals import bools, f32, i32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import logic

CASES[logic.Comparison] = Cases(
    samples=(
        Sample([f32([1, 2, 3]), f32([3, 2, 1])]),
        Sample([(2, 3, 4), (3, 1)]),
        Sample([i64([1, 2, 3]), i64(2)]),
        Sample([i32([1, 2, 3]), i32([2])]),
    ),
)

CASES[logic.Equal] = Cases(
    samples=(*cases_of(logic.Comparison).samples, Sample([bools([True, False]), bools([True, True])]))
)

CASES[logic.And] = CASES[logic.Or] = CASES[logic.Xor] = Cases(
    samples=(
        Sample([bools([False, False, True, True]), bools([False, True, False, True])]),
        Sample([bools([[True, False], [False, False]]), bools([True, False])]),
    ),
    bad=(Bad([bools([True, False]), bools([True, True, True])]), Bad([(2,), (2,)], error=UnsupportedError)),
)

CASES[logic.Not] = Cases(
    samples=(Sample([bools([True, False, False, True, True])]),),
    bad=(Bad([(2,)], error=UnsupportedError),),
)

CASES[logic.IsNaN] = Cases(samples=(Sample([f32([1.0, float("nan"), inf])]),))

CASES[logic.IsInf] = Cases(
    samples=(
        Sample([f32([1.0, float("nan"), inf, -inf])]),
        Sample([f32([1.0, float("nan"), inf, -inf])], {"detect_negative": 0}),
        Sample([f32([1.0, float("nan"), inf, -inf])], {"detect_positive": 0}),
    ),
)

CASES[logic.Where] = Cases(
    samples=(
        Sample([bools([[True, False, True]]), (2, 3), (2, 3)]),
        Sample([bools([[True], [False]]), (2, 3), (1,)]),
        Sample([bools([True, False, True]), (), (2, 3)]),
        Sample([bools([True, False]), i64([1, 2]), i64([3, 4])]),
    ),
    bad=(
        Bad([(3,), (3,), (3,)]),
        Bad([bools([True, False]), (3,), (3,)]),
        Bad([bools([True, False, True]), (3,), i64([1, 2, 3])]),
    ),
)
