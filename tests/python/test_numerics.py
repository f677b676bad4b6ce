"""`debug={"check_numerics": True}`: the node that a model was built to fail at, and no other model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.conformance.faults import FAULTS, HARMLESS, POSITIVE, Case, W, model, node, row_of
from tests.conformance.models import make_model
from tests.zoo.recording import load
from tests.zoo.replay import build, feed_of

import trainweb
from trainweb.artifacts import LossType, OptimType
from trainweb.errors import NumericsError, UnsupportedError

from .sessions import batch, session, snapshot, unchanged, warm

CHECKED = {"debug": {"check_numerics": True}}


@contextmanager
def checked(
    case: Case, options: dict[str, Any] | None = None
) -> Iterator[tuple[trainweb.TrainingSession, dict[str, Any]]]:
    with trainweb.TrainingSession.from_model(
        model(case), loss=LossType.MSELoss, optimizer=OptimType.AdamW, options=CHECKED if options is None else options
    ) as s:
        (target,) = {*s.input_names()} - {"x", *case.fed}
        yield s, {"x": POSITIVE, target: np.zeros((5, 2), np.float32), **case.fed}


@pytest.mark.parametrize("what", list(FAULTS))
def test_the_node_is_named_and_the_session_is_as_before(what: str) -> None:
    case = FAULTS[what]
    with checked(case) as (s, feeds):
        masked = "keep" in feeds
        good = feeds | ({"keep": np.ones((5, 1), bool)} if masked else {})
        s.train_step(good)
        s.optimizer_step()
        s.train_step(good)
        for step in (s.train_step, s.eval_step):
            with unchanged(s), pytest.raises(NumericsError) as caught:
                step({**feeds, "x": case.x})
            assert (caught.value.node, caught.value.tensor, caught.value.step) == (case.node, case.tensor, 1)
            assert caught.value.op == case.node.split()[0]
            assert f"in the {step.__name__.split('_')[0]} step" in str(caught.value)


def test_ranges_are_those_of_numpy() -> None:
    case = FAULTS["log of zero"]
    with checked(case) as (s, feeds), pytest.raises(NumericsError) as caught:
        s.train_step({**feeds, "x": case.x})
    h = case.x.astype(np.float64) @ W
    logs = np.log(h[h > 0])
    (read,) = caught.value.inputs
    assert read == {
        "name": "h",
        "shape": (5, 4),
        "min": 0,
        "max": pytest.approx(h.max(), 1e-5),
        "nan": 0,
        "infinite": 0,
    }
    made = caught.value.made
    assert (made["min"], made["max"]) == (pytest.approx(logs.min(), 1e-4), pytest.approx(logs.max(), 1e-4))
    assert (made["nan"], made["infinite"]) == (0, 4)
    assert "makes 4 infinite among the 20 values of 'l'" in str(caught.value)


def test_what_goes_wrong_in_the_backward_pass() -> None:
    # The root of 0 is 0, and its slope there infinite.
    case = Case((node("Sqrt", "h", "l"),), row_of(0))
    with checked(case) as (s, feeds):
        s.eval_step({**feeds, "x": case.x})
        with unchanged(s), pytest.raises(NumericsError) as caught:
            s.train_step({**feeds, "x": case.x})
        assert "grad" in caught.value.tensor and caught.value.made["infinite"] + caught.value.made["nan"] == 4


def test_what_a_where_leaves_out_forward_is_a_fault_backward() -> None:
    nodes = (node("Greater", "h zero", "some"), node("Log", "h", "logs"), node("Where", "some logs zero", "l"))
    case = Case(nodes, row_of(0), {"zero": np.float32(0)})
    with checked(case) as (s, feeds):
        s.eval_step({**feeds, "x": case.x})
        # 0 divided by 0: the gradient of the omitted branch, by the operand of the logarithm.
        with unchanged(s), pytest.raises(NumericsError) as caught:
            s.train_step({**feeds, "x": case.x})
        assert caught.value.made["nan"] == 4 and "logs" not in caught.value.inputs


def test_what_goes_wrong_in_the_optimizer() -> None:
    with session(options=CHECKED) as s:
        warm(s)
        s.set_learning_rate(3e38)
        s.optimizer_step()
        with unchanged(s), pytest.raises(NumericsError) as caught:
            s.optimizer_step()
        error = caught.value
        assert error.op == "AdamWOptimizer" and error.tensor in s.parameter_names(trainable_only=True)
        read = {r["name"]: r for r in error.inputs}
        assert read["learning_rate"]["max"] == pytest.approx(3e38)
        assert read[f"{error.tensor}_grad"]["max"] == pytest.approx(s.get_gradient(error.tensor).max(), 1e-5)


@pytest.mark.parametrize("what", list(HARMLESS))
def test_what_is_infinite_on_purpose_is_no_fault(what: str) -> None:
    case = HARMLESS[what]
    with checked(case) as (s, feeds):
        s.train_step(feeds)
        s.eval_step(feeds)
        s.optimizer_step()
        assert np.isfinite(s.get_contiguous_parameters(False)).all()


def test_a_nan_that_is_fed_is_a_fault_where_it_reaches_the_loss() -> None:
    case = Case((node("Relu", "h", "l"),), row_of(np.nan))
    with checked(case) as (s, feeds), unchanged(s), pytest.raises(NumericsError) as caught:
        s.train_step({**feeds, "x": case.x})
    assert (caught.value.node, caught.value.tensor) == ("MatMul node 'the h'", "h")
    assert {r["name"]: r["nan"] for r in caught.value.inputs} == {"x": 3, "w": 0}


@pytest.mark.parametrize("kind", ["mlp", "batch_norm", "dropout", "embedding"])
def test_a_run_that_is_checked_gives_the_same_bytes(kind: str) -> None:
    found = []
    for options in ({}, CHECKED):
        with session(kind, options=options) as s:
            for k in range(4):
                s.train_step(batch(kind, seed=k))
                if k % 2:
                    s.optimizer_step()
                    s.lazy_reset_grad()
            s.eval_step(batch(kind))
            found.append(snapshot(s)["segments"])
    assert found[0] == found[1]


def test_plans_of_a_session_without_it_are_the_same() -> None:
    words = []
    for options in ({}, {"debug": {"check_numerics": False}}, CHECKED):
        with session(options=options) as s:
            s.train_step(batch())
            plans = [loaded.plan for loaded in s._core.host.loaded]
            assert len(plans) == (2 if options is CHECKED else 1)
            words.append(next(p.words for p in plans if not p.inspected_nodes))
    assert words[0] == words[1] == words[2]


@pytest.mark.parametrize(
    ("debug", "text"),
    [
        (True, "'debug' must be a dict of check_numerics, got bool"),
        ({"check_numeric": True}, "did you mean 'check_numerics'"),
        ({"check_numerics": 1}, "debug.check_numerics must be a bool, got 1"),
    ],
    ids=["bool", "name", "value"],
)
def test_wrong_options_are_refused(debug: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text), session(options={"debug": debug}):
        pass


def test_an_inference_session_refuses_it() -> None:
    net = make_model([node("Log", "x", "y")], {"x": [2]}, {"y": [2]}, {})
    with pytest.raises(UnsupportedError, match=r"debug.check_numerics is for steps"):
        trainweb.InferenceSession(net.SerializeToString(), CHECKED)


@pytest.mark.parametrize("name", ["gpt2", "swin"])
def test_masks_of_exported_models_are_no_fault(name: str) -> None:
    recording = load(name)
    made = build(recording, sorted(recording.files)[0], "AdamW")
    found = []
    for options in (None, CHECKED):
        with trainweb.TrainingSession(**made, options=options) as s:
            s.train_step({n: feed_of(recording, n) for n in s.input_names()})
            s.optimizer_step()
            found.append(s.get_contiguous_parameters(False).tobytes())
    assert found[0] == found[1]
