"""Invalid arguments: every public call raises an error of ours or a TypeError that names the fault."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb import artifacts
from trainweb.artifacts import LossType
from trainweb.errors import EngineError, FeedError, LimitError, ModelError, SessionError, TrainwebError

MLP = Path(__file__).resolve().parents[1] / "golden" / "mlp"
TRAIN, EVAL, OPTIMIZER = (MLP / f"{name}_model.onnx" for name in ("training", "eval", "optimizer"))
VALUE = helper.make_tensor_value_info
IMAGE = VALUE("x", TensorProto.FLOAT, [1, 1, 8, 8])
NO_MAPPINGS: tuple[Any, ...] = (None, 5, "x", [1])


def state() -> trainweb.CheckpointState:
    return trainweb.CheckpointState.load_checkpoint(MLP / "checkpoint")


def feeds(rows: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.ones((rows, 10), np.float32), "labels": np.zeros(rows, np.int64)}


@pytest.fixture
def session() -> Iterator[trainweb.TrainingSession]:
    with trainweb.TrainingSession(state(), TRAIN, EVAL, OPTIMIZER) as opened:
        yield opened


def refused(call: Callable[[], Any], names: str, *kinds: type[Exception]) -> None:
    """It raises, and the message names what was wrong."""
    with pytest.raises(kinds or (TrainwebError, TypeError), match=re.escape(names)):
        call()


NO_RATES = (float("nan"), float("inf"), -1.0, -1e-9, 1e300, 10**400)


@pytest.mark.parametrize("rate", NO_RATES, ids=lambda rate: repr(rate)[:9])
def test_rates(session: trainweb.TrainingSession, rate: float) -> None:
    session.set_learning_rate(0.5)
    refused(lambda: session.set_learning_rate(rate), "'learning_rate'", SessionError)
    refused(lambda: session.register_linear_lr_scheduler(1, 2, rate), "'initial_lr'", SessionError)
    assert session.get_learning_rate() == 0.5
    refused(session.scheduler_step, "scheduler", SessionError)


@pytest.mark.parametrize("rate", ["0.5", None, [0.5], True, object()], ids=["text", "None", "list", "bool", "object"])
def test_rates_that_are_no_numbers(session: trainweb.TrainingSession, rate: Any) -> None:
    refused(lambda: session.set_learning_rate(rate), "'learning_rate'", TypeError)
    refused(lambda: session.register_linear_lr_scheduler(1, 2, rate), "'initial_lr'", TypeError)


def test_rates_of_numpy_are_numbers(session: trainweb.TrainingSession) -> None:
    session.set_learning_rate(np.float32(0.25))
    assert session.get_learning_rate() == 0.25


@pytest.mark.parametrize(
    ("warmup", "total", "name"),
    [
        (5, 2, "warmup_step_count"),
        ("a", 2, "warmup_step_count"),
        (1.0, 2, "warmup_step_count"),
        (-1, 2, "warmup_step_count"),
        (True, 2, "warmup_step_count"),
        (1, 2**63, "total_step_count"),
        (1, None, "total_step_count"),
    ],
)
def test_schedules(session: trainweb.TrainingSession, warmup: Any, total: Any, name: str) -> None:
    refused(lambda: session.register_linear_lr_scheduler(warmup, total, 0.5), repr(name), SessionError)
    refused(session.scheduler_step, "scheduler", SessionError)


@pytest.mark.parametrize("given", NO_MAPPINGS, ids=repr)
def test_feeds_that_are_none(session: trainweb.TrainingSession, given: Any) -> None:
    for call in (session.train_step, session.eval_step, session.profile, session.explain):
        refused(lambda call=call: call(given), "feeds", FeedError)  # type: ignore[misc]
    refused(lambda: infer(model([helper.make_node("Relu", ["x"], ["y"])], ["y"]), given), "feeds", FeedError)


def test_ragged_lists_are_no_tensors(session: trainweb.TrainingSession) -> None:
    refused(lambda: session.train_step({"x": [[1], [1, 2]], "labels": [0]}), "'x'", FeedError)
    refused(lambda: session.update_parameter("fc1.bias", [[1], [1, 2]]), "'fc1.bias'", TrainwebError)


def test_feeds_larger_than_memory(session: trainweb.TrainingSession) -> None:
    rows = 2**31
    x = np.lib.stride_tricks.as_strided(np.zeros(10, np.float32), (rows, 10), (0, 4))
    labels = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (rows,), (0,))
    refused(lambda: session.train_step({"x": x, "labels": labels}), "'x'", LimitError)


@pytest.mark.parametrize("given", [*NO_MAPPINGS, {}], ids=repr)
def test_states_that_are_none(given: Any) -> None:
    refused(lambda: trainweb.TrainingSession(given, TRAIN), "'state'", TypeError)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (5, "options"),
        ("a", "options"),
        ({"limits": 5}, "limits"),
        ({"limits": {"nodes": "a"}}, "nodes"),
        ({"max_plans": 0}, "max_plans"),
        ({"memory_budget": "a"}, "memory_budget"),
        ({"memory_budget": float("nan")}, "memory_budget"),
        ({"threads": "x"}, "threads"),
        ({"threads": -1}, "threads"),
        ({"threads": 65}, "'threads' must be at most 64"),
        ({"threads": 2**31}, "'threads' must be at most 64"),
        ({"reproducible": "yes"}, "reproducible"),
        ({"colour": 1}, "colour"),
    ],
    ids=repr,
)
def test_options(options: Any, name: str) -> None:
    # Numbers out of range are a ValueError here, as onnxruntime's options have it.
    refused(
        lambda: trainweb.TrainingSession(state(), TRAIN, options=options), name, TrainwebError, TypeError, ValueError
    )


@pytest.mark.parametrize("runs", [0, -1, 1.5, "a", None], ids=repr)
def test_runs_of_a_profile(session: trainweb.TrainingSession, runs: Any) -> None:
    refused(lambda: session.profile(feeds(), runs), "'runs'", SessionError)


@pytest.mark.parametrize("value", [None, "a", 1.5, float("nan")], ids=repr)
def test_seeds(value: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        trainweb.set_seed(value)


FRESH = """
import sys
import trainweb
for _ in range(2):
    state = trainweb.CheckpointState.load_checkpoint(f"{sys.argv[1]}/checkpoint")
    with trainweb.TrainingSession(state, f"{sys.argv[1]}/training_model.onnx") as session:
        print(session.seed)
"""


def test_the_seed_is_known(session: trainweb.TrainingSession) -> None:
    assert subprocess.check_output([sys.executable, "-c", FRESH, str(MLP)], text=True).split() == ["0", "0"]
    try:
        trainweb.set_seed(-1)
        assert session.seed == 2**64 - 1
        with trainweb.TrainingSession(state(), TRAIN) as later:
            assert later.seed == 2**64 - 1
    finally:
        trainweb.set_seed(0)


# ---- artifacts in each other's place


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ((TRAIN, TRAIN), "it is a training model"),
        ((TRAIN, OPTIMIZER), "it is an optimizer model"),
        ((OPTIMIZER,), "it is an optimizer model"),
        ((TRAIN, None, EVAL), "Invalid graph inputs"),
    ],
)
def test_artifacts_in_the_place_of_others(models: tuple[Any, ...], message: str) -> None:
    refused(lambda: trainweb.TrainingSession(state(), *models), message, ModelError)


def test_an_optimizer_model_without_outputs() -> None:
    """It is valid ONNX that computes nothing; a session would have updated parameters by it."""
    without = onnx.load(OPTIMIZER)
    del without.graph.output[:]
    refused(
        lambda: trainweb.TrainingSession(state(), TRAIN, EVAL, without.SerializeToString()),
        "has no outputs",
        ModelError,
    )


# ---- models


def model(nodes: list[onnx.NodeProto], outputs: list[str], *, opset: int = 17) -> bytes:
    made = make_model(nodes, [IMAGE], [VALUE(name, TensorProto.FLOAT, None) for name in outputs], {}, opset=opset)
    return bytes(made.SerializeToString())


def run(given: bytes) -> list[np.ndarray]:
    return infer(given, {"x": np.ones((1, 1, 8, 8), np.float32)})


@pytest.mark.parametrize("wanted", ["y", "z"])
def test_a_node_with_more_outputs_than_its_operator(wanted: str) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y", "z"], name="both")], [wanted])
    refused(lambda: run(made), "both", ModelError)


def test_a_pool_with_three_outputs() -> None:
    made = model([helper.make_node("MaxPool", ["x"], ["y", "i", "j"], name="three", kernel_shape=[2, 2])], ["y"])
    refused(lambda: run(made), "three", ModelError)


def test_names_of_outputs_that_are_left_out_do_not_count() -> None:
    made = model([helper.make_node("MaxPool", ["x"], ["y", "", ""], kernel_shape=[2, 2])], ["y"])
    assert run(made)[0].shape == (1, 1, 7, 7)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [[2, 0, 0, 0], [0, 0, 0, 2], [9, 9, 9, 9]], ids=str)
def test_windows_within_the_padding(kind: str, pads: list[int]) -> None:
    made = model([helper.make_node(kind, ["x"], ["y"], name="pool", kernel_shape=[2, 2], pads=pads)], ["y"])
    refused(lambda: run(made), "pool", ModelError)


def test_windows_with_padding_that_they_reach_over() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    assert np.isfinite(run(model([node], ["y"]))[0]).all()


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min", "Mean"])
@pytest.mark.parametrize("terms", [257, 100_000])
def test_nodes_with_too_many_inputs(kind: str, terms: int) -> None:
    made = model([helper.make_node(kind, ["x"] * terms, ["y"], name="many")], ["y"])
    refused(lambda: run(made), "many", LimitError)


@pytest.mark.parametrize("kind", ["Sum", "Max"])
def test_nodes_with_as_many_inputs_as_may_be(kind: str) -> None:
    (y,) = run(model([helper.make_node(kind, ["x"] * 256, ["y"])], ["y"]))
    assert (y == (256 if kind == "Sum" else 1)).all()


def test_models_without_outputs() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [])
    refused(lambda: run(made), "no outputs", ModelError)
    for loss in (None, LossType.MSELoss):
        refused(lambda loss=loss: artifacts.build_artifacts(made, loss=loss), "no outputs", ModelError)  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["mean", "var"])
def test_statistics_that_nobody_computes(kind: str) -> None:
    names = ["y", "mean", "var"]
    nodes = [
        helper.make_node("Constant", [], ["ones"], value=helper.make_tensor("ones", TensorProto.FLOAT, [1], [1.0])),
        helper.make_node("BatchNormalization", ["x", *["ones"] * 4], names, name="norm"),
    ]
    refused(lambda: run(model(nodes, [kind])), "norm", TrainwebError)
    assert run(model(nodes, ["y"]))[0].shape == (1, 1, 8, 8)


# ---- names that do not exist


def test_names_that_nothing_has_are_key_errors_too() -> None:
    """As in onnxruntime, whose callers catch those."""
    given = state()
    for call in (
        lambda: given.parameters["nope"],
        lambda: given.properties["nope"],
        lambda: trainweb.RunOptions().get_run_config_entry("nope"),
    ):
        with pytest.raises(KeyError) as found:
            call()
        assert isinstance(found.value, TrainwebError) and "nope" in str(found.value)
        assert not str(found.value).startswith(("'", '"'))
    with pytest.raises(ValueError, match="nope") as refused_name:
        trainweb.InferenceSession(TRAIN, providers=["nope"])
    assert isinstance(refused_name.value, TrainwebError)


def test_an_optimizer_model_that_is_none_leaves_the_module_as_it_was() -> None:
    module = trainweb.api.Module(TRAIN, state(), EVAL)
    module(*feeds().values())
    before = module._session.get_gradient("fc1.bias")
    refused(lambda: trainweb.api.Optimizer(b"nope", module), "optimizer_model", ModelError)
    np.testing.assert_array_equal(module._session.get_gradient("fc1.bias"), before)
    assert before.any()
    trainweb.api.Optimizer(OPTIMIZER, module).step()
    module.release()


# ---- a profile that fails


class Full:
    """An engine's `alloc` that fails from its k-th call on."""

    def __init__(self, engine: Any, calls: int) -> None:
        self.real, self.left = engine.alloc, calls

    def __call__(self, nbytes: int, *, zeroed: bool = False) -> int:
        self.left -= 1
        if self.left < 0:
            raise EngineError("out of memory")
        return int(self.real(nbytes, zeroed=zeroed))


@pytest.mark.parametrize("adding", [False, True])
def test_a_profile_without_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch, adding: bool) -> None:
    def prepared() -> trainweb.TrainingSession:
        session = trainweb.TrainingSession(state(), TRAIN, EVAL, OPTIMIZER)
        session.train_step(feeds())
        session.optimizer_step()
        if not adding:
            session.lazy_reset_grad()
        return session

    def contents(session: trainweb.TrainingSession) -> list[bytes]:
        host = session._core.host
        return [host.read_segment(k, 0, host.sizes[k]) for k in range(2, 7)]

    failed = 0
    for calls in range(12):
        session = prepared()
        before = contents(session)
        engine = session._core.engine
        with monkeypatch.context() as patch:
            patch.setattr(engine, "alloc", Full(engine, calls))
            try:
                session.profile(feeds(), 2)
            except EngineError:
                failed += 1
                assert contents(session) == before
            else:
                assert contents(session) != before
        session.train_step(feeds())
        session.release()
    assert 0 < failed < 12
