"""The README's cell in releases of Pyodide, in PyScript and in marimo, in Chromium.

    ./build.sh test-notebooks                   all, and the table of results into docs/notebooks.md
    ./build.sh test-notebooks pyodide-0.27      those whose names start so; the table stays

Pages ask for nothing but what is served here, PyPI's index of trainweb and what it needs included. Needs npm's and
PyPI's registries: what is on the servers of Pyodide alone is named in docs/notebooks.md.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Route, sync_playwright
from tests.browser.conftest import CHROMIUM_FLAGS, find_chromium, watched_page
from tests.browser.kernel import Kernel
from tests.browser.server import MOUNTS, ROOT, Site
from tests.browser.test_notebook import TRAIN
from tests.browser.test_readme import FIRST_MODEL, check_log, code_block, first_line
from tests.browser.test_without_numpy import FORBID, test_steps_need_no_numpy
from tests.bundlers.projects import Project
from tests.bundlers.run import WORK, install, write_lock, write_table

sys.path.insert(0, str(ROOT / "scripts"))
import notebook_tools
from notebook_tools import Release
from pyodide_dist import LOCAL_LOCK
from steps import environment, run

DOCUMENT = ROOT / "docs" / "notebooks.md"
MARKS = ("<!-- results of ./build.sh test-notebooks -->", "<!-- end of results -->")
TIMEOUT_S = 240
PYSCRIPT = Project("PyScript {}", "pyscript", {"@pyscript/core": "0.7.31"}, ())
HEAD = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'

DRAW = """
import io
import sys

import matplotlib

matplotlib.use("agg")
axes = history.plot()
(line,) = axes.lines
picture = io.BytesIO()
axes.figure.savefig(picture, format="png")
picture.seek(0)
import matplotlib.image

pixels = matplotlib.image.imread(picture)
[
    matplotlib.__version__,
    [float(y) for y in line.get_ydata()],
    [epoch.loss for epoch in history.epochs],
    int((pixels[:, :, :3].min(axis=2) < 0.9).sum()),
    sys.stderr.getvalue(),
]
"""

NOTEBOOK = """# /// script
{first}
# ///
import marimo

app = marimo.App()


@app.cell
async def _():
    import marimo as mo
    from pyodide.http import pyfetch

    reply = await pyfetch(str(mo.notebook_location() / "public" / "first.onnx"))
    with open("first.onnx", "wb") as file:
        written = file.write(await reply.bytes())
    return (written,)


@app.cell
def _(written):
    assert written
{cell}
    return (history,)


@app.cell
def _(history):
    history
    return


if __name__ == "__main__":
    app.run()
"""


class NotebookError(Exception):
    """A notebook did not come to what it should."""


@dataclass(frozen=True)
class Case:
    """A row of the table: where, and what is tried there, each by a name."""

    name: str
    heading: str
    tries: dict[str, Callable[[Browser], str]]


def _wait(page: Page, is_done: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        if time.monotonic() > deadline:
            raise NotebookError(f"nothing after {TIMEOUT_S} s:\n{told()}")
        page.wait_for_timeout(200)


def _be_pypi(page: Page, site: Site) -> list[str]:
    """Answer for PyPI's index with what is served here; returns the requests to others, which get nothing."""
    strangers: list[str] = []

    def answer(route: Route) -> None:
        found = re.match(r"https://pypi\.org/simple/([^/?]+)/?$", route.request.url)
        if found is None:
            strangers.append(route.request.url)
            route.abort()
            return
        reply = page.request.get(site.url(f"/simple/{found[1]}/"))
        headers = {"content-type": reply.headers["content-type"], "access-control-allow-origin": "*"}
        route.fulfill(status=reply.status, body=reply.body(), headers=headers)

    page.context.route(re.compile(rf"^https?://(?!{re.escape(site.origin.split('//')[1])})"), answer)
    return strangers


def _mounts(release: Release) -> dict[str, tuple[Path, ...]]:
    wheels = (*MOUNTS["/wheels/"], notebook_tools.WHEELHOUSE)
    return {**MOUNTS, "/pyodide/": (release.folder, notebook_tools.WHEELHOUSE), "/wheels/": wheels}


# --- releases of Pyodide ------------------------------------------------------------------------


def _kernel(browser: Browser, release: Release, try_out: Callable[[Kernel], str]) -> str:
    """Boot a release in a worker with the first line of the README, and try something in it."""
    notebook_tools.build_release(release)
    site = Site(mounts=_mounts(release))
    page, errors = watched_page(browser)
    kernel = Kernel(page, site)
    try:
        if kernel.boot() != release.version:
            raise NotebookError(f"it is not {release.version}")
        kernel.use_local_index()
        kernel.run(first_line("Pyodide"))
        told = try_out(kernel)
    finally:
        page.context.close()
        site.close()
    if errors.messages:
        raise NotebookError("\n".join(errors.messages))
    return told


def _train_cell(kernel: Kernel) -> str:
    kernel.run("import io, sys; sys.stdout = io.StringIO()")
    kernel.run(code_block("python"))
    check_log(kernel.run("import sys\nsys.stdout.getvalue()"))
    return "trains"


def _compare_bytes(kernel: Kernel) -> str:
    scope: dict[str, Any] = {}
    exec(TRAIN, scope)
    folder = kernel.ship("docs", ROOT / "docs")
    if kernel.run(TRAIN + "\ntrain(path)", path=f"{folder}/first.onnx") != scope["train"](str(FIRST_MODEL)):
        raise NotebookError("other bytes than in CPython")
    return "the same"


def _draw(kernel: Kernel) -> str:
    kernel.run('import micropip; await micropip.install(["matplotlib", "tqdm"])')
    kernel.run("import io, sys; sys.stdout, sys.stderr = io.StringIO(), io.StringIO()")
    version, drawn, losses, n_dark, told = kernel.run(code_block("python") + DRAW)
    if drawn != losses or len(drawn) != 6 or not 1000 < n_dark < 100_000:
        raise NotebookError(f"drawn {drawn}, of {losses}, in {n_dark} pixels")
    if "300/300" not in told:
        raise NotebookError(f"the bar ends at {told[-200:]}")
    return f"{version}, with a bar"


def _without_numpy(kernel: Kernel) -> str:
    if kernel.run(FORBID) is not False:
        raise NotebookError("numpy is still imported")
    test_steps_need_no_numpy(kernel, "mlp")
    return "train"


def _release_case(release: Release) -> Case:
    def tried(try_out: Callable[[Kernel], str]) -> Callable[[Browser], str]:
        return lambda browser: _kernel(browser, release, try_out)

    source = f", packages of {release.packages.version}" if release.packages else ""
    tries = {"cell": _train_cell, "bytes": _compare_bytes, "matplotlib": _draw, "no numpy": _without_numpy}
    heading = f"Pyodide {release.version}{source}"
    return Case(f"pyodide-{release.version}", heading, {name: tried(try_out) for name, try_out in tries.items()})


# --- PyScript -----------------------------------------------------------------------------------


def _pyscript(browser: Browser, *, worker: bool, isolated: bool = False) -> str:
    release = notebook_tools.OURS
    notebook_tools.build_release(release)
    folder = WORK / PYSCRIPT.name
    shutil.rmtree(folder, ignore_errors=True)
    install(PYSCRIPT, folder)
    dist = folder / "node_modules" / "@pyscript" / "core" / "dist"
    site = Site(isolated=isolated, mounts={**_mounts(release), "/pyscript/": (dist,), "/docs/": (ROOT / "docs",)})
    site.add("/pyodide/pyodide-lock.json", (release.folder / LOCAL_LOCK.name).read_bytes())
    here = {"interpreter": site.url("/pyodide/pyodide.mjs"), "files": {site.url("/docs/first.onnx"): "first.onnx"}}
    config = f"{{{first_line('PyScript')}, {json.dumps(here)[1:]}"
    script = f"<script type=\"py\"{' worker' if worker else ''} config='{config}'>\n{code_block('python')}</script>"
    url = site.add("/page.html", f'{HEAD}<script type="module" src="/pyscript/core.js"></script>\n{script}')
    page, errors = watched_page(browser)
    lines: list[str] = []
    page.on("console", lambda line: _keep(lines, line))
    strangers = _be_pypi(page, site)
    try:
        page.goto(url)
        _wait(
            page, lambda: errors.messages != [] or any("step 300" in line for line in lines), lambda: "\n".join(lines)
        )
        if errors.messages or strangers:
            raise NotebookError("\n".join([*errors.messages, *strangers]))
        check_log("\n".join(lines))
    finally:
        page.context.close()
        site.close()
        shutil.rmtree(folder)
    return "trains"


def _keep(lines: list[str], line: ConsoleMessage) -> None:
    lines.append(line.text)


# --- marimo -------------------------------------------------------------------------------------


def _entry(wheel: Path) -> tuple[str, dict[str, Any]]:
    """The entry of a wheel in a lock file of Pyodide."""
    name, version = wheel.name.split("-")[:2]
    name = name.replace("_", "-").lower()
    with zipfile.ZipFile(wheel) as archive:
        tops = {file.split("/")[0].removesuffix(".py") for file in archive.namelist() if ".dist-info" not in file}
        metadata = next(file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        wanted = re.findall(r"^Requires-Dist: ([\w.-]+)[^;\n]*$", archive.read(metadata).decode(), re.MULTILINE)
    depends = [w.replace("_", "-").lower() for w in wanted]
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return name, {
        "name": name, "version": version, "file_name": wheel.name, "install_dir": "site", "sha256": sha256,
        "package_type": "package", "imports": sorted(tops), "depends": depends, "unvendored_tests": False,
    }  # fmt: skip


def _marimo_lock(release: Release) -> str:
    """The lock file of a release with what marimo loads from its own server."""
    lock = json.loads((release.folder / LOCAL_LOCK.name).read_text())
    entries = [_entry(wheel) for wheel in sorted(notebook_tools.WHEELHOUSE.glob("*.whl"))]
    for name, entry in entries:
        lock["packages"].setdefault(name, entry)
    for _, entry in entries:
        entry["depends"] = [name for name in entry["depends"] if name in lock["packages"]]
    return json.dumps(lock)


def _export(folder: Path) -> None:
    """Write the README's cell as a notebook of marimo, and export it as its command does."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "public").mkdir(parents=True)
    shutil.copy(FIRST_MODEL, folder / "public")
    cell = "\n".join(f"    {line}" if line else "" for line in code_block("python").splitlines())
    (folder / "first.py").write_text(NOTEBOOK.format(first=first_line("marimo"), cell=cell))
    tools = notebook_tools.ENVIRONMENT / "bin"
    path = f"{tools}{os.pathsep}{environment()['PATH']}"
    words = ("export", "html-wasm", "first.py", "-o", "site", "--mode", "run", "--show-code", "--force")
    run(tools / "marimo", *words, cwd=folder, env={"PATH": path})


def _marimo(browser: Browser) -> str:
    release = notebook_tools.OF_MARIMO
    notebook_tools.build_release(release)
    folder = notebook_tools.FOLDER / "marimo"
    _export(folder)
    site = Site(mounts={**_mounts(release), "/app/": (folder / "site",)})
    site.add("/pyodide/pyodide-lock.json", _marimo_lock(release))
    html = (folder / "site" / "index.html").read_text()
    where = 'data-pyodide-index-url="/pyodide/" data-pyodide-lockfile-url="/pyodide/pyodide-lock.json"'
    if html.count("<marimo-wasm ") != 1:
        raise NotebookError("marimo's page has another form than that of 0.25")
    site.add("/app/index.html", html.replace("<marimo-wasm ", f"<marimo-wasm {where} "))
    page, _ = watched_page(browser)
    strangers = _be_pypi(page, site)
    try:
        page.goto(site.url("/app/index.html"))
        # The history's own table comes last.
        _wait(page, lambda: page.locator("td", has_text="0.01").count() == 6, lambda: page.inner_text("body")[-2000:])
        check_log(page.inner_text("body"))
    finally:
        page.context.close()
        site.close()
    if strangers:
        raise NotebookError("\n".join(strangers))
    return "trains, shows its history"


# --- the table ----------------------------------------------------------------------------------

CASES = (
    *(_release_case(release) for release in notebook_tools.RELEASES),
    Case("pyscript", f"{PYSCRIPT.heading}, page", {"cell": lambda b: _pyscript(b, worker=False)}),
    Case("pyscript", f"{PYSCRIPT.heading}, worker", {"cell": lambda b: _pyscript(b, worker=True)}),
    Case(
        "pyscript", f"{PYSCRIPT.heading}, isolated worker",
        {"cell": lambda b: _pyscript(b, worker=True, isolated=True)},
    ),
    Case("marimo", f"{notebook_tools.TOOLS[0].replace('==', ' ')}, `export html-wasm`", {"cell": _marimo}),
)  # fmt: skip
COLUMNS = {
    "cell": "README's cell", "bytes": "parameters, beside CPython's", "matplotlib": "matplotlib, tqdm",
    "no numpy": "steps without numpy",
}  # fmt: skip


def attempt(browser: Browser, case: Case) -> dict[str, str]:
    """Try all of a case; what fails is printed, and says so in the table."""
    results = {}
    for name, try_out in case.tries.items():
        started = time.monotonic()
        try:
            results[name] = told = try_out(browser)
        except Exception as error:  # whatever it is, the others are tried
            results[name], told = "**fails**", f"FAILED\n{error}"
        print(f"{case.heading}, {COLUMNS[name]}: {told}; {time.monotonic() - started:.0f} s", flush=True)
    return results


def table(rows: Sequence[tuple[Case, dict[str, str]]]) -> str:
    """The results in Markdown."""
    head = f"| environment | {' | '.join(COLUMNS.values())} |\n|---|{'---|' * len(COLUMNS)}"
    lines = [
        f"| {case.heading} | {' | '.join(found.get(name, 'not tested') for name in COLUMNS)} |" for case, found in rows
    ]
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return "\n".join([f"Written by the command on {day}.", "", head, *lines])


def main() -> int:
    """Try the cases that the command line names."""
    parser = argparse.ArgumentParser(prog="./build.sh test-notebooks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="starts of pyodide-VERSION, pyscript and marimo; none: all")
    parser.add_argument("--lock", action="store_true", help="only resolve what PyScript depends on anew")
    options = parser.parse_args()
    if options.lock:
        write_lock(PYSCRIPT)
        return 0
    wanted: list[str] = options.names
    chosen = [case for case in CASES if not wanted or any(case.name.startswith(start) for start in wanted)]
    if not chosen:
        parser.error(f"there are {', '.join(dict.fromkeys(case.name for case in CASES))}")
    notebook_tools.build_tools()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=CHROMIUM_FLAGS)
        rows = [(case, attempt(browser, case)) for case in chosen]
        browser.close()
    print(table(rows))
    if not wanted:
        write_table(DOCUMENT, table(rows), MARKS)
    return int(any("**fails**" in found.values() for _, found in rows))


if __name__ == "__main__":
    sys.exit(main())
