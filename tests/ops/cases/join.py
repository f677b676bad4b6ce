"""Cases of trainweb.ops.join."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, i64

from trainweb.ops import join

CASES[join.Concat] = Cases(
    samples=(
        Sample([(2, 3), (2, 1), (2, 2)], {"axis": 1}),
        Sample([(2, 3), (1, 3)], {"axis": 0}),
        Sample([(2, 3), (2, 3)], {"axis": -2}),
        Sample([(2, 3, 4), (2, 2, 4)], {"axis": 1}),
        Sample([i64([1]), i64([2, 3])], {"axis": 0}),
        Sample([(2, 3)], {"axis": 1}),
        Sample([bools([[True]]), bools([[False, True]])], {"axis": 1}),
    ),
    bad=(
        Bad([(2, 3), (3, 3)], {"axis": 1}),
        Bad([(2, 3), (2,)], {"axis": 0}),
        Bad([(2, 3)], {"axis": 2}),
        Bad([(2, 3), (2, 3)]),
        Bad([(3,), i64([1])], {"axis": 0}),
        Bad([()], {"axis": 0}),
    ),
)

CASES[join.ConcatTraining] = Cases(
    samples=(Sample([(2, 3), (2, 1), (2, 2)], {"axis": 1}), Sample([(2, 3), (1, 3)], {"axis": 0}))
)

CASES[join.Split] = Cases(
    samples=(
        Sample([(2, 6), i64([2, 3, 1])], {"axis": 1}, outputs=3),
        Sample([(6, 2)], {"axis": 0}, outputs=3, opset=17),
        Sample([(2, 7)], {"axis": -1, "num_outputs": 3}, outputs=3, opset=18),
        Sample([(2, 6)], {"axis": 1, "split": [2, 4]}, outputs=2, opset=11),
        Sample([i64([1, 2, 3]), i64([1, 2])], outputs=2),
    ),
    bad=(
        Bad([(2, 6), i64([2, 3])], {"axis": 1}),
        Bad([(2, 6), i64([7, -1])], {"axis": 1}),
        Bad([(2, 6), i64([6])], {"axis": 2}),
        Bad([(2, 6), i64([3, 3])], {"axis": 1}),
        Bad([(2, 6)], {"axis": 1, "num_outputs": 2}, opset=18),
    ),
)

CASES[join.SplitTraining] = Cases(
    samples=(
        Sample([(2, 6), i64([2, 3, 1])], {"axis": 1}, outputs=3),
        Sample([(6, 2), i64([4, 2])], outputs=2),
    ),
    bad=(Bad([(2, 6), i64([2, 3])], {"axis": 1}), Bad([(2, 6), i64([2, 4])], {"axis": 1})),
)


@reference(join.ConcatTraining)
def concat_training(op: join.ConcatTraining, *xs: Any) -> Any:
    return np.concatenate(xs, op.axis), np.array([x.shape[op.axis] for x in xs], np.int64)


@reference(join.SplitTraining)
def split_training(op: join.SplitTraining, x: Any, split: Any) -> Any:
    return tuple(np.split(x, np.cumsum(split)[:-1], op.axis))
