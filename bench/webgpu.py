"""A training step on WebGPU: times and calls of WebGPU, of trainweb, jax-js and TF.js, beside trainweb's kernels.

    python bench/webgpu.py [--models A,C,E] [--contenders wasm,webgpu,fit,jax,tfjs] [--rounds 5] [--hardware]

All contenders share one Chromium and one adapter, and take turns in rounds. The adapter is SwiftShader, which computes
on the CPU, or with `--hardware` the machine's own. Calls of a step are exact on any adapter. Times of different
adapters say nothing about each other. The time of scripts goes from a task's first call of WebGPU to its submit, and is
the median of the rounds.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import models
from chrome import FLAGS, ContenderError, ContenderPage, install_peers, machine, open_site
from chromium import find_chromium
from playwright.sync_api import Browser, sync_playwright
from tests.browser.server import ROOT, Site
from tests.browser.webgpu import SWIFTSHADER

HARDWARE = ["--enable-unsafe-webgpu", "--enable-features=Vulkan"]
CONTENDERS = {
    "wasm": ("trainweb, wasm", {"contender": "trainweb"}),
    "webgpu": ("trainweb", {"contender": "trainweb", "device": "webgpu"}),
    "fit": ("trainweb, fit", {"contender": "trainweb", "device": "webgpu", "loop": "fit"}),
    "jax": ("jax-js", {"contender": "jax", "device": "webgpu"}),
    "tfjs": ("TF.js", {"contender": "tfjs", "backend": "webgpu"}),
}
"""By the option, the name in the table and the query of the page."""
CALLS = {
    "dispatches": "dispatchWorkgroups",
    "submits": "submit",
    "writes": "writeBuffer",
    "groups": "createBindGroup",
    "buffers": "createBuffer",
    "reads": "mapAsync",
}
PIPELINES = ("createComputePipeline", "createComputePipelineAsync")
PROBE = (Path(__file__).parent / "pages" / "probe.js").read_text()
RUNTIME = "/dist/webgpu.js"
WARM_UP_STEPS = 2


class Turn:
    """A contender's page, and its measurements."""

    def __init__(self, browser: Browser, site: Site, model: str, query: dict[str, str]) -> None:
        context = browser.new_context()
        context.add_init_script(PROBE)
        self.page = ContenderPage(context, site, model, {**query, "threads": "1"})
        self.times: list[float] = []
        self.scripts: list[float] = []
        """Microseconds of a dispatch."""
        self.first = self.page.evaluate("bench.marks.firstStep")
        self.page.run(WARM_UP_STEPS)

    @property
    def _threads(self) -> list[Any]:
        return [self.page.page, *self.page.page.workers]

    def _probe(self) -> dict[str, Any]:
        """The counts until now; 0 for a thread without WebGPU."""
        probes = [probe for thread in self._threads if (probe := thread.evaluate("globalThis.gpuProbe ?? null"))]
        sums = {key: sum(probe[key] for probe in probes) for key in ("peakBytes", "encodeMs")}
        names = (*CALLS.values(), *PIPELINES)
        return {**sums, **{name: sum(probe["calls"].get(name, 0) for probe in probes) for name in names}}

    def take(self, steps: int) -> None:
        """Measure so many steps."""
        before = self._probe()
        self.times += self.page.run(steps)
        after = self._probe()
        dispatches = after[CALLS["dispatches"]] - before[CALLS["dispatches"]]
        self.scripts.append(1e3 * (after["encodeMs"] - before["encodeMs"]) / dispatches if dispatches else 0)

    def row(self, steps: int) -> list[str]:
        """Times, and the calls of so many steps."""
        before = self._probe()
        taken = len(self.page.run(steps)) + (steps > 1 and "loop=fit" not in self.page.page.url)
        after = self._probe()
        calls = {name: (after[call] - before[call]) / taken for name, call in CALLS.items()}
        return [
            f"{min(self.times):.1f}",
            f"{median(self.times):.1f}",
            f"{self.first / 1e3:.1f}",
            *(f"{count:.3g}" for count in calls.values()),
            f"{sum(after[name] for name in PIPELINES)}",
            f"{after['peakBytes'] / 1e6:.1f}",
            f"{median(self.scripts):.1f}",
        ]


def measure(browser: Browser, site: Site, model: str, names: list[str], rounds: int, steps: int) -> list[str]:
    """The rows of a model's table."""
    turns: dict[str, Turn] = {}
    rows = []
    with ExitStack() as stack:
        for label, query in map(CONTENDERS.__getitem__, names):
            try:
                turns[label] = Turn(browser, site, model, query)
                stack.callback(turns[label].page.close)
            except ContenderError as error:
                rows.append(line([model, label, str(error)[:80]]))
        for _ in range(rounds):
            for turn in turns.values():
                turn.take(steps)
        rows += [line([model, label, *turn.row(steps)]) for label, turn in turns.items()]
    return rows


def line(cells: list[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="A,C,E")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--hardware", action="store_true")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    args = parser.parse_args()
    names = args.models.split(",")
    for name in names:
        models.build(name)
    install_peers()
    flags = [*(flag for flag in FLAGS if flag != "--disable-gpu"), *(HARDWARE if args.hardware else SWIFTSHADER)]
    print(machine())
    times = ("ms, least", "ms, median", "first step, s")
    columns = ["model", "contender", *times, *CALLS, "pipelines", "peak MB", "us a dispatch"]
    print(line(columns))
    print("|", "---|" * len(columns), sep="")
    with sync_playwright() as playwright, open_site() as site:
        # The worker loads the runtime before it asks for a GPU.
        site.add(RUNTIME, PROBE.encode() + (ROOT / "dist" / "npm" / "webgpu.js").read_bytes())
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=flags)
        for name in names:
            print(
                *measure(browser, site, name, args.contenders.split(","), args.rounds, args.steps), sep="\n", flush=True
            )
        browser.close()


if __name__ == "__main__":
    main()
