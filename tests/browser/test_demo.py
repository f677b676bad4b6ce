"""The demo page, driven as a person would: train, draw, pause, save, resume, export."""

import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from playwright.sync_api import Browser, Page, TimeoutError, expect

from .conftest import axe_violations, require_built, watched_page
from .server import ROOT

# isort: split
# In scripts/, which conftest puts on the path.
from demo import PAGE, PHONE, build_page, draw_three, serve

STEPS = 60
BATCH = 32
EPOCHS = 6
LONG_EPOCHS = 100
READY_MS = 120_000
TRAIN_MS = 120_000
SIDE = 28
HEADER_BYTES = 20


def wait_for(page: Page, condition: str, timeout_ms: int = TRAIN_MS) -> None:
    """Wait until a condition on `p`, the page's progress, holds; fail at once if the page does."""
    told = f"p => p.state === 'failed' || ({condition})"
    try:
        page.wait_for_function(f"({told})(window.demo.progress)", timeout=timeout_ms)
    except TimeoutError as error:
        alert = page.locator("#alert").inner_text()
        raise AssertionError(f"{condition} never held: {progress(page)}, alert: {alert!r}") from error
    report = page.evaluate("window.demo.progress")
    assert report["state"] != "failed", report["error"]


def progress(page: Page) -> dict[str, Any]:
    report: dict[str, Any] = page.evaluate("window.demo.progress")
    return report


def losses(page: Page) -> list[float]:
    """The loss of every step so far."""
    found: list[float] = page.evaluate("demo.trainer.history.train.map(record => record.loss)")
    return found


BARS = "document.querySelectorAll('#bars output')"


def bars(page: Page) -> list[float]:
    """Percentages that the page shows for the ten digits."""
    texts = page.locator("#bars output").all_inner_texts()
    return [float(text.removesuffix("%")) if text else 0.0 for text in texts]


def start_and_pause(page: Page, step: int) -> int:
    """Start, press the button again once a step is done, and leave as many steps to go as a short run has.

    Returns:
        The steps done. The page receives steps once a frame, and a fast machine takes a short run in a few frames. So
        the run is long until it is paused, and the page itself waits for the step.
    """
    page.evaluate(
        """([epochs, step]) => new Promise((resolve) => {
            demo.trainer.setEpochs(epochs);
            demo.trainer.settings.maxSteps = Infinity;
            const button = document.getElementById("start");
            const look = () => {
                if (demo.progress.step > step) resolve(button.click());
                else setTimeout(look, 1);
            };
            button.click();
            look();
        })""",
        [LONG_EPOCHS, step],
    )
    wait_for(page, "p.state === 'paused'")
    page.evaluate("demo.trainer.pause()")  # which waits for steps that are under way
    done = progress(page)["step"]
    page.evaluate(f"demo.trainer.settings.maxSteps = {done + STEPS}")
    return int(done)


def save_checkpoint(page: Page, path: Path) -> Path:
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(path)
    return path


def resume(page: Page, path: Path) -> None:
    page.set_input_files("#resume-file", path)


def held_out_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first images (N, 1, 28, 28) of the test set in [0, 1], and their labels."""
    file = np.fromfile(PAGE / "mnist.bin", np.uint8)
    total, training = (int(word) for word in file[4:12].view("<u4"))
    labels = file[HEADER_BYTES + training :][:count]
    images = file[HEADER_BYTES + total + training * SIDE * SIDE :][: count * SIDE * SIDE]
    pixels = images.reshape(count, 1, SIDE, SIDE).astype(np.float32) / 255
    return pixels, labels


@pytest.fixture(scope="module")
def demo_url() -> Iterator[str]:
    """The demo on an isolated site, with a short run preset."""
    require_built(ROOT / "dist" / "npm" / "index.js", ROOT / ".build" / "pyodide" / "pyodide.mjs")
    build_page()
    site = serve()
    yield site.url(f"/mnist/index.html?steps={STEPS}&batch={BATCH}")
    site.close()


@pytest.fixture(scope="module")
def loaded(browser: Browser, demo_url: str) -> Iterator[Page]:
    """The page, loaded once for the module; it must end without an error on its console."""
    page, errors = watched_page(browser)
    page.goto(demo_url)
    page.wait_for_function("window.demo !== undefined")
    wait_for(page, "p.state === 'ready'", READY_MS)
    yield page
    page.context.close()
    if errors.messages:
        pytest.fail("errors in the page:\n" + "\n".join(errors.messages), pytrace=False)


@pytest.fixture
def fresh(loaded: Page) -> Page:
    """The page with the random weights of the start, and nothing drawn."""
    if progress(loaded)["state"] == "running":
        loaded.evaluate("demo.trainer.pause()")
    loaded.evaluate(f"demo.trainer.setEpochs({EPOCHS}); demo.trainer.settings.maxSteps = {STEPS}")
    loaded.evaluate("demo.trainer.reset()")
    loaded.click("#clear")
    wait_for(loaded, "p.state === 'ready'")
    return loaded


@pytest.fixture
def trained(loaded: Page, request: pytest.FixtureRequest) -> Page:
    """The page after a short run, which may be that of the test before; nothing is drawn."""
    report = progress(loaded)
    if (report["state"], report["step"]) == ("finished", STEPS):
        loaded.click("#clear")
    else:
        request.getfixturevalue("fresh").click("#start")
        wait_for(loaded, "p.state === 'finished'")
    return loaded


def test_training_lowers_the_loss_and_reads_digits(fresh: Page) -> None:
    before = progress(fresh)
    fresh.click("#start")
    wait_for(fresh, "p.state === 'finished'")
    after = progress(fresh)
    course = losses(fresh)
    assert after["step"] == STEPS == len(course)
    assert np.mean(course[-10:]) < 0.5 * np.mean(course[:10])
    assert before["testAccuracy"] < 0.3
    assert after["testAccuracy"] > 0.75
    expect(fresh.locator("#accuracy")).to_have_text(f"{100 * after['testAccuracy']:.1f} %")
    cells = [int(text or 0) for text in fresh.locator("#confusion tbody td").all_inner_texts()]
    matrix = np.array(cells).reshape(10, 10)
    assert matrix.trace() / matrix.sum() == pytest.approx(after["testAccuracy"])
    misread = int(matrix.sum() - matrix.trace())
    expect(fresh.locator("#mistakes-count")).to_contain_text(f"{misread} of {matrix.sum()}")
    assert fresh.locator("#gallery li").count() == min(24, misread)


def test_prediction_of_a_drawing_changes_while_it_trains(fresh: Page) -> None:
    draw_three(fresh)
    fresh.wait_for_function("document.querySelector('#bars output').textContent !== ''")
    untrained = bars(fresh)
    assert sum(untrained) == pytest.approx(100, abs=1)
    fresh.click("#start")
    wait_for(fresh, "p.state === 'finished'")
    fresh.wait_for_function(f"{untrained}.some((p, k) => Math.abs(parseFloat({BARS}[k].textContent) - p) > 5)")
    assert sum(bars(fresh)) == pytest.approx(100, abs=1)
    expect(fresh.locator("#verdict")).to_have_text(re.compile(r"a \d"))


def test_drawing_is_scaled_and_centred_as_mnist_is(fresh: Page) -> None:
    draw_three(fresh)
    image = 255 * seen(fresh)
    rows, columns = np.nonzero(image > 20)
    assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(20, abs=1)
    grid = np.arange(SIDE)
    assert (image.sum(1) @ grid) / image.sum() == pytest.approx(13.5, abs=0.75)
    assert (image.sum(0) @ grid) / image.sum() == pytest.approx(13.5, abs=0.75)


def photograph(digit: np.ndarray, *, dark: bool, side: int = 500) -> bytes:
    """A PNG of a digit (28, 28) in [0, 1], off the middle, on paper lit from one side, with noise and a spot."""
    rng = np.random.default_rng(0)
    rows, columns = np.indices((side, side))
    ink = np.zeros((side, side))
    # A pixel of the digit is 9 of the photograph; between their middles it is linear.
    at = np.clip(np.stack([(rows - 60) / 9, (columns - 200) / 9]), 0, SIDE - 1.001)
    (r, c), (dr, dc) = at.astype(int), at % 1
    for row, column, share in ((r, c, (1 - dr) * (1 - dc)), (r + 1, c, dr * (1 - dc)), (r, c + 1, (1 - dr) * dc),
                               (r + 1, c + 1, dr * dc)):  # fmt: skip
        ink += digit[row, column] * share
    ink[450:455, 20:25] = 1
    paper = 0.9 - 0.35 * columns / side
    light = paper * (1 - 0.7 * ink) + rng.normal(0, 0.01, ink.shape)
    grey = (255 * np.clip(light if dark else 1 - light, 0, 1)).astype(np.uint8)
    return png(grey)


def png(grey: np.ndarray) -> bytes:
    """A grey image of 8 bits as the specification has it: https://www.w3.org/TR/png-3/"""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in grey)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def seen(page: Page) -> np.ndarray:
    """The input of the network, (28, 28) in [0, 1]."""
    pixels = page.evaluate("""() => {
        const { data } = document.getElementById("seen").getContext("2d").getImageData(0, 0, 28, 28);
        return Array.from(data).filter((_, i) => i % 4 === 3);
    }""")
    return np.array(pixels, np.float64).reshape(SIDE, SIDE) / 255


@pytest.mark.parametrize("dark", [True, False], ids=["dark on light", "light on dark"])
def test_a_photograph_is_read_as_the_image_that_mnist_has(trained: Page, dark: bool) -> None:
    """Photographs of test images come close to these again, and are read as they are."""
    images, _ = held_out_images(6 if dark else 3)
    likeness, same = [], 0
    for image in images[:, 0]:
        file = {"name": "digit.png", "mimeType": "image/png", "buffer": photograph(image, dark=dark)}
        trained.click("#clear")
        trained.set_input_files("#photo-file", file)  # type: ignore[arg-type]
        trained.wait_for_function("document.getElementById('pad-hint').hidden")
        shown = seen(trained)
        rows, columns = np.nonzero(shown > 0.1)
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(20, abs=2)
        shifted = [np.roll(shown, (y, x), (0, 1)).ravel() for y in (-1, 0, 1) for x in (-1, 0, 1)]
        likeness.append(max(np.corrcoef(one, image.ravel())[0, 1] for one in shifted))
        read = [
            trained.evaluate(
                "async (bytes) => Array.from(await demo.trainer.predict(Uint8Array.from(bytes)))",
                np.rint(255 * pixels).astype(int).ravel().tolist(),
            )
            for pixels in (image, shown)
        ]
        same += int(np.argmax(read[0]) == np.argmax(read[1]))
    assert np.mean(likeness) > 0.85, likeness
    assert same >= len(images) - 1


def test_what_is_no_photograph_of_a_digit_is_said(fresh: Page) -> None:
    empty = png(np.full((60, 60), 230, np.uint8))
    for data, text in ((b"GIF89", "not an image that the browser can read"), (empty, "There is no digit")):
        fresh.set_input_files("#photo-file", {"name": "x.png", "mimeType": "image/png", "buffer": data})  # type: ignore[arg-type]
        expect(fresh.locator("#alert")).to_contain_text(text)
    file = {"name": "digit.png", "mimeType": "image/png", "buffer": photograph(held_out_images(1)[0][0, 0], dark=True)}
    fresh.set_input_files("#photo-file", file)  # type: ignore[arg-type]
    expect(fresh.locator("#alert")).to_be_hidden()


def test_pause_stops_and_continue_goes_on(fresh: Page) -> None:
    paused_at = start_and_pause(fresh, 3)
    fresh.wait_for_timeout(500)
    assert progress(fresh)["step"] == paused_at
    expect(fresh.locator("#start")).to_have_text("Continue")
    fresh.click("#start")
    wait_for(fresh, "p.state === 'finished'")
    assert progress(fresh)["step"] == paused_at + STEPS


def test_resumed_run_ends_as_the_uninterrupted_one(fresh: Page, tmp_path: Path) -> None:
    saved_at = start_and_pause(fresh, 10)
    checkpoint = save_checkpoint(fresh, tmp_path / "digits.ckpt")
    fresh.click("#start")
    wait_for(fresh, "p.state === 'finished'")
    uninterrupted = losses(fresh)

    fresh.click("#reset")
    wait_for(fresh, "p.state === 'ready' && p.step === 0")
    resume(fresh, checkpoint)
    wait_for(fresh, f"p.state === 'paused' && p.step === {saved_at}")
    assert losses(fresh) == pytest.approx(uninterrupted[:saved_at], rel=1e-4)
    fresh.click("#start")
    wait_for(fresh, "p.state === 'finished'")
    # Weights, moments, step count, order of the images: all of it is back, so the bits agree.
    assert losses(fresh)[saved_at:] == uninterrupted[saved_at:]


def test_more_epochs_can_follow(trained: Page) -> None:
    end = progress(trained)["totalSteps"]
    expect(trained.locator("#start")).to_have_text("Train 3 epochs more")
    trained.click("#start")
    wait_for(trained, f"p.step > {end} + 2")
    assert progress(trained)["totalSteps"] > end
    assert losses(trained)[end] < 1.5


def test_wrong_file_is_told_and_harms_nothing(trained: Page, tmp_path: Path) -> None:
    before = progress(trained)
    bad = tmp_path / "holiday.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 no checkpoint" * 50)
    resume(trained, bad)
    expect(trained.locator("#alert")).to_contain_text("CheckpointError")
    after = progress(trained)
    for name in ("state", "step", "testAccuracy"):
        assert after[name] == before[name]
    trained.click("#sample")
    expect(trained.locator("#alert")).to_be_hidden()
    expect(trained.locator("#verdict")).to_contain_text("The label says")


def test_exported_model_is_plain_onnx_that_reads_digits(trained: Page, tmp_path: Path) -> None:
    with trained.expect_download() as download:
        trained.click("#export")
    assert download.value.suggested_filename == "digits.onnx"
    path = tmp_path / "digits.onnx"
    download.value.save_as(path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain for opset in model.opset_import} <= {"", "ai.onnx"}
    pixels, labels = held_out_images(100)
    [logits] = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: pixels})
    assert logits.shape == (100, 10)
    read = float(np.mean(logits.argmax(1) == labels))
    assert read == pytest.approx(progress(trained)["testAccuracy"], abs=0.12)


def test_learning_rate_may_change_while_it_trains(fresh: Page) -> None:
    fresh.click("#start")
    wait_for(fresh, "p.step > 3")
    fresh.locator("#rate").focus()
    fresh.keyboard.press("Home")
    expect(fresh.locator("#rate-value")).to_have_text("0.0001")
    wait_for(fresh, "p.state === 'finished'")
    assert fresh.evaluate("demo.trainer.settings.learningRate") == pytest.approx(1e-4)
    fresh.evaluate("demo.trainer.setLearningRate(0.003)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_shows_all_without_sideways_scrolling(loaded: Page, scheme: str) -> None:
    size = loaded.viewport_size
    try:
        loaded.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        loaded.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        loaded.wait_for_timeout(200)
        assert loaded.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        for name in ("start", "pad", "curves", "confusion", "save", "resume", "export"):
            box = loaded.locator(f"#{name}").bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE[0]
        assert wide_buttons(loaded) == []
    finally:
        loaded.emulate_media(color_scheme=None)
        if size:
            loaded.set_viewport_size(size)


def wide_buttons(page: Page) -> list[str]:
    """Buttons whose text does not fit, whatever it says in the course of a run."""
    found: list[str] = page.evaluate("""() => {
        const start = document.getElementById("start");
        const before = start.textContent;
        start.textContent = "Train 3 epochs more";
        const buttons = [...document.querySelectorAll("button")];
        const wide = buttons.filter((button) => button.scrollWidth > button.clientWidth);
        start.textContent = before;
        return wide.map((button) => button.id || button.textContent);
    }""")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(trained: Page, scheme: str) -> None:
    """All rules of axe-core, WCAG 2.2 AA and best practices, on a page with a matrix and a gallery."""
    trained.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    try:
        found = axe_violations(trained)
    finally:
        trained.emulate_media(color_scheme=None)
    assert found == []


def test_loading_is_told_in_bytes(browser: Browser, demo_url: str) -> None:
    page, errors = watched_page(browser)
    page.add_init_script("""
        window.told = [];
        new MutationObserver(() => {
            const text = document.getElementById("status")?.textContent;
            if (text && text !== told.at(-1)) told.push(text);
        }).observe(document, { subtree: true, childList: true, characterData: true });
    """)
    page.goto(demo_url)
    page.wait_for_function("window.demo !== undefined")
    wait_for(page, "p.state === 'ready'", READY_MS)
    told = page.evaluate("told")
    page.context.close()
    matches = [re.fullmatch(r"Loading .*: ([\d.]+) of ([\d.]+) MB, (\d+) %", text) for text in told]
    percents = [int(match[3]) for match in matches if match]
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert percents[-1] > 50
    assert "Deriving the training graph \u2026" in told
    assert told[-1].startswith("Ready")
    assert errors.messages == []


def test_page_is_typed_against_the_package() -> None:
    command = ["npx", "--no-install", "tsc", "-p", "web/demo/tsconfig.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_control_has_a_name(loaded: Page) -> None:
    tree = loaded.locator("body").aria_snapshot()
    controls = re.findall(r"- (button|combobox|slider|spinbutton|img)(.*)", tree)
    assert len(controls) > 10
    assert [kind for kind, rest in controls if not rest.strip().startswith('"')] == []


def test_licences_of_others_go_along(demo_url: str) -> None:
    text = (ROOT / "THIRD_PARTY_LICENSES").read_text()
    assert (PAGE / "THIRD_PARTY_LICENSES").read_text() == text
    assert "\nuPlot " in text


def test_page_loads_nothing_from_elsewhere(browser: Browser, demo_url: str) -> None:
    page, errors = watched_page(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(demo_url)
    page.wait_for_function("window.demo !== undefined")
    wait_for(page, "p.state === 'ready'", READY_MS)
    page.context.close()
    origin = demo_url.split("/mnist/")[0]
    strange = [url for url in asked if not url.startswith((origin, "blob:", "data:"))]
    assert strange == []
    assert errors.messages == []


def test_trains_without_isolation(page: Page, demo_url: str) -> None:
    site = serve(isolated=False)
    try:
        page.goto(site.url("/mnist/index.html?steps=12&batch=32"))
        page.wait_for_function("window.demo !== undefined")
        wait_for(page, "p.state === 'ready'", READY_MS)
        expect(page.locator("#backend")).to_contain_text("1 thread")
        page.click("#start")
        wait_for(page, "p.state === 'finished'")
        assert losses(page)[-1] < losses(page)[0]
    finally:
        site.close()


def test_missing_model_is_told_in_words(browser: Browser, demo_url: str) -> None:
    site = serve()
    site.add("/mnist/digits.onnx", b"gone", "text/plain", status=404)
    page, _ = watched_page(browser)
    try:
        page.goto(site.url("/mnist/index.html"))
        expect(page.locator("#alert")).to_contain_text("digits.onnx", timeout=READY_MS)
        expect(page.locator("#start")).to_be_disabled()
    finally:
        page.context.close()
        site.close()
