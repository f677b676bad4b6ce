"""Cases of trainweb.ops.recurrent.ort_training."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.cases.activation import sigmoid64

from trainweb.errors import UnsupportedError
from trainweb.ops.recurrent import ort_training

CASES[ort_training.LSTMTraining] = Cases(
    samples=(
        Sample([(4, 2, 3), (1, 20, 3), (1, 20, 5), (1, 40), None, (1, 2, 5), (1, 2, 5)], outputs=5),
        Sample([(1, 3, 2), (1, 16, 2), (1, 16, 4)], outputs=5),
    ),
    bad=(
        Bad([(4, 2, 3), (1, 20, 3), (1, 20, 5)], {"direction": "reverse"}, error=UnsupportedError),
        Bad([(4, 2, 3), (1, 20, 3), (1, 20, 5)], {"input_forget": 1}, error=UnsupportedError),
        Bad([(4, 2, 3), (1, 20, 4), (1, 20, 5)]),
    ),
)

CASES[ort_training.GRUTraining] = Cases(
    samples=(
        Sample([(4, 2, 3), (1, 15, 3), (1, 15, 5), (1, 30), None, (1, 2, 5)], outputs=3),
        Sample([(3, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24)], {"linear_before_reset": 1}, outputs=3),
    ),
    bad=(
        Bad([(4, 2, 3), (1, 15, 3), (1, 15, 5)], {"clip": 1.0}, error=UnsupportedError),
        Bad([(4, 2, 3), (1, 15, 3), (1, 15, 5), (1, 15)]),
    ),
)

CASES[ort_training.LSTMGrad] = Cases(
    samples=(
        Sample(
            [
                *((4, 2, 3), (1, 20, 3), (1, 20, 5), None, (1, 2, 5), (1, 2, 5)),
                *((4, 1, 2, 5), (4, 1, 2, 5), (4, 1, 2, 20), (4, 1, 2, 5), (1, 2, 5), (1, 2, 5)),
            ],
            outputs=6,
        ),
        Sample(
            [
                *((3, 2, 3), (1, 16, 3), (1, 16, 4), None, None, None),
                *((3, 1, 2, 4), (3, 1, 2, 4), (3, 1, 2, 16), (3, 1, 2, 4)),
            ],
            outputs=4,
        ),
    ),
    bad=(
        Bad(
            [
                *((3, 2, 3), (1, 16, 3), (1, 16, 4), None, None, None),
                *((3, 1, 2, 4), (3, 1, 2, 4), (3, 1, 2, 12), (3, 1, 2, 4)),
            ]
        ),
    ),
)

CASES[ort_training.GRUGrad] = Cases(
    samples=(
        Sample(
            [
                *((4, 2, 3), (1, 15, 3), (1, 15, 5), (1, 30), None, (1, 2, 5)),
                *((4, 1, 2, 5), (4, 1, 2, 15), (4, 1, 2, 5), (1, 2, 5)),
            ],
            outputs=5,
        ),
        Sample(
            [
                *((3, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24), None, None),
                *((3, 1, 2, 4), (3, 1, 2, 12), (3, 1, 2, 4)),
            ],
            {"linear_before_reset": 1},
            outputs=4,
        ),
    ),
    bad=(
        Bad(
            [
                *((3, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24), None, None),
                *((3, 1, 2, 4), (3, 1, 2, 16), (3, 1, 2, 4)),
            ]
        ),
    ),
)


@reference(ort_training.LSTMTraining)
def lstm_training(op: ort_training.LSTMTraining, x: Any, w: Any, r: Any, *others: Any) -> tuple[Any, ...]:
    bias, _, h, c = [*others, *[None] * 4][:4]
    state, cell = (np.zeros((x.shape[1], r.shape[2])) if first is None else first[0] for first in (h, c))
    shared = 0.0 if bias is None else bias[0].reshape(2, -1).sum(0)
    steps = []
    for row in x:
        raw = np.split(row @ w[0].T + state @ r[0].T + shared, 4, axis=1)
        i, o, f, new = (*(sigmoid64(v) for v in raw[:3]), np.tanh(raw[3]))
        cell = f * cell + i * new
        state = o * np.tanh(cell)
        steps.append((state, cell, np.concatenate([i, o, f, new], axis=1)))
    y, cells, gates = (np.stack(rows)[:, None] for rows in zip(*steps, strict=True))
    return y, y[-1], cells[-1], cells, gates


@reference(ort_training.GRUTraining)
def gru_training(op: ort_training.GRUTraining, x: Any, w: Any, r: Any, *others: Any) -> tuple[Any, ...]:
    bias, _, h = [*others, *[None] * 3][:3]
    state, steps = np.zeros((x.shape[1], r.shape[2])) if h is None else h[0], []
    bz, br, bh, cz, cr, ch = np.zeros((6, r.shape[2])) if bias is None else bias[0].reshape(6, -1)
    for row in x:
        (xz, xr, xn), (rz, rr, rn) = np.split(row @ w[0].T, 3, axis=1), np.split(r[0], 3)
        z, reset = sigmoid64(xz + state @ rz.T + bz + cz), sigmoid64(xr + state @ rr.T + br + cr)
        memory = reset * (state @ rn.T + ch) if op.linear_before_reset else (reset * state) @ rn.T + ch
        new = np.tanh(xn + bh + memory)
        state = (1 - z) * new + z * state
        steps.append((state, np.concatenate([z, reset, new], axis=1)))
    y, gates = (np.stack(rows)[:, None] for rows in zip(*steps, strict=True))
    return y, y[-1], gates


@reference(ort_training.LSTMGrad)
def lstm_grad(op: ort_training.LSTMGrad, x: Any, w: Any, r: Any, *others: Any) -> tuple[Any, ...]:
    _, h, c, y, cells, gates, dy, dh, dc = [*others, *[None] * 9][:9]
    state, cell = (np.zeros((1, *y.shape[2:])) if first is None else first for first in (h, c))
    before, cells_before = np.concatenate([state, y[:-1, 0]]), np.concatenate([cell, cells[:-1, 0]])
    dstate, dcell = (np.zeros(y.shape[2:]) if t is None else t[0] for t in (dh, dc))
    dx = np.zeros(gates[:, 0].shape)
    for t in reversed(range(len(x))):
        i, o, f, new = np.split(gates[t, 0], 4, axis=1)
        squashed = np.tanh(f * cells_before[t] + i * new)
        dnow = dstate + (0.0 if dy is None else dy[t, 0])
        dcell = dcell + dnow * o * (1 - squashed**2)
        parts = [dcell * new * i * (1 - i), dnow * squashed * o * (1 - o)]
        parts += [dcell * cells_before[t] * f * (1 - f), dcell * i * (1 - new**2)]
        dx[t] = np.concatenate(parts, axis=1)
        dstate, dcell = dx[t] @ r[0], dcell * f
    dw, dr = (np.einsum("tbg,tbk->gk", dx, t)[None] for t in (x, before))
    return (
        dx @ w[0],
        dw,
        dr,
        np.tile(dx.sum((0, 1)), 2)[None],
        dstate[None],
        dcell[None],
        np.zeros((1, 3 * r.shape[2])),
    )


@reference(ort_training.GRUGrad)
def gru_grad(op: ort_training.GRUGrad, x: Any, w: Any, r: Any, *others: Any) -> tuple[Any, ...]:
    bias, _, h, y, gates, dy, dh = [*others, *[None] * 7][:7]
    before = np.concatenate([np.zeros((1, *y.shape[2:])) if h is None else h, y[:-1, 0]])
    dstate = np.zeros(y.shape[2:]) if dh is None else dh[0]
    rz, rr, rn = np.split(r[0], 3)
    dx, dproduct = np.zeros(gates[:, 0].shape), np.zeros(gates[:, 0].shape)
    dr = np.zeros(r[0].shape)
    for t in reversed(range(len(x))):
        (z, reset, new), state = np.split(gates[t, 0], 3, axis=1), before[t]
        dnow = dstate + (0.0 if dy is None else dy[t, 0])
        dn, dz = dnow * (1 - z) * (1 - new**2), dnow * (state - new) * z * (1 - z)
        if op.linear_before_reset:
            memory = state @ rn.T + (0.0 if bias is None else bias[0].reshape(6, -1)[5])
            dreset, candidate = dn * memory * reset * (1 - reset), dn * reset
            dstate, source = dnow * z + candidate @ rn, state
        else:
            through = dn @ rn
            dreset, candidate = through * state * reset * (1 - reset), dn
            dstate, source = dnow * z + through * reset, reset * state
        dstate = dstate + dz @ rz + dreset @ rr
        dx[t] = np.concatenate([dz, dreset, dn], axis=1)
        dproduct[t] = np.concatenate([dz, dreset, candidate], axis=1)
        dr += np.concatenate([dz.T @ state, dreset.T @ state, candidate.T @ source])
    dw = np.einsum("tbg,tbk->gk", dx, x)[None]
    db = np.concatenate([dx.sum((0, 1)), dproduct.sum((0, 1))])[None]
    return dx @ w[0], dw, dr[None], db, dstate[None]
