"""Language models that leave out tokens give what they give with all: losses, and the parameters after a step.

Labels are ignored at random, as prompts and as padding, and masks hide padding on either side.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lora.test_families import LOSS, NAMES, load
from tests.python import pipelines

import trainweb
from trainweb.compiler import pipeline
from trainweb.compiler.passes import padding

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parent / "golden" / "generate"
ONE_LABEL = {"bert_classes", "clip", "deberta", "distilbert", "llama_classes", "modernbert", "roberta", "vit"}
"""Families with a label for a text, not for a token."""
MODELS = {
    "family": sorted(set(NAMES) - ONE_LABEL),
    "quantized": ["gemma3_float32", "gpt2_nbits", "llama_int8_blocks", "modernbert_float16", "phi_float32"],
    "generate": sorted(path.stem for path in GOLDEN.glob("*.onnx")),
}
TEXTS, LENGTH, IGNORED, MOST_LABEL = 3, 12, -100, 16


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "LEAST_WORK", 0)


def session_of(name: str) -> tuple[trainweb.TrainingSession, dict[str, np.ndarray]]:
    """A session, and recorded feeds where there are some: adapters of quantized models, others whole."""
    kind, _, name = name.partition(" ")
    settings: dict[str, Any] = {"optimizer": "SGD", "learning_rate": 0.1, "loss": LOSS["loss"]}
    if kind == "quantized":
        lora = {"targets": "all-linear", "rank": 2}
        return trainweb.TrainingSession.from_model(FOLDER / kind / f"{name}.onnx", lora=lora, **settings), {}
    if kind == "family":
        family = load(name)
        return trainweb.TrainingSession.from_model(family.files["model.onnx"], **settings | LOSS), family.truth
    return trainweb.TrainingSession.from_model(GOLDEN / f"{name}.onnx", **settings), {}


def feeds_of(session: trainweb.TrainingSession, truth: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Ids, masks and labels: a text with a prompt, one with padding before it, and one with padding behind."""
    rng = np.random.default_rng(0)
    shape = truth["labels"].shape if truth else (TEXTS, LENGTH)
    words, real = rng.integers(1, 40, shape), np.ones(shape, bool)
    labels = np.abs(truth["labels"]) % MOST_LABEL if truth else words
    labels = np.where(rng.random(shape) < 0.3, IGNORED, labels)
    labels[0, : shape[1] // 2] = IGNORED
    labels[0, -1] = 1
    if not truth:
        real[1, :4], real[2, 7:] = False, False
    feeds = {"words": words, "mask": real, "labels": np.where(real, labels, IGNORED)}
    made = dict[str, np.ndarray]()
    for name, value in session._core.inputs["train"].items():
        kind = next((kind for kind in ("mask", "labels") if kind in name), "words")
        a = feeds[kind] if kind == "labels" or name not in truth else truth[name]
        made[name] = a.reshape(-1 if len(value.shape or ()) == 1 else a.shape).astype(value.dtype)
    return made


def step(name: str) -> tuple[float, np.ndarray]:
    """The loss, and the parameters after a step."""
    session, truth = session_of(name)
    with session:
        loss = float(next(iter(session.train_step(feeds_of(session, truth)).values())))
        session.optimizer_step()
        return loss, np.array(session.get_contiguous_parameters())


@pytest.mark.parametrize("name", [f"{kind} {name}" for kind, names in MODELS.items() for name in names])
def test_steps_are_those_without_the_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, parameters = step(name)
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    expected, others = step(name)
    assert np.isfinite(expected)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(parameters, others, rtol=1e-5, atol=1e-7)
