"""A run that is killed after any call and resumed gives the same bytes as one that was not."""

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal
from tests.python.sessions import snapshot

import trainweb
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.checkpoint import SessionContents, read_checkpoint, write_checkpoint
from trainweb.errors import CheckpointError
from trainweb.ir.layout import STATE_LOADS

ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")


def net() -> Any:
    """x[batch, 6] -> MatMul(6 x 5) -> BatchNormalization -> Dropout(0.4) -> MatMul(5 x 3) = logits."""
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
            helper.make_node("BatchNormalization", ["h", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], "bn"),
            helper.make_node("Dropout", ["n", "ratio", "train"], ["d"], "drop"),
            helper.make_node("MatMul", ["d", "w2"], ["logits"], "second"),
        ],
        {"x": ["batch", 6]},
        {"logits": ["batch", 3]},
        {
            "w1": normal(6, 5),
            "bn.scale": np.ones(5, np.float32),
            "bn.bias": np.zeros(5, np.float32),
            "bn.mean": normal(5, seed=1),
            "bn.var": np.ones(5, np.float32),
            "ratio": np.float32(0.4),
            "train": np.bool_(True),
            "w2": normal(5, 3, seed=2),
        },
    )


@pytest.fixture(scope="module")
def made() -> Artifacts:
    return build_artifacts(net(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)


def feeds(k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    return {"x": rng.standard_normal((8, 6)).astype(np.float32), "labels": rng.integers(0, 3, 8)}


def calls() -> list[Callable[[trainweb.TrainingSession], Any]]:
    """Two micro batches an update, a schedule that is stepped, an evaluation, a property."""
    found: list[Callable[[trainweb.TrainingSession], Any]] = [
        lambda s: s.register_linear_lr_scheduler(1, 7, 0.1),
        lambda s: s._core.add_property("epoch", 1),
    ]
    for k in range(3):
        found += [
            lambda s, k=k: s.train_step(feeds(2 * k)),
            lambda s, k=k: s.train_step(feeds(2 * k + 1)),
            lambda s: s.optimizer_step(),
            lambda s: s.lazy_reset_grad(),
            lambda s: s.scheduler_step(),
            lambda s: s.eval_step(feeds(99)),
        ]
    return found


def open_session(made: Artifacts, checkpoint: bytes) -> trainweb.TrainingSession:
    state = trainweb.CheckpointState.load_checkpoint(checkpoint)
    return trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)


def outcome(s: trainweb.TrainingSession, steps: list[Any]) -> tuple[list[bytes], Any]:
    """Bytes of every result, and all that the session remembers at the end."""
    results = []
    for step in steps:
        given = step(s)
        results += [a.tobytes() for a in given.values()] if isinstance(given, dict) else []
    # Gradients that the next step overwrites are no part of the state.
    found = snapshot(s)
    state = bytearray(found["segments"].pop(6))
    del state[4 * STATE_LOADS :]  # how often parameters were loaded and changed
    if state[0]:
        found["segments"].pop(3)
    return results, (found, bytes(state))


def change_rate(checkpoint: SessionContents, value: float) -> None:
    checkpoint.learning_rate = value


def change_schedule(checkpoint: SessionContents, value: tuple[int, int]) -> None:
    checkpoint.schedule = value


def change_start(checkpoint: SessionContents, value: float) -> None:
    checkpoint.initial_lr = value


WORDS: list[tuple[Callable[[SessionContents, Any], None], Any, Any, str]] = [
    (change_rate, 0.5, math.nan, "state.learningRate"),
    (change_rate, 0.0, -0.5, "state.learningRate"),
    (change_start, 0.25, -0.25, "state.initialLr"),
    (change_schedule, (7, 7), (8, 7), "state.warmupStepCount"),
]


@pytest.mark.parametrize(("change", "good", "bad", "field"), WORDS)
def test_a_state_that_no_session_has_is_refused(
    made: Artifacts, change: Callable[[SessionContents, Any], None], good: Any, bad: Any, field: str
) -> None:
    with open_session(made, made.checkpoint) as s:
        s.train_step(feeds(0))
        s.optimizer_step()
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    checkpoint = read_checkpoint(saved)
    change(checkpoint, good)
    with open_session(made, write_checkpoint(checkpoint)) as s:
        s.train_step(feeds(1))
    change(checkpoint, bad)
    with pytest.raises(CheckpointError, match=f"as {field}, expected"):
        open_session(made, write_checkpoint(checkpoint))


@pytest.fixture(scope="module")
def whole(made: Artifacts) -> tuple[list[bytes], Any]:
    trainweb.set_seed(5)
    with open_session(made, made.checkpoint) as s:
        return outcome(s, calls())


@pytest.mark.parametrize("at", range(1, len(calls())))
def test_a_run_killed_after_any_call_resumes(made: Artifacts, whole: tuple[list[bytes], Any], at: int) -> None:
    trainweb.set_seed(5)
    with open_session(made, made.checkpoint) as s:
        before, _ = outcome(s, calls()[:at])
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    trainweb.set_seed(77)  # the checkpoint's own random numbers go on
    with open_session(made, saved) as s:
        after, end = outcome(s, calls()[at:])
        again = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert (before + after, end) == whole
    assert again is not None and read_checkpoint(again).properties == {"epoch": 1}


def test_a_state_that_is_loaded_and_saved_loses_nothing(made: Artifacts) -> None:
    with open_session(made, made.checkpoint) as s:
        for call in calls()[:4]:
            call(s)
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    state = trainweb.CheckpointState.load_checkpoint(saved)
    assert trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True) == saved
    assert set(read_checkpoint(saved).gradients) == {"w1", "w2", "bn.scale", "bn.bias"}
    plain = trainweb.CheckpointState.save_checkpoint(state)
    assert plain is not None and not read_checkpoint(plain).is_exact


def test_a_seed_that_is_set_after_resuming_counts(made: Artifacts) -> None:
    with open_session(made, made.checkpoint) as s:
        s.train_step(feeds(0))
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    losses = []
    for _ in range(2):
        with open_session(made, saved) as s:
            trainweb.set_seed(11)
            losses.append(next(iter(s.train_step(feeds(1)).values())))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r.gradients.pop("w1"), "none of 'w1'"),
        (lambda r: r.gradients.update({"bn.mean": r.gradients["bn.bias"]}), "gradient of 'bn.mean', which is not"),
        (lambda r: r.gradients.update({"w1": r.gradients["bn.bias"]}), "shape mismatch"),
        (lambda r: setattr(r, "schedule", (-1, 4)), "a schedule of -1 and 4 steps"),
    ],
)
def test_what_cannot_be_resumed_is_refused(made: Artifacts, change: Any, text: str) -> None:
    with open_session(made, made.checkpoint) as s:
        s.train_step(feeds(0))
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    content = read_checkpoint(saved)
    change(content)
    with pytest.raises(CheckpointError, match=text):
        open_session(made, write_checkpoint(content))


ORT_SCRIPT = """
import json, sys
import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer
folder, source, target = sys.argv[1:4]
state = CheckpointState.load_checkpoint(source)
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
values = {name: parameter.data.ravel().tolist() for name, parameter in state.parameters}
feeds = np.load(f"{folder}/feeds.npz")
module(feeds["x"], feeds["labels"])
optimizer.step()
CheckpointState.save_checkpoint(state, target, include_optimizer_state=True)
print(json.dumps([values, dict(iter(state.properties))]))
"""


@pytest.mark.skipif(not ORT_PYTHON, reason="TRAINWEB_ORT_PYTHON names no Python with onnxruntime-training")
def test_onnx_runtime_goes_on_from_it_and_leaves_out_what_it_does_not_know(made: Artifacts, tmp_path: Path) -> None:
    made.write(tmp_path)
    np.savez(tmp_path / "feeds.npz", **feeds(0))
    with open_session(made, made.checkpoint) as s:
        for call in calls()[:5]:
            call(s)
        s.train_step(feeds(9))
        state = s._core.state
        trainweb.CheckpointState.save_checkpoint(state, tmp_path / "source", include_optimizer_state=True)
        expected = {name: p.data.ravel().tolist() for name, p in state.parameters.items()}
    done = subprocess.run(
        [ORT_PYTHON, "-c", ORT_SCRIPT, str(tmp_path), str(tmp_path / "source"), str(tmp_path / "target")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values, properties = json.loads(done.stdout)
    assert values == expected and properties == {"epoch": 1}
    source, target = (read_checkpoint(tmp_path / name) for name in ("source", "target"))
    assert source.is_exact and source.gradients and not target.is_exact
    assert (source.step, target.step) == (1, 2)
    with open_session(made, (tmp_path / "target").read_bytes()) as s:
        assert s._core.state._holder.contents().step == 2 and s.get_learning_rate() == np.float32(0.001)
