"""The second demo: classes taught with the camera and with files, in Chromium with its own fake camera."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.test_demo import png

from .conftest import SEEDED, axe_violations, require_built, silent_page, watched_page
from .server import ROOT, Site

# isort: split
# In scripts/, which conftest puts on the path.
from demo import PHONE, TEACH, build_teach_page, serve
from make_teach_model import CLASSES, SIDE, read_weights

READY_MS = 120_000


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    require_built(ROOT / "dist" / "npm" / "index.js")
    build_teach_page()
    site = serve()
    yield site
    site.close()


@pytest.fixture(scope="module")
def page(camera_browser: Browser, site: Site) -> Iterator[Page]:
    """The page, loaded."""
    with silent_page(camera_browser, READY_MS) as page:
        page.add_init_script(SEEDED)
        page.goto(site.url("/teach/index.html"))
        expect(page.locator("#status")).to_have_text(re.compile("Ready"), timeout=READY_MS)
        yield page


def stripes(seed: int) -> bytes:
    """Thick black and white stripes, somewhere."""
    rows = np.indices((120, 160))[0] + 7 * seed
    return png(np.where(rows // 12 % 2, 20, 235).astype(np.uint8))


def files(count: int, first: int = 0) -> list[Any]:
    return [{"name": f"{k}.png", "mimeType": "image/png", "buffer": stripes(first + k)} for k in range(count)]


def test_camera_and_files_are_told_apart_after_seconds(page: Page, tmp_path: Path) -> None:
    expect(page.locator("#next")).to_have_text("Use the camera, or add pictures of each class from files.")
    expect(page.locator(".record").first).to_have_attribute("title", "Use the camera first.")
    expect(page.locator("#train-hint")).to_have_text("No pictures yet: Class 1, Class 2.")
    expect(page.locator("#train")).to_be_disabled()
    expect(page.locator("#try")).to_be_disabled()
    page.click("#camera")
    expect(page.locator("#next")).to_contain_text("click Record")
    page.locator(".record").first.click()
    expect(page.locator(".count").first).to_have_text("15 pictures", timeout=READY_MS)
    expect(page.locator("#train")).to_be_disabled()
    page.locator(".files input").nth(1).set_input_files(files(15))
    expect(page.locator(".count").nth(1)).to_have_text("15 pictures", timeout=READY_MS)
    page.locator("#classes input[type=text]").nth(1).fill("stripes")
    expect(page.locator("#next")).to_have_text("Click Train.")
    page.click("#train")
    expect(page.locator("#status")).to_have_text(
        re.compile(r"Trained 50 steps in [\d.]+ s on the CPU\."), timeout=READY_MS
    )
    expect(page.locator("#result")).to_have_text("It recognises 6 of 6 pictures that it has not seen.")
    page.wait_for_function("Number.parseInt(document.querySelector('#bars span:nth-child(2)').textContent) > 80")
    # A file that is tried stays to be seen, though the camera goes on.
    page.set_input_files("#try", {"name": "a try.png", "mimeType": "image/png", "buffer": stripes(99)})
    expect(page.locator(".seen #seen-hint")).to_have_text("This is a try.png.")
    page.wait_for_timeout(1000)
    assert int(page.locator("#bars span:nth-child(2)").nth(1).inner_text().removesuffix(" %")) > 80
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "classes.onnx")
    expect(page.locator(".seen #exported")).to_contain_text("0 Class 1, 1 stripes")
    # The camera's prediction is not the file's.
    expect(page.locator("#seen-hint")).to_have_text("", timeout=READY_MS)
    model = onnx.load(tmp_path / "classes.onnx")
    onnx.checker.check_model(model, full_check=True)
    before = onnx.load(TEACH / "teach.onnx")
    moved = {t.name for t in changed(before, model)}
    assert moved == {"head.weight", "head.bias"}


def changed(before: onnx.ModelProto, after: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Weights that are others."""
    old = {t.name: onnx.numpy_helper.to_array(t) for t in before.graph.initializer}
    found = {t.name: t for t in after.graph.initializer}
    assert {"head.weight", "head.bias", "_conv_stem.weight"} <= found.keys()
    return [
        t for name, t in found.items() if name in old and not np.array_equal(onnx.numpy_helper.to_array(t), old[name])
    ]


def test_pictures_and_classes_are_deleted(page: Page) -> None:
    """After training: a class more, its pictures one less, and the class before it away."""
    page.click("#add")
    third = page.locator("#classes > li").nth(2)
    third.locator("input[type=text]").fill("third")
    third.locator(".files input").set_input_files(files(6, 30))
    expect(third.locator(".count")).to_have_text("6 pictures", timeout=READY_MS)
    thumbnails = third.locator(".thumbnails button")
    assert thumbnails.count() == 6
    pixels = "(canvas) => [...canvas.getContext('2d').getImageData(48, 0, 1, 96).data].filter((_, i) => i % 4 === 0)"
    seen = thumbnails.first.locator("canvas").evaluate(pixels)
    # The stripes of the file, whose 120 rows became 96.
    assert min(seen) < 40 and max(seen) > 215
    thumbnails.first.click()
    expect(third.locator(".count")).to_have_text("5 pictures")
    expect(page.locator("#export")).to_be_enabled()
    page.get_by_role("button", name="Delete class stripes").click()
    assert page.locator("#classes > li").count() == page.locator("#bars li").count() == 2
    # It cannot be exported or tried before it is trained again; pictures of the moved class still can be deleted.
    for name in ("#export", "#try"):
        expect(page.locator(name)).to_be_disabled()
    moved = page.locator("#classes > li").nth(1)
    moved.locator(".thumbnails button").first.click()
    expect(moved.locator(".count")).to_have_text("4 pictures")
    expect(page.get_by_role("button", name="Delete class third")).to_be_disabled()
    page.click("#train")
    expect(page.locator("#status")).to_have_text(re.compile(r"Trained 50 steps in [\d.]+ s"), timeout=READY_MS)


def test_there_may_be_more_classes_than_in_the_file(page: Page) -> None:
    """The last layer is replaced by one for as many classes as the page has."""
    for count in range(3, CLASSES + 2):
        page.click("#add")
        assert page.locator("#classes > li").count() == count
    page.locator("#classes .files input").first.set_input_files(files(6))
    page.locator("#classes .files input").last.set_input_files(files(6, 60))
    expect(page.locator(".count").last).to_have_text("6 pictures", timeout=READY_MS)
    page.click("#train:enabled")
    expect(page.locator("#progress")).to_have_js_property("value", 1, timeout=READY_MS)
    expect(page.locator("#alert")).to_be_hidden()
    page.set_input_files("#try", {"name": "last.png", "mimeType": "image/png", "buffer": stripes(61)})
    expect(page.locator("#seen-hint")).to_have_text("This is last.png.")
    assert page.locator("#bars li").count() == CLASSES + 1


def test_the_keyboard_alone_teaches_it(browser: Browser, site: Site) -> None:
    """The focus stays at a control that worked, and goes to the next picture when one is deleted."""
    with silent_page(browser, READY_MS) as page:
        page.goto(site.url("/teach/index.html"))
        expect(page.locator("#status")).to_have_text(re.compile("Ready"), timeout=READY_MS)

        def go_to(name: str) -> None:
            for _ in range(40):
                page.keyboard.press("Tab")
                if (
                    page.get_by_label(name, exact=True)
                    .or_(page.get_by_role("button", name=name))
                    .evaluate_all("(found) => found.includes(document.activeElement)")
                ):
                    return
            raise AssertionError(f"Tab never comes to {name}")

        for name in ("Class 1", "Class 2"):
            go_to(f"Add files … to {name}")
            with page.expect_file_chooser() as chooser:
                page.keyboard.press("Space")
            chooser.value.set_files(files(4, 40 * int(name[-1])))
            expect(page.locator(".count").nth(int(name[-1]) - 1)).to_have_text("4 pictures", timeout=READY_MS)
            expect(page.get_by_label(f"Add files … to {name}")).to_be_focused()
        go_to("Train")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text(re.compile("Trained"), timeout=READY_MS)
        expect(page.locator("#train")).to_be_focused()
        pictures = page.locator(".thumbnails button")
        pictures.first.focus()
        page.keyboard.press("Enter")
        assert pictures.count() == 7
        expect(pictures.first).to_be_focused()
        page.click("#add")
        page.get_by_role("button", name="Delete class Class 3").press("Enter")
        expect(page.locator("#add")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert axe_violations(page) == []


def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    cards = page.evaluate(
        """[...document.querySelectorAll(".card")].map((card) => card.getBoundingClientRect().toJSON())"""
    )
    shown = sorted((card for card in cards if card["height"] > 0), key=lambda card: card["top"])
    assert len(shown) == 3
    for above, below in pairwise(shown):
        assert above["bottom"] <= below["top"], "cards lie one below the other"


def test_without_a_camera_the_page_says_so(browser: Browser, site: Site) -> None:
    page, _ = watched_page(browser)
    page.goto(site.url("/teach/index.html"))
    page.click("#camera")
    expect(page.locator("#alert")).to_contain_text("Files work without one")
    page.context.close()


def test_the_backbone_is_that_of_the_paper() -> None:
    """As many convolutions and sums as EfficientNet-Lite0 has: 16 blocks, of which the first expands nothing."""
    model = onnx.load(TEACH / "teach.onnx")
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims[1:] == [3, SIDE, SIDE]
    # Every convolution takes the channels that the one before it gives: `full_check` has inferred all shapes.
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 1 + 16 * 3 - 1 + 1
    assert sum(node.op_type == "Add" for node in model.graph.node) == 1 + 1 + 2 + 2 + 3


def test_a_file_of_weights_runs_nothing() -> None:
    """A pickle that names a function other than those for tensors is refused."""
    import io
    import pickle

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("raise AssertionError('it ran')",)

    with pytest.raises(pickle.UnpicklingError, match=r"__builtin__\.exec"):
        read_weights(io.BytesIO(pickle.dumps(Attack(), 2)))
