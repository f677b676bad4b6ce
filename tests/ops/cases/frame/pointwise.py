"""Cases of trainweb.ops.frame.pointwise."""

from tests.ops.cases import CASES, Cases, Sample

from trainweb.ops.frame import pointwise

CASES[pointwise.Unary] = Cases(samples=(Sample([(3, 4)]), Sample([(2, 3, 5)]), Sample([()])))

CASES[pointwise.GradientOp] = Cases(samples=(Sample([(3, 4), (3, 4)]), Sample([(2, 3, 5), (2, 3, 5)])))
