"""From a forward .onnx file to the first completed step in a page, by the JavaScript package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chrome import ROOT, open_browser, open_profile, open_site
from playwright.sync_api import BrowserContext
from tests.browser.server import Site

TIMEOUT_MS = 600_000
SETTLE_MS = 3000
"""Between two visits: machine code is written to the cache some seconds after it was made."""
VISITS_BEFORE = 3
"""Until all code that is hot is in the cache."""

PAGE = """
async ({ model, external, feeds, threads }) => {
  const { env, TrainingSession, Tensor } = await import("/dist/index.js");
  env.wasm.numThreads = threads;
  const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
  const started = performance.now();
  const session = await TrainingSession.createFromModel(model, config, { externalData: external });
  const created = performance.now();
  const batch = {};
  for (const { name, type, shape } of await session.inputMetadata()) {
    const dims = feeds[name]?.[1] ?? shape;
    const size = dims.reduce((n, dim) => n * dim, 1);
    batch[name] = new Tensor(type, type === "int64" ? new BigInt64Array(size) : new Float32Array(size), dims);
  }
  await session.runTrainStep(batch);
  await session.runOptimizerStep();
  const ms = performance.now() - started;
  session.release();
  return { create: created - started, first_step: ms };
}
"""


def measure(
    files: Mapping[str, bytes], feeds: Mapping[str, Any], repeat: int, threads: int
) -> dict[str, dict[str, float]]:
    """Milliseconds from the call of `createFromModel` to its end and to the end of the first step, with that many
    threads.

    "cold" in a fresh browser; "warm" the fastest of `repeat` more pages in it, which have the package in their cache;
    "kept" the fastest of as many with machine code in the cache, too: docs/deploy.md says which servers allow that.
    """
    with open_browser() as browser, open_site(cacheable=True) as site:
        visit = visitor(browser.new_context(), site, files, feeds, threads)
        found = {"cold": visit(), "warm": fastest(visit, repeat)}
    with open_profile() as context, open_site(cacheable=True) as site:
        visit = visitor(context, site, files, feeds, threads)
        packed = ROOT / "dist" / "npm" / "python" / "pyodide.asm.wasm.gz"
        unpacking = {"Content-Encoding": "gzip"}
        site.add(f"/dist/python/{packed.name}", packed.read_bytes(), "application/wasm", headers=unpacking)
        for _ in range(VISITS_BEFORE):
            visit()
        return {**found, "kept": fastest(visit, repeat)}


def fastest(visit: Callable[[], dict[str, float]], repeat: int) -> dict[str, float]:
    """The visit whose first step was done first."""
    return min((visit() for _ in range(repeat)), key=lambda found: found["first_step"])


def visitor(
    context: BrowserContext, site: Site, files: Mapping[str, bytes], feeds: Mapping[str, Any], threads: int
) -> Callable[[], dict[str, float]]:
    """A function that opens a page and measures there."""
    url = site.add("/first-step/", "<!doctype html>", "text/html")
    external = [
        {"path": name, "data": site.add(f"/given/{name}", data)} for name, data in files.items() if name != "model"
    ]
    model = site.add("/given/model.onnx", files["model"])
    job = {"model": model, "external": external, "feeds": dict(feeds), "threads": threads}

    def visit() -> dict[str, float]:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        found: dict[str, float] = page.evaluate(PAGE, job)
        page.wait_for_timeout(SETTLE_MS)
        page.close()
        return found

    return visit
