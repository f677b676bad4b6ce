"""A checkpoint lacks weights that are constants of the model: it names them, and no session of others takes it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model, normal
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.checkpoint import read_checkpoint, write_checkpoint
from trainweb.errors import CheckpointError
from trainweb.model.safetensors import TensorFile
from trainweb.training.store import take_snapshot

REFUSED = "belongs to another model: the digest of its constants is '[0-9a-f]{16}', and this model's is '[0-9a-f]{16}'"
WIDE = 64
"""Matrices of as many rows and columns are quantized, and stay in their file."""


def net(seed: int, *, mask: float = 0, half: bool = False) -> bytes:
    """Two layers and a mask between them, which is no weight."""
    kind = np.float16 if half else np.float32
    nodes = [
        helper.make_node("MatMul", ["x", "body.weight"], ["h"], name="/body/MatMul"),
        helper.make_node("Add", ["h", "mask"], ["masked"], name="/Add"),
        helper.make_node("MatMul", ["masked", "head.weight"], ["y"], name="/head/MatMul"),
    ]
    tensors = {
        "body.weight": normal(WIDE, WIDE, seed=seed).astype(kind),
        "mask": np.full((1, WIDE), mask, kind),
        "head.weight": normal(WIDE, 2, seed=9).astype(kind),
    }
    model = make_model(nodes, {"x": ["batch", WIDE]}, {"y": ["batch", 2]}, tensors)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    return model.SerializeToString()


def opened(kind: str, seed: int, **more: Any) -> trainweb.TrainingSession:
    model, settings = net(seed, half=kind == "half", **more), {"requires_grad": ["head.weight"]}
    if kind == "quantized":
        model, settings = trainweb.quantize(model, 8, only_frozen=False), {"lora": {"targets": ["body"], "rank": 2}}
    return trainweb.TrainingSession.from_model(model, loss="MSELoss", **settings)


def feeds(kind: str) -> dict[str, np.ndarray]:
    arrays = {"x": normal(4, WIDE, seed=1), "labels": normal(4, 2, seed=2)}
    return {name: array.astype(np.float16 if kind == "half" else np.float32) for name, array in arrays.items()}


KINDS = ("quantized", "float", "half")
Door = Callable[[trainweb.TrainingSession, Path], object]
DOORS: dict[str, Door] = {
    "file": lambda s, folder: s.load_checkpoint(folder / "full"),
    "parameters": lambda s, folder: s.load_checkpoint(folder / "parameters"),
    "contents of a store": lambda s, folder: s.load_checkpoint(trainweb.CheckpointStore(folder).read("kept")),
    "store": lambda s, folder: trainweb.CheckpointStore(folder).load(s, "kept"),
}


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Checkpoints of a session of the model of seed 3."""
    place = tmp_path_factory.mktemp("constants")
    with opened(request.param, 3) as s:
        take_steps(s, feeds(request.param), 2)
        s.save(place / "full")
        s.save(place / "parameters", include_optimizer_state=False)
        trainweb.CheckpointStore(place).save(s, "kept")
    return request.param, place


@pytest.mark.parametrize("door", DOORS)
def test_a_checkpoint_of_another_base_is_refused_and_nothing_changes(door: str, saved: tuple[str, Path]) -> None:
    kind, folder = saved
    with opened(kind, 4) as s:
        take_steps(s, feeds(kind), 1)
        before = take_snapshot(s._core).to_bytes()
        with pytest.raises(CheckpointError, match=REFUSED):
            DOORS[door](s, folder)
        assert take_snapshot(s._core).to_bytes() == before
    with opened(kind, 3, mask=-1.0) as s:  # a checkpoint need not know the mask
        DOORS[door](s, folder)


def test_a_file_without_a_digest_is_taken_and_the_session_writes_its_own(saved: tuple[str, Path]) -> None:
    """Files of earlier builds, and those that ONNX Runtime wrote."""
    kind, folder = saved
    older = write_checkpoint(replace(read_checkpoint(folder / "full"), constants=""))
    kept = TensorFile.from_bytes(trainweb.CheckpointStore(folder).read("kept"))
    del kept.metadata["constants"]
    with opened(kind, 4) as s:
        own = read_checkpoint(s.save()).constants
        for file in (older, kept.to_bytes()):
            s.load_checkpoint(file)
            assert s.step_count() == 2
            assert own == read_checkpoint(s.save()).constants == take_snapshot(s._core).metadata["constants"] != ""


@pytest.mark.parametrize("half", [False, True])
def test_a_session_of_artifacts_takes_the_file_of_a_session_of_the_model(half: bool, tmp_path: Path) -> None:
    """Constants of half precision are in float32 in the artifacts."""
    with opened("half" if half else "float", 3) as s:
        s.save(tmp_path / "full")
    for seed in (3, 4):
        files = build_artifacts(net(seed, half=half), loss="MSELoss", optimizer="AdamW", requires_grad=["head.weight"])
        with trainweb.TrainingSession(**{**files, "checkpoint": files.checkpoint}) as s:
            if seed == 3:
                s.load_checkpoint(tmp_path / "full")
            else:
                with pytest.raises(CheckpointError, match="another model"):
                    s.load_checkpoint(tmp_path / "full")
