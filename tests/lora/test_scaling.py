"""A checkpoint names the scaling of its adapters: parameters have the same names and shapes with any."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import take_steps

import trainweb
from trainweb.checkpoint import read_checkpoint, scaling_of, write_checkpoint
from trainweb.errors import CheckpointError
from trainweb.lora import inject
from trainweb.model.graph import Graph, Tensor
from trainweb.model.safetensors import TensorFile
from trainweb.training.store import take_snapshot

from .test_lora import base_of, model_of, truth

OF_PEFT = {
    "attention": {"q_proj": 2.0, "v_proj": 2.0},
    "embedding": dict.fromkeys(("embed", "o_proj"), 4.618802153517007),
    "head-patterns": {"fc1": 6.0, "fc2": 2.4, "head": 0.3333333333333333},
    "head-rooted": {"fc1": 8.48528137423857, "fc2": 5.366563145999495},
}
"""`scaling` of layers in PEFT 0.21.2, by the recorded configurations."""
STORED: dict[str, Any] = {"alpha": 8}
OWN: dict[str, Any] = {"alpha": 4}
"""Of rank 4: the scaling is 2 or 1."""
REFUSED = (
    r"^The checkpoint's adapters have the scaling '2', and this session's adapters have '1'\. Make the session with"
)


def session(**lora: Any) -> trainweb.TrainingSession:
    settings = {"targets": ["q_proj", "v_proj"], "rank": 4} | lora
    return trainweb.TrainingSession.from_model(base_of("attention", "dynamo"), loss="CrossEntropyLoss", lora=settings)


def feeds() -> dict[str, np.ndarray]:
    return {name: truth("attention")[name] for name in ("x", "labels")}


def everything(s: trainweb.TrainingSession) -> bytes:
    return take_snapshot(s._core).to_bytes()


@pytest.mark.parametrize("name", OF_PEFT)
def test_the_scaling_of_a_checkpoint_is_that_of_peft(name: str) -> None:
    adapted = model_of(name, "dynamo")
    most, *others = read_checkpoint(adapted.build_artifacts(loss="CrossEntropyLoss").checkpoint).scaling.split("; ")
    named = dict(one.split("=") for one in others)
    found = {layer.module: float(named.pop(layer.module, most)) for layer in adapted.layers}
    assert found == pytest.approx({m: OF_PEFT[name][m] for m in found}, rel=1e-7) and named == {}


def test_a_model_without_adapters_has_no_scaling() -> None:
    others = [Tensor.of("a", "float32", (), [2]), Tensor.of("b.lora_scaling", "int64", (), [3])]
    others.append(Tensor.of("c.lora_scaling", "float32", (1,), [4]))
    constants = {tensor.name: tensor for tensor in others}
    assert scaling_of(Graph()) == scaling_of(Graph(initializers=constants)) == ""
    constants["d.lora_scaling"] = Tensor.of("d.lora_scaling", "float32", (), [2])
    assert scaling_of(Graph(initializers=constants)) == "2"


def fitted(s: trainweb.TrainingSession, folder: Path, epochs: int) -> None:
    checkpoint = {"store": folder, "name": "fit"}
    s.fit({n: array[:8] for n, array in feeds().items()}, epochs=epochs, checkpoint=checkpoint, progress=False)


def again(file: bytes) -> bytes:
    """A file that a state without a session wrote."""
    written = trainweb.CheckpointState.save_checkpoint(trainweb.CheckpointState.load_checkpoint(file))
    assert written is not None
    return written


Door = Callable[[trainweb.TrainingSession, Path], object]
DOORS: dict[str, Door] = {
    "file": lambda s, folder: s.load_checkpoint(folder / "full"),
    "parameters": lambda s, folder: s.load_checkpoint((folder / "parameters").read_bytes()),
    "contents of a store": lambda s, folder: s.load_checkpoint(trainweb.CheckpointStore(folder).read("kept")),
    "store": lambda s, folder: trainweb.CheckpointStore(folder).load(s, "kept"),
    "fit": lambda s, folder: fitted(s, folder, 2),
    "saved again": lambda s, folder: s.load_checkpoint(again((folder / "full").read_bytes())),
    "start": lambda s, folder: s.load_checkpoint((folder / "start").read_bytes()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a session with the scaling 2."""
    place = tmp_path_factory.mktemp("scaling")
    adapted = inject(base_of("attention", "dynamo"), ["q_proj", "v_proj"], rank=4, **STORED)
    (place / "start").write_bytes(adapted.build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW").checkpoint)
    with session(**STORED) as s:
        take_steps(s, feeds(), 2)
        s.save(place / "full")
        s.save(place / "parameters", include_optimizer_state=False)
        trainweb.CheckpointStore(place).save(s, "kept")
        fitted(s, place, 1)
    return place


@pytest.mark.parametrize("door", DOORS)
def test_a_checkpoint_of_another_scaling_is_refused_and_nothing_changes(door: str, folder: Path) -> None:
    with session(**OWN) as s:
        take_steps(s, feeds(), 1)
        before = everything(s)
        with pytest.raises(CheckpointError, match=REFUSED):
            DOORS[door](s, folder)
        assert everything(s) == before
    with session(**STORED) as s:
        DOORS[door](s, folder)


@pytest.mark.parametrize("name", ["full", "parameters", "start"])
def test_a_session_of_artifacts_refuses_a_checkpoint_of_another_scaling(name: str, folder: Path) -> None:
    made = inject(base_of("attention", "dynamo"), ["q_proj", "v_proj"], rank=4, **OWN).build_artifacts(
        loss="CrossEntropyLoss", optimizer="AdamW"
    )
    files = {**made, "checkpoint": folder / name}
    with pytest.raises(CheckpointError, match=REFUSED):
        trainweb.TrainingSession(**files)
    state = trainweb.CheckpointState.load_checkpoint(folder / name)
    with trainweb.TrainingSession(**{**made, "checkpoint": made.checkpoint}) as s:
        before = everything(s)
        with pytest.raises(CheckpointError, match=REFUSED):
            trainweb.TrainingSession(state, made.train_model)
        other = inject(base_of("attention", "dynamo"), ["q_proj", "v_proj"], rank=4, **STORED)
        with pytest.raises(CheckpointError, match="have the scaling '1', and this session's adapters have '2'"):
            trainweb.TrainingSession(s.state, other.build_artifacts(loss="CrossEntropyLoss").train_model)
        assert everything(s) == before


def test_other_settings_of_the_same_scaling_go_on_with_the_same_bytes(folder: Path) -> None:
    """4 / sqrt(4) is 8 / 4."""
    ends = []
    for lora in (STORED, {"alpha": 4, "use_rslora": True}):
        with session(**lora) as s:
            s.load_checkpoint(folder / "full")
            ends.append((take_steps(s, feeds(), 3), everything(s)))
    assert ends[0] == ends[1]


def test_a_file_without_a_scaling_is_taken_and_the_session_writes_its_own(folder: Path) -> None:
    """Files of earlier versions, and those that ONNX Runtime wrote."""
    contents = read_checkpoint(folder / "full")
    assert contents.scaling == "2"
    kept = TensorFile.from_bytes(trainweb.CheckpointStore(folder).read("kept"))
    assert kept.metadata.pop("scaling") == "2"
    older = write_checkpoint(replace(contents, scaling=""))
    with session(**OWN) as s:
        for file in (older, kept.to_bytes()):
            s.load_checkpoint(file)
            assert s.step_count() == 2
            assert read_checkpoint(s.save()).scaling == take_snapshot(s._core).metadata["scaling"] == "1"
    made = inject(base_of("attention", "dynamo"), ["q_proj", "v_proj"], rank=4, **OWN)
    files = {**made.build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW"), "checkpoint": older}
    with trainweb.TrainingSession(**files) as s:
        assert read_checkpoint(s.save()).scaling == "1"


def test_a_scaling_of_any_length_has_a_short_error(folder: Path) -> None:
    long = write_checkpoint(replace(read_checkpoint(folder / "full"), scaling="9" * 100_000))
    with session(**OWN) as s, pytest.raises(CheckpointError, match=re.escape("have the scaling '999")) as error:
        s.load_checkpoint(long)
    assert len(str(error.value)) < 1000
