"""How cost grows: step and compile time against batch, width, depth and nodes; memory; 10,000 steps in the same memory.

    python bench/scaling.py [--native] [--only steps,memory,flat,budget] [--models A,B,...] [--steps 10000]

Step times cover only the plans (one thread, no messages between page and worker). The charts go to
docs/images/scaling.svg with `--plot`.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import models
import pyodide_page
import scale_steps
from chrome import BUILD, ROOT, ContenderPage, install_peers, machine, open_browser, open_site
from contenders import CONTENDERS
from networks import MODELS, Network, chain, mlp
from plot import charts

PARTS = ("steps", "memory", "flat", "budget")
BATCHES = (1, 4, 16, 64, 256, 1024)
WIDTHS = (16, 64, 128, 256, 512, 1024)
DEPTHS = (2, 4, 8, 16, 32, 64)
NODES = (50, 100, 200, 400, 800, 1600)
DEEP_WIDTH = 64
BYTES_PER_MIB = 2**20
FLAT_SAMPLES = 10
FLAT_START = 100
"""Steps after which memory must stay what it is."""
BUDGET_MODELS, BUDGET_SHARE, BUDGET_ROUNDS, BUDGET_STEPS = ("E", "D"), 0.5, 8, 5
HEAP_GROWTH = 1.1
"""JavaScript's heap after a collection varies by some kilobytes; a leak of 100 bytes a step would add half to it."""

SWEEPS: dict[str, tuple[tuple[int, ...], Any]] = {
    "batch": (BATCHES, lambda n: mlp(f"batch{n}", [784, 256, 128, 10], n, 1)),
    "width": (WIDTHS, lambda n: mlp(f"width{n}", [n, n, n, 10], 64, 1)),
    "depth": (DEPTHS, lambda n: mlp(f"depth{n}", [DEEP_WIDTH] * n + [10], 64, 1)),
    "nodes": (NODES, lambda n: chain(f"nodes{n}", n, 7)),
}


def sweep(name: str, native: bool) -> list[dict[str, Any]]:
    """Measure one sweep."""
    sizes, make = SWEEPS[name]
    nets: list[Network] = [make(n) for n in sizes]
    files = {net.name: net.model().SerializeToString() for net in nets}
    points = [{"name": net.name, "feeds": {"x": ("float32", net.description["xshape"])}} for net in nets]
    if native:
        found = scale_steps.measure(files, points)
    else:
        found = pyodide_page.call("scale_steps", "measure", files, [points])[0]
    return [{"size": n, "flops": net.flops, **f} for n, net, f in zip(sizes, nets, found, strict=True)]


def report_sweep(name: str, rows: list[dict[str, Any]]) -> None:
    """Print one sweep."""
    print(f"\n### {name}\n")
    print(
        f"| {name} | MFLOP | train ms | optimizer ms | GFLOP/s | instructions | us an instruction | compile ms "
        "| compile ms a node | arena MiB |"
    )
    print("|---|" + "---|" * 9)
    for r in rows:
        print(
            f"| {r['size']} | {r['flops'] / 1e6:.2f} | {r['train']:.4f} | {r['optimizer']:.4f} "
            f"| {r['flops'] / r['train'] / 1e6:.1f} | {r['instructions']} "
            f"| {1e3 * (r['train'] + r['optimizer']) / r['instructions']:.2f} | {r['compile']:.0f} "
            f"| {r['compile'] / r['nodes']:.2f} | {r['arena'] / BYTES_PER_MIB:.2f} |"
        )


def draw(found: dict[str, list[dict[str, Any]]]) -> str:
    """The charts of docs/performance-notes.md."""

    def series(name: str, key: str) -> list[tuple[float, float]]:
        return [(r["size"], r[key]) for r in found[name]]

    return charts(
        [
            ("Batch (784-256-128-10)", "rows", "ms", {"train step": series("batch", "train")}),
            (
                "Width (three layers, batch 64)",
                "units",
                "ms",
                {"train step": series("width", "train"), "optimizer": series("width", "optimizer")},
            ),
            (
                f"Depth (layers of {DEEP_WIDTH}, batch 64)",
                "layers",
                "ms",
                {"train step": series("depth", "train"), "compile": series("depth", "compile")},
            ),
            (
                "Nodes (tiny ones)",
                "nodes of the forward model",
                "ms",
                {"train step": series("nodes", "train"), "compile": series("nodes", "compile")},
            ),
        ]
    )


def memory(names: list[str]) -> dict[str, dict[str, float]]:
    """MiB after a few steps: allocated by trainweb's kernels, size of their memory, size of onnxruntime-web's."""
    result = {}
    print(
        "\n### Memory\n\n"
        "| model | trainweb in use MiB | trainweb memory MiB | onnxruntime-web memory MiB |\n|---|---|---|---|"
    )
    with open_browser() as browser, open_site() as site:
        for name in names:
            models.build(name)
            sizes = {}
            for who in ("trainweb", "ort"):
                page = ContenderPage(browser.new_context(), site, name, CONTENDERS[who].query)
                page.run(5)
                sizes[who] = page.evaluate("bench.memory()")
                page.close()
            row = {
                "in_use": sizes["trainweb"]["inUse"] / BYTES_PER_MIB,
                "memory": sizes["trainweb"]["total"] / BYTES_PER_MIB,
                "ort": sizes["ort"]["total"] / BYTES_PER_MIB,
            }
            result[name] = row
            print(f"| {name} | {row['in_use']:.1f} | {row['memory']:.1f} | {row['ort']:.1f} |", flush=True)
    return result


def flat(steps: int) -> tuple[list[dict[str, float]], bool]:
    """Memory along a training of model A, and whether it stayed what it was after FLAT_START steps."""
    rows = []
    stops = [FLAT_START, *(steps * k // FLAT_SAMPLES for k in range(1, FLAT_SAMPLES + 1))]
    models.build("A")
    with open_browser() as browser, open_site() as site:
        page = ContenderPage(browser.new_context(), site, "A", CONTENDERS["trainweb"].query)
        session = page.context.new_cdp_session(page.page)
        for before, stop in zip([0, *stops], stops, strict=False):
            page.run(stop - before)
            session.send("HeapProfiler.collectGarbage")
            heap = session.send("Runtime.getHeapUsage")["usedSize"]
            rows.append({**page.evaluate("bench.memory()"), "heap": heap, "steps": stop})
        page.close()
    print(
        f"\n### {steps} steps of A\n\n"
        "| steps | kernels in use | kernels' memory | heap of the page |\n|---|---|---|---|"
    )
    for row in rows:
        print(f"| {row['steps']} | {row['inUse']} | {row['total']} | {row['heap']} |")
    same = all(row[key] == rows[0][key] for row in rows for key in ("inUse", "total"))
    same = same and rows[-1]["heap"] <= HEAP_GROWTH * rows[1]["heap"]
    print("\nflat" if same else "\nNOT FLAT")
    return rows, same


def budget() -> dict[str, dict[str, float]]:
    """Steps with half the workspace and with all of it, in turns: MiB and the fastest step of each."""
    result = {}
    print(
        "\n### Half the workspace\n\n| model | workspace MiB | with budget MiB | ms a step | with budget ms | ratio "
        "| estimated | instructions again |\n|---|---|---|---|---|---|---|---|"
    )
    with open_browser() as browser, open_site() as site:
        for name in BUDGET_MODELS:
            models.build(name)
            query = CONTENDERS["trainweb"].query
            pages = [ContenderPage(browser.new_context(), site, name, query)]
            allowed = int(BUDGET_SHARE * pages[0].evaluate("bench.contender.session.memory()")["arena"])
            pages.append(ContenderPage(browser.new_context(), site, name, {**query, "budget": str(allowed)}))
            times: list[list[float]] = [[], []]
            for k in range(BUDGET_ROUNDS):
                for which in (0, 1) if k % 2 else (1, 0):
                    times[which] += pages[which].run(BUDGET_STEPS)
            full, small = (page.evaluate("bench.contender.session.memory()") for page in pages)
            losses = [page.evaluate("bench.losses") for page in pages]
            if losses[0] != losses[1]:
                raise SystemExit(f"{name}: other results with a budget: {losses}")
            for page in pages:
                page.close()
            row = result[name] = {
                "full": full["arena"] / BYTES_PER_MIB,
                "small": small["arena"] / BYTES_PER_MIB,
                "full_ms": min(times[0]),
                "small_ms": min(times[1]),
                "estimated": 1 + small["recomputedShare"],
                "again": small["recomputedInstructions"],
            }
            print(
                f"| {name} | {row['full']:.1f} | {row['small']:.1f} | {row['full_ms']:.2f} | {row['small_ms']:.2f} "
                f"| {row['small_ms'] / row['full_ms']:.2f} | {row['estimated']:.2f} | {row['again']} |",
                flush=True,
            )
    return result


def main() -> int:
    """Measure, print, save. Exit status 1 when memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--native", action="store_true", help="sweeps in wasmtime, not in Chromium")
    parser.add_argument("--models", default=",".join(MODELS), help="whose memory is measured")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--plot", action="store_true", help="write docs/images/scaling.svg")
    options = parser.parse_args()
    wanted = options.only.split(",")
    same = True
    if "steps" in wanted:
        found = {name: sweep(name, options.native) for name in SWEEPS}
        for name, rows in found.items():
            report_sweep(name, rows)
        if options.plot:
            (ROOT / "docs" / "images" / "scaling.svg").write_text(draw(found))
        save("scaling", {"steps": found})
    if {"memory", "flat", "budget"} & set(wanted):
        install_peers()
        kept: dict[str, Any] = {}
        if "memory" in wanted:
            kept["memory"] = memory(options.models.split(","))
        if "flat" in wanted:
            kept["flat"], same = flat(options.steps)
            kept["flat_steps"] = options.steps
        if "budget" in wanted:
            kept["budget"] = budget()
        save("memory", kept)
    return 0 if same else 1


def save(name: str, found: dict[str, Any]) -> None:
    """Write results to .build/bench/results/NAME.json."""
    path = BUILD / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **found}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
