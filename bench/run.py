"""Milliseconds of a training step, of trainweb and its peers, interleaved in one Chromium.

    python bench/run.py --quick
    python bench/run.py [--models A,B,C,D,Dn,E,F] [--contenders trainweb,ort,...] [--rounds 7] [--block 0.7]

A step is runTrainStep + runOptimizerStep + lazyResetGrad. It starts from the host's batch, and ends when the loss is a
number in JavaScript and the parameters are updated. Contenders take turns, in blocks of about `--block` seconds, in
reverse order every other round. Tables go to the terminal and, with everything measured, to .build/bench/results.

TRAINWEB_ORT_PYTHON and TRAINWEB_TORCH_PYTHON name interpreters with onnxruntime-training and PyTorch, for the native
contenders; those without an interpreter are left out, with a word.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import models
import quiet
from chrome import (
    BUILD,
    ContenderError,
    ContenderPage,
    build_peak,
    install_peers,
    machine,
    open_browser,
    open_site,
)
from contenders import DEFAULT, QUICK, REFERENCE, Contender, select
from networks import MODELS
from playwright.sync_api import Browser
from playwright.sync_api import Error as PlaywrightError
from tables import print_model
from tests.browser.server import Site

QUICK_MODELS = ("A", "C", "E", "Z")
RESULTS = BUILD / "results"
WARM_UP_STEPS = 8
SLOW_STEP_MS, SLOW_ROUNDS = 400.0, 3
"""Steps beyond that come one a block, in so many rounds."""
PARTS_STEPS = 15
PEAK = Contender("peak", "hardware", 1, {"contender": "peak"})

Result = dict[str, Any]


class Turn:
    """One contender's page and its measurements of one model."""

    def __init__(self, contender: Contender, page: ContenderPage) -> None:
        self.contender, self.page = contender, page
        self.times: list[float] = []
        self.blocks: list[float] = []
        self.steps, self.slow, self.quiet = 1, False, 0
        self.error: str | None = None

    def warm_up(self, block_s: float) -> None:
        """Reach the steady state and choose the length of a block."""
        each = min(self._run(1 if self._slow_already() else WARM_UP_STEPS))
        self.slow = each > SLOW_STEP_MS
        self.steps = 1 if self.slow else max(3, min(2000, round(1e3 * block_s / max(each, 0.01))))
        if not self.slow:
            self._run(min(self.steps, 200))

    def _slow_already(self) -> bool:
        return bool(self.page.evaluate("bench.marks.firstStep - bench.marks.created") > 4 * SLOW_STEP_MS)

    def _run(self, n: int) -> list[float]:
        return self.page.run(n)

    def block(self, number: int, patience_s: float) -> None:
        """Measure one block."""
        if self.error is not None or (self.slow and number >= SLOW_ROUNDS):
            return
        self.quiet += quiet.wait(patience_s)
        try:
            times = self._run(self.steps)
        except PlaywrightError as error:
            self.error = error.message
            return
        self.times += times
        self.blocks.append(sum(times) / len(times))

    def result(self) -> Result:
        """What was measured; losses belong to the first steps."""
        found: Result = {
            "contender": self.contender.name,
            "label": self.contender.label,
            "threads": self.contender.threads,
        }
        if self.error is not None or not self.times:
            return {**found, "error": self.error or "nothing measured"}
        count = self.page.evaluate("bench.losses.length")
        if count < WARM_UP_STEPS:
            self._run(WARM_UP_STEPS - count)
        parts = None if self.slow else self.page.evaluate(f"bench.parts({PARTS_STEPS})")
        return {
            **found,
            "min": min(self.times),
            "median": median(self.times),
            "blocks": self.blocks,
            "quiet": self.quiet,
            "n": len(self.times),
            "parts": parts,
            "losses": self.page.evaluate("bench.losses"),
            "memory": self.page.evaluate("bench.memory()"),
            "info": self.page.evaluate("bench.info"),
            "marks": self.page.evaluate("bench.marks"),
            "log": self.page.log[:5],
        }


def measure_pages(
    browser: Browser,
    site: Site,
    model: str,
    contenders: list[Contender],
    rounds: int,
    block_s: float,
    patience_s: float,
) -> tuple[list[Result], dict[str, float]]:
    """All contenders that run in the page, and what one thread of the hardware reaches among them.

    Returns
    -------
    list of Result
    dict
        "peak_gflops" of registers; "update_ms" that the traffic of an optimizer step takes.
    """
    turns: list[Turn] = []
    failed: list[Result] = []
    for contender in [PEAK, *contenders]:
        context = browser.new_context()
        try:
            turns.append(Turn(contender, ContenderPage(context, site, model, contender.query)))
        except (ContenderError, PlaywrightError) as error:
            failed.append(
                {
                    "contender": contender.name,
                    "label": contender.label,
                    "threads": contender.threads,
                    "error": str(error),
                }
            )
            context.close()
    for turn in turns:
        turn.warm_up(block_s if turn.contender is not PEAK else block_s / 4)
    for number in range(rounds):
        for turn in reversed(turns) if number % 2 else turns:
            turn.block(number, patience_s)
    results = [turn.result() for turn in turns]
    for turn in turns:
        turn.page.close()
    peak = next(r for r in results if r["contender"] == PEAK.name)
    limits = {
        "peak_gflops": peak["info"]["flops"] / peak["min"] / 1e6,
        "update_ms": peak["info"]["updateMs"],
    }
    return [r for r in results if r is not peak] + failed, limits


def measure_native(contender: Contender, folder: Path, seconds: float) -> Result:
    """One native contender, in a separate process."""
    found: Result = {"contender": contender.name, "label": contender.label, "threads": contender.threads}
    python = contender.interpreter()
    assert python is not None
    command = [python, contender.program, str(folder), str(contender.threads), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {**found, "error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {**found, **json.loads(done.stdout.splitlines()[-1])}


def runnable(contenders: list[Contender]) -> list[Contender]:
    """Those with an interpreter; says which have none."""
    kept = []
    for c in contenders:
        if c.program and c.interpreter() is None:
            print(f"{c.name} is left out: {c.python} names no interpreter")
        else:
            kept.append(c)
    return kept


def measure_model(
    browser: Browser, site: Site, name: str, contenders: list[Contender], rounds: int, block_s: float, patience_s: float
) -> Result:
    """Every contender on one model."""
    built = models.build(name)
    chosen = [c for c in contenders if c.runs(name)]
    load = machine()["load"]
    results, limits = measure_pages(
        browser, site, name, [c for c in chosen if not c.program], rounds, block_s, patience_s
    )
    results += [measure_native(c, built.folder, rounds * block_s / 2) for c in chosen if c.program]
    return {
        "model": name,
        "flops": built.manifest["flops"],
        "n_params": built.manifest["n_params"],
        **limits,
        "load": load,
        "results": results,
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="A, C, E and Z; trainweb and onnxruntime-web; under 3 minutes"
    )
    parser.add_argument("--models", help=f"of {','.join(MODELS)}")
    parser.add_argument("--contenders", help=f"of {','.join(DEFAULT)}")
    parser.add_argument("--rounds", type=int, help="blocks of each contender (7; 5 with --quick)")
    parser.add_argument("--block", type=float, help="seconds of a block (0.7; 0.5 with --quick)")
    parser.add_argument(
        "--patience",
        type=float,
        help="seconds to wait before a block for other processes to rest (3; 0.5 with --quick)",
    )
    parser.add_argument("--out", type=Path, help="JSON file; default: .build/bench/results/steps-DATE.json")
    options = parser.parse_args()
    options.models = options.models.split(",") if options.models else list(QUICK_MODELS if options.quick else MODELS)
    unknown = [m for m in options.models if m not in MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    options.rounds = options.rounds or (5 if options.quick else 7)
    options.block = options.block or (0.5 if options.quick else 0.7)
    if options.patience is None:
        options.patience = 0.5 if options.quick else 3.0
    return options


def main() -> int:
    """Measure, print, save. Exit status 1 when trainweb failed or its losses are not its reference's."""
    options = parse()
    contenders = runnable(select(options.contenders, QUICK if options.quick else DEFAULT))
    install_peers()
    build_peak()
    now = datetime.datetime.now(datetime.UTC)
    report: Result = {"date": now.isoformat(timespec="seconds"), "machine": machine(), "models": []}
    out = options.out or RESULTS / f"steps-{now:%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    good = True
    with open_browser() as browser, open_site() as site:
        report["machine"]["chromium"] = browser.version
        for name in options.models:
            found = measure_model(browser, site, name, contenders, options.rounds, options.block, options.patience)
            report["models"].append(found)
            good &= print_model(found, REFERENCE)
            out.write_text(json.dumps(report, indent=1))
    print(f"\n{out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
