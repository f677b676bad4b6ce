"""Cases of trainweb.ops.ctc."""

from math import inf
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i32, i64

from trainweb.ir.calls import ctc_states
from trainweb.ops import ctc

TARGETS = i64([[1, 2, 2], [3, 0, 0], [1, 1, 3]])
INPUT_LENGTHS, TARGET_LENGTHS = i64([6, 4, 5]), i64([3, 1, 3])
SCORES = (6, 3, 4)
"""Of samples: steps, items, classes."""

CASES[ctc.CTCLoss] = Cases(
    samples=(
        Sample([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], outputs=1),
        Sample([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS]),
        Sample([SCORES, i32([[1, 2, 0]] * 3), i32([6, 6, 6]), i32([3, 0, 2])], {"blank": 3}, outputs=1),
        Sample([(2, 1, 4), i64([[1, 2, 3]]), i64([2]), i64([3])], {"zero_infinity": 1}, outputs=1),
        Sample([(9, 2, 6), i64([[1, 2, 2, 5, 4], [5, 5, 5, 5, 1]]), i64([9, 9]), i64([5, 5])], outputs=1),
        Sample([(3, 1, 4), i64([[]]), i64([3]), i64([0])], outputs=1),
    ),
    bad=(
        Bad([SCORES, TARGETS, INPUT_LENGTHS, i32([3, 1, 3])]),
        Bad([SCORES, f32([[1.0, 2.0]] * 3), INPUT_LENGTHS, TARGET_LENGTHS]),
        Bad([SCORES, i64([1, 2, 3]), INPUT_LENGTHS, TARGET_LENGTHS]),
        Bad([SCORES, TARGETS, i64([6, 4]), TARGET_LENGTHS]),
        Bad([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], {"blank": 4}),
        Bad([SCORES, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS], {"zero_infinity": 2}),
        Bad([(6, 3), TARGETS, INPUT_LENGTHS, TARGET_LENGTHS]),
    ),
)

CASES[ctc.CTCLossGrad] = Cases(tested_through="CTCLoss")


def log_sum(*terms: float) -> float:
    """The logarithm of a sum, of the logarithms of its terms."""
    top = max(terms)
    return top if top == -inf else float(top + np.log(sum(np.exp(t - top) for t in terms)))


def states(op: ctc.CTCLoss, labels: Any) -> list[int]:
    """The labels with blanks before, between and behind them."""
    return [op.blank, *(s for label in labels for s in (int(label), op.blank))]


def sources(op: ctc.CTCLoss, states: list[int], s: int, *, first: bool) -> list[int]:
    """Return the places of a path before it is in state `s`; at the first step place 0 is before all."""
    if first:
        return [0] if s < 2 else [len(states)]
    skips = s > 1 and states[s] != op.blank and states[s] != states[s - 2]
    return [s, *([s - 1] if s else []), *([s - 2] if skips else [])]


@reference(ctc.CTCLoss)
def ctc_loss(op: ctc.CTCLoss, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> tuple[Any, Any]:
    steps, batch, _ = log_probs.shape
    loss, alpha = np.zeros(batch), np.zeros((batch, steps, ctc_states(targets.shape[1])))
    for k in range(batch):
        path = states(op, targets[k][: target_lengths[k]])
        before = [0.0, *[-inf] * len(path)]
        for t in range(input_lengths[k]):
            row = [
                log_probs[t, k, label] + log_sum(*(before[q] for q in sources(op, path, s, first=t == 0)))
                for s, label in enumerate(path)
            ]
            alpha[k, t, : len(row)] = row
            before = row
        last = before[-2:] if input_lengths[k] else [0.0 if len(path) == 1 else -inf]
        loss[k] = -log_sum(*last)
        if op.zero_infinity and loss[k] == inf:
            loss[k] = 0
    return loss, alpha
