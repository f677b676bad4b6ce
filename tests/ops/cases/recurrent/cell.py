"""Cases of trainweb.ops.recurrent.cell."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.cases.activation import sigmoid64
from tests.ops.literals import i32

from trainweb.ir import calls
from trainweb.ir.layout import CELL_GRU_LINEAR, CELL_LSTM, CELL_RNN_RELU, CELL_RNN_TANH
from trainweb.ops.recurrent import cell

CASES[cell.Recurrence] = Cases(
    # Batches of several chunks and register tiles; state sizes that are multiples of 8, and others.
    samples=(
        Sample([(3, 19, 32), (32, 8)], {"cell": "lstm"}),
        Sample(
            [(4, 3, 44), (44, 11), (44,), i32([4, 1, 3]), (3, 11), (3, 11)], {"cell": "lstm", "reverse": 1}, outputs=6
        ),
        Sample([(3, 7, 39), (39, 13), (39,), None, (7, 13)], {"cell": "gru"}, outputs=6),
        Sample([(4, 3, 24), (24, 8), (24,), i32([2, 4, 1]), (3, 8)], {"cell": "gru", "reverse": 1}),
        Sample(
            [(3, 11, 39), (39, 13), (39,), i32([3, 2, 1] * 3 + [0, 3]), (11, 13)], {"cell": "gru_linear"}, outputs=6
        ),
        Sample([(2, 70, 6), (6, 2)], {"cell": "gru_linear", "reverse": 1}),
        Sample([(3, 5, 9), (9, 9), (9,), i32([3, 2, 1, 3, 2]), (5, 9)], {"cell": "rnn_tanh"}),
        Sample([(3, 5, 5), (5, 5), None, None, (5, 5)], {"cell": "rnn_relu"}),
        Sample([(0, 3, 32), (32, 8), None, None, (3, 8), (3, 8)], {"cell": "lstm"}, outputs=6),
    ),
    bad=(
        Bad([(3, 5, 20), (16, 4)], {"cell": "lstm"}),
        Bad([(3, 5, 16), (16, 4)], {"cell": "peephole"}),
        Bad([(3, 5, 16), (16, 4), None, i32([1])], {"cell": "lstm"}),
    ),
)

CASES[cell.RecurrenceGrad] = Cases(tested_through="Recurrence")


def numpy_step(op: cell.Recurrence, x: Any, r: Any, bias: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    hidden = r.shape[1]
    product = h @ r.T + bias
    if op.kind in (CELL_RNN_TANH, CELL_RNN_RELU):
        y = np.tanh(x + product) if op.kind == CELL_RNN_TANH else np.maximum(x + product, 0)
        return y, c, y
    if op.kind == CELL_LSTM:
        i, o, f = (sigmoid64(v) for v in np.split((x + product)[:, : 3 * hidden], 3, axis=1))
        g = np.tanh((x + product)[:, 3 * hidden :])
        c = f * c + i * g
        return o * np.tanh(c), c, np.concatenate([i, o, f, g], axis=1)
    z, reset = (sigmoid64(v) for v in np.split((x + product)[:, : 2 * hidden], 2, axis=1))
    own = bias[2 * hidden :] if np.ndim(bias) else bias
    memory = product[:, 2 * hidden :] if op.kind == CELL_GRU_LINEAR else (reset * h) @ r[2 * hidden :].T + own
    n = np.tanh(x[:, 2 * hidden :] + (reset * memory if op.kind == CELL_GRU_LINEAR else memory))
    last = memory if op.kind == CELL_GRU_LINEAR else reset * h
    return (1 - z) * n + z * h, c, np.concatenate([z, reset, n, last], axis=1)


@reference(cell.Recurrence)
def recurrence(
    op: cell.Recurrence, x: Any, r: Any, bias: Any = None, lengths: Any = None, h0: Any = None, c0: Any = None
) -> tuple[Any, ...]:
    steps, batch, _ = x.shape
    hidden = r.shape[1]
    h, c = (np.zeros((batch, hidden)) if s is None else np.array(s) for s in (h0, c0))
    y, kept, before, cells = (np.zeros((steps, batch, n * hidden)) for n in (1, calls.cell_kept(op.kind), 1, 1))
    for t in reversed(range(steps)) if op.reverse else range(steps):
        before[t], cells[t] = h, c
        new, new_c, kept[t] = numpy_step(op, x[t], r, 0.0 if bias is None else bias, h, c)
        runs = np.ones((batch, 1), bool) if lengths is None else (t < lengths)[:, None]
        h, c = np.where(runs, new, h), np.where(runs, new_c, c)
        y[t] = np.where(runs, new, 0)
    return y, h, c, kept, before, cells
