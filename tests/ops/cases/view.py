"""Cases of trainweb.ops.view."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, f32, i64

from trainweb.ops import view

CASES[view.Identity] = Cases(samples=(Sample([(3, 4)]), Sample([i64([1, 2])]), Sample([bools([True])]), Sample([()])))

CASES[view.Reshape] = Cases(
    samples=(
        Sample([(2, 6), i64([3, 4])]),
        Sample([(2, 3, 4), i64([0, -1])]),
        Sample([(1,), i64([])]),
        Sample([(2, 3, 4), i64([-1])]),
        Sample([f32([[], []]), i64([0, 5])], {"allowzero": 1}, grad=()),
    ),
    bad=(
        Bad([(2, 6), i64([-1, -1])]),
        Bad([(2, 6), i64([5, -1])]),
        Bad([(2, 6), i64([3, 5])]),
        Bad([(2, 6), i64([-2, 6])]),
        Bad([(2, 6), i64([2, 6, 0])]),
        Bad([(2, 6), i64([[12]])]),
        Bad([f32([[], []]), i64([0, -1])], {"allowzero": 1}),
        Bad([(2, 6), f32([12.0])]),
        Bad([(2, 6), i64([2**62, 4])]),
        Bad([(2, 6), i64([-(2**63)])]),
    ),
)

CASES[view.Flatten] = Cases(
    samples=(
        Sample([(2, 3, 4)]),
        Sample([(2, 3, 4)], {"axis": 0}),
        Sample([(2, 3, 4)], {"axis": 3}),
        Sample([(2, 3, 4)], {"axis": -1}),
        Sample([()], {"axis": 0}),
        Sample([(4,)]),
    ),
    bad=(Bad([(2, 3)], {"axis": 3}), Bad([(2, 3)], {"axis": -3})),
)

CASES[view.Squeeze] = Cases(
    samples=(
        Sample([(2, 1, 3), i64([1])]),
        Sample([(2, 1, 3, 1)]),
        Sample([(1, 2, 1), i64([0, -1])]),
        Sample([(2, 1, 3)], {"axes": [1]}, opset=11),
    ),
    bad=(
        Bad([(2, 1, 3), i64([0])]),
        Bad([(2, 1, 3), i64([3])]),
        Bad([(2, 1, 1), i64([1, -2])]),
        Bad([(2, 1), i64([-(2**63)])]),
    ),
)

CASES[view.Unsqueeze] = Cases(
    samples=(
        Sample([(2, 3), i64([1])]),
        Sample([(2, 3), i64([0, -1])]),
        Sample([(), i64([0])]),
        Sample([(2, 3)], {"axes": [0, 2]}, opset=11),
    ),
    bad=(Bad([(2, 3), i64([4])]), Bad([(2, 3), i64([1, -3])]), Bad([(2, 3)]), Bad([(2, 3)], opset=11)),
)

CASES[view.Shape] = Cases(
    samples=(
        Sample([(3, 4)]),
        Sample([()]),
        Sample([(3, 4, 5)], {"start": 1}),
        Sample([(3, 4, 5)], {"end": -1}),
        Sample([(3, 4, 5)], {"start": -9, "end": 9}),
        Sample([(3, 4, 5)], {"start": 2, "end": 1}),
    ),
)

CASES[view.Size] = Cases(samples=(Sample([(3, 4)]), Sample([()])))
