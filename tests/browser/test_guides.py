"""The JavaScript of the documents runs in a page; README's: test_readme.py, Python: tests/python/test_documents.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .conftest import watched_page
from .server import ROOT, Site

MAP = '<script type="importmap">{ "imports": { "trainweb": "/dist/npm/index.js" } }</script>'
RUN = """async (code) => {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    await import(address);
}"""


def modules_of(text: str, before: Path) -> list[str]:
    """The programs of a page: a block that imports begins one, which the blocks behind it continue.

    Blocks that stand on a file of tests/guides are blocks of its program, so that each may have the same names.
    """
    if before.exists():
        blocks = re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        return ["\n".join([before.read_text(), *(f"{{ {code} }}" for code in blocks), "await session.release();"])]
    modules: list[str] = []
    for code in re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if code.startswith("import ") or not modules:
            modules.append(code)
        else:
            modules[-1] += code
    return modules


BEFORE = ROOT / "tests" / "guides"
GUIDES = {
    page.name: modules_of(page.read_text(), BEFORE / f"{page.stem}.js") for page in sorted((ROOT / "docs").glob("*.md"))
}


@pytest.fixture(scope="module")
def guide(browser: Browser) -> Iterator[Page]:
    """One page for all, with the package by its name and the README's model beside it."""
    folders = {"/dist/npm/": "dist/npm", "/golden/": "tests/golden", "/": "docs"}
    site = Site(mounts={prefix: [ROOT / folder] for prefix, folder in folders.items()})
    page, errors = watched_page(browser)
    page.goto(site.add("/guide.html", f'<!doctype html><base href="/"><link rel="icon" href="data:,">{MAP}'))
    yield page
    page.context.close()
    site.close()
    assert errors.messages == []


@pytest.mark.parametrize("name", [name for name, modules in GUIDES.items() if modules])
def test_javascript_of_the_documents_runs(guide: Page, name: str) -> None:
    for module in GUIDES[name]:
        guide.evaluate(RUN, module)


def test_errors_of_the_page_name_their_section(guide: Page) -> None:
    address = guide.evaluate("""async () => {
        const { InferenceSession } = await import("trainweb");
        return InferenceSession.create(new Uint8Array(8)).catch((error) => error.documentation);
    }""")
    assert address == "https://github.com/trainweb/trainweb/blob/main/docs/errors.md#modelerror"
