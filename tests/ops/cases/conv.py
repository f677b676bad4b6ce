"""Cases of trainweb.ops.conv."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.ops import conv

CASES[conv.Conv] = Cases(
    samples=(
        Sample([(2, 3, 7, 6), (4, 3, 3, 3), (4,)], {"pads": [1, 1, 1, 1]}),
        Sample([(2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        Sample([(2, 4, 6, 5), (6, 2, 3, 2), (6,)], {"group": 2, "dilations": [2, 1]}),
        Sample([(2, 4, 6, 5), (4, 1, 3, 3)], {"group": 4, "pads": [1, 1, 1, 1]}),
        Sample([(2, 3, 5, 5), (4, 3, 1, 1), (4,)]),
        Sample([(2, 3, 9), (4, 3, 3), (4,)], {"pads": [2, 0]}),
        Sample([(1, 2, 4, 5, 4), (3, 2, 2, 3, 2)], {"pads": [0, 1, 1, 1, 1, 0]}),
        Sample([(2, 3, 7, 6), (4, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        Sample([(2, 3, 7, 6), (4, 3, 2, 2)], {"auto_pad": "SAME_LOWER"}),
        Sample([(2, 3, 5, 5), (4, 3, 1, 1), (4,)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        Sample([(3, 5, 7), (9, 5, 1)]),
        Sample([(5, 6, 1, 1), (4, 6, 1, 1), (4,)]),
    ),
    bad=(
        Bad([(2, 3, 7, 6), (4, 2, 3, 3)]),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [0, 1]}),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [-1, 0, 0, 0]}),
        Bad([(2, 3, 7, 6), (4, 3, 9, 3)]),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3)], {"group": 2}),
        Bad([(2, 3, 7, 6), (4, 3, 3, 3), (3,)]),
    ),
)

CASES[conv.ConvGrad] = Cases(
    samples=(
        Sample([(2, 4, 7, 6), (2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),
        Sample([(2, 6, 2, 4), (2, 4, 6, 5), (6, 2, 3, 2)], {"group": 2, "dilations": [2, 1]}),
        Sample([(2, 4, 4, 2), (2, 3, 7, 6), (4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        Sample([(2, 9, 7, 6), (2, 5, 7, 6), (9, 5, 1, 1)]),
        Sample([(5, 4, 1, 1), (5, 6, 1, 1), (4, 6, 1, 1)]),
        Sample([(2, 6, 7, 6), (2, 3, 7, 6), (6, 1, 3, 3)], {"group": 3, "pads": [1, 1, 1, 1]}),
        Sample([(1, 3, 4, 4), (1, 3, 7, 8), (3, 1, 5, 5)], {"group": 3, "strides": [2, 2], "pads": [2, 1, 2, 3]}),
    ),
    bad=(Bad([(2, 4, 6, 6), (2, 3, 7, 6), (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),),
)


def weighted(op: conv._Convolution, columns: Any, w: Any) -> Any:
    """Patches (N, C, *out, *kernel) by weights -> (N, M, *out)."""
    n, g = len(columns), op.group
    rank = w.ndim - 2
    out = columns.shape[2 : 2 + rank]
    a = columns.reshape(n, g, w.shape[1], prod(out), -1).transpose(0, 1, 3, 2, 4).reshape(n, g, prod(out), -1)
    b = w.reshape(g, w.shape[0] // g, -1)
    return np.einsum("ngpk,gmk->ngmp", a, b).reshape(n, w.shape[0], *out)


def patches(x: Any, w: conv.Window) -> Any:
    """Reference: (N, C, *out, *kernel) of a padded input."""
    pad = [(0, 0), (0, 0)]
    for k in range(len(w.size)):
        span = (w.out[k] - 1) * w.stride[k] + (w.kernel[k] - 1) * w.dilation[k] + 1
        pad.append((w.pad[k], max(0, span - w.size[k] - w.pad[k])))
    padded: Any = np.pad(x, pad)
    y: Any = np.empty((*x.shape[:2], *w.out, *w.kernel), dtype=x.dtype)
    for index in product(*(range(k) for k in w.kernel)):
        part = tuple(
            slice(i * d, i * d + (o - 1) * s + 1, s)
            for i, d, o, s in zip(index, w.dilation, w.out, w.stride, strict=True)
        )
        y[(..., *index)] = padded[(slice(None), slice(None), *part)]
    return y


def unpatch(p: Any, w: conv.Window) -> Any:
    """The transpose of `patches`."""
    ends = [
        max((o - 1) * s + (k - 1) * d + 1, n + b)
        for o, s, k, d, n, b in zip(w.out, w.stride, w.kernel, w.dilation, w.size, w.pad, strict=True)
    ]
    x = np.zeros((*p.shape[:2], *ends), dtype=p.dtype)
    for index in product(*(range(k) for k in w.kernel)):
        part = tuple(
            slice(i * d, i * d + (o - 1) * s + 1, s)
            for i, d, o, s in zip(index, w.dilation, w.out, w.stride, strict=True)
        )
        x[(slice(None), slice(None), *part)] += p[(slice(None), slice(None), *[slice(None)] * len(w.out), *index)]
    crop = tuple(slice(b, b + n) for b, n in zip(w.pad, w.size, strict=True))
    return x[(slice(None), slice(None), *crop)]


@reference(conv.Conv)
def convolved(op: conv.Conv, x: Any, w: Any, b: Any = None) -> Any:
    y = weighted(op, patches(x, op.window_of(x.shape, w.shape)), w)
    return y if b is None else y + b.reshape(1, -1, *[1] * (x.ndim - 2))


@reference(conv.ConvGrad)
def conv_grad(op: conv.ConvGrad, dy: Any, x: Any, w: Any) -> tuple[Any, Any, Any]:
    win = op.window_of(x.shape, w.shape)
    rank, g, n = x.ndim - 2, op.group, len(x)
    columns = patches(x, win).reshape(n, g, w.shape[1], prod(win.out), prod(win.kernel))
    d = dy.reshape(n, g, w.shape[0] // g, -1)
    dw = np.einsum("ngcpk,ngmp->gmck", columns, d).reshape(w.shape)
    weights = w.reshape(g, w.shape[0] // g, w.shape[1], prod(win.kernel))
    spread = np.einsum("gmck,ngmp->ngcpk", weights, d).reshape(n, x.shape[1], *win.out, *win.kernel)
    return unpatch(spread, win), dw, dy.sum(axis=(0, *range(2, 2 + rank)))


CASES[conv.ConvTranspose] = Cases(
    samples=(
        Sample([(1, 3, 4, 4), (3, 2, 3, 3), (2,)], {"strides": [2, 2]}),
        Sample([(2, 4, 5, 3), (4, 5, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        Sample([(2, 4, 5, 6), (4, 3, 2, 3), (6,)], {"group": 2, "dilations": [2, 1], "pads": [0, 1, 2, 0]}),
        Sample([(2, 3, 5, 4), (3, 4, 3, 3), (4,)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        Sample([(2, 3, 5, 4), (3, 4, 4, 4)], {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
        Sample([(1, 2, 3, 3), (2, 2, 3, 3)], {"strides": [3, 2], "output_shape": [10, 8]}),
        Sample([(2, 3, 4, 5), (3, 6, 1, 1), (6,)]),
        Sample([(5, 6, 1, 1), (6, 4, 1, 1), (4,)]),
        Sample([(2, 3, 7), (3, 2, 4)], {"strides": [2], "auto_pad": "VALID"}),
        Sample([(1, 2, 3, 4, 3), (2, 3, 2, 2, 2), (3,)], {"strides": [1, 2, 1]}),
        Sample([(2, 6, 8, 8), (6, 1, 4, 4)], {"group": 6, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ),
    bad=(
        Bad([(1, 3, 4, 4), (2, 3, 3, 3)]),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3), (3,)]),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"strides": [0, 1]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"pads": [3, 3, 3, 3]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"group": 2}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"output_shape": [9]}),
        Bad([(1, 3, 4, 4), (3, 2, 3, 3)], {"auto_pad": "SAME"}),
    ),
)
