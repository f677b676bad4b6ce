"""Cases of trainweb.ops.ctc."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32, i32, i64

from trainweb.ops import ctc

TARGETS = i64([[1, 2, 2], [3, 0, 0], [1, 1, 3]])
INPUT_LENGTHS, TARGET_LENGTHS = i64([6, 4, 5]), i64([3, 1, 3])
SCORES = (6, 3, 4)
"""Of samples: steps, items, classes."""

CASES[ctc.CTCLoss] = Cases(
    samples=(
        Sample([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], outputs=1),
        Sample([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS]),
        Sample([SCORES, i32([[1, 2, 0]] * 3), i32([6, 6, 6]), i32([3, 0, 2])], {"blank": 3}, outputs=1),
        Sample([(2, 1, 4), i64([[1, 2, 3]]), i64([2]), i64([3])], {"zero_infinity": 1}, outputs=1),
        Sample([(9, 2, 6), i64([[1, 2, 2, 5, 4], [5, 5, 5, 5, 1]]), i64([9, 9]), i64([5, 5])], outputs=1),
        Sample([(3, 1, 4), i64([[]]), i64([3]), i64([0])], outputs=1),
    ),
    bad=(
        Bad([SCORES, TARGETS, INPUT_LENGTHS, i32([3, 1, 3])]),
        Bad([SCORES, f32([[1.0, 2.0]] * 3), INPUT_LENGTHS, TARGET_LENGTHS]),
        Bad([SCORES, i64([1, 2, 3]), INPUT_LENGTHS, TARGET_LENGTHS]),
        Bad([SCORES, TARGETS, i64([6, 4]), TARGET_LENGTHS]),
        Bad([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], {"blank": 4}),
        Bad([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], {"zero_infinity": 2}),
        Bad([(6, 3), TARGETS, INPUT_LENGTHS, TARGET_LENGTHS]),
    ),
)

CASES[ctc.CTCLossGrad] = Cases(tested_through="CTCLoss")
