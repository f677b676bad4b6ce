"""Cases of trainweb.ops.composed_norm."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.ops import composed_norm

CASES[composed_norm.RMSNormalization] = Cases(
    samples=(
        Sample([(3, 8), (8,)], opset=23),
        Sample([(2, 3, 4), (3, 4)], {"axis": 1, "epsilon": 0.1}, opset=23),
        Sample([(2, 3, 4), (2, 3, 4)], opset=23),
        Sample([(2, 3, 4), (4,)], {"axis": 1}, opset=23),
    ),
    bad=(
        Bad([(3, 8), (8,)], {"axis": 2}, opset=23),
        Bad([(3, 8), (3,)], opset=23),
        Bad([(3, 8), (2, 3, 8)], opset=23),
    ),
)

CASES[composed_norm.SkipLayerNormalization] = Cases(
    samples=(
        Sample([(2, 3, 4), (2, 3, 4), (4,), (4,), (4,)]),
        Sample([(2, 3, 4), (2, 3, 4), (4,)], {"epsilon": 0.1}),
        Sample([(2, 3, 4), (3, 4), (4,), (4,)]),
    ),
    bad=(Bad([(2, 3, 4), (2, 3, 4), (5,)]), Bad([(2, 3, 4), (2, 2, 4), (4,)])),
)

CASES[composed_norm.SkipSimplifiedLayerNormalization] = Cases(
    samples=(Sample([(2, 3, 4), (2, 3, 4), (4,), (4,)]), Sample([(2, 3, 4), (2, 3, 4), (4,)])),
    bad=(Bad([(2, 3, 4), (2, 3, 4), (5,)]),),
)

CASES[composed_norm.LpNormalization] = Cases(
    samples=(Sample([(3, 4)]), Sample([(2, 3, 4)], {"axis": 1, "p": 1}, away_from=(0.0,)), Sample([(3, 4)], opset=22)),
    bad=(Bad([(3, 4)], {"p": 3}), Bad([(3, 4)], {"axis": 2})),
)

CASES[composed_norm.MeanVarianceNormalization] = Cases(
    samples=(Sample([(2, 3, 4, 5)]), Sample([(3, 4)], {"axes": [-1]})),
    bad=(Bad([(3, 4)]),),
)

CASES[composed_norm.LRN] = Cases(
    samples=(
        Sample([(2, 5, 3, 4)], {"size": 3, "alpha": 0.5}),
        Sample([(2, 5, 3, 4)], {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    ),
    bad=(Bad([(2, 5, 3, 4)]), Bad([(2, 5, 3, 4)], {"size": 0})),
)


def normalized(op: composed_norm._SkipNorm, total: Any, mean: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
    inverse = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + op.epsilon)
    return (total - mean) * inverse * gamma + beta, mean, inverse, total


@reference(composed_norm.SkipLayerNormalization)
def skip_layer_normalization(
    op: composed_norm.SkipLayerNormalization, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip + (0 if bias is None else bias)
    return normalized(op, total, total.mean(-1, keepdims=True), gamma, 0 if beta is None else beta)


@reference(composed_norm.SkipSimplifiedLayerNormalization)
def skip_simplified_layer_normalization(
    op: composed_norm.SkipSimplifiedLayerNormalization, x: Any, skip: Any, gamma: Any, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip + (0 if bias is None else bias)
    return normalized(op, total, np.zeros((*total.shape[:-1], 1)), gamma, 0)


@reference(composed_norm.MeanVarianceNormalization)
def mean_variance_normalization(op: composed_norm.MeanVarianceNormalization, x: Any) -> Any:
    return (x - x.mean(tuple(op.axes), keepdims=True)) / (x.std(tuple(op.axes), keepdims=True) + 1e-9)
