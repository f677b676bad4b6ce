"""Time of every instruction of a training step, profiled in Chromium on one thread.

python bench/hotspots.py [--native] [--models A,E] [--runs 20] [--top 15]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import models
import pyodide_page
import step_profile
from chrome import BUILD, machine
from networks import MODELS

FILES = {
    "training_model": "training_model.onnx",
    "optimizer_model": "optimizer_model.onnx",
    "checkpoint": "checkpoint",
    "data": "data.bin",
}


def profile(built: models.Built, runs: int, native: bool) -> dict[str, Any]:
    """Profile in this process or in a fresh page."""
    files = {n: (built.folder / f).read_bytes() for n, f in FILES.items()}
    if native:
        return step_profile.measure(files, built.manifest, runs)
    return dict(pyodide_page.call("step_profile", "measure", files, [built.manifest, runs])[0])


def report(built: models.Built, found: dict[str, Any], top: int) -> None:
    """Print the sums by kernel and the instructions that take longest."""
    rows = [(kind, *row) for kind in ("train", "optimizer") for row in found[kind]]
    total = sum(ms for *_, ms in rows)
    print(
        f"\n### {built.name}: {len(rows)} instructions, {total:.2f} ms; a step by the clock {found['total']:.2f} ms; "
        f"{found['build']}, {found['in_use'] / 2**20:.1f} MiB of kernel memory\n"
    )
    kernels: dict[str, list[float]] = defaultdict(list)
    for _, text, _, ms in rows:
        kernels[text.split("(")[0].split()[0]].append(ms)
    for name, times in sorted(kernels.items(), key=lambda kv: -sum(kv[1])):
        print(f"  {sum(times):8.3f} ms {100 * sum(times) / total:5.1f} %  {len(times):4} x {name}")
    print()
    for kind, text, node, ms in sorted(rows, key=lambda row: -row[3])[:top]:
        print(f"  {ms:8.3f} ms {100 * ms / total:5.1f} %  {kind:9} {text[:150]}  [{node[:60]}]")


def main() -> int:
    """Profile what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--native", action="store_true", help="in wasmtime, not in Chromium")
    parser.add_argument("--runs", type=int, default=20, help="the fastest of so many")
    parser.add_argument("--top", type=int, default=15, help="instructions listed")
    parser.add_argument("--out", type=Path, default=BUILD / "results" / "hotspots.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name in options.models.split(","):
        built = models.build(name)
        found = profile(built, options.runs, options.native)
        results[name] = found
        report(built, found, options.top)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
