"""Cases of trainweb.ops.shape."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i64

from trainweb.errors import LimitError
from trainweb.ops import shape

CASES[shape.Transpose] = Cases(
    samples=(
        Sample([(2, 3, 4)], {"perm": [1, 2, 0]}),
        Sample([(2, 3)]),
        Sample([(5, 7)], {"perm": [1, 0]}),
        Sample([(2, 3, 4, 5)], {"perm": [0, 2, 1, 3]}),
        Sample([(2, 1, 3)], {"perm": [1, 0, 2]}),
        Sample([(2, 3, 2, 3, 2)], {"perm": [4, 2, 0, 3, 1]}),
        Sample([i64([[1, 2], [3, 4]])]),
        Sample([bools([[True, False, True]])]),
        Sample([()]),
    ),
    bad=(Bad([(2, 3)], {"perm": [0]}), Bad([(2, 3)], {"perm": [0, 0]}), Bad([(2, 3)], {"perm": [0, 2]})),
)

CASES[shape.Expand] = Cases(
    samples=(
        Sample([(3, 1), i64([2, 1, 6])]),
        Sample([(3, 4), i64([1, 4])]),
        Sample([(), i64([2, 3])]),
        Sample([i64([1, 2]), i64([3, 2])]),
        Sample([bools([[True], [False]]), i64([2, 5])]),
    ),
    bad=(Bad([(3, 4), i64([2, 5])]), Bad([(3, 1), i64([3, -1])]), Bad([(1,), i64([2**40, 2**40])], error=LimitError)),
)

CASES[shape.Tile] = Cases(
    samples=(
        Sample([(2, 3), i64([2, 3])]),
        Sample([(2, 3, 4), i64([1, 2, 1])]),
        Sample([i64([1, 2]), i64([3])]),
        Sample([(2, 3), i64([1, 1])]),
    ),
    bad=(Bad([(2, 3), i64([2])]), Bad([(2, 3), i64([2, -1])]), Bad([(2, 3), i64([2**40, 2**40])], error=LimitError)),
)

CASES[shape.TriangleBase] = Cases(
    samples=(
        Sample([(3, 4)]),
        Sample([(3, 4)], {"upper": 0}),
        Sample([(2, 4, 3), i64(1)]),
        Sample([(4, 4), i64(-1)], {"upper": 0}),
        Sample([i64([[1, 2], [3, 4]])]),
        Sample([(3, 3), i64([9])]),
    ),
    bad=(Bad([(3,)]), Bad([(3, 3), i64([1, 2])]), Bad([(3, 3), f32(1.0)])),
)

CASES[shape.DepthToSpace] = Cases(
    samples=(
        Sample([(1, 8, 2, 3)], {"blocksize": 2}),
        Sample([(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
        Sample([(1, 4, 2, 2)], {"blocksize": 1}),
    ),
    bad=(
        Bad([(1, 6, 2, 2)], {"blocksize": 2}),
        Bad([(8, 2, 2)], {"blocksize": 2}),
        Bad([(1, 8, 2, 2)], {"blocksize": 0}),
        Bad([(1, 8, 2, 2)], {"blocksize": 2, "mode": "RCD"}),
    ),
)

CASES[shape.SpaceToDepth] = Cases(
    samples=(
        Sample([(1, 2, 4, 6)], {"blocksize": 2}),
        Sample([(2, 1, 3, 6)], {"blocksize": 3}),
        Sample([(2, 2, 4, 6)], {"blocksize": 2, "mode": "CRD"}, opset=28),
    ),
    bad=(
        Bad([(1, 2, 3, 4)], {"blocksize": 2}),
        Bad([(2, 4, 4)], {"blocksize": 2}),
        Bad([(1, 2, 4, 4)], {"blocksize": -2}),
        Bad([(1, 2, 4, 4)], {"blocksize": 2, "mode": "RCD"}),
    ),
)


@reference(shape.TriangleBase)
def triangle_base(op: shape.TriangleBase, x: Any, k: Any = None) -> Any:
    diagonal = 0 if k is None else int(k.item())
    return np.triu(x, diagonal) if op.upper else np.tril(x, diagonal)
