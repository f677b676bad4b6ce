"""Kernels of optimizers against formulas of their own in float64, over many steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.kernel_runner import KernelRunner
from tests.python.optimizer_steps import take_step

from trainweb.ir.builder import Builder
from trainweb.model.graph import TRAINWEB
from trainweb.ops.optim.rules import Adafactor
from trainweb.ops.optim.update import Formula

GOLDEN = Path(__file__).parents[1] / "golden"


def closed_form(
    w: np.ndarray,
    past: list[np.ndarray],
    t: int,
    *,
    rate: float,
    mode: int,
    correct: int,
    decay: float,
    epsilon: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(w, m, v) after step `t`, moments being sums over all gradients so far instead of recurrences.

    The operator's reference and the kernel carry moments from step to step; this shares no line with either.
    """
    b1, b2 = betas
    rate = float(np.float32(rate))  # of the session's state
    ages = np.arange(len(past))[::-1]
    m, v = (
        (1 - b) * np.einsum("t,tn->n", b**ages, np.stack(past).astype(np.float64) ** power)
        for b, power in ((b1, 1), (b2, 2))
    )
    # Kingma & Ba, algorithm 1, with the corrected moments written out; mode 1 is their "more efficient" order.
    unbiased1, unbiased2 = (-np.expm1(t * np.log(b)) for b in (b1, b2))
    if mode == 0:
        return (1 - rate * decay) * w - rate * (m / unbiased1) / (np.sqrt(v / unbiased2) + epsilon), m, v
    if not correct:
        unbiased1 = unbiased2 = 1.0
    moved = w - rate * np.sqrt(unbiased2) / unbiased1 * m / (np.sqrt(v) + epsilon)
    return moved - rate * decay * moved, m, v


@pytest.mark.parametrize("n", [1, 7, 1000, 40000])
@pytest.mark.parametrize(("mode", "correct"), [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("start", [0, 100_000])
def test_adamw(n: int, mode: int, correct: int, start: int) -> None:
    rng = np.random.default_rng(n)
    w, m, v = (rng.standard_normal(n).astype(np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32))
    exact, past = (w.astype(np.float64), m, v), []
    for t in range(start + 1, start + 6):
        g = rng.standard_normal(n).astype(np.float32)
        settings = {"epsilon": 1e-6, "weight_decay": 0.1, "correct_bias": correct, "adam_mode": mode}
        w, m, v = take_step("AdamWOptimizer", w, g, m, v, rate=0.01, before=t - 1, **settings)
        past.append(g)
        exact = closed_form(exact[0], past, t, rate=0.01, mode=mode, correct=correct, decay=0.1, epsilon=1e-6)
    for actual, expected in zip((w, m, v), exact, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=3e-6, atol=1e-6)


def test_adamw_leaves_parameters_without_gradient_alone() -> None:
    w = np.array([1.0, -2.0, 3e-20], np.float32)
    zeros = np.zeros(3, np.float32)
    moved, *_ = take_step("AdamWOptimizer", w, zeros, zeros, zeros, rate=1e-3, before=0, weight_decay=0.0)
    np.testing.assert_array_equal(moved, w)


@pytest.mark.parametrize("n", [0, 3, 20000])
def test_sgd(n: int) -> None:
    rng = np.random.default_rng(n)
    w, g = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    moved = take_step("SGDOptimizerV2", w, g, rate=0.5, before=3)[0]
    np.testing.assert_allclose(moved, w - np.float32(0.5) * g, rtol=1e-6, atol=1e-7)


def run_lion(w: np.ndarray, g: np.ndarray, m: np.ndarray, betas: tuple[float, float], decay: float) -> list[np.ndarray]:
    settings = {"betas": list(betas), "weight_decay": decay}
    return take_step("LionOptimizer", w, g, m, rate=0.01, before=4, domain=TRAINWEB, **settings)


@pytest.mark.parametrize("case", ["plain", "decayed"])
def test_lion_takes_the_steps_of_optax_and_keras(case: str) -> None:
    recorded = np.load(GOLDEN / "lion" / "expected.npz")
    w, m = recorded["start"].astype(np.float32), np.zeros(recorded["start"].size, np.float32)
    for g, expected in zip(recorded["gradients"].astype(np.float32), recorded[f"{case}/weights"], strict=True):
        decay = 0.1 if case == "decayed" else 0.0
        w, m = run_lion(w, g, m, (0.85, 0.97), decay)
        np.testing.assert_allclose(w, expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(m, recorded[f"{case}/moment"], rtol=1e-5, atol=1e-9)


def test_lion_moves_nothing_where_there_is_no_direction_and_keeps_nan() -> None:
    w, zeros = np.array([1.0, -2.0, 3e-20, 5.0, -0.0], np.float32), np.zeros(5, np.float32)
    np.testing.assert_array_equal(run_lion(w, zeros, zeros, (0.9, 0.99), 0.0)[0], w)
    g = np.array([np.nan, np.inf, -np.inf, -1e-38, 0], np.float32)
    moved = run_lion(w, g, zeros, (0.9, 0.99), 0.0)[0]
    np.testing.assert_allclose(moved, [np.nan, -2.01, 0.01, 5.01, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("w", "limits", "ratio"),
    [(0.0, {}, 1.0), (2.0, {}, 2.0), (2.0, {"ratio_max": 0.5}, 0.5), (2.0, {"ratio_min": 8.0}, 8.0)],
)
def test_lengths_of_lambs_first_step(w: float, limits: dict[str, float], ratio: float) -> None:
    """The first direction is the sign of the gradient. Where a length is 0, the step is Adam's."""
    g, zeros = np.array([3.0, -1.0, 0.5], np.float32), np.zeros(3, np.float32)
    given: dict[str, Any] = {"eps": 0.0, "domain": TRAINWEB, **limits}
    moved = take_step("LambOptimizer", np.full(3, w, np.float32), g, zeros, zeros, rate=0.01, before=0, **given)[0]
    np.testing.assert_allclose(moved, w - 0.01 * ratio * np.sign(g), rtol=1e-6)
    still = take_step("LambOptimizer", g, zeros, zeros, zeros, rate=0.01, before=0, eps=1e-6, domain=TRAINWEB)[0]
    np.testing.assert_array_equal(still, g)


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_a_parameter_of_one_number_has_a_length(name: str) -> None:
    w, g, *kept = (np.array(x, np.float32) for x in (2.0, 3.0, 0.0, 0.0))
    kept[1] = kept[1] if name != "Adafactor" else np.zeros(0, np.float32)
    given: dict[str, Any] = {"rate": 0.01, "before": 0, "domain": TRAINWEB, "weight_decay": 0.0}
    moved = take_step(f"{name}Optimizer", w, g, *kept, **given)[0]
    # Of LAMB and Adafactor in parts of the parameter.
    np.testing.assert_allclose(moved, 2.0 - 0.01 * (1 if name == "Muon" else 2), rtol=1e-6)


def adafactor_step(*tensors: np.ndarray, rate: float, before: int, **settings: float) -> list[np.ndarray]:
    """(w, moments) after a step with a weight decay of 0.1."""
    given: dict[str, Any] = {"weight_decay": 0.1, "domain": TRAINWEB, **settings}
    return take_step("AdafactorOptimizer", *tensors, rate=rate, before=before, **given)


def adafactor(w: np.ndarray, past: list[np.ndarray], rate: float, clip: float) -> np.ndarray:
    """The parameters after one more step, in float64: Shazeer & Stern, algorithm 4, of all gradients so far.

    The paper writes averages as weighted sums, and averages of matrices as the outer product of sums over their total.
    """
    t = len(past)
    mixes = np.arange(1, t + 1) ** float(np.float32(-0.8))
    weights = mixes * np.append(np.cumprod((1 - mixes[1:])[::-1])[::-1], 1)
    squares = np.einsum("t,t...->...", weights, np.stack(past).astype(np.float64) ** 2)
    if w.ndim > 1:
        rows, columns = squares.sum(-1, keepdims=True), squares.sum(-2, keepdims=True)
        squares = rows * columns / np.maximum(squares.sum((-1, -2), keepdims=True), 1e-30)
    u = past[-1] / np.sqrt(np.maximum(squares, (2.0**-23) ** 2))
    u /= max(1, np.sqrt((u**2).mean()) / clip)
    size = max(1e-3, np.sqrt((w**2).mean())) * min(rate, t**-0.5)
    return (1 - rate * float(np.float32(0.1))) * w - size * u


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (3, 5),
        (4, 16),
        (65, 7),
        (64, 300),
        (200, 130),
        (1000, 3),
        (50, 3, 3),
        (2, 2, 70, 9),
        (1,),
        (7,),
        (20001,),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
@pytest.mark.parametrize(("rate", "clip"), [(0.01, 1.0), (5.0, 0.3)])
def test_adafactor(shape: tuple[int, ...], rate: float, clip: float) -> None:
    """Rests of rows and columns, tensors of many matrices, vectors; a rate beyond 1 / sqrt(t)."""
    rng = np.random.default_rng(len(shape))
    w = rng.standard_normal(shape).astype(np.float32)
    exact, past = w.astype(np.float64), []
    kept = [np.zeros(Adafactor.moment_shape(k, shape), np.float32) for k in range(2)]
    rate = float(np.float32(rate))
    for t in range(1, 5):
        g = rng.standard_normal(shape).astype(np.float32) * np.float32(10.0) ** rng.integers(-3, 3, (*shape[:-1], 1))
        g[..., : shape[-1] // 3] *= np.float32(0.0 if t == 1 else 0.1)
        past.append(g.astype(np.float32))
        w, *kept = adafactor_step(w, past[-1], *kept, rate=rate, before=t - 1, clip_threshold=clip)
        exact = adafactor(exact, past, rate, float(np.float32(clip)))
        np.testing.assert_allclose(w, exact, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("shape", [(2, 3), (6,)])
def test_adafactor_of_nothing_and_of_nan(shape: tuple[int, ...]) -> None:
    """Zero gradients move nothing but the decay; NaN is kept."""
    kept = [np.zeros(Adafactor.moment_shape(k, shape), np.float32) for k in range(2)]
    w, g = np.array([1, -2, 3e-20, 5, 0, 7], np.float32).reshape(shape), np.zeros(shape, np.float32)
    moved = adafactor_step(w, g, *kept, rate=0.5, before=0)[0]
    np.testing.assert_allclose(moved, w * np.float32(0.95), rtol=1e-6)
    g.flat[1] = np.nan
    assert np.isnan(adafactor_step(w, g, *kept, rate=0.5, before=0)[0].flat[1])


def test_a_formula_reads_no_moment_that_it_has_changed() -> None:
    b = Builder()
    formula = Formula(b, None, None)
    (old,) = formula.elements([b.temp("float32", (4,))])
    new = formula.assign(old, old * 2.0)
    formula.tensor(new + 1.0)
    for wrong in (old, old + 1.0):
        with pytest.raises(ValueError, match="a moment that it has changed"):
            formula.tensor(wrong)


def test_a_formula_stores_a_tensor_once() -> None:
    b = Builder()
    formula = Formula(b, None, None)
    (x,) = formula.elements([b.temp("float32", (4, 3))])
    doubled = x * 2.0
    assert formula.tensor(doubled) is formula.tensor(doubled) and len(b.instructions) == 1


@pytest.mark.parametrize("n", [0, 1, 15, 1000, 50000])
@pytest.mark.parametrize("max_norm", [1.0, 1e6])
def test_clipping(kernels: KernelRunner, n: int, max_norm: float) -> None:
    g = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    exact = g.astype(np.float64)
    exact *= min(1, max_norm / (np.sqrt((exact**2).sum()) + 1e-6))
    result = kernels.run("clip_grad_norm_f32", g=g, n=n, max_norm=max_norm)["g"]
    np.testing.assert_allclose(result, exact, rtol=1e-6)
