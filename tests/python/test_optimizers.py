"""Every optimizer from its name to its checkpoints: each fact of its class holds everywhere."""

import json
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.models import deep_mlp, mlp
from tests.ops.cases import reference_of
from tests.python.sessions import batch, error_of, session, warm

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.checkpoint import read_checkpoint, write_checkpoint
from trainweb.cli import main
from trainweb.errors import CheckpointError, ModelError
from trainweb.ir.instructions import Buf, BufSequence, Storage
from trainweb.ir.layout import GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS
from trainweb.model.graph import TRAINWEB, Node
from trainweb.model.reader import read_model
from trainweb.onnxblock.optim import OPTIMIZERS, Optimizer
from trainweb.ops.frame.op import bind, find
from trainweb.ops.optim.operators import AVERAGES, MOMENTS, Subsequence

ROOT = Path(__file__).parents[2]
NAMES = list(OPTIMIZERS)


def test_names_are_those_of_onnxruntime_and_then_our_own() -> None:
    assert [(kind.name, kind.value) for kind in OptimType][:2] == [("AdamW", 1), ("SGD", 2)]
    assert [kind.name for kind in OptimType] == NAMES


def test_pages_know_the_names() -> None:
    """test_session_calls.py checks that the file is current."""
    text = (ROOT / "web" / "src" / "page" / "settings" / "optimizers.ts").read_text()
    union = "".join(f'\n  | "{name}"' for name in NAMES)
    assert f"export type OptimizerType ={union};" in text
    for name in NAMES:
        assert f'Of<"{name}", {name}Fields & InGroups<{name}Fields>>' in text


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_is_complete(name: str) -> None:
    cls = OPTIMIZERS[name]
    operator = cls._operator
    assert find(operator.domain, operator.op_type()) is operator and cls.__doc__
    # A session has room for the first so many moments.
    moments = [m for m in cls._moments if m != AVERAGES.input]
    assert moments == [m.input for m in MOMENTS[: len(moments)]] and AVERAGES.input not in cls._moments[:-1]
    assert {n for n in operator.inputs if n.endswith(("moments", AVERAGES.input))} <= set(cls._moments)
    assert all(p.default is not p.empty for p in signature(cls).parameters.values())
    assert list(cls._fields()) == [n for n in signature(cls).parameters if n != "clip_grad"]
    made = cls()
    assert made._moments == cls._moments[: len(made._moments)]
    assert set(made._attributes) <= set(operator.attrs)


@pytest.mark.parametrize("name", NAMES)
def test_its_model_has_its_operator_and_what_it_keeps(name: str) -> None:
    clip = onnxblock.optim.ClipGradNorm(0.5)
    for optimizer in (OptimType[name], OPTIMIZERS[name](clip_grad=clip)):
        built = build_artifacts(mlp(), loss=trainweb.artifacts.LossType.CrossEntropyLoss, optimizer=optimizer)
        assert built.optimizer_model is not None
        graph = read_model(built.optimizer_model)
        last = graph.nodes[-1]
        assert (last.domain, last.op_type) == (OPTIMIZERS[name]._operator.domain, OPTIMIZERS[name]._operator.op_type())
        assert [v.name for v in graph.inputs][4:] == list(OPTIMIZERS[name]()._moments)
        assert last.domain in graph.opsets


@pytest.mark.parametrize("name", NAMES)
def test_training_resumes_from_a_checkpoint_with_its_moments(name: str) -> None:
    kept = OPTIMIZERS[name]()._moments
    moments = sorted(m.saved for m in (*MOMENTS, AVERAGES) if m.input in kept)
    with session(optimizer=name) as s:
        sizes = s.memory()
        kept = [s._core.layout.moment(name, slot)[2] for name in moments for slot in s._core.layout.trained()]
        assert sizes.moments == 4 * sum(map(prod, kept))
        if name not in ("Adafactor", "Muon"):
            assert sizes.moments == len(moments) * sizes.gradients
        warm(s)
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
        assert saved is not None
        expected = continued(s)
    contents = read_checkpoint(saved)
    assert all(sorted(named) == moments for named in contents.moments.values())
    assert contents.has_optimizer and bool(contents.moments) == bool(moments)
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
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    # As files of onnxruntime-training are, which do not say of which optimizer they are.
    unnamed = read_checkpoint(saved)
    assert unnamed.is_exact and unnamed.optimizer == "Lion"
    unnamed.optimizer = ""
    saved = write_checkpoint(unnamed)
    with pytest.raises(CheckpointError, match="no momentum1 for"), session(optimizer="AdamW", checkpoint=saved):
        pass


def test_moments_of_another_optimizer_are_refused_by_both_names() -> None:
    """The moments of Lion and of Adagrad have the same names and sizes."""
    with session(optimizer="Lion") as s:
        warm(s)
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
        without = trainweb.CheckpointState.save_checkpoint(s._core.state)
        expected = s.get_contiguous_parameters()
    both = "optimizer state of Lion, and this session's optimizer is Adagrad"
    with pytest.raises(CheckpointError, match=both), session(optimizer="Adagrad", checkpoint=saved):
        pass
    for optimizer, checkpoint in (("Lion", saved), ("Adagrad", without)):
        with session(optimizer=optimizer, checkpoint=checkpoint) as s:
            np.testing.assert_array_equal(s.get_contiguous_parameters(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_takes_it_and_names_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "tests" / "golden" / "mlp" / "base.onnx")
    assert main(["artifacts", model, "--loss", "CrossEntropyLoss", "-o", str(tmp_path), "--optimizer", name]) == 0
    operator = OPTIMIZERS[name]()._operator
    note = f"optimizer_model.onnx has ai.trainweb.{operator.op_type()}, which runs in trainweb"
    assert (note in capsys.readouterr().out) == (operator.domain == "ai.trainweb")
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
    with pytest.raises(error_of(said), match=said):
        cls(**settings)


GOLDEN = ROOT / "tests" / "golden" / "optimizers"
RECORDED = json.loads((GOLDEN / "expected.json").read_text())
ARRAYS = np.load(GOLDEN / "expected.npz")


TOLERANCES = {"Muon": 1e-3}
"""In parts of what was moved. Muon makes small singular values, and their rounding, 480 times larger."""


def take_recorded_steps(s: trainweb.TrainingSession, stop: int | None = None, start: int = 0) -> None:
    slots = s._core.layout.slots
    s.set_learning_rate(RECORDED["rate"])
    for k in range(start, len(ARRAYS["gradients/fc1.bias"]) if stop is None else stop):
        for name, slot in slots.items():
            s._core.host.write_segment(GRADIENTS, 4 * slot.trainable_offset, ARRAYS[f"gradients/{name}"][k].tobytes())
        s.optimizer_step()


def recorded_session(settings: dict[str, Any], checkpoint: bytes | None = None) -> trainweb.TrainingSession:
    built = build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer=settings)
    state = trainweb.CheckpointState.load_checkpoint(checkpoint or built.checkpoint)
    s = trainweb.TrainingSession(state, built.training_model, None, built.optimizer_model)
    if checkpoint is None:
        for name in s._core.layout.slots:
            s.update_parameter(name, ARRAYS[f"start/{name}"])
    return s


@pytest.mark.parametrize("title", RECORDED["cases"])
def test_an_optimizer_takes_the_steps_of_torch_or_optax(title: str) -> None:
    """Thirty steps in float64 were recorded; ours, in float32, stop in the middle and resume from a checkpoint."""
    settings = RECORDED["cases"][title]
    with recorded_session(settings) as s:
        take_recorded_steps(s, stop=11)
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    with recorded_session(settings, saved) as s:
        take_recorded_steps(s, start=11)
        for name in s._core.layout.slots:
            got, expected = s.get_parameter(name), ARRAYS[f"{title}/{name}"]
            moved = np.abs(expected - ARRAYS[f"start/{name}"]).max()
            assert moved > 1e-4
            error = TOLERANCES.get(settings["type"], 2e-5)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=error * moved, err_msg=name)
        if f"{title}/averages/fc1.bias" in ARRAYS:
            averages = s.get_contiguous_parameters(ema=True)
            expected = np.concatenate([ARRAYS[f"{title}/averages/{name}"].ravel() for name in s._core.layout.slots])
            np.testing.assert_allclose(averages, expected, rtol=1e-5, atol=2e-5 * moved)


def test_every_optimizer_was_recorded() -> None:
    """Lion is in test_kernels_optim.py, and ONNX Runtime's AdamW and SGD are in tests of its artifacts."""
    recorded = {case["type"] for case in RECORDED["cases"].values()}
    assert recorded | {"Lion"} == set(NAMES)


def clipped(gradients: dict[str, np.ndarray], settings: dict[str, float]) -> dict[str, np.ndarray]:
    if value := settings.get("clip_grad_value"):
        gradients = {n: np.clip(g, -value, value) for n, g in gradients.items()}
    if norm := settings.get("clip_grad_norm"):
        total = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        gradients = {n: g * min(1.0, norm / (total + 1e-6)) for n, g in gradients.items()}
    return gradients


@pytest.mark.parametrize(
    "settings", [{"clip_grad_value": 0.5}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.5, "clip_grad_norm": 0.7}]
)
@pytest.mark.parametrize("groups", [[], [{"parameters": ["fc1.bias", "fc2.weight"], "learning_rate_factor": 0.5}]])
def test_gradients_are_clipped_by_value_then_by_norm(settings: dict[str, float], groups: list[dict[str, Any]]) -> None:
    with trainweb.TrainingSession.from_model(
        mlp(), loss="CrossEntropyLoss", optimizer={"type": "SGD", "groups": groups}, **settings
    ) as s:
        before = {n: s.get_parameter(n) for n in s._core.layout.slots}
        take_recorded_steps(s, stop=1)
        gradients = clipped({n: ARRAYS[f"gradients/{n}"][0] for n in before}, settings)
        for name, w in before.items():
            rate = RECORDED["rate"] * (0.5 if groups and name in groups[0]["parameters"] else 1)
            np.testing.assert_allclose(s.get_parameter(name), w - rate * gradients[name], rtol=1e-6, atol=1e-7)


WRONG: list[tuple[Any, str]] = [
    ("Adamw", "There is no optimizer 'Adamw'; did you mean 'AdamW'\\? There are AdamW, SGD"),
    ({"betas": (0.9, 0.9)}, "optimizer needs the setting 'type': one of AdamW, SGD"),
    ({"type": "SGD", "betas": (0.9, 0.9)}, "SGD has no setting 'betas'"),
    ({"type": "AdamW", "eps": "1e-8"}, "eps is '1e-8'; it must be a number at least 0"),
    ({"type": "AdamW", "bias_correction": 1}, "bias_correction is 1; it must be true or false"),
    ({"type": "AdamW", "adam_mode": 2}, "adam_mode is 2; it must be 0 or 1"),
    ({"type": "AdamW", "betas": [0.9]}, r"betas is \[0.9\]; it must be two numbers"),
    ({"type": "SGD", "nesterov": True}, "nesterov needs a momentum"),
    (
        {"type": "Lion", "groups": [{"parameters": ["head.*"]}]},
        "A group names 'head.\\*', which is not a trained parameter",
    ),
    ({"type": "Lion", "groups": [{"parameters": "fc1.*"}]}, "parameters is 'fc1.\\*'; it must be a list"),
    ({"type": "Lion", "groups": [{"parameters": ["fc1.*"], "eps": 1}]}, "Lion has no setting 'eps'"),
    ({"type": "SGD", "groups": [{"parameters": ["fc1.*"], "momentum": 0.9}]}, "keeps other moments"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_is_no_optimizer_is_refused(given: Any, said: str) -> None:
    with pytest.raises(error_of(said), match=said):
        build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer=given)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), "1"])
def test_a_limit_of_gradients_is_positive(value: Any) -> None:
    for name in ("norm", "value"):
        with pytest.raises(ModelError, match=f"max_{name} is .*; it must be a number greater than 0"):
            build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer="SGD", **{f"clip_grad_{name}": value})
    with pytest.raises(ModelError, match="needs an 'optimizer'"):
        build_artifacts(mlp(), loss="CrossEntropyLoss", clip_grad_norm=value)


@pytest.mark.parametrize("name", ["Muon", "Adafactor", "Lamb"])
def test_parameters_are_updated_one_by_one_whatever_their_shape(name: str) -> None:
    """Tall matrices and vectors, against the operator's reference in float64."""
    rng = np.random.default_rng(5)
    node = Node(OPTIMIZERS[name]._operator.op_type(), [""] * 6, ["done"], OPTIMIZERS[name]()._attributes)
    operator = OPTIMIZERS[name]._operator(node, 1)
    compute = reference_of(type(operator))
    assert compute is not None
    with session("embedding", optimizer=name) as s:
        s.set_learning_rate(0.05)
        slots = {n: slot for n, slot in s._core.layout.slots.items() if slot.trainable_offset >= 0}
        assert any(slot.shape[0] > slot.shape[-1] for slot in slots.values())
        state = {
            n: [s.get_parameter(n).astype(np.float64)]
            + [np.zeros(s._core.layout.moment(f"momentum{k}", slot)[2]) for k in range(2)]
            for n, slot in slots.items()
        }
        for step in range(1, 5):
            for n, slot in slots.items():
                g = rng.standard_normal(slot.shape).astype(np.float32)
                s._core.host.write_segment(GRADIENTS, 4 * slot.trainable_offset, g.tobytes())
                w, *moments = state[n]
                state[n] = list(compute(operator, 0.05, step, w, g.astype(np.float64), *moments))
            s.optimizer_step()
        for n in slots:
            error = TOLERANCES.get(name, 2e-5)
            np.testing.assert_allclose(s.get_parameter(n), state[n][0], rtol=1e-5, atol=0.1 * error, err_msg=n)


def test_adafactor_stores_no_direction_of_a_matrix() -> None:
    """Its workspace is small beside the parameter."""
    model = deep_mlp(64, 256, 3)
    with trainweb.TrainingSession.from_model(model, loss="CrossEntropyLoss", optimizer="Adafactor") as s:
        plan = s._core.optimizer_plan().plan
    assert plan.arena_bytes < 64 * 256
    assert sum("sum of squares" in line for line in plan.text) == 2


@pytest.mark.parametrize("index", [-1, 2])
def test_a_group_of_parameters_that_are_not_there_is_refused(index: int) -> None:
    node = Node("Subsequence", ["params"], ["group"], {"indices": [index]}, TRAINWEB, "group")
    items = [Buf(Storage(PARAMETERS, 8), "float32", (2,)) for _ in range(2)]
    op = bind(node, {TRAINWEB: 1})
    assert isinstance(op, Subsequence)
    with pytest.raises(ModelError, match=rf"'group'.*indices has {index}; the sequence has 2 items"):
        op.derive_sequence(BufSequence(items))


NOT_ALL = ("AdaBelief", "Adamax", "Lookahead")
"""Optimizers whose second moment does not shrink without gradients: it is not less than eps, or near the parameter."""


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("Adafactor", "Muon")])
def test_moments_of_almost_nothing_become_zero(name: str) -> None:
    """The moments of rows that no batch has. Subnormal, they would stay for ever, and take many times as long."""
    settings = {"momentum": 0.9} if name == "SGD" else {}
    with trainweb.TrainingSession.from_model(
        mlp(), loss=trainweb.artifacts.LossType.CrossEntropyLoss, optimizer=OPTIMIZERS[name](**settings)
    ) as s:
        host, nbytes = s._core.host, s.memory().gradients
        segments = [segment for segment in (MOMENTUM0, MOMENTUM1) if host.sizes[segment]][: 1 if name in NOT_ALL else 2]
        assert segments
        values = 10.0 ** np.random.default_rng(1).uniform(-45, -33, nbytes // 4)
        values[::5] = 1e-20
        host.write_segment(GRADIENTS, 0, bytes(nbytes))
        s.optimizer_step()  # momentum starts with the first
        for segment in segments:
            host.write_segment(segment, 0, values.astype(np.float32).tobytes())
        for _ in range(16):
            s.optimizer_step()
        for segment in segments:
            left = np.frombuffer(host.read_segment(segment, 0, nbytes), np.float32)
            # Small values far from the limit stay.
            assert np.all(left[::5] > 1e-22) and not np.delete(left, np.s_[::5]).any()
