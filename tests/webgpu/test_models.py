"""Recorded models whose training the GPU takes are those of a list, and train there as in PyTorch."""

import numpy as np
import pytest
from tests.lora import test_families as families
from tests.webgpu.host import open_device
from tests.webgpu.models import GOLDEN, of_family, of_zoo, rows
from tests.webgpu.train import train_on_gpu
from tests.zoo.recording import RATES, load

from trainweb.training.arrays import from_numpy


@pytest.mark.filterwarnings("ignore")
def test_models_that_train_on_the_gpu_are_those_of_the_list() -> None:
    assert [*rows()] == GOLDEN.read_text().splitlines()


COMPUTED = ["edges", "codebook", "vq_vae", "moving_codes", "mixture_of_experts", "fake_quantized", "quantization_aware"]
"""Models with indices, orders and small integers that the model computes."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("title", "name"),
    [("zoo", n) for n in COMPUTED] + [("families", "bloom"), ("families", "clip"), ("families", "llama_classes")],
)
def test_losses_are_those_of_pytorch(title: str, name: str) -> None:
    open_device()
    if title == "zoo":
        truth, rate = load(name).truth["SGD/losses"], RATES["SGD"]
    else:
        truth, rate = families.load(name).truth["full"], families.SGD
    session, feed = (of_zoo if title == "zoo" else of_family)(name)
    with session:
        session.set_learning_rate(rate)
        feeds = {n: from_numpy(n, np.asarray(feed(n))) for n in session.input_names()}
        np.testing.assert_allclose(train_on_gpu(session._core, [feeds], len(truth)), truth, rtol=2e-5)
