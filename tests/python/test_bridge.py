"""What the page's worker calls, called natively: JSON and bytes in and out, errors as values."""

from __future__ import annotations

import binascii
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from trainweb.ir.layout import STATE_RANDOM_OFFSET, STATE_SEED
from trainweb.training import bridge

GOLDEN = Path(__file__).parent.parent / "golden" / "mlp"
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
    files = ("training_model.onnx", "checkpoint", "eval_model.onnx", "optimizer_model.onnx")
    made = answer(bridge.create(*map(read, files), "{}"))
    assert made["trainingInputNames"] == ["x", "labels"] and made["hasOptimizer"]
    yield made["handle"]
    answer(bridge.release(made["handle"]))


def test_a_plan_says_where_feeds_and_results_lie(handle: int) -> None:
    plan = answer(bridge.plan(handle, "train", json.dumps(SIGNATURE)))
    core = bridge._sessions[handle].training()
    inputs, expected = np.load(GOLDEN / "inputs.npz"), np.load(GOLDEN / "expected.npz")
    trace = json.loads((GOLDEN / "trace.json").read_text())["trace"]
    call = next(c for c in trace if c["op"] == "train")
    for place in plan["inputs"]:
        array = inputs[f"{call['feed']}.{place['name']}"]
        assert (array.dtype.name, list(array.shape), array.nbytes) == (place["dtype"], place["dims"], place["nbytes"])
        core.engine.write(place["ptr"], array.tobytes())
    assert core.engine.run(plan["ptr"]) == 0
    (output,) = plan["outputs"]
    loss = np.frombuffer(core.engine.read(output["ptr"], output["nbytes"]), np.float32)[0]
    (key,) = (v for k, v in call["results"].items() if k.startswith("out."))
    assert loss == pytest.approx(float(expected[key]), rel=1e-5)


def test_a_failed_run_is_explained_by_node_value_and_position(handle: int) -> None:
    plan = answer(bridge.plan(handle, "train", json.dumps(SIGNATURE)))
    core = bridge._sessions[handle].training()
    feeds = {"x": np.zeros((8, 10), np.float32), "labels": np.array([0, 1, 2, 99, 0, 0, 0, 0])}
    for place in plan["inputs"]:
        core.engine.write(place["ptr"], feeds[place["name"]].tobytes())
    status = core.engine.run(plan["ptr"])
    reply = error(bridge.explain(handle, plan["ptr"], status))
    assert reply["name"] == "FeedError"
    for said in ("99", "position 3", "SoftmaxCrossEntropyLoss"):
        assert said in reply["message"]


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
    wrong = [{**SIGNATURE[0], "dtype": "float64"}, SIGNATURE[1]]
    assert error(bridge.plan(handle, "train", json.dumps(wrong)))["name"] == "FeedError"
    assert error(bridge.call(handle, "get_parameter", '["nope"]'))["name"] == "CheckpointError"
    assert error(bridge.call(9999, "get_parameters_size", "[]"))["name"] == "ReleasedError"
    assert error(bridge.create(b"junk", read("checkpoint"), None, None, "{}"))["name"] == "ModelError"


def test_a_seed_is_that_of_one_session(handle: int) -> None:
    other = answer(bridge.create(read("training_model.onnx"), read("checkpoint"), None, None, "{}"))["handle"]
    try:
        cores = [bridge._sessions[h].training() for h in (handle, other)]
        drawn = (STATE_SEED, STATE_RANDOM_OFFSET)
        before = [cores[1].host.read_state(word) for word in drawn]
        answer(bridge.call(handle, "set_seed", "[7]"))
        assert [cores[0].host.read_state(word) for word in drawn] == [7, 0]
        assert [cores[1].host.read_state(word) for word in drawn] == before
    finally:
        answer(bridge.release(other))


def announced(result: tuple[str, Any]) -> dict[str, Any]:
    return dict(json.loads(result[0])["data"], found=len(result[1]))


def test_bytes_are_announced_with_format_size_and_checksum(handle: int) -> None:
    for method, arguments, kind in (
        ("save_checkpoint", [True], "checkpoint"),
        ("export_model_for_inferencing", [["logits"]], "onnx"),
        ("get_contiguous_parameters", [False], "tensor"),
    ):
        result = bridge.call(handle, method, json.dumps(arguments))
        data = announced(result)
        assert (data["format"], data["nbytes"]) == (kind, data["found"])
        assert data["crc32"] == binascii.crc32(result[1])


@pytest.mark.parametrize("changed", [0, 4095, 100_000 // 15 + 7, 104_095])
def test_checksums_of_large_answers_are_of_samples(changed: int) -> None:
    data = bytearray(np.random.default_rng(3).bytes(104_096))
    whole = bridge.sample_checksum(data)
    data[52_000] ^= 1  # between two blocks
    assert bridge.sample_checksum(data) == whole
    data[changed] ^= 1
    assert bridge.sample_checksum(data) != whole


def test_too_little_memory_is_told_with_the_size_of_the_weights(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    before = bridge.call(handle, "save_checkpoint", "[true]")[1]
    monkeypatch.setitem(bridge.METHODS, "save_checkpoint", exhausted)
    nbytes = 4 * answer(bridge.call(handle, "get_parameters_size", "[false]"))
    told = error(bridge.call(handle, "save_checkpoint", "[true]"))
    assert told == {"name": "MemoryError", "message": "", "nbytes": nbytes}
    monkeypatch.undo()
    assert bridge.call(handle, "save_checkpoint", "[true]")[1] == before


@pytest.mark.parametrize(("include_optimizer_state", "copies"), [(False, 1), (True, 3)])
def test_a_checkpoint_takes_no_more_memory_than_the_file(include_optimizer_state: bool, copies: int) -> None:
    """Python's memory in a page ends at 2 GiB."""
    rows = 4096
    weights = np.arange(rows * 256, dtype=np.float32).reshape(rows, 256)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"])], "large",
        [helper.make_tensor_value_info("x", 1, [1, rows])], [helper.make_tensor_value_info("y", 1, [1, 256])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    config = json.dumps({"loss": "CrossEntropyLoss", "optimizer": "AdamW"})
    handle = answer(bridge.create_from_model(model, config, "{}"))["handle"]
    arguments = json.dumps([include_optimizer_state])
    bridge.call(handle, "save_checkpoint", arguments)  # imports
    tracemalloc.start()
    try:
        result = bridge.call(handle, "save_checkpoint", arguments)
        size, peak = tracemalloc.get_traced_memory()
        data = result[1]
        assert data is not None and weights.tobytes() in bytes(data)
        del result, data
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        bridge.release(handle)
    assert copies * weights.nbytes <= peak < (copies + 0.1) * weights.nbytes
    assert left < 0.1 * weights.nbytes < size
