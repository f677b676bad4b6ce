"""Cases of trainweb.ops.resize."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i64

from trainweb.ir.shapes import TensorType
from trainweb.ops import resize

CASES[resize.Resize] = Cases(
    samples=(
        Sample([(1, 2, 3, 3), None, f32([1, 1, 2, 2])], {"mode": "nearest"}),
        Sample([(2, 2, 3, 4), None, f32([1, 1, 2, 2])], {"mode": "linear"}),
        Sample(
            [(1, 2, 5, 4), None, None, i64([1, 2, 3, 7])],
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        ),
        Sample([(1, 2, 5, 6), None, f32([1, 1, 0.6, 1.5])], {"mode": "cubic"}),
        Sample([(1, 2, 8, 9), None, None, i64([4, 5])], {"mode": "linear", "antialias": 1, "axes": [2, 3]}, opset=18),
        Sample(
            [(2, 3, 5), None, f32([1, 1, 1.5])],
            {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
        ),
        Sample(
            [(1, 1, 2, 3, 2), None, f32([1, 1, 2, 1, 3])],
            {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        ),
        Sample([(1, 2, 4, 4), None, f32([1, 1, 1, 1])]),
        Sample([(1, 2, 4, 3), f32([1, 1, 0.5, 2])], {"mode": "linear"}, opset=10),
        Sample(
            [(1, 2, 4, 5), f32([0, 0, 0.3, -0.2, 1, 1, 0.8, 1.4]), None, i64([1, 2, 3, 6])],
            {"mode": "linear", "coordinate_transformation_mode": resize.CROP, "extrapolation_value": 10.0},
        ),
        Sample(
            [(2, 5, 4), f32([0.25, 0.5, 1.2, 1]), f32([2, 1]), None],
            {"mode": "nearest", "coordinate_transformation_mode": resize.CROP, "axes": [1, 2]},
            opset=18,
        ),
    ),
    bad=(
        Bad([(1, 2, 3, 3), None, f32([1, 1, 2])]),
        Bad([(1, 2, 3, 3), None, f32([1, 1, 2, -2])]),
        Bad([(1, 2, 3, 3), None, f32([1, 1, 2, 2])], {"mode": "bilinear"}),
        Bad([(1, 2, 3, 3), None, f32([1, 1, 2, 2]), i64([1, 2, 6, 6])]),
        Bad([(1, 2, 3, 3)]),
        Bad([(1, 2, 3, 3), f32([0, 0, 1, 1]), f32([1, 1, 2, 2])], {"coordinate_transformation_mode": resize.CROP}),
    ),
)

CASES[resize.ResizeGrad] = Cases(
    samples=(
        Sample([(1, 2, 6, 6), i64([1, 2, 3, 3]), f32([1, 1, 2, 2])], {"mode": "nearest"}),
        Sample([(2, 2, 6, 9), i64([2, 2, 3, 4]), None, i64([2, 2, 6, 9])], {"mode": "linear"}),
        Sample([(1, 2, 3, 9), i64([1, 2, 5, 6]), f32([1, 1, 0.6, 1.5])], {"mode": "cubic"}),
        Sample([(2, 3), i64([2, 3]), f32([1, 1])]),
        Sample(
            [(1, 2, 3, 4), i64([1, 2, 5, 3]), None, i64([1, 2, 3, 4]), f32([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.1])],
            {"mode": "linear", "coordinate_transformation_mode": resize.CROP},
        ),
    ),
    bad=(
        Bad([(1, 2, 6, 6), i64([1, 2, 3, 4]), f32([1, 1, 2, 2])]),
        Bad([(1, 2, 6, 6), i64([1, 2, 3]), f32([1, 1, 2, 2])]),
    ),
)

CASES[resize.Upsample] = Cases(
    samples=(
        Sample([(1, 2, 3, 4), f32([1, 1, 2, 3])], opset=9),
        Sample([(1, 2, 3, 3), f32([1, 1, 2, 1.5])], {"mode": "linear"}, opset=9),
        Sample([(2, 3, 5)], {"scales": [1.0, 1.0, 2.0]}, opset=7),
    ),
    bad=(
        Bad([(1, 2, 3, 3), f32([1, 1, 0.5, 2])], opset=9),
        Bad([(1, 2, 3, 3), f32([1, 1, 2, 2])], {"mode": "cubic"}, opset=9),
        Bad([(1, 2, 3, 3)], opset=9),
    ),
)


def known_types(scales: Any, sizes: Any, roi: Any) -> list[TensorType | None]:
    """Types with the values of arrays."""
    given = ("float32", scales), ("int64", sizes), ("float32", roi)
    return [None if v is None else TensorType(dtype, v.shape, tuple(v.tolist())) for dtype, v in given]


@reference(resize.Resize)
def resized(op: resize.Resize, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    known = known_types(roi if op.is_old else scales, sizes, roi)
    crops = op.crops(x.ndim, known[2])
    scaled = op.scaled(x.shape, known[0], known[1], crops)
    beyond = op._beyond(x.shape, scaled, crops)
    for axis, (n, scale) in scaled.items():
        weights = np.array(op.weights(x.shape[axis], n, scale, crops.get(axis, resize.WHOLE)))
        x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
    return x if beyond is None else x + np.array(beyond[1]).reshape(beyond[0])


@reference(resize.ResizeGrad)
def resize_grad(
    op: resize.ResizeGrad, dy: Any, shape: Any, scales: Any = None, sizes: Any = None, roi: Any = None
) -> Any:
    known = known_types(scales, sizes, roi)
    crops = op.crops(dy.ndim, known[2])
    for axis, (n, scale) in op.scaled(tuple(map(int, shape)), known[0], known[1], crops).items():
        weights = np.array(op.weights(int(shape[axis]), n, scale, crops.get(axis, resize.WHOLE)))
        dy = np.moveaxis(np.tensordot(weights, dy, (0, axis)), 0, axis)
    return dy


@reference(resize.Upsample)
def upsample(op: resize.Upsample, x: Any, scales: Any = None, *_: Any) -> Any:
    return resized(op, x, np.array(op.scales) if scales is None else scales)
