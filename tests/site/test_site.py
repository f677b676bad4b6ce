"""dist/site, as `./build.sh site` leaves it: its links, its code cells, its search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Locator, Page
from tests.browser.test_readme import check_log, check_ten_lines, refuse_strangers

from .conftest import FOLDER

LEARNED_LOSS = 0.25
RUN_MS = 120_000
LAB = FOLDER / "lab"
"""JupyterLite, whose pages are not ours."""
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}
"""What a browser fetches by itself, but for links that only say what is where."""


class Document(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in (LOADED.get(tag, ""), "data-open"):
            if name in values and values.get("rel") != "canonical":
                self.loaded.append(values[name])


def documents() -> dict[Path, Document]:
    return {file: Document(file) for file in sorted(FOLDER.rglob("*.html")) if not file.is_relative_to(LAB)}


@pytest.fixture(autouse=True)
def strangers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose page asks another server for anything."""
    if "page" not in request.fixturenames:
        yield
        return
    asked = refuse_strangers(request.getfixturevalue("page"))
    yield
    assert asked == []


def test_links_resolve() -> None:
    pages = documents()
    assert len(pages) > 20
    broken = []
    for file, document in pages.items():
        for link in document.links + document.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            inside = target.is_relative_to(FOLDER) and target.is_file() and not parts.path.startswith("/")
            anchors = pages[target].ids if target in pages else set()
            # Elements that a script draws have no ids in the file.
            known = not parts.fragment or unquote(parts.fragment) in anchors or target.suffix != ".html"
            if not inside or not known:
                broken.append(f"{file.relative_to(FOLDER)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    strangers = [link for document in documents().values() for link in document.loaded if urlsplit(link).netloc]
    assert strangers == []


def run(cell: Locator) -> list[str]:
    """Press Run and wait for the end; returns the lines that were printed."""
    cell.get_by_role("button", name="Run").click()
    output = cell.locator(".cell-output")
    cell.locator('.cell-output:not([data-state="running"])').wait_for(timeout=RUN_MS)
    text = output.inner_text()
    assert output.get_attribute("data-state") == "done", text
    return text.strip().splitlines()


def type_code(cell: Locator, code: str) -> None:
    cell.locator(".cm-content").click()
    cell.page.keyboard.press("Control+A")
    cell.page.keyboard.insert_text(code)


def test_first_page_trains_and_what_is_typed_runs(page: Page, address: str) -> None:
    page.goto(address + "index.html")
    cell = page.locator(".example")
    check_ten_lines(run(cell))
    type_code(cell, "console.log(6n * 7n, [1, new Float32Array(2)]); throw new RangeError('mine');")
    cell.get_by_role("button", name="Run").click()
    cell.locator('[data-state="failed"]').wait_for()
    assert cell.locator(".cell-output").inner_text().splitlines() == ["42 [ 1, [ 0, 0 ] ]", "RangeError: mine"]
    type_code(cell, "await new Promise(() => undefined);")
    cell.get_by_role("button", name="Run").click()
    cell.get_by_role("button", name="Stop").click()
    cell.locator('[data-state="done"]').wait_for()
    assert page.locator("iframe").count() == 0
    cell.get_by_role("button", name="Reset").click()
    assert "createFromModel" in cell.locator(".cm-content").inner_text()


def check_steps(lines: list[str]) -> None:
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert len(losses) == 6 and losses[-1] < LEARNED_LOSS


def check_resume(lines: list[str]) -> None:
    told = dict(line.split(": ") for line in lines)
    assert told["20 steps later"] == told["20 steps after the checkpoint, in another session"]
    assert float(told["20 steps later"]) < float(told["after 20 steps"])


def check_python(lines: list[str]) -> None:
    losses = [float(line.split()[-1]) for line in lines if line.startswith("epoch")]
    assert len(losses) == 6 and losses[-1] < LEARNED_LOSS < losses[0]


CHECKS = {
    "A step at a time": check_steps,
    "Save and continue": check_resume,
    "Look before you train": lambda lines: next(line for line in lines if "hidden.weight" in line),
    "Where the time goes": lambda lines: next(line for line in lines if "gemm" in line.lower()),
    "In Python": check_python,
}


def test_examples_run(page: Page, address: str) -> None:
    page.goto(address + "examples.html")
    titles = [re.sub(r"\W+$", "", title) for title in page.locator("h2").all_inner_texts()]
    cells = page.locator(".example").all()
    assert titles[1:] == list(CHECKS) and len(cells) == len(titles)  # the first is the front page's
    for title, cell in zip(titles[1:], cells[1:], strict=True):
        CHECKS[title](run(cell))


def test_search_finds_a_page(page: Page, address: str) -> None:
    page.goto(address + "docs/deploy.html")
    page.get_by_role("textbox", name="Search").fill("checkpoint")
    page.locator(".md-search-result__link").first.wait_for()
    assert page.locator(".md-search-result__link").count() > 3


def test_demo_opens_in_place(page: Page, address: str) -> None:
    page.goto(address + "index.html")
    page.get_by_role("button", name="Start the demo").click()
    frame = page.frame_locator("iframe.live")
    frame.locator("#start:enabled").wait_for(timeout=RUN_MS)


@pytest.mark.page_errors("404")  # optional files of JupyterLite
def test_notebook_trains_and_draws_in_jupyterlite(page: Page, address: str) -> None:
    page.goto(address + "lab/lab/index.html?path=first.ipynb")
    cells = page.locator(".jp-CodeCell")
    cells.locator(".cm-content").first.click(timeout=RUN_MS)
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output", has_text="step 300")
    output.wait_for(timeout=2 * RUN_MS)
    check_log(output.inner_text())
    page.keyboard.press("Shift+Enter")
    # A bar of tqdm to its end, and curves of matplotlib.
    bar = cells.nth(1).locator(".jp-OutputArea-output", has_text="150/150")
    bar.wait_for(timeout=2 * RUN_MS)
    assert "Warning" not in bar.inner_text()
    picture = cells.nth(1).locator("img")
    picture.wait_for(timeout=RUN_MS)
    assert (picture.get_attribute("src") or "").startswith("data:image/png;base64,")
    assert picture.evaluate("(image) => image.naturalWidth") > 200


@pytest.mark.page_errors("404")
def test_example_notebook_runs_in_jupyterlite(page: Page, address: str) -> None:
    """With its data and model beside it."""
    page.goto(address + "lab/lab/index.html?path=tabular.ipynb")
    page.locator(".jp-CodeCell .cm-content").first.click(timeout=RUN_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".jp-OutputArea-output", has_text=re.compile(r"^(np\.float64\()?(0\.9\d*|1\.0)\)?$")).last.wait_for(
        timeout=2 * RUN_MS
    )
