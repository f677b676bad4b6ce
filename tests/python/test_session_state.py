"""Learning rate, gradients, buffers, parameters, properties and nominal states of a session."""

import copy
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from tests.conformance.models import mlp
from tests.python.sessions import artifacts, batch, session, snapshot, unchanged, warm

import trainweb
from trainweb.backend.engine import Engine
from trainweb.checkpoint import read_checkpoint, write_checkpoint
from trainweb.errors import BufferSizeError, CheckpointError, SessionError, TrainwebError
from trainweb.ir.layout import PARAMETERS, STATE

ORDER = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
"""Parameters of the mlp in the order of its training model's inputs; fc1.bias is frozen."""
TRAINABLE = [n for n in ORDER if n != "fc1.bias"]


def flat(s: trainweb.TrainingSession, names: list[str]) -> np.ndarray:
    return np.concatenate([s.get_parameter(n).ravel() for n in names])


def gradients(s: trainweb.TrainingSession) -> np.ndarray:
    grads = [s._core.state.parameters[n].grad for n in TRAINABLE]
    return np.concatenate([g.ravel() for g in grads if g is not None])


# Learning rate.


def test_the_rate_is_a_thousandth_until_set() -> None:
    with session() as s:
        assert s.get_learning_rate() == pytest.approx(0.001, rel=1e-7)
        for value in (0.1, 0, 1.5, 1e30):
            s.set_learning_rate(value)
            assert s.get_learning_rate() == np.float32(value)


def test_sgd_moves_against_the_gradient_by_the_rate() -> None:
    with session(optimizer="SGD") as s:
        s.train_step(batch())
        before, g = flat(s, TRAINABLE), gradients(s)
        s.set_learning_rate(0.25)
        s.optimizer_step()
        np.testing.assert_allclose(flat(s, TRAINABLE), before - 0.25 * g, rtol=1e-6, atol=1e-7)


def rates(s: trainweb.TrainingSession, count: int) -> list[float]:
    result = []
    for _ in range(count):
        s.scheduler_step()
        result.append(s.get_learning_rate())
        s.optimizer_step()
    return result


TABLE = [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]
"""f(step) of warm-up 2, total 6."""


def test_the_linear_schedule_rises_and_falls() -> None:
    with session() as s:
        s.register_linear_lr_scheduler(2, 6, 0.2)
        assert s.get_learning_rate() == np.float32(0.2)
        np.testing.assert_allclose(rates(s, 8), 0.2 * np.array(TABLE), rtol=1e-6)


def test_a_scheduler_step_only_recomputes_the_rate() -> None:
    with session() as s:
        s.register_linear_lr_scheduler(2, 4, 0.1)
        got = []
        for _ in range(4):
            s.optimizer_step()
            for _ in range(3):
                s.scheduler_step()
            got.append(s.get_learning_rate())
        np.testing.assert_allclose(got, [0.05, 0.1, 0.05, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("warmup", "total", "expected"),
    [
        (0, 4, [1, 0.75, 0.5, 0.25, 0, 0]),
        (0, 0, [0, 0]),
        (3, 3, [0, 1 / 3, 2 / 3, 0, 0]),
        (1, 2**40, [0, 1, 1]),
    ],
)
def test_schedules_at_their_edges(warmup: int, total: int, expected: list[float]) -> None:
    with session() as s:
        s.register_linear_lr_scheduler(warmup, total, 1.0)
        np.testing.assert_allclose(rates(s, len(expected)), expected, rtol=1e-6, atol=1e-7)


def test_a_schedule_goes_on_from_a_checkpoint() -> None:
    with session() as s:
        s.register_linear_lr_scheduler(2, 6, 0.2)
        rates(s, 3)
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state, include_optimizer_state=True)
    assert saved is not None
    with session(checkpoint=saved) as s:
        assert s.get_learning_rate() == pytest.approx(0.2, rel=1e-7)
        np.testing.assert_allclose(rates(s, 3), [0.15, 0.1, 0.05], rtol=1e-6)
    content = read_checkpoint(saved)
    content.is_exact = False  # as ONNX Runtime saves it
    with session(checkpoint=write_checkpoint(content)) as s:
        assert s.get_learning_rate() == pytest.approx(0.001, rel=1e-7)
        with pytest.raises(SessionError, match="No learning rate scheduler was registered"):
            s.scheduler_step()
        s.register_linear_lr_scheduler(2, 6, 0.2)
        np.testing.assert_allclose(rates(s, 3), [0.15, 0.1, 0.05], rtol=1e-6)


def test_rates_need_an_optimizer() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with trainweb.TrainingSession(state, made.training_model) as s:
        calls: list[Callable[[], Any]] = [
            s.optimizer_step,
            s.get_learning_rate,
            lambda: s.set_learning_rate(1),
            s.scheduler_step,
            lambda: s.register_linear_lr_scheduler(1, 2, 0.1),
            lambda: s.eval_step(batch()),
            lambda: s.export_model_for_inferencing(graph_output_names=["logits"]),
        ]
        s.train_step(batch())
        for call in calls:
            with unchanged(s), pytest.raises(SessionError):
                call()
        assert s.input_names(training=False) == []


# Gradients.


def test_gradients_accumulate_until_they_are_reset() -> None:
    with session() as s:
        first = s.train_step(batch())
        g = gradients(s)
        for k in range(2, 5):
            assert s.train_step(batch()) == first
            np.testing.assert_allclose(gradients(s), k * g, rtol=1e-6, atol=1e-7)
        s.optimizer_step()
        np.testing.assert_allclose(gradients(s), 4 * g, rtol=1e-6, atol=1e-7)
        s.lazy_reset_grad()
        np.testing.assert_allclose(gradients(s), 4 * g, rtol=1e-6, atol=1e-7)
        s.train_step(batch(seed=1))
        other = gradients(s)
        s.lazy_reset_grad()
        s.train_step(batch(seed=1))
        assert np.array_equal(gradients(s), other)


def test_gradients_of_two_batches_add_up() -> None:
    with session() as s:
        parts = []
        for seed in (0, 1):
            s.lazy_reset_grad()
            s.train_step(batch(seed=seed, n=4 + seed))
            parts.append(gradients(s))
        s.lazy_reset_grad()
        for seed in (0, 1):
            s.train_step(batch(seed=seed, n=4 + seed))
        np.testing.assert_allclose(gradients(s), parts[0] + parts[1], rtol=1e-6, atol=1e-7)


def test_gradients_are_zeros_at_first_and_none_where_there_are_none() -> None:
    with session() as s:
        state = s._core.state
        assert not gradients(s).any()
        assert state.parameters["fc1.bias"].grad is None
        s.train_step(batch())
        assert gradients(s).any()
        grad = state.parameters["fc2.bias"].grad
        assert grad is not None
        assert not grad.flags.writeable
    assert state.parameters["fc2.bias"].grad is None


def test_an_optimizer_step_before_any_train_step_finds_zero_gradients() -> None:
    with session() as s:
        before = s.get_contiguous_parameters(False)
        s.optimizer_step()
        assert np.array_equal(s.get_contiguous_parameters(False), before)
        assert snapshot(s)["step"] == 1


def test_frozen_parameters_stay() -> None:
    with session() as s:
        before = s.get_parameter("fc1.bias")
        warm(s)
        assert np.array_equal(s.get_parameter("fc1.bias"), before)


def test_evaluation_changes_nothing() -> None:
    for kind in ("mlp", "batch_norm"):
        with session(kind) as s:
            warm(s, kind)
            with unchanged(s):
                first = s.eval_step(batch(kind))
                assert s.eval_step(batch(kind)) == first


# Seeds.


def dropped(seed: int | None, steps: int = 3) -> np.ndarray:
    """Which elements Dropout kept: the gradient of the weights shows it."""
    if seed is not None:
        trainweb.set_seed(seed)
    kept = []
    with session("dropout") as s:
        for _ in range(steps):
            s.lazy_reset_grad()
            s.train_step(batch("dropout", n=1))
            grad = s._core.state.parameters["w"].grad
            assert grad is not None
            kept.append(grad.ravel() != 0)
    return np.array(kept)


def test_a_seed_repeats_what_dropout_drops() -> None:
    first = dropped(1)
    assert np.array_equal(dropped(1), first)
    assert not np.array_equal(dropped(2), first)
    assert not np.array_equal(first[0], first[1])
    assert 0.3 < first.mean() < 0.7


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 - 1])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert np.array_equal(dropped(seed, 1), dropped(seed, 1))


def test_a_seed_reaches_sessions_that_are_open() -> None:
    def run(s: trainweb.TrainingSession) -> np.ndarray:
        trainweb.set_seed(5)
        s.lazy_reset_grad()
        s.train_step(batch("dropout", n=1))
        grad = s._core.state.parameters["w"].grad
        assert grad is not None
        return grad

    with session("dropout") as s:
        assert np.array_equal(run(s), run(s))


# Buffers.


def test_buffers_are_in_the_order_of_the_training_inputs() -> None:
    with session() as s:
        assert s.get_parameters_size() == sum(s.get_parameter(n).size for n in TRAINABLE)
        assert s.get_parameters_size(False) == sum(s.get_parameter(n).size for n in ORDER)
        for trainable, names in ((True, TRAINABLE), (False, ORDER)):
            got = s.get_contiguous_parameters(trainable)
            assert got.dtype == np.float32
            assert np.array_equal(got, flat(s, names))
            got[:] = 0
            assert flat(s, names).any()


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("form", ["float32", "bytes", "bytearray", "memoryview", "uint8", "big-endian", "strided"])
def test_a_loaded_buffer_is_what_comes_back(trainable: bool, form: str) -> None:
    with session() as s:
        warm(s)
        kept = s.get_parameter("fc1.bias")
        before = snapshot(s)
        values = np.arange(s.get_parameters_size(trainable), dtype=np.float32)
        wide = np.zeros(2 * values.size, np.float32)
        wide[::2] = values
        forms: dict[str, Any] = {
            "float32": values,
            "bytes": values.tobytes(),
            "bytearray": bytearray(values.tobytes()),
            "memoryview": memoryview(values),
            "uint8": values.view(np.uint8),
            "big-endian": values.astype(">f4"),
            "strided": wide[::2],
        }
        s.load_parameters_buffer(forms[form], trainable)
        assert np.array_equal(s.get_contiguous_parameters(trainable), values)
        if trainable:
            assert np.array_equal(s.get_parameter("fc1.bias"), kept)
        after = snapshot(s)
        changed = [k for k, data in after["segments"].items() if data != before["segments"][k]]
        assert changed == [PARAMETERS, STATE]  # which counts loads


def test_a_buffer_keeps_every_bit_of_nan() -> None:
    with session() as s:
        words = np.full(s.get_parameters_size(), 0x7F800001, np.uint32)
        s.load_parameters_buffer(words.tobytes())
        assert np.array_equal(s.get_contiguous_parameters().view(np.uint32), words)


def test_a_buffer_of_another_size_or_type_is_refused() -> None:
    with session() as s:
        warm(s)
        n = s.get_parameters_size()
        m = s.get_parameters_size(False)
        with unchanged(s):
            for buffer, trainable in (
                (np.zeros(n + 1, np.float32), True),
                (np.zeros(n - 1, np.float32), True),
                (bytes(4 * n - 1), True),
                (bytes(4 * n + 1), True),
                (b"", True),
                (np.zeros(m, np.float32), True),
                (np.zeros(n, np.float32), False),
                (np.zeros(n, np.uint8), True),
            ):
                with pytest.raises(BufferSizeError, match=r"Expected: \d+.*Actual: \d+"):
                    s.load_parameters_buffer(buffer, trainable)
            wrong: list[Any] = [np.zeros(n), np.zeros(n, np.int32), [0.0] * n, "text", None, np.zeros(n, ">f8")]
            for buffer in wrong:
                with pytest.raises(TypeError, match="'buffer' must be float32, or bytes"):
                    s.load_parameters_buffer(buffer)


# Single parameters.


def test_one_parameter_is_replaced() -> None:
    with session() as s:
        warm(s)
        before = snapshot(s)
        value = np.arange(12, dtype=np.float32).reshape(3, 4)
        s.update_parameter("fc2.weight", value)
        assert np.array_equal(s.get_parameter("fc2.weight"), value)
        assert np.array_equal(s._core.state.parameters["fc2.weight"].data, value)
        assert s.get_parameter_type_and_shape("fc2.weight") == ("float32", (3, 4))
        s._core.state.parameters["fc2.weight"] = -value[:, ::-1]
        assert np.array_equal(s.get_parameter("fc2.weight"), -value[:, ::-1])
        assert np.array_equal(flat(s, ORDER[:2]), np.frombuffer(before["segments"][2], np.float32)[:24])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fc2.weight", np.zeros((4, 3), np.float32), "Expected: [3, 4], Got: [4, 3]"),
        ("fc2.weight", np.zeros(12, np.float32), "Expected: [3, 4], Got: [12]"),
        ("fc2.weight", np.zeros((3, 4)), "Expected: float32, Got: float64"),
        ("fc2.bias", np.zeros((1, 3), np.float32), "Expected: [3], Got: [1, 3]"),
        ("fc3.bias", np.zeros(3, np.float32), "fc3.bias"),
        ("x", np.zeros((2, 5), np.float32), "x"),
        ("fc2.weight_grad.accumulation.buffer", np.zeros((3, 4), np.float32), "fc2.weight_grad"),
        ("", np.zeros(1), "''"),
        ("fc2.weight", None, "fc2.weight"),
        ("fc2.weight", "text", "fc2.weight"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(name: str, value: Any, said: str) -> None:
    with session() as s:
        warm(s)
        with unchanged(s):
            with pytest.raises(TrainwebError) as e:
                s.update_parameter(name, value)
            assert said in str(e.value)
            if name not in ORDER:
                for call in (s.get_parameter, s.get_parameter_type_and_shape):
                    with pytest.raises(CheckpointError):
                        call(name)


# Properties.


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0, 0),
        (-(2**63), -(2**63)),
        (2**63 - 1, 2**63 - 1),
        (True, 1),
        (1.5, 1.5),
        (0.1, float(np.float32(0.1))),
        (float("inf"), float("inf")),
        (1e300, float("inf")),
        (float(2**63), float(2**63)),
        ("", ""),
        ("naïve 🙂\0\n", "naïve 🙂\0\n"),
        (np.float32(2.5), 2.5),
        (np.int64(7), 7),
    ],
)
def test_properties_of_every_type_go_through_a_checkpoint(given: Any, kept: Any) -> None:
    with session() as s:
        s._core.state.properties["p"] = 12
        s._core.state.properties["p"] = given
        saved = trainweb.CheckpointState.save_checkpoint(s._core.state)
    assert saved is not None
    got = trainweb.CheckpointState.load_checkpoint(saved).properties["p"]
    assert got == kept
    assert type(got) is type(kept)


@pytest.mark.parametrize(("value", "bits"), [(2**63, 65), (-(2**63) - 1, 65), (10**400, 1330), (np.uint64(2**63), 65)])
def test_an_integer_beyond_64_bits_is_refused(value: Any, bits: int) -> None:
    state = trainweb.CheckpointState.load_checkpoint(artifacts("mlp").checkpoint)
    state.properties["p"] = 12
    with pytest.raises(ValueError, match=f"at most 64 bits; this one has {bits}"):
        state.properties["p"] = value
    assert state.properties["p"] == 12


def test_nan_stays_nan_in_a_property() -> None:
    state = trainweb.CheckpointState.load_checkpoint(artifacts("mlp").checkpoint)
    state.properties["p"] = float("nan")
    saved = trainweb.CheckpointState.save_checkpoint(state)
    assert saved is not None
    assert np.isnan(trainweb.CheckpointState.load_checkpoint(saved).properties["p"])


@pytest.mark.parametrize("value", [None, [1], b"bytes", {}, 1j, np.zeros(2)])
def test_a_property_of_another_type_is_refused(value: Any) -> None:
    state = trainweb.CheckpointState.load_checkpoint(artifacts("mlp").checkpoint)
    with pytest.raises(TypeError):
        state.properties["p"] = value
    with pytest.raises(TypeError):
        state.properties[3] = "x"  # type: ignore[index]
    assert "p" not in state.properties
    with pytest.raises(KeyError, match="p"):
        state.properties["p"]


# Nominal states.


def test_a_nominal_state_only_tells_sizes_until_parameters_are_loaded() -> None:
    with session() as full, session(nominal=True) as s:
        values = full.get_contiguous_parameters(False)
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: s.train_step(batch()), "Cannot perform TrainStep with a nominal state"),
            (lambda: s.eval_step(batch()), "Cannot perform EvalStep with a nominal state"),
            (s.get_contiguous_parameters, "Cannot copy parameters from a nominal state"),
            (lambda: s.export_model_for_inferencing(graph_output_names=["logits"]), "Cannot export the model"),
            (s.optimizer_step, "Cannot construct the optimizer of a nominal state"),
            (lambda: s.get_parameter("fc1.weight"), "Cannot get parameter from a nominal state"),
            (lambda: s._core.state.parameters["fc1.weight"].data, "Cannot get parameter from a nominal state"),
            (lambda: s.update_parameter("fc1.weight", normal_weight()), "Cannot copy parameter to a nominal state"),
            (lambda: s.load_parameters_buffer(values), "all parameters need to be loaded"),
            (lambda: trainweb.CheckpointState.save_checkpoint(s._core.state), "Cannot save a nominal state"),
        ]
        for call, said in refused:
            with unchanged(s), pytest.raises(CheckpointError, match=said):
                call()
        with unchanged(s), pytest.raises(BufferSizeError):
            s.load_parameters_buffer(values[1:], False)
        assert s.get_parameters_size(False) == values.size
        assert s.get_parameter_type_and_shape("fc1.weight") == ("float32", (4, 5))
        assert sorted(s._core.state.parameters) == sorted(ORDER)
        s.set_learning_rate(0.5)
        s.load_parameters_buffer(values, False)
        assert list(s.train_step(batch()).values()) == list(full.train_step(batch()).values())
        assert trainweb.CheckpointState.save_checkpoint(s._core.state) == trainweb.CheckpointState.save_checkpoint(
            full._core.state
        )


def normal_weight() -> np.ndarray:
    return np.zeros((4, 5), np.float32)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied(copied: Callable[[Any], object]) -> None:
    inference = trainweb.InferenceSession(mlp())
    with session() as s:
        for one in (s, inference):
            with pytest.raises(SessionError, match=r"cannot be pickled or copied.* save it by .*CheckpointStore\.save"):
                copied(one)
    inference.release()


def test_a_buffer_of_another_size_names_the_calls_of_python() -> None:
    with session() as s, pytest.raises(BufferSizeError, match=r"load_parameters_buffer .* get_parameters_size c"):
        s.load_parameters_buffer(np.zeros(3, np.float32))


# Processes.


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="There is no fork here.")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_trains() -> None:
    """A session of its parent and one of its own, whoever holds the lock: its parent's threads are gone."""
    is_held, is_over = Event(), Event()

    def hold() -> None:
        with Engine.lock:
            is_held.set()
            is_over.wait()

    def trained(s: trainweb.TrainingSession) -> bytes:
        warm(s)
        return s.get_contiguous_parameters(False).tobytes()

    def train() -> None:
        with session() as own:
            sys.exit({trained(parents), trained(own)} != {expected})

    with session() as first:
        expected = trained(first)
    with session() as parents:
        holder = Thread(target=hold)
        holder.start()
        is_held.wait()
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        is_over.set()
        holder.join()
        child.join(120)
        child.kill()
    assert child.exitcode == 0
