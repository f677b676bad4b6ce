"""A memory budget in a page: from artifacts, from bundles compiled with and without it, and from the cache."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.python.test_recompute import artifacts_of, feeds_of, open_session, smallest

from trainweb.ir.shapes import TensorType
from trainweb.page.bundle import make_bundle

from .bundles import python_requests
from .js_session import open_js_page, to_json
from .server import Site

KIND = "convolutions"
TRAIN = """
    env.seed = 7;
    const feeds = Object.fromEntries(Object.entries(batch).map(([name, t]) => [name, toTensor(t)]));
    const files = { trainModel: "/m/train", checkpointState: "/m/checkpoint", optimizerModel: "/m/optimizer" };
    const train = async (source, options) => {
      const s = await TrainingSession.create(source, { threads: 1, reproducible: true, ...options });
      const losses = [];
      for (let k = 0; k < 3; k++) {
        losses.push((await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      const memory = await s.memory();
      const parameters = (await s.getContiguousParameters()).data;
      await s.release();
      return { losses, memory, parameters: [...parameters] };
    };
"""


def bundle(budget: int | None, *, models: bool) -> bytes:
    made = artifacts_of(KIND)
    carried = {"train_model": made.training_model, "optimizer_model": made.optimizer_model or b""}
    types = {n: TensorType(str(x.dtype), x.shape) for n, x in feeds_of(KIND).items()}
    with open_session(KIND, budget, evaluates=False) as s:
        core_models, state = s._core.models, s._core.state
    return make_bundle(core_models, state._lent(), [types], carried if models else None)


@pytest.fixture
def files(plain_site: Site) -> Iterator[Site]:
    made = artifacts_of(KIND)
    for name, data in (
        ("train", made.training_model),
        ("checkpoint", made.checkpoint),
        ("optimizer", made.optimizer_model),
        ("free", bundle(None, models=True)),
        ("bare", bundle(None, models=False)),
        ("small", bundle(smallest(KIND), models=False)),
    ):
        assert data is not None
        plain_site.add(f"/m/{name}", data)
    plain_site.clear_log()
    yield plain_site


def test_a_budget_changes_no_byte_and_tells_its_cost(browser: Browser, files: Site) -> None:
    budget = smallest(KIND)
    batch = {name: to_json(x) for name, x in feeds_of(KIND).items()}
    with open_js_page(browser, files) as js:
        from_bundle: dict[str, Any] = js.run(
            TRAIN
            + """return { free: await train({ bundle: "/m/bare" }), small: await train({ bundle: "/m/small" }),
                allowed: await train({ bundle: "/m/small" }, { memoryBudget: budget }),
                refused: await failure(() => train({ bundle: "/m/bare" }, { memoryBudget: budget })) };""",
            batch=batch,
            budget=budget,
        )
        assert python_requests(files) == []
        found: dict[str, Any] = js.run(
            TRAIN
            + """
            const said = [];
            console.info = (text) => said.push(text);
            env.logLevel = "info";
            const small = await train(files, { memoryBudget: budget });
            return { small, said, free: await train(files), recompiled:
                await train({ bundle: "/m/free" }, { memoryBudget: budget }), unmet:
                await failure(() => train(files, { memoryBudget: 1000 })) };""",
            batch=batch,
            budget=budget,
        )
    free = found["free"]
    for run in (found["small"], found["recompiled"], *(from_bundle[k] for k in ("free", "small", "allowed"))):
        assert (run["losses"], run["parameters"]) == (free["losses"], free["parameters"])
    memory = found["small"]["memory"]
    assert memory["arena"] <= budget < free["memory"]["arena"] == memory["arenaWithoutBudget"]
    assert memory["recomputedInstructions"] > 0 < memory["recomputedShare"]
    # A bundle has room for its largest plan from the start.
    assert from_bundle["small"]["memory"] == from_bundle["allowed"]["memory"]
    for run, wanted in (("small", memory), ("free", free["memory"])):
        assert from_bundle[run]["memory"] | {"arena": 0} == wanted | {"arena": 0}
    assert memory["arena"] <= from_bundle["small"]["memory"]["arena"] <= budget
    assert found["recompiled"]["memory"]["arena"] == memory["arena"]
    told = [text for text in found["said"] if str(memory["arenaWithoutBudget"]) in text]
    assert told and all(f"{memory['recomputedInstructions']} instructions run again" in text for text in told)
    assert from_bundle["refused"]["name"] == "SessionError"
    assert found["unmet"]["name"] == "LimitError" and "memoryBudget' must be at least" in found["unmet"]["message"]


def test_sessions_of_different_budgets_are_cached_apart(browser: Browser, files: Site) -> None:
    budget = smallest(KIND)
    batch = {name: to_json(x) for name, x in feeds_of(KIND).items()}
    with open_js_page(browser, files) as js:
        arenas = js.run(
            TRAIN
            + """
            const arenas = [];
            for (const memoryBudget of [undefined, budget, undefined, budget]) {
              const options = { cache: true, ...(memoryBudget === undefined ? {} : { memoryBudget }) };
              arenas.push((await train(files, options)).memory.arena);
              await env.release();
            }
            return arenas;""",
            batch=batch,
            budget=budget,
        )
    assert max(arenas[1::2]) <= budget < min(arenas[::2])
