"""From the files of a 135M model to its first step in Chromium: processor seconds by phase, and the tab's peak memory.

    .venv/bin/python bench/large_model.py [--weights url|cached] [--bits 32|16|8|4] [--form plain|default]

The model is that of bench/smol.py with LoRA, 1 x 128 tokens, one thread. Processor seconds and memory are those of the
tab's process: the unshared memory of `smaps_rollup`, sampled every 100 ms. "cached" measures the second visit of a page
with the option `cache`. The form "default" is that of PyTorch's dynamo exporter with its optimizer and external data
(`bench/smol.py`). `bench/compile_stages.py` has the stages of Python's part. `--budget` is in MB.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import smol
from chrome import BUILD, open_profile, open_site
from playwright.sync_api import Page
from tests.browser.processes import PROC, processes
from tests.browser.server import Site

TIMEOUT_MS = 600_000
SAMPLE_S = 0.1
SETTLE_MS = 8000
"""Until a visit has stored what it keeps."""
LENGTH = 128
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

PAGE = """
async ({ model, weights, data, cache, length, budget }) => {
  const { env, Tensor, TrainingSession } = await import("/dist/index.js");
  env.wasm.numThreads = 1;
  await mark("page");
  let files = null;
  const onProgress = ({ stage }) => {
    if (stage === "compile") files = mark("files and start of Python");
  };
  const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 8, targets: ["q_proj", "v_proj"] } };
  const memory = budget && { memoryBudget: 1e6 * budget };
  const external = data && { externalData: [{ path: "model.onnx.data", data }] };
  const options = { onProgress, ...(cache && { cache }), ...(weights && { weights }), ...external, ...memory };
  const session = await TrainingSession.createFromModel(model, config, options);
  await files;
  await mark("createFromModel");
  const ids = () =>
    new Tensor("int64", BigInt64Array.from({ length }, (_, k) => BigInt((37 * k) % 49152)), [1, length]);
  const feeds = Object.fromEntries(session.trainingInputNames.map((name) => [name, ids()]));
  const losses = [];
  for (const step of ["first step", "second step", "third step"]) {
    const found = await session.runTrainStep(feeds);
    losses.push(found[session.trainingOutputNames[0]].data[0]);
    await session.runOptimizerStep();
    await session.lazyResetGrad();
    await mark(step);
  }
  return losses;
}
"""


def processor_seconds(pid: int) -> float:
    """Time that a process has computed."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def renderers() -> dict[int, float]:
    """Time that each process of pages has computed."""
    found = {}
    for pid in processes():
        with suppress(FileNotFoundError):  # it has ended
            if b"--type=renderer" in (PROC / str(pid) / "cmdline").read_bytes():
                found[pid] = processor_seconds(pid)
    return found


def unshared_bytes(pid: int) -> int:
    """Memory that would be free without the process."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


class Watch:
    """Processor time, time and peak memory of a tab by phase."""

    def __init__(self, page: Page) -> None:
        # Chromium has processes in reserve: the page's is the one that computes.
        before = renderers()
        page.evaluate("() => { for (const end = performance.now() + 1000; performance.now() < end; ); }")
        gained = {pid: seconds - before.get(pid, 0.0) for pid, seconds in renderers().items()}
        self.pid = max(gained, key=lambda pid: gained[pid])
        self.rows: list[tuple[str, float, float, int]] = []
        self.peak = self._peak_of_phase = 0
        self._last = processor_seconds(self.pid), time.perf_counter()

    def mark(self, phase: str) -> None:
        """End a phase."""
        now = processor_seconds(self.pid), time.perf_counter()
        self.sample()
        self.rows.append((phase, now[0] - self._last[0], now[1] - self._last[1], self._peak_of_phase))
        self._last, self._peak_of_phase = now, 0

    def sample(self) -> None:
        """Look at the memory."""
        nbytes = unshared_bytes(self.pid)
        self.peak, self._peak_of_phase = max(self.peak, nbytes), max(self._peak_of_phase, nbytes)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Look at the memory again and again."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(SAMPLE_S):
                self.sample()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def visit(page: Page, url: str, job: dict[str, Any]) -> tuple[Watch, list[float]]:
    """Make a session in a page and take steps."""
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    watch = Watch(page)
    page.expose_function("mark", watch.mark)
    with watch.sampling():
        losses = page.evaluate(PAGE, job)
    page.wait_for_timeout(SETTLE_MS if job["cache"] else 0)
    return watch, losses


def default_files() -> dict[str, Path]:
    """The files of the model in the form that the exporter writes by default, made when they are not there."""
    folder = BUILD / "smol" / "default"
    files = {"model": folder / "model.onnx", "data": folder / smol.EXTERNAL}
    return files if files["data"].is_file() else smol.write_optimized(folder, length=LENGTH)


def files_of(bits: int, size: str = "135M") -> dict[str, Path]:
    """The files of a model, made when they are not there."""
    folder = BUILD / "smol" / size
    if not (folder / smol.SAFETENSORS).is_file():
        smol.write(folder, smol.SIZES[size], "safetensors")
    found = {"model": folder / "model.onnx", "weights": folder / smol.SAFETENSORS}
    if bits == 32:
        return found
    if bits == 16:
        halves = {"model": folder / "model.16.onnx", "weights": folder / "model.16.safetensors"}
        if not halves["weights"].is_file():
            weights = smol.shapes(smol.SIZES[size])
            halves["model"].write_bytes(smol.as_halves(smol.graph_of(smol.SIZES[size]), weights).SerializeToString())
            smol.write_safetensors(halves["weights"], weights, dtype="float16")
        return halves
    quantized = folder / f"model.{bits}.onnx"
    if not quantized.is_file():
        from trainweb.lora.quantize import quantize
        from trainweb.model.reader import read_model

        quantized.write_bytes(quantize(read_model(found["model"], weights=found["weights"]), bits))
    return {"model": quantized}


def served(site: Site, files: dict[str, Path]) -> dict[str, str]:
    """Addresses of files, which a browser may keep only with a question."""
    headers = {"Cache-Control": "no-cache", "Last-Modified": "Tue, 24 Nov 2026 12:00:00 GMT"}
    return {name: site.add(f"/given/{path.name}", path.read_bytes(), headers=headers) for name, path in files.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=("url", "cached"), default="url")
    parser.add_argument("--form", choices=("plain", "default"), default="plain")
    parser.add_argument("--bits", type=int, choices=(32, 16, 8, 4), default=32)
    parser.add_argument("--budget", type=int, help="`memoryBudget` in MB")
    options = parser.parse_args()
    if options.form == "default" and options.bits != 32:
        parser.error("the form default is of 32 bits")
    files = files_of(options.bits) if options.form == "plain" else default_files()
    with open_profile() as context, open_site(cacheable=True) as site:
        url = site.add("/large/", "<!doctype html>", "text/html")
        cache = options.weights == "cached"
        job = {
            "weights": None,
            "data": None,
            **served(site, files),
            "cache": cache,
            "length": LENGTH,
            "budget": options.budget,
        }
        for _ in range(1 + cache):
            page = context.new_page()
            watch, losses = visit(page, url, job)
            page.close()
    print(
        f"{options.bits} bits, {options.form}, {options.weights}: losses {', '.join(f'{loss:.6f}' for loss in losses)}"
    )
    for phase, processor, seconds, peak in watch.rows:
        print(f"  {processor:6.2f} s of processor, {seconds:6.2f} s, up to {peak / 1e6:6.0f} MB: {phase}")
    print(f"  peak {watch.peak / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
