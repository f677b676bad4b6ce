"""Steps that page and worker hand each other in shared memory: the same bytes, order and errors as with messages.

The sides look for each other for some microseconds only. Here they look for long, so that they meet on a busy machine,
too.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from .js_session import open_js_page
from .server import ROOT, Site
from .test_js_session import OPEN as OPEN_SESSION
from .test_js_session import PLACED

LONG = {
    "TURN_MS=.05": "TURN_MS=60",
    "MESSAGE_MS=.1": "MESSAGE_MS=60",
    "SHORT_MS=.25": "SHORT_MS=1e4",
    "LONGEST_MS=10": "LONGEST_MS=2e3",
    "MOST_LOOKS=5e4": "MOST_LOOKS=5e8",
    "MOST_VAIN=7": "MOST_VAIN=0",
}

SPY = """
    const Native = Worker;
    window.workers = [];
    window.posted = [];
    window.Worker = class extends Native {
      constructor(...args) {
        super(...args);
        workers.push(this);
        this.addEventListener("message", ({ data }) => { window.words = data.result?.ok?.lane ?? window.words; });
      }
      postMessage(message, ...rest) {
        if (Array.isArray(message)) posted.push(message.at(-1).method);
        super.postMessage(message, ...rest);
      }
    };
"""

OPEN = """
    const open = (options) => TrainingSession.create(golden("mlp"), { reproducible: true, ...options });
    const make = (n, seed) => ({
      x: new Tensor("float32", Float32Array.from({ length: 10 * n }, (_, i) => Math.sin(i + seed)), [n, 10]),
      labels: new Tensor("int64", BigInt64Array.from({ length: n }, (_, i) => BigInt((i + seed) % 3)), [n]),
    });
    const value = (results) => Object.values(results)[0].data[0];
    const parameters = async (s) => Array.from(fromTensor(await s.getContiguousParameters()).data);
    const isAway = async () => {
      for (let k = 0; words[0] !== 0; k++) {
        if (k === 500) return false;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return true;
    };
"""


@pytest.fixture(scope="module")
def patient_site() -> Iterator[Site]:
    """An isolated site whose package looks for long."""
    site = Site(isolated=True)
    for name in ("index.js", "worker.js"):
        text = (ROOT / "dist" / "npm" / name).read_text(encoding="utf-8")
        for short, long in LONG.items():
            text = text.replace(short, long)
        assert text.count("TURN_MS=60") == 1 and ("MOST_VAIN=0" in text) == (name == "worker.js")
        site.add(f"/dist/{name}", text, "text/javascript; charset=utf-8")
    yield site
    site.close()


def both(browser: Browser, patient: Site, plain: Site, script: str) -> tuple[Any, list[int]]:
    """What a script returns with the lane, as with messages alone; the steps that took a message there, and alone."""
    seen = []
    for site in (plain, patient):
        with open_js_page(browser, site) as js:
            seen.append(
                js.run(f"{SPY}{OPEN} const result = await (async () => {{ {script} }})(); return [result, posted];")
            )
    (expected, alone), (found, posted) = seen
    assert found == expected
    return found, [posted.count("step"), alone.count("step")]


def test_steps_in_the_lane_train_to_the_same_bytes(browser: Browser, patient_site: Site, plain_site: Site) -> None:
    """Accumulation, evaluation, sizes of batches, rates between, results given away, a session in another's place."""
    seen, (n_posted, n_alone) = both(
        browser,
        patient_site,
        plain_site,
        """
        const seen = [];
        const first = await open();
        for (let k = 0; k < 12; k++) {
          seen.push(value(await first.runTrainStep(make(8, k))));
          await first.runOptimizerStep();
          await first.lazyResetGrad();
        }
        await first.release();
        const s = await open();
        for (let k = 0; k < 90; k++) {
          const results = await s.runTrainStep(make(k < 40 || k % 30 < 20 ? 8 : 5, k));
          seen.push(value(results));
          structuredClone(Object.values(results)[0].data.buffer, { transfer: [Object.values(results)[0].data.buffer] });
          const rate = k % 7 === 6 ? s.setLearningRate(0.01 * (k % 3 + 1)) : null;
          if (k < 60 || k % 3 < 2) await s.runOptimizerStep();
          await rate;
          if (k < 60 || k % 4 < 3) await s.lazyResetGrad();
          if (k > 60 && k % 5 === 0) seen.push(value(await s.runEvalStep(make(8, k))));
          if (k % 17 === 0) await s.setLearningRate(0.01 / (k + 1));
        }
        seen.push(...await parameters(s));
        await s.release();
        return seen;""",
    )
    assert len(set(seen)) > 100
    # How many take the lane depends on the time that steps take.
    assert n_posted < n_alone, (n_posted, n_alone)


def test_one_call_after_another_takes_one_message(browser: Browser, patient_site: Site) -> None:
    with open_js_page(browser, patient_site) as js:
        n, is_away = js.run(
            f"""{SPY}{OPEN}
            const s = await open();
            const step = async (k) => {{
              await s.runTrainStep(make(8, k));
              await s.runOptimizerStep();
              await s.lazyResetGrad();
            }};
            for (let k = 0; k < 5; k++) await step(k);
            posted.length = 0;
            for (let k = 0; k < 40; k++) await step(k);
            const n = posted.length;
            return [n, await isAway()];"""
        )
    assert n < 40, "of 80 steps"
    assert is_away, "a worker without calls sleeps"


def test_several_calls_at_once_keep_their_order(browser: Browser, patient_site: Site, plain_site: Site) -> None:
    both(
        browser,
        patient_site,
        plain_site,
        """
        const [a, b] = [await open(), await open()];
        const seen = [];
        for (let k = 0; k < 24; k++) {
          const order = [];
          const note = (name) => (result) => {
            order.push(name);
            return typeof result === "object" ? value(result) : result;
          };
          const calls = [
            a.runTrainStep(make(8, k)).then(note("train a")),
            ...(k % 2 ? [b.runEvalStep(make(8, k)).then(note("eval b"))] : []),
            ...(k % 2 ? [a.getLearningRate().then(note("rate a"))] : []),
          ];
          void a.runOptimizerStep();
          await a.lazyResetGrad();
          if (k % 3) calls.push(b.runTrainStep(make(8, k)).then(note("train b")));
          if (k % 4 === 3) calls.push(a.setLearningRate(1 / (k + 9)).then(note("set a")));
          if (k % 8 === 5) await a.fit([make(8, 1), make(8, 2)], { epochs: 1 });
          seen.push(await Promise.all(calls), order);
          if (k % 3 === 1) await b.runOptimizerStep();
        }
        seen.push(await parameters(a), await parameters(b));
        await a.release();
        seen.push(value(await b.runEvalStep(make(8, 1))), value(await b.runEvalStep(make(8, 2))));
        await b.release();
        return seen;""",
    )


def test_errors_are_those_of_messages(browser: Browser, patient_site: Site, plain_site: Site) -> None:
    seen, _ = both(
        browser,
        patient_site,
        plain_site,
        """
        const s = await open();
        const seen = [];
        for (let k = 0; k < 12; k++) {
          const feeds = make(8, k);
          if (k % 4 === 3) feeds.labels.data[2] = 77n;
          await s.lazyResetGrad();
          const error = await s.runTrainStep(feeds).then(value, (e) => [e.name, e.constructor.name, e.message]);
          seen.push(error);
          seen.push(await s.runTrainStep(feeds, { signal: AbortSignal.timeout(1e6) }).then(value, (e) => e.name));
          await s.runOptimizerStep();
        }
        const aborted = new AbortController();
        aborted.abort(new Error("enough"));
        seen.push(await s.runTrainStep(make(8, 1), { signal: aborted.signal }).catch((e) => e.message));
        seen.push(await parameters(s));
        const last = s.runTrainStep(make(8, 1));
        await s.release();
        seen.push(value(await last), await s.runTrainStep(make(8, 1)).catch((e) => e.name));
        return seen;""",
    )
    assert [one[0] for one in seen[6:24:8]] == ["FeedError"] * 3 and seen[-1] == "ReleasedError"


def test_checked_numbers_and_plans_that_are_removed(browser: Browser, patient_site: Site, plain_site: Site) -> None:
    """Plans come and go with `maxPlans`, so the same feeds lie elsewhere; checked steps wait for Python."""
    both(
        browser,
        patient_site,
        plain_site,
        """
        const seen = [];
        for (const options of [{ maxPlans: 1 }, { debug: { checkNumerics: true } }, { ema: 0.5 }]) {
          const { ema, ...rest } = options;
          const s = await open(rest);
          for (let k = 0; k < 16; k++) {
            seen.push(value(await s.runTrainStep(make(k % 8 < 5 ? 8 : 300, k))));
            await s.runOptimizerStep();
            if (k % 2) await s.lazyResetGrad();
            else seen.push(value(await s.runEvalStep(make(8, k))));
          }
          seen.push(await parameters(s));
          await s.release();
        }
        return seen;""",
    )


def test_a_worker_that_dies_fails_the_step(browser: Browser, patient_site: Site) -> None:
    with open_js_page(browser, patient_site) as js:
        names = js.run(
            f"""{SPY}{OPEN}
            const s = await open();
            for (let k = 0; k < 5; k++) {{
              await s.runTrainStep(make(8, k));
              await s.runOptimizerStep();
            }}
            workers[0].terminate();
            const fail = (call) => call.then(() => "none", (e) => e.name);
            // It runs on until the browser ends it.
            const end = performance.now() + 20_000;
            while (performance.now() < end && (await fail(s.runTrainStep(make(8, 1)))) === "none");
            return [await fail(s.runTrainStep(make(8, 1))), await fail(s.runEvalStep(make(8, 1)))];"""
        )
    assert names == ["EngineError", "EngineError"]


def test_an_optimizer_step_that_nobody_follows_is_answered(browser: Browser, patient_site: Site) -> None:
    """The page takes its answer with the next call; without one the worker sends it."""
    with open_js_page(browser, patient_site) as js:
        n, is_away = js.run(
            f"""{SPY}{OPEN}
            const s = await open();
            for (let k = 0; k < 8; k++) {{
              await s.runTrainStep(make(8, k));
              await s.runOptimizerStep();
              await new Promise((resolve) => setTimeout(resolve, 150));
            }}
            await s.runOptimizerStep();
            await s.runOptimizerStep();
            const n = await s.getStepCount?.() ?? await s.stepCount();
            return [n, await isAway()];"""
        )
    assert n == 10 and is_away


def test_feeds_are_written_in_place_while_an_optimizer_step_runs(browser: Browser, isolated_site: Site) -> None:
    """Every feed of each step from the third on: two places in its message, or no message."""
    with open_js_page(browser, isolated_site) as js:
        n_travelled = js.run(
            f"""{PLACED}{OPEN_SESSION}
            const s = await open();
            let travelled = 0;
            const post = Worker.prototype.postMessage;
            Worker.prototype.postMessage = function (message, transfer) {{
              travelled += message.at?.(-1)?.method === "step" ? transfer.length : 0;
              post.call(this, message, transfer);
            }};
            for (let k = 0; k < 12; k++) {{
              if (k === 2) travelled = 0;
              await s.runTrainStep(feeds);
              await s.runOptimizerStep();
              await s.lazyResetGrad();
            }}
            await s.release();
            return travelled;"""
        )
    assert n_travelled == 0
