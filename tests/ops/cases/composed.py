"""Cases of trainweb.ops.composed."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import composed

CASES[composed.GlobalLpPool] = Cases(
    samples=(Sample([(2, 3, 4, 5)]), Sample([(2, 3, 4)], {"p": 3}, away_from=(0.0,))),
    bad=(Bad([(2,)]), Bad([(2, 3, 4)], {"p": 0})),
)

CASES[composed.Hardmax] = Cases(
    samples=(
        Sample([f32([[3, 0, 1, 2], [2, 5, 1, 5], [0, 1, 3, 2]])]),
        Sample([(2, 3, 4)], {"axis": 1}),
        Sample([(2, 3, 4)], {"axis": -1}, opset=13),
        Sample([(2, 3, 4)], opset=11),
        Sample([(2, 3, 4)], {"axis": 2}, opset=7),
    ),
    bad=(Bad([(2, 3)], {"axis": 2}),),
)

CASES[composed.ReverseSequence] = Cases(
    samples=(
        Sample([(4, 3), i64([4, 1, 2])]),
        Sample([(3, 4, 2), i64([4, 1, 2])], {"batch_axis": 0, "time_axis": 1}),
        Sample([i64([[1, 2], [3, 4], [5, 6]]), i64([3, 2])]),
    ),
    bad=(Bad([(4, 3), (3,)]), Bad([(4, 3), i64([1, 2, 3])], {"batch_axis": 0})),
)

CASES[composed.LpPool] = Cases(
    samples=(
        Sample([(2, 3, 6, 5)], {"kernel_shape": [2, 3]}),
        Sample([(2, 3, 6)], {"kernel_shape": [3], "p": 3, "pads": [1, 1], "strides": [2]}, away_from=(0.0,)),
        Sample([(2, 3, 7, 6)], {"kernel_shape": [3, 2], "strides": [3, 2], "ceil_mode": 1}, opset=18),
        Sample(
            [(1, 2, 8)],
            {"kernel_shape": [2], "p": 3, "strides": [4], "pads": [1, 1], "dilations": [2], "ceil_mode": 1},
            opset=22,
            away_from=(0.0,),
        ),
        # A window that would start in the padding at the end.
        Sample([(1, 2, 5)], {"kernel_shape": [3], "strides": [3], "pads": [1, 2], "ceil_mode": 1}, opset=18),
        Sample([(1, 2, 7)], {"kernel_shape": [3], "strides": [3], "auto_pad": "SAME_LOWER", "ceil_mode": 1}, opset=18),
    ),
    bad=(
        Bad([(2, 3, 4)], {"kernel_shape": [2], "p": 0}),
        Bad([(2, 3, 4)], {"kernel_shape": [2, 2]}),
    ),
)

CASES[composed.CumProd] = Cases(
    samples=(
        Sample([(3, 4), i64(0)]),
        Sample([(3, 5), i64([1])], {"exclusive": 1}),
        Sample([f32([[1.0, 0.0, 2.0, 0.0, 3.0]]), i64(-1)], {"reverse": 1}),
        Sample([i32([[1, 2, 3], [4, 5, 6]]), i64(1)], {"exclusive": 1, "reverse": 1}),
    ),
    bad=(Bad([(3, 4), i64(2)]), Bad([(3, 4), i64([0, 1])])),
)

CASES[composed._Window] = Cases(
    samples=(Sample([i64(10)]), Sample([i64(10)], {"periodic": 0})),
    bad=(Bad([i64([1, 2])]), Bad([i64(10)], {"output_datatype": 7}, UnsupportedError)),
)

CASES[composed.CenterCropPad] = Cases(
    samples=(
        Sample([(5, 4, 3), i64([2, 7, 3])], opset=18),
        Sample([(5, 4), i64([6])], {"axes": [-1]}, opset=18),
        Sample([i64([[1, 2, 3]]), i64([2, 2])], opset=18),
    ),
    bad=(Bad([(5, 4), i64([2])], opset=18), Bad([(5, 4), i64([-2, 3])], opset=18)),
)

CASES[composed.AffineGrid] = Cases(
    samples=(
        Sample([(2, 2, 3), i64([2, 1, 3, 4])], opset=20),
        Sample([(1, 3, 4), i64([1, 1, 2, 3, 2])], {"align_corners": 1}, opset=20),
    ),
    bad=(Bad([(2, 2, 3), i64([2, 1, 3])], opset=20), Bad([(2, 2, 2), i64([2, 1, 3, 4])], opset=20)),
)


@reference(composed.AffineGrid)
def affine_grid(op: composed.AffineGrid, theta: Any, size: Any) -> Any:
    image = [int(n) for n in size[2:]]
    ends = [1.0 if op.align_corners else 1 - 1 / n for n in image]
    axes = np.meshgrid(*(np.linspace(-e, e, n) for e, n in zip(ends, image, strict=True)), indexing="ij")
    points = np.stack([*axes[::-1], np.ones(image)], -1)
    return np.einsum("nij,...j->n...i", theta, points)
