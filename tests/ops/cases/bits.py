"""Cases of trainweb.ops.bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.model.checks import ONNX_DTYPES
from trainweb.ops import bits

PAIRS = (
    Sample([i32([1, -2, 3]), i32([5, 6, -7])]),
    Sample([i64([[1], [-(2**40)]]), i64([5, 2**40 + 3])]),
    Sample([literal("uint8", [1, 200]), literal("uint8", [255, 7])]),
    Sample([literal("int16", [1, -200]), literal("int16", [255, -7])]),
    Sample([literal("uint64", [2**63 + 1, 3]), literal("uint64", [2**63, 1])]),
)

CASES[bits.BitwiseAnd] = CASES[bits.BitwiseOr] = CASES[bits.BitwiseXor] = Cases(
    samples=PAIRS,
    bad=(Bad([(3,), (3,)], error=UnsupportedError), Bad([i64([1, 2, 3]), i64([1, 2])])),
)

CASES[bits.BitwiseNot] = Cases(
    samples=tuple(Sample(s.inputs[:1]) for s in PAIRS),
    bad=(Bad([(3,)], error=UnsupportedError), Bad([bools([True])], error=UnsupportedError)),
)

CASES[bits.BitShift] = Cases(
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

CASES[bits.BitCast] = Cases(
    samples=(
        Sample([f32([1.5, -2.0])], {"to": 6}),
        Sample([i64([[1], [-2]])], {"to": 11}),
        Sample([literal("uint16", [1, 65535])], {"to": 5}),
    ),
    bad=(Bad([(2,)], {"to": 7}), Bad([(2,)], {"to": 99}), Bad([(2,)]), Bad([(2,)], {"to": 8}, UnsupportedError)),
)


@reference(bits.BitCast)
def bit_cast(op: bits.BitCast, x: Any) -> Any:
    # The tests give floats in double precision.
    narrow = x.astype(np.float32) if x.dtype.kind == "f" else x
    return narrow.view(ONNX_DTYPES[op.to])
