"""Cases of trainweb.ops.conversion."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f16, f32, i32, i64

from trainweb.errors import UnsupportedError
from trainweb.model.checks import ONNX_DTYPES
from trainweb.ops import conversion

CASES[conversion.Cast] = Cases(
    samples=(
        Sample([(3, 4)], {"to": 1}),
        Sample([f32([1.7, -1.7, 0.0])], {"to": 7}, grad=()),
        Sample([f32([1.7, -1.7, 0.0])], {"to": 6}, grad=()),
        Sample([f32([1.7, -1.7, 0.0])], {"to": 9}, grad=()),
        Sample([i64([1, 0, -3])], {"to": 1}),
        Sample([bools([True, False])], {"to": 1}),
        Sample([i32([1, 0, -3])], {"to": 7}),
        Sample([i64([1, 0, 300])], {"to": 2}),
        Sample([(3, 4)], {"to": 11}, grad=()),
        Sample([bools([True, False])], {"to": 7}),
        Sample([f16([1.5, -3e-7])], {"to": 1}),
        Sample([f16([1.5, -3.0])], {"to": 7}),
    ),
    bad=(Bad([(2,)]), Bad([(2,)], {"to": 8}, UnsupportedError), Bad([(2,)], {"to": 99})),
)

CASES[conversion.CastLike] = Cases(
    samples=(
        Sample([(3, 4), (1,)]),
        Sample([(3, 4), i64([1])], grad=()),
        Sample([i64([1, 2]), (1,)]),
        Sample([i64([1, 2, 3]), (2, 0)]),
        Sample([(3, 4), i64([1, 2, 3])], grad=()),
    ),
)


@reference(conversion.Cast)
def cast(op: conversion.Cast, x: Any) -> Any:
    target = np.dtype(ONNX_DTYPES[op.to])
    return x if target.kind == x.dtype.kind == "f" else x.astype(target)
