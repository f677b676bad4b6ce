"""Cases of trainweb.ops.attention.microsoft."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i32, i64

from trainweb.ops.attention import microsoft

CASES[microsoft.MultiHeadAttention] = Cases(
    samples=(
        Sample([(2, 3, 8), (2, 4, 8), (2, 4, 6), (22,)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 3, 8), (2, 3, 8)], {"num_heads": 2, "unidirectional": 1, "scale": 0.3}),
        Sample([(2, 4, 8), (2, 4, 8), (2, 4, 8), None, i32([4, 2])], {"num_heads": 2, "mask_filter_value": -3.0}),
        Sample(
            [(2, 4, 8), (2, 4, 8), (2, 4, 8), None, i32([[1, 1, 1, 1], [0, 1, 1, 0]]), (2, 2, 4, 4)], {"num_heads": 2}
        ),
        Sample([(2, 3, 2, 3, 4)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 5, 2, 2, 4)], {"num_heads": 2}),
        Sample([(2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {"num_heads": 2}),
        Sample(
            [(2, 1, 8), (2, 1, 8), (2, 1, 8), None, None, None, (2, 2, 3, 4), (2, 2, 3, 4)], {"num_heads": 2}, outputs=3
        ),
    ),
    bad=(
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8)]),
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8)], {"num_heads": 3}),
        Bad([(2, 3, 8), (2, 4, 8), (2, 5, 8)], {"num_heads": 2}),
        Bad([(2, 3, 8), (2, 4, 8), (2, 4, 8), (20,)], {"num_heads": 2}),
    ),
)

CASES[microsoft.MicrosoftAttention] = Cases(
    samples=(
        Sample([(2, 3, 5), (5, 24), (24,)], {"num_heads": 2}),
        Sample([(2, 3, 5), (5, 24), (24,), i32([3, 2])], {"num_heads": 2, "unidirectional": 1}),
        Sample([(2, 3, 5), (5, 24), (24,), i32([3, 2, 1, 0])], {"num_heads": 2, "mask_filter_value": -2.0}),
        Sample(
            [(2, 3, 5), (5, 20), (20,), i32([[1, 1, 0], [0, 1, 1]])], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}
        ),
        Sample(
            [(1, 2, 5), (5, 24), (24,), i32([[[1, 1], [0, 1]]]), None, (1, 2, 2, 2)], {"num_heads": 2, "scale": 0.2}
        ),
        Sample([(2, 2, 5), (5, 24), (24,), None, (2, 2, 2, 3, 4)], {"num_heads": 2, "unidirectional": 1}, outputs=2),
    ),
    bad=(
        Bad([(2, 3, 5), (5, 24), (24,)]),
        Bad([(2, 3, 5), (4, 24), (24,)], {"num_heads": 2}),
        Bad([(2, 3, 5), (5, 24), (23,)], {"num_heads": 2}),
        Bad([(2, 3, 5), (5, 24), (24,)], {"num_heads": 5}),
    ),
)

CASES[microsoft.GroupQueryAttention] = Cases(
    samples=(
        Sample(
            [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, i32([2, 2]), i32(3)],
            {"num_heads": 4, "kv_num_heads": 2},
            outputs=3,
        ),
        Sample(
            [(2, 3, 64), None, None, None, None, i32([2, 2]), i32(3), (8, 8), (8, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
        Sample(
            [(1, 4, 32), (1, 4, 16), (1, 4, 16), None, None, i32([3]), i32(4), (5, 8), (5, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.4},
            outputs=3,
        ),
        Sample(
            [(1, 5, 16), (1, 5, 16), (1, 5, 16), None, None, i32([4]), i32(5)],
            {"num_heads": 2, "kv_num_heads": 2, "local_window_size": 2},
            outputs=3,
        ),
        Sample(
            [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 1, 3, 16), (2, 1, 3, 16), i32([3, 3]), i32(4), (8, 8), (8, 8)],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
        Sample(
            [(2, 1, 16), (2, 1, 8), (2, 1, 8), (2, 1, 3, 8), (2, 1, 3, 8), i32([3, 2]), i32(4)],
            {"num_heads": 2, "kv_num_heads": 1},
            outputs=3,
        ),
        Sample(
            [
                *[(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, i32([2, 2]), i32(3), (8, 8), (8, 8)],
                *[i64([[0, 1, 2], [3, 4, 5]]), (2, 2, 3, 3)],
            ],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
            outputs=3,
        ),
    ),
    bad=(
        Bad([(2, 3, 16), (2, 3, 8), (2, 3, 8), None, None, i32([2, 2]), i32(3)], {"num_heads": 3, "kv_num_heads": 2}),
        Bad([(2, 3, 16), (2, 3, 8), None, None, None, i32([2, 2]), i32(3)], {"num_heads": 4, "kv_num_heads": 2}),
        Bad(
            [(2, 3, 16), (2, 3, 8), (2, 3, 8), None, None, i32([2, 2]), i32(3)],
            {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        ),
    ),
)

CASES[microsoft.MicrosoftRotaryEmbedding] = Cases(
    samples=(
        Sample([(2, 3, 8), i64([[0, 1, 2], [4, 0, 3]]), (5, 2), (5, 2)]),
        Sample([(2, 3, 8), i64([1]), (5, 2), (5, 2)], {"interleaved": 1}),
        Sample([(2, 2, 3, 4), i64([0]), (5, 2), (5, 2)]),
        Sample([(2, 3, 12), i64([0]), (5, 2), (5, 2)], {"num_heads": 2, "rotary_embedding_dim": 4}),
    ),
    bad=(
        Bad([(2, 3, 8), i64([[0, 1]]), (5, 2), (5, 2)]),
        Bad([(2, 3, 7), i64([0]), (5, 2), (5, 2)]),
        Bad([(2, 3, 8), i64([0]), (5, 2), (5, 3)]),
    ),
)
