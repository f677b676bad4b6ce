"""Cases of trainweb.ops.softmax_loss."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32, i32, i64

from trainweb.ops import softmax_loss

CASES[softmax_loss._Forward] = Cases(
    samples=(
        Sample([(3, 5)]),
        Sample([(2, 3, 4)], {"axis": 1}),
        Sample([(2, 3, 4)], {"axis": 1}, opset=11),
        Sample([(2, 40)], {"axis": -1}),
    ),
    bad=(Bad([(3, 5)], {"axis": 2}),),
)

CASES[softmax_loss._Backward] = Cases(
    samples=(
        Sample([(3, 5), (3, 5)]),
        Sample([(2, 3, 4), (2, 3, 4)], {"axis": 1}),
    ),
    bad=(Bad([(3, 5), (3, 4)]), Bad([(3, 5), (3, 5)], {"axis": 3})),
)

CASES[softmax_loss.SoftmaxCrossEntropyLoss] = Cases(
    samples=(
        Sample([(4, 5), i64([0, 4, 2, 2])], outputs=1),
        Sample([(4, 5), i32([0, 4, 2, 2])], {"reduction": "sum"}, outputs=1),
        Sample([(4, 5), i64([0, 4, -1, 2])], {"ignore_index": -1}, outputs=1),
        Sample(
            [(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]]), f32([0.5, 1.0, 2.0])],
            outputs=1,
            grad=[0],
        ),
        Sample([(4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}, outputs=1),
        Sample([(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]])], outputs=2),
    ),
    bad=(Bad([(4, 5), i64([0, 1])]),),
)

CASES[softmax_loss._CrossEntropyGrad] = Cases(
    samples=(
        Sample([(), (4, 5), i64([0, 4, 2, 2])]),
        Sample([(4,), (4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}),
    ),
    bad=(Bad([(), (4, 5), i64([0, 1])]),),
)

CASES[softmax_loss.NegativeLogLikelihoodLoss] = Cases(
    samples=(
        Sample([(4, 5), i64([0, 4, 2, 2])]),
        Sample([(4, 5), i32([0, 4, -1, 2])], {"reduction": "sum", "ignore_index": -1}),
        Sample([(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]]), f32([0.5, 1.0, 2.0])], grad=[0]),
        Sample([(4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}),
    ),
    bad=(Bad([(4, 5), i64([0, 1])]), Bad([(4, 5), i64([0, 1, 2, 3])], {"reduction": "max"})),
)
