"""Put the latest results into docs/performance*.md: each block between `<!-- NAME -->` and `<!-- /NAME -->`.

    python bench/document.py [--steps .build/bench/results/steps-....json ...]

Several files of steps are taken together: for each model and contender the run with the lowest median.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from chrome import BUILD, ROOT
from contenders import CONTENDERS, REFERENCE
from tables import startup_times

RESULTS = BUILD / "results"
PAGES = sorted((ROOT / "docs").glob("performance*.md"))
BARS = {"A": 2.0, "B": 1.75, "C": 2.5, "D": 2.2, "Dn": 2.2, "E": 1.8, "F": 2.5, "R": 2.0, "G": 2.0, "Z": 0.67}
"""How many times faster than onnxruntime-web with as many threads trainweb is to be."""
SHOWN_SHARE = 0.02
OURS = {1: "trainweb", 2: "trainweb-t2"}

Result = dict[str, Any]


def merge(files: list[Path]) -> tuple[dict[str, Result], list[Result]]:
    """Models with their results by contender; the machines and dates of the runs."""
    found: dict[str, Result] = {}
    runs = []
    for path in files:
        report = json.loads(path.read_text())
        runs.append({"date": report["date"], **report["machine"], "loads": [m["load"][0] for m in report["models"]]})
        for model in report["models"]:
            known = found.setdefault(model["model"], {"flops": model["flops"], "peak": 0.0, "by": {}, "runs": []})
            known["peak"] = max(known["peak"], model["peak_gflops"])
            known["update"] = min(known.get("update", 1e18), model["update_ms"])
            known["runs"].append({r["contender"]: r for r in model["results"] if "error" not in r})
            for r in model["results"]:
                best = known["by"].get(r["contender"])
                if best is None or r.get("median", 1e18) < best.get("median", 1e18):
                    known["by"][r["contender"]] = r
    return found, runs


def cell(r: Result | None) -> str:
    """min / median, in ms."""
    if r is None:
        return "-"
    if "error" in r:
        return "fails"
    return f"{r['min']:.2f} / {r['median']:.2f}"


def steps_block(found: dict[str, Result], runs: list[Result]) -> str:
    """Milliseconds of every contender on every model, and who took part when."""
    names = [n for n in CONTENDERS if any(n in m["by"] for m in found.values())]
    lines = [f"| ms a step, min / median | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in names:
        cells = [cell(m["by"].get(name)) for m in found.values()]
        lines.append(f"| {CONTENDERS[name].label} | {' | '.join(cells)} |")
    lines += [
        f"\n{run['date'][:10]}, commit {run['commit']}, Chromium {run['chromium']}, {run['cores']} cores of "
        f"{run['cpu']}; load average {min(run['loads']):.1f} to {max(run['loads']):.1f} on the way."
        for run in runs
    ]
    return "\n".join(lines)


def ratios_block(found: dict[str, Result]) -> str:
    """Against onnxruntime-web, with the bars; the shares of the highest peak and of the limit."""
    peak = max(m["peak"] for m in found.values())
    lines = [
        "| model | bar | 1 thread: min | median | of peak | of the limit | 2 threads: min | median | of peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, model in found.items():
        cells = []
        for threads, ours_name in OURS.items():
            # A ratio is of one run: that in which the pair was least disturbed.
            pairs = [
                (run[ours_name], run[REFERENCE[threads]])
                for run in model["runs"]
                if {ours_name, REFERENCE[threads]} <= set(run)
            ]
            if not pairs:
                cells += ["-"] * (4 if threads == 1 else 3)
                continue
            ours, theirs = min(pairs, key=lambda pair: pair[0]["min"] + pair[1]["min"])
            products = model["flops"] / 1e6 / peak
            shares = [products / ours["min"] / threads]
            if threads == 1:
                shares.append((products + model["update"]) / ours["min"])
            faster = [theirs[k] / ours[k] for k in ("min", "median")]
            cells += [f"**{f:.2f}x**" if f >= BARS[name] else f"{f:.2f}x" for f in faster]
            cells += [f"{100 * share:.0f} %" for share in shares]
        lines.append(f"| {name} | {BARS[name]:g}x | {' | '.join(cells)} |")
    return "\n".join([*lines, f"\nMeasured peak: {peak:.1f} GFLOP/s a core. Bold: at or above the bar."])


def losses_block(found: dict[str, Result]) -> str:
    """Largest relative difference of the first 8 losses to onnxruntime-web's."""
    names = [n for n in CONTENDERS if any(m["by"].get(n, {}).get("losses") for m in found.values())]
    lines = [f"| largest difference | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in names:
        cells = []
        for model in found.values():
            ours, theirs = (model["by"].get(n, {}).get("losses") for n in (name, REFERENCE[1]))
            if not ours or not theirs:
                cells.append("-")
                continue
            worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=False))
            cells.append(f"{worst:.0e}")
        lines.append(f"| {CONTENDERS[name].label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def startup_block(data: Result) -> str:
    """Cold and warm times and bytes."""
    lines = [
        "| model | contender | cold ms, min / median | of it from create | warm ms | of it from create "
        "| cold MB, no weights or data | gzipped | warm MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, results in data.items():
        if model == "machine":
            continue
        for name in CONTENDERS:
            r = results.get(name)
            if r is None:
                continue
            if "error" in r:
                lines.append(f"| {model} | {CONTENDERS[name].label} | fails | | | | | | |")
                continue
            cold, warm = r["cold"], r["warm"]
            lines.append(
                f"| {model} | {CONTENDERS[name].label} | {startup_times(cold)} "
                f"| {startup_times(warm)} | {cold['code_bytes'] / 1e6:.2f} "
                f"| {cold['code_gzip'] / 1e6:.2f} | {warm['code_bytes'] / 1e6:.2f} |"
            )
    return "\n".join([*lines, _noise(data)])


def compile_block(data: Result) -> str:
    """Compile time by model and place."""
    lines = [
        "| model | where | nodes, forward / training | cold ms | warm ms | cold ms a node | slowest stages, cold ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, places in data.items():
        if model == "machine":
            continue
        for where, r in places.items():
            cold, warm = r["cold"], r["warm"]
            slowest = sorted(cold["stages"].items(), key=lambda kv: -kv[1])[:3]
            lines.append(
                f"| {model} | {where} | {cold['nodes']} / {cold['training_nodes']} | {cold['total']:.0f} "
                f"| {warm['total']:.0f} | {cold['total'] / cold['training_nodes']:.2f} "
                f"| {', '.join(f'{name} {ms:.0f}' for name, ms in slowest)} |"
            )
    lines += [
        "",
        "| model | where | checking | building | passes | planning | first step in a page, cold ms | warm ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, places in data.items():
        for where, r in places.items() if model != "machine" else ():
            times = [f"{r['per_node'][what]:.2f}" for what in ("checking", "building", "passes", "planning")]
            steps = [f"{ms['first_step']:.0f}" for ms in r.get("first_step", {}).values()] or ["-", "-"]
            lines.append(f"| {' | '.join([model, where, *times, *steps])} |")
    return "\n".join([*lines, _noise(data)])


def memory_block(data: Result) -> str:
    """Memory beside onnxruntime-web's, and along many steps."""
    lines = [
        "| model | trainweb, allocated MiB | trainweb, memory MiB | onnxruntime-web, memory MiB |",
        "|---|---|---|---|",
    ]
    for model, row in data.get("memory", {}).items():
        lines.append(f"| {model} | {row['in_use']:.1f} | {row['memory']:.1f} | {row['ort']:.1f} |")
    rows = data.get("flat", [])
    if rows:
        sizes = [sorted({row[key] for row in rows}) for key in ("inUse", "total", "heap")]
        lines.append(
            f"\nFrom step {rows[0]['steps']} to step {data['flat_steps']} of A the kernels held "
            f"{_span(sizes[0])} bytes of {_span(sizes[1])}, and the page's heap after a collection {_span(sizes[2])}."
        )
    if data.get("budget"):
        lines += [
            "\nWith `memoryBudget` at half the workspace, in turns with steps that have all of it:\n",
            "| model | workspace MiB | with budget | ms a step | with budget | ratio | estimated | run again |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for model, row in data.get("budget", {}).items():
        lines.append(
            f"| {model} | {row['full']:.1f} | {row['small']:.1f} | {row['full_ms']:.2f} | {row['small_ms']:.2f} "
            f"| {row['small_ms'] / row['full_ms']:.2f}x | {row['estimated']:.2f}x | {row['again']} |"
        )
    return "\n".join(lines)


def scaling_block(data: Result) -> str:
    """The cost of an instruction itself, from the models of tiny nodes."""
    rows = data.get("steps", {}).get("nodes", [])
    lines = ["| nodes | instructions | us an instruction | compile ms a training node |", "|---|---|---|---|"]
    for r in rows:
        each = 1e3 * (r["train"] + r["optimizer"]) / r["instructions"]
        lines.append(f"| {r['size']} | {r['instructions']} | {each:.2f} | {r['compile'] / r['nodes']:.2f} |")
    return "\n".join(lines)


def hotspots_block(data: Result) -> str:
    """Share of a step's time by kernel, the largest first."""
    lines = ["| model | ms, profiled | kernels by share of the time (calls) |", "|---|---|---|"]
    for model, found in data.items():
        if model == "machine":
            continue
        by_kernel: dict[str, list[float]] = {}
        for text, _, ms in [*found["train"], *found["optimizer"]]:
            by_kernel.setdefault(text.split("(")[0].split()[0], []).append(ms)
        total = sum(sum(times) for times in by_kernel.values())
        ordered = sorted(by_kernel.items(), key=lambda kv: -sum(kv[1]))
        shown = [(name, sum(times) / total, len(times)) for name, times in ordered if sum(times) > SHOWN_SHARE * total]
        parts = ", ".join(f"{name} {100 * share:.0f} % ({n})" for name, share, n in shown)
        lines.append(f"| {model} | {total:.2f} | {parts} |")
    return "\n".join([*lines, _noise(data)])


def _span(values: list[int]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _noise(data: Result) -> str:
    return f"\nCommit {data['machine']['commit']}, load average {data['machine']['load'][0]:.1f} at the start."


def put(name: str, block: str) -> None:
    """Replace a block in the page that has it.

    Raises
    ------
    SystemExit
        No page has such a block.
    """
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    for page in PAGES:
        text, count = marked.subn(lambda m: f"{m[1]}{block}\n{m[2]}", page.read_text())
        if count:
            page.write_text(text)
            return
    raise SystemExit(f"No page of {', '.join(page.name for page in PAGES)} has a block {name}.")


def main() -> int:
    """Rewrite each block that has results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="*", type=Path, help="default: the last file of bench/run.py")
    options = parser.parse_args()
    files = options.steps or sorted(RESULTS.glob("steps-*.json"))[-1:]
    if files:
        found, runs = merge(files)
        put("steps", steps_block(found, runs))
        put("ratios", ratios_block(found))
        put("losses", losses_block(found))
    makers = {
        "startup": startup_block,
        "compile": compile_block,
        "memory": memory_block,
        "scaling": scaling_block,
        "hotspots": hotspots_block,
    }
    for name, make in makers.items():
        path = RESULTS / f"{name}.json"
        if path.is_file():
            put(name, make(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
