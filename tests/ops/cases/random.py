"""Cases of trainweb.ops.random."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i64

from trainweb.errors import LimitError, UnsupportedError
from trainweb.ops import random

CASES[random.Dropout] = Cases(
    samples=(
        Sample([(3, 4)], opset=13, outputs=2),
        Sample([(3, 4)], {"ratio": 0.3}, opset=7),
        Sample([(3, 4), f32(0.3), bools(False)], opset=13, outputs=2),
        Sample([(3, 4), f32(0.0), bools(True)], opset=13, outputs=2),
        Sample([(3, 4), f32([0.3])], opset=13),
    ),
    bad=(
        Bad([(3, 4), f32(1.0)]),
        Bad([(3, 4), f32(-0.1)]),
        Bad([(3, 4), f32([0.1, 0.2])]),
        Bad([(3, 4), f32(float("nan"))]),
        Bad([i64([1])], error=UnsupportedError),
        Bad([(3, 4), f32(0.5), (1,)]),
    ),
)

CASES[random.DropoutGrad] = Cases(
    samples=(
        Sample([(2, 3), bools([[True, False, True], [False, True, True]]), f32(0.25)]),
        Sample([(3,), bools([True, False, True])]),
        Sample([(3,), bools([True, False, True]), f32(0.2), bools(True)]),
        Sample([(3,), bools([True, True, True]), f32(0.2), bools(False)]),
    ),
    bad=(Bad([(3,), bools([True])]), Bad([(3,), (3,)]), Bad([(3,), bools([True] * 3), f32(1.0)])),
)

CASES[random.RandomNormal] = Cases(
    samples=(
        Sample([], {"shape": [200, 50]}),
        Sample([], {"shape": [100, 100], "mean": 3.0, "scale": 0.5, "seed": 2.0}),
    ),
    bad=(
        Bad([]),
        Bad([], {"shape": [-2]}),
        Bad([], {"shape": [2], "dtype": 11}, UnsupportedError),
        Bad([], {"shape": [2**40]}, LimitError),
    ),
)

CASES[random.RandomUniform] = Cases(
    samples=(Sample([], {"shape": [200, 50]}), Sample([], {"shape": [100, 100], "low": -3.0, "high": -1.0})),
    bad=(Bad([]), Bad([], {"shape": [-2]}), Bad([], {"shape": [2], "dtype": 99})),
)

CASES[random.RandomNormalLike] = Cases(
    samples=(Sample([(200, 50)]), Sample([(100, 100)], {"mean": -2.0})),
    bad=(Bad([(2,)], {"dtype": 11}, UnsupportedError),),
)

CASES[random.RandomUniformLike] = Cases(
    samples=(Sample([(200, 50)]), Sample([(100, 100)], {"low": 2.0, "high": 4.0})),
    bad=(Bad([(2,)], {"dtype": 11}, UnsupportedError),),
)

CASES[random.Bernoulli] = Cases(
    samples=(Sample([f32([[0.25] * 100] * 100)]), Sample([f32([[0.75] * 100] * 100)], {"dtype": 7})),
    bad=(Bad([i64([1])], error=UnsupportedError), Bad([(2,)], {"dtype": 8}, UnsupportedError)),
)

CASES[random.Multinomial] = Cases(
    samples=(
        Sample([f32([[0.0, 1.0, -2.0], [-1.0, -1.0, 0.5]])], {"sample_size": 2000}),
        Sample([f32([[0.0, 0.0]] * 1500)], {"dtype": 7, "sample_size": 2, "seed": 3.0}),
    ),
    bad=(
        Bad([(3,)]),
        Bad([(2, 3)], {"sample_size": 0}),
        Bad([(2, 3)], {"dtype": 1}),
        Bad([i64([[1]])], error=UnsupportedError),
    ),
)


@reference(random.DropoutGrad)
def dropout_grad(op: random.DropoutGrad, dy: Any, mask: Any, ratio: Any = None, training: Any = None) -> Any:
    share = random.DEFAULT_RATIO if ratio is None else float(ratio.item())
    scale = 1 if training is not None and not training.item() else 1 / (1 - share)
    return np.where(mask, dy * scale, 0)
