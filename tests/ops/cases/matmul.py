"""Cases of trainweb.ops.matmul."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import matmul

CASES[matmul.MatMul] = Cases(
    samples=(
        Sample([(3, 5), (5, 4)]),
        Sample([(2, 3, 5), (5, 4)]),
        Sample([(2, 3, 4, 5), (2, 3, 5, 6)]),
        Sample([(2, 1, 4, 5), (3, 5, 6)]),
        Sample([(5,), (5, 4)]),
        Sample([(3, 5), (5,)]),
        Sample([(5,), (5,)]),
        Sample([i32([[1, 2, -3], [2**30, 5, 6]]), i32([[7, 2], [2**30, -1], [4, 3]])]),
        Sample([i64([[[1, 2]], [[-3, 2**62]]]), i64([[7, 8, 9], [2**40, 6, -5]])]),
        Sample([i64([3, -4]), i64([[[7, 8], [9, 10]], [[1, 2], [3, 4]]])]),
        Sample([literal("uint32", [[2**32 - 1, 3]]), literal("uint32", [[2], [2**31]])]),
        Sample([literal("uint64", [[2**64 - 1, 3]]), literal("uint64", [2, 2**63])]),
    ),
    bad=(
        Bad([(3, 5), (4, 5)]),
        Bad([(2, 3, 5), (3, 5, 4)]),
        Bad([i32([[1]]), i64([[1]])]),
        Bad([literal("uint8", [[1]]), literal("uint8", [[1]])], error=UnsupportedError),
    ),
)

CASES[matmul.Gemm] = Cases(
    samples=(
        Sample([(3, 5), (5, 4), (4,)]),
        Sample([(5, 3), (4, 5), (3, 4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        Sample([(3, 5), (4, 5), (3, 1)], {"transB": 1}),
        Sample([(5, 3), (5, 4), ()], {"transA": 1, "beta": 0.25}),
        Sample([(3, 5), (5, 4)]),
        Sample([i32([[1, 2, -3]]), i32([[7, 2], [8, -1], [4, 3]]), i32([5, 2**31 - 1])]),
        Sample([i64([[1, 2], [3, 4]]), i64([[7, 2], [8, -1], [4, 3]])], {"transA": 1, "transB": 1, "alpha": -2.0}),
        Sample([literal("uint64", [[2**63, 3]]), literal("uint64", [[2], [1]]), literal("uint64", 7)], {"beta": 3.0}),
    ),
    bad=(
        Bad([(3, 5), (4, 5)]),
        Bad([(3, 5), (5, 4), (3,)]),
        Bad([(2, 3, 5), (5, 4)]),
        Bad([i64([[1]]), i64([[1]])], {"alpha": 0.5}, UnsupportedError),
    ),
)

CASES[matmul.FusedMatMul] = Cases(
    samples=(
        Sample([(3, 5), (5, 4)], {"alpha": 0.5}),
        Sample([(2, 5, 3), (2, 5, 4)], {"transA": 1}),
        Sample([(2, 3, 5), (2, 4, 5)], {"transB": 1}),
        Sample([(2, 5, 3), (1, 4, 5)], {"transA": 1, "transB": 1, "alpha": 2.0}),
    ),
    bad=(Bad([(3, 5), (4, 5)]),),
)


@reference(matmul.FusedMatMul)
def fused_mat_mul(op: matmul.FusedMatMul, a: Any, b: Any) -> Any:
    left = np.swapaxes(a, -1, -2) if op.transA and a.ndim > 1 else a
    right = np.swapaxes(b, -1, -2) if op.transB and b.ndim > 1 else b
    return op.alpha * np.matmul(left, right)
