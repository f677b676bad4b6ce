"""Cases of trainweb.ops.reduce."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of, reference
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.ops import reduce

CASES[reduce.Reduction] = Cases(
    samples=(
        Sample([(2, 3, 4)], {"axes": [1]}, opset=11),
        Sample([(2, 3, 4)], {"axes": [-1], "keepdims": 0}, opset=11),
        Sample([(2, 3, 4), i64([0, 2])], {"keepdims": 0}, opset=18),
        Sample([(2, 3, 4)], {"keepdims": 0}, opset=18),
        Sample([(2, 3), i64([])], {"noop_with_empty_axes": 1}, opset=18),
        Sample([(5, 70), i64([0])], opset=18),
        Sample([(2, 300), i64([1])], opset=18),
        Sample([(2, 3, 4, 5), i64([0, 2])], opset=18),
    ),
    bad=(
        Bad([(2, 3), i64([2])], opset=18),
        Bad([(2, 3), i64([0, -2])], opset=18),
        Bad([(2, 3)], {"axes": [-3]}, opset=11),
        Bad([(2, 3), f32([0.0])], opset=18),
        Bad([(2, 3), i64([-(2**63)])], opset=18),
    ),
)

CASES[reduce.ReduceSum] = Cases(
    samples=(*cases_of(reduce.Reduction).samples, Sample([i64([[1, 2], [3, 4]]), i64([1])], opset=18))
)

CASES[reduce.ReduceSumTraining] = Cases(
    samples=(
        Sample([(2, 3, 4), i64([0, 2])], {"keepdims": 0}),
        Sample([(2, 3, 4), i64([1])]),
        Sample([(2, 3), i64([])], {"noop_with_empty_axes": 1}),
        Sample([(2, 3), i64([])]),
    ),
    bad=(Bad([(2, 3), i64([2])]), Bad([(2, 3)])),
)

CASES[reduce.ReduceMean] = Cases(
    samples=(*cases_of(reduce.Reduction).samples, Sample([i64([[1, 2, 4], [-3, 4, -9]]), i64([1])], opset=18))
)

CASES[reduce.ReduceExtremum] = Cases(
    samples=(
        *cases_of(reduce.Reduction).samples,
        Sample([i64([[1, 2], [3, 4]]), i64([1])], opset=18),
        Sample([bools([[True, False], [False, False]]), i64([1])], opset=20),
        Sample([literal("uint8", [[1, 200], [3, 4]]), i64([0])], opset=20),
        Sample([literal("uint64", [[1, 2**63 + 5], [3, 4]]), i64([1])], opset=20),
        Sample([f32([[1, 1], [3, 2]]), i64([1])], opset=18, grad=()),
    ),
)

CASES[reduce.ReduceProd] = Cases(
    samples=(
        *cases_of(reduce.Reduction).samples,
        Sample([i64([[1, 2], [3, 4]]), i64([1])], opset=18),
        Sample([f32([[1.5, 0.0, 2.0], [0.0, 0.0, 2.0], [3.0, 1.0, 2.0]]), i64([1])], opset=18),
    ),
)

CASES[reduce.ReduceL1] = Cases(
    samples=(*cases_of(reduce.Reduction).samples, Sample([i32([[1, -2], [-3, 4]]), i64([1])], opset=18))
)

CASES[reduce.ReduceSumSquare] = Cases(
    samples=(*cases_of(reduce.Reduction).samples, Sample([i64([[1, -2], [-3, 4]]), i64([1])], opset=18))
)

CASES[reduce.ReduceLogSum] = Cases(
    samples=tuple(Sample(s.inputs, s.attrs, s.opset, positive=True) for s in cases_of(reduce.Reduction).samples)
)

CASES[reduce.ReduceAllL2] = Cases(
    samples=(Sample([(2, 3)]), Sample([(2, 3), (4,), (2, 2, 2)])),
    bad=(Bad([i64([1])], error=UnsupportedError),),
)

CASES[reduce.CumSum] = Cases(
    samples=(
        Sample([(3, 4), i64(0)]),
        Sample([(3, 4), i64(1)], {"exclusive": 1}),
        Sample([(3, 4), i64(-1)], {"reverse": 1}),
        Sample([(2, 3, 4), i64(1)], {"exclusive": 1, "reverse": 1}),
        Sample([(3, 4), i32([1])]),
        Sample([i64([[1, 2, 3], [4, 5, 2**40]]), i64(1)]),
        Sample([i32([[1, 2], [4, 5], [6, -7]]), i64(0)], {"exclusive": 1, "reverse": 1}),
        Sample([i64([[5]]), i64(1)], {"exclusive": 1}),
    ),
    bad=(Bad([(3, 4), i64(2)]), Bad([(3, 4), i64([0, 1])]), Bad([bools([True]), i64(0)], error=UnsupportedError)),
)

CASES[reduce.BroadcastGradientArgs] = Cases(
    samples=(
        Sample([i64([2, 1, 4]), i64([3, 1])], outputs=2),
        Sample([i64([2, 3]), i64([2, 3])], outputs=2),
        Sample([i64([2, 3]), i64([])], outputs=2),
    ),
    bad=(Bad([i64([2, 3]), i64([4])]), Bad([f32([2.0]), i64([2])])),
)


@reference(reduce.ReduceSumTraining)
def reduce_sum_training(op: reduce.ReduceSumTraining, x: Any, axes: Any) -> Any:
    given = TensorType("int64", axes.shape, tuple(map(int, axes)))
    return np.sum(x, tuple(op.reduced_axes(given, x.ndim)), keepdims=bool(op.keepdims))


@reference(reduce.ReduceAllL2)
def reduce_all_l2(op: reduce.ReduceAllL2, *xs: Any) -> Any:
    return np.sqrt(sum(np.sum(x * x) for x in xs))


@reference(reduce.BroadcastGradientArgs)
def broadcast_gradient_args(op: reduce.BroadcastGradientArgs, a: Any, b: Any) -> Any:
    return tuple(np.array(axes, np.int64) for axes in op._axes(a.tolist(), b.tolist()))
