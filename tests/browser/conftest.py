"""Fixtures of the browser tests: Chromium, local sites, pages that fail on errors, a notebook."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import playwright
import pytest
from chromium import find_chromium, find_headless
from playwright.sync_api import Browser, BrowserType, Page, expect, sync_playwright
from steps import BuildError

from .kernel import Kernel
from .server import ROOT, Site
from .webgpu import SWIFTSHADER

if TYPE_CHECKING:
    from .js_session import JsPage

PLAYWRIGHT = Path(playwright.__file__).parent / "driver" / "package" / "lib" / "coreBundle.js"
ADDRESS_BAR = ("WebUIOmniboxPopup", "WebUIOmniboxFullPopup", "WebUIOmniboxAimPopup")
"""Each window would start a process for the suggestions of its address bar: 0.8 s of processor time a test."""
SPARES = ("SpareRendererForSitePerProcess",)
"""Each page would start a process for the next one: 0.1 s of processor time. A new process is that of the new page."""


def without_features() -> str:
    """The switch for features that Chromium goes without. It replaces Playwright's switch, so it has those, too."""
    (listed,) = re.findall(r"\bdisabledFeatures = \[(.*?)\]", PLAYWRIGHT.read_text(), re.DOTALL)
    names_of_playwright = re.findall(r'^ *"(\w+)"', listed, re.MULTILINE)
    assert "HttpsUpgrades" in names_of_playwright
    return f"--disable-features={','.join((*names_of_playwright, *ADDRESS_BAR, *SPARES))}"


CHROMIUM_FLAGS = [
    "--no-sandbox",  # the tests run as root in containers
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # containers have a small /dev/shm
    without_features(),
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # http://app.test is no secure context, as 127.0.0.1 is
]
BASELINE = "--js-flags=--no-wasm-tier-up,--no-wasm-dynamic-tiering"
"""WebAssembly runs as the first compiler leaves it. The second takes 0.4 s of processor time for the loop of Python's
interpreter alone, soon after each start of Python and with any budget."""
OPTIMIZED = {
    "test_behaviours.py",
    "test_demo.py",
    "test_engine.py",
    "test_examples.py",
    "test_guides.py",
    "test_js_generate.py",
    "test_js_golden.py",
    "test_js_numerics.py",
    "test_js_pretrained.py",
    "test_notebook.py",
    "test_teach_page.py",
    "test_voice_page.py",
    "test_writes_page.py",
    "test_zoo.py",
}
"""Files whose subject is arithmetic, or whose pages compute so long that the second compiler pays: the demo takes 44 s
of processor time with it, 62 s without. Pages with a camera or a GPU have it, too."""
SEEDED = "let state = 1; Math.random = () => (state = (1103515245 * state + 12345) % 2147483648) / 2147483648;"
"""Gives a page the same random numbers in each run, so that what it learns does not depend on luck."""
FEW_FRAMES = "requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 250);"
"""A page that trains draws four times a second. Sixty drawings take a third of its processor time."""
PAGE_TIMEOUT_MS = 60_000
expect.set_options(timeout=PAGE_TIMEOUT_MS)  # Playwright's 5 s are too few beside other work


def require_built(*paths: Path) -> None:
    """Fail, naming the files, when the build has not made what a test needs."""
    missing = [str(path.relative_to(ROOT)) for path in paths if not path.exists()]
    if missing:
        pytest.fail(f"not built: {', '.join(missing)}; run ./build.sh", pytrace=False)


def installed(find: Callable[[bool], str]) -> str:
    """Path of a browser; the test fails when there is none."""
    try:
        return find(False)
    except BuildError as error:
        pytest.fail(f"{error}\n./build.sh setup installs one", pytrace=False)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The Chromium to drive where a test needs more than the headless shell."""
    return installed(find_chromium)


@pytest.fixture(scope="session")
def chromium() -> Iterator[BrowserType]:
    """Playwright's driver of Chromium."""
    with sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture(scope="session")
def quick_browser(chromium: BrowserType) -> Iterator[Browser]:
    """A headless shell of Chromium, or Chromium itself where there is no shell, that does not optimize WebAssembly."""
    with chromium.launch(executable_path=installed(find_headless), args=[*CHROMIUM_FLAGS, BASELINE]) as browser:
        yield browser


@pytest.fixture(scope="session")
def optimizing_browser(chromium: BrowserType) -> Iterator[Browser]:
    """A headless shell with both compilers of WebAssembly."""
    with chromium.launch(executable_path=installed(find_headless), args=CHROMIUM_FLAGS) as browser:
        yield browser


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Browser:
    """One browser for the whole run: of two kinds, by the file of the test."""
    kind = "optimizing" if request.path.name in OPTIMIZED else "quick"
    chosen: Browser = request.getfixturevalue(f"{kind}_browser")
    return chosen


CAMERA = ["--use-fake-device-for-media-stream=fps=5", "--use-fake-ui-for-media-stream"]
"""A green picture with a moving shape and the time, five times a second; permission is given."""


@pytest.fixture(scope="module")
def camera_browser(chromium: BrowserType, chromium_path: str) -> Iterator[Browser]:
    """A Chromium with a camera: its flags count for the whole browser."""
    with chromium.launch(executable_path=chromium_path, args=[*CHROMIUM_FLAGS, *CAMERA]) as browser:
        yield browser


@pytest.fixture(scope="session")
def gpu_browser(chromium: BrowserType, chromium_path: str) -> Iterator[Browser]:
    """A Chromium with the software adapter of WebGPU."""
    with chromium.launch(executable_path=chromium_path, args=[*CHROMIUM_FLAGS, *SWIFTSHADER]) as browser:
        yield browser


@pytest.fixture(scope="session")
def plain_site() -> Iterator[Site]:
    """A server without isolation headers: one thread, no shared memory."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="session")
def isolated_site() -> Iterator[Site]:
    """A server that sends COOP and COEP: its pages are cross-origin isolated."""
    site = Site(isolated=True)
    yield site
    site.close()


@pytest.fixture(params=["plain", "isolated"])
def site(request: pytest.FixtureRequest) -> Site:
    """Both kinds of site in turn, for tests that must pass on either."""
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found


@pytest.fixture
def make_site() -> Iterator[Callable[..., Site]]:
    """Start further servers (another origin, a Content-Security-Policy); closed after the test."""
    sites: list[Site] = []

    def make(**options: object) -> Site:
        sites.append(Site(**options))  # type: ignore[arg-type]
        return sites[-1]

    yield make
    for one in sites:
        one.close()


class PageErrors:
    """Complaints of a page: uncaught errors, console errors, crashes."""

    def __init__(self, page: Page) -> None:
        self.messages: list[str] = []
        page.on("pageerror", lambda error: self.messages.append(f"uncaught: {error}"))
        page.on("crash", lambda _: self.messages.append("the page crashed"))
        page.on(
            "console",
            lambda line: (
                self.messages.append(f"console: {line.text} ({line.location['url']})") if line.type == "error" else None
            ),
        )

    def unexpected(self, patterns: tuple[str, ...]) -> list[str]:
        """The messages that none of `patterns` matches."""
        return [message for message in self.messages if not any(re.search(pattern, message) for pattern in patterns)]


def watched_page(browser: Browser) -> tuple[Page, PageErrors]:
    """Open a page in a fresh context (own storage) and collect its errors."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    return page, PageErrors(page)


@contextlib.contextmanager
def silent_page(browser: Browser, timeout_ms: int) -> Iterator[Page]:
    """Open a page in a fresh context; it sends nothing, and logs no error."""
    page, errors = watched_page(browser)
    page.add_init_script(FEW_FRAMES)
    page.set_default_timeout(timeout_ms)
    sent: list[str] = []
    page.on("request", lambda r: sent.append(r.url) if r.method != "GET" else None)
    yield page
    page.context.close()
    assert sent == []
    if errors.messages:
        pytest.fail("errors in the page:\n" + "\n".join(errors.messages), pytrace=False)


def axe_violations(page: Page) -> list[str]:
    """Run all rules of axe-core, WCAG 2.2 AA and best practices."""
    page.add_script_tag(path=ROOT / "node_modules" / "axe-core" / "axe.min.js")
    found: list[str] = page.evaluate("""async () => {
        const { violations } = await axe.run(document);
        return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join("; ")}`);
    }""")
    return found


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[tuple[Page, PageErrors]]:
    """A fresh page and what it complains about; see `page`."""
    fresh, errors = watched_page(browser)
    yield fresh, errors
    fresh.context.close()
    marker = request.node.get_closest_marker("page_errors")
    unexpected = errors.unexpected(marker.args if marker else ())
    if unexpected:
        pytest.fail("errors in the page:\n" + "\n".join(unexpected), pytrace=False)


@pytest.fixture
def page(watched: tuple[Page, PageErrors]) -> Page:
    """A fresh page; the test fails when the page logs an error that it did not announce.

    Announce with `@pytest.mark.page_errors("regular expression", ...)`.
    """
    return watched[0]


@pytest.fixture
def page_errors(watched: tuple[Page, PageErrors]) -> PageErrors:
    """The complaints of the page of `page` so far."""
    return watched[1]


@contextlib.contextmanager
def open_kernel(browser: Browser, site: Site, *, main_thread: bool = False) -> Iterator[Kernel]:
    """Boot a stock Pyodide with micropip in a separate page; errors of the page fail the test."""
    require_built(ROOT / ".build" / "pyodide" / "pyodide.mjs", ROOT / ".build" / "wheels")
    if not list((ROOT / "dist").glob("trainweb-*.whl")):
        pytest.fail("not built: the wheel in dist/; run ./build.sh", pytrace=False)
    page, errors = watched_page(browser)
    kernel = Kernel(page, site, main_thread=main_thread)
    kernel.boot()
    yield kernel
    page.context.close()
    if errors.messages:
        pytest.fail("errors in the page:\n" + "\n".join(errors.messages), pytrace=False)


@pytest.fixture(scope="module")
def pyodide_page(browser: Browser, plain_site: Site) -> Iterator[Kernel]:
    """Stock Pyodide in a page with `micropip.install("trainweb")` done, shared by a module."""
    with open_kernel(browser, plain_site) as kernel:
        kernel.install()
        yield kernel


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    """A page with the package, shared by a module."""
    from .js_session import open_js_page  # which needs this module

    with open_js_page(browser, plain_site) as page:
        yield page


@pytest.fixture(scope="module")
def gpu(gpu_browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    """A page of a browser with WebGPU, shared by a module."""
    from .js_session import open_js_page

    with open_js_page(gpu_browser, plain_site) as page:
        yield page


@pytest.fixture(scope="module")
def isolated(browser: Browser, isolated_site: Site) -> Iterator[JsPage]:
    """The same in a cross-origin isolated page, whose sessions may have several threads."""
    from .js_session import open_js_page

    with open_js_page(browser, isolated_site) as page:
        yield page


@pytest.fixture(scope="module", params=["js", "isolated"])
def either(request: pytest.FixtureRequest) -> JsPage:
    """Both kinds of page in turn."""
    found: JsPage = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def mlp_site(plain_site: Site) -> Site:
    """A site with the bundle of the mlp, with and without models."""
    from .bundles import mlp_bundle  # which needs this module

    plain_site.add("/bundles/mlp", mlp_bundle())
    plain_site.add("/bundles/bare", mlp_bundle(models=False))
    return plain_site
