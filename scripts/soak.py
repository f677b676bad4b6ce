"""Random calls of many sessions in one page of Chromium, for minutes: nothing may drift, pile up or fail.

    python scripts/soak.py [--minutes M] [--seed S] [--isolated]

Sessions of golden models are opened from artifacts or from the cache. They are trained, evaluated, saved, profiled,
called with wrong arguments, and released, without waiting for one call before the next. In between:

- a probe: a fixed training in a separate session gives the same bytes as in the beginning;
- a twin: a session that is opened from a checkpoint of a random session evaluates to the same bytes as that one;
- a rest: all sessions are released; the kernels' memory has nothing in use, and the page's processes are measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "py_src"), str(ROOT), str(ROOT / "scripts")]

from chromium import find_chromium  # noqa: E402
from tests.browser.conftest import CHROMIUM_FLAGS  # noqa: E402
from tests.browser.js_session import JsPage, open_js_page, to_json  # noqa: E402
from tests.browser.processes import processes, resident_bytes  # noqa: E402
from tests.browser.server import Site  # noqa: E402

CASES = {"mlp": 3, "cnn": 4, "transformer": 1}
"""Golden models, and how many rows a second kind of batch has; that of the cnn is fixed."""
CALLS_A_ROUND = 120
SETTLE_MS = 300
GC_FLAG = "--js-flags=--expose-gc"
"""So that what is dead does not count: workers collect rarely, for what they hold is not in their heaps."""

SOAK = """
const text = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength).join();
const batches = (name) => models[name].map((feeds) => mapValues(feeds, toTensor));
// Once: what tests watch pages with keeps what is fetched.
const files = {};
for (const name of Object.keys(models)) {
  const load = async (url) => new Uint8Array(await (await fetch(url)).arrayBuffer());
  files[name] = Object.fromEntries(
    await Promise.all(Object.entries(golden(name)).map(async ([file, url]) => [file, await load(url)])),
  );
}
const open = (name, options) => TrainingSession.create(files[name], options);
const result = (results) => Object.values(results).map(({ data }) => text(data)).join(";");

function randomOf(seed) {
  let state = seed >>> 0;
  return (n) => {  // mulberry32
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
  };
}

const soak = { sessions: [], calls: 0, refused: 0, twins: 0, random: null };
window.soak = soak;

soak.probe = async (name) => {
  const s = await open(name, { reproducible: true });
  const found = [];
  for (const feeds of batches(name)) {
    found.push(result(await s.runTrainStep(feeds)));
    await s.runOptimizerStep();
    await s.lazyResetGrad();
  }
  found.push(text((await s.getContiguousParameters()).data));
  await s.release();
  return found.join("|");
};

/** A call whose arguments are wrong: it is refused, by name, and changes nothing. */
const refuse = async (promise) => {
  const error = await promise.then(() => null, (reason) => reason);
  if (error === null || !(error instanceof trainweb.TrainwebError || error instanceof TypeError)) {
    throw new Error(`a wrong call gave ${error}`);
  }
  soak.refused++;
};

const CALLS = [
  [30, (s, feeds) => s.runTrainStep(feeds)],
  [20, (s) => s.runOptimizerStep()],
  [20, (s) => s.lazyResetGrad()],
  [10, (s, feeds) => s.runEvalStep(feeds)],
  [3, (s) => s.getContiguousParameters()],
  [2, async (s) => s.loadParametersBuffer((await s.getContiguousParameters()).data)],
  [2, (s, feeds, random) => s.setLearningRate(1e-5 * (1 + random(100)))],
  [2, (s) => s.saveCheckpoint({ includeOptimizerState: true })],
  [1, (s) => s.saveCheckpoint({ as: "blob" })],
  [1, (s) => s.memory()],
  [1, (s, feeds) => s.profile(feeds)],
  [2, (s) => refuse(s.runTrainStep({}))],
  [2, (s) => refuse(s.setLearningRate(NaN))],
  [1, (s) => refuse(s.getParameter("there is none"))],
];
const WHEEL = CALLS.flatMap(([weight, call]) => Array(weight).fill(call));

/** A session that continues from a checkpoint of another one says what that one says. */
async function twin({ session, name }, random) {
  const feeds = batches(name)[random(2)];
  const checkpointState = await session.saveCheckpoint({ includeOptimizerState: true });
  const mine = result(await session.runEvalStep(feeds));
  const other = await TrainingSession.create({ ...files[name], checkpointState });
  const its = result(await other.runEvalStep(feeds));
  await other.release();
  if (mine !== its) throw new Error(`a session of ${name} and its twin differ`);
  soak.twins++;
}

soak.round = async (seed, n) => {
  const random = randomOf(seed);
  const { sessions } = soak;
  const underWay = [];
  for (let k = 0; k < n; k++) {
    if (sessions.length < 2 || (sessions.length < 5 && random(25) === 0)) {
      const name = Object.keys(models)[random(Object.keys(models).length)];
      sessions.push({ name, session: await open(name, { cache: random(3) === 0, maxPlans: 1 + random(4) }) });
    } else if (random(30) === 0) {
      const [{ session }] = sessions.splice(random(sessions.length), 1);
      await Promise.all(underWay.splice(0));
      underWay.push(session.release());
    } else if (random(40) === 0) {
      // Some calls are two, with a wait between.
      await Promise.all(underWay.splice(0));
      await twin(sessions[random(sessions.length)], random);
    } else {
      const { name, session } = sessions[random(sessions.length)];
      underWay.push(WHEEL[random(WHEEL.length)](session, batches(name)[random(2)], random));
    }
    soak.calls++;
    if (random(10) === 0) await Promise.all(underWay.splice(0));
  }
  await Promise.all(underWay);
};

soak.rest = async () => {
  await Promise.all(soak.sessions.splice(0).map(({ session }) => session.release()));
};
"""

IN_USE = """
const Real = Worker;
window.started = [];
window.Worker = class extends Real {
  constructor(...given) { super(...given); started.push(this); }
};
/** Bytes in use in the kernels of all workers that were started. */
window.bytesInUse = async () => {
  const answers = started.map((worker) => new Promise((resolve) => {
    const receive = ({ data }) => {
      if (data.id === -1) { worker.removeEventListener("message", receive); resolve(data.result.ok.inUse); }
    };
    worker.addEventListener("message", receive);
    worker.postMessage([{ id: -1, method: "memory", args: [] }]);
  }));
  return (await Promise.all(answers)).reduce((a, b) => a + b, 0);
};
"""


def feeds_of(case: str) -> list[dict[str, Any]]:
    """Two batches as recorded, the second one with fewer rows."""

    def batch(prefix: str, rows: int | None) -> dict[str, Any]:
        with np.load(ROOT / "tests" / "golden" / case / "inputs.npz") as inputs:
            found = {key.removeprefix(prefix): inputs[key] for key in inputs.files if key.startswith(prefix)}
        all_rows = len(next(iter(found.values())))
        # Labels may have several elements a row.
        return {name: to_json(array[: len(array) * (rows or all_rows) // all_rows]) for name, array in found.items()}

    return [batch("b0.", None), batch("b1.", CASES[case])]


class SoakError(Exception):
    """Something happened that must not; the message says what."""


class Soak:
    """One page, and what was seen of it."""

    def __init__(self, js: JsPage) -> None:
        self.js, self.pids = js, processes()
        self.resident: list[float] = []
        js.run(IN_USE)
        js.run(SOAK, models={case: feeds_of(case) for case in CASES})
        self.probes = {case: self.probe(case) for case in CASES}
        self.n_probes = 0

    def probe(self, case: str) -> str:
        """Bytes of a fixed training."""
        found: str = self.js.run("return soak.probe(name);", name=case)
        return found

    def check(self, turn: int) -> None:
        """Probe one case; raises SoakError."""
        case = list(CASES)[turn % len(CASES)]
        self.n_probes += 1
        if self.probe(case) != self.probes[case]:
            raise SoakError(f"probe {self.n_probes}: {case} trains to other bytes than in the beginning")

    def rest(self) -> None:
        """Release everything; raises SoakError where memory of the kernels stays in use."""
        self.js.run("await soak.rest();")
        in_use = self.js.run("return bytesInUse();")
        if in_use != 0:
            raise SoakError(f"{in_use} bytes of the kernels are in use, and no session is open")
        for worker in self.js.page.workers:
            worker.evaluate("gc()")
        self.js.page.request_gc()
        self.js.page.wait_for_timeout(SETTLE_MS)
        self.resident.append(resident_bytes(self.pids) / 1e6)

    def counts(self) -> dict[str, int]:
        """Counts of calls, correctly refused calls, and twins."""
        found: dict[str, int] = self.js.run("const { calls, refused, twins } = soak; return { calls, refused, twins };")
        return found


def soak(browser: Browser, site: Site, minutes: float, seed: int) -> str:
    """Soak for so long; returns what to report, and raises when something fails."""
    end = time.monotonic() + 60 * minutes
    with open_js_page(browser, site) as js:
        one = Soak(js)
        turn = 0
        while time.monotonic() < end or turn < 2:
            js.run("await soak.round(seed, n);", seed=1000 * seed + turn, n=CALLS_A_ROUND)
            one.check(turn)
            one.rest()
            turn += 1
            print(f"round {turn}: {one.counts()}, {one.resident[-1]:.0f} MB", flush=True)
        counts = one.counts()
        # The first half fills caches of the browser.
        late = one.resident[len(one.resident) // 2 :]
    return (
        f"{counts['calls']} calls ({counts['refused']} wrong ones, all refused), {one.n_probes} probes and "
        f"{counts['twins']} twins equal to the last byte, nothing in use in the kernels after each of {turn} rounds, "
        f"{statistics.mean(late):.0f} +- {(max(late) - min(late)) / 2:.0f} MB resident in the second half"
    )


def main() -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--isolated", action="store_true", help="with threads")
    options = parser.parse_args()
    site = Site(isolated=options.isolated)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(install=False), args=[*CHROMIUM_FLAGS, GC_FLAG]
        )
        print(soak(browser, site, options.minutes, options.seed))
        browser.close()
    site.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
