"""Cases of trainweb.ops.norm."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.ops import norm

CASES[norm.LayerNormalization] = Cases(
    samples=(
        Sample([(3, 8), (8,), (8,)], outputs=1),
        Sample([(2, 3, 5), (3, 5), (3, 5)], {"axis": 1, "epsilon": 1e-3}, outputs=1),
        Sample([(4, 6), (6,)], outputs=1),
        Sample([(2, 3, 5), (3, 5), (3, 5)], {"axis": 1}, outputs=3),
    ),
    bad=(Bad([(3, 8), (7,), (8,)]), Bad([(3, 8), (8,)], {"axis": 5})),
)

CASES[norm.LayerNormalizationGrad] = Cases(
    samples=(Sample([(3, 8), (3, 8), (8,), (3, 1), (3, 1)], positive=True),),
    bad=(Bad([(3, 8), (3, 7), (7,), (3, 1), (3, 1)]),),
)

CASES[norm.SimplifiedLayerNormalization] = Cases(
    samples=(Sample([(3, 8), (8,)], outputs=1),),
    bad=(Bad([(3, 8), (7,)]),),
)

CASES[norm.SimplifiedLayerNormalizationGrad] = Cases(
    samples=(Sample([(3, 8), (3, 8), (8,), (3, 1)], positive=True),),
    bad=(Bad([(3, 8), (3, 7), (7,), (3, 1)]),),
)

CASES[norm.BatchNormalization] = Cases(
    samples=(
        Sample([(4, 3, 5, 5), (3,), (3,), (3,), (3,)], outputs=1, positive=True),
        Sample([(4, 3), (3,), (3,), (3,), (3,)], {"epsilon": 1e-2}, outputs=1, positive=True),
        Sample(
            [(4, 3, 5), (3,), (3,), (3,), (3,)],
            {"training_mode": 1, "momentum": 0.8},
            opset=15,
            outputs=3,
            positive=True,
            grad=(),
        ),
    ),
    bad=(Bad([(4, 3, 5, 5), (2,), (3,), (3,), (3,)]),),
)

CASES[norm.BatchNormInternal] = Cases(
    samples=(Sample([(4, 3, 5, 5), (3,), (3,), (3,), (3,)], outputs=1, positive=True),),
    bad=(Bad([(4, 3, 5, 5), (2,), (3,), (3,), (3,)]),),
)

CASES[norm.BatchNormalizationGrad] = Cases(
    samples=(Sample([(4, 3, 5, 5), (4, 3, 5, 5), (3,), (3,), (3,)], positive=True),),
    bad=(Bad([(4, 3, 5, 5), (4, 3, 5, 4), (3,), (3,), (3,)]),),
)


def rows_of(op: norm._LayerNorm, x: Any) -> Any:
    """The array as (rows, n)."""
    sizes = op.sizes(x.shape)
    return x.reshape(sizes["rows"], sizes["n"])


def column(v: Any, x: Any) -> Any:
    """A vector of channels or of groups that broadcasts to `x`."""
    return np.repeat(v, x.shape[1] // len(v)).reshape(1, -1, *[1] * (x.ndim - 2))


@reference(norm._LayerNormGrad)
def layer_norm_grad(op: norm._LayerNormGrad, dy: Any, x: Any, scale: Any, *statistics: Any) -> tuple[Any, ...]:
    *mean, inv = (t.reshape(-1, 1) for t in statistics)
    d, v = rows_of(op, dy), rows_of(op, x)
    xh = (v - (mean[0] if mean else 0)) * inv
    g = d * scale.reshape(-1)
    shift = g.mean(axis=1, keepdims=True) if mean else 0
    dx = inv * (g - shift - xh * (g * xh).mean(axis=1, keepdims=True))
    sums = [rows.sum(axis=0).reshape(scale.shape) for rows in (d * xh, d)]
    return (dx.reshape(x.shape), *sums)[: op.n_outputs]


@reference(norm.BatchNormInternal)
def batch_norm_internal(
    op: norm.BatchNormInternal, x: Any, scale: Any, bias: Any, mean: Any, var: Any
) -> tuple[Any, ...]:
    axes, keep = (0, *range(2, x.ndim)), op.momentum
    m, v = x.mean(axis=axes), x.var(axis=axes)
    inv = 1 / np.sqrt(v + op.epsilon)
    y = (x - column(m, x)) * column(scale * inv, x) + column(bias, x)
    return y, keep * mean + (1 - keep) * m, keep * var + (1 - keep) * v, m, inv


@reference(norm.BatchNormalizationGrad)
def batch_normalization_grad(
    op: norm.BatchNormalizationGrad, dy: Any, x: Any, scale: Any, mean: Any, inv: Any
) -> tuple[Any, Any, Any]:
    axes = (0, *range(2, x.ndim))
    xh = (x - column(mean, x)) * column(inv, x)
    centred = dy - dy.mean(axis=axes, keepdims=True) - xh * (dy * xh).mean(axis=axes, keepdims=True)
    return column(scale * inv, x) * centred, (dy * xh).sum(axis=axes), dy.sum(axis=axes)


CASES[norm.GroupNormalization] = Cases(
    samples=(
        Sample([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 3}, opset=21),
        Sample([(3, 4, 7), (4,), (4,)], {"num_groups": 1, "epsilon": 1e-3}, opset=21),
        Sample([(2, 6, 3, 3), (2,), (2,)], {"num_groups": 2}, opset=18),
        Sample([(5, 8), (8,), (8,)], {"num_groups": 2}, opset=21),
    ),
    bad=(
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 4}, opset=21),
        Bad([(2, 6, 3, 5), (3,), (3,)], {"num_groups": 3}, opset=21),
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 3}, opset=18),
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 0}, opset=21),
        Bad([(2, 6, 3, 5), (6,), (6,)], opset=21),
    ),
)

CASES[norm.InstanceNormalization] = Cases(
    samples=(
        Sample([(2, 3, 4, 4), (3,), (3,)]),
        Sample([(2, 3, 11), (3,), (3,)], {"epsilon": 1e-2}),
    ),
    bad=(Bad([(2, 3, 4, 4), (2,), (3,)]), Bad([(3,), (3,), (3,)])),
)

CASES[norm.GroupNormalizationGrad] = Cases(
    samples=(
        Sample([(2, 6, 3, 5), (2, 6, 3, 5), (6,)], {"num_groups": 3}),
        Sample([(2, 6, 3, 5), (2, 6, 3, 5), (2,)], {"num_groups": 2}),
        Sample([(2, 3, 9), (2, 3, 9), (3,)]),
    ),
    bad=(
        Bad([(2, 6, 3, 5), (2, 6, 3, 4), (6,)], {"num_groups": 3}),
        Bad([(2, 6, 3, 5), (2, 6, 3, 5), (4,)], {"num_groups": 3}),
    ),
)


def normal(op: norm._GroupNorm, x: Any) -> tuple[Any, Any]:
    """The normalised input and the inverse deviations, both (batch, groups, -1)."""
    rows = x.reshape(x.shape[0], op.groups_of(x.shape), -1)
    inv = 1 / np.sqrt(rows.var(axis=2, keepdims=True) + op.epsilon)
    return (rows - rows.mean(axis=2, keepdims=True)) * inv, inv


@reference(norm._Forward)
def forward(op: norm._Forward, x: Any, scale: Any, bias: Any) -> Any:
    return normal(op, x)[0].reshape(x.shape) * column(scale, x) + column(bias, x)


@reference(norm.GroupNormalizationGrad)
def group_normalization_grad(op: norm.GroupNormalizationGrad, dy: Any, x: Any, scale: Any) -> tuple[Any, Any, Any]:
    xh, inv = normal(op, x)
    g = (dy * column(scale, x)).reshape(xh.shape)
    dx = inv * (g - g.mean(axis=2, keepdims=True) - xh * (g * xh).mean(axis=2, keepdims=True))
    axes = (0, *range(2, x.ndim))
    sums = [v.sum(axis=axes).reshape(len(scale), -1).sum(axis=1) for v in (dy * xh.reshape(x.shape), dy)]
    return dx.reshape(x.shape), sums[0], sums[1]


CASES[norm.RMSNormalization] = Cases(
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

CASES[norm.SkipLayerNormalization] = Cases(
    samples=(
        Sample([(2, 3, 4), (2, 3, 4), (4,), (4,), (4,)]),
        Sample([(2, 3, 4), (2, 3, 4), (4,)], {"epsilon": 0.1}),
        Sample([(2, 3, 4), (3, 4), (4,), (4,)]),
    ),
    bad=(Bad([(2, 3, 4), (2, 3, 4), (5,)]), Bad([(2, 3, 4), (2, 2, 4), (4,)])),
)

CASES[norm.SkipSimplifiedLayerNormalization] = Cases(
    samples=(Sample([(2, 3, 4), (2, 3, 4), (4,), (4,)]), Sample([(2, 3, 4), (2, 3, 4), (4,)])),
    bad=(Bad([(2, 3, 4), (2, 3, 4), (5,)]),),
)

CASES[norm.LpNormalization] = Cases(
    samples=(Sample([(3, 4)]), Sample([(2, 3, 4)], {"axis": 1, "p": 1}, away_from=(0.0,)), Sample([(3, 4)], opset=22)),
    bad=(Bad([(3, 4)], {"p": 3}), Bad([(3, 4)], {"axis": 2})),
)

CASES[norm.MeanVarianceNormalization] = Cases(
    samples=(Sample([(2, 3, 4, 5)]), Sample([(3, 4)], {"axes": [-1]})),
    bad=(Bad([(3, 4)]),),
)

CASES[norm.LRN] = Cases(
    samples=(
        Sample([(2, 5, 3, 4)], {"size": 3, "alpha": 0.5}),
        Sample([(2, 5, 3, 4)], {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    ),
    bad=(Bad([(2, 5, 3, 4)]), Bad([(2, 5, 3, 4)], {"size": 0})),
)


def normalized(op: norm._SkipNorm, total: Any, mean: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
    inverse = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + op.epsilon)
    return (total - mean) * inverse * gamma + beta, mean, inverse, total


@reference(norm.SkipLayerNormalization)
def skip_layer_normalization(
    op: norm.SkipLayerNormalization, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip + (0 if bias is None else bias)
    return normalized(op, total, total.mean(-1, keepdims=True), gamma, 0 if beta is None else beta)


@reference(norm.SkipSimplifiedLayerNormalization)
def skip_simplified_layer_normalization(
    op: norm.SkipSimplifiedLayerNormalization, x: Any, skip: Any, gamma: Any, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip + (0 if bias is None else bias)
    return normalized(op, total, np.zeros((*total.shape[:-1], 1)), gamma, 0)


@reference(norm.MeanVarianceNormalization)
def mean_variance_normalization(op: norm.MeanVarianceNormalization, x: Any) -> Any:
    return (x - x.mean(tuple(op.axes), keepdims=True)) / (x.std(tuple(op.axes), keepdims=True) + 1e-9)
