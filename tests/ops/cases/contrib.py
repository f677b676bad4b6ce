"""Cases of trainweb.ops.contrib."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i32

from trainweb.errors import UnsupportedError
from trainweb.ops import contrib

CASES[contrib.FusedConv] = Cases(
    samples=(
        Sample([(1, 2, 5, 5), (3, 2, 3, 3), (3,)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, away_from=(0.0,)),
        Sample(
            [(1, 2, 5, 5), (2, 1, 3, 3), (2,), (1, 2, 2, 2)],
            {"activation": "LeakyRelu", "activation_params": [0.3], "group": 2, "strides": [2, 2]},
        ),
        Sample([(1, 2, 4), (2, 2, 3)], {"activation": "Clip", "activation_params": [-0.5, 0.7]}),
        Sample([(1, 2, 4), (2, 2, 3)]),
    ),
    bad=(
        Bad([(1, 2, 4), (2, 3, 3)]),
        Bad([(1, 2, 4), (2, 2, 3)], {"activation": "Clip"}),
        Bad([(1, 2, 4), (2, 2, 3)], {"activation": "Gelu"}, UnsupportedError),
    ),
)

CASES[contrib.FusedGemm] = Cases(
    samples=(
        Sample([(3, 4), (2, 4), (2,)], {"activation": "Relu", "transB": 1, "alpha": 0.5}, away_from=(0.0,)),
        Sample([(3, 4), (4, 2), (2,)], {"activation": "LeakyRelu", "activation_alpha": 0.3}, away_from=(0.0,)),
        Sample([(3, 4), (4, 2), (2,)], {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4}),
        Sample([(3, 4), (4, 2), (1, 2)], {"activation": "Tanh", "beta": 2.0}),
        Sample([(3, 4), (4, 2)], {"activation": "Softplus"}),
    ),
    bad=(
        Bad([(3, 4), (3, 2)]),
        Bad([(3, 4), (4, 2)], {"activation": "Gelu"}, UnsupportedError),
    ),
)

CASES[contrib.EmbedLayerNormalization] = Cases(
    samples=(
        Sample(
            [i32([[1, 3, 0], [2, 2, 4]]), i32([[0, 1, 1], [0, 0, 1]]), (5, 4), (6, 4), (2, 4), (4,), (4,)],
            {"epsilon": 1e-5},
            outputs=2,
        ),
        Sample(
            [i32([[1, 3, 0], [2, 2, 4]]), None, (5, 4), (6, 4), None, (4,), (4,), i32([[1, 1, 0], [1, 1, 1]])],
            {"epsilon": 0.1},
            outputs=3,
        ),
        Sample(
            [i32([[1, 3], [2, 4]]), None, (5, 4), (6, 4), None, (4,), (4,), None, i32([[3, 5], [0, 1]])],
            outputs=2,
        ),
    ),
    bad=(
        Bad([i32([[1, 3, 0]]), None, (5, 4), (6, 3), None, (4,), (4,)]),
        Bad([i32([[1, 3, 0]]), i32([[0, 0, 0]]), (5, 4), (6, 4), None, (4,), (4,)]),
        Bad([i32([[1, 3, 0]]), None, (5, 4), (6, 4), None, (3,), (4,)]),
    ),
)
