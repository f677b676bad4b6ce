"""Cases of trainweb.ops.conv_transpose."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.ops import conv_transpose

CASES[conv_transpose.ConvTranspose] = Cases(
    samples=(
        Sample([(1, 3, 4, 4), (3, 2, 3, 3), (2,)], {"strides": [2, 2]}),
        Sample([(2, 4, 5, 3), (4, 5, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        Sample([(2, 4, 5, 6), (4, 3, 2, 3), (6,)], {"group": 2, "dilations": [2, 1], "pads": [0, 1, 2, 0]}),
        Sample([(2, 3, 5, 4), (3, 4, 3, 3), (4,)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        Sample([(2, 3, 5, 4), (3, 4, 4, 4)], {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
        Sample([(1, 2, 3, 3), (2, 2, 3, 3)], {"strides": [3, 2], "output_shape": [10, 8]}),
        Sample([(2, 3, 4, 5), (3, 6, 1, 1), (6,)]),
        Sample([(5, 6, 1, 1), (6, 4, 1, 1), (4,)]),
        Sample([(2, 3, 7), (3, 2, 4)], {"strides": [2], "auto_pad": "VALID"}),
        Sample([(1, 2, 3, 4, 3), (2, 3, 2, 2, 2), (3,)], {"strides": [1, 2, 1]}),
        Sample([(2, 6, 8, 8), (6, 1, 4, 4)], {"group": 6, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ),
    bad=(
        Bad([(1, 3, 4, 4), (2, 3, 3, 3)]),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3), (3,)]),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"strides": [0, 1]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"pads": [3, 3, 3, 3]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"group": 2}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"output_shape": [9]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"auto_pad": "SAME"}),
    ),
)
