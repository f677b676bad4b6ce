"""Gather and scatter: exact copies, ordered sums, and no index out of range gets through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.plan_builder import PlanFailed, run_kernel

from trainweb.backend.wasm.engine import Engine

RNG = np.random.default_rng(0)
INDEX_DTYPES = [np.int32, np.int64]


def signed_indices(dim: int, shape: Any, dtype: Any) -> np.ndarray:
    return RNG.integers(-dim, dim, shape).astype(dtype)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@over("outer, dim, n, inner", [(1, 5, 7, 1), (3, 4, 2, 6), (2, 9, 300, 80), (1, 3, 0, 4)])
def test_gather(engine: Engine, index_dtype: Any, dtype: Any, outer: int, dim: int, n: int, inner: int) -> None:
    data = RNG.integers(0, 200, (outer, dim, inner)).astype(dtype)
    indices = signed_indices(dim, n, index_dtype)
    y = run_kernel(
        engine,
        "gather",
        data=data,
        indices=indices,
        y=np.zeros((outer, n, inner), dtype),
        outer=outer,
        dim=dim,
        n=n,
        inner=inner * data.itemsize,
        index_size=indices.itemsize,
    )["y"]
    np.testing.assert_array_equal(y, data[:, indices])


@over("outer, dim, n, inner", [(1, 5, 7, 1), (3, 4, 2, 6), (1, 9, 700, 130), (2, 3, 0, 4)])
def test_gather_gradient(engine: Engine, outer: int, dim: int, n: int, inner: int) -> None:
    indices = signed_indices(dim, n, np.int64)
    dy = RNG.standard_normal((outer, n, inner)).astype(np.float32)
    expected = np.zeros((outer, dim, inner), np.float32)
    for i, index in enumerate(indices):
        expected[:, index] += dy[:, i]
    dx = run_kernel(
        engine,
        "gather_grad_f32",
        indices=indices,
        dy=dy,
        dx=np.full_like(expected, np.nan),
        outer=outer,
        dim=dim,
        n=n,
        inner=inner,
        index_size=8,
    )["dx"]
    np.testing.assert_array_equal(dx, expected)


BAD = [(np.int32, 4), (np.int32, -5), (np.int64, 2**62), (np.int64, -(2**63)), (np.int64, 2**32)]


@pytest.mark.parametrize(("dtype", "bad"), BAD)
def test_bad_indices(engine: Engine, dtype: Any, bad: int) -> None:
    indices = np.array([0, 3, bad, -4], dtype)
    size = indices.itemsize
    data, rows = np.zeros((1, 4, 2), np.float32), np.zeros((1, 4, 2), np.float32)
    dims, strides = [1] * 7 + [4], [0] * 8
    nd_dims = [4] + [1] * 7
    calls: list[tuple[str, dict[str, Any]]] = [
        ("gather", {"data": data, "indices": indices, "y": rows, "outer": 1, "dim": 4, "n": 4, "inner": 8}),
        ("gather_grad_f32", {"indices": indices, "dy": rows, "dx": data, "outer": 1, "dim": 4, "n": 4, "inner": 2}),
        (
            "gather_elements",
            {
                "data": data,
                "indices": indices,
                "y": np.zeros(4, np.float32),
                "dims": dims,
                "strides": strides,
                "axis_dim": 4,
                "axis_stride": 1,
                "size": 4,
            },
        ),
        (
            "scatter_elements",
            {
                "updates": np.zeros(4, np.float32),
                "indices": indices,
                "y": data,
                "dims": dims,
                "strides": strides,
                "axis_dim": 4,
                "axis_stride": 1,
                "size": 4,
                "reduction": 0,
                "type": 0,
            },
        ),
        (
            "gather_nd",
            {"data": data, "indices": indices, "y": rows, "batch": 1, "n": 4, "k": 1, "dims": nd_dims, "slice": 8},
        ),
        (
            "scatter_nd",
            {
                "updates": rows,
                "indices": indices,
                "y": data,
                "batch": 1,
                "n": 4,
                "k": 1,
                "dims": nd_dims,
                "slice": 8,
                "reduction": 1,
                "type": 0,
            },
        ),
        ("check_indices", {"indices": indices, "n": 4, "lo": -4, "hi": 4, "has_ignore": 0, "ignore": 0, "label": 0}),
    ]
    for name, args in calls:
        with pytest.raises(PlanFailed) as failure:
            run_kernel(engine, name, index_size=size, **args)
        assert (failure.value.name, failure.value.value, failure.value.position) == ("TW_BAD_INDEX", bad, 2), name


def test_check_indices(engine: Engine) -> None:
    def check(values: list[int], **args: Any) -> None:
        indices = np.array(values, np.int64)
        full = {"n": len(values), "index_size": 8, "lo": 0, "hi": 5, "has_ignore": 0, "ignore": 0, "label": 1} | args
        run_kernel(engine, "check_indices", indices=indices, **full)

    check([0, 4, 2])
    check([])
    check([0, -100], has_ignore=1, ignore=-100)
    with pytest.raises(PlanFailed, match="TW_BAD_LABEL"):
        check([0, -1])
    with pytest.raises(PlanFailed, match="TW_BAD_LABEL"):
        check([5], has_ignore=1, ignore=-1)


def eight(values: Any, fill: int) -> list[int]:
    values = list(values)
    return [fill] * (8 - len(values)) + [int(v) for v in values]


def element_args(data: np.ndarray, indices: np.ndarray, axis: int) -> dict[str, Any]:
    strides = [s // data.itemsize for s in data.strides]
    axis_stride = strides[axis]
    strides[axis] = 0
    return {
        "dims": eight(indices.shape, 1),
        "strides": eight(strides, 0),
        "axis_dim": data.shape[axis],
        "axis_stride": axis_stride,
        "size": data.itemsize,
        "index_size": indices.itemsize,
    }


REDUCED = (np.float32, np.int32, np.int64)
"""Dtypes that the kernels reduce, in the order of their numbers."""


def spread(dtype: Any, shape: Any) -> np.ndarray:
    """Numbers of a dtype: of wide integers such as wrap when they are added, and negative ones."""
    if dtype in (np.int32, np.int64):
        return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)
    return RNG.integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "index_shape", "axis"),
    [((5,), (9,), 0), ((3, 4), (3, 6), 1), ((3, 4, 5), (2, 4, 3), 0), ((2, 3, 4), (1, 5, 4), 1), ((2, 3), (0, 3), 0)],
)
def test_elements(engine: Engine, dtype: Any, shape: Any, index_shape: Any, axis: int) -> None:
    data = spread(dtype, shape)
    indices = signed_indices(shape[axis], index_shape, np.int64)
    part = data[tuple(slice(None) if k == axis else slice(d) for k, d in enumerate(index_shape))]
    expected = np.take_along_axis(part, indices, axis)
    args = element_args(data, indices, axis)
    y = run_kernel(engine, "gather_elements", data=data, indices=indices, y=np.zeros_like(expected), **args)["y"]
    np.testing.assert_array_equal(y, expected)
    updates = spread(dtype, index_shape)
    kind = REDUCED.index(dtype) if dtype in REDUCED else 0
    if dtype is np.float32 and updates.size:
        updates.flat[0] = data.flat[1] = np.nan  # which no maximum or minimum forgets
    for reduction, function in enumerate((None, np.add, np.multiply, np.maximum, np.minimum)):
        words = {"reduction": reduction, "type": kind, **args}
        if reduction and dtype not in REDUCED and data.itemsize != 4:
            with pytest.raises(PlanFailed, match="TW_BAD_CONDITION"):
                run_kernel(engine, "scatter_elements", updates=updates, indices=indices, y=data, **words)
            continue
        want = data.copy()
        for at in np.ndindex(*index_shape):
            to = list(at)
            to[axis] = indices[at]
            with np.errstate(over="ignore"):
                want[tuple(to)] = updates[at] if function is None else function(want[tuple(to)], updates[at])
        got = run_kernel(engine, "scatter_elements", updates=updates, indices=indices, y=data, **words)
        np.testing.assert_array_equal(got["y"], want)


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize(("batch", "dims", "inner", "n"), [(1, (4, 5), 3, 6), (2, (3,), 1, 4), (3, (2, 2, 2), 5, 1)])
def test_tuples(engine: Engine, batch: int, dims: tuple[int, ...], inner: int, n: int, dtype: Any) -> None:
    data = spread(dtype, (batch, *dims, inner))
    k = len(dims)
    indices = np.stack([signed_indices(d, (batch, n), np.int32) for d in dims], axis=-1)
    args = {
        "batch": batch,
        "n": n,
        "k": k,
        "dims": list(dims) + [1] * (8 - k),
        "slice": inner * data.itemsize,
        "index_size": 4,
    }
    expected = np.stack([[data[(b, *indices[b, i])] for i in range(n)] for b in range(batch)])
    y = run_kernel(engine, "gather_nd", data=data, indices=indices, y=np.zeros_like(expected), **args)["y"]
    np.testing.assert_array_equal(y, expected)
    updates = spread(dtype, expected.shape)
    for reduction in range(5):
        want = data.copy()
        for b in range(batch):
            for i in range(n):
                at = (b, *indices[b, i])
                want[at] = (
                    updates[b, i],
                    want[at] + updates[b, i],
                    want[at] * updates[b, i],
                    np.maximum(want[at], updates[b, i]),
                    np.minimum(want[at], updates[b, i]),
                )[reduction]
        got = run_kernel(
            engine,
            "scatter_nd",
            updates=updates,
            indices=indices,
            y=data,
            reduction=reduction,
            type=REDUCED.index(dtype),
            **args,
        )["y"]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_one_hot(engine: Engine, dtype: Any) -> None:
    indices = np.array([[0, 4], [-1, 5], [-5, -6]], np.int64)
    values = np.array([3, 8], dtype)
    y = run_kernel(
        engine,
        "one_hot",
        indices=indices,
        values=values,
        y=np.zeros((3, 5, 2), dtype),
        outer=3,
        depth=5,
        inner=2,
        size=values.itemsize,
        index_size=8,
    )["y"]
    resolved = np.where(indices < 0, indices + 5, indices)
    expected = np.where(np.arange(5)[None, :, None] == resolved[:, None], values[1], values[0])
    np.testing.assert_array_equal(y, expected)
