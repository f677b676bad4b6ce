"""The examples of the README and the first page of docs/sessions.md, run as they stand against the built package."""

import contextlib
import io
import re
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from .conftest import PageErrors, open_kernel, require_built
from .server import ROOT, Site

README = (ROOT / "README.md").read_text()
SESSIONS = (ROOT / "docs" / "sessions.md").read_text()
NOTEBOOKS = (ROOT / "docs" / "notebooks.md").read_text()
FIRST_MODEL = ROOT / "docs" / "first.onnx"
STEPS = [50, 100, 150, 200, 250, 300]
LOSS_AT_CHANCE = 0.693  # ln 2: two classes, nothing learned
LEARNED_LOSS = 0.25
RAW = "https://raw.githubusercontent.com/trainweb/trainweb/main/"
"""Where pictures of the README lie for those who read it elsewhere."""
PATIENCE_S = 120
PAGE_LINES = 40  # a first page is short, or nobody reads it


def code_block(language: str) -> str:
    """The one fenced block of a language in the README; of HTML, that of docs/sessions.md."""
    text = SESSIONS if language == "html" else README
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"expected one {language} block, found {len(blocks)}"
    return str(blocks[0])


def first_line(place: str) -> str:
    """The lines before the README's cell in a place, by the table of docs/notebooks.md."""
    (line,) = re.findall(rf"^\| {place} \| `(.*?)`", NOTEBOOKS, re.MULTILINE)
    return str(line)


def check_log(text: str) -> None:
    """Check the lines `step N: loss X`: all there, and the model has learned."""
    lines = re.findall(r"^step (\d+): loss ([\d.]+)$", text, re.MULTILINE)
    assert [int(step) for step, _ in lines] == STEPS, text
    losses = [float(loss) for _, loss in lines]
    assert losses[0] < LOSS_AT_CHANCE, text
    assert losses[-1] < LEARNED_LOSS, text


def check_ten_lines(lines: list[str]) -> None:
    """Check that the ten lines of JavaScript printed falling losses and a right prediction."""
    epochs = [[float(word) for word in line.split()] for line in lines[:20]]
    assert [epoch for epoch, _, _ in epochs] == list(range(1, 21))
    assert epochs[-1][1] < LEARNED_LOSS < epochs[0][1] and epochs[-1][2] < 0.4
    scores = [float(score) for score in re.findall(r"-?\d+\.\d+", " ".join(lines[20:]))]
    assert len(scores) == 4 and scores[0] < scores[1] and scores[2] > scores[3]


def refuse_strangers(page: Page) -> list[str]:
    """Answer nothing for other servers; returns the list of URLs asked for there."""
    strangers: list[str] = []

    def refuse(route: Route) -> None:
        strangers.append(route.request.url)
        route.abort()

    page.context.route(re.compile(r"^https?://(?!127\.0\.0\.1)"), refuse)
    return strangers


def wait_for_log(page: Page, errors: PageErrors, text: str) -> str:
    """Wait until #log contains `text`; an error of the page ends the wait at once."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not errors.messages:
        log = page.inner_text("#log")
        if text in log:
            return log
        page.wait_for_timeout(100)
    raise AssertionError(f"no {text!r} in the log: {page.inner_text('#log')!r} {errors.messages}")


def test_ten_lines_train(page: Page, make_site: Callable[..., Site]) -> None:
    """As they stand, but for the name of the package, which a bundler resolves."""
    script = code_block("js")
    assert script.count('from "trainweb"') == 1
    script = script.replace('from "trainweb"', 'from "/dist/npm/index.js"') + "console.log('end', 0);"
    site = make_site(mounts={"/dist/npm/": [ROOT / "dist" / "npm"]})
    icon = '<!doctype html><link rel="icon" href="data:,">'
    url = site.add("/ten.html", f'{icon}<script type="module">{script}</script>')
    lines: list[str] = []
    page.on("console", lambda line: lines.append(line.text))
    with page.expect_console_message(lambda line: line.text == "end 0"):
        page.goto(url)
    check_ten_lines(lines[:-1])


def test_first_page_trains(page: Page, page_errors: PageErrors, make_site: Callable[..., Site]) -> None:
    require_built(ROOT / "dist" / "npm" / "index.js")
    html = code_block("html")
    assert len(html.splitlines()) <= PAGE_LINES
    site = make_site(mounts={"/trainweb/": [ROOT / "dist" / "npm"]})
    icon = '<link rel="icon" href="data:,">'  # or Chromium asks for /favicon.ico
    url = site.add("/first.html", html.replace("<title>", icon + "<title>"))
    strangers = refuse_strangers(page)
    page.goto(url)
    text = wait_for_log(page, page_errors, "done:")
    check_log(text)
    n_bytes = int(re.search(r"done: (\d+) bytes", text).group(1))  # type: ignore[union-attr]
    assert n_bytes == pytest.approx(FIRST_MODEL.stat().st_size, rel=0.5)
    assert strangers == []


def test_first_notebook_cell_trains(browser: Browser, plain_site: Site) -> None:
    with open_kernel(browser, plain_site) as kernel:
        kernel.use_local_index()
        kernel.run("import io, sys; sys.stdout = io.StringIO()")
        kernel.run(first_line("Pyodide"))
        kernel.run(code_block("python"))
        check_log(kernel.run("import sys\nsys.stdout.getvalue()"))


def test_first_notebook_cell_trains_in_native_python() -> None:
    output = io.StringIO()
    scope: dict[str, object] = {}
    with contextlib.redirect_stdout(output):
        exec(compile(code_block("python"), "README.md", "exec"), scope)
    check_log(output.getvalue())
    assert output.getvalue().endswith("\n[1 0]\n")
    scope["session"].release()  # type: ignore[attr-defined]


def test_first_model_is_what_its_script_writes() -> None:
    from make_first_model import TARGETS, build_model

    data = build_model().SerializeToString(deterministic=True)
    assert [target.read_bytes() == data for target in TARGETS] == [True, True]


def test_pictures_of_the_readme_show_in_registries() -> None:
    """npm and PyPI show the README without the folders beside it."""
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert len(pictures) == 1
    assert all(picture.startswith(RAW) for picture in pictures)


def test_links_of_the_readme_hold_in_registries() -> None:
    """In the wheel's metadata and in the tarball, links go to URLs."""
    (wheel,) = (ROOT / "dist").glob("trainweb-*.whl")
    (tarball,) = (ROOT / "dist").glob("trainweb-*.tgz")
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        texts = [archive.read(metadata).decode()]
    with tarfile.open(tarball) as packed:
        readme = packed.extractfile("package/README.md")
        assert readme is not None
        texts.append(readme.read().decode())
    for text in texts:
        targets = re.findall(r"\]\(([^)\s]+)\)", text)
        assert len(targets) > 20
        # PyPI gives headings no ids, so links within the page lead to the repository's README.
        assert [target for target in targets if not target.startswith("https://")] == []
        for name in set(re.findall(r"/blob/main/([^#)\s]+)", text)):
            assert (ROOT / name).exists(), f"the README leads to {name}"


def test_commands_of_workflows_exist() -> None:
    """Workflows do what ./build.sh does, so that nothing works on a server alone."""
    from build import COMMANDS

    text = "".join(file.read_text() for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")))
    matrix = re.findall(r"command: \[(.*)\]", text)[0].split(", ")
    named = set(re.findall(r"\./build\.sh ([a-z][a-z-]*)", text)) | set(matrix)
    everywhere = {"lint", "test", "test-site", "test-bundlers", "test-browsers", "test-notebooks"}
    assert everywhere <= named <= set(COMMANDS)


@pytest.mark.parametrize("name", ["test", "release"])
def test_workflows_build_with_the_python_that_they_name(name: str, tmp_path: Path) -> None:
    """The one that setup-python puts first, `python`, though the machine has older ones that build.sh would take."""
    workflow = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    assert "setup-python" in workflow
    variables = dict(re.findall(r"^  (TRAINWEB_\w+): (\w+)", workflow, re.MULTILINE))
    for command in ("python3.11", "python3.12", "python"):
        file = tmp_path / command
        file.write_text(f'#!/bin/sh\n[ "$1" = -c ] || echo "{command} $@"\n')
        file.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), **variables}
    done = subprocess.run([ROOT / "build.sh", "lint"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "python scripts/build.py lint\n"


def test_commands_of_the_readme_exist() -> None:
    from build import COMMANDS

    named = set(re.findall(r"\./build\.sh ([a-z][a-z-]*)", README))
    assert {"demo", "test"} <= named <= set(COMMANDS)
