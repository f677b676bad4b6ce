"""Cases of trainweb.ops.conv."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.ops import conv

CASES[conv.Conv] = Cases(
    samples=(
        Sample([(2, 3, 7, 6), (4, 3, 3, 3), (4,)], {"pads": [1, 1, 1, 1]}),
        Sample([(2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        Sample([(2, 4, 6, 5), (6, 2, 3, 2), (6,)], {"group": 2, "dilations": [2, 1]}),
        Sample([(2, 4, 6, 5), (4, 1, 3, 3)], {"group": 4, "pads": [1, 1, 1, 1]}),
        Sample([(2, 3, 5, 5), (4, 3, 1, 1), (4,)]),
        Sample([(2, 3, 9), (4, 3, 3), (4,)], {"pads": [2, 0]}),
        Sample([(1, 2, 4, 5, 4), (3, 2, 2, 3, 2)], {"pads": [0, 1, 1, 1, 1, 0]}),
        Sample([(2, 3, 7, 6), (4, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        Sample([(2, 3, 7, 6), (4, 3, 2, 2)], {"auto_pad": "SAME_LOWER"}),
        Sample([(2, 3, 5, 5), (4, 3, 1, 1), (4,)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        Sample([(3, 5, 7), (9, 5, 1)]),
        Sample([(5, 6, 1, 1), (4, 6, 1, 1), (4,)]),
    ),
    bad=(
        Bad([(2, 3, 7, 6), (4, 2, 3, 3)]),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [0, 1]}),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [-1, 0, 0, 0]}),
        Bad([(2, 3, 7, 6), (4, 3, 9, 3)]),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"group": 2}),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3), (3,)]),
    ),
)

CASES[conv.ConvGrad] = Cases(
    samples=(
        Sample([(2, 4, 7, 6), (2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),
        Sample([(2, 6, 2, 4), (2, 4, 6, 5), (6, 2, 3, 2)], {"group": 2, "dilations": [2, 1]}),
        Sample([(2, 4, 4, 2), (2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        Sample([(2, 9, 7, 6), (2, 5, 7, 6), (9, 5, 1, 1)]),
        Sample([(5, 4, 1, 1), (5, 6, 1, 1), (4, 6, 1, 1)]),
        Sample([(2, 6, 7, 6), (2, 3, 7, 6), (6, 1, 3, 3)], {"group": 3, "pads": [1, 1, 1, 1]}),
        Sample([(1, 3, 4, 4), (1, 3, 7, 8), (3, 1, 5, 5)], {"group": 3, "strides": [2, 2], "pads": [2, 1, 2, 3]}),
    ),
    bad=(Bad([(2, 4, 6, 6), (2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),),
)
