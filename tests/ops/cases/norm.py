"""Cases of trainweb.ops.norm."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.ops import norm

CASES[norm.LayerNormalization] = Cases(
    samples=(
        Sample([(3, 8), (8,), (8,)], outputs=1),
        Sample([(2, 3, 5), (3, 5), (3, 5)], {"axis": 1, "epsilon": 1e-3}, outputs=1),
        Sample([(4, 6), (6,)], outputs=1),
        Sample([(2, 3, 5), (3, 5), (3, 5)], {"axis": 1}, outputs=3),
    ),
    bad=(Bad([(3, 8), (7,), (8,)]), Bad([(3, 8), (8,)], {"axis": 5})),
)

CASES[norm.LayerNormalizationGrad] = Cases(
    samples=(Sample([(3, 8), (3, 8), (8,), (3, 1), (3, 1)], positive=True),),
    bad=(Bad([(3, 8), (3, 7), (7,), (3, 1), (3, 1)]),),
)

CASES[norm.SimplifiedLayerNormalization] = Cases(
    samples=(Sample([(3, 8), (8,)], outputs=1),),
    bad=(Bad([(3, 8), (7,)]),),
)

CASES[norm.SimplifiedLayerNormalizationGrad] = Cases(
    samples=(Sample([(3, 8), (3, 8), (8,), (3, 1)], positive=True),),
    bad=(Bad([(3, 8), (3, 7), (7,), (3, 1)]),),
)

CASES[norm.BatchNormalization] = Cases(
    samples=(
        Sample([(4, 3, 5, 5), (3,), (3,), (3,), (3,)], outputs=1, positive=True),
        Sample([(4, 3), (3,), (3,), (3,), (3,)], {"epsilon": 1e-2}, outputs=1, positive=True),
        Sample(
            [(4, 3, 5), (3,), (3,), (3,), (3,)],
            {"training_mode": 1, "momentum": 0.8},
            opset=15,
            outputs=3,
            positive=True,
            grad=(),
        ),
    ),
    bad=(Bad([(4, 3, 5, 5), (2,), (3,), (3,), (3,)]),),
)

CASES[norm.BatchNormInternal] = Cases(
    samples=(Sample([(4, 3, 5, 5), (3,), (3,), (3,), (3,)], outputs=1, positive=True),),
    bad=(Bad([(4, 3, 5, 5), (2,), (3,), (3,), (3,)]),),
)

CASES[norm.BatchNormalizationGrad] = Cases(
    samples=(Sample([(4, 3, 5, 5), (4, 3, 5, 5), (3,), (3,), (3,)], positive=True),),
    bad=(Bad([(4, 3, 5, 5), (4, 3, 5, 4), (3,), (3,), (3,)]),),
)
