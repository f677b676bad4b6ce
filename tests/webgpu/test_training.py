"""Training steps of the benchmarks' models on the GPU: the losses of the kernels, and those of a float64 numpy loop."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.webgpu.host import open_device
from tests.webgpu.networks import BATCHES, RATE, SMALL, SPECIAL, STEPS
from tests.webgpu.train import Batches, batches_of, open_adapters, open_model, train_on_gpu, train_on_kernels, types_of

from trainweb.training.core import SessionCore
from trainweb.training.step_kind import TRAIN

GOLDEN = Path(__file__).parents[1] / "golden" / "webgpu"
TOLERANCE = 1e-4
"""Relative distance of losses over a training."""
BUDGET = {"A": (18, 12), "C": (29, 18), "D": (122, 31), "E": (143, 22), "R": (26, 20), "S": (100, 30), "X": (86, 24)}
"""Dispatches of a train and an optimizer step, and pipelines."""


@pytest.mark.parametrize("name", BUDGET)
def test_a_step_takes_few_dispatches_and_pipelines(name: str) -> None:
    core, batches = open_model(name, 1)
    try:
        bodies = [
            core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body,
            core.models.compile_optimizer(target="webgpu").body,
        ]
        words = [(body, np.frombuffer(body.dispatches, np.uint32).reshape(-1, 6)) for body in bodies if body]
        pipelines = {body.texts[pipeline] for body, rows in words for pipeline in rows[:, 0]}
        found = sum(len(rows) for _, rows in words), len(pipelines)
        assert found[0] <= BUDGET[name][0] and found[1] <= BUDGET[name][1], found
    finally:
        core.release()


@pytest.mark.parametrize("name", SMALL)
def test_losses_are_those_of_float64_and_of_the_kernels(name: str) -> None:
    """PyTorch's in float64 (record.py)."""
    open_device()
    core, batches = open_model(name, BATCHES, is_small=True)
    try:
        losses = train_on_gpu(core, batches, STEPS)
        np.testing.assert_allclose(losses, json.loads((GOLDEN / "losses.json").read_text())[name], rtol=TOLERANCE)
        np.testing.assert_allclose(losses, train_on_kernels(core, batches, STEPS), rtol=TOLERANCE)
    finally:
        core.release()


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_losses_of_adapters_are_those_of_the_kernels(bits: int) -> None:
    open_device()
    net = SMALL["E"]()
    core = open_adapters(net, bits)
    try:
        core.set_learning_rate(RATE)
        batches = batches_of(core, net, BATCHES)
        body = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body
        assert body is not None and any("gemm_quantized" in line for line in body.text) == (bits < 32)
        losses = train_on_gpu(core, batches, STEPS)
        np.testing.assert_allclose(losses, train_on_kernels(core, batches, STEPS), rtol=TOLERANCE)
        assert min(losses[-BATCHES:]) < min(losses[:BATCHES]), "the adapters learn"
    finally:
        core.release()


@pytest.mark.parametrize("template", SPECIAL)
def test_losses_with_a_template_are_those_of_the_kernels(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_device()
    monkeypatch.setattr("trainweb.compiler.passes.head.TRAINED_SCORES_BYTES", 1 << 10)
    core, batches = open_model(template, 2, is_small=True)
    try:
        body = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body
        assert body is not None and any(line.startswith(template) for line in body.text)
        np.testing.assert_allclose(train_on_gpu(core, batches, 4), train_on_kernels(core, batches, 4), rtol=1e-5)
    finally:
        core.release()


@pytest.mark.parametrize(("name", "steps"), [("A", 50), ("C", 2), ("E", 1)])
def test_losses_are_those_of_the_kernels(name: str, steps: int) -> None:
    open_device()
    core, batches = open_model(name, 8)
    try:
        found = train_on_gpu(core, batches, steps)
        np.testing.assert_allclose(found, train_on_kernels(core, batches, steps), rtol=TOLERANCE)
    finally:
        core.release()


def test_losses_of_a_perceptron_are_those_of_float64() -> None:
    open_device()
    core, batches = open_model("A", 8)
    try:
        np.testing.assert_allclose(train_on_gpu(core, batches, 50), _numpy_losses(core, batches, 50), rtol=TOLERANCE)
    finally:
        core.release()


def _numpy_losses(core: SessionCore, batches: Batches, steps: int) -> list[float]:
    """A step of three linear layers with relu between, and ONNX Runtime's AdamW: epsilon before the correction."""
    weights = [
        np.frombuffer(core.get_parameter(s.name).data, np.float32).reshape(s.shape).astype(np.float64)
        for s in core.layout.slots.values()
    ]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    rate, losses = core.get_learning_rate(), []
    for k in range(1, steps + 1):
        feeds = batches[(k - 1) % len(batches)].values()
        x, labels = sorted((np.frombuffer(t.data, t.dtype).reshape(t.shape) for t in feeds), key=lambda a: -a.ndim)
        layers = [x.reshape(len(x), -1).astype(np.float64)]
        for n in range(3):
            z = layers[-1] @ weights[2 * n].T + weights[2 * n + 1]
            layers.append(np.maximum(z, 0) if n < 2 else z)
        p = np.exp(layers[3] - layers[3].max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        rows = np.arange(len(x))
        losses.append(float(-np.log(p[rows, labels]).mean()))
        p[rows, labels] -= 1
        slope, slopes = p / len(x), []
        for n in (2, 1, 0):
            slopes = [slope.T @ layers[n], slope.sum(0), *slopes]
            slope = (slope @ weights[2 * n]) * (layers[n] > 0)
        for w, g, m, v in zip(weights, slopes, first, second, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            w -= rate * np.sqrt(1 - 0.999**k) / (1 - 0.9**k) * m / (np.sqrt(v) + 1e-8)
    return losses
