"""A training step on WebGPU: milliseconds and calls of WebGPU, of trainweb and jax-js, beside trainweb's kernels.

    python bench/webgpu.py [--models A,C,E] [--rounds 5] [--steps 4] [--hardware]

All contenders share one Chromium and one adapter, and take turns in rounds. The adapter is SwiftShader, which computes
on the CPU, or with `--hardware` the machine's own. Calls of a step are exact on any adapter. Times of different
adapters say nothing about each other.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from statistics import median
from typing import Any

import models
from chrome import FLAGS, ContenderError, ContenderPage, install_peers, machine, open_site
from chromium import find_chromium
from playwright.sync_api import Browser, sync_playwright
from tests.browser.server import Site
from tests.browser.webgpu import COUNT, COUNTED, SWIFTSHADER

HARDWARE = ["--enable-unsafe-webgpu", "--enable-features=Vulkan"]
CONTENDERS = {
    "trainweb, wasm": {"contender": "trainweb", "threads": "1"},
    "trainweb, webgpu": {"contender": "trainweb", "threads": "1", "device": "webgpu"},
    "trainweb, webgpu, fit": {"contender": "trainweb", "threads": "1", "device": "webgpu", "loop": "fit"},
    "jax-js, webgpu": {"contender": "jax", "threads": "1", "device": "webgpu"},
}
CALLS = ("dispatchWorkgroups", "submit", "writeBuffer", "createBindGroup", "createBuffer", "mapAsync")
WARM_UP_STEPS = 2


class Turn:
    """A contender's page, and its measurements."""

    def __init__(self, browser: Browser, site: Site, model: str, query: dict[str, str]) -> None:
        self.page = ContenderPage(browser.new_context(), site, model, query)
        self.times: list[float] = []
        self.counts: dict[str, float] = {}
        self.first = self.page.evaluate("bench.marks.firstStep")
        self.page.run(WARM_UP_STEPS)

    @property
    def _threads(self) -> list[Any]:
        return [self.page.page, *self.page.page.workers]

    def count(self, steps: int) -> None:
        """Count the calls of a step."""
        for thread in self._threads:
            thread.evaluate(COUNT, COUNTED)
        taken = len(self.page.run(steps)) + (steps > 1 and "loop=fit" not in self.page.page.url)
        found = [thread.evaluate("counts") for thread in self._threads]
        self.counts = {call: sum(one.get(call, 0) for one in found) / taken for call in CALLS}


def measure(browser: Browser, site: Site, model: str, rounds: int, steps: int) -> list[str]:
    """The rows of a model's table."""
    turns: dict[str, Turn] = {}
    rows = []
    with ExitStack() as stack:
        for name, query in CONTENDERS.items():
            try:
                turns[name] = Turn(browser, site, model, query)
                stack.callback(turns[name].page.close)
            except ContenderError as error:
                rows.append(f"| {model} | {name} | {str(error)[:80]} |")
        for _ in range(rounds):
            for turn in turns.values():
                turn.times += turn.page.run(steps)
        for name, turn in turns.items():
            turn.count(steps)
            calls = " | ".join(f"{turn.counts[call]:.3g}" for call in CALLS)
            times = f"{min(turn.times):.1f} | {median(turn.times):.1f}"
            rows.append(f"| {model} | {name} | {times} | {turn.first / 1e3:.1f} | {calls} |")
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="A,C,E")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--hardware", action="store_true")
    args = parser.parse_args()
    names = args.models.split(",")
    for name in names:
        models.build(name)
    install_peers()
    flags = [*(flag for flag in FLAGS if flag != "--disable-gpu"), *(HARDWARE if args.hardware else SWIFTSHADER)]
    print(machine())
    print("| model | contender | ms, least | ms, median | first step, s |", " | ".join(CALLS), "|")
    print("|---|---|---|---|---|", "|".join(["---"] * len(CALLS)), "|", sep="")
    with sync_playwright() as playwright, open_site() as site:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=flags)
        for name in names:
            print(*measure(browser, site, name, args.rounds, args.steps), sep="\n", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
