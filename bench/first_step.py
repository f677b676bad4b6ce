"""From a forward .onnx file to the first completed step in a page, by the JavaScript package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chrome import open_browser, open_site

TIMEOUT_MS = 600_000

PAGE = """
async ({ model, external, feeds }) => {
  const { TrainingSession, Tensor } = await import("/dist/index.js");
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


def measure(files: Mapping[str, bytes], feeds: Mapping[str, Any], repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds from the call of `createFromModel` to its end and to that of the first step.

    "cold" in a fresh browser; "warm" the fastest of `repeat` more pages in it, which have the package in their cache.
    """
    with open_browser() as browser, open_site(cacheable=True) as site:
        context = browser.new_context()
        url = site.add("/first-step/", "<!doctype html>", "text/html")
        external = [
            {"path": name, "data": site.add(f"/given/{name}", data)} for name, data in files.items() if name != "model"
        ]
        job = {"model": site.add("/given/model.onnx", files["model"]), "external": external, "feeds": dict(feeds)}

        def visit() -> dict[str, float]:
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(url)
            found: dict[str, float] = page.evaluate(PAGE, job)
            page.close()
            return found

        cold = visit()
        return {"cold": cold, "warm": min((visit() for _ in range(repeat)), key=lambda found: found["first_step"])}
