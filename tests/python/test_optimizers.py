"""Every optimizer from its name to its checkpoints: what is said once, in its classes, holds everywhere."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.models import mlp
from tests.python.sessions import batch, session, warm

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.checkpoint import read_checkpoint
from trainweb.cli import main
from trainweb.errors import CheckpointError, ModelError
from trainweb.model.reader import read_model
from trainweb.onnxblock.optim import OPTIMIZERS, Optimizer
from trainweb.ops.op import find
from trainweb.ops.optim import MOMENTS

ROOT = Path(__file__).parents[2]
NAMES = list(OPTIMIZERS)


def test_names_are_those_of_onnxruntime_and_then_our_own() -> None:
    assert [(kind.name, kind.value) for kind in OptimType][:2] == [("AdamW", 1), ("SGD", 2)]
    assert [kind.name for kind in OptimType] == NAMES


def test_pages_know_the_names() -> None:
    """test_session_calls.py tells whether the file is current."""
    text = (ROOT / "web" / "src" / "wire" / "session-calls.ts").read_text()
    union = " | ".join(f'"{name}"' for name in NAMES)
    assert f"export type OptimizerType = {union};" in text


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_is_complete(name: str) -> None:
    cls = OPTIMIZERS[name]
    operator = cls.operator
    assert find(operator.domain, operator.op_type()) is operator and cls.__doc__
    # A session has room for the first so many moments.
    assert cls.moments == tuple(m.input for m in MOMENTS[: len(cls.moments)])
    assert {n for n in operator.inputs if n.endswith("moments")} <= set(cls.moments)
    assert all(p.default is not p.empty for p in signature(cls).parameters.values())
    made = cls()
    assert set(made._attributes) <= set(operator.attrs)


@pytest.mark.parametrize("name", NAMES)
def test_its_model_has_its_operator_and_what_it_keeps(name: str) -> None:
    clip = onnxblock.optim.ClipGradNorm(0.5)
    for optimizer in (OptimType[name], OPTIMIZERS[name](clip_grad=clip)):
        built = build_artifacts(mlp(), loss=trainweb.artifacts.LossType.CrossEntropyLoss, optimizer=optimizer)
        assert built.optimizer_model is not None
        graph = read_model(built.optimizer_model)
        last = graph.nodes[-1]
        assert (last.domain, last.op_type) == (OPTIMIZERS[name].operator.domain, OPTIMIZERS[name].operator.op_type())
        assert [v.name for v in graph.inputs][4:] == list(OPTIMIZERS[name].moments)
        assert last.domain in graph.opsets


@pytest.mark.parametrize("name", NAMES)
def test_training_resumes_from_a_checkpoint_with_its_moments(name: str) -> None:
    moments = [m.saved for m in MOMENTS[: len(OPTIMIZERS[name].moments)]]
    with session(optimizer=name) as s:
        sizes = s.memory()
        assert sizes.moments == len(moments) * sizes.gradients
        warm(s)
        saved = trainweb.CheckpointState.save_checkpoint(s.core.state, include_optimizer_state=True)
        assert saved is not None
        expected = continued(s)
    (group,) = read_checkpoint(saved).groups
    assert all(sorted(states) == moments for states in group.states.values()) and group.states
    with session(optimizer=name, checkpoint=saved) as s:
        np.testing.assert_array_equal(continued(s), expected)


def continued(s: trainweb.TrainingSession) -> np.ndarray:
    """The parameters after two more steps."""
    s.set_learning_rate(0.01)
    s.lazy_reset_grad()
    for seed in (20, 21):
        s.train_step(batch(seed=seed))
        s.optimizer_step()
        s.lazy_reset_grad()
    return np.asarray(s.get_contiguous_parameters())


def test_a_checkpoint_without_a_moment_that_the_optimizer_needs_is_refused() -> None:
    with session(optimizer="Lion") as s:
        warm(s)
        saved = trainweb.CheckpointState.save_checkpoint(s.core.state, include_optimizer_state=True)
    with pytest.raises(CheckpointError, match="no momentum1 for"), session(optimizer="AdamW", checkpoint=saved):
        pass


def test_a_session_takes_lions_steps() -> None:
    """Against its formula in float64, of the gradients that the session accumulated."""
    lion = onnxblock.optim.Lion((0.8, 0.95), 0.2)
    built = build_artifacts(mlp(), loss=trainweb.artifacts.LossType.CrossEntropyLoss, optimizer=lion)
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, None, built.optimizer_model) as s:
        s.set_learning_rate(0.01)
        expected = {n: p.data.astype(np.float64) for n, p in state.parameters.items()}
        moments = {n: np.zeros(w.shape) for n, w in expected.items()}
        for seed in range(4):
            s.train_step(batch(seed=seed))
            for name, p in state.parameters.items():
                assert p.grad is not None
                g, w, m = p.grad.astype(np.float64), expected[name], moments[name]
                expected[name] = w - 0.01 * (np.sign(0.8 * m + 0.2 * g) + 0.2 * w)
                moments[name] = 0.95 * m + 0.05 * g
            s.optimizer_step()
            s.lazy_reset_grad()
        for name, w in expected.items():
            np.testing.assert_allclose(state.parameters[name].data, w, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_takes_it_and_names_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "tests" / "golden" / "mlp" / "base.onnx")
    assert main(["artifacts", model, "-o", str(tmp_path), "--optimizer", name]) == 0
    with pytest.raises(SystemExit):
        main(["artifacts", "--help"])
    assert name in capsys.readouterr().out


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("AdamW", {"betas": (1.0, 0.9)}, r"betas\[0\] is 1.0"),
    ("AdamW", {"betas": (0.9, -0.1)}, r"betas\[1\] is -0.1"),
    ("AdamW", {"eps": -1.0}, "eps is -1.0"),
    ("AdamW", {"weight_decay": float("nan")}, "weight_decay is nan"),
    ("Lion", {"betas": (0.9, 1.5)}, r"betas\[1\] is 1.5"),
    ("Lion", {"weight_decay": -0.1}, "weight_decay is -0.1"),
]


@pytest.mark.parametrize(("name", "settings", "said"), SETTINGS)
def test_settings_are_checked(name: str, settings: dict[str, Any], said: str) -> None:
    cls: type[Optimizer] = OPTIMIZERS[name]
    with pytest.raises(ModelError, match=said):
        cls(**settings)
