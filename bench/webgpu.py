"""A training step on WebGPU: times and calls of WebGPU, of trainweb, jax-js and TF.js, beside trainweb's kernels.

    python bench/webgpu.py [--models A,C,E] [--contenders wasm,webgpu,fit,jax,tfjs] [--rounds 5] [--hardware]
    python bench/webgpu.py --first [--models A] [--contenders webgpu,bundle,cache,jax]

All contenders share one Chromium and one adapter, and take turns in rounds. The adapter is SwiftShader, which computes
on the CPU, or with `--hardware` the machine's own. Calls of a step are exact on any adapter. Times of different
adapters say nothing about each other. The time of scripts goes from a task's first call of WebGPU to its submit, and is
the median of the rounds. With `--first`, each visit has a fresh browser with no cache, but for "cache", whose session
an earlier visit has stored. Seconds go from the page's start to the end of the first step; those
of processors are of the whole browser, after its launch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import models
from chrome import FLAGS, ContenderError, ContenderPage, install_peers, machine, open_site
from chromium import find_chromium
from playwright.sync_api import Browser, sync_playwright
from startup import make_bundle
from tests.browser.server import ROOT, Site
from tests.browser.webgpu import SWIFTSHADER

HARDWARE = ["--enable-unsafe-webgpu", "--enable-features=Vulkan"]
CONTENDERS = {
    "wasm": ("trainweb, wasm", {"contender": "trainweb"}),
    "webgpu": ("trainweb", {"contender": "trainweb", "device": "webgpu"}),
    "fit": ("trainweb, fit", {"contender": "trainweb", "device": "webgpu", "loop": "fit"}),
    "bundle": ("trainweb, bundle", {"contender": "trainweb", "device": "webgpu", "bundle": "1"}),
    "cache": ("trainweb, cached session", {"contender": "trainweb", "device": "webgpu", "cache": "1"}),
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
SETTLE_MS = 1500
"""A page left alone so long has stored its session."""
OF_STEPS, OF_FIRST = ("wasm", "webgpu", "fit", "jax", "tfjs"), ("webgpu", "bundle", "cache", "jax")


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


def processor_time() -> float:
    """Seconds of the processes that this one has started, and of theirs."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(") ")[2].split()
    ours, former = {os.getpid()}, 0
    while len(ours) > former:
        former = len(ours)
        ours |= {pid for pid, fields in stats.items() if int(fields[1]) in ours}
    ticks = sum(int(n) for pid in ours - {os.getpid()} for n in stats[pid][11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def first_steps(launch: Callable[[], Browser], site: Site, model: str, names: list[str], rounds: int) -> list[str]:
    """The rows of a model's table of first steps."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            browser = launch()
            context = browser.new_context()
            for _ in range(1 + (name == "cache")):
                before = processor_time()
                page = ContenderPage(context, site, model, {**CONTENDERS[name][1], "threads": "1"})
                used = processor_time() - before
                marks = page.evaluate("bench.marks")
                # An open page: the time of processes that end would be lost.
                page.page.wait_for_timeout(SETTLE_MS)
            seconds[name].append((marks["firstStep"] / 1e3, used))
            browser.close()
    columns = {name: [*zip(*found, strict=True)] for name, found in seconds.items()}
    return [
        line([model, CONTENDERS[name][0], *(f"{of(times):.2f}" for times in both for of in (min, median))])
        for name, both in columns.items()
    ]


def line(cells: list[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="only the first step of a fresh browser")
    parser.add_argument("--models", default="A,C,E")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--hardware", action="store_true")
    parser.add_argument("--contenders")
    args = parser.parse_args()
    names = args.models.split(",")
    contenders = args.contenders.split(",") if args.contenders else [*(OF_FIRST if args.first else OF_STEPS)]
    for name in names:
        built = models.build(name)
        if "bundle" in contenders:
            make_bundle(built, ("webgpu",))
    install_peers()
    flags = [*(flag for flag in FLAGS if flag != "--disable-gpu"), *(HARDWARE if args.hardware else SWIFTSHADER)]
    print(machine())
    times = ["ms, least", "ms, median", "first step, s"]
    measured = [*times, *CALLS, "pipelines", "peak MB", "us a dispatch"]
    columns = [
        "model",
        "contender",
        *(["s, least", "s, median", "of processors, least", "median"] if args.first else measured),
    ]
    print(line(columns))
    print("|", "---|" * len(columns), sep="")
    with sync_playwright() as playwright, open_site() as site:
        launch = partial(playwright.chromium.launch, executable_path=find_chromium(install=False), args=flags)
        if args.first:
            for name in names:
                print(*first_steps(launch, site, name, contenders, args.rounds), sep="\n", flush=True)
            return
        # The worker loads the runtime before it asks for a GPU.
        site.add(RUNTIME, PROBE.encode() + (ROOT / "dist" / "npm" / "webgpu.js").read_bytes())
        browser = launch()
        for name in names:
            print(*measure(browser, site, name, contenders, args.rounds, args.steps), sep="\n", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
