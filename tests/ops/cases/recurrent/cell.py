"""Cases of trainweb.ops.recurrent.cell."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i32

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
