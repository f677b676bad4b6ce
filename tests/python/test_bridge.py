"""What the page's worker calls, called natively: JSON and bytes in and out, errors as values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
