"""Cases of trainweb.ops.group_norm."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.ops import group_norm

CASES[group_norm.GroupNormalization] = Cases(
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

CASES[group_norm.InstanceNormalization] = Cases(
    samples=(
        Sample([(2, 3, 4, 4), (3,), (3,)]),
        Sample([(2, 3, 11), (3,), (3,)], {"epsilon": 1e-2}),
    ),
    bad=(Bad([(2, 3, 4, 4), (2,), (3,)]), Bad([(3,), (3,), (3,)])),
)

CASES[group_norm.GroupNormalizationGrad] = Cases(
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


def normal(op: group_norm._GroupNorm, x: Any) -> tuple[Any, Any]:
    """The normalised input and the inverse deviations, both (batch, groups, -1)."""
    rows = x.reshape(x.shape[0], op.groups_of(x.shape), -1)
    inv = 1 / np.sqrt(rows.var(axis=2, keepdims=True) + op.epsilon)
    return (rows - rows.mean(axis=2, keepdims=True)) * inv, inv


def column(op: group_norm._GroupNorm, v: Any, x: Any) -> Any:
    """A scale or bias that broadcasts to `x`."""
    return np.repeat(v, x.shape[1] // len(v)).reshape(1, -1, *[1] * (x.ndim - 2))


@reference(group_norm._Forward)
def forward(op: group_norm._Forward, x: Any, scale: Any, bias: Any) -> Any:
    return normal(op, x)[0].reshape(x.shape) * column(op, scale, x) + column(op, bias, x)


@reference(group_norm.GroupNormalizationGrad)
def group_normalization_grad(
    op: group_norm.GroupNormalizationGrad, dy: Any, x: Any, scale: Any
) -> tuple[Any, Any, Any]:
    xh, inv = normal(op, x)
    g = (dy * column(op, scale, x)).reshape(xh.shape)
    dx = inv * (g - g.mean(axis=2, keepdims=True) - xh * (g * xh).mean(axis=2, keepdims=True))
    axes = (0, *range(2, x.ndim))
    sums = [v.sum(axis=axes).reshape(len(scale), -1).sum(axis=1) for v in (dy * xh.reshape(x.shape), dy)]
    return dx.reshape(x.shape), sums[0], sums[1]
