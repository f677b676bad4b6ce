"""Cases of trainweb.ops.stateful."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import i64

from trainweb.ops import stateful

CASES[stateful.SwiGLU] = Cases(
    samples=(Sample([(2, 3), (2, 3)], opset=28), Sample([(4,), (4,)], {"alpha": 1.7}, opset=28)),
    bad=(Bad([(2, 3), (3,)], opset=28), Bad([(2, 3)], opset=28)),
)

CASES[stateful.CausalConvWithState] = Cases(
    samples=(
        Sample([(2, 3, 5), (3, 1, 3)], opset=27, outputs=2),
        Sample([(2, 3, 2), (3, 1, 4), (3,), (2, 3, 3)], {"activation": "silu"}, opset=27, outputs=2),
    ),
    bad=(
        Bad([(2, 3, 5), (2, 1, 3)], opset=27),
        Bad([(2, 3, 5), (3, 1, 3), (3,), (2, 3, 3)], opset=27),
        Bad([(2, 3, 5), (3, 1, 3)], {"activation": "gelu"}, opset=27),
    ),
)

CASES[stateful.TensorScatter] = Cases(
    samples=(
        Sample([(2, 2, 5, 3), (2, 2, 2, 3), i64([1, 3])], opset=24),
        Sample([(2, 4, 3), (2, 3, 3), i64([3, 2])], {"mode": "circular"}, opset=24),
        Sample([(2, 3, 4), (2, 3, 1)], {"axis": 2}, opset=24),
    ),
    bad=(
        Bad([(2, 5, 3), (2, 2, 4), i64([1, 3])], opset=24),
        Bad([(2, 5, 3), (2, 6, 3)], opset=24),
        Bad([(2, 5, 3), (2, 2, 3)], {"axis": 0}, opset=24),
        Bad([(2, 5, 3), (2, 2, 3)], {"mode": "round"}, opset=24),
    ),
)

CASES[stateful.CacheRows] = Cases(
    samples=(
        Sample([(5, 3), (2, 3), i64([3, 1])], {"axis": 0}),
        Sample([(2, 3, 5, 2), (2, 3, 1, 2), i64([4])], {"axis": 2}),
        Sample([(2, 4), (2, 3), i64([0, 1, 2])], {"axis": 1}),
    ),
    bad=(
        Bad([(5, 3), (2, 4), i64([0, 1])], {"axis": 0}),
        Bad([(5, 3), (2, 3), i64([0])], {"axis": 0}),
        Bad([(5, 3), (2, 3), i64([0, 5])], {"axis": 0}),
        Bad([(5, 3), i64([[1, 2, 3]]), i64([0])], {"axis": 0}),
    ),
)


@reference(stateful.CausalConvWithState)
def causal_conv_with_state(
    op: stateful.CausalConvWithState, x: Any, w: Any, bias: Any = None, past: Any = None
) -> tuple[Any, Any]:
    k = w.shape[2]
    past = np.zeros((*x.shape[:2], k - 1)) if past is None else past
    rows = np.concatenate([past, x], 2)
    y = np.stack([(rows[:, :, t : t + k] * w[:, 0]).sum(-1) for t in range(x.shape[2])], -1)
    y = y if bias is None else y + bias[:, None]
    return (y if op.activation == "none" else y / (1 + np.exp(-y))), rows[:, :, rows.shape[2] - k + 1 :]


@reference(stateful.CacheRows)
def cache_rows(op: stateful.CacheRows, cache: Any, rows: Any, positions: Any) -> Any:
    found = np.moveaxis(cache.copy(), op.axis, 0)
    found[positions] = np.moveaxis(rows, op.axis, 0)
    return np.moveaxis(found, 0, op.axis)
