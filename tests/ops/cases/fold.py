"""Cases of trainweb.ops.fold."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i64

from trainweb.errors import UnsupportedError
from trainweb.ops import fold

CASES[fold.Col2Im] = Cases(
    samples=(
        Sample([(2, 12, 9), i64([4, 4]), i64([2, 2])], opset=18),
        Sample(
            [(1, 6, 4), i64([5, 6]), i64([2, 3])],
            {"strides": [2, 2], "dilations": [2, 1], "pads": [1, 0, 0, 0]},
            opset=18,
        ),
        Sample(
            [(1, 4, 8), i64([3, 3, 3]), i64([2, 2, 1])], {"pads": [0, 0, 0, 0, 0, 0], "strides": [1, 1, 2]}, opset=18
        ),
    ),
    bad=(
        Bad([(2, 12, 8), i64([4, 4]), i64([2, 2])], opset=18),
        Bad([(2, 13, 9), i64([4, 4]), i64([2, 2])], opset=18),
        Bad([(2, 12, 9), i64([4, 4]), i64([2])], opset=18),
        Bad([(2, 1, 9), i64([4, 4, 1, 1]), i64([1, 1, 1, 1])], error=UnsupportedError, opset=18),
    ),
)
