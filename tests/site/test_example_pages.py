"""The pages of examples/ in the site: each runs above its source, and what is changed there runs, too."""

import json
import re

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, Page, expect
from tests.browser.conftest import (
    PageErrors,
    camera_browser,  # noqa: F401 - a fixture
    watched_page,
)
from tests.browser.test_examples import CAMERA_PROMISE, EXAMPLES, PROMISES
from tests.browser.test_teach_page import stripes

from .conftest import FOLDER, stay
from .test_site import RUN_MS, strangers, type_code  # noqa: F401 - a fixture among them


def shown(page: Page) -> FrameLocator:
    return page.frame_locator("iframe.page")


def check_promise(frame: FrameLocator, promise: tuple[str, float, float]) -> None:
    log = frame.locator("#log")
    expect(log).to_contain_text("done:", timeout=RUN_MS)
    pattern, lowest, highest = promise
    text = log.inner_text()
    found = re.search(pattern, text)
    assert found is not None and lowest <= float(found[1]) <= highest, text


@pytest.mark.parametrize("name", PROMISES)
def test_a_page_keeps_its_promise_in_the_site(name: str, page: Page, page_errors: PageErrors, address: str) -> None:
    page.goto(f"{address}examples/{name}.html")
    frame = shown(page)
    frame.locator("#train").click()
    check_promise(frame, PROMISES[name])
    assert page.locator(".cell-output").is_hidden(), page.locator(".cell-output").inner_text()
    assert page_errors.messages == []
    # Nothing of it is cut off, and the page beside it need not be scrolled sideways.
    inner = page.frames[1]
    assert inner.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_camera_can_be_used_in_the_site(camera_browser: Browser, address: str) -> None:  # noqa: F811
    page, errors = watched_page(camera_browser)
    stay(page)
    page.goto(f"{address}examples/camera.html")
    frame = shown(page)
    frame.locator(".record").first.click()
    expect(frame.locator(".count output").first).to_have_text("20", timeout=60_000)
    files = [{"name": f"{k}.png", "mimeType": "image/png", "buffer": stripes(k)} for k in range(20)]
    frame.locator(".files").nth(1).set_input_files(files)  # type: ignore[arg-type]
    frame.locator("#train").click()
    check_promise(frame, CAMERA_PROMISE)
    assert errors.messages == []
    page.context.close()


def editor(page: Page) -> Locator:
    return page.locator(".example")


def test_what_is_changed_is_what_runs(page: Page, address: str) -> None:
    page.goto(f"{address}examples/tabular.html")
    cell = editor(page)
    expect(shown(page).locator("h1")).to_have_text("Which grape?")
    source = (EXAMPLES / "tabular.html").read_text().replace("../dist/npm/", "../trainweb/")
    changed = source.replace("Which grape?", "Changed").replace("EPOCHS = 60", "EPOCHS = 2")
    type_code(cell, changed)
    cell.get_by_role("button", name="Run").click()
    frame = shown(page)
    expect(frame.locator("h1")).to_have_text("Changed")
    assert page.locator("iframe.page").count() == 1
    frame.locator("#train").click()
    expect(frame.locator("#log")).to_contain_text(re.compile("done: epoch [12] "), timeout=RUN_MS)
    cell.get_by_role("button", name="Reset").click()
    cell.get_by_role("button", name="Run").click()
    expect(shown(page).locator("h1")).to_have_text("Which grape?")


@pytest.mark.page_errors("mine")
def test_errors_and_lines_of_a_page_are_shown(page: Page, address: str) -> None:
    page.goto(f"{address}examples/digits.html")
    cell = editor(page)
    expect(shown(page).locator("#train")).to_be_visible()
    type_code(cell, "<p>short</p><script type=module>console.log(6n * 7n); throw new RangeError('mine');</script>")
    cell.get_by_role("button", name="Run").click()
    expect(cell.locator(".cell-output")).to_contain_text("RangeError: mine")
    assert cell.locator(".cell-output").inner_text().splitlines() == ["42", "RangeError: mine"]


def test_every_example_is_listed_with_its_notebook(page: Page, address: str) -> None:
    names = sorted(path.stem for path in EXAMPLES.glob("*.html"))
    page.goto(f"{address}examples/index.html")
    links = [link.get_attribute("href") or "" for link in page.locator("article .gallery a").all()]
    pages = sorted(link.removesuffix(".html") for link in links if "?" not in link and not link.startswith("../"))
    notebooks = sorted(re.findall(r"path=(\w+)\.ipynb", "\n".join(links)))
    assert pages == notebooks == names
    pictures = page.locator(".gallery img")
    demos = [link for link in links if re.fullmatch(r"\.\./\w+/index\.html", link)]
    assert demos and pictures.count() == len(names) + len(demos)
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        expect(picture).to_have_js_property("naturalWidth", 960)
    contents = json.loads((FOLDER / "lab" / "api" / "contents" / "all.json").read_text())
    assert {f"{name}.ipynb" for name in names} <= {entry["name"] for entry in contents["content"]}
