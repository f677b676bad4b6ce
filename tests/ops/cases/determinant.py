"""Cases of trainweb.ops.determinant."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32

from trainweb.errors import UnsupportedError
from trainweb.ops import determinant

CASES[determinant.Det] = Cases(
    samples=(
        Sample([(3, 3)]),
        Sample([(2, 3, 4, 4)]),
        Sample([(2, 1, 1)]),
        Sample([f32([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 3.0], [0.5, 0.0]]])]),
        Sample([(1, 7, 7)], opset=22),
    ),
    bad=(
        Bad([(3, 4)]),
        Bad([(3,)]),
        Bad([(determinant.MAX_SIZE + 1, determinant.MAX_SIZE + 1)], error=UnsupportedError),
    ),
)
