"""The pooling kernels against windows gathered in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.kernel_cases import BUILDS, assert_close_sum, random, runner
from tests.python.kernel_runner import KernelError

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Pool:
    """Shapes of one pooling; axes are (depth, height, width)."""

    planes: int
    size: Triple
    kernel: Triple
    stride: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)
    pad_end: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    ceil_mode: bool = False

    @property
    def out(self) -> Triple:
        result = []
        axes = zip(self.size, self.kernel, self.stride, self.pad, self.pad_end, self.dilation, strict=True)
        for size, k, s, p, e, d in axes:
            room = size + p + e - d * (k - 1) - 1
            n = (-(-room // s) if self.ceil_mode else room // s) + 1
            # A window that starts in the padding at the end is dropped.
            result.append(n - 1 if (n - 1) * s >= size + p else n)
        return tuple(result)  # type: ignore[return-value]

    @property
    def words(self) -> dict[str, Any]:
        return {
            "planes": self.planes,
            "size": self.size,
            "kernel": self.kernel,
            "out": self.out,
            "stride": self.stride,
            "dilation": self.dilation,
            "pad": self.pad,
        }

    def windows(self, outside_is_counted: bool) -> list[tuple[tuple[int, ...], list[int], int]]:
        """(output, flat positions inside the plane, divisor) for every output."""
        result = []
        for o in product(*map(range, self.out)):
            inside, counted = [], 0
            for tap in product(*map(range, self.kernel)):
                at = [
                    i * s - p + t * d
                    for i, s, p, t, d in zip(o, self.stride, self.pad, tap, self.dilation, strict=True)
                ]
                if all(0 <= i < n for i, n in zip(at, self.size, strict=True)):
                    inside.append(int(np.ravel_multi_index(at, self.size)))
                counted += all(
                    -p <= i < n + e for i, n, p, e in zip(at, self.size, self.pad, self.pad_end, strict=True)
                )
            result.append((o, inside, counted if outside_is_counted else len(inside)))
        return result


def pool2d(planes: int, h: int, w: int, k: int, s: int, p: int = 0, d: int = 1, ceil_mode: bool = False) -> Pool:
    return Pool(planes, (1, h, w), (1, k, k), (1, s, s), (0, p, p), (0, p, p), (1, d, d), ceil_mode)


CASES = {
    "2x2": pool2d(5, 8, 8, 2, 2),
    "2x2_odd": pool2d(3, 9, 11, 2, 2),
    "2x2_28": pool2d(2, 28, 28, 2, 2),
    "2x2_one_column": pool2d(3, 6, 2, 2, 2),
    "2x2_ceil": pool2d(2, 7, 9, 2, 2, ceil_mode=True),
    "2x2_in_depth": Pool(2, (3, 7, 13), (1, 2, 2), (1, 2, 2)),
    "2x2_overlapping": pool2d(2, 6, 7, 2, 1),
    "3x3_stride2_padded": pool2d(2, 11, 10, 3, 2, 1),
    "3x3_same": pool2d(2, 5, 6, 3, 1, 1),
    "3x3_ceil_padded": pool2d(2, 8, 8, 3, 3, 1, ceil_mode=True),
    "3x3_gaps": pool2d(2, 14, 13, 3, 5),
    "wide": Pool(2, (1, 3, 610), (1, 2, 3), (1, 1, 2), (0, 0, 1), (0, 0, 1)),
    "wide_stride3": Pool(2, (1, 2, 800), (1, 1, 4), (1, 1, 3), (0, 0, 2), (0, 0, 0)),
    "wide_stride1_dilated": Pool(1, (1, 2, 530), (1, 1, 3), (1, 1, 1), (0, 0, 4), (0, 0, 4), (1, 1, 4)),
    "dilated": pool2d(2, 12, 13, 3, 2, 1, d=2),
    "asymmetric": Pool(2, (1, 7, 8), (1, 3, 4), (1, 2, 3), (0, 1, 0), (0, 0, 2)),
    "1d": Pool(3, (1, 1, 20), (1, 1, 3), (1, 1, 2), (0, 0, 1), (0, 0, 0)),
    "3d": Pool(2, (4, 5, 6), (2, 3, 2), (2, 1, 2), (0, 1, 1), (1, 1, 0)),
    "global": Pool(6, (1, 9, 7), (1, 9, 7)),
    "global_3d": Pool(2, (3, 4, 5), (3, 4, 5)),
    "pointwise": pool2d(2, 5, 5, 1, 1),
    "many_planes": pool2d(200, 12, 12, 2, 2),
    "no_planes": pool2d(0, 6, 6, 2, 2),
}


def max_reference(pool: Pool, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.full((pool.planes, *pool.out), -np.inf, np.float32)
    indices = np.full(y.shape, -1, np.int64)
    flat = x.reshape(pool.planes, int(np.prod(pool.size)))
    for o, inside, _ in pool.windows(False):
        if inside and pool.planes:
            # argmax takes the first of equals, and the first NaN before anything else.
            pick = np.array(inside)[flat[:, inside].argmax(1)]
            indices[(slice(None), *o)] = pick + np.arange(pool.planes) * flat.shape[1]
            y[(slice(None), *o)] = flat[np.arange(pool.planes), pick]
    return y, indices


def run_max(build: str, pool: Pool, x: np.ndarray, with_indices: bool, last: str) -> tuple[np.ndarray, np.ndarray]:
    shape = (pool.planes, *pool.out)
    indices = np.full(shape, 77, np.int64) if with_indices else None
    args = {"x": x, "y": np.full(shape, np.nan, np.float32), "indices": indices, **pool.words}
    got = runner(build).run("max_pool_f32", args, last=last)
    return got["y"], got.get("indices")


@pytest.mark.parametrize("build", BUILDS)
@over("name", CASES)
def test_max_pool_and_its_indices(build: str, name: str) -> None:
    pool = CASES[name]
    x = random(pool.planes, *pool.size)
    # Few distinct values, so that maxima are often equal.
    for data in (x, np.round(x), np.full_like(x, -np.inf)):
        y, indices = max_reference(pool, data)
        for last in ("x", "y", "indices"):
            got_y, got_indices = run_max(build, pool, data, True, last)
            np.testing.assert_array_equal(got_y, y)
            np.testing.assert_array_equal(got_indices, indices)
        np.testing.assert_array_equal(run_max(build, pool, data, False, "y")[0], y)


@pytest.mark.parametrize("name", ["2x2", "2x2_odd", "3x3_stride2_padded", "3x3_same", "global"])
def test_max_pool_passes_nan_on(name: str) -> None:
    pool = CASES[name]
    x = random(pool.planes, *pool.size)
    x[random(*x.shape, seed=9) > 1] = np.nan
    y, indices = max_reference(pool, x)
    got_y, got_indices = run_max("kernels.relaxed", pool, x, True, "")
    np.testing.assert_array_equal(got_y, y)
    np.testing.assert_array_equal(got_indices, indices)
    assert np.isnan(y).any()


def test_a_window_of_padding_alone_has_no_index() -> None:
    pool = Pool(1, (1, 1, 3), (1, 1, 2), (1, 1, 1), (0, 0, 3), (0, 0, 3))
    y, indices = run_max("kernels", pool, random(1, 1, 1, 3), True, "")
    assert (y[..., :2] == -np.inf).all() and (indices[..., :2] == -1).all()
    args = {
        "dy": np.ones_like(y),
        "indices": indices,
        "dx": np.zeros((1, 3), np.float32),
        "planes": 1,
        "size": 3,
        "out_size": y.size,
    }
    assert runner("kernels").run("max_pool_gradient_f32", args)["dx"].sum() == (indices >= 0).sum()


@pytest.mark.parametrize("build", BUILDS)
@over("name", CASES)
def test_max_pool_gradient_adds_at_the_maxima(build: str, name: str) -> None:
    pool = CASES[name]
    x, dy = random(pool.planes, *pool.size), random(pool.planes, *pool.out, seed=2)
    _, indices = max_reference(pool, x)
    size, out_size = int(np.prod(pool.size)), int(np.prod(pool.out))
    want = np.zeros(x.size)
    np.add.at(want, indices.reshape(-1), dy.reshape(-1).astype(np.float64))
    magnitude = np.zeros(x.size)
    np.add.at(magnitude, indices.reshape(-1), abs(dy).reshape(-1))
    for last in ("dy", "indices", "dx"):
        args = {
            "dy": dy,
            "indices": indices,
            "dx": np.full_like(x, np.nan),
            "planes": pool.planes,
            "size": size,
            "out_size": out_size,
        }
        got = runner(build).run("max_pool_gradient_f32", args, last=last)["dx"]
        assert_close_sum(got.reshape(-1), want, magnitude, int(np.prod(pool.kernel)))


@pytest.mark.parametrize("bad", [-2, 24, 12, 1 << 40, -(1 << 63)])
def test_an_index_outside_its_plane_is_refused(bad: int) -> None:
    indices = np.array([0, 5, 11, 23], np.int64)
    indices[1] = bad
    args = {"dy": random(4), "indices": indices, "dx": random(24), "planes": 2, "size": 12, "out_size": 2}
    with pytest.raises(KernelError, match=rf"TW_BAD_INDEX.*value {bad}, at 1"):
        runner("kernels").run("max_pool_gradient_f32", args)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("include_pad", [0, 1])
@over("name", CASES)
def test_average_pool(build: str, name: str, include_pad: int) -> None:
    pool = CASES[name]
    x = random(pool.planes, *pool.size)
    flat = x.reshape(pool.planes, int(np.prod(pool.size))).astype(np.float64)
    want, magnitude = np.zeros((2, pool.planes, *pool.out))
    for o, inside, count in pool.windows(bool(include_pad)):
        want[(slice(None), *o)] = flat[:, inside].sum(1) / max(1, count)
        magnitude[(slice(None), *o)] = abs(flat[:, inside]).sum(1) / max(1, count)
    for last in ("x", "y"):
        args = {
            "x": x,
            "y": np.full(want.shape, np.nan, np.float32),
            "count_include_pad": include_pad,
            "pad_end": pool.pad_end,
            **pool.words,
        }
        got = runner(build).run("average_pool_f32", args, last=last)["y"]
        assert_close_sum(got, want, magnitude, int(np.prod(pool.kernel)) + 1)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("include_pad", [0, 1])
@over("name", CASES)
def test_average_pool_gradient(build: str, name: str, include_pad: int) -> None:
    pool = CASES[name]
    dy = random(pool.planes, *pool.out)
    want, magnitude = np.zeros((2, pool.planes, int(np.prod(pool.size))))
    for o, inside, count in pool.windows(bool(include_pad)):
        share = dy[(slice(None), *o)].astype(np.float64)[:, None] / max(1, count)
        want[:, inside] += share
        magnitude[:, inside] += abs(share)
    for last in ("dy", "dx"):
        dx = np.full((pool.planes, *pool.size), np.nan, np.float32)
        args = {"dy": dy, "dx": dx, "count_include_pad": include_pad, "pad_end": pool.pad_end, **pool.words}
        got = runner(build).run("average_pool_gradient_f32", args, last=last)["dx"]
        assert_close_sum(got.reshape(want.shape), want, magnitude, int(np.prod(pool.kernel)) + 1)
