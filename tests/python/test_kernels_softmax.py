"""Softmax and cross entropy against float64; labels are checked before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.plan_builder import PlanFailed, run_kernel

from trainweb.backend.wasm.engine import Engine

SHAPES = [(3, 10, 1), (1, 1, 1), (40, 33, 1), (2, 5, 7), (3, 4, 4), (1, 50257, 1), (2, 700, 9), (600, 50, 1)]


def sizes(x: np.ndarray) -> dict[str, int]:
    return {"outer": x.shape[0], "n": x.shape[1], "inner": x.shape[2]}


def exact_log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("scale", [1.0, 30.0])
@over("shape", SHAPES)
def test_softmax(engine: Engine, shape: tuple[int, int, int], scale: float) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) * scale).astype(np.float32)
    expected = exact_log_softmax(x)
    below = np.abs(x - x.max(axis=1, keepdims=True)).astype(np.float64)
    y = run_kernel(engine, "softmax_f32", x=x, y=np.zeros_like(x), log=0, **sizes(x))["y"]
    normal = np.exp(expected) > 1e-37
    error = np.abs(y / np.exp(expected) - 1)[normal]
    assert (error < 2e-6 + 2.0**-24 * below[normal]).all()
    assert (y[~normal] < 2e-37).all()
    log_y = run_kernel(engine, "softmax_f32", x=x, y=np.zeros_like(x), log=1, **sizes(x))["y"]
    assert (np.abs(log_y - expected) < 2e-6 * np.maximum(1, below)).all()


@pytest.mark.parametrize("inner", [1, 6], ids=["rows", "columns"])
def test_softmax_of_large_and_masked_scores(engine: Engine, inner: int) -> None:
    rows = np.array([[1e30, 0.0, -1e30], [-np.inf, 2.0, 2.0], [-300.0, -300.0, -np.inf]], np.float32)
    x = np.repeat(rows[..., None], inner, 2)
    y = run_kernel(engine, "softmax_f32", x=x, y=np.zeros_like(x), log=0, **sizes(x))["y"]
    expected = np.array([[1, 0, 0], [0, 0.5, 0.5], [0.5, 0.5, 0]])
    np.testing.assert_allclose(y, np.repeat(expected[..., None], inner, 2), atol=1e-7)


@pytest.mark.parametrize("log", [0, 1])
@over("shape", SHAPES)
def test_softmax_gradient(engine: Engine, shape: tuple[int, int, int], log: int) -> None:
    rng = np.random.default_rng(2)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    log_y = exact_log_softmax(x)
    y = log_y if log else np.exp(log_y)
    d = dy.astype(np.float64)
    expected = d - np.exp(log_y) * d.sum(axis=1, keepdims=True) if log else y * (d - (y * d).sum(axis=1, keepdims=True))
    actual = run_kernel(
        engine, "softmax_grad_f32", dy=dy, y=y.astype(np.float32), dx=np.zeros_like(x), log=log, **sizes(x)
    )["dx"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 if log else 1e-6 * np.abs(y).max())


class Loss:
    """A cross entropy problem and its solution in float64."""

    def __init__(
        self,
        n: int,
        c: int,
        inner: int,
        *,
        weighted: bool,
        ignore: int | None,
        reduction: int,
        label_dtype: Any,
        from_log: int,
    ) -> None:
        rng = np.random.default_rng(c)
        self.scores = (3 * rng.standard_normal((n, c, inner))).astype(np.float32)
        if from_log:
            self.scores = exact_log_softmax(self.scores).astype(np.float32)
        self.labels = rng.integers(0, c, (n, inner)).astype(label_dtype)
        if ignore is not None:
            self.labels[rng.random((n, inner)) < 0.3] = ignore
        self.weights = rng.random(c).astype(np.float32) if weighted else None
        self.numbers = {
            "n": n,
            "c": c,
            "inner": inner,
            "label_size": self.labels.itemsize,
            "has_ignore": int(ignore is not None),
            "ignore_index": ignore or 0,
            "reduction": reduction,
            "from_log": from_log,
        }
        log_prob = self.scores.astype(np.float64) if from_log else exact_log_softmax(self.scores)
        kept = np.ones((n, inner), bool) if ignore is None else self.labels != ignore
        safe = np.where(kept, self.labels, 0).astype(np.int64)
        w = (np.ones(c) if self.weights is None else self.weights.astype(np.float64))[safe] * kept
        rows = -w * np.take_along_axis(log_prob, safe[:, None], axis=1)[:, 0]
        divisor = (w.sum() or 1.0) if reduction == 1 else 1.0
        self.log_prob = log_prob
        self.loss = rows if reduction == 0 else np.array([rows.sum() / divisor])
        self.dy = rng.standard_normal(rows.shape if reduction == 0 else 1).astype(np.float32)
        onehot = (np.arange(c)[None, :, None] == safe[:, None]).astype(np.float64)
        gradient = (0 if from_log else np.exp(log_prob)) - onehot
        self.dx = gradient * (w * self.dy.astype(np.float64) / divisor)[:, None]

    def run(self, engine: Engine, with_log_prob: bool = True) -> dict[str, np.ndarray]:
        log_prob = np.zeros_like(self.scores) if with_log_prob else None
        return run_kernel(
            engine,
            "cross_entropy_f32",
            scores=self.scores,
            labels=self.labels,
            weights=self.weights,
            loss=np.zeros(self.loss.shape, np.float32),
            log_prob=log_prob,
            **self.numbers,
        )

    def run_gradient(self, engine: Engine) -> np.ndarray:
        return run_kernel(
            engine,
            "cross_entropy_grad_f32",
            dy=self.dy,
            log_prob=self.log_prob.astype(np.float32),
            labels=self.labels,
            weights=self.weights,
            dx=np.full_like(self.scores, np.nan),
            **self.numbers,
        )["dx"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, -100, 2])
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("from_log", [0, 1])
@over("n, c, inner", [(5, 10, 1), (300, 7, 1), (3, 6, 5), (2, 3, 8), (40, 1000, 1)])
def test_cross_entropy(
    engine: Engine, n: int, c: int, inner: int, weighted: bool, ignore: int | None, reduction: int, from_log: int
) -> None:
    label_dtype = np.int32 if n % 2 else np.int64
    case = Loss(
        n, c, inner, weighted=weighted, ignore=ignore, reduction=reduction, label_dtype=label_dtype, from_log=from_log
    )
    for with_log_prob in (True, False):
        result = case.run(engine, with_log_prob)
        np.testing.assert_allclose(result["loss"], case.loss, rtol=2e-6, atol=2e-5)
    np.testing.assert_allclose(case.run(engine)["log_prob"], case.log_prob, atol=4e-5, rtol=1e-6)
    scale = max(1e-30, np.abs(case.dx).max())
    np.testing.assert_allclose(case.run_gradient(engine), case.dx, rtol=5e-6, atol=2e-6 * scale)


@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, 10, -(2**31), 2**31 - 1])
def test_bad_labels_are_reported_before_anything_is_written(engine: Engine, label_dtype: Any, bad: int) -> None:
    case = Loss(6, 10, 1, weighted=True, ignore=None, reduction=1, label_dtype=label_dtype, from_log=0)
    case.labels[4] = bad
    for ignored in ({}, {"has_ignore": 1, "ignore_index": -100}):
        case.numbers |= ignored
        for run in (case.run, case.run_gradient):
            with pytest.raises(PlanFailed) as failure:
                run(engine)
            found = failure.value.name, failure.value.value, failure.value.position
            assert found == ("TW_BAD_LABEL", bad, 4)
    case.numbers |= {"has_ignore": 1, "ignore_index": bad}
    case.run(engine)


def test_everything_ignored(engine: Engine) -> None:
    case = Loss(4, 5, 1, weighted=False, ignore=-1, reduction=1, label_dtype=np.int64, from_log=0)
    case.labels[:] = -1
    assert case.run(engine)["loss"] == 0
    assert (case.run_gradient(engine) == 0).all()
