"""Cases of trainweb.ops.deformable."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

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


def pixel(image: Any, row: float, column: float) -> float:
    found = 0.0
    for i, j in product(*([int(np.floor(v)), int(np.floor(v)) + 1] for v in (row, column))):
        if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
            found += (1 - abs(row - i)) * (1 - abs(column - j)) * image[i, j]
    return found


@reference(deformable.DeformConv)
def deform_conv(op: deformable.DeformConv, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
    kernel, taps = w.shape[2:], prod(w.shape[2:])
    y = np.zeros((len(x), len(w), *offset.shape[2:]))
    strides, dilations, pads = op.strides or (1, 1), op.dilations or (1, 1), op.pads or (0, 0)
    for item, out, row, column in np.ndindex(*y.shape):
        for k, (i, j) in enumerate(np.ndindex(*kernel)):
            for c in range(w.shape[1]):
                channel = out // (len(w) // op.group) * w.shape[1] + c
                tap = channel // (x.shape[1] // op.offset_group) * taps + k
                down, right = offset[item, 2 * tap : 2 * tap + 2, row, column]
                place = (
                    row * strides[0] + i * dilations[0] - pads[0] + down,
                    column * strides[1] + j * dilations[1] - pads[1] + right,
                )
                share = 1.0 if mask is None else mask[item, tap, row, column]
                y[item, out, row, column] += share * w[out, c, i, j] * pixel(x[item, channel], *place)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)
