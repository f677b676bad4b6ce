"""What the page's worker asks Python for, called natively: JSON and bytes in and out, errors as values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.backend.wasm.engine import get_engine
from trainweb.ir.program import CONSTANTS, PREPARED
from trainweb.training import bridge
from trainweb.training.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.models import read_models
from trainweb.training.state import CheckpointState

GOLDEN = Path(__file__).parent.parent / "golden" / "mlp"
FILES = ("training_model.onnx", "checkpoint", "eval_model.onnx", "optimizer_model.onnx")
SIGNATURE = [
    {"name": "x", "dtype": "float32", "dims": [8, 10]},
    {"name": "labels", "dtype": "int64", "dims": [8]},
]


def read(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def answer(result: tuple[str, Any]) -> Any:
    reply = json.loads(result[0])
    assert "error" not in reply, reply
    return reply["ok"]


def error(result: tuple[str, Any]) -> dict[str, Any]:
    reply = json.loads(result[0])
    assert "ok" not in reply
    return reply["error"]


@pytest.fixture
def handle() -> Iterator[int]:
    made = answer(bridge.create(*map(read, FILES), "{}"))
    yield made["handle"]
    answer(bridge.release(made["handle"]))


@pytest.fixture
def core() -> Iterator[SessionCore]:
    """A session that has trained, whose memory the bridge can be shown."""
    train, checkpoint, *others = (read(name) for name in FILES)
    state = CheckpointState.load_checkpoint(checkpoint)
    core = SessionCore(state, *read_models(train, *others))
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((8, 10)).astype(np.float32), rng.integers(0, 3, 8)
    feeds = {
        "x": trainweb.model.graph.Tensor("x", "float32", (8, 10), x.tobytes()),
        "labels": trainweb.model.graph.Tensor("labels", "int64", (8,), labels.tobytes()),
    }
    for _ in range(3):
        core.step("train", feeds)
        core.optimizer_step()
        core.lazy_reset_grad()
    yield core
    core.release()


def test_a_session_comes_as_the_header_and_blobs_of_a_bundle() -> None:
    text, blobs = bridge.create(*map(read, FILES), "{}")
    made = json.loads(text)["ok"]
    header = made["header"]
    assert [v["name"] for v in header["inputs"]["train"]] == ["x", "labels"] and header["hasOptimizer"]
    assert header["plans"] == [] and header["models"] == {}
    state = CheckpointState.load_checkpoint(read("checkpoint"))
    start, nbytes = header["segments"][2]["data"]
    values = np.frombuffer(blobs, np.float32, nbytes // 4, start)
    for slot in header["parameters"]:
        wanted = np.frombuffer(state.store.read(slot["name"]).data, np.float32)
        assert np.array_equal(values[slot["offset"] :][: wanted.size], wanted)
    answer(bridge.release(made["handle"]))


def test_a_plan_is_that_of_a_native_session(handle: int, core: SessionCore) -> None:
    """Word for word, constants and code: the bridge compiles what a native session would."""
    for kind, overwrite in (("train", True), ("eval", True)):
        names = ("x", "labels") if kind == "train" else tuple(core.inputs["eval"])
        signature = [s for s in SIGNATURE if s["name"] in names]
        text, blobs = bridge.compile_plan(handle, kind, overwrite, json.dumps(signature), "[]")
        plan = json.loads(text)["ok"]
        feeds = {s["name"]: trainweb.ir.shapes.TensorType(s["dtype"], tuple(s["dims"])) for s in signature}
        wanted = core.models.compile_step(kind, feeds, overwrite)
        for part in ("words", "constants", "code"):
            start, nbytes = plan[part]
            assert bytes(blobs[start : start + nbytes]) == getattr(wanted, part)
        assert plan["text"] == wanted.text and plan["nodes"] == wanted.nodes
        assert all(slot["segment"] not in (CONSTANTS, PREPARED) for slot in plan["inputs"])


def test_files_are_written_from_the_memory_of_a_session(handle: int, core: SessionCore) -> None:
    core.add_property("epoch", 2**60 + 1)
    core.add_property("rate", float("inf"))
    bases = json.dumps(core.host.bases)
    properties = json.dumps([["epoch", "int", str(2**60 + 1)], ["rate", "float", "Infinity"]])
    for include in (False, True):
        text, data = bridge.checkpoint(handle, include, properties, bases)
        answer((text, data))
        assert bytes(data) == core.save_checkpoint(include)
    outputs = core.outputs["eval"][1:] or core.outputs["eval"]
    text, data = bridge.export(handle, json.dumps(outputs), bases)
    answer((text, data))
    assert bytes(data) == core.export_model_for_inferencing(outputs)
    assert error(bridge.export(handle, '["nope"]', bases))["name"] == "ModelError"


def test_models_of_a_bundle_are_those_it_was_made_of(core: SessionCore) -> None:
    state = CheckpointState.load_checkpoint(read("checkpoint"))
    files = {"train_model": read("training_model.onnx"), "eval_model": read("eval_model.onnx")}
    bundle = make_bundle(core.models, state.lent(), {}, [], files)
    length = int.from_bytes(bundle[12:16], "little")
    header = json.loads(bundle[64 : 64 + length])
    start, nbytes = header["models"]["checkpoint"]
    remainder = bundle[64 + length + start :][:nbytes]
    given = (read("training_model.onnx"), remainder, read("eval_model.onnx"), read("optimizer_model.onnx"))
    made = answer(bridge.open_models(*given, json.dumps(header["parameters"]), "{}"))
    text, data = bridge.checkpoint(made["handle"], True, "[]", json.dumps(core.host.bases))
    answer((text, data))
    assert bytes(data) == core.save_checkpoint(True)
    answer(bridge.release(made["handle"]))
    header["parameters"][0]["dims"].append(1)
    assert error(bridge.open_models(*given, json.dumps(header["parameters"]), "{}"))["name"] == "ModelError"


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        ({"memory_budget": -1}, "LimitError", "memory_budget"),
        ({"limits": {"arena_bytes": -1}}, "LimitError", "arena_bytes"),
        ({"limits": {"arena": 1}}, "LimitError", "'arena'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: dict[str, Any], name: str, text: str) -> None:
    reply = error(bridge.create(read("training_model.onnx"), read("checkpoint"), None, None, json.dumps(options)))
    assert reply["name"] == name and text in reply["message"]


def test_errors_carry_class_message_and_fields(handle: int) -> None:
    assert error(bridge.compile_plan(9999, "train", True, "[]", "[]"))["name"] == "ReleasedError"
    assert error(bridge.create(b"junk", read("checkpoint"), None, None, "{}"))["name"] == "ModelError"
    assert error(bridge.artifact(handle, "training_model"))["name"] == "SessionError"


def test_nothing_stays_in_kernel_memory() -> None:
    before = get_engine().bytes_in_use()
    made = answer(bridge.create(*map(read, FILES), "{}"))
    answer(bridge.compile_plan(made["handle"], "train", True, json.dumps(SIGNATURE), "[]"))
    assert get_engine().bytes_in_use() == before
    answer(bridge.release(made["handle"]))
