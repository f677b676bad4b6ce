"""Pages that train a language model in Chromium, one for each number of threads, and the browser's processor time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chrome import PEAK_WASM, build_peak, open_browser
from playwright.sync_api import Page
from tests.browser.server import MOUNTS, Site

TIMEOUT_MS = 600_000
PEAK_ITERATIONS = 600_000_000
"""Of the loop that measures the peak: it takes as long as a step."""
PEAK_FLOPS = 13 * 4 * 2

CREATE = """
async ({ external, config, feeds, threads }) => {
  const { env, TrainingSession, Tensor } = await import("/dist/index.js");
  env.wasm.numThreads = threads;
  const { instance } = await WebAssembly.instantiate(await (await fetch("/peak.wasm")).arrayBuffer());
  globalThis.peak = instance.exports.peak;
  const read = async (path) => ({ path, data: new Uint8Array(await (await fetch(`/model/${path}`)).arrayBuffer()) });
  const externalData = await Promise.all(external.map(read));
  const session = await TrainingSession.createFromModel("/model/model.onnx", config, { externalData });
  await session.setLearningRate(1e-3);
  const tensors = feeds.map(({ values, dims }) => new Tensor("int64", BigInt64Array.from(values, BigInt), dims));
  const [ids, labels] = session.trainingInputNames;
  const isFirst = (k) => k % feeds[1].dims[1] < feeds[1].dims[1] / 2;
  const ignoring = (isIgnored) => {
    const some = BigInt64Array.from(feeds[1].values, (label, k) => BigInt(isIgnored(k) ? -100 : label));
    return { [ids]: tensors[0], [labels]: new Tensor("int64", some, feeds[1].dims) };
  };
  const batches = {
    all: { [ids]: tensors[0], [labels]: tensors[1] },
    prompts: ignoring(isFirst),
    padding: ignoring((k) => !isFirst(k)),
  };
  globalThis.step = async (labels) => {
    const outputs = await session.runTrainStep(batches[labels]);
    await session.runOptimizerStep();
    await session.lazyResetGrad();
    return Number(Object.values(outputs)[0].data[0]);
  };
}
"""


class LanguagePage:
    """A page with a session, whose steps are timed."""

    def __init__(self, page: Page, folder: Path, config: dict[str, Any], feeds: Sequence[Any], threads: int) -> None:
        self.page = page
        external = sorted(path.name for path in folder.glob("*.data"))
        values = [{"values": a.ravel().tolist(), "dims": list(a.shape)} for a in feeds]
        page.evaluate(CREATE, {"external": external, "config": config, "feeds": values, "threads": threads})

    def step(self, labels: str = "all") -> tuple[float, float]:
        """Processor seconds of the browser's processes and the loss of a step.

        Of the labels of each text, "all" count, "prompts" ignores the first half, and "padding" the last.
        """
        before = _processor_seconds()
        loss = float(self.page.evaluate("(labels) => step(labels)", labels))
        return _processor_seconds() - before, loss

    def peak(self) -> float:
        """GFLOP/s of multiply-adds in registers, by the processor time of a run."""
        before = _processor_seconds()
        self.page.evaluate("(iterations) => void peak(iterations, 0.999, 1e-3)", PEAK_ITERATIONS)
        return PEAK_FLOPS * PEAK_ITERATIONS / (_processor_seconds() - before) / 1e9


@contextmanager
def open_pages(
    folder: Path, config: dict[str, Any], feeds: Sequence[Any], threads: Sequence[int]
) -> Iterator[list[LanguagePage]]:
    """Pages with the model of `folder`, whose external data is in the files `*.data` beside it."""
    build_peak()
    site = Site(isolated=True, mounts={**MOUNTS, "/model/": (folder,)})
    try:
        site.add("/peak.wasm", PEAK_WASM.read_bytes())
        url = site.add("/language/", "<!doctype html>", "text/html")
        with open_browser() as browser:
            pages = []
            for count in threads:
                page = browser.new_page()
                page.set_default_timeout(TIMEOUT_MS)
                page.goto(url)
                pages.append(LanguagePage(page, folder, config, feeds, count))
            yield pages
    finally:
        site.close()


def _processor_seconds() -> float:
    """Processor time so far of all processes of Chromium below this one."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        fields[int(path.parent.name)] = (name, rest.split())
    ticks = sum(
        int(rest[11]) + int(rest[12])
        for pid, (name, rest) in fields.items()
        if "chrom" in name and os.getpid() in _ancestors(pid, fields)
    )
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _ancestors(pid: int, fields: dict[int, tuple[str, list[str]]]) -> list[int]:
    found = []
    while pid in fields:
        pid = int(fields[pid][1][1])
        found.append(pid)
    return found
