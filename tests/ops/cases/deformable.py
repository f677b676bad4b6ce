"""Cases of trainweb.ops.deformable."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.errors import UnsupportedError
from trainweb.ops import deformable

CASES[deformable.DeformConv] = Cases(
    samples=(
        Sample([(2, 2, 5, 4), (3, 2, 2, 2), (2, 8, 4, 3)], opset=19),
        Sample(
            [(1, 4, 5, 5), (4, 2, 3, 3), (1, 36, 3, 2), (4,), (1, 18, 3, 2)],
            {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 0], "strides": [2, 2]},
            opset=19,
        ),
        Sample(
            [(1, 1, 5, 6), (2, 1, 2, 2), (1, 8, 3, 5), (2,)], {"dilations": [2, 1], "kernel_shape": [2, 2]}, opset=22
        ),
    ),
    bad=(
        Bad([(2, 2, 5, 4), (3, 2, 2, 2), (2, 8, 4, 4)], opset=19),
        Bad([(2, 2, 5, 4), (3, 1, 2, 2), (2, 8, 4, 3)], opset=19),
        Bad([(2, 2, 5, 4), (3, 2, 2, 2), (2, 8, 4, 3), None, (2, 8, 4, 3)], opset=19),
        Bad([(2, 2, 5, 4), (3, 2, 2, 2), (2, 8, 4, 3)], {"kernel_shape": [3, 3]}, opset=19),
        Bad([(2, 2, 5, 4), (3, 2, 2, 2), (2, 8, 4, 3)], {"offset_group": 4}, opset=19),
        Bad([(2, 2, 5, 4, 3), (3, 2, 2, 2, 2), (2, 24, 4, 3, 2)], error=UnsupportedError, opset=19),
    ),
)
