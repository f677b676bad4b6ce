"""Cases of trainweb.ops.elementwise."""

from math import inf
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of, reference
from tests.ops.literals import bools, f32, i32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import elementwise
from trainweb.ops.frame.pointwise import Unary

SHAPES = (
    Sample([(2, 3), (2, 3)]),
    Sample([(2, 3, 4), (4,)]),
    Sample([(2, 1, 4), (3, 1)]),
    Sample([(2, 3), ()]),
    Sample([(), (5,)]),
)
MISFITS = (Bad([(2, 3), (4,)]), Bad([(2, 3)]))

CASES[elementwise.Binary] = Cases(
    samples=SHAPES,
    bad=MISFITS,
)

CASES[elementwise.Add] = Cases(
    samples=(*SHAPES, Sample([i64([1, 2, 3]), i64([[10], [20]])]), Sample([i32([7, -3]), i32(2)])),
    bad=(*MISFITS, Bad([(3,), i64([1, 2, 3])]), Bad([bools([True]), bools([True])], error=UnsupportedError)),
)

CASES[elementwise.Div] = Cases(
    samples=(
        *(Sample(s.inputs, positive=True) for s in SHAPES),
        Sample([i64([7, -7, 8]), i64([2, 2, -3])]),
        Sample([i32([7, -7, 9]), i32(2)]),
    ),
)

CASES[elementwise.DivGrad] = Cases(
    samples=(
        Sample([(2, 3), (2, 3), (2, 3)], positive=True),
        Sample([(2, 3, 4), (2, 1, 4), (3, 1)], positive=True),
        Sample([(2, 3), (2, 3), ()], positive=True),
    ),
    bad=(Bad([(2, 3), (2, 2), (2, 3)]), Bad([(3,), (2, 3), (2, 3)])),
)

CASES[elementwise.Pow] = Cases(
    samples=(
        Sample([(2, 3), f32(2.0)], grad=(0,)),
        Sample([(2, 3), f32([3.0])], grad=(0,)),
        Sample([(2, 3), f32(-1.5)], positive=True, grad=(0,)),
        Sample([(2, 3), i64(3)], grad=(0,)),
        Sample([(2, 3), (3,)], positive=True),
        Sample([i64([2, 3]), i64([5, 2])]),
    ),
    bad=(Bad([(2, 3), (2,)]),),
)

CASES[elementwise.Mod] = Cases(
    samples=(
        Sample([i64([7, -7, 7, -7]), i64([3, 3, -3, -3])]),
        Sample([i32([7, -7, 6]), i32(3)]),
        Sample([i32([7, -7, 6]), i32([3, 3, -4])], {"fmod": 1}),
        Sample([f32([7.5, -7.5, 0.3]), f32([2.0, 2.0, -0.25])], {"fmod": 1}),
        Sample([f32([7.5, -7.5, 0.3]), f32([2.0, 2.0, -0.25])], opset=28),
        Sample([f32([-6.0, 6.0]), f32([3.0, 3.0])], opset=28, grad=()),
        Sample([f32([3.0, -3.0, 3.0, -3.0]), f32([inf, inf, -inf, -inf])], {"fmod": 1}, grad=()),
        Sample([f32([3.0, -3.0, 3.0, -3.0]), f32([inf, inf, -inf, -inf])], opset=28, grad=()),
    ),
    bad=(*MISFITS, Bad([(3,), (3,)])),
)

CASES[elementwise.Neg] = Cases(samples=(*cases_of(Unary).samples, Sample([i64([3, -4])]), Sample([i32([3, -4])])))

CASES[elementwise.Abs] = Cases(samples=(Sample([(3, 4)], away_from=(0.0,)), Sample([i64([3, -4])])))

CASES[elementwise.Sign] = Cases(samples=(Sample([f32([-1.5, 0.0, 2.0])]), Sample([i64([3, 0, -4])])))

CASES[elementwise.Round] = Cases(samples=(Sample([f32([0.5, 1.5, -2.5, 0.9, -0.2])]),))

CASES[elementwise.Reciprocal] = Cases(samples=(Sample([(3, 4)], positive=True),))

CASES[elementwise.Sqrt] = Cases(samples=(Sample([(3, 4)], positive=True),))

CASES[elementwise.Log] = Cases(samples=(Sample([(3, 4)], positive=True),))

CASES[elementwise.Variadic] = Cases(
    samples=(
        Sample([(2, 3)]),
        Sample([(2, 3), (2, 3)]),
        Sample([(2, 3), (3,), (2, 1)]),
        Sample([(2, 3), (2, 3), (2, 3), (), (3,)]),
    ),
    bad=(Bad([(2, 3), (4,)]), Bad([(3,), i64([1, 2, 3])])),
)

CASES[elementwise.Extremum] = Cases(
    samples=(*cases_of(elementwise.Variadic).samples, Sample([i64([3, 5]), i64([4, 2])]))
)

CASES[elementwise.Clip] = Cases(
    samples=(
        Sample([(3, 4), f32(-0.5), f32(0.7)], away_from=(-0.5, 0.7)),
        Sample([(3, 4), None, f32(0.7)], away_from=(0.7,)),
        Sample([(3, 4), f32(-0.5)], away_from=(-0.5,)),
        Sample([(3, 4), f32([0.3]), f32([-0.2])], away_from=(-0.2, 0.3)),
        Sample([(3, 4)]),
        Sample([(3, 4)], {"min": -0.5, "max": 0.7}, opset=7, away_from=(-0.5, 0.7)),
        Sample([i64([1, 5, 9]), i64(2), i64(7)]),
    ),
    bad=(Bad([(3, 4), (3, 4)]), Bad([(3, 4), i64(1)])),
)

CASES[elementwise.Scale] = Cases(
    samples=(
        Sample([(3, 4), f32(2.5)]),
        Sample([(3, 4), i64(12)], {"scale_down": 1}),
        Sample([(3, 4), f32([2.0])], {"scale_down": 1}),
    ),
    bad=(Bad([(3, 4), (4,)]), Bad([i64([1]), f32(2.0)], error=UnsupportedError)),
)


def erf64(x: Any) -> Any:
    """The error function in float64, as numpy has none."""
    from math import erf

    return np.vectorize(erf, otypes=["float64"])(x)


def unbroadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` summed (numpy) over the axes along which `shape` was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(k for k, dim in enumerate(shape) if dim == 1 and x.shape[k] != 1)
    return x.sum(axis=axes, keepdims=True)


@reference(elementwise.DivGrad)
def div_grad(op: elementwise.DivGrad, dy: Any, a: Any, b: Any) -> Any:
    return unbroadcast(dy / b, a.shape), unbroadcast(-dy * a / (b * b), b.shape)


@reference(elementwise.Erf)
def erf(op: Any, x: Any) -> Any:
    return erf64(x)


@reference(elementwise.Scale)
def scale(op: elementwise.Scale, x: Any, scale: Any) -> Any:
    return x / scale if op.scale_down else x * scale
