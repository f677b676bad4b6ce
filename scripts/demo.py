"""Serve the demo; with --headless, drive it in Chromium to the end and print what happened.

    python scripts/demo.py [--headless] [--screenshots DIR] [--epochs N] [--threads N] [--port N]

`./build.sh demo` builds first what this needs: dist/npm and the self-hosted Pyodide.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

import teach_backbone
from chromium import find_chromium
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, sync_playwright
from steps import BUILD, DIST, PYTHON, ROOT, BuildError, Step, run, run_step
from tqdm import tqdm

sys.path.insert(0, str(ROOT))
from tests.browser.server import Reply, Site

SOURCES = ROOT / "web" / "demo" / "mnist"
PAGE = BUILD / "demo" / "mnist"
BUILD_PAGE = ROOT / "web" / "demo" / "build-page.mjs"
MADE_MODELS = ROOT / "scripts" / "made_models.py"
FAMILY_STYLE = ROOT / "examples" / "style.css"
TEACH = BUILD / "demo" / "teach"
WRITES = BUILD / "demo" / "writes"
VOICE = BUILD / "demo" / "voice"
PAGES = (PAGE, WRITES, VOICE, TEACH)
#: What the build of each page reads besides its own folder.
SHARED_SOURCES = [
    BUILD_PAGE,
    FAMILY_STYLE,
    *(BUILD_PAGE.parent / name for name in ("head.html", "page.ts")),
    SOURCES / "icon.svg",
    ROOT / "package-lock.json",
    ROOT / "THIRD_PARTY_LICENSES",
]
TARGET_ACCURACY = 0.97
DEFAULT_PORT = 8000
LOAD_TIMEOUT_S = 300
#: No step for so long means that the page hangs.
STALL_TIMEOUT_S = 120
POLL_S = 0.25
CHROMIUM_FLAGS = [
    "--no-sandbox",  # containers run as root
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # containers have a small /dev/shm
]
#: A three, in units of the pad's side.
STROKE = [
    (0.3, 0.26),
    (0.48, 0.18),
    (0.68, 0.26),
    (0.67, 0.42),
    (0.46, 0.49),
    (0.68, 0.56),
    (0.71, 0.72),
    (0.5, 0.83),
    (0.28, 0.75),
]
DESKTOP, PHONE = (1280, 900), (390, 844)


class DemoError(Exception):
    """The demo did not come to a good end; the message says why."""


def build_pages() -> None:
    """Bundle the pages and make their models and data, as far as their sources changed."""
    build_page()
    build_teach_page()
    build_writes_page()
    build_voice_page()


def build_page() -> None:
    """Build the page of digits."""
    make("mnist-data", [SOURCES / "make-data.mjs", SOURCES / "random.mjs"], PAGE / "mnist.bin")
    make("mnist-model", [ROOT / "scripts" / "make_demo_model.py", MADE_MODELS], PAGE / "digits.onnx")
    bundle_page(PAGE)


def build_teach_page() -> None:
    """Build the page that is taught with the camera."""
    bundle_page(TEACH)
    teach_backbone.make_model("teach-model", TEACH / "teach.onnx")


def build_writes_page() -> None:
    """Build the page of the language model."""
    make("writes-text", [ROOT / "web" / "demo" / "writes" / "make-text.mjs"], WRITES / "sonnets.txt")
    make("writes-model", [ROOT / "scripts" / "make_writer_model.py", MADE_MODELS], WRITES / "writer.onnx")
    bundle_page(WRITES)


def build_voice_page() -> None:
    """Build the page that teaches a language model a voice."""
    bundle_page(VOICE)


def make(name: str, inputs: list[Path], output: Path) -> None:
    """Let the first input, a script, write the output."""
    script = inputs[0]
    program = PYTHON if script.suffix == ".py" else "node"
    sources = inputs if script.suffix == ".py" else [*inputs, ROOT / "package-lock.json"]
    run_step(Step(name, lambda: run(program, script, output), inputs=sources, outputs=[output]))


def bundle_page(page: Path) -> None:
    """Bundle the page of web/demo/ that has this folder's name."""
    sources = ROOT / "web" / "demo" / page.name
    run_step(
        Step(
            f"{page.name}-page",
            lambda: run("node", sources / "build.mjs", page),
            inputs=[sources, *SHARED_SOURCES],
            outputs=[page / "index.html", page / "main.js", page / "THIRD_PARTY_LICENSES"],
        )
    )


def serve(*, isolated: bool = True, port: int = 0) -> Site:
    """Start a server of the page, the package and Pyodide; `/` leads to the page."""
    mounts = {f"/{page.name}/": (page,) for page in PAGES} | {"/trainweb/": (DIST / "npm",)}
    site = Site(isolated=isolated, mounts=mounts, port=port)
    to_page = Reply(b"", "text/plain", 302, {"Location": "/mnist/index.html"})
    for path in ("/", "/mnist/"):
        site.add_dynamic(path, lambda: to_page)
    # Browsers ask for it by themselves.
    site.add("/favicon.ico", (SOURCES / "icon.svg").read_bytes(), "image/svg+xml")
    return site


@contextmanager
def opened_page(url: str) -> Iterator[Page]:
    """Open the page in headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(install=False), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
        page.on("pageerror", lambda error: tqdm.write(f"error in the page: {error}", sys.stderr))
        page.goto(url)
        try:
            yield page
        finally:
            browser.close()


def progress(page: Page) -> dict[str, Any]:
    """Return what the page reports; raise what failed in it."""
    report: dict[str, Any] = page.evaluate("window.demo.progress")
    if report["state"] == "failed":
        raise DemoError(f"the page failed: {report['error']}")
    return report


def wait_until_ready(page: Page) -> float:
    """Wait for the first evaluation of the untrained network; returns the seconds it took."""
    start = time.monotonic()
    page.wait_for_function("window.demo !== undefined")
    while progress(page)["state"] == "loading":
        if time.monotonic() - start > LOAD_TIMEOUT_S:
            raise DemoError(f"the page was not ready after {LOAD_TIMEOUT_S} s")
        time.sleep(POLL_S)
    return time.monotonic() - start


def follow(page: Page) -> None:
    """Show a progress bar until the training is over, and a line after each epoch."""
    last_step, last_change, epochs_told = 0, time.monotonic(), 0
    total = progress(page)["totalSteps"]
    with tqdm(total=total, unit="step", desc="training", dynamic_ncols=True) as bar:
        while True:
            report = progress(page)
            bar.update(report["step"] - last_step)
            bar.set_postfix(figures(report), refresh=True)
            if report["step"] > last_step:
                last_step, last_change = report["step"], time.monotonic()
            elif time.monotonic() - last_change > STALL_TIMEOUT_S:
                raise DemoError(f"no step for {STALL_TIMEOUT_S} s, after step {last_step}")
            rows = epoch_rows(page)
            for row in rows[epochs_told:]:
                tqdm.write(row_text(row))
            epochs_told = max(epochs_told, len(rows))
            if report["state"] == "finished":
                return
            time.sleep(POLL_S)


def figures(report: dict[str, Any]) -> dict[str, str]:
    """Format the figures beside the progress bar."""
    shown = {"epoch": f"{report['epoch']:.2f}/{report['epochs']}"}
    if report["loss"] is not None:
        shown["loss"] = f"{report['loss']:.3f}"
    if report["testAccuracy"] is not None:
        shown["test accuracy"] = f"{report['testAccuracy']:.2%}"
    shown["steps/s"] = f"{report['stepsPerSecond']:.1f}"
    return shown


def epoch_rows(page: Page) -> list[dict[str, Any]]:
    """Return a row for each finished epoch: mean training loss, test loss and accuracy, speed."""
    run_data = page.evaluate("""() => {
        const { trainer } = window.demo;
        const { train, test } = trainer.history;
        return { train, test, perEpoch: trainer.stepsPerEpoch, total: trainer.totalSteps };
    }""")
    rows = []
    begin = 0
    for record in run_data["test"]:
        step = record["step"]
        if step == 0 or (step % run_data["perEpoch"] != 0 and step != run_data["total"]):
            continue
        steps = [one for one in run_data["train"] if begin < one["step"] <= step]
        rows.append(
            {
                "epoch": step / run_data["perEpoch"],
                "step": step,
                "train_loss": fmean(one["loss"] for one in steps),
                "test_loss": record["loss"],
                "test_accuracy": record["accuracy"],
                "seconds": sum(one["seconds"] for one in steps),
            }
        )
        begin = step
    return rows


def row_text(row: dict[str, Any]) -> str:
    """Format one line of the table of epochs."""
    steps = row["step"] if row["epoch"] <= 1 else row["step"] / row["epoch"]
    return (
        f"  epoch {row['epoch']:>4.3g}  step {row['step']:>5}  loss {row['train_loss']:.4f}  "
        f"test loss {row['test_loss']:.4f}  "
        f"test accuracy {row['test_accuracy']:6.2%}  {steps / row['seconds']:6.1f} steps/s"
    )


def draw_three(page: Page) -> None:
    """Draw a digit on the pad as a mouse would."""
    pad = page.locator("#pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    if box is None:
        raise DemoError("the page shows no drawing pad")
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in STROKE]
    page.mouse.move(*points[0])
    page.mouse.down()
    for x, y in points[1:]:
        page.mouse.move(x, y, steps=5)
    page.mouse.up()


def take_screenshots(page: Page, folder: Path) -> None:
    """Write demo.png, demo-dark.png, demo-phone.png and demo-phone-dark.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (width, height) in (("demo", DESKTOP), ("demo-phone", PHONE)):
        page.set_viewport_size({"width": width, "height": height})
        for suffix, scheme in (("", "light"), ("-dark", "dark")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.evaluate("window.scrollTo(0, 0)")
            page.wait_for_timeout(400)  # the charts are drawn anew with the next frames
            page.screenshot(path=folder / f"{name}{suffix}.png", full_page=True)
    page.emulate_media(color_scheme=None)


def summary(page: Page, load_seconds: float, wall_seconds: float) -> float:
    """Print the table of the whole run; returns the test accuracy."""
    report = progress(page)
    backend = page.locator("#backend li").all_inner_texts()
    accuracy: float = report["testAccuracy"]
    verdict = "reached" if accuracy >= TARGET_ACCURACY else "MISSED"
    table = {
        "backend": ", ".join(backend),
        "ready after": f"{load_seconds:.1f} s",
        "trained for": f"{report['epoch']:.3g} epochs, {report['step']} steps",
        "training time": f"{report['trainSeconds']:.1f} s, with evaluation {wall_seconds:.1f} s",
        "speed": f"{report['step'] / report['trainSeconds']:.1f} steps/s",
        "training loss": f"{report['loss']:.4f}",
        "test loss": f"{report['testLoss']:.4f}",
        "test accuracy": f"{accuracy:.2%} (target {TARGET_ACCURACY:.0%}: {verdict})",
    }
    print()
    for name, value in table.items():
        print(f"  {name:<15}{value}")
    return accuracy


def train_headless(url: str, screenshots: Path | None) -> float:
    """Drive the page to the end of the training; returns the test accuracy."""
    with opened_page(url) as page:
        print("loading Python, deriving and compiling the training graph ...", flush=True)
        load_seconds = wait_until_ready(page)
        start = time.monotonic()
        if screenshots:
            draw_three(page)
        page.click("#start")
        follow(page)
        accuracy = summary(page, load_seconds, time.monotonic() - start)
        if screenshots:
            take_screenshots(page, screenshots)
        return accuracy


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./build.sh demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--headless", action="store_true", help="train in Chromium without a window and print the course"
    )
    parser.add_argument(
        "--screenshots", type=Path, metavar="DIR", help="with --headless: write pictures of the trained page there"
    )
    parser.add_argument("--epochs", type=int, help="epochs to train")
    parser.add_argument("--threads", type=int, help="kernel threads")
    parser.add_argument("--seed", type=int, help="seed of the order of the training images")
    parser.add_argument(
        "--no-isolation", action="store_true", help="serve without COOP and COEP headers, as most static hosts do"
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port without --headless ({DEFAULT_PORT})")
    return parser.parse_args()


def wait_for_interrupt(address: str) -> None:
    """Say where the page is and serve until Ctrl+C."""
    print(f"\n  The demo is at  {address}\n  Ctrl+C ends it.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()


def open_site(*, isolated: bool, port: int) -> Site:
    """Serve on this port, or on any free one where somebody else has it."""
    try:
        return serve(isolated=isolated, port=port)
    except OSError as error:
        print(f"demo: port {port}: {error.strerror}; taking another", file=sys.stderr)
        return serve(isolated=isolated)


def main() -> int:
    """Run; exit status 1 when the demo fails or ends below the target accuracy."""
    options = arguments()
    given = {name: getattr(options, name) for name in ("epochs", "threads", "seed")}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    try:
        build_pages()
        site = open_site(isolated=not options.no_isolation, port=0 if options.headless else options.port)
    except (BuildError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    address = site.origin + "/mnist/index.html" + (f"?{query}" if query else "")
    try:
        if not options.headless:
            wait_for_interrupt(address)
            return 0
        accuracy = train_headless(address, options.screenshots)
        return 0 if accuracy >= TARGET_ACCURACY else 1
    except (BuildError, DemoError, PlaywrightError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        site.close()


if __name__ == "__main__":
    sys.exit(main())
