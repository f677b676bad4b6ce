"""Cases of trainweb.ops.attention.linear."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

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
