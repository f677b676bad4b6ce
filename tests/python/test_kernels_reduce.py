"""Reductions against float64; errors must grow with log n, not n."""

from __future__ import annotations

import numpy as np
import pytest
from tests.each import over
from tests.python.plan_builder import PlanFailed, run_kernel

from trainweb.backend.wasm.engine import Engine

OPS = ("sum", "mean", "max", "min", "prod", "sum_squares", "sum_abs", "log_sum_exp", "norm", "log_sum")
SHAPES = [
    (1, 1, 1),
    (3, 7, 1),
    (5, 257, 1),
    (2, 5000, 1),
    (1, 1000, 3),
    (2, 33, 5),
    (3, 100, 64),
    (1, 70, 131),
    (40, 3, 200),
    (2, 0, 3),
    (0, 3, 2),
    (700, 90, 1),
]


def exact(x: np.ndarray, op: str) -> np.ndarray:
    x = x.astype(np.float64)
    if op in ("max", "min") and x.shape[1] == 0:
        return np.full((x.shape[0], x.shape[2]), -np.inf if op == "max" else np.inf)
    with np.errstate(all="ignore"):
        if op == "log_sum_exp":
            shift = x.max(axis=1, keepdims=True, initial=-np.inf)
            shift[~np.isfinite(shift)] = 0
            return np.log(np.exp(x - shift).sum(axis=1)) + shift[:, 0]
        return {
            "sum": lambda: x.sum(axis=1),
            "mean": lambda: x.sum(axis=1) / x.shape[1] if x.shape[1] else np.full_like(x.sum(axis=1), np.nan),
            "max": lambda: x.max(axis=1),
            "min": lambda: x.min(axis=1),
            "prod": lambda: x.prod(axis=1),
            "sum_squares": lambda: (x * x).sum(axis=1),
            "sum_abs": lambda: np.abs(x).sum(axis=1),
            "norm": lambda: np.sqrt((x * x).sum(axis=1)),
            "log_sum": lambda: np.log(x.sum(axis=1)),
        }[op]()


def reduce(engine: Engine, x: np.ndarray, op: str) -> np.ndarray:
    outer, n, inner = x.shape
    y = np.zeros((outer, inner), np.float32)
    return run_kernel(engine, "reduce_f32", x=x, y=y, outer=outer, n=n, inner=inner, op=OPS.index(op))["y"]


@pytest.mark.parametrize("op", OPS)
@over("shape", SHAPES)
def test_reductions(engine: Engine, op: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(np.float32)
    if op == "log_sum":
        x = np.abs(x)
    if op == "prod":
        x = np.exp(x * 0.05).astype(np.float32)
    rtol = {"prod": 1e-7 * max(20, 0.2 * shape[1])}.get(op, 1e-6)
    size = np.abs(x.astype(np.float64)).sum(axis=1)
    atol = size * (20 + np.log2(shape[1] + 1)) * 2.0**-24 if op in ("sum", "mean") else 2e-6
    if op == "mean":
        atol = atol / max(1, shape[1])
    expected = exact(x, op)
    with np.errstate(invalid="ignore"):
        difference = np.abs(reduce(engine, x, op) - expected)
        wrong = difference > atol + rtol * np.abs(expected) * (op not in ("sum", "mean"))
    assert not wrong.any(), (difference[wrong], expected[wrong])
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(reduce(engine, x, op)))


def test_errors_grow_with_log_n(engine: Engine) -> None:
    n = 1 << 22
    x = np.full((1, n, 1), 0.1, np.float32)
    exact_sum = n * float(np.float32(0.1))
    bound = (20 + 22) * 2.0**-24
    assert abs(reduce(engine, x, "sum")[0, 0] / exact_sum - 1) < bound
    columns = reduce(engine, x.reshape(1, n // 8, 8), "sum")
    assert np.abs(columns * 8 / exact_sum - 1).max() < bound


def test_nan_and_infinity_get_through(engine: Engine) -> None:
    x = np.zeros((1, 40, 5), np.float32)
    x[0, 3, 1], x[0, 17, 2], x[0, 5, 3] = np.nan, np.inf, -np.inf
    for shape in ((1, 40, 5), (1, 200, 1)):
        with np.errstate(invalid="ignore"):
            for op in ("sum", "max", "min"):
                np.testing.assert_array_equal(
                    np.isnan(reduce(engine, x.reshape(shape), op)), np.isnan(exact(x.reshape(shape), op))
                )
    lse = reduce(engine, x[..., 2:4], "log_sum_exp")
    np.testing.assert_allclose(lse, [[np.inf, np.log(39)]], rtol=1e-6)
    nothing = np.full((1, 4, 1), -np.inf, np.float32)
    assert reduce(engine, nothing, "log_sum_exp") == -np.inf


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@over("shape", [(2, 5, 3), (3, 1, 1), (1, 100, 1), (2, 0, 2)])
def test_integer_reductions(engine: Engine, dtype: type, shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(5).integers(-9, 9, shape).astype(dtype)
    for op, function in ((0, np.sum), (2, np.max), (3, np.min), (4, np.prod)):
        args = {
            "x": x,
            "y": np.zeros((shape[0], shape[2]), dtype),
            "outer": shape[0],
            "n": shape[1],
            "inner": shape[2],
            "size": x.itemsize,
            "op": op,
        }
        if shape[1] == 0 and op in (2, 3):
            with pytest.raises(PlanFailed, match="TW_BAD_CONDITION"):
                run_kernel(engine, "reduce_int", **args)
        else:
            np.testing.assert_array_equal(
                run_kernel(engine, "reduce_int", **args)["y"],
                function(x, axis=1, dtype=dtype) if op in (0, 4) else function(x, axis=1),
            )


@pytest.mark.parametrize("shape", [(4, 9, 1), (2, 6, 5), (1, 1, 3)])
def test_arg_reductions(engine: Engine, shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(6).integers(0, 4, shape).astype(np.float32)
    for array in (x, np.where(np.random.default_rng(7).random(shape) < 0.2, np.nan, x).astype(np.float32)):
        for select_max, function in ((1, np.argmax), (0, np.argmin)):
            for last in (0, 1):
                expected = function(array, axis=1)
                if last:
                    expected = shape[1] - 1 - function(array[:, ::-1], axis=1)
                actual = run_kernel(
                    engine,
                    "arg_reduce_f32",
                    x=array,
                    y=np.zeros((shape[0], shape[2]), np.int64),
                    outer=shape[0],
                    n=shape[1],
                    inner=shape[2],
                    select_max=select_max,
                    last_index=last,
                )["y"]
                np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumsum(engine: Engine, exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(8).standard_normal((3, 50, 4)).astype(np.float32)
    y = x.astype(np.float64)
    if reverse:
        y = y[:, ::-1]
    y = np.cumsum(y, axis=1) - (y if exclusive else 0)
    if reverse:
        y = y[:, ::-1]
    actual = run_kernel(
        engine, "cumsum_f32", x=x, y=np.zeros_like(x), outer=3, n=50, inner=4, exclusive=exclusive, reverse=reverse
    )["y"]
    np.testing.assert_allclose(actual, y, rtol=1e-6, atol=1e-6)
