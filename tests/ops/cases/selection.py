"""Cases of trainweb.ops.selection."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import selection

CASES[selection.NonZero] = Cases(
    samples=(
        Sample([i64([[1, 0], [1, 1]])]),
        Sample([bools([True, False, True])]),
        Sample([f32([[0.0, -0.5, 2.0]])]),
        Sample([i64([0, 0])]),
    ),
    bad=(Bad([(5, 13)], error=UnsupportedError),),
)

CASES[selection.Compress] = Cases(
    samples=(
        Sample([(3, 2), bools([False, True, True])], {"axis": 0}),
        Sample([(3, 2), bools([False, True])], {"axis": -1}),
        Sample([(3, 2), bools([False, True, False, False, True])]),
        Sample([(3, 4), bools([True, False])], {"axis": 1}),
        Sample([i64([[1, 2], [3, 4]]), bools([False, True])], {"axis": 1}),
    ),
    bad=(
        Bad([(3, 2), bools([True] * 4)], {"axis": 0}),
        Bad([(3, 2), bools([[True]])], {"axis": 0}),
        Bad([(3, 2), i64([1])], {"axis": 0}),
        Bad([(3, 2), bools([True])], {"axis": 2}),
    ),
)

CASES[selection.Unique] = Cases(
    samples=(
        Sample([i64([2, 1, 1, 3, 4, 3])], outputs=4),
        Sample([f32([2.0, 1.0, 1.0, 3.0, 4.0, 3.0])], {"sorted": 0}, outputs=4),
        Sample([i64([[1, 0, 0], [1, 0, 0], [2, 3, 4]])], {"axis": 0}, outputs=4),
        Sample([f32([[[1.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 1.0]]])], {"axis": -1}, outputs=4),
    ),
    bad=(Bad([i64([1])], {"axis": 1}), Bad([(5, 13)], error=UnsupportedError)),
)

BOXES = f32([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [1.0, 0.9, 0.0, -0.1], [0.0, 10.0, 1.0, 11.0]]])

CASES[selection.NonMaxSuppression] = Cases(
    samples=(
        Sample([BOXES, f32([[[0.9, 0.75, 0.6, 0.95]]]), i64([3]), f32([0.5]), f32([0.0])], opset=11),
        Sample([BOXES, f32([[[0.9, 0.75, 0.6, 0.95]] * 2]), i64([1]), f32([0.5])], opset=11),
        Sample(
            [BOXES, f32([[[0.9, 0.75, 0.6, 0.95]]]), i64([3]), f32([0.5]), f32([0.7])],
            {"center_point_box": 1},
            opset=11,
        ),
    ),
    bad=(
        Bad([f32([[[0.0, 0.0, 1.0]]]), f32([[[0.9]]])], opset=11),
        Bad([BOXES, f32([[[0.9, 0.75]]])], opset=11),
        Bad([BOXES, f32([[[0.9, 0.75, 0.6, 0.95]]]), i64([1]), f32([1.5])], opset=11),
    ),
)
