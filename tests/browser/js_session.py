"""Drive the JavaScript package from a test: expressions in a page, tensors as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from .conftest import require_built, watched_page
from .server import ROOT, Site

NEEDED = (
    ROOT / "dist" / "npm" / "index.js",
    ROOT / "dist" / "npm" / "python" / "snapshot.bin",
    ROOT / ".build" / "pyodide" / "pyodide.mjs",
)


def to_json(array: np.ndarray) -> dict[str, Any]:
    """What `toTensor` of the page takes."""
    return {"type": str(array.dtype), "dims": list(array.shape), "data": array.reshape(-1).tolist()}


def from_json(tensor: dict[str, Any]) -> np.ndarray:
    """What `fromTensor` of the page gives."""
    return np.array(tensor["data"], tensor["type"]).reshape(tensor["dims"])


class JsPage:
    """A page with the package loaded; Pyodide starts with its first session."""

    def __init__(self, page: Page, site: Site, package: str = "/dist/index.js") -> None:
        self.page = page
        self.site = site
        page.goto(site.url(f"/tests/session.html?package={package}"))
        page.wait_for_function("window.ready")

    def run(self, body: str, **variables: Any) -> Any:
        """Run the body of an async function in which `variables` are set; returns its result."""
        names = ", ".join(variables)
        return self.page.evaluate(f"async ({{{names}}}) => {{ {body} }}", variables)

    def failure(self, body: str, **variables: Any) -> dict[str, Any]:
        """The error that a body ends with; the test fails when there is none."""
        error = self.run(f"return failure(async () => {{ {body} }});", **variables)
        assert error is not None, f"no error from: {body}"
        found: dict[str, Any] = error
        return found


@contextmanager
def open_js_page(
    browser: Browser,
    site: Site,
    expected: tuple[str, ...] = (),
    package: str = "/dist/index.js",
) -> Iterator[JsPage]:
    """A page of its own; fails at the end when the page logged errors that are not `expected`."""
    require_built(*NEEDED)
    page, errors = watched_page(browser)
    yield JsPage(page, site, package)
    page.context.close()
    unexpected = errors.unexpected(expected)
    if unexpected:
        pytest.fail("errors in the page:\n" + "\n".join(unexpected), pytrace=False)
