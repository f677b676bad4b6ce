"""The kernel engine in Chromium: memory, plans, generated code, and threads that change no bit."""

from typing import Any

import pytest
from playwright.sync_api import Page

from trainweb.backend.wasm.codegen import FunctionSpec, emit_module
from trainweb.ir.expr import Emitter, Expr

from .conftest import require_built
from .server import ROOT, Site

N = 1_000_003

# f0(args, lo, hi): unreachable, unless the chunk begins below 5000; it says that it makes a float32 of each in x
TRAP = bytes.fromhex(
    "0061736d01000000"
    "01070160037f7f7f00"
    "02120103656e76066d656d6f727902010080"
    "8004"
    "03020100"
    "07060102663000" + "00"
    "0a0e010c0020014188274e0440000b0b"
    "00190f" + b"trainweb.access".hex() + "010401" + "0104" + "00000100"
)


def module(kind: str) -> list[int]:
    """Generated code for y = 2x, y = x + 1 or y = exp(-x)."""
    e = Emitter()
    x = e.input(0, "float32")
    roots: dict[str, Expr] = {
        "double": e.mul(x, e.const(2.0)),
        "increment": e.add(x, e.const(1.0)),
    }
    if kind == "exp":
        roots["exp"] = e.exp(e.neg(x))
    signature = FunctionSpec(("float32",), (1,), (roots[kind],), 0)
    return list(emit_module([signature]))


def expected_sum(function: Any, n: int) -> float:
    return float(sum(function(i % 1000) for i in range(n)))


@pytest.fixture
def scenario(page: Page) -> Any:
    require_built(ROOT / "dist" / "npm" / "engine.js", ROOT / "dist" / "npm" / "kernels.wasm.gz")

    def run(site: Site, name: str, **options: Any) -> Any:
        page.goto(site.url("/tests/engine.html"))
        return page.evaluate("([name, options]) => window.scenario(name, options)", [name, options])

    return run


@pytest.mark.parametrize(("reproducible", "build"), [(False, "kernels.relaxed"), (True, "kernels")])
def test_plain_page_runs_one_thread(scenario, plain_site, reproducible: bool, build: str) -> None:
    found = scenario(plain_site, "describe", threads=4, reproducible=reproducible)
    assert found["build"] == build
    assert found["threads"] == 1
    assert found["kernels"] > 1


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_isolated_page_runs_the_threads_asked_for(scenario, isolated_site, threads: int) -> None:
    found = scenario(isolated_site, "describe", threads=threads, reproducible=True)
    assert found["threads"] == threads
    assert found["build"] == "kernels.threads"


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_grows_and_keeps_contents(scenario, site: Site, threads: int) -> None:
    found = scenario(site, "memory", threads=threads)
    assert found == {**found, "aligned": True, "kept": True, "leaked": 0}
    assert found["grown"] > 4_000_000


@pytest.mark.parametrize("threads", [1, 2])
def test_engine_refuses_with_a_typed_error_and_goes_on(scenario, site: Site, threads: int) -> None:
    found = scenario(site, "refusals", threads=threads)
    assert found.pop("works") is None
    messages = {
        "tooMuch": "MiB in use. Take a smaller batchSize (accumulate in fit), set the option memoryBudget, or freeze",
        "negative": "out of memory",
        "freeTwice": "not an allocated",
        "writeBeyond": "outside the memory",
        "readBeyond": "outside the memory",
        "badCode": "generated code does not load",
    }
    assert set(found) == set(messages)
    for what, text in messages.items():
        assert found[what]["name"] == "EngineError", what
        assert text in found[what]["message"]
        assert found[what]["fatal"] is False


def test_plan_copies(scenario, site: Site) -> None:
    assert scenario(site, "copyPlan", threads=2) == {"status": 0, "y": [1, 2, 3, 4.5]}


def test_plans_that_do_not_verify_return_a_status(scenario, plain_site: Site) -> None:
    assert scenario(plain_site, "badPlan") == ["TW_READ_ONLY", "TW_BAD_OPCODE", "TW_BAD_POINTER"]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_generated_code_runs_on_all_threads(scenario, isolated_site, threads: int) -> None:
    found = scenario(isolated_site, "generated", code=module("double"), n=N, threads=threads)
    assert found["threads"] == threads
    assert found["sums"] == [[0, expected_sum(lambda v: 2 * v, N)]] * 3


def test_generated_code_uses_the_vector_maths_of_the_kernels(scenario, site: Site) -> None:
    found = scenario(site, "generated", code=module("exp"), n=1000, threads=2, rounds=1)
    status, total = found["sums"][0]
    assert status == 0
    assert total == pytest.approx(1.5819767068693265, rel=1e-6)  # sum of exp(-k) = e / (e - 1)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_code_loaded_later_gets_slots_of_its_own(scenario, site: Site, threads: int) -> None:
    found = scenario(site, "moreCode", code=module("double"), other=module("increment"), threads=threads)
    doubled = expected_sum(lambda v: 2 * v, 100_000)
    assert found["statuses"] == [0, 0, 0, 0]
    assert found["sums"] == [doubled, expected_sum(lambda v: v + 1, 100_000), doubled]
    assert found["found"] and found["distinct"]


def test_profile_measures_milliseconds(scenario, plain_site: Site) -> None:
    assert 0 < scenario(plain_site, "profile", code=module("double")) < 1000


def test_changed_segment_bases_take_effect(scenario, plain_site: Site) -> None:
    found = scenario(plain_site, "rebase", code=module("double"))
    assert found == {"statuses": [0, 0], "sum": expected_sum(lambda v: 2 * v, 1000)}


@pytest.mark.page_errors("thread .* failed", "RuntimeError")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_trap_is_a_typed_error_and_the_engine_is_lost(scenario, isolated_site: Site, threads: int) -> None:
    found = scenario(isolated_site, "trap", code=list(TRAP), threads=threads)
    for error in (found["trapped"], found["after"]):
        assert error["name"] == "EngineError"
        assert error["fatal"] is True
        assert "trapped" in error["message"]
    assert "trapped" in found["lost"]


@pytest.mark.page_errors("404")
def test_missing_kernels_name_the_url_and_status(scenario, plain_site: Site) -> None:
    found = scenario(plain_site, "missingKernels")
    assert found["name"] == "EngineError"
    assert "/nowhere/kernels" in found["message"]
    assert "404" in found["message"]
