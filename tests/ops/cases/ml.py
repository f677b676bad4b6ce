"""Cases of trainweb.ops.ml."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i32

from trainweb.ops import ml

CASES[ml.Scaler] = Cases(
    samples=(
        Sample([(3, 4)], {"offset": [0.5, -1.0, 2.0, 0.0], "scale": [2.0, 0.25, -1.0, 4.0]}),
        Sample([(2, 3, 2)], {"offset": [0.5], "scale": [3.0, 0.5]}),
        Sample([i32([[1, -2], [3, 4]])], {"offset": [1.0, 0.5]}),
    ),
    bad=(Bad([(3, 4)], {"offset": [1.0, 2.0]}), Bad([f32(1.0)], {"scale": [1.0, 2.0]})),
)

CASES[ml.Normalizer] = Cases(
    samples=(
        Sample([(3, 4)], {"norm": "L2"}),
        Sample([(3, 4)], {"norm": "L1"}, away_from=[0.0]),
        Sample([(3, 4)], positive=True),
        Sample([i32([[1, -2], [0, 0]])], {"norm": "L1"}),
        Sample([f32([[0.0, 0.0], [-1.0, -2.0]])], {"norm": "L2"}, grad=[]),
        Sample([f32([-1.0, -2.0])], {"norm": "MAX"}),
    ),
    bad=(Bad([(3, 4)], {"norm": "L3"}), Bad([(2, 3, 4)])),
)


@reference(ml.Scaler)
def scaler(op: ml.Scaler, x: Any) -> Any:
    return (x.astype(float) - np.array(op.offset)) * np.array(op.scale)


@reference(ml.Normalizer)
def normalizer(op: ml.Normalizer, x: Any) -> Any:
    x = x.astype(float)
    norms = {"MAX": x, "L1": np.abs(x), "L2": x * x}[op.norm]
    norm = norms.max(-1, keepdims=True) if op.norm == "MAX" else norms.sum(-1, keepdims=True)
    norm = np.sqrt(norm) if op.norm == "L2" else norm
    return x / np.where(norm == 0, 1, norm)
