"""The pages and notebooks of examples/: each trains to what it promises."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import examples
import make_example_models
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import FEW_FRAMES, SEEDED, PageErrors, watched_page
from .server import ROOT, Site
from .test_readme import wait_for_log
from .test_teach_page import stripes

EXAMPLES = ROOT / "examples"
MOST_LINES = 150

#: What the line "done: ..." of a page must say: a number of it, and its bounds.
PROMISES: dict[str, tuple[str, float, float]] = {
    "digits": (r"done: ([\d.]+) %", 93, 100),
    "federated": (r"done: ([\d.]+) %", 80, 100),
    "personal": (r"then ([\d.]+)", 0, 0.5),
    "recommender": (r"R2 ([\d.]+)", 0.6, 1),
    "sentences": (r"done: ([\d.]+) %", 90, 100),
    "style": (r"([\d.]+) with it", 0, 0.35),
    "tabular": (r"([\d.]+) % of the \d+ test wines", 90, 100),
    "timeseries": (r"off by ([\d.]+);", 0, 0.1),
}
#: Numbers of rows that keep the promise of a page in fewer steps, by those of the page.
FEWER_ROWS: dict[str, dict[str, str]] = {"style": {"4160": "2560", "2400": "1600"}}
#: The page that needs a camera, and the same of it.
CAMERA_PROMISE = (r"done: ([\d.]+) %", 90, 100)
#: What a notebook has in `result` at its end.
RESULTS: dict[str, tuple[float, float]] = {
    "camera": (0.9, 1),
    "digits": (0.93, 1),
    "federated": (0.8, 1),
    "personal": (0, 0.5),
    "recommender": (0.6, 1),
    "sentences": (0.9, 1),
    "style": (0, 0.35),
    "tabular": (0.9, 1),
    "timeseries": (0, 0.1),
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    examples.make_bundle()
    examples.make_backbone()
    site = examples.serve()
    yield site
    site.close()


def test_every_example_is_a_page_and_a_notebook() -> None:
    pages = {path.stem for path in EXAMPLES.glob("*.html")}
    assert pages == {*PROMISES, "camera"}
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(RESULTS)
    listed = re.findall(r"\((\w+)\.html\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(pages)


def train(page: Page, page_errors: PageErrors, site: Site, name: str) -> None:
    """Press the button of an example, and compare what it says at its end with its promise."""
    source = (EXAMPLES / f"{name}.html").read_text()
    assert len(source.splitlines()) < MOST_LINES
    for rows, fewer in FEWER_ROWS.get(name, {}).items():
        assert source.count(f", {rows})") == 1
        source = source.replace(f", {rows})", f", {fewer})")
    page.add_init_script(SEEDED + FEW_FRAMES)
    page.goto(site.add(f"/examples/{name}.html", source))
    page.click("#train")
    pattern, lowest, highest = PROMISES[name]
    text = wait_for_log(page, page_errors, "done:")
    found = re.search(pattern, text)
    assert found is not None and lowest <= float(found[1]) <= highest, text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", sorted({*PROMISES} - {"digits", "personal", "tabular", "timeseries"}))
def test_a_page_keeps_its_promise(name: str, page: Page, page_errors: PageErrors, site: Site) -> None:
    """So do the others, in the tests below."""
    train(page, page_errors, site, name)


def test_the_second_visit_starts_from_the_weights_of_the_first(page: Page, page_errors: PageErrors, site: Site) -> None:
    train(page, page_errors, site, "personal")
    site.clear_log()
    page.reload()
    page.click("#train")
    assert "weights of the last visit" in wait_for_log(page, page_errors, "done:")
    assert not site.requests("/dist/npm/python/")


def test_the_forecast_beats_the_mean(page: Page, page_errors: PageErrors, site: Site) -> None:
    """And zero, which is nearly the mean, by far: of waves whose values are known."""
    train(page, page_errors, site, "timeseries")
    text = page.inner_text("#log")
    found = re.search(r"off by ([\d.]+); always the mean would be off by ([\d.]+)", text)
    assert found is not None, text
    times = 832 + np.arange(200)[:, None] + 64 + np.arange(32)
    waves = 0.6 * np.sin(times / 5) + 0.4 * np.sin(times / 13)
    zero = np.abs(waves).mean()
    # The noise moves single values by 0.02 at most.
    assert float(found[2]) == pytest.approx(zero, abs=0.05)
    assert float(found[1]) < zero / 4


def test_a_page_trains_again(page: Page, page_errors: PageErrors, site: Site) -> None:
    """Without a reload, after a file that it cannot read: this is said beside the button."""
    train(page, page_errors, site, "tabular")
    page.set_input_files("#file", {"name": "a.csv", "mimeType": "text/csv", "buffer": b"colour\nred\n"})
    page.click("#train")
    expect(page.locator("#log.failed")).to_contain_text("has no column 'alcohol'", timeout=60_000)
    page.set_input_files("#file", [])
    page.click("#train")
    expect(page.locator("#log")).not_to_contain_text("done:")
    assert "% of the 44 test wines are right" in wait_for_log(page, page_errors, "done:")
    # The visitor's own wine: the probabilities are 1 in all, and follow the numbers.
    answer = page.locator("#answer")
    before = answer.inner_text()
    assert abs(sum(map(int, re.findall(r"(\d+) %", before))) - 100) <= 1
    page.locator("#wine input[name=proline]").fill("1700")
    page.locator("#wine input[name=flavanoids]").fill("4")
    expect(answer).not_to_have_text(before)


def test_a_drawn_one_is_read(page: Page, page_errors: PageErrors, site: Site) -> None:
    train(page, page_errors, site, "digits")
    pad = page.locator("#pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(middle, box["y"] + 160, steps=10)
    page.mouse.up()
    expect(page.locator("#answer")).to_have_text("This is a 1.")


def test_the_parts_of_a_table_share_no_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What chooses the epoch is not what is reported."""
    _, *code = cells("tabular")
    (tmp_path / "data").symlink_to(EXAMPLES / "data")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(code[0] + "\n" + code[1], scope)
    parts = [{row["features"].tobytes() for row in scope[name]} for name in ("training", "validation", "test")]
    assert [len(part) for part in parts] == [101, 33, 44]
    assert len(set.union(*parts)) == 178
    source = (EXAMPLES / "tabular.html").read_text()
    assert re.findall(r"validationData: (\w+)\.preprocess\(scaling\)", source) == ["validation"]
    assert re.findall(r"validation_data=(\w+)", "\n".join(code)) == ["validation"]


def test_the_camera_and_files_are_told_apart(camera_browser: Browser, site: Site) -> None:
    page, errors = watched_page(camera_browser)
    assert len((EXAMPLES / "camera.html").read_text().splitlines()) < MOST_LINES
    page.add_init_script(SEEDED + FEW_FRAMES)
    page.goto(site.url("/examples/camera.html"))
    page.locator(".record").first.click()
    expect(page.locator(".count output").first).to_have_text("20", timeout=60_000)
    expect(page.locator("#train")).to_be_disabled()
    files = [{"name": f"{k}.png", "mimeType": "image/png", "buffer": stripes(k)} for k in range(20)]
    page.locator(".files").nth(1).set_input_files(files)  # type: ignore[arg-type]
    page.click("#train")
    text = wait_for_log(page, errors, "done:")
    pattern, lowest, highest = CAMERA_PROMISE
    found = re.search(pattern, text)
    assert found is not None and lowest <= float(found[1]) <= highest, text
    expect(page.locator("#guess")).to_have_text("The camera shows this.", timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()


def cells(name: str) -> list[str]:
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep) if name == "style" else name for name in RESULTS]
)
def test_a_notebook_keeps_its_promise(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lowest, highest = RESULTS[name]
    assert lowest <= run_notebook(name, monkeypatch, tmp_path) <= highest


def test_the_longest_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a tenth of its rows: its page keeps the same promise, and the sweep runs it whole."""
    assert run_notebook("style", monkeypatch, tmp_path, ("4160", "416"), ("2400", "240")) > 0


def run_notebook(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *changes: tuple[str, str]) -> float:
    """Run cell after cell in one scope; what a cell ends with is shown, as a notebook does. Return its result."""
    if name == "camera":
        examples.make_backbone()
    install, *code = cells(name)
    assert install == "%pip install trainweb"
    assert sum(len(cell.splitlines()) for cell in code) < MOST_LINES
    for folder in ("models", "data"):
        (tmp_path / folder).symlink_to(EXAMPLES / folder)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for cell in code:
        for old, new in changes:
            cell = cell.replace(f", {old})", f", {new})")
        tree = ast.parse(cell)
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(tree.body[:-1], []), f"{name}.ipynb", "exec"), scope)
            value = eval(compile(ast.Expression(last.value), f"{name}.ipynb", "eval"), scope)
            show: Callable[[], str] = getattr(value, "_repr_html_", lambda: "")
            assert isinstance(show(), str)
        else:
            exec(compile(tree, f"{name}.ipynb", "exec"), scope)
    return float(scope["result"])


def test_the_models_are_what_their_script_writes() -> None:
    tracked = set((EXAMPLES / "models").glob("*.onnx")) - {examples.BACKBONE}
    files = {path.stem: path.read_bytes() for path in tracked}
    made = {name: make() for name, make in make_example_models.MODELS.items()}
    assert files == {name: model.SerializeToString(deterministic=True) for name, model in made.items()}


def test_examples_carry_no_more_than_they_need() -> None:
    """Two mebibytes in all: they are in every clone."""
    made = {examples.BACKBONE, examples.BUNDLE}
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and path not in made]
    assert sum(path.stat().st_size for path in files) < 2 << 20
