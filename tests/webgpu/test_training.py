"""Training steps of the benchmarks' models on the GPU: the losses of the kernels."""

import numpy as np
import pytest
from tests.webgpu.networks import BATCHES, SMALL, SPECIAL, STEPS
from tests.webgpu.train import open_adapters, open_model, train_on_gpu, train_on_kernels, types_of

from trainweb.training.step_kind import TRAIN

TOLERANCE = 1e-4
"""Relative distance of losses over a training."""


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_losses_of_adapters_are_those_of_the_kernels(bits: int) -> None:
    with open_adapters(SMALL["E"](), bits, BATCHES) as (core, batches):
        body = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body
        assert body is not None and any("gemm_quantized" in line for line in body.text) == (bits < 32)
        losses = train_on_gpu(core, batches, STEPS)
        np.testing.assert_allclose(losses, train_on_kernels(core, batches, STEPS), rtol=TOLERANCE)
        assert min(losses[-BATCHES:]) < min(losses[:BATCHES]), "the adapters learn"


@pytest.mark.parametrize("template", SPECIAL)
def test_losses_with_a_template_are_those_of_the_kernels(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.compiler.passes.head.TRAINED_SCORES_BYTES", 1 << 10)
    with open_model(template, 2, is_small=True) as (core, batches):
        body = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body
        assert body is not None and any(line.startswith(template) for line in body.text)
        np.testing.assert_allclose(train_on_gpu(core, batches, 4), train_on_kernels(core, batches, 4), rtol=1e-5)


@pytest.mark.parametrize(("name", "steps"), [("A", 50), ("C", 2), ("E", 1)])
def test_losses_are_those_of_the_kernels(name: str, steps: int) -> None:
    with open_model(name, 8) as (core, batches):
        found = train_on_gpu(core, batches, steps)
        np.testing.assert_allclose(found, train_on_kernels(core, batches, steps), rtol=TOLERANCE)
