"""Cases of trainweb.ops.grid_sample."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.errors import UnsupportedError
from trainweb.ops import grid_sample

CASES[grid_sample.GridSample] = Cases(
    samples=(
        Sample([(2, 3, 4, 5), (2, 3, 2, 2)], opset=20),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"align_corners": 1, "padding_mode": "border"}, opset=20),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"padding_mode": "reflection", "mode": "bilinear"}, opset=16),
        Sample([(1, 2, 4, 3), (1, 3, 4, 2)], {"mode": "nearest"}, opset=20, grad=[0]),
        Sample([(1, 1, 5, 4), (1, 3, 4, 2)], {"mode": "cubic", "padding_mode": "reflection"}, opset=20),
        Sample(
            [(1, 1, 5, 4), (1, 3, 4, 2)], {"mode": "bicubic", "align_corners": 1, "padding_mode": "border"}, opset=16
        ),
        Sample([(1, 2, 3, 4, 5), (1, 2, 3, 2, 3)], {"padding_mode": "reflection", "align_corners": 1}, opset=20),
    ),
    bad=(
        Bad([(2, 3, 4, 5), (2, 3, 2, 3)], opset=20),
        Bad([(2, 3, 4, 5), (1, 3, 2, 2)], opset=20),
        Bad([(2, 3, 4, 5), (2, 3, 2, 2)], {"mode": "area"}, opset=20),
        Bad([(1, 1, 4, 4, 4), (1, 2, 2, 2, 3)], {"mode": "cubic"}, UnsupportedError, opset=20),
    ),
)


def bounced(op: grid_sample.GridSample, v: float, size: int) -> float:
    low, high = (0.0, size - 1.0) if op.align_corners else (-0.5, size - 0.5)
    if high == low:
        return 0.0
    while not low <= v <= high:
        v = 2 * low - v if v < low else 2 * high - v
    return v


def pixel(op: grid_sample.GridSample, image: Any, at: list[int], sizes: Sequence[int]) -> Any:
    inside = all(0 <= k < size for k, size in zip(at, sizes, strict=True))
    if op.padding_mode == "zeros":
        return image[(slice(None), *at)] if inside else 0.0
    if op.padding_mode == "reflection":
        at = [int(bounced(op, k, size)) for k, size in zip(at, sizes, strict=True)]
    held = [min(max(k, 0), size - 1) for k, size in zip(at, sizes, strict=True)]
    return image[(slice(None), *held)]


def taps(op: grid_sample.GridSample, v: float, size: int) -> list[tuple[int, float]]:
    v = (v + 1) / 2 * (size - 1) if op.align_corners else ((v + 1) * size - 1) / 2
    if op._moves_places():
        v = bounced(op, v, size) if op.padding_mode == "reflection" else v
        v = min(max(v, 0.0), size - 1.0)
    mode = grid_sample.MODES[op.mode]
    if mode == "nearest":
        return [(round(v), 1.0)]
    first = int(np.floor(v))
    if mode == "linear":
        return [(first + k, 1 - abs(v - first - k)) for k in range(2)]

    def kernel(d: float) -> float:
        if d <= 1:
            return (grid_sample.CUBIC + 2) * d**3 - (grid_sample.CUBIC + 3) * d**2 + 1
        return grid_sample.CUBIC * (d**3 - 5 * d**2 + 8 * d - 4)

    return [(first + k, kernel(abs(v - first - k))) for k in range(-1, 3)]


@reference(grid_sample.GridSample)
def sampled(op: grid_sample.GridSample, x: Any, grid: Any) -> Any:
    sizes, n = x.shape[2:], x.ndim - 2
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for item in range(len(x)):
        for place in np.ndindex(*grid.shape[1:-1]):
            pixels = [taps(op, float(grid[(item, *place, n - 1 - k)]), sizes[k]) for k in range(n)]
            for chosen in product(*pixels):
                weight = np.prod([w for _, w in chosen])
                y[(item, slice(None), *place)] += weight * pixel(op, x[item], [k for k, _ in chosen], sizes)
    return y
