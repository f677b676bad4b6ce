"""Cases of trainweb.ops.slicing."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i64

from trainweb.errors import LimitError
from trainweb.ir.shapes import TensorType
from trainweb.ops import slicing

CASES[slicing.Slice] = Cases(
    samples=(
        Sample([(4, 6), i64([1, 0]), i64([3, 5]), i64([0, 1]), i64([1, 2])]),
        Sample([(4, 6), i64([1]), i64([2**63 - 1]), i64([-1])]),
        Sample([(4, 6), i64([1, 2]), i64([3, -1])]),
        Sample([(4, 6), i64([-1, 4]), i64([-(2**63), 0]), i64([0, 1]), i64([-1, -2])]),
        Sample([(4, 6)], {"starts": [1], "ends": [3], "axes": [1]}, opset=9),
        Sample([(2, 3, 4, 5), i64([1, 1]), i64([3, 4]), i64([1, 3])]),
        Sample([(4, 6), i64([3]), i64([1])]),
        Sample([i64([1, 2, 3, 4]), i64([0]), i64([4]), i64([0]), i64([2])]),
    ),
    bad=(
        Bad([(4, 6), i64([0]), i64([3]), i64([0]), i64([0])]),
        Bad([(4, 6), i64([0]), i64([3]), i64([2])]),
        Bad([(4, 6), i64([0, 0]), i64([3])]),
        Bad([(4, 6), i64([0, 0]), i64([3, 3]), i64([0, -2])]),
        Bad([(4, 6), f32([0.0]), i64([3])]),
        Bad([(4, 6)]),
        Bad([(4, 6), i64([0]), i64([3]), i64([-(2**63)])]),
    ),
)

CASES[slicing.SliceGrad] = Cases(
    samples=(
        Sample([(2, 3), i64([4, 6]), i64([1, 0]), i64([3, 5]), i64([0, 1]), i64([1, 2])]),
        Sample([(4, 2), i64([4, 6]), i64([1]), i64([3]), i64([1])]),
        Sample([(4, 2), i64([4, 6]), i64([4]), i64([0]), i64([1]), i64([-2])]),
    ),
    bad=(Bad([(2, 3), i64([4, 6]), i64([0]), i64([4])]), Bad([(2, 3), i64([4, -6]), i64([0]), i64([2])])),
)

CASES[slicing.Pad] = Cases(
    samples=(
        Sample([(2, 3), i64([1, 0, 0, 2])]),
        Sample([(3, 4), i64([-1, 1, 0, -2])]),
        Sample([(2, 3), i64([1, 1, 1, 1]), f32(2.5)]),
        Sample([(3, 4), i64([-1, 1, 0, -2]), f32([2.5])]),
        Sample([(2, 3), i64([1, 2]), None, i64([1])], opset=18),
        Sample([(3, 4), i64([2, 1, 1, 3])], {"mode": "reflect"}),
        Sample([(3, 4), i64([2, 1, 1, 5])], {"mode": "edge"}),
        Sample([(3, 4), i64([2, 1, 1, 3])], {"mode": "wrap"}, opset=19),
        Sample([(3, 2, 4), i64([1, 2, 0, 1]), None, i64([2, 0])], {"mode": "reflect"}, opset=18),
        Sample([(3, 2, 4), i64([0, 1, 2, 1]), None, i64([-1, 0])], {"mode": "edge"}, opset=18),
        Sample([(3, 4), i64([3, 2]), None, i64([0])], {"mode": "wrap"}, opset=19),
        Sample([(2, 3)], {"pads": [0, 1, 1, 0], "value": 1.5}, opset=10),
        Sample([i64([1, 2]), i64([1, 1]), i64(9)]),
        Sample([(2, 2, 3, 3), i64([0, 0, 1, 1, 0, 0, 1, 1])]),
    ),
    bad=(
        Bad([(2, 3), i64([1, 0, 0])]),
        Bad([(2, 3), i64([-3, 0, 0, 0])]),
        Bad([(2, 3), i64([0, 0, 0, 0])], {"mode": "sky"}),
        Bad([(2, 3), i64([2, 0, 0, 0])], {"mode": "reflect"}),
        Bad([(2, 3)]),
        Bad([(2, 3), i64([0, 0, 0, 0]), i64(1)]),
        Bad([(2, 3), i64([2**40, 0, 0, 2**40])], error=LimitError),
        Bad([(2, 3), i64([1, 1]), None, i64([2])], opset=18),
    ),
)


@reference(slicing.SliceGrad)
def slice_grad(op: slicing.SliceGrad, dy: Any, shape: Any, *given: Any) -> Any:
    types = [None if t is None else TensorType("int64", t.shape, tuple(map(int, t))) for t in given]
    result = np.zeros([int(d) for d in shape], dy.dtype)
    parts = op.bounds(TensorType("float32", result.shape), *types)
    index = np.ix_(*(start + step * np.arange(count) for start, count, step in parts))
    result[index] = dy
    return result


@reference(slicing.Pad)
def pad(op: slicing.Pad, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    types = [None if t is None else TensorType("int64", t.shape, tuple(map(int, t))) for t in (pads, axes)]
    margins = op.margins(x.ndim, *types)
    for axis, (before, after) in enumerate(margins):
        if op.mode != "constant":
            x = np.take(x, op._index(x.shape[axis], before, after), axis)
    if op.mode != "constant":
        return x
    fill = op.value if value is None else value.item()
    x = np.pad(x, [(max(p, 0), max(q, 0)) for p, q in margins], constant_values=fill)
    return x[tuple(slice(max(-p, 0), x.shape[k] - max(-q, 0)) for k, (p, q) in enumerate(margins))]
