"""Families of language models train, adapt and generate as in torch, PEFT and transformers.

`scripts/record_families.py` made `families/`: models of torch's exporter, PEFT's adapters and losses, greedy tokens.
The families that are not here are in `test_quantized_peft.py`, `tests/zoo` and `tests/golden/generate`.
"""

import io
import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.lora.test_lora import arrays
from tests.python.sessions import take_steps

import trainweb
from trainweb.errors import UnsupportedError
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

    def steps(self, session: trainweb.TrainingSession, count: int, **other: np.ndarray) -> list[float]:
        """Take steps, with other feeds than the recorded ones; return the losses."""
        truth = self.truth | other
        feeds = {name: truth[name] for name in session.input_names() if name in truth}
        feeds |= {name: truth["labels"] for name in session.input_names() if name not in feeds}
        losses = take_steps(session, feeds, count)
        return losses

    def losses(self, session: trainweb.TrainingSession, kind: str, **other: np.ndarray) -> None:
        """Take the recorded steps; their losses must be the recorded ones."""
        losses = self.steps(session, len(self.truth[kind]), **other)
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


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).about["tokens"]])
def test_padding_before_a_text_counts_as_in_torch(name: str) -> None:
    """A decoder's tokens must not see it, and its rows have labels that are ignored."""
    family = load(name)
    with trainweb.TrainingSession.from_model(
        family.files["model.onnx"], optimizer="SGD", learning_rate=SGD, **LOSS
    ) as session:
        mask, labels = family.truth["before_mask"], family.truth["before_labels"]
        family.losses(session, "before", attention_mask=mask, labels=labels)


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "table": {"target_modules": ["embed_tokens", "q_proj"]},
}


@pytest.mark.parametrize(("name", "kind"), [*((n, k) for n in NAMES for k in ("lora", "dora")), ("opt", "table")])
def test_adapts_as_peft(name: str, kind: str) -> None:
    family = load(name)
    config = json.loads(family.files["adapter_config.json"]) | KINDS[kind]
    start, end = (Adapter.from_bytes(family.files[f"{kind}{when}.safetensors"], config) for when in ("", "_end"))
    adapted = inject(family.files["model.onnx"], config=start.config)
    if family.about["by_default"] and kind == "lora":
        modules = {layer.module for layer in inject(family.files["model.onnx"]).layers}
        assert modules == {layer.module for layer in adapted.layers}
    optimizer = AdamW(eps=1e-6, weight_decay=0.01, adam_mode=0)
    made = adapted.build_artifacts(optimizer=optimizer, **LOSS)
    session = trainweb.TrainingSession(**made)
    try:
        session.set_learning_rate(ADAMW)
        adapted.load_adapter(session, start)
        family.losses(session, kind)
        learned = arrays(adapted.adapter(session))
    finally:
        session.release()
    expected = {key: value for key, value in arrays(end).items() if ".base_layer." not in key}
    assert set(learned) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(learned[key], value, rtol=1e-3, atol=2e-4, err_msg=key)


@pytest.mark.parametrize(
    ("name", "part", "takes"), [("opt", "decoder", False), ("bart", "encoder", False), ("bert_words", "", True)]
)
def test_tables_that_are_looked_up_by_what_their_module_computes(name: str, part: str, takes: bool) -> None:
    """PEFT looks up A by the first input of such a module, a mask or words, and merges another model."""
    model, target = load(name).files["model.onnx"], f"{part}.embed_positions" if part else "position_embeddings"
    if takes:
        assert len(inject(model, [target]).layers) == 1
        return
    with pytest.raises(
        UnsupportedError, match=rf"{target}' is not supported: 'embed_positions' computes its indices.*modules_to_save"
    ):
        inject(model, [target])
    assert inject(model, ["q_proj"], modules_to_save=[target])._whole == [f"model.{target}.weight"]


def test_recordings_are_small() -> None:
    assert len(NAMES) >= 30
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST_IN_ALL


QUANTIZED = [
    *((name, 4) for name in ("bart", "bert_classes", "bloom", "deberta", "falcon", "gpt_neox", "llama", "opt", "phi3")),
    *((name, 8) for name in ("clip", "gemma3", "opt")),
]
"""Families by what is quantized: with and without biases, joined projections, tied and scaled tables, two towers."""


def with_rounded_weights(model: bytes, quantized: bytes, bits: int) -> bytes:
    """The model with the numbers that the quantized file stands for: scale * (code - half), by the operators' text."""
    file = onnx.load_from_string(model)
    weights = {t.name: t for t in file.graph.initializer}
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(quantized).graph.initializer}
    names = [name.removesuffix(f"_Q{bits}") for name in stored if name.endswith(f"_Q{bits}")]
    for name in names:
        codes, scales = stored[f"{name}_Q{bits}"], stored[f"{name}_scales"]
        rows = len(codes)
        pairs = np.stack([codes & 15, codes >> 4], -1) if bits == 4 else codes
        numbers = pairs.reshape(rows, scales.size // rows, -1).astype(np.float32) - (1 << bits - 1)
        weight = weights.get(name) or weights["lm_head.weight"]  # the exporter's name of a tied table
        values = (numbers * scales.reshape(rows, -1, 1)).reshape(rows, -1)[:, : weight.dims[1]]
        weight.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), weight.name))
    assert len(names) >= 4
    return file.SerializeToString()


@pytest.mark.parametrize(("name", "bits"), QUANTIZED)
def test_adapts_over_rounded_weights(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over float32 weights of the same numbers, which train as in PEFT."""
    monkeypatch.setattr("trainweb.lora.quantize.LEAST_ELEMENTS", 16)
    family = load(name)
    adapter = Adapter.from_bytes(family.files["lora.safetensors"], family.files["adapter_config.json"])
    quantized = trainweb.quantize(family.files["model.onnx"], bits)
    results = []
    for model in (quantized, with_rounded_weights(family.files["model.onnx"], quantized, bits)):
        adapted = inject(model, config=adapter.config)
        with trainweb.TrainingSession(**adapted.build_artifacts(optimizer="AdamW", **LOSS)) as session:
            session.set_learning_rate(ADAMW)
            adapted.load_adapter(session, adapter)
            results.append((family.steps(session, 3), arrays(adapted.adapter(session))))
    (losses, learned), (expected, others) = results
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert abs(losses[0] - family.truth["lora"][0]) > 1e-4
    for key, value in others.items():
        np.testing.assert_allclose(learned[key], value, rtol=1e-3, atol=2e-4, err_msg=key)
