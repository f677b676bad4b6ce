"""Sessions on one state, and sessions that are dropped without `release`."""

import gc
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import bytes_in_use
from tests.golden.calls.scenarios import modules_on_one_state
from tests.python.sessions import artifacts, batch, session, snapshot, warm

import trainweb
from trainweb.api import CheckpointState, Module, Optimizer
from trainweb.checkpoint import read_checkpoint
from trainweb.training.core import free_abandoned

GOLDEN = Path(__file__).parent.parent / "golden"
EXPECTED = json.loads((GOLDEN / "calls" / "expected.json").read_text())
TOLERANCE = {"rtol": 2e-4, "atol": 1e-6}


def test_two_modules_on_one_state_behave_as_in_onnxruntime() -> None:
    """Gradients, parameters, losses and rates after every call, against the recording."""
    folder = GOLDEN / "mlp"
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    modules: list[Module] = []

    def module() -> Module:
        modules.append(Module(folder / "training_model.onnx", state, folder / "eval_model.onnx"))
        return modules[-1]

    found = modules_on_one_state(state, module, lambda m: Optimizer(folder / "optimizer_model.onnx", m))
    for m in modules:
        m.release()
    for got, want in zip(found, EXPECTED["two_modules"], strict=True):
        assert got["after"] == want["after"]
        for key in ("gradients", "parameters"):
            assert got[key].keys() == want[key].keys()
            for name, value in want[key].items():
                np.testing.assert_allclose(got[key][name], value, **TOLERANCE, err_msg=f"{want['after']}: {name}")
        if want["value"] is not None:
            np.testing.assert_allclose(got["value"], want["value"], **TOLERANCE, err_msg=want["after"])


def test_two_sessions_that_alternate_are_one_training() -> None:
    """The optimizer steps of both add up, schedule and moments included."""
    made = artifacts("mlp")
    models = made.training_model, made.eval_model, made.optimizer_model
    with session() as alone:
        alone.register_linear_lr_scheduler(1, 9, 0.1)
        for k in range(4):
            alone.train_step(batch(seed=k))
            alone.optimizer_step()
            alone.lazy_reset_grad()
            alone.scheduler_step()
        expected = snapshot(alone)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with trainweb.TrainingSession(state, *models) as a, trainweb.TrainingSession(state, *models) as b:
        a.register_linear_lr_scheduler(1, 9, 0.1)
        for k in range(4):
            s, other = (a, b) if k % 2 else (b, a)
            s.train_step(batch(seed=k))
            s.optimizer_step()
            s.lazy_reset_grad()
            s.scheduler_step()
            assert other.get_learning_rate() == s.get_learning_rate()
        got = snapshot(s)
        name = next(iter(state.parameters))
        a.update_parameter(name, np.full_like(state.parameters[name].data, 2))
        assert (b.get_parameter(name) == 2).all() and (state.parameters[name].data == 2).all()
        b.load_parameters_buffer(np.zeros(b.get_parameters_size(), np.float32))
        assert not a.get_contiguous_parameters().any()
    assert (got["lr"], got["step"]) == (expected["lr"], expected["step"])
    assert [got["segments"][k] for k in (2, 4, 5)] == [expected["segments"][k] for k in (2, 4, 5)]
    with pytest.raises(trainweb.errors.ReleasedError):
        a.get_parameters_size()


def test_a_cell_that_makes_a_session_runs_twice() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    before = bytes_in_use()
    held: list[int] = []
    for run in range(4):
        s = trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)
        warm(s)
        assert s._core.state._holder.contents().step == run + 1, "it goes on from where the last one was"
        held.append(bytes_in_use() - before)
    # Each is dropped when its name holds the next one, and freed when the one after is made.
    assert held[1] == held[2] == held[3] <= 2 * held[0]
    expected = s.get_contiguous_parameters(False)
    del s
    gc.collect()
    free_abandoned()
    assert bytes_in_use() == before
    got = np.concatenate(
        [state.parameters[n].data.ravel() for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")]
    )
    np.testing.assert_array_equal(got, expected)


def test_what_a_dropped_session_trained_is_saved() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with session() as other:
        warm(other)
        expected = trainweb.CheckpointState.save_checkpoint(other._core.state, include_optimizer_state=True)
    s = trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)
    warm(s)
    del s
    gc.collect()
    assert trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True) == expected
    free_abandoned()
    again = trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True)
    assert again is not None and expected is not None
    found, want = read_checkpoint(again), read_checkpoint(expected)
    # Gradients and random numbers end with their session, the rate does not.
    assert want.is_exact and want.gradients and want.optimizer == "AdamW"
    assert found == replace(want, gradients={}, random=None, reset=True)
