"""The demo that learns to write: a language model from scratch, in Chromium with its own text."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from playwright.sync_api import Browser, Page, expect

from .conftest import axe_violations, require_built, silent_page
from .server import ROOT, Site

# isort: split
# In scripts/, which conftest puts on the path.
from demo import PHONE, build_writes_page, serve
from make_writer_model import CONTEXT, VOCABULARY

READY_MS = 240_000
PROVERB = "time is money.\n"
"""A shorter one is learned in half the steps."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    require_built(ROOT / "dist" / "npm" / "index.js")
    build_writes_page()
    site = serve(isolated=False)
    yield site
    site.close()


@pytest.fixture(scope="module")
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """The page, loaded without isolation."""
    with silent_page(browser, READY_MS) as page:
        page.goto(site.url("/writes/index.html"))
        expect(page.locator("#train")).to_be_enabled(timeout=READY_MS)
        yield page


def train(page: Page, goal: float) -> None:
    """Press the button, and again when the loss is below the goal. The number of rounds differs: batches are random."""
    page.click("#train")
    loss = "parseFloat(document.querySelector('#round').textContent.split(': ')[1])"
    page.wait_for_function(f"{loss} < {goal}", timeout=READY_MS)
    page.click("#train")
    expect(page.locator("#status")).to_have_text("Paused.", timeout=READY_MS)


def test_it_says_what_it_takes_and_learns_a_proverb_by_heart(page: Page, tmp_path: Path) -> None:
    told = re.compile(r"The page takes some 2\d\d MB of memory\. 25 steps take about \d+ s on the CPU\.")
    expect(page.locator("#needs")).to_have_text(told)
    expect(page.locator("#save")).to_be_disabled()
    page.fill("#text", PROVERB * 900)
    page.fill("#beginning", "time is")
    train(page, goal=0.2)
    page.locator("#temperature").fill("0.2")
    page.click("#write")
    expect(page.locator("#write")).to_be_enabled(timeout=READY_MS)
    assert PROVERB in (page.text_content("#sample") or "")

    for button, name in (("#save", "writer.checkpoint"), ("#export", "writer.onnx")):
        with page.expect_download() as download:
            page.click(button)
        download.value.save_as(tmp_path / name)
    # The exported model continues the proverb in the reference evaluator of onnx, too.
    ids = np.array([[ord(c) - 32 if c != "\n" else VOCABULARY - 1 for c in PROVERB * 4]])
    (logits,) = ReferenceEvaluator(onnx.load(tmp_path / "writer.onnx")).run(["logits"], {"ids": ids})
    right = logits[0, :-1].argmax(-1) == ids[0, 1:]
    assert ids.shape[1] <= CONTEXT and right[len(PROVERB) :].mean() > 0.9

    page.reload()
    expect(page.locator("#train")).to_be_enabled(timeout=READY_MS)
    page.fill("#beginning", "time is")
    page.locator("#temperature").fill("0.2")
    page.set_input_files("#resume", tmp_path / "writer.onnx")
    expect(page.locator("#alert")).to_contain_text("cannot be resumed: This is an ONNX model", timeout=READY_MS)
    page.set_input_files("#resume", tmp_path / "writer.checkpoint")
    expect(page.locator("#status")).to_have_text("writer.checkpoint goes on where it was saved.", timeout=READY_MS)
    page.click("#write")
    expect(page.locator("#write")).to_be_enabled(timeout=READY_MS)
    assert PROVERB in (page.text_content("#sample") or "")


def test_a_beginning_outside_of_the_alphabet_is_a_new_line(page: Page) -> None:
    beginning = "\N{CJK UNIFIED IDEOGRAPH-65E5}\N{CJK UNIFIED IDEOGRAPH-672C}"
    page.fill("#beginning", beginning)
    page.click("#write")
    expect(page.locator("#write")).to_be_enabled(timeout=READY_MS)
    expect(page.locator("#alert")).to_be_hidden()
    assert re.fullmatch(f"{beginning}[\n -~]+", page.text_content("#sample") or "")


def test_a_text_that_is_too_short_is_refused(page: Page) -> None:
    page.fill("#text", PROVERB)
    page.click("#train")
    told = re.compile(r"The text has 15 characters of ASCII\. The network needs \d+,\d+")
    expect(page.locator("#alert")).to_have_text(told)
    page.fill("#text", "\U0001f600" * 9000)
    page.click("#train")
    expect(page.locator("#alert")).to_contain_text("The text has 0 characters of ASCII.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert axe_violations(page) == []


def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    # Curves follow the width with the next frames.
    page.wait_for_function(f"document.documentElement.scrollWidth <= {PHONE[0]}")


def test_the_switch_takes_the_gpu(gpu_browser: Browser, site: Site) -> None:
    with silent_page(gpu_browser, READY_MS) as page:
        page.goto(site.url("/writes/index.html"))
        one = re.compile(r" steps take about \d+ s on the CPU\. ")
        expect(page.locator("#needs")).to_have_text(one, timeout=READY_MS)
        page.select_option("#device", "webgpu")
        expect(page.locator("#needs")).to_contain_text(" on the GPU (google)", timeout=READY_MS)
        both = r" steps take about \d+ s on the GPU \(google\); before, \d+ s on the CPU\. "
        assert re.search(both, page.text_content("#needs") or "")
        expect(page.locator("#device")).to_have_value("webgpu")
