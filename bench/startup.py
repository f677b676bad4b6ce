"""Time to the first completed step, cold and warm, and bytes over the wire. It starts with a page or with the creation
of the session.

    python bench/startup.py [--models A,E] [--contenders trainweb,ort,...] [--samples 5]

Cold: a fresh browser with an empty profile. Warm: the page again, in the same browser, with what the first visit left
behind (HTTP cache, compiled code, storage). Contenders take turns. The step is that of bench/run.py; the time counts
from the start of the navigation and includes fetching the model, weights and data from a server on this machine.
Contenders that create sessions from files also have the time from the call of `create`, when the page has its script
and data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import models
import quiet
from chrome import BUILD, FLAGS, ContenderError, ContenderPage, install_peers, machine, open_site
from chromium import find_chromium
from contenders import CONTENDERS, Contender, select
from networks import MODELS
from playwright.sync_api import BrowserType, sync_playwright
from tables import startup_times
from tests.browser.server import Site

DEFAULT = ("trainweb", "trainweb-cache", "trainweb-bundle", "ort", "ort-t2", "tfjs", "jax")
DEFAULT_MODELS = ("A", "E")
SETTLE_S = 1.5
"""A page left alone so long has stored what it wants to keep."""
PATIENCE_S = 5.0
"""How long a sample waits for other processes to rest."""
WEIGHTS = ("/init.bin", "/data.bin", "/checkpoint")
"""Files of a model that carry its weights and data rather than anybody's code."""
BUNDLE = "session.bundle"
"""Carries the weights as well as the compiled session."""

Result = dict[str, Any]


def visit(context: Any, site: Site, contender: Contender, model: str) -> Result:
    """One visit of the page: marks in ms, and what went over the wire."""
    site.clear_log()
    page = ContenderPage(context, site, model, contender.query)
    marks = page.evaluate("bench.marks")
    found = {
        "ms": marks["firstStep"],
        "session_ms": marks["firstStep"] - marks["creating"] if "creating" in marks else None,
        "files": {r.path: r.n_bytes for r in site.log if r.status == 200},
    }
    time.sleep(SETTLE_S)
    page.page.close()
    return found


def sample(chromium: BrowserType, site: Site, contender: Contender, model: str) -> dict[str, Result]:
    """A cold and a warm visit in a fresh profile."""
    with tempfile.TemporaryDirectory() as profile:
        context = chromium.launch_persistent_context(
            profile, executable_path=find_chromium(install=False), args=FLAGS, headless=True
        )
        try:
            return {kind: visit(context, site, contender, model) for kind in ("cold", "warm")}
        finally:
            context.close()


def make_bundle(built: models.Built, devices: Sequence[str] = ("wasm",)) -> None:
    """Compile the session ahead of time, as `trainweb compile` does."""
    m = built.manifest
    dtype = "int64" if m["xdtype"] == "int32" else "float32"
    shapes = {"x": (dtype, m["xshape"]), "labels": ("int64", [m["ysize"]])}
    feeds = [f"--feed={name}={dtype}[{','.join(map(str, shape))}]" for name, (dtype, shape) in shapes.items()]
    command = [
        sys.executable,
        "-m",
        "trainweb.cli",
        "compile",
        str(built.folder),
        *feeds,
        *(f"--device={device}" for device in devices),
        "-o",
        str(built.folder / BUNDLE),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compressed(data: bytes) -> int:
    """Bytes as a server that compresses would send them (gzip -9)."""
    return len(gzip.compress(data, 9))


def code_bytes(site: Site, files: dict[str, int], model: str) -> tuple[int, int]:
    """Bytes of everything but weights and data, as they are and compressed."""
    plain = zipped = 0
    for path, n_bytes in files.items():
        if path.endswith(WEIGHTS):
            continue
        plain += n_bytes
        zipped += compressed(site._find(path).body)
        if path.endswith(BUNDLE):
            weights = (models.FOLDER / model / "init.bin").read_bytes()
            plain -= len(weights)
            zipped -= compressed(weights)
    return plain, zipped


def summarise(site: Site, samples: list[Result], kind: str, model: str) -> Result:
    """Times of all samples and bytes of the last."""
    times = [s[kind]["ms"] for s in samples]
    sessions = [s[kind]["session_ms"] for s in samples if s[kind]["session_ms"] is not None]
    files = samples[-1][kind]["files"]
    plain, zipped = code_bytes(site, files, model)
    return {
        "min": min(times),
        "median": median(times),
        "session_min": min(sessions, default=None),
        "session_median": median(sessions) if sessions else None,
        "bytes": sum(files.values()),
        "code_bytes": plain,
        "code_gzip": zipped,
        "files": files,
    }


def report(model: str, contenders: list[Contender], results: dict[str, Result]) -> None:
    """Print one model's table."""
    print(f"\n### {model}\n")
    print(
        "| contender | cold ms (min / median) | of it from create | warm ms | of it from create "
        "| cold MB without weights and data | the same gzipped | warm MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for contender in contenders:
        r = results[contender.name]
        if "error" in r:
            print(f"| {contender.label} | fails: {r['error'][:150]} |")
            continue
        cold, warm = r["cold"], r["warm"]
        print(
            f"| {contender.label} | {startup_times(cold)} | {startup_times(warm)} | {cold['code_bytes'] / 1e6:.2f} "
            f"| {cold['code_gzip'] / 1e6:.2f} | {warm['code_bytes'] / 1e6:.2f} |"
        )


def measure(
    chromium: BrowserType, site: Site, model: str, contenders: list[Contender], samples: int
) -> dict[str, Result]:
    """All contenders on one model, in turn."""
    taken: dict[str, list[Result]] = defaultdict(list)
    errors: dict[str, str] = {}
    for _ in range(samples):
        for contender in contenders:
            if contender.name in errors:
                continue
            quiet.wait(PATIENCE_S)
            try:
                taken[contender.name].append(sample(chromium, site, contender, model))
            except ContenderError as error:
                errors[contender.name] = str(error)
    results: dict[str, Result] = {name: {"error": e} for name, e in errors.items()}
    for name, found in taken.items():
        if name not in errors:
            results[name] = {kind: summarise(site, found, kind, model) for kind in ("cold", "warm")}
    return results


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), help=f"of {','.join(MODELS)}")
    parser.add_argument("--contenders", help=f"of {','.join(n for n, c in CONTENDERS.items() if not c.program)}")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--out", type=Path, default=BUILD / "results" / "startup.json")
    options = parser.parse_args()
    contenders = [c for c in select(options.contenders, DEFAULT) if not c.program]
    install_peers()
    all_results: dict[str, Any] = {"machine": machine()}
    with sync_playwright() as playwright, open_site(cacheable=True) as site:
        for model in options.models.split(","):
            make_bundle(models.build(model))
            results = measure(playwright.chromium, site, model, contenders, options.samples)
            report(model, contenders, results)
            all_results[model] = results
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(all_results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
