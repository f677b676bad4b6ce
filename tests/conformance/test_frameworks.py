"""Keras and JAX models train as docs/export.md says, along the losses of the framework itself.

`scripts/record_frameworks.py` made `frameworks/`: files as exporters write them, and five steps of the framework's SGD.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import UnsupportedError

FOLDER = Path(__file__).parent / "frameworks"
RATE = 0.1
FIRST_TOLERANCE = 1e-6
#: Largest difference from the framework's losses in five steps; float32 rounds each.
TOLERANCE = {
    "flax": 1e-6,
    "keras-jax-dense": 1e-6,
    "keras-jax-sequence": 1e-6,
    "keras-tensorflow-conv": 1e-6,
    "keras-tensorflow-dense": 1e-6,
}


def train(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The losses of five steps here, and the recorded ones."""
    with np.load(FOLDER / f"{name}.npz") as data:
        feeds = dict(data)
    losses = feeds.pop("losses")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The file does not settle")
        files = build_artifacts(FOLDER / f"{name}.onnx", loss="CrossEntropyLoss", optimizer="SGD")
    found = []
    with trainweb.TrainingSession(**files) as session:
        session.set_learning_rate(RATE)
        (loss,) = session.output_names()
        for _ in losses:
            found.append(float(session.train_step(feeds)[loss]))
            session.optimizer_step()
            session.lazy_reset_grad()
    return np.array(found), losses


def test_every_recording_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == {*TOLERANCE, "keras-jax-conv", "keras-tensorflow-sequence"}


@pytest.mark.parametrize("name", TOLERANCE)
def test_losses_are_the_framework_s(name: str) -> None:
    found, losses = train(name)
    assert losses[-1] < losses[0] - 0.02
    np.testing.assert_allclose(found, losses, rtol=0, atol=TOLERANCE[name])


def test_two_biases_of_an_lstm_learn_twice_as_fast() -> None:
    """ONNX's LSTM has two biases where Keras has one: the first loss is the same, the others are lower."""
    found, losses = train("keras-tensorflow-sequence")
    assert abs(found[0] - losses[0]) < FIRST_TOLERANCE
    assert (found[1:] < losses[1:] - 1e-4).all()


def test_what_jax_writes_pooling_as_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"MaxPool node .* 4 spatial dimensions"):
        train("keras-jax-conv")
