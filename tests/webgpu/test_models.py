"""Recorded models whose training the GPU takes are those of a list, and train there as in PyTorch."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.lora import test_families as families
from tests.webgpu.models import GOLDEN, of_family, of_zoo, rows
from tests.webgpu.train import train_on_gpu
from tests.zoo.recording import RATES, load

from trainweb.session.training_session import TrainingSession
from trainweb.training.arrays import from_numpy

pytestmark = pytest.mark.filterwarnings("ignore")
COMPUTED = ["edges", "codebook", "vq_vae", "moving_codes", "mixture_of_experts", "fake_quantized", "quantization_aware"]
"""Models with indices, orders and small integers that the model computes."""
NETWORKS = ["bert", "convnext", "lstm", "mobilenet_v2", "nano_gpt", "resnet"]


def test_models_that_train_on_the_gpu_are_those_of_the_list() -> None:
    assert [*rows()] == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize(("name", "kind"), [(n, "SGD") for n in COMPUTED] + [(n, "AdamW") for n in NETWORKS])
def test_losses_of_the_zoo_are_those_of_pytorch(name: str, kind: str) -> None:
    hold_to(load(name).truth[f"{kind}/losses"], RATES[kind], *of_zoo(name, kind))


@pytest.mark.parametrize("name", ["bloom", "clip", "llama_classes"])
def test_losses_of_families_are_those_of_pytorch(name: str) -> None:
    hold_to(families.load(name).truth["full"], families.SGD, *of_family(name))


def hold_to(losses: np.ndarray, rate: float, session: TrainingSession, feed: Callable[[str], np.ndarray]) -> None:
    with session:
        session.set_learning_rate(rate)
        feeds = {n: from_numpy(n, np.asarray(feed(n))) for n in session.input_names()}
        np.testing.assert_allclose(train_on_gpu(session._core, [feeds], len(losses)), losses, rtol=2e-5)
