"""Compile time by stage, natively and in Chromium: from base.onnx to a session ready for its first step.

    python bench/compile.py --native [--profile] [--models E,chain800]
    python bench/compile.py            natively and in Pyodide
    python bench/compile.py --models chain800 --exported --onnx FILE

Models: A, B, C, D, Dn, E, F of the other benchmarks; chainN, a synthetic model of N tiny nodes; swin_tiny and
mobilenet_v2 where PyTorch is there (--exported); any forward .onnx file whose output are logits (--onnx).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compile_stages
import first_step
import onnx
import pyodide_page
from chrome import BUILD, HERE, machine
from networks import MODELS, Network, chain

DEFAULT_MODELS = ("E", "chain800")
PROFILED_FUNCTIONS = 30


@dataclass(frozen=True, slots=True)
class Job:
    """A forward model to compile: the file as "model", its external data by location, and the types of its inputs."""

    files: dict[str, bytes]
    feeds: dict[str, tuple[str, tuple[int, ...]]]


def network(name: str) -> Network:
    """A model by name."""
    synthetic = re.fullmatch(r"chain(\d+)", name)
    if synthetic:
        return chain(name, int(synthetic[1]), 7)
    if name not in MODELS:
        raise SystemExit(f"no model {name}; there are {', '.join(MODELS)} and chainN")
    return MODELS[name]()


def generated(name: str) -> Job:
    """The job of a generated model."""
    net = network(name)
    dtype = "int64" if net.description["xdtype"] == "int32" else "float32"
    return Job({"model": net.model().SerializeToString()}, {"x": (dtype, tuple(net.description["xshape"]))})


def from_file(path: Path) -> Job:
    """The job of any .onnx file; its external data lie beside it, and sizes that it does not say are 1."""
    proto = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name not in constants:
            t = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type).name
            feeds[value.name] = dtype, tuple(dim.dim_value or 1 for dim in t.shape.dim)
    names = {e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"}
    external = {name: (path.parent / name).read_bytes() for name in sorted(names)}
    return Job({"model": path.read_bytes(), **external}, feeds)


def exported() -> dict[str, Job]:
    """The models of export_models.py; none, with the reason printed, where there is no PyTorch."""
    python = Path(os.environ.get("TRAINWEB_TORCH_PYTHON", BUILD.parent / "venv-torch" / "bin" / "python"))
    if not python.is_file():
        print(
            f"no exported models: {python} is missing; ./build.sh record-zoo makes it, TRAINWEB_TORCH_PYTHON names one"
        )
        return {}
    folder = BUILD / "exported"
    subprocess.run([python, HERE / "export_models.py", folder], check=True, stdout=subprocess.DEVNULL)
    return {path.stem: from_file(path) for path in sorted(folder.glob("*.onnx"))}


def in_pyodide(job: Job, repeat: int) -> dict[str, Any]:
    """Measure in a fresh page, in its worker."""
    found, boot = pyodide_page.call("compile_stages", "measure", job.files, [job.feeds, repeat])
    return {**found, "boot": boot}


def natively(job: Job, repeat: int) -> dict[str, Any]:
    """Measure in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(compile_stages.measure, (job.files, job.feeds, repeat))


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
    nodes = warm["training_nodes"]
    print(f"  a node of the training model: cold {cold['total'] / nodes:.3f} ms, warm {warm['total'] / nodes:.3f} ms")
    print(f"  of that, warm: {', '.join(f'{what} {ms:.3f} ms' for what, ms in found['per_node'].items())}")
    for visit, ms in found.get("first_step", {}).items():
        print(f"  {visit} page: created after {ms['create']:.0f} ms, first step done after {ms['first_step']:.0f} ms")
    print(f"  {'stage':20}{'cold ms':>9}{'warm ms':>9}{'warm us a node':>16}")
    for stage in [s for s in compile_stages.order() if s in warm["stages"]]:
        c, w = cold["stages"].get(stage, 0.0), warm["stages"][stage]
        print(f"  {stage:20}{c:9.1f}{w:9.1f}{1e3 * w / warm['training_nodes']:16.1f}")
    for where_gone in warm["gone"]:
        print(f"  {where_gone} is gone; its time is in the stage around it")


def profile(job: Job) -> None:
    """Hot functions of one warm compilation."""
    model, external = job.files["model"], {n: data for n, data in job.files.items() if n != "model"}
    compile_stages.once(model, job.feeds, external)
    profiler = cProfile.Profile()
    watch = compile_stages.Stopwatch()
    core = profiler.runcall(compile_stages.open_session, watch, model, job.feeds, external)
    core.release()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler).sort_stats(order).print_stats(PROFILED_FUNCTIONS)


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS))
    parser.add_argument("--onnx", type=Path, action="append", default=[], help="a forward model; may be given again")
    parser.add_argument("--exported", action="store_true", help="swin_tiny and mobilenet_v2 as PyTorch exports them")
    parser.add_argument("--native", action="store_true", help="not in the browser")
    parser.add_argument("--profile", action="store_true", help="print the hot functions of a native compilation")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=1, help="of the first step in a page; a page takes half the cores"
    )
    parser.add_argument("--out", type=Path, default=BUILD / "results" / "compile.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    jobs = {name: generated(name) for name in filter(None, options.models.split(","))}
    jobs |= {path.stem: from_file(path) for path in options.onnx}
    jobs |= exported() if options.exported else {}
    for name, job in jobs.items():
        if options.profile:
            profile(job)
            continue
        found = natively(job, options.repeat)
        report("native", name, found)
        results[name] = {"native": found}
        if not options.native:
            found = in_pyodide(job, options.repeat)
            found["first_step"] = first_step.measure(job.files, job.feeds, options.repeat, options.threads)
            report("Chromium", name, found)
            results[name]["chromium"] = found
    if not options.profile:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
