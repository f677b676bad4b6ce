"""Cases of trainweb.ops.attention.linear."""

from math import sqrt
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference

from trainweb.ops.attention import linear

LINEAR = {"update_rule": "linear", "q_num_heads": 2, "kv_num_heads": 2}

CASES[linear.LinearAttention] = Cases(
    samples=(
        Sample([(2, 3, 4), (2, 3, 4), (2, 3, 6)], LINEAR, outputs=2),
        Sample(
            [(1, 3, 8), (1, 3, 4), (1, 3, 6), (1, 2, 2, 3), (1, 3, 4)],
            {"update_rule": "gated", "q_num_heads": 4, "kv_num_heads": 2, "scale": 0.5},
            outputs=2,
        ),
        Sample(
            [(2, 2, 4), (2, 2, 4), (2, 2, 2), None, None, (2, 2, 1)],
            {"update_rule": "delta", "q_num_heads": 2, "kv_num_heads": 2},
            outputs=1,
        ),
        Sample(
            [(2, 3, 4), (2, 3, 2), (2, 3, 3), (2, 1, 2, 3), (2, 3, 1), (2, 3, 1)],
            {"q_num_heads": 2, "kv_num_heads": 1},
            outputs=2,
        ),
    ),
    bad=(
        Bad([(2, 3, 4), (2, 3, 4), (2, 3, 6)], {"q_num_heads": 2, "kv_num_heads": 2}),
        Bad([(2, 3, 4), (2, 3, 4), (2, 3, 6)], {"update_rule": "even", "q_num_heads": 2, "kv_num_heads": 2}),
        Bad([(2, 3, 6), (2, 3, 4), (2, 3, 6)], {"update_rule": "linear", "q_num_heads": 3, "kv_num_heads": 2}),
        Bad([(2, 3, 4), (2, 3, 6), (2, 3, 6)], LINEAR),
        Bad(
            [(2, 3, 4), (2, 3, 4), (2, 3, 6), (2, 2, 2, 2)],
            LINEAR,
        ),
    ),
)


@reference(linear.LinearAttention)
def linear_attention(
    op: linear.LinearAttention, q: Any, k: Any, v: Any, past: Any = None, decay: Any = None, beta: Any = None
) -> tuple[Any, Any]:
    heads, groups, (batch, length, _) = op.q_num_heads, op.kv_num_heads, q.shape
    d_k, d_v = q.shape[2] // heads, v.shape[2] // groups
    state = np.zeros((batch, groups, d_k, d_v)) if past is None else past.copy()
    y = np.zeros((batch, length, heads, d_v))
    for b, t, h in np.ndindex(batch, length, groups):
        s = state[b, h]
        key, value = k[b, t, h * d_k : (h + 1) * d_k], v[b, t, h * d_v : (h + 1) * d_v]
        if decay is not None:
            s = np.exp(decay[b, t].reshape(groups, -1)[h])[:, None] * s
        if beta is not None:
            value = beta[b, t, h if beta.shape[2] > 1 else 0] * (value - s.T @ key)
        state[b, h] = s + np.outer(key, value)
        for own in range(heads // groups):
            at = h * (heads // groups) + own
            y[b, t, at] = q[b, t, at * d_k : (at + 1) * d_k] @ state[b, h]
    return y.reshape(batch, length, -1) * (op.scale or 1 / sqrt(d_k)), state
