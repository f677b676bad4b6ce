"""Drive the JavaScript package from a test: expressions in a page, tensors as JSON."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Worker

from .conftest import PAGE_TIMEOUT_MS, require_built, watched_page
from .server import ROOT, Site

NEEDED = (
    ROOT / "dist" / "npm" / "index.js",
    ROOT / "dist" / "npm" / "python" / "snapshot.bin",
    ROOT / ".build" / "pyodide" / "pyodide.mjs",
)


READY = """(timeout) => new Promise((resolve, reject) => {
  const deadline = performance.now() + timeout;
  const look = () => {
    if (window.ready) resolve();
    else if (performance.now() > deadline) reject(new Error("the package did not load"));
    else setTimeout(look, 10);
  };
  look();
})"""
"""In one evaluation: Playwright's own waiting evaluates anew, which a content security policy forbids."""


def to_json(array: np.ndarray) -> dict[str, Any]:
    """An argument for `toTensor` of the page."""
    return {"type": str(array.dtype), "dims": list(array.shape), "data": array.reshape(-1).tolist()}


def from_json(tensor: dict[str, Any]) -> np.ndarray:
    """The result of `fromTensor` of the page."""
    return np.array(tensor["data"], tensor["type"]).reshape(tensor["dims"])


def expose_python(site: Site, *, other_version: bool = False) -> None:
    """Serve a worker that keeps its Pyodide as the global `python`, for `JsPage.worker`.

    With `other_version` it holds the Pyodide of `env.pyodide.indexURL` for one of another version.
    """
    script = (ROOT / "dist" / "npm" / "worker.js").read_text()
    start = "limitHeap(pyodide)"
    assert script.count(start) == 2
    script = script.replace(start, "limitHeap(globalThis.python=pyodide)")
    if other_version:
        (version,) = set(re.findall(r'"(314\.\d+\.\d+)"', script))
        script = script.replace(version, "314.0.99")
    site.add("/dist/worker.js", script)


class JsPage:
    """A page with the package loaded; Pyodide starts with its first session."""

    def __init__(self, page: Page, site: Site, package: str = "/dist/index.js") -> None:
        self.page = page
        self.site = site
        page.goto(site.url(f"/tests/session.html?package={package}"))
        page.evaluate(READY, PAGE_TIMEOUT_MS)

    def run(self, body: str, **variables: Any) -> Any:
        """Run the body of an async function in which `variables` are set; returns its result."""
        names = ", ".join(variables)
        return self.page.evaluate(f"async ({{{names}}}) => {{ {body} }}", variables)

    @property
    def worker(self) -> Worker:
        (worker,) = self.page.workers
        return worker

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
    """A separate page; fails at the end when the page logged errors that are not `expected`."""
    require_built(*NEEDED)
    page, errors = watched_page(browser)
    yield JsPage(page, site, package)
    page.context.close()
    unexpected = errors.unexpected(expected)
    if unexpected:
        pytest.fail("errors in the page:\n" + "\n".join(unexpected), pytrace=False)
