"""The questions of the page's worker to Python, called natively: JSON and bytes in and out, errors as values."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.backend.wasm.engine import get_engine
from trainweb.errors import ModelError
from trainweb.ir.layout import CONSTANTS, PREPARED
from trainweb.page import bridge
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.models import read_models
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import TRAIN, StepKind

from .remote_files import fill_segments

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


def assembled(result: tuple[str, Any], bases: list[int]) -> bytes:
    """The file of an answer, put together as the worker does."""
    answer(result)
    file, at = b"", 0
    for part in json.loads(result[0])["data"]["parts"]:
        if isinstance(part, int):
            file += result[1][at : at + part]
            at += part
        else:
            store, segment, offset, nbytes = part
            assert store == "segment"
            file += get_engine().read(bases[segment] + offset, nbytes)
    assert at == len(result[1])
    return file


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
        core.step(TRAIN, feeds)
        core.optimizer_step()
        core.lazy_reset_grad()
    yield core
    core.release()


def allocated(header: dict[str, Any]) -> list[int]:
    """Addresses of zeroed segments, as the worker makes them."""
    engine = get_engine()
    bases = [engine.alloc(s["bytes"]) if s["bytes"] else 0 for s in header["segments"]]
    for base, segment in zip(bases, header["segments"], strict=True):
        if base:
            engine.write(base, bytes(segment["bytes"]))
    return bases


def test_a_session_comes_as_the_header_and_blobs_of_a_bundle() -> None:
    text, blobs = bridge.create(*map(read, FILES), "{}")
    made = json.loads(text)["ok"]
    header = made["header"]
    assert [v["name"] for v in header["inputs"]["train"]] == ["x", "labels"] and header["hasOptimizer"]
    assert header["plans"] == [] and header["models"] == {}
    state = CheckpointState.load_checkpoint(read("checkpoint"))
    engine = get_engine()
    bases = allocated(header)
    fill_segments(made["handle"], bases)
    values = np.frombuffer(engine.read(bases[2], header["segments"][2]["bytes"]), np.float32)
    start, nbytes = header["segments"][6]["data"]
    assert np.frombuffer(blobs, np.float32, nbytes // 4, start)[1] == np.float32(0.001)
    for slot in header["parameters"]:
        wanted = np.frombuffer(state._holder.read(slot["name"]).data, np.float32)
        assert np.array_equal(values[slot["offset"] :][: wanted.size], wanted)
    for base in filter(None, bases):
        engine.free(base)
    answer(bridge.release(made["handle"]))


def test_a_plan_is_that_of_a_native_session(handle: int, core: SessionCore) -> None:
    """Word for word, constants and code: the bridge compiles what a native session would."""
    for kind, overwrite in (("train", True), ("eval", True)):
        names = ("x", "labels") if kind == "train" else tuple(core.inputs["eval"])
        signature = [s for s in SIGNATURE if s["name"] in names]
        text, blobs = bridge.compile_plan(handle, kind, overwrite, json.dumps(signature), "[]")
        plan = json.loads(text)["ok"]
        feeds = {s["name"]: trainweb.ir.shapes.TensorType(s["dtype"], tuple(s["dims"])) for s in signature}
        wanted = core.models.compile_step(StepKind(kind), feeds, overwrite)
        parts = {"words": wanted.words, "constants": wanted.constants, "code": wanted.code}
        for part, expected in parts.items():
            start, nbytes = plan[part]
            assert bytes(blobs[start : start + nbytes]) == expected
        assert plan["text"] == wanted.text and plan["nodes"] == wanted.nodes
        assert "target" not in plan, "a plan without a target is for the kernels"
        assert bridge.compile_plan(handle, kind, overwrite, json.dumps(signature), "[]", "wasm") == (text, blobs)
        assert error(bridge.compile_plan(handle, kind, overwrite, json.dumps(signature), "[]", "abacus"))
        assert all(slot["segment"] not in (CONSTANTS, PREPARED) for slot in plan["inputs"])


def test_files_are_written_from_the_memory_of_a_session(handle: int, core: SessionCore) -> None:
    core.add_property("epoch", 2**60 + 1)
    core.add_property("rate", float("inf"))
    bases = json.dumps(core.host.bases)
    properties = json.dumps([["epoch", "int", str(2**60 + 1)], ["rate", "float", "Infinity"]])
    for include in (False, True):
        result = bridge.checkpoint(handle, include, properties, bases)
        assert assembled(result, core.host.bases) == core.save_checkpoint(include)
    outputs = core.outputs["eval"][1:] or core.outputs["eval"]
    result = bridge.export(handle, json.dumps(outputs), bases)
    assert assembled(result, core.host.bases) == core.export_model_for_inferencing(outputs, ema=False)
    assert error(bridge.export(handle, '["nope"]', bases))["name"] == "ModelError"


def test_models_of_a_bundle_are_those_it_was_made_of(core: SessionCore) -> None:
    state = CheckpointState.load_checkpoint(read("checkpoint"))
    files = {"train_model": read("training_model.onnx"), "eval_model": read("eval_model.onnx")}
    bundle = make_bundle(core.models, state._lent(), [], files)
    length = int.from_bytes(bundle[12:16], "little")
    header = json.loads(bundle[64 : 64 + length])
    ((start, nbytes),) = header["models"]["checkpoint"]
    remainder = bundle[64 + length + start :][:nbytes]
    given = (read("training_model.onnx"), remainder, read("eval_model.onnx"), read("optimizer_model.onnx"))
    made = answer(bridge.open_models(*given, json.dumps(header["parameters"]), "{}"))
    result = bridge.checkpoint(made["handle"], True, "[]", json.dumps(core.host.bases))
    assert assembled(result, core.host.bases) == core.save_checkpoint(True)
    answer(bridge.release(made["handle"]))
    header["parameters"][0]["dims"].append(1)
    assert error(bridge.open_models(*given, json.dumps(header["parameters"]), "{}"))["name"] == "ModelError"


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        ({"memory_budget": -1}, "LimitError", "memoryBudget"),
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


def announced(result: tuple[str, Any]) -> dict[str, Any]:
    return dict(json.loads(result[0])["data"], found=len(result[1]))


def test_bytes_are_announced_with_size_and_checksum(handle: int, core: SessionCore) -> None:
    bases = json.dumps(core.host.bases)
    for result in (
        bridge.checkpoint(handle, True, "[]", bases),
        bridge.export(handle, '["logits"]', bases),
        bridge.compile_plan(handle, "train", True, json.dumps(SIGNATURE), "[]"),
    ):
        data = announced(result)
        assert data["nbytes"] == data["found"]
        assert data["crc32"] == bridge.sample_checksum(result[1])


@pytest.mark.parametrize("changed", [0, 4095, 100_000 // 15 + 7, 104_095])
def test_checksums_of_large_answers_are_of_samples(changed: int) -> None:
    data = bytearray(np.random.default_rng(3).bytes(104_096))
    whole = bridge.sample_checksum(data)
    data[52_000] ^= 1  # between two blocks
    assert bridge.sample_checksum(data) == whole
    data[changed] ^= 1
    assert bridge.sample_checksum(data) != whole


def test_too_little_memory_is_told_with_the_size_of_the_weights(
    handle: int, core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    arguments = (handle, True, "[]", json.dumps(core.host.bases))
    before = bridge.checkpoint(*arguments)[1]
    monkeypatch.setattr(bridge, "checkpoint_parts", exhausted)
    told = error(bridge.checkpoint(*arguments))
    assert told == {"name": "MemoryError", "message": "", "nbytes": 4 * core.layout.size}
    monkeypatch.undo()
    assert bridge.checkpoint(*arguments)[1] == before


@pytest.mark.parametrize("include_optimizer_state", [False, True])
def test_weights_do_not_pass_through_python(include_optimizer_state: bool) -> None:
    """Python's memory in a page ends at 2 GiB."""
    rows = 4096
    weights = np.arange(rows * 256, dtype=np.float32).reshape(rows, 256)
    model = make_model(
        [helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": [1, rows]}, {"y": [1, 256]}, {"w": weights}
    ).SerializeToString()
    config = json.dumps({"loss": "CrossEntropyLoss", "optimizer": "AdamW"})
    made = answer(bridge.create_from_model(model, config, "{}"))
    engine = get_engine()
    bases = allocated(made["header"])
    fill_segments(made["handle"], bases)
    arguments = (made["handle"], include_optimizer_state, "[]", json.dumps(bases))
    bridge.checkpoint(*arguments)  # imports
    tracemalloc.start()
    try:
        checkpoint = bridge.checkpoint(*arguments)
        exported = bridge.export(made["handle"], '["y"]', json.dumps(bases))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * weights.nbytes
    for result in (checkpoint, exported):
        assert assembled(result, bases).count(weights.tobytes()) == 1
    read_again = CheckpointState.load_checkpoint(assembled(checkpoint, bases))
    assert np.array_equal(np.frombuffer(read_again._holder.read("w").data, np.float32), weights.reshape(-1))
    bridge.release(made["handle"])
    for base in filter(None, bases):
        engine.free(base)


def test_texts_on_artifacts_have_the_names_of_the_page() -> None:
    config = {"loss": "CrossEntropyLoss", "stop_gradient": ["batch_norm.x"]}
    error = json.loads(bridge.create_from_model(read("base.onnx"), json.dumps(config), "{}")[0])["error"]
    # Names of tensors stay, whatever they are.
    assert error["message"].startswith("stopGradient: the model has no tensor 'batch_norm.x'")
    with pytest.raises(ModelError, match="stop_gradient: the model has no tensor 'nowhere'"):
        build_artifacts(read("base.onnx"), loss="CrossEntropyLoss", stop_gradient=["nowhere"])
    config = {"loss": "CrossEntropyLoss", "requires_grad": ["fc1.bias"]}
    report = answer(bridge.inspect_model(read("base.onnx"), json.dumps(config), "{}"))
    reasons = {d["name"]: d["reason"] for d in (*report["trained"], *report["leftOut"])}
    assert (reasons["fc1.bias"], reasons["fc2.bias"]) == ("named in requiresGrad", "not named in requiresGrad")
    missing = answer(bridge.inspect_model(read("base.onnx"), "{}", "{}"))["missingLoss"]
    assert missing == (
        "Output 'logits' has shape [batch, 4] and is not a loss yet: name one, such as CrossEntropyLoss for classes, "
        "MSELoss or L1Loss for numbers, BCEWithLogitsLoss for yes and no."
    )
