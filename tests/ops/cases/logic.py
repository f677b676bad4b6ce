"""Cases of trainweb.ops.logic."""

from math import inf
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, cases_of, reference
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.model.checks import ONNX_DTYPES
from trainweb.ops import logic

CASES[logic.Comparison] = Cases(
    samples=(
        Sample([f32([1, 2, 3]), f32([3, 2, 1])]),
        Sample([(2, 3, 4), (3, 1)]),
        Sample([i64([1, 2, 3]), i64(2)]),
        Sample([i32([1, 2, 3]), i32([2])]),
    ),
)

CASES[logic.Equal] = Cases(
    samples=(*cases_of(logic.Comparison).samples, Sample([bools([True, False]), bools([True, True])]))
)

CASES[logic.And] = CASES[logic.Or] = CASES[logic.Xor] = Cases(
    samples=(
        Sample([bools([False, False, True, True]), bools([False, True, False, True])]),
        Sample([bools([[True, False], [False, False]]), bools([True, False])]),
    ),
    bad=(Bad([bools([True, False]), bools([True, True, True])]), Bad([(2,), (2,)], error=UnsupportedError)),
)

CASES[logic.Not] = Cases(
    samples=(Sample([bools([True, False, False, True, True])]),),
    bad=(Bad([(2,)], error=UnsupportedError),),
)

CASES[logic.IsNaN] = Cases(samples=(Sample([f32([1.0, float("nan"), inf])]),))

CASES[logic.IsInf] = Cases(
    samples=(
        Sample([f32([1.0, float("nan"), inf, -inf])]),
        Sample([f32([1.0, float("nan"), inf, -inf])], {"detect_negative": 0}),
        Sample([f32([1.0, float("nan"), inf, -inf])], {"detect_positive": 0}),
    ),
)

CASES[logic.Where] = Cases(
    samples=(
        Sample([bools([[True, False, True]]), (2, 3), (2, 3)]),
        Sample([bools([[True], [False]]), (2, 3), (1,)]),
        Sample([bools([True, False, True]), (), (2, 3)]),
        Sample([bools([True, False]), i64([1, 2]), i64([3, 4])]),
    ),
    bad=(
        Bad([(3,), (3,), (3,)]),
        Bad([bools([True, False]), (3,), (3,)]),
        Bad([bools([True, False, True]), (3,), i64([1, 2, 3])]),
    ),
)


PAIRS = (
    Sample([i32([1, -2, 3]), i32([5, 6, -7])]),
    Sample([i64([[1], [-(2**40)]]), i64([5, 2**40 + 3])]),
    Sample([literal("uint8", [1, 200]), literal("uint8", [255, 7])]),
    Sample([literal("int16", [1, -200]), literal("int16", [255, -7])]),
    Sample([literal("uint64", [2**63 + 1, 3]), literal("uint64", [2**63, 1])]),
)

CASES[logic.BitwiseAnd] = CASES[logic.BitwiseOr] = CASES[logic.BitwiseXor] = Cases(
    samples=PAIRS,
    bad=(Bad([(3,), (3,)], error=UnsupportedError), Bad([i64([1, 2, 3]), i64([1, 2])])),
)

CASES[logic.BitwiseNot] = Cases(
    samples=tuple(Sample(s.inputs[:1]) for s in PAIRS),
    bad=(Bad([(3,)], error=UnsupportedError), Bad([bools([True])], error=UnsupportedError)),
)

CASES[logic.BitShift] = Cases(
    samples=(
        Sample([literal("uint8", [16, 4, 255]), literal("uint8", [1, 2, 4])], {"direction": "RIGHT"}),
        Sample([literal("uint8", [16, 4, 255]), literal("uint8", [1, 2, 4])], {"direction": "LEFT"}),
        Sample([literal("uint16", [16, 4, 65535]), literal("uint16", [1, 2, 15])], {"direction": "LEFT"}),
        Sample([literal("uint32", [2**31 + 5]), literal("uint32", [[31], [32]])], {"direction": "RIGHT"}),
        Sample([literal("uint64", [2**63 + 5, 1]), literal("uint64", [62, 63])], {"direction": "RIGHT"}),
        Sample([literal("uint64", [2**63 + 5, 1]), literal("uint64", [1, 64])], {"direction": "LEFT"}),
        Sample([literal("int8", [-8, 4, 65]), literal("int8", [1, -1, 9])], {"direction": "RIGHT"}, opset=28),
        Sample([literal("int8", [-8, 4, 65]), literal("int8", [5, -1, 1])], {"direction": "LEFT"}, opset=28),
    ),
    bad=(
        Bad([literal("uint8", [1]), literal("uint8", [1])]),
        Bad([literal("uint8", [1]), literal("uint8", [1])], {"direction": "UP"}),
        Bad([i64([1]), i64([1])], {"direction": "LEFT"}, UnsupportedError, opset=17),
        Bad([(1,), (1,)], {"direction": "LEFT"}, UnsupportedError),
    ),
)

CASES[logic.BitCast] = Cases(
    samples=(
        Sample([f32([1.5, -2.0])], {"to": 6}),
        Sample([i64([[1], [-2]])], {"to": 11}),
        Sample([literal("uint16", [1, 65535])], {"to": 5}),
    ),
    bad=(Bad([(2,)], {"to": 7}), Bad([(2,)], {"to": 99}), Bad([(2,)]), Bad([(2,)], {"to": 8}, UnsupportedError)),
)


@reference(logic.BitCast)
def bit_cast(op: logic.BitCast, x: Any) -> Any:
    # The tests give floats in double precision.
    narrow = x.astype(np.float32) if x.dtype.kind == "f" else x
    return narrow.view(ONNX_DTYPES[op.to])
