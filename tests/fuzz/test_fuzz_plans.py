"""Mutated plans and made-up calls do no harm, and the walls around them notice harm."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime
from tests.fuzz.walls import Outcome, WalledEngine
from tests.python.plan_builder import RawPlan, flat, stating

ROOT = Path(__file__).resolve().parents[2]
PLANS = 12_000
"""Half a minute. More by hand: `python scripts/fuzz_plans.py --minutes 10 --seed 2`."""
LIMIT_S = 900
"""For a machine that is busy; the fuzzer ends after PLANS before that."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the plans to mutate, which are compiled once for both builds."""
    file = tmp_path_factory.mktemp("fuzz") / "subjects"
    file.touch()
    return file


@pytest.mark.parametrize("build", ["kernels", "kernels.relaxed"])
def test_mutated_plans_do_no_harm(build: str, subjects: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fuzz_plans.py"), f"--build={build}"]
    command += [f"--plans={PLANS // 2}", f"--minutes={LIMIT_S / 60}", f"--seed={build}", f"--subjects={subjects}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    counts = {words: int(n) for n, words in re.findall(r"(\d+) ([a-z ]+)", done.stdout.splitlines()[-1])}
    assert counts["plans"] >= PLANS // 2
    # Mutations that all are refused, or none, would find nothing.
    assert counts["ran"] > counts["plans"] / 10 and counts["refused"] > counts["plans"] / 10 and counts["failed"]
    assert not sum(counts[outcome.value] for outcome in Outcome if outcome.is_harm)


# ---- the walls


SIZES = (100, 8192)
BODIES = {
    "(i32.store (i32.load (local.get 0)) (i32.const 1))": Outcome.RAN,
    "(i32.store offset=100 (i32.load (local.get 0)) (i32.const 1))": Outcome.OUTSIDE,
    "(i32.store8 offset=100 (i32.load (local.get 0)) (i32.const 1))": Outcome.OUTSIDE,
    "(i32.store (i32.sub (i32.load (local.get 0)) (i32.const 4)) (i32.const 1))": Outcome.OUTSIDE,
    "(drop (i32.load offset=4096 (i32.load (local.get 0))))": Outcome.OUTSIDE,
    "(drop (i32.load (i32.sub (i32.load (local.get 0)) (i32.const 4096))))": Outcome.OUTSIDE,
    "(drop (i32.load offset=8192 (i32.load offset=4 (local.get 0))))": Outcome.OUTSIDE,
    "(loop $l (br $l))": Outcome.HANGS,
    "(unreachable)": Outcome.TRAPPED,
}
"""What a function does with the addresses of two buffers, and what is said of it. Walls stand where pages end: what is
read between is not noticed, what is written is."""


@pytest.fixture(scope="module")
def walled() -> Iterator[WalledEngine]:
    engine = WalledEngine()
    yield engine
    engine.open_room()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_walls_notice_harm(walled: WalledEngine, body: str, at_end: bool) -> None:
    module = '(module (import "env" "memory" (memory 0)) (func (export "f0") (param i32 i32 i32) {}) {})'
    code_base = walled.load_code(bytes(wasmtime.wat2wasm(module.format(body, stating(flat(1))))))
    plan = RawPlan(walled.description.fingerprint, code_base=code_base, n_functions=1)
    bases = walled.wall_in(SIZES, at_end)
    plan.segments = [[base, nbytes, 1] for base, nbytes in zip(bases, SIZES, strict=True)]
    plan.buffers = [[0, 0, SIZES[0]], [1, 0, SIZES[1]]]
    plan.code = [[11 << 16, 0, 1, 1, 2, 0, 0, 4, 0, 1, 4, 1]]
    encoded = plan.encode()
    address = walled.alloc(encoded.nbytes)
    walled.write(address, encoded.tobytes())
    plan.place(walled, address)
    outcome, text = walled.try_plan(address)
    walled.free(address)
    walled.unload_code(code_base)
    assert outcome is BODIES[body], text
