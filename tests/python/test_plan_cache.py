"""Plans are given back: a session keeps so many, and kernel memory and the function table stay flat."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import wasmtime
from tests.python import test_hoist as hoist
from tests.python.plan_builder import flat, stating
from tests.python.sessions import batch, session

import trainweb
from trainweb.backend.plan import SEEN
from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.compiler.context import Cache
from trainweb.errors import EngineError, SessionError
from trainweb.ir.layout import PREPARED

N_SIZES = 500
FUNCTION = '(func (export "f{k}") (param i32 i32 i32) (i32.store (i32.const 0) (i32.const {tag})))'


def module(n: int, tag: int) -> bytes:
    """Generated code of `n` functions."""
    functions = " ".join(FUNCTION.format(k=k, tag=tag) for k in range(n))
    section = stating(*[flat(0)] * n)
    return bytes(wasmtime.wat2wasm(f'(module (import "env" "memory" (memory 1)) {functions} {section})'))


def test_500_batch_sizes_leave_kernel_memory_flat() -> None:
    engine = get_engine(reproducible=False)
    assert isinstance(engine, WasmtimeEngine)
    before = engine.bytes_in_use()
    with session(options={"max_plans": 3}) as s:
        sizes = [N_SIZES, *np.random.default_rng(0).permutation(np.arange(1, N_SIZES))]
        marks: list[tuple[int, int, int]] = []
        for n in sizes:
            s.train_step(batch(n=int(n)))
            s.optimizer_step()
            s.lazy_reset_grad()
            marks.append((engine.bytes_in_use(), engine.memory_size(), engine._table.size(engine._store)))
        assert len(s._core.host.loaded) == 3 + 1
        # Plans are of nearly one size, and so is the code of each.
        early, late = marks[20:40], marks[-20:]
        for k, slack in ((0, 4096), (1, 0), (2, 8)):
            assert max(m[k] for m in late) <= max(m[k] for m in early) + slack
    assert engine.bytes_in_use() == before


def test_results_do_not_depend_on_how_many_plans_are_kept() -> None:
    """With values that plans keep, whose places go to others."""

    def trajectory(options: Mapping[str, Any]) -> list[bytes]:
        seen: list[bytes] = []
        with hoist.session(dict(options)) as s:
            for k in range(12):
                n = 3 + k % 3
                for _ in range(2):
                    results = s.train_step(hoist.feeds(k, n))
                    seen += [x.tobytes() for x in results.values()]
                seen += [x.tobytes() for x in s.eval_step(hoist.feeds(k, 3 + k % 2)).values()]
                s.optimizer_step()
                s.lazy_reset_grad()
                if k % 4 == 3:
                    s.update_parameter("frozen", s.get_parameter("frozen") * np.float32(1.5))
            seen.append(s.get_contiguous_parameters(trainable_only=False).tobytes())
            if "max_plans" in options:
                assert s.memory().prepared > 0
        return seen

    wanted = trajectory({"memory_budget": hoist.GENEROUS})
    for max_plans in (1, 2, 3, 50):
        assert trajectory({"max_plans": max_plans}) == wanted, max_plans


def test_what_was_used_last_stays() -> None:
    with session(options={"max_plans": 2}) as s:

        def plan(n: int) -> object:
            s.eval_step(batch(n=n))
            return s._core.host.loaded[-1]

        first, second = plan(2), plan(3)
        s.eval_step(batch(n=2))
        third = plan(4)
        assert [p for p in s._core.host.loaded if p is not None] == [first, third]
        assert second not in s._core.host.loaded


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
def test_max_plans_is_checked(value: object) -> None:
    with pytest.raises(SessionError, match="max_plans"), session(options={"max_plans": value}):
        pass


def test_table_slots_are_used_again() -> None:
    engine = WasmtimeEngine()
    a, b = engine.load_code(module(3, 1)), engine.load_code(module(2, 2))
    assert b == a + 3 and engine.load_code(module(3, 1)) == a
    engine.unload_code(a)
    assert engine.load_code(module(2, 3)) == b + 2, "a is in use still"
    engine.unload_code(a)
    assert engine.load_code(module(2, 4)) == a
    assert engine.load_code(module(1, 5)) == a + 2
    assert engine.load_code(module(1, 6)) == b + 4
    with pytest.raises(EngineError, match="no generated code"):
        engine.unload_code(a + 1)


def test_places_of_other_plans_are_left_alone() -> None:
    cache = Cache(set(), {"a": (0, 100), "seen 128": (128, 8), "b": (256, 64)})
    assert cache.place("b", 64) == 256, "an equal value is shared"
    assert cache.take_seen() == 192, "the first gap that fits"
    assert cache.place("c", 65) == 320
    assert cache.nbytes == 448
    assert cache.places == {"b": (256, 64), "seen 192": (192, 8), "c": (320, 65)}


def test_a_checkpoint_of_another_model_is_refused() -> None:
    from tests.python.sessions import artifacts

    made, other = artifacts("mlp"), hoist.artifacts()
    state = trainweb.CheckpointState.load_checkpoint(other.checkpoint)
    with pytest.raises(trainweb.errors.CheckpointError, match=r"'fc1\.weight'.*another model"):
        trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)


def test_a_guard_starts_from_zeros_where_another_plan_left_its_counts() -> None:
    with hoist.session({"max_plans": 1}) as s:
        host = s._core.host
        s.eval_step(hoist.feeds())
        plan = host.loaded[0].plan
        marks = bytes(range(1, 65)) * (host.sizes[PREPARED] // 64)
        host.unload(host.loaded[0])
        host.write_segment(PREPARED, 0, marks)
        host.load(plan)
        after = host.read_segment(PREPARED, 0, len(marks))
        guards = [place for name, place in plan.kept.items() if name.startswith(SEEN)]
        assert guards
        for at, n in guards:
            assert after[at : at + n] == bytes(n)
        changed = {k for k, (a, b) in enumerate(zip(after, marks, strict=True)) if a != b}
        assert changed == {k for at, n in guards for k in range(at, at + n)}


@pytest.mark.parametrize("max_plans", [1, 2, 16])
def test_prepared_plans_are_those_of_the_steps(max_plans: int, caplog: pytest.LogCaptureFixture) -> None:
    """With any number of kept plans, the train step's plan is among them."""
    shapes = {name: np.shape(value) for name, value in batch().items()}
    options = {"max_plans": max_plans, "log_severity_level": 1}
    with caplog.at_level("INFO", "trainweb"), session(options=options) as s:
        s.prepare(shapes)
        made = [line for line in caplog.messages if "compiled a" in line]
        assert [line.split("compiled a ")[1].split()[0] for line in made] == ["eval", "train"]
        s.train_step(batch())
        s.optimizer_step()
        if max_plans > 1:
            s.eval_step(batch())
        assert [line for line in caplog.messages if "compiled a" in line] == made
