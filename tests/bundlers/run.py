"""Install the packed tarball into fresh projects of bundlers, and train in each in Chromium; or in Node, Deno and Bun.

    ./build.sh test-bundlers              all, and the table of results into docs/deploy.md
    ./build.sh test-bundlers vite next    those whose names start so; the table stays
    ./build.sh test-bundlers --lock vite  resolve what the packages of projects.py depend on anew

Every project trains README's first model and runs its ten lines as they stand, in a plain page and in a cross-origin
isolated one. Without a page it runs with one thread and with two. All come to the same parameters. Needs npm's
registry, for the bundlers; locks/ pins all that they depend on.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from tests.browser.conftest import CHROMIUM_FLAGS, find_chromium
from tests.browser.server import ROOT, Site
from tests.browser.test_readme import check_ten_lines, code_block
from tests.bundlers.projects import FUNCTION, PROJECTS, Mode, Project

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "locks"
WORK = ROOT / ".build" / "bundlers"
MODEL = ROOT / "docs" / "first.onnx"
TABLE = ROOT / "docs" / "deploy.md"
MARKS = ("<!-- results of ./build.sh test-bundlers -->", "<!-- end of results -->")

COMMAND_S = 420
"""`next build` of an older release of trainweb waited for ever."""
START_S = 120
TRAIN_MS = 90_000

LOSS = 0.2
"""What the first page comes to after 300 steps, generously; it starts above 0.5."""


class BundlerError(Exception):
    """A failure of a project."""


@dataclass(frozen=True)
class Outcome:
    """A page that trained, or did not."""

    error: str | None
    first_ms: float = 0.0
    parameters: tuple[int, ...] = ()


def _run(command: str | Sequence[str], cwd: Path, environment: dict[str, str]) -> str:
    """Run a command to its end; gives what it printed."""
    words = command.split() if isinstance(command, str) else list(command)
    process = subprocess.Popen(
        words, cwd=cwd, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise BundlerError(f"{' '.join(words)} took more than {COMMAND_S} s:\n{output}") from None
    if process.returncode != 0:
        raise BundlerError(f"{' '.join(words)}: exit status {process.returncode}\n{output}")
    return output


def _environment(project: Project, *, isolated: bool) -> dict[str, str]:
    quiet = ("NEXT_TELEMETRY_DISABLED", "NUXT_TELEMETRY_DISABLED", "ASTRO_TELEMETRY_DISABLED", "CI")
    telemetry = {**dict.fromkeys(quiet, "1"), "NG_CLI_ANALYTICS": "false", "PARCEL_WORKERS": "0"}
    isolation = {"ISOLATED": "1"} if isolated else {}
    return {**os.environ, **telemetry, **project.environment, **isolation}


def _tarball() -> Path:
    found = sorted((ROOT / "dist").glob("trainweb-*.tgz"))
    if len(found) != 1:
        raise BundlerError("there must be one npm tarball in dist/; run ./build.sh")
    return found[0]


def _write_manifest(project: Project, folder: Path) -> None:
    manifest = {
        "name": "app", "version": "0.0.0", "private": True, "type": "module", "dependencies": dict(project.packages),
    }  # fmt: skip
    (folder / "package.json").write_text(json.dumps(manifest, indent=2))


def _npm(project: Project, folder: Path, *arguments: str) -> None:
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    _run(["npm", *arguments, *quiet], folder, _environment(project, isolated=False))


def _lock(project: Project) -> Path:
    return LOCKS / f"{project.name}.json"


def write_lock(project: Project) -> None:
    """Resolve a project's packages anew, and keep the result: a package a line, whatever registry it came from."""
    folder = WORK / f"{project.name}-lock"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write_manifest(project, folder)
    _npm(project, folder, "install", "--package-lock-only", "--omit-lockfile-registry-resolved", "--ignore-scripts")
    lock = json.loads((folder / "package-lock.json").read_text())
    lines = [f"{json.dumps(path)}: {json.dumps(entry)}" for path, entry in lock["packages"].items()]
    if any("resolved" in entry for entry in lock["packages"].values()):
        raise BundlerError(f"the lock of {project.heading} names where its packages came from")
    head = json.dumps({key: value for key, value in lock.items() if key != "packages"})
    LOCKS.mkdir(exist_ok=True)
    _lock(project).write_text(f'{head[:-1]}, "packages": {{\n' + ",\n".join(lines) + "\n}}\n")
    shutil.rmtree(folder)
    print(f"{_lock(project).relative_to(ROOT)}: {len(lines)} packages", flush=True)


def install(project: Project, folder: Path, *more: str) -> None:
    """Install the packages of a project, as they are locked, and what more there is."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_manifest(project, folder)
    if project.packages:
        shutil.copy(_lock(project), folder / "package-lock.json")
    # Not "ci": a registry that mirrors another may lack the builds for other machines, and then the lock does, too.
    _npm(project, folder, "install", "--no-save", *more)


def ten_lines(*, wrapped: bool) -> str:
    """The README's ten lines as they stand; `wrapped` in a function where a bundler knows no `await` outside of one."""
    if not wrapped:
        return f"{code_block('js')}\nexport const done = true;\n"
    head, _, rest = code_block("js").partition("\n")
    return f"{head}\n\nasync function main() {{{rest}}}\nexport const done = main();\n"


def prepare(project: Project, folder: Path) -> None:
    """Make the project anew: sources, packages, the tarball, and the lines that a user adds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "projects" / project.template, folder)
    for name in ("main.js", "train.js", "state.js"):
        (folder / project.sources).mkdir(exist_ok=True)
        shutil.copy(HERE / "app" / name, folder / project.sources / name)
    (folder / project.sources / "ten.js").write_text(ten_lines(wrapped=False))
    page = (HERE / "app" / "index.html").read_text().replace("SCRIPT", project.script)
    (folder / "index.html").write_text(page)
    (folder / project.public).mkdir(exist_ok=True)
    shutil.copy(MODEL, folder / project.public)
    install(project, folder, str(_tarball()))
    for file, old, new in project.edits:
        path = folder / file
        text = path.read_text()
        if text.count(old) != 1:
            raise BundlerError(f"{file} has {old!r} {text.count(old)} times")
        path.write_text(text.replace(old, new))


def build(project: Project, mode: Mode, folder: Path, *, isolated: bool) -> None:
    """Run the build, and lay down beside its output what it does not carry along."""
    environment = _environment(project, isolated=isolated)
    copy = [] if project.copied is None else [f"npx trainweb copy {project.copied}"]
    built = [] if mode.build is None else [mode.build]
    # A folder of the sources is part of the build.
    for command in (*copy, *built) if project.copies_first else (*built, *copy):
        _run(command, folder, environment)
    page = folder / mode.folder / "index.html"
    if mode.server is None and not page.exists():
        # The bundler made scripts alone.
        shutil.copy(folder / "index.html", page)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _own_server(project: Project, mode: Mode, folder: Path, *, isolated: bool) -> Iterator[str]:
    assert mode.server is not None
    port = free_port()
    log = folder / "server.log"
    with log.open("w") as handle:
        process = subprocess.Popen(
            mode.server.replace("PORT", str(port)).split(), cwd=folder, start_new_session=True,
            env=_environment(project, isolated=isolated), stdin=subprocess.DEVNULL, stdout=handle,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}{mode.path}"
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=START_S).close()
                break
            except urllib.error.HTTPError as error:
                raise BundlerError(f"{url} answers {error.code}:\n{log.read_text()[-4000:]}") from None
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BundlerError(f"the server does not start:\n{log.read_text()[-4000:]}") from None
                time.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def serve(project: Project, mode: Mode, folder: Path, *, isolated: bool) -> Iterator[str]:
    """Serve the project; gives the URL of its page."""
    if mode.server is not None:
        with _own_server(project, mode, folder, isolated=isolated) as url:
            yield url
        return
    prefix = mode.path.rpartition("/")[0] + "/"
    site = Site(isolated=isolated, mounts={prefix: (folder / mode.folder,)})
    try:
        yield site.url(mode.path)
    finally:
        site.close()


def drive(browser: Browser, url: str, *, isolated: bool) -> Outcome:
    """Open the page and wait until it has trained."""
    context = browser.new_context()
    page = context.new_page()
    lines: list[str] = []
    page.on("console", lambda line: lines.append(line.text))
    page.on("pageerror", lambda error: lines.append(f"uncaught: {error}"))
    try:
        page.goto(url, timeout=TRAIN_MS)
        page.wait_for_function("window.trained || window.failed", timeout=TRAIN_MS)
        failed, result = page.evaluate("[window.failed, window.trained]")
    except Exception as error:
        raise BundlerError(f"{error}\n" + "\n".join(lines)) from None
    finally:
        context.close()
    if failed:
        raise BundlerError(f"{failed}\n" + "\n".join(lines))
    return _judge(result, lines, isolated=isolated, shares=isolated)


def run_program(project: Project, mode: Mode, folder: Path, *, isolated: bool) -> Outcome:
    """Train without a browser, on two threads where a page would be isolated."""
    assert mode.program is not None
    lines = _run(mode.program, folder, _environment(project, isolated=isolated)).splitlines()
    results = [line.removeprefix("TRAINED ") for line in lines if line.startswith("TRAINED ")]
    if len(results) != 1:
        raise BundlerError("\n".join(lines))
    # Memory can always be shared with threads there.
    return _judge(json.loads(results[0]), lines, isolated=isolated, shares=True)


def _judge(result: dict[str, Any], lines: Sequence[str], *, isolated: bool, shares: bool) -> Outcome:
    """Raise unless it trained, on the expected kernels."""
    first, last = result["losses"]
    if not (first > 0.5 and last < LOSS and result["modelBytes"] > 0):
        raise BundlerError(f"trained from {first} to {last}, {result['modelBytes']} bytes of model")
    try:
        check_ten_lines(result["printed"])
    except AssertionError as error:
        raise BundlerError(f"the ten lines printed {result['printed']}: {error}") from None
    kernels = next((found for line in lines if (found := re.search(r"(kernels\S*), (\d+) threads", line))), None)
    wanted = (shares, "2" if isolated else "1")
    if result["isolated"] != isolated or kernels is None or (".threads" in kernels[1], kernels[2]) != wanted:
        raise BundlerError(f"isolated: {result['isolated']}, kernels: {kernels and kernels[0]}; wanted {wanted}")
    return Outcome(None, result["first"], tuple(result["parameters"]))


def attempt(browser: Browser, project: Project, mode: Mode, folder: Path, *, isolated: bool) -> Outcome:
    """Build, serve and drive; a failure is an outcome, too."""
    what = f"{project.heading}, {mode.name}, {'isolated' if isolated else 'plain'}"
    started = time.monotonic()
    try:
        if mode.wrapped:
            (folder / project.sources / "ten.js").write_text(ten_lines(wrapped=True))
        # Next.js keeps the headers in its build; the static server of others sends them.
        if mode.program is None and (not isolated or mode.server is not None):
            build(project, mode, folder, isolated=isolated)
        if mode.program is not None:
            outcome = run_program(project, mode, folder, isolated=isolated)
        else:
            with serve(project, mode, folder, isolated=isolated) as url:
                outcome = drive(browser, url, isolated=isolated)
        told = f"first step after {outcome.first_ms:.0f} ms"
    except BundlerError as error:
        outcome, told = Outcome(str(error)), f"FAILED\n{error}"
    print(f"{what}: {told}; {time.monotonic() - started:.0f} s in all", flush=True)
    return outcome


@dataclass(frozen=True)
class Line:
    """A line of the result table."""

    project: Project
    mode: Mode
    plain: Outcome
    isolated: Outcome

    @property
    def added(self) -> tuple[str, ...]:
        """The lines that a user adds."""
        return (*self.project.added, *([FUNCTION] if self.mode.wrapped else []))


def run_project(browser: Browser, project: Project) -> list[Line]:
    """All modes of a project, in a plain page and an isolated one."""
    folder = WORK / f"{project.name}-{PROJECTS.index(project)}"
    try:
        prepare(project, folder)
    except BundlerError as error:
        print(f"{project.heading}: FAILED\n{error}", flush=True)
        failed = Outcome(str(error))
        return [Line(project, mode, failed, failed) for mode in project.modes]
    lines = []
    for mode in project.modes:
        plain = attempt(browser, project, mode, folder, isolated=False)
        isolated = plain if plain.error else attempt(browser, project, mode, folder, isolated=True)
        lines.append(Line(project, mode, plain, isolated))
    if all(line.plain.error is None and line.isolated.error is None for line in lines):
        shutil.rmtree(folder)
    return lines


def table(lines: Sequence[Line]) -> str:
    """The results in Markdown."""

    def cell(outcome: Outcome) -> str:
        return "trains" if outcome.error is None else "**fails**"

    rows = [
        f"| {line.project.heading} | {line.mode.name} | {cell(line.plain)} | {cell(line.isolated)} | "
        f"{'; '.join(f'`{text}`' for text in line.added) or 'nothing'} |"
        for line in lines
    ]
    head = "| project | mode | plain page, 1 thread | isolated page, 2 threads | lines to add |\n|---|---|---|---|---|"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"Written by the command on {day}.\n\n{head}\n" + "\n".join(rows)


def write_table(document: Path, results: str, marks: tuple[str, str]) -> None:
    """Put a table between its marks in a document."""
    text = document.read_text()
    start, end = marks
    before, _, rest = text.partition(start)
    _, mark, after = rest.partition(end)
    if not mark:
        raise BundlerError(f"{document} lacks the marks {marks}")
    document.write_text(f"{before}{start}\n{results}\n{end}{after}")


def _check_results(lines: Sequence[Line]) -> int:
    """Say what failed; the exit status. Every page must come to the same parameters."""
    outcomes = [outcome for line in lines for outcome in (line.plain, line.isolated)]
    failed = sum(outcome.error is not None for outcome in outcomes)
    trained = {outcome.parameters for outcome in outcomes if outcome.error is None}
    print(f"{len(outcomes) - failed} of {len(outcomes)} pages trained, to {len(trained)} set(s) of parameters")
    return 0 if failed == 0 and len(trained) == 1 else 1


def main() -> int:
    """Run the projects that the command line names."""
    parser = argparse.ArgumentParser(prog="./build.sh test-bundlers", description=__doc__.splitlines()[0])
    names = ", ".join(dict.fromkeys(project.name for project in PROJECTS))
    parser.add_argument("names", nargs="*", help=f"starts of names, of {names}; none: all")
    parser.add_argument("--lock", action="store_true", help="only resolve what the packages depend on anew")
    options = parser.parse_args()
    wanted: list[str] = options.names
    chosen = [p for p in PROJECTS if not wanted or any(p.name.startswith(start) for start in wanted)]
    if not chosen:
        parser.error(f"no project is called so; there are {names}")
    if options.lock:
        for project in {p.name: p for p in chosen if p.packages}.values():
            write_lock(project)
        return 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=CHROMIUM_FLAGS)
        lines = [line for project in chosen for line in run_project(browser, project)]
        browser.close()
    print(table(lines))
    if not wanted:
        write_table(TABLE, table(lines), MARKS)
    return _check_results(lines)


if __name__ == "__main__":
    sys.exit(main())
