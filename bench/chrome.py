"""Chromium and the site that the pages come from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / ".build" / "bench"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from chromium import find_chromium  # noqa: E402
from tests.browser.conftest import without_features  # noqa: E402
from tests.browser.server import MOUNTS, Site  # noqa: E402

FLAGS = [
    "--no-sandbox",  # containers run as root
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    without_features(),
    # Pages that wait for their turn must not be slowed down when it comes.
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
]
PEAK_WASM = BUILD / "peak.wasm"
READY_TIMEOUT_MS = 180_000


def install_peers() -> Path:
    """Install what bench/package-lock.json names into .build/bench; returns the node_modules folder."""
    BUILD.mkdir(parents=True, exist_ok=True)
    modules = BUILD / "node_modules"
    wanted = (HERE / "package-lock.json").read_bytes()
    installed = BUILD / "package-lock.json"
    if not (modules.is_dir() and installed.is_file() and installed.read_bytes() == wanted):
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(HERE / name, BUILD / name)
        # Install scripts only build native add-ons, of which pages have no use.
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=BUILD, check=True)
    return modules


def build_peak() -> None:
    """Compile the loop that measures the register peak, with fused multiply-add."""
    source = HERE / "kernels" / "peak.c"
    if PEAK_WASM.is_file() and PEAK_WASM.stat().st_mtime > source.stat().st_mtime:
        return
    PEAK_WASM.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "--target=wasm32-freestanding",
        "-O3",
        "-nostdlib",
        "-msimd128",
        "-mrelaxed-simd",
        "-DTW_RELAXED",
        "-fno-sanitize=all",
        "-Wl,--no-entry",
        str(source),
        "-o",
        str(PEAK_WASM),
    ]
    cache = {f"ZIG_{kind}_CACHE_DIR": str(ROOT / ".build" / "zig-cache") for kind in ("GLOBAL", "LOCAL")}
    subprocess.run(command, check=True, env={**os.environ, **cache})


@contextmanager
def open_site(*, isolated: bool = True, cacheable: bool = False) -> Iterator[Site]:
    """The pages, the models, the package, Pyodide and the peers under one origin."""
    mounts = {
        **MOUNTS,
        "/bench/": (HERE / "pages",),
        "/models/": (BUILD / "models",),
        "/node_modules/": (BUILD / "node_modules",),
    }
    site = Site(isolated=isolated, mounts=mounts)
    if cacheable:
        site.headers["Cache-Control"] = "max-age=3600"
    if PEAK_WASM.is_file():
        site.add("/peak.wasm", PEAK_WASM.read_bytes())
    try:
        yield site
    finally:
        site.close()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_profile() -> Iterator[BrowserContext]:
    """A headless Chromium with a separate profile on disk: only there it keeps machine code of WebAssembly."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = find_chromium(install=False)
        context = playwright.chromium.launch_persistent_context(folder, executable_path=path, args=FLAGS)
        try:
            yield context
        finally:
            context.close()


class ContenderError(Exception):
    """A contender did not get to its first step."""


class ContenderPage:
    """A page with one contender and one model, past its first step."""

    def __init__(self, context: BrowserContext, site: Site, model: str, query: dict[str, str]) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.log: list[str] = []
        self.page.on("console", lambda m: self.log.append(f"{m.type}: {m.text}"[:500]))
        self.page.on("pageerror", lambda e: self.log.append(f"pageerror: {e}"[:500]))
        self.page.on("crash", lambda _: self.log.append("the page crashed"))
        self.page.goto(site.url(f"/bench/page.html?{urlencode({**query, 'model': model})}"))
        try:
            self.page.wait_for_function("window.bench && bench.state !== 'loading'", timeout=READY_TIMEOUT_MS)
        except PlaywrightError as error:
            raise ContenderError(f"no first step in {READY_TIMEOUT_MS / 1e3:.0f} s ({error.message[:200]})") from error
        if self.evaluate("bench.state") != "ready":
            raise ContenderError("; ".join([self.evaluate("bench.error"), *self.log])[:1000])

    def evaluate(self, expression: str) -> Any:
        """Evaluate in the page."""
        return self.page.evaluate(expression)

    def run(self, n: int) -> list[float]:
        """Milliseconds of n steps."""
        return list(self.page.evaluate(f"bench.run({n})"))

    def close(self) -> None:
        """End the page and its processes."""
        self.context.close()


def machine() -> dict[str, Any]:
    """The conditions of the measurement."""
    cpu = next(
        (line.split(":")[1].strip() for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name")),
        "unknown",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "commit": commit.stdout.strip(),
        "peers": json.loads((HERE / "package.json").read_text())["dependencies"],
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
