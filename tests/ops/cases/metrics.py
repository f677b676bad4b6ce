"""Cases of trainweb.ops.metrics."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32, i64

from trainweb.errors import FeedError
from trainweb.ops import metrics

SCORES, CLASSES = f32([[0.5, 2, -1], [1, 1, 0], [3, 0, 4], [0, 0, 0]]), i64([1, 1, 2, 0])
NAN = f32([[1, float("nan"), 3], [float("nan"), 0, 1]])
IMAGE, PIXELS = (2, 3, 2, 2), i64([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])

CASES[metrics.ClassCounts] = Cases(
    samples=(
        Sample([SCORES, CLASSES], outputs=2),
        Sample([SCORES, CLASSES], {"count": "parts"}, outputs=2),
        Sample([SCORES, CLASSES], {"count": "matrix"}, outputs=2),
        Sample([IMAGE, PIXELS], {"count": "matrix", "ignores": 1, "ignored": 2}, outputs=2),
        Sample([SCORES, i64([1, -100, 3, 0])], {"ignores": 1, "ignored": -100}, outputs=2),
        Sample([NAN, i64([1, 0])], outputs=2),
        Sample([f32([0.5, 0, -1]), f32([1, 1, 0])], {"count": "matrix"}, outputs=2),
    ),
    bad=(Bad([(4, 3), i64([0, 1])], error=FeedError), Bad([SCORES, CLASSES], {"count": "all"})),
)

CASES[metrics.TopCounts] = Cases(
    samples=(
        Sample([SCORES, CLASSES], outputs=2),
        Sample([SCORES, CLASSES], {"k": 2}, outputs=2),
        Sample([IMAGE, PIXELS], {"k": 2, "ignores": 1, "ignored": 1}, outputs=2),
        Sample([NAN, i64([0, 0])], {"k": 1}, outputs=2),
        Sample([f32([0.5, 0, -1]), f32([1, 1, 0])], outputs=2),
        Sample([SCORES, i64([0, 7, -1, 1])], outputs=2),
    ),
    bad=(Bad([(4, 3), i64([0, 1])], error=FeedError), Bad([SCORES, CLASSES], {"k": 0})),
)

CASES[metrics.ErrorSums] = Cases(
    samples=(
        Sample([(5, 2), (5, 2)], {"columns": 1}),
        Sample([(5, 2), (5, 2)]),
        Sample([(5, 1), f32([1e6, 1e6 + 1, 1e6 + 2, 1e6, 1e6])], {"columns": 1}),
        Sample([(2, 3, 2), (2, 3, 2)], {"columns": 1}),
        Sample([i64([1, 2, 4]), i64([1, 0, 9])]),
    ),
    bad=(Bad([(4, 3), (4, 2)], error=FeedError), Bad([(3,), (2,)], {"columns": 1}, FeedError)),
)
