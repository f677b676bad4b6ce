"""Cases of trainweb.ops.grid_sample."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.errors import UnsupportedError
from trainweb.ops import grid_sample

CASES[grid_sample.GridSample] = Cases(
    samples=(
        Sample([(2, 3, 4, 5), (2, 3, 2, 2)], opset=20),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"align_corners": 1, "padding_mode": "border"}, opset=20),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"padding_mode": "reflection", "mode": "bilinear"}, opset=16),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"mode": "nearest"}, opset=20, grad=[0]),
        Sample([(1, 1, 5, 4), (1, 3, 4, 2)], {"mode": "cubic", "padding_mode": "reflection"}, opset=20),
        Sample(
            [(1, 1, 5, 4), (1, 3, 4, 2)], {"mode": "bicubic", "align_corners": 1, "padding_mode": "border"}, opset=16
        ),
        Sample([(1, 2, 3, 4, 5), (1, 2, 3, 2, 3)], {"padding_mode": "reflection", "align_corners": 1}, opset=20),
    ),
    bad=(
        Bad([(2, 3, 4, 5), (2, 3, 2, 3)], opset=20),
        Bad([(2, 3, 4, 5), (1, 3, 2, 2)], opset=20),
        Bad([(2, 3, 4, 5), (2, 3, 2, 2)], {"mode": "area"}, opset=20),
        Bad([(1, 1, 4, 4, 4), (1, 2, 2, 2, 3)], {"mode": "cubic"}, UnsupportedError, opset=20),
    ),
)
