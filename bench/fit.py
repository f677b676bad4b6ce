"""The cost of `fit` beside bare steps and onnxruntime-web, in one Chromium, in blocks that take turns.

    python bench/fit.py [--models L,M,Z,A,B,C,D,Dn,E,F] [--rounds 15] [--block 0.3] [--plain]

A block's time is the time of its steps divided by their number. `fit` has no single steps, and the fastest of many
single steps is less than their mean. The time of `fit` is the time of its epochs; its one-time cost (the data goes to
the worker) is reported separately. Bare steps are `runTrainSteps`, and `runTrainStep` + `runOptimizerStep` +
`lazyResetGrad`. `--plain` has pages without cross-origin isolation, whose memory the worker does not share. The exit
status is 1 when a bar is missed. `fit` may add less than 3 % to the faster of the bare loops, and take at most half of
onnxruntime-web's time with M. Single steps of Z take at most 1.5 times as long as onnxruntime-web's. With L, whose
feeds are large beside its work, `runTrainSteps` takes no more than onnxruntime-web.
"""

from __future__ import annotations

import argparse
from statistics import median

import models
import quiet
from chrome import ContenderPage, install_peers, open_browser, open_site
from contenders import CONTENDERS
from networks import MODELS

LOOPS = ("trainweb", "trainweb-steps", "trainweb-fit", "ort")
MOST_ADDED = 1.03
BARS_OF_ORT = {"M": ("trainweb-fit", 0.5), "L": ("trainweb-steps", 1.0), "Z": ("trainweb", 1.5)}
"""By model: a loop, and the share of onnxruntime-web's time that it may take."""
WARM_UP_STEPS, MOST_STEPS = 2, 20_000


def steps_in(page: ContenderPage, seconds: float) -> int:
    """Steps that take about so long."""
    count, taken = WARM_UP_STEPS, 0.0
    while taken < 250 * seconds and count < MOST_STEPS:
        count *= 4
        taken = sum(page.run(count))
    return max(1, min(MOST_STEPS, round(count * 1e3 * seconds / taken)))


def measure(model: str, rounds: int, block_s: float, *, isolated: bool) -> dict[str, list[float]]:
    """Milliseconds of a step in each round, by loop."""
    models.build(model)
    with open_browser() as browser, open_site(isolated=isolated) as site:
        pages = {name: ContenderPage(browser.new_context(), site, model, CONTENDERS[name].query) for name in LOOPS}
        counts = {name: steps_in(page, block_s) for name, page in pages.items()}
        times: dict[str, list[float]] = {name: [] for name in LOOPS}
        for number in range(rounds):
            for name in reversed(LOOPS) if number % 2 else LOOPS:
                quiet.wait(1)
                found = pages[name].run(counts[name])
                times[name].append(sum(found) / len(found))
        once: float = pages["trainweb-fit"].evaluate("bench.once")
    print(f"{model}: beside its epochs a fit takes {once:.1f} ms once")
    return times


def report(model: str, times: dict[str, list[float]]) -> bool:
    """Print; whether the bars are reached."""
    fastest = {name: min(values) for name, values in times.items()}
    fit = times["trainweb-fit"]
    bare = [min(pair) for pair in zip(times["trainweb"], times["trainweb-steps"], strict=True)]
    added = min(fit) / min(bare)
    paired = median(f / b for f, b in zip(fit, bare, strict=True))
    print(f"{model}: " + ", ".join(f"{name} {value:.4f}" for name, value in fastest.items()) + " ms a step")
    print(f"    fit / bare steps: fastest blocks {added:.3f}, median of rounds {paired:.3f}; the bar is {MOST_ADDED}")
    shares = {name: fastest[name] / fastest["ort"] for name in LOOPS if name != "ort"}
    for name, share in shares.items():
        middle = median(one / ort for one, ort in zip(times[name], times["ort"], strict=True))
        print(f"    {name} / onnxruntime-web: fastest blocks {share:.3f}, median of rounds {middle:.3f}")
    bars = BARS_OF_ORT.get(model)
    return added <= MOST_ADDED if bars is None else shares[bars[0]] <= bars[1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="L,M,Z,A,B,C,D,Dn,E,F", help=f"of {','.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each loop (15)")
    parser.add_argument("--block", type=float, default=0.3, help="seconds of a block (0.3)")
    parser.add_argument("--plain", action="store_true", help="without cross-origin isolation")
    options = parser.parse_args()
    install_peers()
    reached = []
    for model in options.models.split(","):
        times = measure(model, options.rounds, options.block, isolated=not options.plain)
        reached.append(report(model, times))
    return int(not all(reached))


if __name__ == "__main__":
    raise SystemExit(main())
