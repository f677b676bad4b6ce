"""Loops that run their body again and again: what written-out ones make is checked in test_control_flow.py."""

from collections.abc import Iterator
from math import isqrt

import numpy as np
import pytest
from tests.control import test_control_flow as written
from tests.python.kernel_description import kernels_of
from tests.python.plan_builder import RawPlan, instruction
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.backend.engine import MORE
from trainweb.backend.wasm.engine import get_engine
from trainweb.control import expand_control_flow, repeat
from trainweb.ir.layout import LOOP_DEPTH, LOOP_NEST_TRIPS, LOOP_TRIPS
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

STEPS = 1000


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "WRITTEN_OUT_NODES", 0)


@pytest.fixture
def long() -> Iterator[tuple[InferenceCore, np.ndarray]]:
    """A session of a recurrent net of 1,000 steps, and its input."""
    core = InferenceCore(read_model(written.recurrent(STEPS)))
    yield core, np.random.default_rng(3).standard_normal((STEPS, 3)).astype(np.float32)
    core.host.release()


def n_repeats(proto: object) -> int:
    graph = expand_control_flow(read_model(proto), differentiable=True)  # type: ignore[arg-type]
    return [n.op_type for n in graph.nodes].count("Repeat")


@pytest.mark.usefixtures("always")
def test_a_short_loop_forward_and_backward() -> None:
    assert n_repeats(written.recurrent(4)) == 1
    written.test_a_loop_of_known_length_forward_and_backward()
    written.test_a_loop_trains_and_its_weight_is_one_parameter()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("attrs", written.SCANS, ids=["plain", "one back", "rows back"])
def test_a_short_scan_forward_and_backward(attrs: dict[str, list[int]]) -> None:
    assert n_repeats(written.scanned(**attrs)) == 1
    written.test_scan_forward_and_backward(attrs)


def test_a_long_loop_is_few_instructions_in_little_memory(long: tuple[InferenceCore, np.ndarray]) -> None:
    assert n_repeats(written.recurrent(STEPS)) == 1
    core, x = long
    plan = core.plan({"x": TensorType("float32", x.shape)}).plan
    assert len(plan.text) < 40
    assert plan.arena_bytes < 8 * x.nbytes
    written.agree(written.recurrent(STEPS), {"x": x})
    written.gradient_agrees(written.recurrent(STEPS), {"x": x}, ["x", "w"])


def test_a_net_of_a_thousand_steps_trains() -> None:
    built = build_artifacts(written.recurrent(STEPS), requires_grad=["w"], optimizer=OptimType.SGD)
    x = np.random.default_rng(4).standard_normal((STEPS, 3)).astype(np.float32)
    with trainweb.TrainingSession(**built) as session:
        session.set_learning_rate(0.5)
        losses = take_steps(session, {"x": x}, 5)
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < 0.95 * losses[0]


def test_a_run_goes_on_within_a_loop(long: tuple[InferenceCore, np.ndarray]) -> None:
    core, x = long
    feeds = {"x": from_numpy("x", x)}
    expected = {name: to_numpy(t) for name, t in core.run(feeds).items()}
    loaded = core.plan({"x": TensorType("float32", x.shape)})
    core.host.write_feeds(loaded, feeds)
    status, slices = core.engine.run_slice(loaded.ptr, anew=True, milliseconds=0), 1
    while status == MORE:
        status = core.engine.run_slice(loaded.ptr, anew=False, milliseconds=0)
        slices += 1
    assert (status, slices > 5 * STEPS) == (0, True)
    place = loaded.plan.outputs["last"]
    found = core.engine.read(core.host.address(place, loaded), place.nbytes)
    assert found == expected["last"].tobytes()


# ---- plans that nobody compiled


def run_raw(*names_and_words: tuple[str, list[int]], counter: int = 0, trips: int = 3) -> tuple[str, list[int], bytes]:
    """Run instructions whose buffers are 0: the counter, 1: a source, 2: a result; status, counter, result."""
    engine = get_engine()
    kernels = kernels_of(engine)
    block = engine.alloc(256, zeroed=True)
    engine.write(block, np.array([counter], np.int64).view(np.uint8))
    engine.write(block + 64, np.arange(trips, dtype=np.uint8))
    plan = RawPlan(engine.description.fingerprint)
    plan.segments, plan.buffers = [[block, 192, 1]], [[0, 0, 8], [0, 64, trips], [0, 128, trips]]
    plan.code = [instruction(kernels[name], words) for name, words in names_and_words]
    words = plan.encode()
    address = engine.alloc(words.nbytes)
    engine.write(address, words)
    plan.place(engine, address)
    status = engine.description.status_name(engine.run(address))
    number = np.frombuffer(engine.read(block, 8), np.int64).tolist()
    result = engine.read(block + 128, trips)
    engine.free(address)
    engine.free(block)
    return status, number, result


BEGIN, END = ("loop_begin", [0, 3, 0]), ("loop_end", [0, 0, 0])
TAKE, PUT = ("loop_take", [1, 0, 1, 1, 3, 0]), ("loop_put", [1, 0, 2, 1, 3, 1])


def test_an_end_without_a_beginning_is_passed_over() -> None:
    assert run_raw(END, END, counter=2) == ("TW_OK", [0], bytes(3))


def test_the_parts_of_all_iterations_are_written_once() -> None:
    # The first byte of the source is taken from its parts 0, 1, 2 and put from the end on.
    status, _, result = run_raw(BEGIN, TAKE, PUT, END)
    assert (status, result) == ("TW_OK", bytes([2, 1, 0]))


def test_a_loop_within_a_loop_ends() -> None:
    # The counter of both is the same: when the inner one is over it is 0, and the outer one goes on.
    assert run_raw(BEGIN, BEGIN, PUT, END, END) == ("TW_OK", [0], bytes(3))


def test_a_loop_runs_anew_in_each_iteration_of_another() -> None:
    # The part taken last, 2, is in the place of the first one: the inner loop takes it when it runs again.
    assert run_raw(BEGIN, TAKE, PUT, END) == ("TW_OK", [0], bytes([2, 1, 0]))
    assert run_raw(BEGIN, BEGIN, TAKE, PUT, END, END) == ("TW_OK", [0], bytes([2, 1, 2]))


@pytest.mark.parametrize("lie", [1, 7, 2**31 - 1])
def test_what_a_plan_says_of_where_loops_begin_does_not_matter(lie: int) -> None:
    begin, end = ("loop_begin", [0, 3, lie]), ("loop_end", [0, lie, lie])
    assert run_raw(begin, TAKE, PUT, end) == ("TW_OK", [0], bytes([2, 1, 0]))
    assert run_raw(end, end, counter=2) == ("TW_OK", [0], bytes(3))


def test_loops_within_each_other_have_bounds() -> None:
    def nest(trips: int, depth: int) -> str:
        return run_raw(*[("loop_begin", [0, trips, 0])] * depth, *[END] * depth)[0]

    assert nest(2, LOOP_DEPTH) == "TW_OK"
    assert nest(1, LOOP_DEPTH + 1) == "TW_BAD_CONDITION"
    assert nest(1 + isqrt(LOOP_NEST_TRIPS), 2) == "TW_BAD_CONDITION"


@pytest.mark.parametrize("counter", [-1, 3, 2**40])
def test_a_counter_that_is_no_iteration_is_refused(counter: int) -> None:
    for access in (TAKE, PUT):
        assert run_raw(access, counter=counter)[0] == "TW_BAD_INDEX"


@pytest.mark.parametrize("trips", [0, LOOP_TRIPS + 1])
def test_loops_have_a_number_of_iterations_in_bounds(trips: int) -> None:
    assert run_raw(("loop_begin", [0, trips, 0]), END)[0] == "TW_BAD_CONDITION"


def test_a_result_over_the_counter_is_refused() -> None:
    assert run_raw(BEGIN, ("loop_put", [1, 0, 0, 1, 3, 0]), END)[0] == "TW_OVERLAP"
    assert run_raw(BEGIN, ("loop_take", [1, 0, 0, 1, 3, 0]), END)[0] == "TW_OVERLAP"


def test_parts_outside_of_a_buffer_are_refused() -> None:
    assert run_raw(BEGIN, ("loop_put", [1, 0, 2, 1, 4, 0]), END)[0] == "TW_BAD_EXTENT"
