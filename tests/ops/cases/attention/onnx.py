"""Cases of trainweb.ops.attention.onnx."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, i64

from trainweb.ops.attention import onnx

CASES[onnx.Attention] = Cases(
    samples=(
        Sample([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8)], opset=23),
        Sample([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)], {"is_causal": 1, "scale": 0.3}, opset=23),
        Sample([(2, 4, 24), (2, 6, 8), (2, 6, 8)], {"q_num_heads": 3, "kv_num_heads": 1}, opset=23, outputs=1),
        Sample([(1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 5)], {"softcap": 2.0}, opset=24),
        Sample(
            [(1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), bools([[True, False, True], [False, False, False]])],
            {"qk_matmul_output_mode": 3},
            opset=24,
            outputs=1,
        ),
        Sample(
            [(1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), i64([[0, -3, 2], [1, 0, -1]])],
            opset=24,
            outputs=1,
        ),
        Sample(
            [(1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), None, (1, 2, 2, 4), (1, 2, 2, 4)], {"is_causal": 1}, opset=24
        ),
        Sample(
            [(2, 1, 2, 4), (2, 1, 4, 4), (2, 1, 4, 4), None, None, None, i64([2, 4])],
            {"is_causal": 1},
            opset=24,
            outputs=1,
        ),
        Sample([(1, 1, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4)], {"left_window_size": 1, "right_window_size": 2}, opset=25),
        Sample([(1, 1, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4), (5, 3)], opset=24, outputs=1),
    ),
    bad=(
        Bad([(2, 4, 8), (2, 4, 8), (2, 4, 8)], opset=23),
        Bad([(2, 3, 4, 8), (2, 3, 6, 7), (2, 3, 6, 8)], opset=23),
        Bad([(2, 3, 4, 8), (2, 2, 6, 8), (2, 2, 6, 8)], opset=23),
        Bad([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), None, (2, 3, 1, 8)], opset=23),
        Bad([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8)], {"qk_matmul_output_mode": 4}, opset=23),
    ),
)

CASES[onnx.RotaryEmbedding] = Cases(
    samples=(
        Sample([(2, 3, 4, 6), (2, 4, 3), (2, 4, 3)], opset=23),
        Sample([(2, 3, 4, 6), (9, 3), (9, 3), i64([[0, 1, 2, 8], [3, 2, 1, 0]])], {"interleaved": 1}, opset=23),
        Sample([(2, 4, 18), (2, 4, 2), (2, 4, 2)], {"num_heads": 3, "rotary_embedding_dim": 4}, opset=23),
        Sample([(2, 4, 18), (2, 4, 3), (2, 4, 3)], {"num_heads": 3, "interleaved": 1}, opset=23),
    ),
    bad=(
        Bad([(2, 4, 18), (2, 4, 3), (2, 4, 3)], opset=23),
        Bad([(2, 3, 4, 6), (2, 4, 4), (2, 4, 3)], opset=23),
        Bad([(2, 3, 4, 6), (9, 3), (9, 3)], opset=23),
    ),
)
