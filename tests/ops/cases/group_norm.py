"""Cases of trainweb.ops.group_norm."""

from __future__ import annotations

from tests.ops.cases import CASES, Bad, Cases, Sample

from trainweb.ops import group_norm

CASES[group_norm.GroupNormalization] = Cases(
    samples=(
        Sample([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 3}, opset=21),
        Sample([(3, 4, 7), (4,), (4,)], {"num_groups": 1, "epsilon": 1e-3}, opset=21),
        Sample([(2, 6, 3, 3), (2,), (2,)], {"num_groups": 2}, opset=18),
        Sample([(5, 8), (8,), (8,)], {"num_groups": 2}, opset=21),
    ),
    bad=(
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 4}, opset=21),
        Bad([(2, 6, 3, 5), (3,), (3,)], {"num_groups": 3}, opset=21),
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 3}, opset=18),
        Bad([(2, 6, 3, 5), (6,), (6,)], {"num_groups": 0}, opset=21),
        Bad([(2, 6, 3, 5), (6,), (6,)], opset=21),
    ),
)

CASES[group_norm.InstanceNormalization] = Cases(
    samples=(
        Sample([(2, 3, 4, 4), (3,), (3,)]),
        Sample([(2, 3, 11), (3,), (3,)], {"epsilon": 1e-2}),
    ),
    bad=(Bad([(2, 3, 4, 4), (2,), (3,)]), Bad([(3,), (3,), (3,)])),
)

CASES[group_norm.GroupNormalizationGrad] = Cases(
    samples=(
        Sample([(2, 6, 3, 5), (2, 6, 3, 5), (6,)], {"num_groups": 3}),
        Sample([(2, 6, 3, 5), (2, 6, 3, 5), (2,)], {"num_groups": 2}),
        Sample([(2, 3, 9), (2, 3, 9), (3,)]),
    ),
    bad=(
        Bad([(2, 6, 3, 5), (2, 6, 3, 4), (6,)], {"num_groups": 3}),
        Bad([(2, 6, 3, 5), (2, 6, 3, 5), (4,)], {"num_groups": 3}),
    ),
)
