"""Cases of trainweb.ops.recurrent.ort_training."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

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
