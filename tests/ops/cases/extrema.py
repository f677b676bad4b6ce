"""Cases of trainweb.ops.extrema."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import extrema

CASES[extrema.ArgReduction] = Cases(
    samples=(
        Sample([(3, 4)]),
        Sample([(2, 3, 4)], {"axis": -1, "keepdims": 0}),
        Sample([(2, 3, 4)], {"axis": 1}),
        Sample([f32([[1, 5, 5, 0, 0]])], {"axis": 1}),
        Sample([f32([[1, 5, 5, 0, 0]])], {"axis": 1, "select_last_index": 1}),
        Sample([i32([[1, 5, 5, -7, -7]])], {"axis": 1}),
        Sample([literal("uint64", [[1, 2**63, 5], [0, 2**62, 2**63]])], {"axis": 1, "select_last_index": 1}),
    ),
    bad=(
        Bad([(3, 4)], {"axis": 2}),
        Bad([bools([True])], error=UnsupportedError),
        Bad([()]),
        Bad([f32([[], []])], {"axis": 1}),
    ),
)

CASES[extrema.TopK] = Cases(
    samples=(
        Sample([(3, 5), i64([2])], outputs=2),
        Sample([(3, 5), i64([3])], {"axis": 0, "largest": 0}, outputs=2),
        Sample([(2, 7, 3), i64([4])], {"axis": 1}, outputs=2),
        Sample([(3, 5)], {"k": 2}, opset=9, outputs=2),
        Sample([f32([[2, 5, 5, 1, 5]]), i64([2])], outputs=2, grad=()),
        Sample([(3, 5), i64([0])], outputs=2, grad=()),
        Sample([i64([[2, 5, -5, 1, 5]]), i64([3])], outputs=2, grad=()),
        Sample([literal("uint64", [[2, 2**63, 5, 1]]), i64([2])], {"largest": 0}, outputs=2, grad=()),
        Sample([literal("uint8", [[2, 200, 5, 1]]), i64([2])], outputs=2, grad=()),
    ),
    bad=(
        Bad([(3, 5), i64([6])]),
        Bad([(3, 5), i64([-1])]),
        Bad([(3, 5), i64([1])], {"axis": 2}),
        Bad([(3, 5)]),
        Bad([bools([True]), i64([1])], error=UnsupportedError),
        Bad([(3, 5), i64([1, 2])]),
    ),
)
