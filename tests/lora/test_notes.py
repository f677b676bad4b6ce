"""PEFT's notes in a configuration: the base's name and the task, which its Auto classes read."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainweb
from trainweb.errors import ModelError
from trainweb.lora import Adapter, inject

RECORDED = Path(__file__).parent / "recorded"
MODEL = RECORDED / "attention.dynamo.onnx"
NOTES = {"base_model_name_or_path": "someone/base", "task_type": "CAUSAL_LM"}


def config_of_peft() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((RECORDED / "attention.start/adapter_config.json").read_text())
    return values


def test_a_loaded_adapter_is_saved_with_its_notes(tmp_path: Path) -> None:
    text = json.dumps(config_of_peft() | NOTES)
    with trainweb.TrainingSession.from_model(MODEL, loss="MSELoss", lora={"adapter_config": text}) as s:
        s.adapted.adapter(s).save(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert {name: saved[name] for name in NOTES} == NOTES


def test_an_adapter_brings_its_notes_into_a_session() -> None:
    weights = (RECORDED / "attention.start/adapter_model.safetensors").read_bytes()
    other = Adapter.from_bytes(weights, config_of_peft() | {"task_type": "FEATURE_EXTRACTION"})
    lora = {"adapter_config": config_of_peft() | NOTES}
    with trainweb.TrainingSession.from_model(MODEL, loss="MSELoss", lora=lora) as s:
        s.adapted.load_adapter(s, other)
        saved = json.loads(s.adapted.adapter(s).config_json)
    assert (saved["task_type"], saved["base_model_name_or_path"]) == ("FEATURE_EXTRACTION", "someone/base")


def test_settings_say_the_notes() -> None:
    name, task = NOTES.values()
    saved = inject(MODEL, rank=2, base_model_name_or_path=name, task_type=task).adapter().config_json
    assert {name: json.loads(saved)[name] for name in NOTES} == NOTES
    without = json.loads(inject(MODEL, rank=2).adapter().config_json)
    assert {without[name] for name in NOTES} == {None}
    config = Adapter.load(RECORDED / "attention.start").config
    assert json.loads(inject(MODEL, config=config, task_type="SEQ_CLS").adapter().config_json)["task_type"] == "SEQ_CLS"


def test_a_note_that_is_no_text_is_refused() -> None:
    with pytest.raises(ModelError, match="task_type is 3; it must be a text"):
        Adapter.parse_config(config_of_peft() | {"task_type": 3})
    with pytest.raises(ModelError, match="task_type"):
        trainweb.TrainingSession.from_model(MODEL, loss="MSELoss", lora={"task_type": 3})
