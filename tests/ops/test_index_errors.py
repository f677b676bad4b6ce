"""Indices that are only known at run time: the kernels refuse those out of bounds, and touch nothing outside."""

from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import feeds_of, materialize, run, single_node

from trainweb.errors import FeedError
from trainweb.ops.frame.op import find

CASES: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "Gather": ([(5, 3), (4,)], {}, 1),
    "GatherElements": ([(5, 3), (4, 3)], {}, 1),
    "GatherND": ([(5, 3), (4, 1)], {}, 1),
    "ScatterElements": ([(5, 3), (4, 3), (4, 3)], {}, 1),
    "ScatterND": ([(5, 3), (4, 1), (4, 3)], {}, 1),
}
"""Inputs, attributes, which input has the indices; the indexed dimension has 5 elements."""
SIZE = 5


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("index", [SIZE, -SIZE - 1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", CASES)
def test_a_fed_index_out_of_range_is_a_feed_error_that_names_it(name: str, index: int, dtype: type) -> None:
    shapes, attrs, at = CASES[name]
    arrays = materialize(shapes, name)
    arrays[at] = np.zeros(shapes[at], dtype)
    arrays[at].flat[2] = index  # type: ignore[union-attr]
    cls = find("", name)
    assert cls is not None
    graph = single_node(cls, arrays, attrs, 17)
    with pytest.raises(FeedError, match=str(index)):
        run(graph, feeds_of(graph, arrays))


@pytest.mark.parametrize("name", CASES)
def test_a_64_bit_index_is_not_cut_to_32_bits(name: str) -> None:
    shapes, attrs, at = CASES[name]
    arrays = materialize(shapes, name)
    arrays[at] = np.full(shapes[at], 2**32, np.int64)
    cls = find("", name)
    assert cls is not None
    graph = single_node(cls, arrays, attrs, 17)
    with pytest.raises(FeedError, match=str(2**32)):
        run(graph, feeds_of(graph, arrays))


@pytest.mark.parametrize("name", CASES)
def test_negative_indices_count_from_the_end(name: str) -> None:
    shapes, attrs, at = CASES[name]
    cls = find("", name)
    assert cls is not None
    results = []
    for index in (SIZE - 1, -1):
        arrays = materialize(shapes, name)
        arrays[at] = np.full(shapes[at], index, np.int64)
        graph = single_node(cls, arrays, attrs, 17)
        results.append(run(graph, feeds_of(graph, arrays))["y0"])
    last, from_the_end = results
    np.testing.assert_array_equal(last, from_the_end)


def test_a_write_beyond_the_end_of_a_cache_is_refused() -> None:
    arrays = [np.zeros((2, 5, 3), np.float32), np.ones((2, 2, 3), np.float32), np.array([3, 4])]
    cls = find("", "TensorScatter")
    assert cls is not None
    graph = single_node(cls, arrays, {}, 24)
    with pytest.raises(FeedError):
        run(graph, feeds_of(graph, arrays))
    arrays[2] = np.array([3, 0])
    np.testing.assert_array_equal(
        run(graph, feeds_of(graph, arrays))["y0"][:, :, 0], [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]]
    )
