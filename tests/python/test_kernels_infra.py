"""The verifier believes nothing, the allocator keeps its books, and no kernel reads or writes past an operand."""

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import wasmtime
from tests.each import over
from tests.python.kernel_description import kernels_of
from tests.python.kernel_runner import KernelRunner
from tests.python.plan_builder import (
    NO_BUFFER,
    PlanFailed,
    RawPlan,
    check_status,
    flat,
    instruction,
    place,
    stating,
    words_of,
)
from tests.python.random_calls import Call

from trainweb.backend.description import Description
from trainweb.backend.wasm.engine import Engine
from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.errors import EngineError
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, KernelCall, Storage
from trainweb.ir.layout import ARENA, BATCHES_WORDS, STATE, STATE_WORDS

CANARY = bytes(range(256)) * 16
EMPTY_MODULE = '(module (import "env" "memory" (memory 0)) {functions})'


@pytest.fixture
def fresh() -> WasmtimeEngine:
    """A separate engine, whose memory a test may spoil."""
    return WasmtimeEngine()


# ---- allocator


def test_blocks_are_aligned_disjoint_and_counted(fresh: WasmtimeEngine) -> None:
    rng = random.Random(0)
    live: dict[int, bytes] = {}
    for round_ in range(600):
        if live and rng.random() < 0.45:
            ptr = rng.choice(list(live))
            assert fresh.read(ptr, len(live[ptr])) == live[ptr]
            fresh.free(ptr)
            del live[ptr]
        else:
            content = bytes([round_ % 256]) * rng.choice([0, 1, 63, 64, 65, 1000, 70_000])
            ptr = fresh.alloc(len(content))
            assert ptr % 64 == 0
            fresh.write(ptr, content)
            live[ptr] = content
        assert fresh.bytes_in_use() == sum(map(len, live.values()))
    for ptr, content in live.items():
        assert fresh.read(ptr, len(content)) == content
        fresh.free(ptr)
    assert fresh.bytes_in_use() == 0


def test_freed_neighbours_merge(fresh: WasmtimeEngine) -> None:
    blocks = [fresh.alloc(100_000) for _ in range(20)]
    size = fresh.memory_size()
    for ptr in [*blocks[::2], *blocks[1::2]]:
        fresh.free(ptr)
    fresh.free(fresh.alloc(20 * 100_000))
    assert fresh.memory_size() == size


def test_memory_that_is_asked_for_as_zeros_holds_zeros(fresh: WasmtimeEngine) -> None:
    """Earlier contents may be anything: data, headers of blocks that merged, or nothing since the memory grew."""
    rng, live, dirty = random.Random(3), [], 0
    for _ in range(600):
        if live and rng.random() < 0.5:
            fresh.free(live.pop(rng.randrange(len(live))))
            continue
        nbytes, zeroed = rng.choice((0, 1, 63, 64, 65, 4_000, 100_000, 700_000)), rng.random() < 0.5
        ptr = fresh.alloc(nbytes, zeroed=zeroed)
        found = fresh.read(ptr, nbytes)
        assert not zeroed or found == bytes(nbytes)
        dirty += found != bytes(nbytes)
        fresh.write(ptr, b"\xff" * nbytes)
        live.append(ptr)
    assert dirty > 20  # of those that were not to be zeros


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the resident memory cannot be told")
def test_zeros_take_no_memory_until_they_are_written(fresh: WasmtimeEngine) -> None:
    def resident() -> int:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024

    before, nbytes = resident(), 256 << 20
    ptr = fresh.alloc(nbytes, zeroed=True)
    assert resident() - before < nbytes / 4
    fresh.write(ptr, b"\xff" * nbytes)
    assert resident() - before > nbytes / 2
    fresh.free(ptr)
    assert fresh.read(fresh.alloc(nbytes, zeroed=True), nbytes) == bytes(nbytes)


def test_bad_frees_are_refused(fresh: WasmtimeEngine) -> None:
    ptr = fresh.alloc(1000)
    fresh.write(ptr, CANARY[:1000])
    for bad in (ptr + 64, ptr + 4, ptr - 64, 64, 0xFFFFFFC0):
        with pytest.raises(EngineError, match="not an allocated block"):
            fresh.free(bad)
    fresh.free(ptr)
    with pytest.raises(EngineError, match="not an allocated block"):
        fresh.free(ptr)
    fresh.free(0)


def test_memory_that_cannot_grow_is_an_error_and_nothing_changes(fresh: WasmtimeEngine) -> None:
    before = fresh.bytes_in_use(), fresh.memory_size()
    for nbytes in (2**32 - 1, 2**32 - 70_000, 2**40, -1):
        with pytest.raises(
            EngineError,
            match=r"cannot hold .* Take smaller batches \('accumulate' in fit\), set 'memory_budget', or freeze",
        ):
            fresh.alloc(nbytes)
    assert (fresh.bytes_in_use(), fresh.memory_size()) == before
    fresh.free(fresh.alloc(10))


def test_host_access_stays_inside_the_memory(fresh: WasmtimeEngine) -> None:
    end = fresh.memory_size()
    for call in (
        lambda: fresh.read(end - 4, 5),
        lambda: fresh.write(end - 4, b"12345"),
        lambda: fresh.read(-1, 1),
        lambda: fresh.read(0, -1),
        lambda: fresh.read_into(end, bytearray(1)),
    ):
        with pytest.raises(EngineError, match="outside"):
            call()
    with pytest.raises(EngineError, match="contiguous"):
        fresh.write(0, np.zeros((4, 4), np.uint8)[:, ::2])


# ---- verifier


class Victim:
    """A valid plan of three instructions between canaries, to be spoiled."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kernels = kernels_of(engine)
        self.canaries: list[int] = []
        self.blocks: list[int] = []
        self.data = self.block(1024)
        self.read_only = self.block(1024)
        self.address = self.block(4096)
        self.reset_data()

    def block(self, nbytes: int) -> int:
        block = self.engine.alloc(nbytes)
        canary = self.engine.alloc(len(CANARY))
        self.engine.write(canary, CANARY)
        self.canaries.append(canary)
        self.blocks += [block, canary]
        return block

    def reset_data(self) -> None:
        self.engine.write(self.data, bytes(1024))
        self.engine.write(self.read_only, np.arange(256, dtype=np.int32))

    def plan(self) -> RawPlan:
        plan = RawPlan(self.engine.description.fingerprint)
        plan.segments = [[self.data, 1024, 1], [self.read_only, 1024, 0]]
        plan.buffers = [[0, 0, 256], [0, 256, 256], [1, 0, 1024], [0, 512, 512]]

        def call(name: str, buffers: dict[str, int], **args: Any) -> list[int]:
            return instruction(self.kernels[name], words_of(self.kernels[name], args, buffers))

        plan.code = [
            call("copy", {"src": 2, "dst": 0}, n=256),
            call("softmax_f32", {"x": 0, "y": 1}, outer=4, n=16, inner=1, log=0),
            call(
                "gather",
                {"data": 2, "indices": 2, "y": 3},
                outer=1,
                dim=256,
                n=2,
                inner=4,
                index_size=4,
            ),
        ]
        return plan

    def run(self, plan: RawPlan | np.ndarray) -> str:
        """Name of the status; canaries must be whole."""
        words = plan if isinstance(plan, np.ndarray) else plan.encode()
        self.engine.write(self.address, words)
        try:
            (self.plan() if isinstance(plan, np.ndarray) else plan).place(self.engine, self.address)
        except EngineError as error:
            return next(name for name in self.engine.description.status if str(error).endswith(f": {name}."))
        status = self.engine.run(self.address)
        for canary in self.canaries:
            assert self.engine.read(canary, len(CANARY)) == CANARY
        return self.engine.description.status_name(status)

    def release(self) -> None:
        for block in self.blocks:
            self.engine.free(block)


@pytest.fixture
def victim(engine: Engine) -> Iterator[Victim]:
    victim = Victim(engine)
    yield victim
    victim.release()


def test_a_good_plan_runs_twice(victim: Victim) -> None:
    assert victim.run(victim.plan()) == "TW_OK"
    assert victim.engine.run(victim.address) == 0
    assert victim.engine.plan_status(victim.address).instruction is None


def set_code(instruction_index: int, word: int, value: int) -> Callable[[RawPlan, Victim], None]:
    def change(plan: RawPlan, _: Victim) -> None:
        plan.code[instruction_index][word] = value

    return change


def set_item(rows: str, index: int, word: int, value: int) -> Callable[[RawPlan, Victim], None]:
    def change(plan: RawPlan, _: Victim) -> None:
        getattr(plan, rows)[index][word] = value

    return change


def over_the_plan(plan: RawPlan, victim: Victim) -> None:
    plan.segments[0][:2] = [victim.address - 512, 1024]


def over_the_block_header(plan: RawPlan, victim: Victim) -> None:
    plan.segments[0][0] = victim.data - 4


def in_freed_memory(plan: RawPlan, victim: Victim) -> None:
    block = victim.engine.alloc(2048)
    victim.engine.free(block)
    plan.segments[0][0] = block


def generated(*words: int) -> Callable[[RawPlan, Victim], None]:
    def change(plan: RawPlan, _: Victim) -> None:
        plan.code.append([len(words) << 16, *words])

    return change


BAD_PLANS: list[tuple[str, str, Callable[[RawPlan, Victim], None]]] = [
    ("fingerprint", "TW_BAD_PLAN", lambda plan, _: setattr(plan, "fingerprint", plan.fingerprint ^ 1)),
    ("segment beyond memory", "TW_BAD_SEGMENT", set_item("segments", 0, 0, 0xFFFFFC00)),
    ("segment wraps", "TW_BAD_SEGMENT", set_item("segments", 0, 1, 0xFFFFFFFF)),
    ("segment in static data", "TW_BAD_SEGMENT", set_item("segments", 0, 0, 1024)),
    ("segment at null", "TW_BAD_SEGMENT", set_item("segments", 0, 0, 0)),
    ("segment over the plan", "TW_BAD_SEGMENT", over_the_plan),
    ("segment over a block header", "TW_BAD_SEGMENT", over_the_block_header),
    ("segment in freed memory", "TW_BAD_SEGMENT", in_freed_memory),
    ("segment over two blocks", "TW_BAD_SEGMENT", set_item("segments", 0, 1, 1100)),
    ("buffer of no segment", "TW_BAD_BUFFER", set_item("buffers", 0, 0, 2)),
    ("buffer outside", "TW_BAD_BUFFER", set_item("buffers", 3, 1, 513)),
    ("buffer wraps", "TW_BAD_BUFFER", set_item("buffers", 3, 1, 0xFFFFFFFF)),
    ("buffer too long", "TW_BAD_BUFFER", set_item("buffers", 3, 2, 0xFFFFFFFF)),
    ("opcode", "TW_BAD_OPCODE", set_code(0, 0, 0xFFF0 | 3 << 16)),
    ("argument count", "TW_BAD_ARGUMENT", set_code(0, 0, 1 | 2 << 16)),
    ("arguments beyond the code", "TW_BAD_ARGUMENT", set_code(2, 0, 0xFFFF << 16)),
    ("no such buffer", "TW_BAD_ARGUMENT", set_code(0, 1, 4)),
    ("null buffer", "TW_BAD_ARGUMENT", set_code(0, 1, NO_BUFFER)),
    ("negative size", "TW_BAD_ARGUMENT", set_code(0, 3, 0xFFFFFFFF)),
    ("misaligned", "TW_BAD_ARGUMENT", set_item("buffers", 1, 1, 255)),
    ("output read-only", "TW_READ_ONLY", set_code(0, 2, 2)),
    ("one byte short", "TW_BAD_EXTENT", set_code(0, 3, 257)),
    ("product overflows", "TW_BAD_EXTENT", set_code(1, 3, 0x7FFFFFFF)),
    ("index size", "TW_BAD_CONDITION", set_code(2, 8, 5)),
    ("no code loaded", "TW_BAD_FUNCTION", lambda plan, _: setattr(plan, "n_functions", 1)),
    ("function number", "TW_BAD_FUNCTION", generated(0, 4, 4, 0, 0)),
    ("short generated", "TW_BAD_ARGUMENT", generated(0, 4, 4, 0)),
]


@pytest.mark.parametrize(("name", "status", "change"), BAD_PLANS, ids=[name for name, _, _ in BAD_PLANS])
def test_bad_plans_are_refused(
    victim: Victim, name: str, status: str, change: Callable[[RawPlan, Victim], None]
) -> None:
    plan = victim.plan()
    change(plan, victim)
    before = victim.engine.read(victim.data, 1024)
    assert victim.run(plan) == status
    assert victim.engine.read(victim.data, 1024) == before, "a refused plan ran"
    assert victim.run(victim.plan()) == "TW_OK"


@pytest.mark.parametrize(
    ("word", "value", "status"),
    [
        (0, 0, "TW_BAD_PLAN"),
        (1, 2, "TW_BAD_PLAN"),
        (2, 5000, "TW_BAD_HEADER"),
        (5, 0x55555556, "TW_BAD_HEADER"),
        (6, 0xFFFFFFFF, "TW_BAD_HEADER"),
        (7, 0x80000000, "TW_BAD_HEADER"),
        (8, 2, "TW_BAD_HEADER"),
        (8, 4, "TW_BAD_HEADER"),
        (10, 1, "TW_BAD_FUNCTION"),
    ],
)
def test_bad_headers_are_refused(victim: Victim, word: int, value: int, status: str) -> None:
    words = victim.plan().encode()
    words[word] = value
    assert victim.run(words) == status


def test_addresses_in_a_plan_are_not_believed(victim: Victim) -> None:
    """Words that were addresses or flags once, and words that `place` writes: a plan may hold anything there."""
    secret = victim.engine.alloc(1024)
    victim.engine.write(secret, bytes(1024))
    words = victim.plan().encode()
    words[[4, 9, 17, 18, 19]] = 1, 1, secret, secret, secret
    words[[20, 21, 23, 24]] = secret, 1024, secret, 1024
    assert victim.run(words) == "TW_OK"
    assert victim.engine.read(secret, 1024) == bytes(1024)
    victim.engine.free(secret)


def test_a_plan_is_verified_again_when_it_is_placed_again(victim: Victim) -> None:
    plan = victim.plan()
    assert victim.run(plan) == "TW_OK"
    for k, bad in ((1, [victim.data, 8, 1]), (0, [victim.address, 1024, 1])):
        other = victim.plan()
        other.segments[k] = bad
        other.place(victim.engine, victim.address)
        assert victim.engine.description.status_name(victim.engine.run(victim.address)).startswith("TW_BAD")
    plan.place(victim.engine, victim.address)
    assert victim.engine.run(victim.address) == 0


def test_a_plan_that_nobody_placed_does_not_run(victim: Victim) -> None:
    words = victim.plan().encode()
    block = victim.engine.alloc(words.nbytes)
    victim.engine.write(block, words)
    status = victim.engine.run(block)
    with pytest.raises(EngineError, match="No plan was placed"):
        victim.engine.profile(block, 0)
    victim.plan().place(victim.engine, block)
    assert victim.engine.run(block) == 0
    victim.engine.free(block)
    # Neither does what lies where a placed plan was.
    again = victim.engine.alloc(words.nbytes)
    assert again == block
    stale = victim.engine.run(again)
    victim.engine.free(again)
    assert [victim.engine.description.status_name(s) for s in (status, stale)] == ["TW_BAD_PLAN"] * 2


@pytest.mark.parametrize("n", [0, 1, 3, 129])
def test_a_plan_is_placed_with_all_its_segments(victim: Victim, n: int) -> None:
    victim.engine.write(victim.address, victim.plan().encode())
    with pytest.raises(EngineError, match="No plan can"):
        place(victim.engine, victim.address, [(victim.data, 1024)] * n, 0)


def test_a_larger_plan_than_its_block_is_refused(victim: Victim) -> None:
    plan = victim.plan()
    plan.code *= 40
    words = plan.encode()
    small = victim.engine.alloc(1024)
    victim.engine.write(small, words[:256])
    plan.place(victim.engine, small)
    status = victim.engine.run(small)
    victim.engine.free(small)
    assert victim.engine.description.status_name(status) == "TW_BAD_HEADER"


def test_only_block_starts_are_plans(victim: Victim) -> None:
    victim.run(victim.plan())
    for pointer in (0, 4, victim.address + 64, victim.address + 4, 0xFFFFFFC0, 1 << 20):
        assert victim.engine.description.status_name(victim.engine.run(pointer)) == "TW_BAD_POINTER"


def test_failures_name_instruction_value_and_position(victim: Victim) -> None:
    plan = victim.plan()
    plan.code[2][5] = 1  # dim: the indices 0, 1 no longer fit
    assert victim.run(plan) == "TW_BAD_INDEX"
    outcome = victim.engine.plan_status(victim.address)
    assert (outcome.instruction, outcome.value, outcome.position) == (2, 1, 1)


def test_profile_counts_time(victim: Victim) -> None:
    times = victim.engine.alloc(64)
    victim.engine.write(times, bytes(64))
    assert victim.run(victim.plan()) == "TW_OK"
    victim.engine.profile(victim.address, times)
    assert victim.engine.run(victim.address) == 0
    spent = np.frombuffer(victim.engine.read(times, 64), np.float64)
    assert (spent[:3] > 0).all() and (spent[3:] == 0).all()
    victim.engine.profile(victim.address, 0)
    assert victim.engine.run(victim.address) == 0
    assert victim.engine.read(times, 64) == spent.tobytes()
    victim.engine.free(times)
    for bad in (64, times, victim.address, times + 4):
        victim.engine.profile(victim.address, bad)
        assert victim.engine.description.status_name(victim.engine.run(victim.address)) == "TW_BAD_POINTER"


MUTATIONS = 2500


def test_mutated_plans_do_no_harm(victim: Victim) -> None:
    rng = random.Random(7)
    good = victim.plan().encode()
    statuses = set()
    for _ in range(MUTATIONS):
        words = good.copy()
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            at = rng.randrange(len(words))
            words[at] = rng.choice(
                [
                    0,
                    1,
                    2,
                    3,
                    0x7FFFFFFF,
                    0x80000000,
                    0xFFFFFFFF,
                    0xFFFFFFFC,
                    victim.address,
                    victim.data,
                    int(words[at]) ^ 1 << rng.randrange(32),
                    (int(words[at]) + rng.choice([-1, 1, 4])) & 0xFFFFFFFF,
                    rng.getrandbits(32),
                    int(words[rng.randrange(len(words))]),
                ]
            )
        victim.reset_data()
        statuses.add(victim.run(words))
    victim.reset_data()
    assert {
        "TW_OK",
        "TW_BAD_HEADER",
        "TW_BAD_BUFFER",
        "TW_BAD_EXTENT",
    } <= statuses
    assert victim.run(good) == "TW_OK"


# ---- generated code: what calls may do is in test_kernels_generated.py


def test_traps_become_errors_with_the_instruction(victim: Victim) -> None:
    trap = '(func (export "f0") (param i32 i32 i32) unreachable) (func (export "f1") (param i32 i32 i32))'
    functions = trap + stating(flat(0), flat(0))
    slot = victim.engine.load_code(bytes(wasmtime.wat2wasm(EMPTY_MODULE.format(functions=functions))))
    plan = victim.plan()
    plan.code_base, plan.n_functions = slot, 2
    plan.code = [[8 << 16, function, 4, 4, 1, 0, 0, 16, 1] for function in (1, 0)]
    for _ in range(3):
        with pytest.raises(EngineError, match="trapped in instruction 1"):
            victim.run(plan)
    engine, session = victim.engine, victim.engine.call("tw_session_open")
    for segment, nbytes in ((ARENA, 64), (STATE, 4 * STATE_WORDS)):
        engine.demand("tw_session_reserve", session, segment, nbytes)
    engine.demand("tw_fit_start", session, 1, 0, 0, 0.0)
    batches, steps = victim.block(4 * (BATCHES_WORDS + 1)), [victim.address, victim.address, 0] * 2
    engine.write(batches, np.array([*steps, 0, 0, 1, 0, 0, 0, 1, 0], np.uint32))
    with pytest.raises(EngineError, match=f"trapped in instruction 1 of the plan at {victim.address:#x}"):
        engine.run_batches(session, batches, 1)
    engine.demand("tw_session_close", session)
    assert victim.run(victim.plan()) == "TW_OK"
    victim.engine.unload_code(slot)


def test_invalid_code_is_an_error(engine: Engine) -> None:
    for wasm in (b"", b"\0asm\x01\0\0\0\xff", b"<html>"):
        with pytest.raises(EngineError, match="generated code is invalid"):
            engine.load_code(wasm)
    module = '(module (import "kernels" "v_unknown" (func (param v128) (result v128))))'
    with pytest.raises(EngineError, match=r"kernels\.v_unknown"):
        engine.load_code(bytes(wasmtime.wat2wasm(module)))


# ---- every kernel: extents as Python computes them are what the verifier demands, and enough


RUN_TIME_FAILURES = {"TW_BAD_INDEX", "TW_BAD_LABEL", "TW_BAD_VALUE", "TW_BAD_ARGUMENT", "TW_LOOP_LIMIT"}
KERNELS = kernels_of(WasmtimeEngine())


@cache
def calls_at_the_end(name: str) -> list[tuple[Call, str, str]]:
    """For both builds: calls of a kernel, each with the operand at the end and one that may be too short, or ""."""
    rng, found = random.Random(name), []
    for _ in range(25):
        call = Call(KERNELS[name], rng)
        if call.valid:
            last = rng.choice(list(call.buffers))
            found.append((call, last, rng.choice([n for n, x in call.buffers.items() if x.nbytes] or [""])))
    return found


def status_of(kernels: KernelRunner, call: Call, last: str, short: str = "") -> str:
    """The status of a call with one operand at the end of the memory, and one that may lack its last byte."""
    buffers = {n: x.view(np.uint8)[:-1] if n == short else x for n, x in call.buffers.items()}
    try:
        kernels.run(call.kernel.name, last=last, **call.args, **buffers)
    except PlanFailed as error:
        return error.name
    return "TW_OK"


@over("name", sorted(KERNELS))
def test_operands_at_the_end_of_memory(kernels: KernelRunner, name: str) -> None:
    succeeded = 0
    for call, last, short in calls_at_the_end(name):
        status = status_of(kernels, call, last)
        assert status == "TW_OK" or status in RUN_TIME_FAILURES, (status, call.args)
        succeeded += status == "TW_OK"
        if short:
            assert status_of(kernels, call, "", short) == "TW_BAD_EXTENT", (short, call.args)
    assert succeeded, "no random arguments were accepted"


# ---- typed calls say of a kernel what it does


CLASSES: dict[str, type[KernelCall]] = {one.KERNEL: one for one in vars(calls).values() if one in KernelCall.KERNELS}
LEFT_OUT = ("max_pool_gradient_f32",)
"""Kernels that fail on indices which no kernel makes; theirs come from another kernel of the step, so no `fails`."""


PADDED = ("winograd_weights_f32",)
"""Kernels whose result has padding that nobody reads."""


def typed(call: Call, *, without: tuple[str, ...] = ()) -> KernelCall:
    """The call as a compiler sees it; buffers are called as the arguments."""
    scalars = {k: tuple(v) if isinstance(v, list) else v for k, v in call.args.items()}
    there = [name for name in call.buffers if name not in without]
    bufs = {name: Buf(Storage(ARENA, 0), "float32", (0,), name=name) for name in there}
    scratch = {a.name for a in call.kernel.args if a.kind == "scratch"}
    result = CLASSES[call.kernel.name](**scalars, **{name: b for name, b in bufs.items() if name not in scratch})
    for name in scratch:
        setattr(result, name, bufs[name])
    return result


@cache
def reading_calls(name: str) -> list[Call]:
    """For both builds."""
    rng = random.Random(f"reads {name}")
    return [call for call in (Call(KERNELS[name], rng) for _ in range(20)) if call.valid]


def outcome(kernels: KernelRunner, call: Call, filler: int, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The results of the kernel if operands that it does not read hold `filler` bytes."""
    read = {b.name for b in typed(call, without=without).reads}
    operands = {}
    for arg in call.kernel.args:
        if arg.name in call.buffers and arg.kind != "scratch" and arg.name not in without:
            array = call.buffers[arg.name]
            operands[arg.name] = array.copy() if arg.name in read else np.full(array.nbytes, filler, np.uint8)
    results = kernels.run(call.kernel.name, **call.args, **operands)
    return {name: array.tobytes() for name, array in results.items()}


@over("name", sorted(KERNELS))
def test_calls_read_and_write_what_they_say(kernels: KernelRunner, name: str) -> None:
    succeeded = 0
    for call in reading_calls(name):
        # Of nothing there are no statistics, and no slice: such results stay as they are.
        if any(not call.buffers[b.name].size for b in typed(call).reads):
            continue
        try:
            first = outcome(kernels, call, 0)
        except PlanFailed as e:
            if e.name in ("TW_BAD_INDEX", "TW_BAD_LABEL"):
                assert CLASSES[name].FAILS or name in LEFT_OUT
            continue
        for result, data in outcome(kernels, call, 0xFF).items():
            zeros, ones = (np.frombuffer(d, np.uint8) for d in (first[result], data))
            has_gaps = result in CLASSES[name].PARTS or name in PADDED
            is_untouched = (zeros == 0) & (ones == 0xFF) & has_gaps
            assert ((zeros == ones) | is_untouched).all(), result
        written = {b.name for b in typed(call).writes}
        assert {a.name for a in KERNELS[name].args if a.kind == "scratch"} | first.keys() == written
        updates = CLASSES[name].UPDATES
        if updates:
            rest = {k: v for k, v in first.items() if k not in updates}
            assert outcome(kernels, call, 0, without=updates) == rest
        succeeded += 1
    assert succeeded


def test_opcodes_and_words_are_those_of_the_kernels(engine: Engine) -> None:
    kernels = kernels_of(engine)
    assert {n: (c.OPCODE, c.WORDS) for n, c in CLASSES.items()} == {
        n: (k.opcode, k.n_words) for n, k in kernels.items()
    }


# ---- description


def test_extents_and_conditions_as_the_description_has_them(engine: Engine) -> None:
    gather = kernels_of(engine)["gather"]
    args = {"outer": 2, "dim": 3, "n": 4, "inner": 8, "index_size": 4}
    assert [gather.extent(a, args) for a in gather.args[:3]] == [48, 16, 64]
    assert gather.holds(args)
    assert not gather.holds(args | {"index_size": 5})
    assert engine.description.status_name(20) == "TW_BAD_INDEX"
    assert engine.description.status_name(99) == "status 99"


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"fingerprint": 1}', b"\xff"])
def test_unreadable_descriptions(text: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        Description.parse(text)


def test_descriptions_of_other_kernels(engine: Engine) -> None:
    text = json.dumps({"fingerprint": 1, "status": {}})
    with pytest.raises(EngineError, match=f"fingerprint 1, and trainweb compiles for {engine.description.fingerprint}"):
        Description.parse(text)


def test_runs_notice_a_write_beyond_its_operand(kernels: KernelRunner) -> None:
    """The guard of these tests works."""
    with pytest.raises(PlanFailed, match="TW_BAD_EXTENT"):
        kernels.run("copy", src=np.zeros(4, np.uint8), dst=np.zeros(3, np.uint8), n=4)


def test_status_of_a_good_run_raises_nothing(victim: Victim) -> None:
    victim.run(victim.plan())
    check_status(victim.engine, victim.address, 0)
