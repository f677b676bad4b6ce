"""The first page, sessions and faults in Chromium, Firefox and WebKit.

    ./build.sh test-browsers                   all, and the table of results into docs/deploy.md
    ./build.sh test-browsers firefox webkit    these; the table stays

Firefox is driven by WebDriver BiDi (puppeteer-core, from npm), WebKit by WebKitWebDriver under Xvfb. Debian has them as
firefox-esr, webkit2gtk-driver and xvfb; a browser that is missing is an error. All must come to the bytes of CPython.
Firefox trains on the GPU, too, by Mesa's adapter (Debian: mesa-vulkan-drivers).
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from tests.browser.conftest import CHROMIUM_FLAGS, find_chromium
from tests.browser.server import MOUNTS, ROOT, Site
from tests.browser.test_faults_workers import REFUSE_MEMORY
from tests.browser.test_js_prepare import fixed_model
from tests.browser.test_node import trained_in_python
from tests.browser.test_readme import check_log, code_block
from tests.bundlers.projects import Project
from tests.bundlers.run import TABLE, WORK, BundlerError, free_port, install, write_lock, write_table

HERE = Path(__file__).resolve().parent
MARKS = ("<!-- results of ./build.sh test-browsers -->", "<!-- end of browsers -->")
TIMEOUT_S = 400
POINTS = 64
"""The batch of cases.js."""
DRIVER = Project("puppeteer-core {}", "puppeteer", {"puppeteer-core": "25.16.0"}, ())

MINI_BROWSER = (
    "/usr/lib/x86_64-linux-gnu/webkit2gtk-4.1/MiniBrowser",
    "/usr/lib/aarch64-linux-gnu/webkit2gtk-4.1/MiniBrowser",
)

MEANWHILE = {
    "": "then its first step",
    "prepare": "after `prepare`",
    "idle": "fixed model, left alone",
}
"""What happens between a made session and its first step (`meanwhile` in cases.js), and how the table says it."""

TELL_LOG = """<script>
setInterval(() => {
  const log = document.querySelector("#log").textContent;
  if (log.includes("done:")) window.outcome = log;
}, 100);
</script>"""


@dataclass(frozen=True)
class Visit:
    """The outcome of a page: its `window.outcome`, in which browser."""

    version: str
    outcome: str


Open = Callable[[str], Visit]
"""Opens a page in a fresh browser and waits for its outcome."""


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BundlerError(f"{names[0]} is not installed (Debian: firefox-esr, webkit2gtk-driver, xvfb)")


def open_chromium(url: str) -> Visit:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=CHROMIUM_FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.wait_for_function("window.outcome", timeout=1000 * TIMEOUT_S)
        visit = Visit(f"Chromium {browser.version}", str(page.evaluate("window.outcome")))
        browser.close()
        return visit


def open_firefox(url: str) -> Visit:
    folder = WORK / "puppeteer"
    if not (folder / "node_modules" / "puppeteer-core").exists():
        install(DRIVER, folder)
    shutil.copy(HERE / "firefox.mjs", folder)
    command = ["node", "firefox.mjs", _program("firefox-esr", "firefox"), url, str(1000 * TIMEOUT_S)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S + 60)
    if done.returncode != 0:
        raise BundlerError(f"Firefox:\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    if told["outcome"] is None:
        raise BundlerError(f"Firefox: no outcome within {TIMEOUT_S} s\n" + "\n".join(told["lines"]))
    return Visit(told["version"].replace("firefox/", "Firefox "), told["outcome"])


class WebDriver:
    """The few calls of the WebDriver protocol that are needed."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The value of an answer; retried while the driver starts."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        for attempt in range(50):
            try:
                request = urllib.request.Request(self._base + path, data, headers, method=method)
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    return json.load(answer)["value"]
            except urllib.error.HTTPError as error:
                raise BundlerError(f"WebDriver {path}: {error.read().decode()}") from None
            except urllib.error.URLError:
                if attempt == 49:
                    raise
                time.sleep(0.2)
        raise AssertionError


@contextlib.contextmanager
def _process(*command: str, **environment: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def open_webkit(url: str) -> Visit:
    browser = next((path for path in MINI_BROWSER if Path(path).exists()), None)
    if browser is None:
        raise BundlerError("MiniBrowser of WebKitGTK is not installed (Debian: webkit2gtk-driver)")
    port, display = free_port(), f":{70 + os.getpid() % 900}"
    options = {"binary": browser, "args": ["--automation"]}
    with (
        _process(_program("Xvfb"), display, "-screen", "0", "1280x900x24", "-nolisten", "tcp"),
        # Containers lack what its sandbox needs.
        _process(_program("WebKitWebDriver"), f"--port={port}", DISPLAY=display,
                 WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS="1"),
    ):  # fmt: skip
        time.sleep(1)
        driver = WebDriver(port)
        wanted = {"capabilities": {"alwaysMatch": {"webkitgtk:browserOptions": options}}}
        session = driver.call("POST", "/session", wanted)
        path = f"/session/{session['sessionId']}"
        try:
            driver.call("POST", f"{path}/url", {"url": url})
            deadline = time.monotonic() + TIMEOUT_S
            outcome = None
            while outcome is None and time.monotonic() < deadline:
                time.sleep(0.2)
                script = {"script": "return window.outcome ?? null", "args": []}
                outcome = driver.call("POST", f"{path}/execute/sync", script)
        finally:
            driver.call("DELETE", path)
    if outcome is None:
        raise BundlerError(f"WebKit: no outcome within {TIMEOUT_S} s")
    return Visit(f"WebKitGTK {session['capabilities']['browserVersion']}", outcome)


ENGINES: dict[str, Open] = {"chromium": open_chromium, "firefox": open_firefox, "webkit": open_webkit}


@dataclass
class Result:
    """The results of a browser, plain or isolated."""

    version: str
    isolated: bool
    faults: list[str]
    n_cases: int = 0
    made_ms: float = 0.0
    step_ms: dict[str, float] = field(default_factory=dict)
    """From a made session to the end of its first step, by what happened meanwhile."""


def _site(*, isolated: bool) -> Site:
    package = ROOT / "dist" / "npm"
    mounts = {"/docs/": (ROOT / "docs",), "/engines/": (HERE,), "/trainweb/": (package,), "/refused/": (package,)}
    site = Site(isolated=isolated, mounts={**MOUNTS, **mounts})
    stub = REFUSE_MEMORY.replace("SHARED", "1").replace("OWN", "65536")
    site.add("/refused/worker.js", stub + (package / "worker.js").read_text())
    icon = '<link rel="icon" href="data:,">'
    site.add("/fixed.onnx", fixed_model(POINTS))
    site.add("/first.html", code_block("html").replace("<title>", icon + "<title>") + TELL_LOG)
    for build in ("", ".relaxed", ".threads", ".relaxed.threads"):
        site.add(f"/html/kernels{build}.wasm", "<!doctype html><title>Not here</title>", "text/html")
    return site


def visit(name: str, wanted: Sequence[int], *, isolated: bool) -> Result:
    """Run the first page and all cases in a browser."""
    site = _site(isolated=isolated)
    result = Result(name, isolated, [])
    try:
        try:
            check_log(ENGINES[name](site.url("/first.html")).outcome)
        except AssertionError as error:
            result.faults.append(f"first page: {error}")
        told = ENGINES[name](site.url("/engines/index.html"))
        result.version = told.version
        outcome = json.loads(told.outcome)
        if outcome["isolated"] != isolated:
            result.faults.append(f"isolated: {outcome['isolated']}")
        cases = outcome["results"]
        result.n_cases = len(cases) + 1
        result.faults += [f"{case}: {it['error']}" for case, it in cases.items() if it["error"] is not None]
        result.faults += [
            f"{case}: other bytes than in CPython"
            for case in ("reproducible", "sandboxedFrames", "refusedSharedMemory")
            if cases[case]["error"] is None and cases[case]["value"] != wanted
        ]
        if name == "firefox" and cases["gpu"]["value"] is False:
            result.faults.append("gpu: Firefox has no adapter (Debian: mesa-vulkan-drivers)")
        kernels = {path.partition("kernels")[2] for path in site.requests("/refused/kernels")}
        if all(".threads" in name for name in kernels):
            result.faults.append(f"refusedSharedMemory: of the kernels it took {sorted(kernels)}")
        for meanwhile in MEANWHILE:
            page = site.url(f"/engines/index.html?meanwhile={meanwhile}")
            first = cases if not meanwhile else json.loads(ENGINES[name](page).outcome)["results"]
            if first["firstStep"]["error"] is not None:
                result.faults.append(f"firstStep {meanwhile}: {first['firstStep']['error']}")
                continue
            result.step_ms[meanwhile] = first["firstStep"]["value"]["step"]
            if not meanwhile:
                result.made_ms = first["firstStep"]["value"]["made"]
    except (BundlerError, subprocess.TimeoutExpired) as error:
        result.faults.append(str(error))
    finally:
        site.close()
    return result


def table(results: Sequence[Result]) -> str:
    rows = [
        f"| {it.version} | {'isolated, 2 threads' if it.isolated else 'plain'} | "
        f"{it.n_cases} cases{', **' + str(len(it.faults)) + ' fail**' if it.faults else ' pass'} | "
        f"{it.made_ms / 1000:.1f} s | {' | '.join(f'{it.step_ms.get(m, math.nan):.0f} ms' for m in MEANWHILE)} |"
        for it in results
    ]
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = (
        f"| browser | page | result | session made | {' | '.join(MEANWHILE.values())} |\n|---|---|---|---|---|---|---|"
    )
    return f"Written by the command on {day}.\n\n{head}\n" + "\n".join(rows)


def main() -> int:
    """Run the browsers that the command line names."""
    parser = argparse.ArgumentParser(prog="./build.sh test-browsers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*ENGINES, []], help="none: all")
    parser.add_argument("--lock", action="store_true", help="only resolve what puppeteer-core depends on anew")
    options = parser.parse_args()
    if options.lock:
        write_lock(DRIVER)
        return 0
    wanted = trained_in_python()
    results = []
    for name in options.names or ENGINES:
        for isolated in (False, True):
            result = visit(name, wanted, isolated=isolated)
            results.append(result)
            print(f"{result.version}, {'isolated' if isolated else 'plain'}: {len(result.faults)} faults", flush=True)
            for fault in result.faults:
                print(f"    {fault}", flush=True)
    print(table(results))
    if not options.names:
        write_table(TABLE, table(results), MARKS)
    return int(any(result.faults for result in results))


if __name__ == "__main__":
    sys.exit(main())
