"""Compile time by stage, natively and in Chromium: from base.onnx to a session ready for its first step.

    python bench/compile.py --native [--profile] [--models E,chain800]
    python bench/compile.py            natively and in Pyodide

Models: A, B, C, D, Dn, E, F of the other benchmarks, and chainN, a synthetic model of N tiny nodes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import pstats
import re
import sys
from pathlib import Path
from typing import Any

import compile_stages
import pyodide_page
from chrome import BUILD, machine
from networks import MODELS, Network, chain

DEFAULT_MODELS = ("E", "chain800")
PROFILED_FUNCTIONS = 30


def network(name: str) -> Network:
    """A model by name."""
    synthetic = re.fullmatch(r"chain(\d+)", name)
    if synthetic:
        return chain(name, int(synthetic[1]), 7)
    if name not in MODELS:
        raise SystemExit(f"no model {name}; there are {', '.join(MODELS)} and chainN")
    return MODELS[name]()


def feeds_of(net: Network) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type of the input x."""
    dtype = "int64" if net.description["xdtype"] == "int32" else "float32"
    return {"x": (dtype, tuple(net.description["xshape"]))}


def in_pyodide(net: Network, repeat: int) -> dict[str, Any]:
    """Measure in a fresh page, on its main thread."""
    model = net.model().SerializeToString()
    found, boot = pyodide_page.call("compile_stages", "measure", {"model": model}, [feeds_of(net), repeat])
    return {**found, "boot": boot}


def natively(net: Network, repeat: int) -> dict[str, Any]:
    """Measure in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        files = {"model": net.model().SerializeToString()}
        return pool.apply(compile_stages.measure, (files, feeds_of(net), repeat))


def report(where: str, name: str, found: dict[str, Any]) -> None:
    """Print one measurement."""
    warm, cold = found["warm"], found["cold"]
    boot = f"boot {found['boot']:.0f} ms, " if "boot" in found else ""
    print(
        f"\n{where} {name}: {warm['nodes']} nodes, {warm['training_nodes']} in the training model, "
        f"{warm['instructions']} instructions"
    )
    print(
        f"  {boot}import {found['import']:.0f} ms, engine {found['engine']:.0f} ms; "
        f"cold {cold['total']:.0f} ms, warm {warm['total']:.0f} ms"
    )
    per_node = {k: v / warm["training_nodes"] for k, v in (("cold", cold["total"]), ("warm", warm["total"]))}
    print(f"  a node of the training model: cold {per_node['cold']:.3f} ms, warm {per_node['warm']:.3f} ms")
    print(f"  {'stage':20}{'cold ms':>9}{'warm ms':>9}{'warm us a node':>16}")
    for stage in [s for s in compile_stages.order() if s in warm["stages"]]:
        c, w = cold["stages"].get(stage, 0.0), warm["stages"][stage]
        print(f"  {stage:20}{c:9.1f}{w:9.1f}{1e3 * w / warm['training_nodes']:16.1f}")
    for where_gone in warm["gone"]:
        print(f"  {where_gone} is gone; its time is in the stage around it")


def profile(net: Network) -> None:
    """Hot functions of one warm compilation."""
    model, feeds = net.model().SerializeToString(), feeds_of(net)
    compile_stages.once(model, feeds)
    profiler = cProfile.Profile()
    watch = compile_stages.Stopwatch()
    core = profiler.runcall(compile_stages.open_session, watch, model, feeds)
    core.release()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler).sort_stats(order).print_stats(PROFILED_FUNCTIONS)


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS))
    parser.add_argument("--native", action="store_true", help="not in the browser")
    parser.add_argument("--profile", action="store_true", help="print the hot functions of a native compilation")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=BUILD / "results" / "compile.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name in options.models.split(","):
        net = network(name)
        if options.profile:
            profile(net)
            continue
        found = natively(net, options.repeat)
        report("native", name, found)
        results[name] = {"native": found}
        if not options.native:
            found = in_pyodide(net, options.repeat)
            report("Chromium", name, found)
            results[name]["chromium"] = found
    if not options.profile:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
