"""Sessions in the kernels: their segments, copies and plans, against numpy; no call reaches beyond them."""

import random
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.python.plan_builder import RawPlan

from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.errors import EngineError
from trainweb.ir.layout import (
    APART_BYTES,
    ARENA,
    CONSTANTS,
    COPY_BATCH,
    COPY_CHECK,
    COPY_GOOD,
    COPY_STEP,
    COPY_TRIAL,
    FIT_EPOCH,
    FIT_FAULT,
    FIT_KEPT,
    FIT_NEXT,
    FIT_OPTIMIZER_STEPS,
    FIT_STEP,
    FIT_WAITING,
    GRADIENTS,
    HEADER_WORDS,
    LARGE_CONSTANTS,
    LOAD_FEEDS,
    LOAD_NO_FEEDS,
    LOAD_STEP,
    MOMENTUM0,
    MOMENTUM1,
    NEXT_BATCH,
    NEXT_END,
    NEXT_FAIL,
    NEXT_UNDO,
    NEXT_UPDATE,
    ON_NAN_FAIL,
    ON_NAN_RESTORE,
    ON_NAN_SKIP,
    ON_NAN_STOP,
    PARAMETERS,
    PREPARED,
    STATE,
    STATE_LAZY_RESET,
    STATE_LEARNING_RATE,
    STATE_LOADS,
    STATE_WORDS,
)

CANARY = bytes(range(255, -1, -1)) * 4
SIZES = {PARAMETERS: 400, GRADIENTS: 300, MOMENTUM0: 300, MOMENTUM1: 700, STATE: 4 * STATE_WORDS}
TRAINED = [(0, 120), (160, 80), (300, 100)]
"""First byte and bytes of runs of trained parameters."""
N_TRAINED = 300 // 4


class Yard:
    """A session whose segments lie between canaries."""

    def __init__(self) -> None:
        self.engine = WasmtimeEngine()
        self.canaries: list[int] = []
        self.session = self.engine.call("tw_session_open")
        for segment, nbytes in SIZES.items():
            self.wall()
            self.demand("reserve", segment, nbytes)
        self.wall()
        self.demand("trained", self.block(struct.pack("<6I", *(word for run in TRAINED for word in run))))

    def wall(self) -> None:
        self.canaries.append(self.block(CANARY))

    def block(self, data: bytes) -> int:
        ptr = self.engine.alloc(len(data))
        self.engine.write(ptr, data)
        return ptr

    def call(self, name: str, *args: float) -> int:
        return self.engine.call(f"tw_session_{name}", self.session, *args)

    def demand(self, name: str, *args: float) -> None:
        self.engine.demand(f"tw_session_{name}", self.session, *args)

    def start(self, accumulate: int = 1, on_nan: int = ON_NAN_FAIL, is_sum: bool = False, mu: float = 0) -> None:
        self.engine.demand("tw_fit_start", self.session, accumulate, on_nan, is_sum, float(mu))

    def fit(self, name: str, *args: float) -> dict[str, float]:
        """Call a function of a fit; where it is then."""
        self.engine.demand(f"tw_fit_{name}", self.session, *args)
        at = self.engine.read(self.engine.call("tw_fit_at", self.session), 48)
        words, (loss_sum, rows) = struct.unpack("<8I", at[:32]), struct.unpack("<2d", at[32:])
        assert words[FIT_NEXT] in range(5)
        named = {"next": FIT_NEXT, "fault": FIT_FAULT, "waiting": FIT_WAITING, "epoch": FIT_EPOCH, "step": FIT_STEP}
        named |= {"kept": FIT_KEPT, "updates": FIT_OPTIMIZER_STEPS}
        return {name: words[k] for name, k in named.items()} | {"loss_sum": loss_sum, "rows": rows}

    def base(self, segment: int) -> int:
        return self.call("base", segment)

    def read(self, segment: int) -> np.ndarray:
        return np.frombuffer(self.engine.read(self.base(segment), self.call("bytes", segment)), np.float32)

    def write(self, segment: int, values: np.ndarray) -> None:
        assert values.nbytes == self.call("bytes", segment)
        self.engine.write(self.base(segment), values)

    def fill(self, seed: int) -> dict[int, bytes]:
        """Write random numbers to all segments but the state; their bytes."""
        rng = np.random.default_rng(seed)
        for segment in SIZES.keys() - {STATE}:
            self.write(segment, rng.standard_normal(SIZES[segment] // 4).astype(np.float32))
        return self.contents()

    def contents(self) -> dict[int, bytes]:
        return {segment: self.read(segment).tobytes() for segment in SIZES}

    def check(self) -> None:
        for canary in self.canaries:
            assert self.engine.read(canary, len(CANARY)) == CANARY

    def plan(self, segments: int = LARGE_CONSTANTS, arena: int = 0) -> int:
        """A block with a plan of no instructions."""
        plan = RawPlan(self.engine.description.fingerprint)
        plan.segments = [[0, arena if k == ARENA else 0, 1] for k in range(segments)]
        return self.block(plan.encode().tobytes())


@pytest.fixture
def yard() -> Iterator[Yard]:
    yard = Yard()
    yield yard
    yard.check()
    assert yard.call("close") == 0
    yard.check()


def trained(values: np.ndarray) -> np.ndarray:
    """The elements of the parameters that are trained."""
    return np.concatenate([values[start // 4 : (start + n) // 4] for start, n in TRAINED])


# ---- segments


def test_segments_hold_zeros_and_have_their_sizes(yard: Yard) -> None:
    for segment, nbytes in SIZES.items():
        assert yard.base(segment) % 64 == 0
        assert yard.engine.read(yard.base(segment), nbytes) == bytes(nbytes)
    assert [yard.base(s) for s in (ARENA, CONSTANTS, PREPARED)] == [0, 0, 0]


def test_only_the_arena_and_prepared_values_grow(yard: Yard) -> None:
    for segment in (ARENA, PREPARED):
        yard.demand("reserve", segment, 100)
        before = yard.call("generation")
        yard.demand("reserve", segment, 100)
        assert yard.call("generation") == before, "there is room already"
        yard.wall()
        yard.engine.free(yard.block(b"\xff" * 1000))  # memory that was used before
        yard.demand("reserve", segment, 1000)
        assert yard.call("bytes", segment) == 1000 and yard.call("generation") != before
    assert yard.engine.read(yard.base(PREPARED), 1000) == bytes(1000)


def test_a_session_gives_back_what_it_took() -> None:
    yard = Yard()
    yard.demand("save", COPY_STEP, 255)
    yard.start(mu=0.5)
    yard.demand("reserve", ARENA, 5000)
    yard.demand("load", yard.plan(), yard.block(bytes(64)), 0, 0, 1)
    yard.demand("close")
    assert yard.engine.bytes_in_use() == len(yard.canaries) * len(CANARY)


def test_nobody_else_frees_what_a_session_has(yard: Yard) -> None:
    yard.demand("save", COPY_STEP, 255)
    for ptr in (yard.session, yard.base(PARAMETERS), yard.call("copy", COPY_STEP, PARAMETERS)):
        with pytest.raises(EngineError, match="not an allocated block"):
            yard.engine.free(ptr)


# ---- copies


@pytest.mark.parametrize("segments", [1 << PARAMETERS, 1 << STATE | 1 << MOMENTUM1, 255, 2**32 - 1])
def test_a_copy_brings_back_its_segments_and_no_others(yard: Yard, segments: int) -> None:
    before = yard.fill(1)
    yard.demand("save", COPY_CHECK, segments)
    for segment in SIZES:
        at = yard.call("copy", COPY_CHECK, segment)
        assert (at != 0) == bool(segments >> segment & 1)
        if at:
            assert yard.engine.read(at, SIZES[segment]) == before[segment]
    after = yard.fill(2)
    yard.demand("put_back", COPY_CHECK)
    assert yard.contents() == {s: (before if segments >> s & 1 else after)[s] for s in SIZES}


def test_a_segment_that_comes_later_is_in_no_copy() -> None:
    yard = Yard()
    yard.session = yard.engine.call("tw_session_open")
    yard.demand("reserve", PARAMETERS, 400)
    yard.demand("save", COPY_STEP, 255)
    yard.demand("reserve", GRADIENTS, 100_000)
    yard.write(GRADIENTS, np.ones(25_000, np.float32))
    yard.write(PARAMETERS, np.ones(100, np.float32))
    yard.demand("put_back", COPY_STEP)
    assert yard.call("copy", COPY_STEP, GRADIENTS) == 0
    assert (yard.read(GRADIENTS) == 1).all() and not yard.read(PARAMETERS).any()


def test_copies_do_not_disturb_each_other(yard: Yard) -> None:
    seen = {}
    for seed, copy in enumerate((COPY_BATCH, COPY_CHECK, COPY_STEP, COPY_CHECK)):
        seen[copy] = yard.fill(seed)
        yard.demand("save", copy, 255)
    for copy, contents in seen.items():
        yard.demand("put_back", copy)
        assert yard.contents() == contents


def test_a_copy_takes_memory_once_and_gives_it_back(yard: Yard) -> None:
    before = yard.engine.bytes_in_use()
    yard.demand("save", COPY_BATCH, 1 << PARAMETERS)
    yard.demand("save", COPY_BATCH, 255)
    full = yard.engine.bytes_in_use()
    assert full == before + sum(SIZES.values())
    yard.demand("save", COPY_BATCH, 1 << GRADIENTS)
    assert yard.engine.bytes_in_use() == full, "it is kept for the next one"
    assert yard.call("copy", COPY_BATCH, PARAMETERS) == 0
    yard.demand("forget", COPY_BATCH)
    assert yard.engine.bytes_in_use() == before
    with pytest.raises(EngineError, match=r"put_back.*TW_BAD_ARGUMENT"):
        yard.demand("put_back", COPY_BATCH)


# ---- trained parameters


def test_averages_and_trained_parameters_change_places(yard: Yard) -> None:
    before = yard.fill(3)
    parameters, moments = yard.read(PARAMETERS), yard.read(MOMENTUM1)
    yard.demand("exchange")
    expected = parameters.copy()
    at = len(moments) - N_TRAINED
    for start, n in TRAINED:
        expected[start // 4 : (start + n) // 4] = moments[at : at + n // 4]
        at += n // 4
    np.testing.assert_array_equal(yard.read(PARAMETERS), expected)
    np.testing.assert_array_equal(yard.read(MOMENTUM1)[-N_TRAINED:], trained(parameters))
    np.testing.assert_array_equal(yard.read(MOMENTUM1)[:-N_TRAINED], moments[:-N_TRAINED])
    assert yard.read(STATE).view(np.uint32)[STATE_LOADS] == 1, "what plans prepared is void"
    yard.demand("exchange")
    assert {**yard.contents(), STATE: b""} == {**before, STATE: b""}


def test_gradients_are_drawn_to_the_start(yard: Yard) -> None:
    yard.fill(4)
    start = trained(yard.read(PARAMETERS)).astype(np.float64)
    yard.start(mu=0.3)
    yard.fill(5)
    way = trained(yard.read(PARAMETERS)).astype(np.float64) - start
    gradients = yard.read(GRADIENTS).astype(np.float64)
    yard.fit("batch")
    assert yard.fit("trained", 1.0, 4.0)["next"] == NEXT_UPDATE
    np.testing.assert_array_equal(yard.read(GRADIENTS), (gradients + 0.3 * way).astype(np.float32))


@pytest.mark.parametrize("run", [(0, 404), (398, 8), (400, 4), (2, 4), (0, 2), (2**32 - 4, 8)])
def test_runs_outside_of_the_parameters_are_refused(run: tuple[int, int]) -> None:
    yard = Yard()
    yard.session = yard.engine.call("tw_session_open")
    yard.demand("reserve", PARAMETERS, 400)
    table = yard.block(struct.pack("<2I", *run))
    with pytest.raises(EngineError, match=r"trained.*TW_BAD"):
        yard.demand("trained", table)
    yard.engine.free(table)


def test_runs_come_from_low_addresses_to_high() -> None:
    yard = Yard()
    yard.session = yard.engine.call("tw_session_open")
    yard.demand("reserve", PARAMETERS, 400)
    with pytest.raises(EngineError, match=r"trained.*TW_BAD_ARGUMENT"):
        yard.demand("trained", yard.block(struct.pack("<4I", 0, 40, 36, 40)))


def test_averages_need_their_room() -> None:
    yard = Yard()
    yard.session = yard.engine.call("tw_session_open")
    yard.demand("reserve", PARAMETERS, 400)
    yard.demand("reserve", MOMENTUM1, 396)
    yard.demand("reserve", GRADIENTS, 396)
    yard.demand("trained", yard.block(struct.pack("<2I", 0, 400)))
    yard.demand("reserve", STATE, 4 * STATE_WORDS)
    yard.start(mu=0.5)
    yard.fit("batch")
    for call in ("session_exchange",), ("fit_trained", 1.0, 4.0):
        with pytest.raises(EngineError, match="TW_BAD_SEGMENT"):
            yard.engine.demand(f"tw_{call[0]}", yard.session, *call[1:])


# ---- numbers


def numbers() -> np.ndarray:
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, 100, dtype=np.uint32)
    bits[:40] |= 0x7F800000  # NaN of all kinds, and some infinities
    bits[:7] &= 0xFF800000
    return bits.view(np.float32)


def test_the_first_segment_with_more_numbers_that_are_not_finite_is_found(yard: Yard) -> None:
    values = numbers()
    yard.write(PARAMETERS, values)
    yard.write(GRADIENTS, values[:75])
    yard.start(on_nan=ON_NAN_SKIP)

    def worse(loss: float = 1.0) -> int | None:
        yard.fit("batch")
        at = yard.fit("trained", loss, 4.0)
        assert at["next"] in (NEXT_UPDATE, NEXT_UNDO)
        return int(at["fault"]) if at["next"] == NEXT_UNDO else None

    assert worse() == GRADIENTS, "no gradient is infinite on purpose"
    yard.write(GRADIENTS, np.zeros(75, np.float32))
    assert worse() is None
    for segment, bad in ((STATE - 1, np.inf), (MOMENTUM0, -np.inf), (GRADIENTS, np.nan), (PARAMETERS, np.nan)):
        changed = yard.read(segment).copy()
        changed[np.flatnonzero(np.isfinite(changed))[-1]] = bad
        yard.write(segment, changed)
        assert worse() == segment
    assert worse(np.nan) == worse(-np.inf) == 0, "the loss comes first"


def test_what_plans_prepared_is_void_after_going_back(yard: Yard) -> None:
    def loads() -> int:
        return int(yard.read(STATE).view(np.uint32)[STATE_LOADS])

    before = yard.fill(9)
    for copy in (COPY_GOOD, COPY_TRIAL):
        yard.demand("save", copy, 255)
        start = loads()
        yard.fill(10)
        yard.demand("exchange")
        yard.demand("put_back", copy)
        assert (yard.contents() | {STATE: b""}, loads()) == (before | {STATE: b""}, start)
        yard.demand("exchange")
        yard.demand("go_back", copy)
        assert (yard.contents() | {STATE: b""}, loads()) == (before | {STATE: b""}, start + 2)
    with pytest.raises(EngineError, match="TW_BAD_ARGUMENT"):
        yard.demand("go_back", COPY_STEP)


def test_the_range_of_numbers_is_that_of_numpy(yard: Yard) -> None:
    values = numbers()
    yard.write(PARAMETERS, values)
    for lo, hi in ((0, 100), (7, 8), (0, 7), (40, 100), (3, 3)):
        part = values[lo:hi]
        finite = part[np.isfinite(part)]
        found = yard.engine.range(yard.base(PARAMETERS) + 4 * lo, hi - lo)
        assert (found.nan, found.infinite) == (np.isnan(part).sum(), np.isinf(part).sum())
        assert (found.least, found.most) == ((finite.min(), finite.max()) if finite.size else (np.inf, -np.inf))
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found.squares, (part.astype(np.float64) ** 2).sum(), rtol=1e-12)
    # A block may be a little longer than was asked for: up to a multiple of 64 bytes.
    for ptr, n in ((yard.base(PARAMETERS), 113), (yard.base(PARAMETERS) + 2, 1), (0, 1), (yard.session, 2**30)):
        with pytest.raises(EngineError, match="allocated block"):
            yard.engine.range(ptr, n)


# ---- fits


def lazy_reset(yard: Yard) -> int:
    return int(yard.read(STATE).view(np.uint32)[STATE_LAZY_RESET])


def test_a_fit_counts_batches_and_divides_their_losses(yard: Yard) -> None:
    losses, weights = [2.5, 0.1, 4.0, 0.7, 3.0], [4.0, 3.0, 0.5, 4.0, 1.0]
    for is_sum in (False, True):
        yard.start(accumulate=2, is_sum=is_sum)
        yard.fit("epoch", 3)
        updates = 0
        for k, (loss, weight) in enumerate(zip(losses, weights, strict=True)):
            assert yard.fit("batch")["waiting"] == k % 2
            assert lazy_reset(yard) == (k % 2 == 0), "the first batch of an update overwrites"
            at = yard.fit("trained", loss, weight)
            assert at["next"] == (NEXT_UPDATE if k % 2 else NEXT_BATCH)
            if at["next"] == NEXT_UPDATE:
                assert at["step"] == k, "it is done after the update"
                updates += 1
                at = yard.fit("updated")
            total = (
                sum(losses[: k + 1]) if is_sum else sum(a * b for a, b in zip(losses[: k + 1], weights, strict=False))
            )
            assert (at["step"], at["kept"], at["updates"], at["epoch"]) == (k + 1, k + 1, updates, 3)
            assert (at["loss_sum"], at["rows"]) == (pytest.approx(total, rel=1e-15), sum(weights[: k + 1]))
        assert yard.fit("rest")["next"] == NEXT_UPDATE
        at = yard.fit("updated")
        assert (at["updates"], at["step"], at["waiting"]) == (3, 5, 0)
        assert yard.fit("rest")["next"] == NEXT_BATCH, "nothing is left over"
        at = yard.fit("epoch", 4)
        assert (at["step"], at["kept"], at["updates"], at["loss_sum"], at["rows"]) == (0, 0, 3, 0, 0)
        yard.engine.demand("tw_fit_end", yard.session)


@pytest.mark.parametrize("on_nan", [ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_RESTORE])
def test_a_batch_that_makes_nan_is_undone(yard: Yard, on_nan: int) -> None:
    yard.start(accumulate=3, on_nan=on_nan)
    good = yard.fill(11)
    yard.fit("epoch", 0)
    yard.fit("batch")
    yard.fill(12)
    assert yard.fit("trained", 1.0, 4.0)["next"] == NEXT_BATCH
    before = yard.fill(13)
    yard.fit("batch")
    yard.fill(14)
    assert yard.fit("trained", np.nan, 4.0)["next"] == NEXT_UNDO
    at = yard.fit("undo")
    is_back, is_over = on_nan == ON_NAN_RESTORE, on_nan == ON_NAN_STOP
    assert yard.contents() | {STATE: b""} == (good if is_back else before) | {STATE: b""}
    assert at["next"] == (NEXT_END if is_over else NEXT_BATCH)
    assert (at["waiting"], at["step"], at["kept"], at["rows"]) == (int(on_nan == ON_NAN_SKIP), 2 - is_over, 1, 4)
    assert lazy_reset(yard) == (on_nan != ON_NAN_SKIP)


@pytest.mark.parametrize("on_nan", [ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_RESTORE])
def test_the_host_copies_segments_that_lie_elsewhere(yard: Yard, on_nan: int) -> None:
    yard.start(accumulate=2, on_nan=on_nan)
    yard.engine.demand("tw_fit_elsewhere", yard.session, 1, 0)
    yard.fit("epoch", 0)
    yard.fit("batch")
    here = yard.fill(16)
    yard.write(MOMENTUM0, np.full(SIZES[MOMENTUM0] // 4, np.nan, np.float32))
    yard.fit("trained", 1.0, 2.0)
    yard.fit("batch")
    here = yard.contents()
    assert yard.fit("trained", 1.0, 4.0)["next"] == NEXT_UPDATE
    assert yard.contents() == here, "nothing is scaled"
    yard.engine.demand("tw_fit_elsewhere", yard.session, 1, GRADIENTS)
    at = yard.fit("updated")
    assert (at["next"], at["fault"]) == (NEXT_UNDO, GRADIENTS)
    state = yard.read(STATE).copy()
    yard.write(STATE, state + 1)
    yard.fit("undo")
    assert yard.contents() | {STATE: b""} == here | {STATE: b""}
    assert yard.read(STATE)[STATE_LEARNING_RATE] == state[STATE_LEARNING_RATE]


def test_a_fit_goes_back_three_times(yard: Yard) -> None:
    yard.start(on_nan=ON_NAN_RESTORE)
    yard.fit("epoch", 0)
    for k in range(4):
        yard.fit("batch")
        yard.fit("trained", np.inf, 4.0)
        at = yard.fit("undo")
        assert (at["next"], at["step"]) == ((NEXT_BATCH, k + 1) if k < 3 else (NEXT_FAIL, 3))


@pytest.mark.parametrize("on_nan", [ON_NAN_STOP, ON_NAN_SKIP, ON_NAN_RESTORE])
def test_the_last_update_of_an_epoch_is_no_batch(yard: Yard, on_nan: int) -> None:
    yard.start(accumulate=2, on_nan=on_nan)
    yard.fit("epoch", 0)
    yard.fit("batch")
    yard.fit("trained", 1.0, 4.0)
    before = yard.fill(15)
    assert yard.fit("rest")["next"] == NEXT_UPDATE
    yard.write(PARAMETERS, np.full(100, np.nan, np.float32))
    at = yard.fit("updated")
    assert (at["next"], at["fault"]) == (NEXT_UNDO, PARAMETERS)
    at = yard.fit("undo")
    assert (at["step"], at["kept"], at["updates"], at["waiting"]) == (1, 1, 0, 0)
    if on_nan != ON_NAN_RESTORE:
        assert yard.contents()[PARAMETERS] == before[PARAMETERS]


def test_a_fit_that_has_not_begun_leaves_flag_and_rate(yard: Yard) -> None:
    def state() -> np.ndarray:
        return yard.read(STATE).view(np.uint32)

    for has_begun in (False, True):
        for flag in (0, 1):
            words = np.zeros(STATE_WORDS, np.uint32)
            words[[STATE_LAZY_RESET, STATE_LEARNING_RATE]] = flag, np.float32(0.25).view(np.uint32)
            yard.write(STATE, words)
            yard.start(on_nan=ON_NAN_RESTORE)
            yard.fit("epoch", 0)
            in_use = yard.engine.bytes_in_use()
            yard.fit("batch")
            changed = state().copy()
            changed[STATE_LEARNING_RATE] = np.float32(0.5).view(np.uint32)
            yard.write(STATE, changed)
            if has_begun:
                yard.fit("trained", 1.0, 4.0)
            yard.engine.demand("tw_fit_end", yard.session)
            assert state()[STATE_LAZY_RESET] == (1 if has_begun else flag)
            assert state()[STATE_LEARNING_RATE].view(np.float32) == (0.5 if has_begun else 0.25)
            assert yard.engine.bytes_in_use() == in_use - sum(SIZES.values()), "the copies are given back"
            assert yard.engine.call("tw_fit_at", yard.session) == 0


def test_a_fit_goes_on_from_a_position(yard: Yard) -> None:
    yard.start()
    at = yard.fit("resume", 2, 5, 4, 17, 1.5, 12.0)
    assert (at["epoch"], at["step"], at["kept"], at["updates"], at["loss_sum"], at["rows"]) == (2, 5, 4, 17, 1.5, 12)
    assert yard.fit("epoch", 2) == at, "it is in the epoch already"
    for name, args in (("resume", (2, 4, 5, 1, 0.0, 0.0)), ("updated", ()), ("trained", (1.0, 1.0)), ("undo", ())):
        with pytest.raises(EngineError, match="TW_BAD_ARGUMENT"):
            yard.fit(name, *args)


# ---- plans


def test_the_plan_that_was_used_least_recently_goes_first(yard: Yard) -> None:
    first, second, other, third = plans = [yard.plan() for _ in range(4)]
    for plan in plans:
        yard.demand("load", plan, 0, 0, 0, int(plan != other))
    assert yard.call("excess", 4) == 0, "three plans are of steps"
    assert yard.call("excess", 3) == first
    assert yard.engine.run(first) == 0
    assert yard.call("excess", 1) == second
    assert yard.engine.run_slice(second, anew=True, milliseconds=10) == 0
    yard.demand("reserve", ARENA, 10_000)  # to be placed again is no use
    assert yard.call("excess", 3) == third
    yard.demand("unload", third)
    assert yard.call("excess", 3) == 0 and yard.call("excess", 2) == first


def test_constants_are_freed_with_the_last_plan_that_has_them(yard: Yard) -> None:
    before = yard.engine.bytes_in_use()
    constants, large = yard.block(bytes(1000)), yard.block(bytes(5000))
    plans = [yard.plan(LARGE_CONSTANTS + 1) for _ in range(3)]
    for plan in plans:
        yard.demand("load", plan, constants if plan != plans[2] else 0, large, 0, 1)
    yard.demand("unload", plans[1])
    assert yard.engine.bytes_in_use() > before + 6000
    yard.demand("unload", plans[0])
    assert before + 5000 < yard.engine.bytes_in_use() < before + 6000
    yard.demand("unload", plans[2])
    assert yard.engine.bytes_in_use() == before


def test_one_block_may_have_both_kinds_of_constants(yard: Yard) -> None:
    before = yard.engine.bytes_in_use()
    plan, constants = yard.plan(LARGE_CONSTANTS + 1), yard.block(bytes(1000))
    yard.demand("load", plan, constants, constants, 0, 1)
    yard.demand("unload", plan)
    assert yard.engine.bytes_in_use() == before


def test_loaded_plans_know_their_segments(yard: Yard) -> None:
    plan, constants, large = yard.plan(LARGE_CONSTANTS + 1), yard.block(bytes(48)), yard.block(bytes(200))
    yard.demand("load", plan, constants, large, 0, 1)
    for nbytes in (100, 100_000):
        yard.demand("reserve", ARENA, nbytes)
        words = np.frombuffer(yard.engine.read(plan, 4 * 47), np.uint32)[20:47].reshape(9, 3)
        expected = {**{s: (yard.base(s), n) for s, n in SIZES.items()}, CONSTANTS: (constants, 48)}
        expected |= {ARENA: (yard.base(ARENA), nbytes), PREPARED: (0, 0), LARGE_CONSTANTS: (large, 200)}
        assert {k: (int(base), int(n)) for k, (base, n, _) in enumerate(words)} == expected
        assert yard.engine.run(plan) == 0


@pytest.mark.parametrize(
    ("kind", "arena"),
    [
        (LOAD_NO_FEEDS, 64),
        (LOAD_NO_FEEDS, APART_BYTES),
        (LOAD_NO_FEEDS, APART_BYTES + 64),
        (LOAD_STEP, 64),
        (LOAD_FEEDS, 64),
    ],
)
def test_a_plan_without_feeds_has_its_little_workspace_apart(yard: Yard, kind: int, arena: int) -> None:
    """Hosts write feeds of the next step into the arena while it runs."""
    yard.demand("reserve", ARENA, arena)
    before = yard.engine.bytes_in_use()
    plan = yard.plan(arena=arena)
    yard.demand("load", plan, 0, 0, 0, kind)
    is_apart = kind == LOAD_NO_FEEDS and arena <= APART_BYTES
    for nbytes in (arena, 100_000):
        yard.demand("reserve", ARENA, nbytes)
        base, size = struct.unpack("<2I", yard.engine.read(plan + 4 * HEADER_WORDS, 8))
        assert size == (arena if is_apart else nbytes)
        assert (base + size <= yard.base(ARENA) or base >= yard.base(ARENA) + nbytes) == is_apart
        assert yard.engine.run(plan) == 0
    yard.demand("unload", plan)
    assert yard.engine.bytes_in_use() - before < 100_000 - arena + 128


# ---- arguments

NO_SESSION = 64


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda y: y.call("reserve", PARAMETERS, 404), "TW_BAD_SEGMENT"),
        (lambda y: y.call("reserve", CONSTANTS, 4), "TW_BAD_SEGMENT"),
        (lambda y: y.call("reserve", LARGE_CONSTANTS, 4), "TW_BAD_SEGMENT"),
        (lambda y: y.call("reserve", 2**32 - 1, 4), "TW_BAD_SEGMENT"),
        (lambda y: y.call("reserve", ARENA, 2**32 - 1), "TW_NO_MEMORY"),
        (lambda y: y.call("save", 5, 255), "TW_BAD_ARGUMENT"),
        (lambda y: y.call("put_back", 5), "TW_BAD_ARGUMENT"),
        (lambda y: y.call("put_back", COPY_STEP), "TW_BAD_ARGUMENT"),
        (lambda y: y.call("forget", 2**31), "TW_BAD_ARGUMENT"),
        (lambda y: y.engine.call("tw_fit_start", y.session, 0, 0, 0, 0.0), "TW_BAD_ARGUMENT"),
        (lambda y: y.engine.call("tw_fit_start", y.session, 1, 5, 0, 0.0), "TW_BAD_ARGUMENT"),
        (lambda y: y.engine.call("tw_fit_batch", y.session), "TW_BAD_POINTER"),
        (lambda y: y.engine.call("tw_fit_elsewhere", y.session, 1, 0), "TW_BAD_POINTER"),
        (lambda y: y.engine.call("tw_fit_end", y.session), "TW_BAD_POINTER"),
        (lambda y: y.call("trained", y.canaries[0]), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.base(PARAMETERS), 0, 0, 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.session, 0, 0, 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], y.base(PARAMETERS), 0, 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], y.canaries[0], 0, 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], 0, y.base(PARAMETERS), 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], 0, y.canaries[0], 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], 0, y.canaries[1], 0, 1), "TW_BAD_HEADER"),
        (lambda y: y.call("load", y.canaries[0] + 64, 0, 0, 0, 1), "TW_BAD_POINTER"),
        (lambda y: y.call("load", y.canaries[0], 0, 0, 0, 1), "TW_BAD_HEADER"),
        (lambda y: y.call("unload", y.canaries[0]), "TW_BAD_POINTER"),
        (lambda y: y.engine.call("tw_session_close", y.base(PARAMETERS)), "TW_BAD_POINTER"),
        (lambda y: y.engine.call("tw_session_exchange", NO_SESSION), "TW_BAD_POINTER"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(yard: Yard, call: Callable[[Yard], int], status: str) -> None:
    before, in_use = yard.fill(7), yard.engine.bytes_in_use()
    assert yard.engine.description.status_name(call(yard)) == status
    assert (yard.contents(), yard.engine.bytes_in_use()) == (before, in_use)


def batches(yard: Yard, n: int, **given: int) -> int:
    """A block with batches of 8 bytes for an arena of 64 bytes. `loss` and `count` are places in the arena."""
    arena = yard.base(ARENA)
    places = {"loss": 60, "count": -arena, "adding_loss": 60, "adding_count": -arena} | given
    words = {"train": 0, "loss": 0, "count": 0, "adding": 0, "adding_loss": 0, "adding_count": 0}
    words |= {"update": 0, "clip": 0, "rows": 2, "rates": 0, "n_inputs": 1, "ran": 7, "numbers": 1}
    words |= {"source": 88, "nbytes": 8, "target": 56, "adding_target": 56}
    words |= {name: arena + place if name.endswith(("loss", "count")) else place for name, place in places.items()}
    block = struct.pack("<17I", *words.values())
    return yard.block(block + bytes(88 + 8 * n - len(block)))


OUTSIDE: dict[str, dict[str, int]] = {
    "the loss": {"loss": 64},
    "a loss between floats": {"loss": 2},
    "the loss of the other step": {"adding_loss": 64},
    "the divisor": {"count": 64},
    "the divisor of the other step": {"adding_count": 62},
    "rates": {"rates": 100},
    "rates between floats": {"rates": 90},
    "no input": {"n_inputs": 2**32 - 1},
    "the losses": {"n_inputs": 4},
    "no losses": {"numbers": 0},
    "the numbers of the losses": {"numbers": 4, "loss": 0, "adding_loss": 0},
    "the numbers of a loss": {"numbers": 2},
    "the source": {"source": 92},
    "the target": {"target": 60},
    "the target of the other step": {"adding_target": 60},
    "the bytes": {"nbytes": 12},
}


@pytest.mark.parametrize("given", OUTSIDE.values(), ids=OUTSIDE)
def test_batches_outside_of_their_memory_are_refused(yard: Yard, given: dict[str, int]) -> None:
    yard.demand("reserve", ARENA, 64)
    yard.start()
    bad, good, before = batches(yard, 3, **given), batches(yard, 3), yard.contents()
    status = yard.engine.call("tw_fit_run", yard.session, bad, 3)
    assert yard.engine.description.status_name(status) == "TW_BAD_ARGUMENT"
    assert yard.engine.last_plan(bad) == 7 and yard.contents() == before
    status = yard.engine.call("tw_fit_run", yard.session, good, 3)
    assert yard.engine.description.status_name(status) == "TW_BAD_POINTER"  # there is no plan
    yard.check()


FIT_NAMES = {
    "start": (int, int, int, float),
    "at": (),
    "resume": (int, int, int, int, float, float),
    "epoch": (int,),
    "keep": (),
    "batch": (),
    "trained": (float, float),
    "rest": (),
    "updated": (),
    "undo": (),
    "run": (int, int),
    "end": (),
}
"""Calls of a fit and their arguments besides the session."""
NAMES = {
    "reserve": 2,
    "base": 1,
    "bytes": 1,
    "generation": 0,
    "save": 2,
    "copy": 2,
    "put_back": 1,
    "forget": 1,
    "trained": 1,
    "exchange": 0,
    "go_back": 1,
    "load": 5,
    "unload": 1,
    "excess": 1,
}
"""Calls and how many arguments they take besides the session."""


def test_any_calls_in_any_order_do_no_harm(yard: Yard) -> None:
    rng = random.Random(8)
    plans = [yard.plan() for _ in range(3)]
    statuses = set()
    for k in range(4000):
        name = rng.choice(list(NAMES))
        odd = [rng.getrandbits(32), *plans, *yard.canaries, yard.base(GRADIENTS), yard.session, 2**31, 2**32 - 1]
        args = [rng.choice(odd) if rng.random() < 0.3 else rng.randrange(9) for _ in range(NAMES[name])]
        if name == "reserve" and args[1] > 2**20:
            args[1] %= 2**20  # the memory is not filled up
        session = yard.session if rng.random() < 0.9 else rng.choice(odd)
        statuses.add(yard.engine.call(f"tw_session_{name}", session, *args))
        call = rng.choice(list(FIT_NAMES))
        odd += [0, 1, 2, 3]
        numbers = [kind(rng.choice(odd)) for kind in FIT_NAMES[call]]
        statuses.add(yard.engine.call(f"tw_fit_{call}", session, *numbers))
        if k % 100 == 0:
            yard.check()
    assert {yard.engine.description.status[f"TW_{s}"] for s in ("OK", "BAD_POINTER", "BAD_SEGMENT")} <= statuses
