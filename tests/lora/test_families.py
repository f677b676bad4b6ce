"""Families of language models train, adapt and generate as in torch, PEFT and transformers.

`scripts/record_families.py` made `families/`: models of torch's exporter, PEFT's adapters and losses, greedy tokens.
The families that are not here are in `test_quantized_peft.py`, `tests/zoo` and `tests/golden/generate`.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lora.test_lora import arrays

import trainweb
from trainweb.lora import Adapter, inject
from trainweb.onnxblock.optim import AdamW

FOLDER = Path(__file__).parent / "families"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
LARGEST_IN_ALL = 3_000_000
"""Bytes of all recordings."""
SGD, ADAMW = 0.1, 0.01
LOSS: dict[str, Any] = {
    "loss": {"type": "CrossEntropyLoss", "ignore_index": -100},
    "loss_input_names": ["logits"],
}


@dataclass(frozen=True)
class Family:
    """The files of a recording."""

    files: dict[str, bytes]
    about: dict[str, Any]
    truth: dict[str, np.ndarray]

    def losses(self, session: trainweb.TrainingSession, kind: str) -> None:
        """Take the recorded steps; their losses must be the recorded ones."""
        feeds = {name: self.truth[name] for name in session.input_names() if name in self.truth}
        feeds |= {name: self.truth["labels"] for name in session.input_names() if name not in feeds}
        losses = []
        for _ in self.truth[kind]:
            losses.append(float(next(iter(session.train_step(feeds).values()))))
            session.optimizer_step()
            session.lazy_reset_grad()
        np.testing.assert_allclose(losses, self.truth[kind], rtol=1e-5)


def load(name: str) -> Family:
    with tarfile.open(FOLDER / f"{name}.tar.xz", "r:xz") as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    with np.load(io.BytesIO(files["truth.npz"])) as data:
        return Family(files, json.loads(files["about.json"]), dict(data))


@pytest.mark.parametrize("name", NAMES)
def test_trains_and_generates(name: str) -> None:
    family = load(name)
    frozen = [re.escape(n) for n in family.about["frozen"]] or None
    session = trainweb.TrainingSession.from_model(
        family.files["model.onnx"], optimizer="SGD", learning_rate=SGD, frozen_params=frozen, **LOSS
    )
    try:
        for prompt, tokens in zip(family.about["prompts"], family.about["tokens"], strict=False):
            assert [t for t, _ in session.generate(prompt, max_tokens=len(tokens))] == tokens
        family.losses(session, "full")
    finally:
        session.release()


@pytest.mark.parametrize("name", NAMES)
def test_adapts_as_peft(name: str) -> None:
    family = load(name)
    start, end = (
        Adapter.from_bytes(family.files[file], family.files["adapter_config.json"])
        for file in ("adapter_model.safetensors", "end.safetensors")
    )
    adapted = inject(family.files["model.onnx"], config=start.config)
    if family.about["by_default"]:
        modules = {layer.module for layer in inject(family.files["model.onnx"]).layers}
        assert modules == {layer.module for layer in adapted.layers}
    optimizer = AdamW(eps=1e-6, weight_decay=0.01, adam_mode=0)
    made = adapted.build_artifacts(optimizer=optimizer, **LOSS)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    session = trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)
    try:
        session.set_learning_rate(ADAMW)
        adapted.load_adapter(session, start)
        family.losses(session, "lora")
        learned = arrays(adapted.adapter(session))
    finally:
        session.release()
    expected = arrays(end)
    assert set(learned) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(learned[key], value, rtol=1e-3, atol=2e-4, err_msg=key)


def test_recordings_are_small() -> None:
    assert len(NAMES) >= 30
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST_IN_ALL
