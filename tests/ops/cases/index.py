"""Cases of trainweb.ops.index."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import index

CASES[index.Gather] = Cases(
    samples=(
        Sample([(5, 3), i64([0, 4, -1, 0])]),
        Sample([(2, 5, 3), i64([[0, 4], [1, 1]])], {"axis": 1}),
        Sample([(5, 3), i64(2)]),
        Sample([(5, 3), i32([1, 2])], {"axis": -1}),
        Sample([i64([7, 8, 9]), i64([2, 0])]),
        Sample([bools([True, False]), i64([1, 1, 0])]),
        Sample([(5, 3), i64([])]),
    ),
    bad=(
        Bad([(5, 3), i64([5])]),
        Bad([(5, 3), i64([-6])]),
        Bad([(5, 3), i64([0])], {"axis": 2}),
        Bad([(), i64([0])]),
        Bad([(5, 3), f32([1.0])]),
        Bad([(5, 3), i64([-(2**63)])]),
    ),
)

CASES[index.GatherGrad] = Cases(
    samples=(
        Sample([i64([5, 3]), i64([0, 4, -1, 0]), (4, 3)]),
        Sample([i64([2, 5, 3]), i64([[0, 4], [1, 1]]), (2, 2, 2, 3)], {"axis": 1}),
        Sample([i64([5, 3]), i64(2), (3,)]),
        Sample([i64([5, 3]), i32([1, 2]), (5, 2)], {"axis": -1}),
    ),
    bad=(
        Bad([i64([5, 3]), i64([5]), (1, 3)]),
        Bad([i64([5, 3]), i64([0]), (2, 3)]),
        Bad([i64([-5, 3]), i64([0]), (1, 3)]),
        Bad([i64([5]), i64([0]), i64([1])], error=UnsupportedError),
    ),
)

CASES[index.GatherElements] = Cases(
    samples=(
        Sample([(3, 4), i64([[0, 3], [1, 1], [-1, 0]])], {"axis": 1}),
        Sample([(3, 4), i64([[2, 0, -1, 1]])]),
        Sample([(2, 3, 2), i32([[[0, 2], [1, 1]], [[0, 0], [2, 1]]])], {"axis": 1}),
        Sample([i64([[7, 8], [9, 10]]), i64([[1, 0]])]),
        Sample([literal("int16", [[7, 8], [9, 10]]), i64([[1, 0]])]),
    ),
    bad=(
        Bad([(3, 4), i64([[0, 4]])], {"axis": 1}),
        Bad([(3, 4), i64([0])]),
        Bad([(3, 4), i64([[0] * 5])]),
        Bad([(3, 4), i64([[0]])], {"axis": 2}),
        Bad([(3, 4), f32([[0.0]])]),
    ),
)

CASES[index.GatherElementsGrad] = Cases(
    samples=(
        Sample([(3, 2), i64([3, 4]), i64([[0, 3], [1, 1], [-1, 0]])], {"axis": 1}),
        Sample([(1, 4), i64([3, 4]), i64([[2, 0, -1, 1]])]),
    ),
    bad=(
        Bad([(3, 2), i64([3, 4]), i64([[0, 4], [0, 0], [0, 0]])], {"axis": 1}),
        Bad([(2, 2), i64([3, 4]), i64([[0, 1]])]),
    ),
)

CASES[index.ScatterElements] = Cases(
    samples=(
        Sample([(3, 4), i64([[1, 3]]), (1, 2)], {"axis": 1}),
        Sample([(3, 4), i64([[2, 0, -1, 1]]), (1, 4)]),
        Sample([(3, 4), i64([[1, 1]]), (1, 2)], {"axis": 1, "reduction": "add"}, opset=18),
        Sample([(3, 4), i64([[1, 1]]), (1, 2)], {"axis": 1, "reduction": "mul"}, opset=18),
        Sample([(3,), i64([1, 1, 0]), f32([0.0, 2.0, 0.0])], {"reduction": "mul"}, opset=18),
        Sample([(3, 4), i64([[1, 1]]), (1, 2)], {"axis": 1, "reduction": "max"}, opset=18),
        Sample([(3, 4), i64([[1, 1]]), (1, 2)], {"axis": 1, "reduction": "min"}, opset=18),
        Sample([i64([1, 2, 3]), i64([2]), i64([9])]),
        Sample([bools([True, True]), i32([1]), bools([False])]),
        Sample([literal("uint16", [1, 2, 3]), i64([2]), literal("uint16", [9])]),
        Sample([i64([2**62, 2, 3]), i64([0, 0, 0, 2]), i64([2**62, 7, -1, 4])], {"reduction": "add"}, opset=18),
        Sample([i32([[3, 4]]), i64([[1, 1, 0]]), i32([[2**30, -2, 5]])], {"axis": 1, "reduction": "mul"}, opset=18),
        Sample([i64([3, -(2**40)]), i64([1, 1, 0]), i64([-5, -(2**41), 4])], {"reduction": "max"}, opset=18),
        Sample([i32([3, -5]), i32([1, 1, 0]), i32([-7, 9, 4])], {"reduction": "min"}, opset=18),
        Sample(
            [literal("uint8", [250, 2]), i64([0, 0, 1]), literal("uint8", [9, 255, 3])], {"reduction": "add"}, opset=18
        ),
        Sample(
            [literal("uint64", [5, 2**63]), i64([0, 1]), literal("uint64", [2**63, 1])], {"reduction": "max"}, opset=18
        ),
    ),
    bad=(
        Bad([(3, 4), i64([[4]]), (1, 1)], {"axis": 1}),
        Bad([(3, 4), i64([[0, 1]]), (1, 1)]),
        Bad([(3, 4), i64([[0]]), (1, 1)], {"reduction": "mean"}),
        Bad([(3, 4), i64([[0]]), i64([[1]])]),
        Bad([bools([True]), i64([0]), bools([True])], {"reduction": "add"}, UnsupportedError, opset=18),
        Bad([(3, 4), i64([0]), (1,)]),
    ),
)

CASES[index.Scatter] = Cases(
    samples=(
        Sample([(3, 4), i64([[1, 3]]), (1, 2)], {"axis": 1}, opset=10),
        Sample([(3, 2, 4), i64([[[2, -3, 0, 1]]]), (1, 1, 4)], opset=9),
    ),
    bad=(Bad([(3, 4), i64([[4]]), (1, 1)], {"axis": 1}, opset=10),),
)

CASES[index.GatherND] = Cases(
    samples=(
        Sample([(3, 4), i64([[0, 1], [2, -1]])]),
        Sample([(3, 4), i64([[0], [2], [0]])]),
        Sample([(2, 3, 4), i64([[1, 0], [2, 3]])], {"batch_dims": 1}),
        Sample([(2, 3, 4), i64([[[1]], [[0]]])]),
        Sample([i64([5, 6, 7]), i64([[2], [0]])]),
    ),
    bad=(
        Bad([(3, 4), i64([[0, 4]])]),
        Bad([(3, 4), i64([[0, 1, 0]])]),
        Bad([(3, 4), i64(0)]),
        Bad([(2, 3), i64([[0]])], {"batch_dims": 1}),
        Bad([(3, 4), i64([[0]])], {"batch_dims": 2}),
        Bad([(3,), f32([[0.0]])]),
    ),
)

CASES[index.GatherNDGrad] = Cases(
    samples=(
        Sample([i64([3, 4]), i64([[0, 1], [2, -1]]), (2,)]),
        Sample([i64([3, 4]), i64([[0], [2], [0]]), (3, 4)]),
        Sample([i64([2, 3, 4]), i64([[1, 0], [2, 3]]), (2,)], {"batch_dims": 1}),
    ),
    bad=(Bad([i64([3, 4]), i64([[0, 4]]), (1,)]), Bad([i64([3, 4]), i64([[0, 1]]), (2,)])),
)

CASES[index.ScatterND] = Cases(
    samples=(
        Sample([(3, 4), i64([[0], [2]]), (2, 4)]),
        Sample([(3, 4), i64([[0, 1], [2, -1]]), (2,)]),
        Sample([(3, 4), i64([[1], [1]]), (2, 4)], {"reduction": "add"}, opset=18),
        Sample([(3, 4), i64([[1], [1]]), (2, 4)], {"reduction": "mul"}, opset=18),
        Sample([(3, 4), i64([[1], [1]]), (2, 4)], {"reduction": "max"}, opset=18),
        Sample([(3, 4), i64([[1], [0]]), (2, 4)], {"reduction": "min"}, opset=18),
        Sample([i64([1, 2, 3]), i64([[2]]), i64([9])]),
        Sample(
            [i64([[1, 2], [3, 4]]), i64([[1], [1]]), i64([[5, 2**62], [2**62, 2**62]])], {"reduction": "add"}, opset=18
        ),
        Sample([i32([[1, 2, 3]]), i64([[0, 1], [0, 1]]), i32([2**30, 6])], {"reduction": "mul"}, opset=18),
        Sample([i32([[1, -2, 3]]), i64([[0], [0]]), i32([[4, -5, -6], [0, 7, -9]])], {"reduction": "max"}, opset=18),
        Sample([i64([4, 2**40]), i64([[1], [0]]), i64([2**41, -1])], {"reduction": "min"}, opset=18),
        Sample(
            [literal("int8", [100, -100]), i64([[0], [1]]), literal("int8", [100, 3])], {"reduction": "mul"}, opset=18
        ),
        Sample(
            [literal("uint64", [5, 2**63]), i64([[0], [1]]), literal("uint64", [2**63, 1])],
            {"reduction": "min"},
            opset=18,
        ),
    ),
    bad=(
        Bad([(3, 4), i64([[3]]), (1, 4)]),
        Bad([bools([True]), i64([[0]]), bools([True])], {"reduction": "max"}, UnsupportedError, opset=18),
        Bad([(3, 4), i64([[0]]), (1, 3)]),
        Bad([(3, 4), i64([[0]]), i64([[1] * 4])]),
        Bad([(3, 4), i64([[0]]), (1, 4)], {"reduction": "mean"}),
    ),
)

CASES[index.OneHot] = Cases(
    samples=(
        Sample([i64([0, 2, -1, 5]), i64(3), f32([0.0, 1.0])]),
        Sample([i64([[0, 1], [2, 2]]), i64([3]), (2,)], {"axis": 1}),
        Sample([f32([0.0, 2.0]), f32(3.0), i64([5, 9])]),
        Sample([i32([1, 0]), i64(2), bools([False, True])], {"axis": 0}),
        Sample([literal("uint8", [1, 250]), i64(251), f32([0.5, 2.0])]),
        Sample([literal("int16", [-1, 1]), i64(3), i64([0, 1])]),
        Sample([i64([0, 2]), f32(3.0), (2,)]),
    ),
    bad=(
        Bad([i64([0]), i64(-1), (2,)]),
        Bad([i64([0]), i64(3), (3,)]),
        Bad([i64([0]), i64(3), (2,)], {"axis": 2}),
        Bad([i64([0]), i64([3, 4]), (2,)]),
    ),
)


def numpy_tuples(indices: Any, batch: int) -> tuple[Any, ...]:
    """An index for numpy that picks the slices."""
    grids = [
        np.arange(indices.shape[d]).reshape([-1 if k == d else 1 for k in range(indices.ndim - 1)])
        for d in range(batch)
    ]
    return (*grids, *(indices[..., k] for k in range(indices.shape[-1])))


@reference(index.GatherGrad)
def gather_grad(op: index.GatherGrad, shape: Any, indices: Any, dy: Any) -> Any:
    dx = np.zeros([int(d) for d in shape])
    axis = op.axis % dx.ndim
    rows = np.moveaxis(dx, axis, 0)
    taken = np.moveaxis(dy, range(axis, axis + indices.ndim), range(indices.ndim))
    np.add.at(rows, indices, taken)
    return dx


@reference(index.GatherElementsGrad)
def gather_elements_grad(op: index.GatherElementsGrad, dy: Any, shape: Any, indices: Any) -> Any:
    dx, places = np.zeros([int(d) for d in shape]), list(np.indices(indices.shape))
    places[op.axis] = indices
    np.add.at(dx, tuple(places), dy)
    return dx


@reference(index.GatherNDGrad)
def gather_nd_grad(op: index.GatherNDGrad, shape: Any, indices: Any, dy: Any) -> Any:
    dx = np.zeros([int(d) for d in shape])
    np.add.at(dx, numpy_tuples(indices, op.batch_dims), dy)
    return dx
