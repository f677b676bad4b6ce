"""A fit in a page whose renderer is killed, opened again until it is done: its bytes equal an undisturbed fit.

    ./build.sh test-closed-tabs --kills 20

kills the renderer at that many random moments, each of a separate fit, and prints the results.
"""

import argparse
import os
import random
import signal
import time
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from .conftest import CHROMIUM_FLAGS, PAGE_TIMEOUT_MS
from .js_session import JsPage
from .processes import processes
from .server import Site

CRASH_LOOKS = 200
FIT = """
    const store = new CheckpointStore("tabs", { backend });
    const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx", {
      loss: "CrossEntropyLoss", optimizer: "AdamW", additionalOutputNames: ["logits"],
    }, { reproducible: true, cache: true });
    const rows = 3000;
    const data = {
      x: new Tensor("float32", Float32Array.from({ length: 10 * rows }, (_, i) => (i * 37 % 101) / 50 - 1), [rows, 10]),
      labels: new Tensor("int64", BigInt64Array.from({ length: rows }, (_, i) => BigInt((i * 7) % 3)), [rows]),
    };
    const checkpoint = name === null ? null : { store, name, every: 200 };
    window.begun = performance.now();
    let done = 0;
    const history = await s.fit(data, {
      epochs: 3, batchSize: 2, validationSplit: 0.2, accumulate: 2, seed: 11, metrics: ["accuracy"],
      schedule: { type: "Cosine", learningRate: 0.01, total: 1800, warmup: 100 },
      earlyStopping: { patience: 3, restoreBest: true }, checkpoint,
      callbacks: (event) => { window.seen = event; },
    });
    const moments = await s.getMoments("fc1.weight");
    const found = {
      parameters: await hash((await s.getContiguousParameters(false)).data),
      moments: await Promise.all(Object.values(moments).map(({ data }) => hash(data))),
      losses: await hash(Float32Array.from(history.losses)),
      count: history.losses.length,
      epochs: history.epochs.map(({ seconds, ...epoch }) => epoch),
      rate: await s.getLearningRate(),
      steps: await s.stepCount(),
      milliseconds: performance.now() - window.begun,
    };
    await s.release();
    return found;
"""


class Tabs:
    """Tabs that share their storage, one after the other."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self.context, self.site = browser.new_context(), site
        self.keeper = self.context.new_page()

    def fit(self, name: str | None, backend: str = "opfs") -> dict[str, Any]:
        """A fit to its end, in a new tab."""
        page = self.context.new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        found: dict[str, Any] = JsPage(page, self.site).run(FIT, name=name, backend=backend)
        page.close()
        return found

    def fit_and_kill(self, name: str, after_ms: float, backend: str = "opfs") -> bool:
        """Begin a fit and kill its renderer this long after its first step could come; whether it was not done yet."""
        before = set(processes())
        page = self.context.new_page()
        js = JsPage(page, self.site)
        start = f"(async () => {{ {FIT} }})().then(() => {{ window.isDone = true; }}); return 0;"
        js.run(start, name=name, backend=backend)
        page.wait_for_function("() => window.begun", polling=5)
        page.wait_for_timeout(after_ms)
        is_done = bool(page.evaluate("() => window.isDone === true"))
        crashed: list[object] = []
        page.on("crash", lambda gone: crashed.append(gone))
        for renderer in set(processes()) - before:
            os.kill(renderer, signal.SIGKILL)
        for _ in range(CRASH_LOOKS):
            if crashed:
                return not is_done
            self.keeper.wait_for_timeout(50)
        raise AssertionError("the renderer lives")

    def close(self) -> None:
        """Forget all that was stored."""
        self.context.close()


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """True if two fits left the same results, whatever time they took."""
    return {**a, "milliseconds": 0} == {**b, "milliseconds": 0}


def trial(
    tabs: Tabs, name: str, whole: dict[str, Any], rng: random.Random, backend: str = "opfs"
) -> tuple[float, bool]:
    """Kill a fit at a random moment, and finish it; the moment as a share of the fit, and whether it had to go on."""
    share = rng.random()
    was_cut = tabs.fit_and_kill(name, share * whole["milliseconds"], backend)
    found = tabs.fit(name, backend)
    assert equal(found, whole), f"killed at {share:.3f} of the fit: {found} instead of {whole}"
    return share, was_cut


def main() -> None:
    """Kill as often as asked, and print the outcome."""
    from chromium import find_chromium

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    rng, site = random.Random(options.seed), Site()
    print(f"seed {options.seed}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=CHROMIUM_FLAGS)
        tabs = Tabs(browser, site)
        tabs.fit(None)  # compiles, and is slower than those that come
        whole = tabs.fit(None)
        cut = k = 0
        while cut < options.kills:
            share, was_cut = trial(tabs, f"run {k}", whole, rng)
            cut, k = cut + was_cut, k + 1
            done = "" if was_cut else ", which was done"
            print(f"{k:3}: killed after {share:.3f} of the time of a fit{done}: same bytes", flush=True)
        tabs.close()
        browser.close()
    site.close()
    print(f"{k} killed, {cut} before their end; all ended with the same bytes")


if __name__ == "__main__":
    main()
