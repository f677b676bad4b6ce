"""Fixtures: the browser tests' fixtures, and the site below a folder of a separate server."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page as BrowserPage
from tests.browser.conftest import (  # noqa: F401 - fixtures
    chromium,
    chromium_path,
    page,
    page_errors,
    require_built,
    watched,
)
from tests.browser.conftest import optimizing_browser as browser  # noqa: F401
from tests.browser.server import ROOT, Site

FOLDER = ROOT / "dist" / "site"


def stay(to_visit: BrowserPage) -> None:
    """Let isolate.js load no page anew: a test may have begun to use it."""
    to_visit.add_init_script("sessionStorage.setItem('trainweb-isolate', '')")


@pytest.fixture(autouse=True)
def stays(request: pytest.FixtureRequest) -> None:
    """The same for the page of a test."""
    if "page" in request.fixturenames:
        stay(request.getfixturevalue("page"))


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The site's place: in a sub-folder, with no headers that help it."""
    require_built(FOLDER / "index.html")
    site = Site(mounts={"/some/folder/": (FOLDER,)})
    site.add("/favicon.ico", b"")
    yield site.url("/some/folder/")
    site.close()
