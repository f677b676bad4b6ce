"""Copies and strided views: exact, and nothing written outside the view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.python.plan_builder import PlanFailed, run_kernel

from trainweb.backend.wasm.engine import Engine

RNG = np.random.default_rng(0)


def padded(values: Any, fill: int) -> list[int]:
    """Eight numbers, `fill` in front."""
    values = [int(v) for v in values]
    return [fill] * (8 - len(values)) + values


def element_strides(view: np.ndarray) -> list[int]:
    return padded([s // view.itemsize for s in view.strides], 0)


def offset_in(base: np.ndarray, view: np.ndarray) -> int:
    """Position of a view's first element in its base."""
    address = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return address // base.itemsize


def strided_copy(engine: Engine, src: np.ndarray, view: np.ndarray, dst: np.ndarray, target: np.ndarray) -> Any:
    """The kernel's version of target[...] = view, where they are views of src and dst; returns dst."""
    return run_kernel(
        engine,
        "strided_copy",
        src=src,
        dst=dst,
        size=src.itemsize,
        dims=padded(view.shape, 1),
        src_offset=offset_in(src, view),
        src_strides=element_strides(view),
        dst_offset=offset_in(dst, target),
        dst_strides=element_strides(target),
    )["dst"]


@pytest.mark.parametrize("n", [0, 1, 5, 63, 64, 1000, (1 << 20) + 13])
def test_copy(engine: Engine, n: int) -> None:
    x = RNG.integers(0, 256, n, dtype=np.uint8)
    assert (run_kernel(engine, "copy", src=x, dst=np.zeros_like(x), n=n)["dst"] == x).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((5,), (0,)),
        ((4, 8), (1, 0)),
        ((37, 53), (1, 0)),
        ((2, 3, 4), (2, 0, 1)),
        ((3, 17, 2, 19), (0, 2, 1, 3)),
        ((2, 33, 18), (0, 2, 1)),
        ((1, 5, 1, 7), (3, 1, 0, 2)),
        ((2, 3, 1, 2, 3, 2, 1, 2), (7, 5, 3, 1, 0, 2, 4, 6)),
        ((130, 300), (1, 0)),
        ((0, 3), (1, 0)),
    ],
)
def test_transposes(engine: Engine, dtype: Any, shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = RNG.integers(0, 250, shape).astype(dtype)
    y = np.zeros([shape[p] for p in perm], dtype)
    actual = strided_copy(engine, x, x.transpose(perm), y, y)
    np.testing.assert_array_equal(actual, x.transpose(perm))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_slices_and_paddings(engine: Engine, dtype: Any) -> None:
    x = RNG.integers(0, 250, (7, 9, 11)).astype(dtype)
    for key in (np.s_[1:6, ::-1, 2:9], np.s_[::2, 1::3, ::-2], np.s_[6:0:-3, 4:5], np.s_[::-1, ::-1, ::-1]):
        view = x[key]
        out = np.full([d + 3 for d in view.shape], 9, dtype)
        expected = out.copy()
        inner = tuple(slice(1, 1 + d) for d in view.shape)
        expected[inner] = view
        np.testing.assert_array_equal(strided_copy(engine, x, view, out, out[inner]), expected)


def test_broadcasts(engine: Engine) -> None:
    x = RNG.standard_normal((1, 5, 1)).astype(np.float32)
    view = np.broadcast_to(x, (3, 5, 6))
    y = np.zeros(view.shape, np.float32)
    np.testing.assert_array_equal(strided_copy(engine, x, view, y, y), view)


def test_views_outside_the_buffers_are_refused(engine: Engine) -> None:
    x, y = np.zeros(10, np.float32), np.zeros(10, np.float32)
    good: dict[str, Any] = {
        "size": 4,
        "dims": padded([5], 1),
        "src_offset": 0,
        "src_strides": padded([2], 0),
        "dst_offset": 0,
        "dst_strides": padded([1], 0),
    }
    run_kernel(engine, "strided_copy", src=x, dst=y, **good)
    for bad, name in (
        ({"src_offset": 2}, "TW_BAD_EXTENT"),
        ({"src_strides": padded([-1], 0)}, "TW_BAD_CONDITION"),
        ({"dst_offset": 6}, "TW_BAD_EXTENT"),
        ({"dst_strides": padded([-2], 0), "dst_offset": 7}, "TW_BAD_CONDITION"),
        ({"dims": padded([2**30, 2**30, 2**30], 1)}, "TW_BAD_CONDITION"),
        ({"size": 3}, "TW_BAD_CONDITION"),
        ({"src_offset": -1}, "TW_BAD_ARGUMENT"),
    ):
        with pytest.raises(PlanFailed) as failure:
            run_kernel(engine, "strided_copy", src=x, dst=y, **{**good, **bad})
        assert failure.value.name == name, bad
