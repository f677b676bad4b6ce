"""Cases of trainweb.ops.constant."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, f32, i64

from trainweb.errors import LimitError, UnsupportedError
from trainweb.ops import constant

CASES[constant.Constant] = Cases(
    samples=(
        Sample([], {"value": f32([[1.0, 2.0], [3.0, 4.0]])}),
        Sample([], {"value_float": 2.5}),
        Sample([], {"value_floats": [1.0, 2.0]}),
        Sample([], {"value_int": 3}),
        Sample([], {"value_ints": [3, 4]}),
        Sample([], {"value": bools([True, False])}),
    ),
    bad=(Bad([]), Bad([], {"value_int": 1, "value_float": 2.0}), Bad([], {"value_string": "a"}, UnsupportedError)),
)

CASES[constant.ConstantOfShape] = Cases(
    samples=(
        Sample([i64([2, 3])]),
        Sample([i64([2, 3])], {"value": i64([7])}),
        Sample([i64([])], {"value": f32([2.5])}),
        Sample([i64([4])], {"value": bools([True])}),
        Sample([i64([3, 0])]),
    ),
    bad=(
        Bad([i64([2, -3])]),
        Bad([i64([2])], {"value": i64([1, 2])}),
        Bad([(2,)]),
        Bad([i64([2**40, 2**40])], error=LimitError),
        Bad([(2, 3)]),
    ),
)

CASES[constant.Range] = Cases(
    samples=(
        Sample([i64(1), i64(10), i64(3)]),
        Sample([i64(5), i64(0), i64(-2)]),
        Sample([i64(5), i64(0), i64(1)]),
        Sample([f32(0.0), f32(1.0), f32(0.25)]),
    ),
    bad=(
        Bad([i64(0), i64(5), i64(0)]),
        Bad([i64(0), f32(5.0), i64(1)]),
        Bad([i64(0), i64([5, 6]), i64(1)]),
        Bad([i64(0), i64(2**60), i64(1)], error=LimitError),
        Bad([f32(0.0), f32(float("inf")), f32(1.0)]),
        Bad([i64(0), i64(2**25), i64(1)], error=LimitError),
    ),
)

CASES[constant.EyeLike] = Cases(
    samples=(
        Sample([(3, 4)]),
        Sample([(3, 3)], {"k": 1, "dtype": 7}),
        Sample([i64([[1], [2]])], {"k": -1}),
        Sample([(2, 2)], {"dtype": 4}),
    ),
    bad=(Bad([(3,)]), Bad([(3, 3)], {"dtype": 8}, UnsupportedError)),
)
