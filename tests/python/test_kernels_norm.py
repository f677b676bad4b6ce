"""Normalisation against float64, also far from zero mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.plan_builder import run_kernel

from trainweb.backend.wasm.engine import Engine

EPSILON = 1e-5


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(actual - expected).max(initial=0) <= tolerance * scale, np.abs(actual - expected).max() / scale


def draw(shape: tuple[int, ...], mean: float) -> list[np.ndarray]:
    rng = np.random.default_rng(shape[0])
    return [(rng.standard_normal(shape) + m).astype(np.float32) for m in (mean, 0)]


@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("affine", ["", "scale", "bias", "scale bias"])
@over("rows, n", [(1, 1), (3, 5), (64, 128), (7, 1023), (2000, 64), (0, 4), (33, 768)])
def test_layer_norm(engine: Engine, rows: int, n: int, mean: float, rms: int, affine: str) -> None:
    x, dy = draw((rows, n), mean)
    rng = np.random.default_rng(1)
    scale, bias = (rng.standard_normal(n).astype(np.float32) if name in affine else None for name in ("scale", "bias"))
    xd, g = x.astype(np.float64), dy.astype(np.float64)
    center = 0 if rms else xd.mean(axis=1, keepdims=True)
    inv = 1 / np.sqrt(((xd - center) ** 2).mean(axis=1, keepdims=True) + EPSILON)
    xh = (xd - center) * inv
    y = xh * (1 if scale is None else scale) + (0 if bias is None else bias)
    zeros = np.zeros_like
    result = run_kernel(
        engine,
        "layer_norm_f32",
        x=x,
        scale=scale,
        bias=bias,
        y=zeros(x),
        mean=np.zeros(rows, np.float32),
        inv_std=np.zeros(rows, np.float32),
        rows=rows,
        n=n,
        epsilon=EPSILON,
        rms=rms,
    )
    tolerance = 1e-5 + (2.0**-24 * mean if not rms else 0) * (300 if n == 1 else 1)
    close(result["y"], y, tolerance)
    np.testing.assert_allclose(result["inv_std"], inv[:, 0], rtol=1e-5)
    d = g * (1 if scale is None else scale)
    dx = inv * (d - (0 if rms else d.mean(axis=1, keepdims=True)) - xh * (d * xh).mean(axis=1, keepdims=True))
    operands = dict(dy=dy, x=x, scale=scale, mean=None if rms else result["mean"], inv_std=result["inv_std"])
    parameters = dict(dscale=np.zeros(n, np.float32), dbias=np.zeros(n, np.float32))
    dims = dict(rows=rows, n=n, rms=rms)
    gradients = run_kernel(engine, "layer_norm_grad_f32", dx=zeros(x), **operands, **parameters, **dims)
    alone = run_kernel(engine, "layer_norm_grad_f32", dx=None, **operands, **parameters, **dims)
    alone |= run_kernel(engine, "layer_norm_grad_f32", dx=zeros(x), **operands, dscale=None, dbias=None, **dims)
    np.testing.assert_array_equal(alone["dx"], gradients["dx"])
    for name in parameters:
        close(alone[name], gradients[name].astype(np.float64), 3e-5)
    if n > 1:
        close(gradients["dx"], dx, 3e-5 + 2.0**-22 * mean)
    close(gradients["dscale"], (g * xh).sum(axis=0), 3e-5 + 2.0**-22 * mean)
    close(gradients["dbias"], g.sum(axis=0), 3e-5)


@pytest.mark.parametrize(
    ("batch", "channels", "size"),
    [(1, 1, 1), (16, 3, 1), (70, 130, 1), (4, 5, 2), (8, 16, 49), (2, 7, 1024), (64, 40, 16)],
)
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_batch_norm(engine: Engine, batch: int, channels: int, size: int, mean: float) -> None:
    x, dy = draw((batch, channels, size), mean)
    rng = np.random.default_rng(2)
    scale, bias, running_mean, running_var = (rng.random(channels).astype(np.float32) for _ in range(4))
    xd, g = x.astype(np.float64), dy.astype(np.float64)

    def per_channel(v: Any) -> np.ndarray:
        return np.asarray(v, np.float64)[None, :, None]

    m, var = xd.mean(axis=(0, 2)), xd.var(axis=(0, 2))
    inv = 1 / np.sqrt(var + EPSILON)
    xh = (xd - per_channel(m)) * per_channel(inv)
    dims = {"batch": batch, "channels": channels, "size": size}
    empty = np.zeros(channels, np.float32)
    result = run_kernel(
        engine,
        "batch_norm_train_f32",
        x=x,
        scale=scale,
        bias=bias,
        y=np.zeros_like(x),
        mean=empty,
        inv_std=empty,
        running_mean=running_mean,
        running_var=running_var,
        epsilon=EPSILON,
        momentum=0.9,
        **dims,
    )
    alone = batch * size == 1
    tolerance = 1e-5 + 2.0**-23 * mean * (300 if alone else 1)
    close(result["y"], xh * per_channel(scale) + per_channel(bias), tolerance)
    np.testing.assert_allclose(result["running_mean"], 0.9 * running_mean + 0.1 * m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["running_var"], 0.9 * running_var + 0.1 * var, rtol=1e-5, atol=1e-6)
    dx = per_channel(scale * inv) * (
        g - per_channel(g.mean(axis=(0, 2))) - xh * per_channel((g * xh).mean(axis=(0, 2)))
    )
    common = dict(
        engine=engine,
        name="batch_norm_grad_f32",
        dy=dy,
        x=x,
        scale=scale,
        mean=result["mean"],
        inv_std=result["inv_std"],
        dx=np.zeros_like(x),
        dscale=empty,
        dbias=empty,
        **dims,
    )
    gradients = run_kernel(frozen=0, **common)
    if not alone:
        close(gradients["dx"], dx, 3e-5 + 2.0**-22 * mean)
    close(gradients["dscale"], (g * xh).sum(axis=(0, 2)), 3e-5 + 2.0**-20 * mean)
    close(gradients["dbias"], g.sum(axis=(0, 2)), 3e-5)
    frozen = run_kernel(frozen=1, **common)["dx"]
    np.testing.assert_allclose(frozen, per_channel(scale) * per_channel(inv) * g, rtol=1e-5)
    y = run_kernel(
        engine,
        "batch_norm_f32",
        x=x,
        scale=scale,
        bias=bias,
        mean=running_mean,
        var=running_var,
        y=np.zeros_like(x),
        epsilon=EPSILON,
        **dims,
    )["y"]
    expected = (xd - per_channel(running_mean)) / np.sqrt(per_channel(running_var) + EPSILON)
    close(y, expected * per_channel(scale) + per_channel(bias), 1e-6)


@pytest.mark.parametrize(
    ("batch", "channels", "groups", "size"),
    [(1, 1, 1, 1), (3, 6, 2, 1), (4, 6, 3, 2), (2, 12, 4, 49), (5, 7, 7, 64), (2, 8, 1, 1021), (0, 4, 2, 3)],
)
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_group_norm(engine: Engine, batch: int, channels: int, groups: int, size: int, mean: float) -> None:
    x, dy = draw((batch, channels, size), mean)
    scale, bias = np.random.default_rng(3).standard_normal((2, channels)).astype(np.float32)
    rows = x.astype(np.float64).reshape(batch, groups, channels // groups * size)
    inv = 1 / np.sqrt(rows.var(axis=2, keepdims=True) + EPSILON)
    xh = (rows - rows.mean(axis=2, keepdims=True)) * inv
    dims = {"batch": batch, "channels": channels, "size": size, "groups": groups, "epsilon": EPSILON}
    y = run_kernel(engine, "group_norm_f32", x=x, scale=scale, bias=bias, y=np.zeros_like(x), **dims)["y"]
    few, offset = rows.shape[2] < 3, 2.0**-23 * mean * float(inv.max(initial=0))
    close(y, xh.reshape(x.shape) * scale[:, None] + bias[:, None], 1e-5 + offset)
    empty = np.zeros(channels, np.float32)
    gradients = run_kernel(
        engine, "group_norm_grad_f32", dy=dy, x=x, scale=scale, dx=np.zeros_like(x), dscale=empty, dbias=empty, **dims
    )
    g = (dy.astype(np.float64) * scale[:, None]).reshape(rows.shape)
    dx = inv * (g - g.mean(axis=2, keepdims=True) - xh * (g * xh).mean(axis=2, keepdims=True))
    if not few:
        close(gradients["dx"], dx.reshape(x.shape), 3e-5 + 4 * offset)
    close(gradients["dscale"], (dy * xh.reshape(x.shape)).sum(axis=(0, 2)), 3e-5 + 4 * offset)
    close(gradients["dbias"], dy.astype(np.float64).sum(axis=(0, 2)), 3e-5)
