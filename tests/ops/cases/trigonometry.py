"""Cases of trainweb.ops.trigonometry."""

from tests.ops.cases import CASES, Cases, Sample, cases_of
from tests.ops.literals import f32

from trainweb.ops import trigonometry
from trainweb.ops.frame.pointwise import Unary

WITHIN_ONE = (Sample([f32([[-0.9, -0.5, -0.1], [0.0, 0.3, 0.85]])]),)

CASES[trigonometry.Tan] = Cases(samples=(Sample([f32([[-1.2, -0.5, -0.1], [0.0, 0.3, 1.3]])]),))

CASES[trigonometry.Asin] = Cases(samples=WITHIN_ONE)

CASES[trigonometry.Acos] = Cases(samples=WITHIN_ONE)

CASES[trigonometry.Atan] = Cases(
    samples=(*cases_of(Unary).samples[:1], Sample([f32([-50.0, -1.0, -0.3, 0.0, 0.41, 0.42, 2.4, 2.5, 1e6])], grad=()))
)

CASES[trigonometry.Acosh] = Cases(samples=(Sample([f32([[1.1, 1.5, 2.0], [3.0, 10.0, 100.0]])]),))

CASES[trigonometry.Atanh] = Cases(samples=WITHIN_ONE)
