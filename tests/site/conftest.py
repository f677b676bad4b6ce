"""Fixtures: the browser tests' fixtures, and the site below a folder of a separate server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.browser.conftest import (  # noqa: F401 - fixtures
    browser,
    chromium_path,
    page,
    page_errors,
    require_built,
    watched,
)
from tests.browser.server import ROOT, Site

FOLDER = ROOT / "dist" / "site"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The site's place: in a sub-folder, with no headers that help it."""
    require_built(FOLDER / "index.html")
    site = Site(mounts={"/some/folder/": (FOLDER,)})
    site.add("/favicon.ico", b"")
    yield site.url("/some/folder/")
    site.close()
