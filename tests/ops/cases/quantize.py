"""Cases of trainweb.ops.quantize."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import quantize

CASES[quantize.FakeQuant] = Cases(
    samples=(
        Sample([f32([-3.0, -0.11, 0.0, 0.26, 90.0]), f32(0.1), f32(10.0)], outputs=2, grad=()),
        Sample([(3, 4), f32(0.05), f32(0.0)], {"quant_min": -8, "quant_max": 7}, outputs=2, grad=()),
        Sample([f32([-1e9, 1e9]), f32(1.0), f32(0.0)], outputs=2),
    ),
    bad=(
        Bad([(3,), (2,), f32(0.0)]),
        Bad([(3,), f32(0.1), i64(0)]),
        Bad([i64([1]), f32(1.0), f32(0.0)], error=UnsupportedError),
        Bad([(3,), f32(0.1), f32(0.0)], {"quant_min": 5, "quant_max": 4}),
    ),
)

CASES[quantize.FakeQuantGrad] = Cases(
    samples=(Sample([(4,), bools([True, False, True, True])]),),
    bad=(Bad([(4,), (4,)]), Bad([(4,), bools([True])])),
)


@reference(quantize.FakeQuant)
def fake_quant(op: quantize.FakeQuant, x: Any, scale: Any, zero_point: Any) -> Any:
    steps = np.rint(x / scale + zero_point)
    kept = np.clip(steps, op.quant_min, op.quant_max)
    return (kept - zero_point) * scale, steps == kept


@reference(quantize.FakeQuantGrad)
def fake_quant_grad(op: quantize.FakeQuantGrad, dy: Any, mask: Any) -> Any:
    return np.where(mask, dy, 0)
