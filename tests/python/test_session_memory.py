"""Sessions come and go, run out of memory at any point, and leave nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import artifacts, batch, session, snapshot, warm

import trainweb
from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.engine.wasmtime import MOST_INSTANCES, WasmtimeEngine
from trainweb.errors import EngineError, ReleasedError

ALLOCATING = {f"tw_session_{name}" for name in ("open", "reserve", "load", "save", "start")}
"""Calls on sessions in which the kernels allocate."""


def bytes_in_use() -> int:
    return get_engine(reproducible=False).bytes_in_use()


@contextmanager
def allocations_fail_from(n: int) -> Iterator[list[int]]:
    """Let the engine's n-th allocation from now on fail, and those after it; yields the count of calls.

    The kernels allocate themselves in calls on sessions: memory is full while such a call runs.
    """
    engine = get_engine(reproducible=False)
    assert isinstance(engine, WasmtimeEngine)
    calls = [0]
    alloc, call = engine.alloc, engine.call

    def failing(nbytes: int, *, zeroed: bool = False) -> int:
        calls[0] += 1
        if calls[0] >= n:
            raise EngineError("The kernels' memory cannot hold more.")
        return alloc(nbytes, zeroed=zeroed)

    def failing_call(name: str, *args: float) -> int:
        calls[0] += name in ALLOCATING
        if name not in ALLOCATING or calls[0] < n:
            return call(name, *args)
        with full_memory(engine):
            return call(name, *args)

    @contextmanager
    def full_memory(engine: WasmtimeEngine) -> Iterator[None]:
        engine._store.set_limits(memory_size=engine.memory_size(), instances=MOST_INSTANCES)
        taken = []
        for nbytes in (1 << k for k in range(30, 5, -1)):
            while ptr := call("tw_alloc", nbytes):
                taken.append(ptr)
        try:
            yield
        finally:
            engine._store.set_limits(memory_size=-1, instances=MOST_INSTANCES)
            for ptr in taken:
                call("tw_free", ptr)

    engine.alloc, engine.call = failing, failing_call  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        del engine.alloc, engine.call  # the class's again


def test_creation_without_memory_leaves_nothing_behind() -> None:
    made = artifacts("mlp")
    before = bytes_in_use()
    for n in range(1, 100):
        with allocations_fail_from(n):
            try:
                s = trainweb.TrainingSession(**made)
            except EngineError:
                assert bytes_in_use() == before
                continue
        break
    assert n > 3
    s.train_step(batch())
    s.release()
    assert bytes_in_use() == before


def longer(s: trainweb.TrainingSession) -> None:
    s.train_step(batch(n=50))


CALLS: dict[str, Callable[[trainweb.TrainingSession], Any]] = {
    "first step": lambda s: s.train_step(batch()),
    "first evaluation": lambda s: s.eval_step(batch()),
    "first optimizer step": lambda s: s.optimizer_step(),
    "first scheduler step": lambda s: (s.register_linear_lr_scheduler(2, 6, 0.1), s.scheduler_step()),
    "longer batch": longer,
    "profile": lambda s: s.profile(batch(), runs=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_memory_changes_nothing_and_works_afterwards(name: str) -> None:
    before = bytes_in_use()
    with session() as s:
        if name == "longer batch":
            warm(s)
        elif name == "first scheduler step":
            s.register_linear_lr_scheduler(2, 6, 0.1)
        start = snapshot(s)
        failures = 0
        for n in range(1, 100):
            with allocations_fail_from(n):
                try:
                    CALLS[name](s)
                except EngineError:
                    failures += 1
                else:
                    break
            if name == "profile":
                s.lazy_reset_grad()  # the step before the profile counts
                continue
            assert snapshot(s) == start, f"allocation {n}"
        assert failures > 0
    assert bytes_in_use() == before


def test_plans_run_on_after_the_arena_could_not_grow() -> None:
    with session() as s:
        expected = s.eval_step(batch())
        for n in (1, 2):
            with allocations_fail_from(n), pytest.raises(EngineError):
                s.eval_step(batch(n=50 * n))
            assert s.eval_step(batch()) == expected, f"after allocation {n} failed"


def test_sessions_come_and_go_without_a_trace() -> None:
    with session() as s:
        warm(s)
    before = bytes_in_use()
    for _ in range(200):
        with session() as s:
            s.train_step(batch())
            s.optimizer_step()
            s.lazy_reset_grad()
    assert bytes_in_use() == before


def test_failing_calls_leave_no_trace() -> None:
    bad = batch()
    bad["labels"][0] = 9
    with session() as s:
        warm(s)
        before = bytes_in_use()
        for _ in range(100):
            for feeds in (bad, {}, {"x": 1}, batch() | {"y": 1}):
                with pytest.raises(trainweb.errors.FeedError):
                    s.train_step(feeds)
        assert bytes_in_use() == before


def test_batch_sizes_that_alternate_use_the_plans_they_have() -> None:
    with session() as s:
        sizes = (1, 3, 8)
        for _ in range(2):
            for n in sizes:
                s.lazy_reset_grad()
                s.train_step(batch(n=n))
                s.train_step(batch(n=n))
                s.optimizer_step()
        before, plans = bytes_in_use(), len(s._core.host.loaded)
        for _ in range(20):
            for n in sizes:
                s.lazy_reset_grad()
                s.train_step(batch(n=n))
                s.train_step(batch(n=n))
                s.optimizer_step()
        assert bytes_in_use() == before
        assert len(s._core.host.loaded) == plans == 2 * len(sizes) + 1


# Lifecycle.


def test_every_call_after_release_says_so() -> None:
    with session() as s:
        warm(s)
    s.release()
    s.release()
    calls: list[Callable[[], Any]] = [
        lambda: s.train_step(batch()),
        lambda: s.eval_step(batch()),
        s.optimizer_step,
        s.lazy_reset_grad,
        s.get_learning_rate,
        lambda: s.set_learning_rate(1),
        lambda: s.register_linear_lr_scheduler(1, 2, 0.1),
        s.scheduler_step,
        s.get_parameters_size,
        s.get_contiguous_parameters,
        lambda: s.load_parameters_buffer(b""),
        lambda: s.get_parameter("fc1.weight"),
        lambda: s.update_parameter("fc1.weight", np.zeros((4, 5), np.float32)),
        lambda: s.get_parameter_type_and_shape("fc1.weight"),
        s.input_names,
        s.output_names,
        s.export_model_for_inferencing,
        lambda: s.profile(batch()),
    ]
    for call in calls:
        with pytest.raises(ReleasedError):
            call()


def test_a_state_outlives_its_session_and_serves_another() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    models = made.training_model, made.eval_model, made.optimizer_model
    with trainweb.TrainingSession(state, *models) as s:
        warm(s)
        s.optimizer_step()
        parameters, moments, step = (snapshot(s)["segments"][k] for k in (2, 4, 6))
        held = state.parameters["fc1.weight"]
        during = held.data
    assert np.array_equal(held.data, during)
    held.data = during + 1
    held.data = during
    saved = trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True)
    with trainweb.TrainingSession(state, *models) as s, session(checkpoint=saved) as other:
        again = snapshot(s)["segments"]
        assert (again[2], again[4], again[6][8:16]) == (parameters, moments, step[8:16])
        assert s.get_learning_rate() == other.get_learning_rate() == np.float32(0.0125)
        assert snapshot(other)["segments"] == again
        for each in (s, other):
            each.train_step(batch(seed=3))
            each.optimizer_step()
        assert snapshot(s)["segments"][2] == snapshot(other)["segments"][2]


def test_sessions_side_by_side_do_not_disturb_each_other() -> None:
    with session() as alone:
        warm(alone)
        expected = snapshot(alone)["segments"]
    with session() as a, session("embedding") as b, session("batch_norm") as c:
        steps: tuple[Callable[[trainweb.TrainingSession, str], Any], ...] = (
            lambda s, k: s.train_step(batch(k, seed=7)),
            lambda s, k: s.optimizer_step(),
            lambda s, k: s.set_learning_rate(0.0125),
            lambda s, k: s.train_step(batch(k, seed=8)),
        )
        for step in steps:
            for s, kind in ((b, "embedding"), (a, "mlp"), (c, "batch_norm")):
                step(s, kind)
        got = snapshot(a)["segments"]
    assert {k: v for k, v in got.items() if k != 6} == {k: v for k, v in expected.items() if k != 6}


def test_a_session_that_is_dropped_can_be_replaced_once_it_is_released() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with pytest.raises(ZeroDivisionError), trainweb.TrainingSession(state, made.training_model) as s:
        s.train_step(batch())
        _ = 1 / 0
    with trainweb.TrainingSession(state, made.training_model) as s:
        s.train_step(batch())


def test_models_that_do_not_fit_the_checkpoint_are_refused() -> None:
    mlp, other = artifacts("mlp"), artifacts("batch_norm")
    before = bytes_in_use()
    state = trainweb.CheckpointState.load_checkpoint(mlp.checkpoint)
    with pytest.raises(trainweb.errors.TrainwebError), trainweb.TrainingSession(state, other.training_model) as s:
        s.train_step(batch("batch_norm"))
    with trainweb.TrainingSession(state, mlp.training_model) as s:
        s.train_step(batch())
    assert bytes_in_use() == before
