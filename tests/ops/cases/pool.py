"""Cases of trainweb.ops.pool."""

from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of
from tests.ops.literals import literal

from trainweb.ops import pool

ONE_WINDOW = Sample([(1, 2, 2, 3)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, outputs=1)
"""Which is larger than the input, as sizes are rounded up."""

CASES[pool._Pool] = Cases(
    samples=(
        Sample([(2, 3, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}, outputs=1),
        Sample([(2, 3, 7, 6)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, outputs=1),
        Sample([(2, 3, 7, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, outputs=1),
        Sample([(2, 3, 9)], {"kernel_shape": [3]}, outputs=1),
        Sample([(1, 2, 4, 4, 5)], {"kernel_shape": [2, 2, 2]}, outputs=1),
        Sample([(2, 3, 7, 6)], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, outputs=1),
        Sample([(2, 3, 7, 6)], {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}, outputs=1),
        # Windows that would start in the padding at the end.
        Sample(
            [(1, 2, 3, 6)], {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}, outputs=1
        ),
    ),
    bad=(
        Bad([(2, 3, 6, 6)], {"kernel_shape": [0, 2]}),
        Bad([(2, 3, 6, 6)], {"kernel_shape": [2, 2], "strides": [0, 1]}),
        Bad([(2, 3, 6, 6)], {"kernel_shape": [7, 7]}),
        Bad([(2, 3, 6, 6)], {"kernel_shape": [2]}),
        Bad([(2, 3, 1, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        Bad([(2, 3, 6, 6)]),
        Bad([(2, 3, 6, 6)], {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}),
        Bad([(2, 3, 6, 6)], {"kernel_shape": [2, 3], "pads": [0, 0, 0, 3]}),
    ),
)

CASES[pool.MaxPool] = Cases(
    samples=(
        *cases_of(pool._Pool).samples,
        Sample([(2, 3, 9, 9)], {"kernel_shape": [2, 3], "dilations": [2, 1]}, outputs=1),
        Sample([(2, 3, 6, 6)], {"kernel_shape": [2, 2]}, outputs=2),
        ONE_WINDOW,
        Sample([(1, 1, 6, 5)], {"kernel_shape": [2, 2], "strides": [2, 1], "storage_order": 1}, outputs=2),
        Sample([literal("uint8", [[[[1, 255, 3], [4, 0, 6]]]])], {"kernel_shape": [2, 2]}, outputs=2),
        Sample([literal("int8", [[[-5, -128, 127, -1]]])], {"kernel_shape": [2]}, outputs=1),
    ),
)

CASES[pool.MaxPoolGrad] = Cases(tested_through="MaxPool")

CASES[pool.AveragePool] = Cases(
    samples=(
        *cases_of(pool._Pool).samples,
        Sample([(2, 3, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "count_include_pad": 1}),
        ONE_WINDOW,
    ),
)

CASES[pool.AveragePoolGrad] = Cases(tested_through="AveragePool")

CASES[pool._GlobalPool] = Cases(
    samples=(Sample([(2, 3, 5, 4)]), Sample([(2, 3, 7)])),
    bad=(Bad([(2, 3)]),),
)
