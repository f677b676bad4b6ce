"""dist/site, as `./build.sh site` leaves it: its links, its code cells, its search."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.server import ROOT
from tests.browser.test_readme import check_log, check_ten_lines, refuse_strangers
from tests.python.test_documents import guides

import trainweb

from .conftest import FOLDER, stay

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


@pytest.mark.parametrize(
    ("query", "guides"),
    [
        ("predict", ["fit"]),
        ("GPU", ["webgpu", "faq", "deploy", "migrate", "slow"]),
        ("learning rate", ["losses", "fit", "sessions"]),
        ("checkpoint", ["resume", "sessions"]),
        ("vue", ["deploy"]),
        ("regression", ["table"]),
        ("number of classes", ["losses", "pictures"]),
        ("missing values", ["data", "table"]),
    ],
)
def test_search_answers_with_a_guide(query: str, guides: list[str], page: Page, address: str) -> None:
    page.goto(address + "docs/deploy.html")
    page.get_by_role("textbox", name="Search").fill(query)
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    link = (first.get_attribute("href") or "").split("#")[0].split("?")[0]
    assert Path(urlsplit(link).path).stem in guides and "/api/" not in link


@pytest.mark.parametrize(
    ("query", "guide"),
    [
        ("transfer learning", "pictures"),
        ("freeze layers", "pictures"),
        ("early stopping", "fit"),
        ("confusion matrix", "metrics"),
        ("save model", "resume"),
        ("react", "deploy"),
        ("csv", "table"),
    ],
)
def test_search_names_a_guide_among_the_first_three(query: str, guide: str, page: Page, address: str) -> None:
    page.goto(address + "docs/deploy.html")
    page.get_by_role("textbox", name="Search").fill(query)
    items = page.locator(".md-search-result__item")
    items.first.wait_for()
    links = [item.locator("a").first.get_attribute("href") or "" for item in items.all()[:3]]
    assert guide in [Path(urlsplit(link).path).stem for link in links]


def test_the_first_screen_has_its_points_before_the_package(page: Page, address: str) -> None:
    page.route("**/trainweb/**", lambda route: None)  # it never comes
    page.goto(address + "index.html", wait_until="commit")
    page.wait_for_function("""() => {
        const canvas = document.querySelector("#hero-map");
        if (canvas === null) {
            return false;
        }
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.some((value) => value > 0);
    }""")
    expect(page.locator("#hero-curves")).to_be_hidden()


def test_a_network_learns_on_the_first_screen(page: Page, address: str) -> None:
    """By itself, and without Python."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address + "index.html")
    status = page.locator("#hero-status")
    expect(status).to_contain_text("Done. Epoch 40 of 40", timeout=RUN_MS)
    (share,) = re.findall(r"([\d.]+) % of new points are right", status.inner_text())
    assert float(share) > 90
    assert [url for url in asked if "/python/" in url] == []
    legend = page.locator("trainweb-curves .legend li")
    assert len(legend.all()) == 2
    for part in (status, page.locator("#hero-map"), page.locator(".hero-text .md-button").last):
        box = part.bounding_box()
        assert box is not None and box["y"] + box["height"] < 900
    page.get_by_role("button", name="Train again").click()
    expect(status).not_to_contain_text("Done.")


def test_the_first_screen_fits_on_a_phone(page: Page, address: str) -> None:
    """Nothing is narrower than the rest, and no line of the code is cut."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address + "index.html")
    hero, code = page.locator(".hero").bounding_box(), page.locator(".example").bounding_box()
    assert hero is not None and code is not None and (hero["x"], hero["width"]) == (code["x"], code["width"])
    scroller = page.locator(".cm-scroller")
    scroller.wait_for()
    assert scroller.evaluate("(box) => box.scrollWidth <= box.clientWidth")


def test_signatures_of_the_reference_have_no_escapes() -> None:
    pages = list((FOLDER / "docs" / "api").rglob("*.html"))
    escaped = [str(page) for page in pages if re.search(r"\\&[lg]t;|&amp;[lg]t;", page.read_text())]
    assert len(pages) > 100 and escaped == []


def test_the_demo_has_threads(browser: Browser, address: str) -> None:
    """The site isolates itself: no header of the server helps."""
    page = browser.new_page()
    page.goto(address + "mnist/index.html")
    page.wait_for_function("crossOriginIsolated", timeout=RUN_MS)
    expect(page.locator("#backend")).to_contain_text("cross-origin isolated")
    page.close()


def test_pages_can_be_edited_and_tell_the_version(page: Page, address: str) -> None:
    edits = {"docs/fit.html": "docs/fit.md", "start.html": "site/pages/start.md", "overview.html": "README.md"}
    for link, file in {**edits, "examples/digits.html": "examples/digits.html"}.items():
        page.goto(address + link)
        edit = page.get_by_title("Edit this page").get_attribute("href") or ""
        assert edit.endswith(f"/edit/main/{file}") and (ROOT / file).is_file()
        expect(page.locator(".md-copyright")).to_contain_text(f"trainweb {trainweb.__version__}")


def test_a_guide_has_one_name(page: Page, address: str) -> None:
    """In the menu, in its title and in links that would read like a file's name."""
    page.goto(address + "docs/fit.html")
    links = page.locator(".md-nav--primary .md-nav__item--active a.md-nav__link").all()
    names = {link.get_attribute("href"): link.inner_text() for link in links}
    for link, name in names.items():
        if link and re.fullmatch(r"[a-z]+\.html", link):
            document = (FOLDER / "docs" / link).read_text()
            (title,) = re.findall(r"<h1[^>]*>(.*?)<a", document, re.DOTALL)
            assert name.strip() in ("", re.sub("<.*?>", "", title).strip())
    files = [text for text in page.locator("article a").all_inner_texts() if text.endswith(".md")]
    assert files == []


def test_tabs_keep_the_language_that_was_chosen(page: Page, address: str) -> None:
    page.goto(address + "docs/table.html")
    page.locator(".tabbed-labels label", has_text="Python").first.click()
    page.goto(address + "docs/series.html")
    for code in page.locator(".tabbed-block:visible pre").all():
        assert "await" not in code.inner_text()
    assert page.locator(".tabbed-block:visible").count() == page.locator(".tabbed-set").count() > 3


def test_the_reference_of_sessions_is_in_groups(page: Page, address: str) -> None:
    page.goto(address + "docs/api/javascript/trainweb/classes/TrainingSession.html")
    titles = [re.sub(r"\W+$", "", title) for title in page.locator("article h2").all_inner_texts()]
    assert titles == ["Make", "Train", "Use", "Save", "Look inside"]
    assert "createFromModel" in page.locator("article pre").first.inner_text()
    assert page.locator(".md-sidebar--secondary a", has_text="Get Signature").count() == 0
    page.goto(address + "docs/api/python/trainweb.html")
    section = page.locator("#trainingsession ~ *")
    assert "TrainingSession.from_model(" in section.locator("pre").first.inner_text()
    texts = section.all_inner_texts()
    assert [title for title in titles if title in texts] == titles


KINDS = (
    "index",
    "start",
    "examples/index",
    "examples/tabular",
    "examples",
    "docs/fit",
    "docs/pictures",
    "docs/operators",
    "CHANGELOG",
    "docs/api/index",
    "check/index",
    "mnist/index",
    "teach/index",
    "writes/index",
    "voice/index",
)
"""A page of each kind."""
COVERED = """[...document.querySelectorAll("pre > .md-code__nav")].flatMap((nav) => {
    const code = nav.parentElement.querySelector("code");
    const { paddingTop, lineHeight } = getComputedStyle(code);
    const second = code.getBoundingClientRect().top + parseFloat(paddingTop) + parseFloat(lineHeight);
    return nav.getBoundingClientRect().bottom <= second ? [] : [code.textContent.slice(0, 80)];
})"""
"""Beginnings of the code whose second line has a button on it."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(kind: str, scheme: str, browser: Browser, address: str) -> None:
    page = browser.new_page(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    stay(page)
    page.goto(f"{address}{kind}.html")
    page.wait_for_load_state("networkidle")
    page.add_script_tag(path=ROOT / "node_modules" / "axe-core" / "axe.min.js")
    found = page.evaluate("""async () => {
        const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
        const { violations } = await axe.run(document, { runOnly });
        return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join("; ")}`);
    }""")
    page.close()
    assert found == []


@pytest.mark.parametrize("width", [390, 690])
def test_nothing_is_cut_off_on_small_screens(width: int, browser: Browser, address: str) -> None:
    """Wide tables and code scroll by themselves, by the keyboard, too; buttons cover no second line."""
    page = browser.new_page(viewport={"width": width, "height": 844}, reduced_motion="reduce")
    stay(page)
    for kind in KINDS:
        page.goto(f"{address}{kind}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, kind
        wide = page.locator(".md-typeset__scrollwrap, .md-typeset pre > code")
        assert {element.get_attribute("tabindex") for element in wide.all()} <= {"0"}
        assert page.evaluate(COVERED) == [], kind
    page.close()


CUT = """[...document.querySelectorAll(".md-typeset pre > code")]
    .filter((code) => code.clientWidth > 0 && code.scrollWidth > code.clientWidth)
    .map((code) => code.textContent.slice(0, 60))"""
"""Beginnings of the code that does not fit into its block."""
GUIDES = [page.stem for page in guides()]


@pytest.mark.parametrize("width", [390, 1280])
def test_no_code_of_the_guides_is_cut(width: int, browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, reduced_motion="reduce")
    stay(page)
    for guide in GUIDES:
        page.goto(f"{address}docs/{guide}.html")
        assert page.evaluate(CUT) == [], guide
    page.close()


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
