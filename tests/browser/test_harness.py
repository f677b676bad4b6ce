"""The test harness itself: sites, isolation, the byte log, error collection. test_notebook.py has the kernel."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .conftest import OPTIMIZED, watched_page
from .server import Site


def test_only_the_isolated_site_isolates(page: Page, plain_site: Site, isolated_site: Site) -> None:
    page.goto(plain_site.url("/tests/blank.html"))
    assert page.evaluate("crossOriginIsolated") is False
    page.goto(isolated_site.url("/tests/blank.html"))
    assert page.evaluate("crossOriginIsolated") is True


def test_log_counts_the_bytes_of_each_folder(page: Page, plain_site: Site) -> None:
    plain_site.add("/counted/data.bin", bytes(12_345))
    plain_site.clear_log()
    page.goto(plain_site.url("/tests/blank.html"))
    page.evaluate("fetch('/counted/data.bin').then((reply) => reply.arrayBuffer())")
    assert plain_site.bytes_served("/counted/") == 12_345
    assert plain_site.requests() == ["/tests/blank.html", "/counted/data.bin"]


def test_paths_outside_the_folders_are_not_served(plain_site: Site) -> None:
    assert plain_site._find("/golden/../../pyproject.toml").status == 404
    assert plain_site._find("/golden/README.md").status == 200


def test_listed_files_are_there() -> None:
    assert {path.name for path in Path(__file__).parent.iterdir()} >= OPTIMIZED


def test_errors_of_a_page_are_collected(browser: Browser, plain_site: Site) -> None:
    page, errors = watched_page(browser)
    plain_site.add("/bad.html", "<script>console.error('one'); throw new Error('two')</script>")
    page.goto(plain_site.url("/bad.html"))
    while len(errors.unexpected(("favicon",))) < 2:
        page.wait_for_timeout(10)
    page.context.close()
    assert errors.unexpected(("one", "two", "favicon")) == []


@pytest.mark.page_errors("Content Security Policy")
def test_content_security_policy_is_sent(page: Page, make_site) -> None:
    site = make_site(csp="connect-src 'none'")
    page.goto(site.url("/tests/blank.html"))
    outcome = page.evaluate("fetch('/golden/README.md').then(() => 'fetched', () => 'refused')")
    assert outcome == "refused"
