"""Cases of trainweb.ops.contrib."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.cases.activation import sigmoid64
from tests.ops.cases.conv import convolved
from tests.ops.literals import i32

from trainweb.errors import UnsupportedError
from trainweb.ops import contrib
from trainweb.ops.conv import convolution_of

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


def activated(y: Any, activation: str, first: float = 0.0, second: float = 0.0) -> Any:
    """An activation in numpy, with its parameters."""
    functions = {
        "": lambda: y,
        "Relu": lambda: np.maximum(y, 0),
        "Sigmoid": lambda: sigmoid64(y),
        "Softplus": lambda: np.logaddexp(y, 0),
        "Tanh": lambda: np.tanh(y),
        "LeakyRelu": lambda: np.where(y < 0, first * y, y),
        "HardSigmoid": lambda: np.clip(first * y + second, 0, 1),
        "Clip": lambda: np.clip(y, first, second),
    }
    return functions[activation]()


@reference(contrib.FusedConv)
def fused_conv(op: contrib.FusedConv, x: Any, w: Any, b: Any = None, z: Any = None) -> Any:
    y = convolved(convolution_of(op), x, w, b) + (0 if z is None else z)
    return activated(y, op.activation, *(op.activation_params or ()))


@reference(contrib.FusedGemm)
def fused_gemm(op: contrib.FusedGemm, a: Any, b: Any, c: Any = None) -> Any:
    product = op._product()
    left, right = a.T if product.transA else a, b.T if product.transB else b
    y = product.alpha * left @ right + (0 if c is None else product.beta * c)
    return activated(y, op.activation, *op._parameters().values())


@reference(contrib.EmbedLayerNormalization)
def embed_layer_normalization(op: contrib.EmbedLayerNormalization, ids: Any, *others: Any) -> tuple[Any, ...]:
    given: list[Any] = [*others, *[None] * (8 - len(others))]
    segments, words, positions, kinds, gamma, beta, mask, place = given
    rows = words[ids] + (positions[: ids.shape[1]] if place is None else positions[place])
    rows = rows if kinds is None else rows + kinds[segments]
    centred = rows - rows.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + op.epsilon) * gamma + beta
    counts = np.zeros(len(ids), np.int32) if mask is None else mask.sum(1, dtype=np.int32)
    return y, counts, rows
