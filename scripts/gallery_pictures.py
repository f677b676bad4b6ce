"""Take the pictures of the site's gallery: site/pages/gallery, one of each demo and example, trained.

    python scripts/gallery_pictures.py [NAME ...]

The pages run in Chromium, so that the pictures show what visitors get. They are tracked.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

import demo
import examples
import numpy as np
from PIL import Image, ImageDraw
from playwright.sync_api import FilePayload, Page, sync_playwright
from steps import ROOT

OUT = ROOT / "site" / "pages" / "gallery"
WIDTH, HEIGHT = 960, 640
QUALITY = 80
PATIENCE_MS = 180_000
SLIDE_MS = 500
"""Bars slide to their ends."""
DEMOS = [page.name for page in demo.PAGES]
SHOWN = {"camera": "#log:has-text('done')", "teach": "#result:has-text('recognises')"}
"""Pages that need pictures of a visitor's, and what stands there when they have learned."""
PICTURES = 12
READY = {"mnist": "#start:enabled", "writes": "#train:enabled", "voice": "#load:enabled"}
WRITTEN = "document.querySelector('#round').textContent.startsWith('After 300 ')"
DONE = "document.querySelector('#log').textContent.startsWith('done')"


def _drawing(label: int, seed: int) -> bytes:
    """A sun or a house, somewhere, as a PNG."""
    rng, file = np.random.default_rng(seed), io.BytesIO()
    image = Image.new("RGB", (160, 160), tuple(rng.integers(200, 256, 3)))
    draw, (x, y) = ImageDraw.Draw(image), rng.integers(20, 60, 2)
    if label == 0:
        draw.ellipse([x, y, x + 70, y + 70], (230, 160, 30))
    else:
        draw.rectangle([x, y + 30, x + 70, y + 90], (150, 70, 50))
        draw.polygon([(x - 10, y + 30), (x + 35, y), (x + 80, y + 30)], (70, 80, 130))
    image.save(file, "PNG")
    return file.getvalue()


def _file(label: int, seed: int) -> FilePayload:
    return {"name": f"drawing-{seed}.png", "mimeType": "image/png", "buffer": _drawing(label, seed)}


def _show(page: Page, name: str) -> None:
    """Give a page drawings of two classes, let it learn them, and try another drawing."""
    if name == "teach":
        page.wait_for_selector(".files input:enabled", state="attached", timeout=PATIENCE_MS)
        for k, title in enumerate(("Sun", "House")):
            page.locator("#classes input[type=text]").nth(k).fill(title)
    for label, files in enumerate(page.locator("#classes .files input" if name == "teach" else "input.files").all()):
        files.set_input_files([_file(label, PICTURES * label + k) for k in range(PICTURES)])
    page.click("#train:enabled", timeout=PATIENCE_MS)
    page.wait_for_selector(SHOWN[name], timeout=PATIENCE_MS)
    page.set_input_files("#try", _file(1, 99))
    page.wait_for_timeout(2 * SLIDE_MS)


def _train(page: Page, name: str) -> None:
    if name == "mnist":
        page.click("#start")
        page.wait_for_function("demo.progress.state === 'finished'", timeout=PATIENCE_MS)
    elif name == "writes":
        page.click("#train")
        page.wait_for_function(WRITTEN, timeout=PATIENCE_MS)
    elif name == "voice":
        page.click("#load")
        page.click("#train", timeout=PATIENCE_MS)
        page.wait_for_selector("#save:enabled", timeout=PATIENCE_MS)
        page.locator(".learn").scroll_into_view_if_needed()
    elif name in SHOWN:
        _show(page, name)
    else:
        page.click("#train")
        page.wait_for_function(DONE, timeout=PATIENCE_MS)
    if name == "timeseries":
        page.locator("#plot").scroll_into_view_if_needed()


def take(names: list[str]) -> None:
    """Write a JPEG for each of the names."""
    OUT.mkdir(parents=True, exist_ok=True)
    of_examples, of_demos = examples.serve(), demo.serve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("TRAINWEB_CHROMIUM", "/usr/bin/chromium"))
        for name in names:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            is_demo = name in DEMOS
            path = f"/{name}/index.html" if is_demo else f"/examples/{name}.html"
            page.goto((of_demos if is_demo else of_examples).url(path))
            page.wait_for_selector(READY.get(name, "h1"), timeout=PATIENCE_MS)
            _train(page, name)
            page.wait_for_timeout(SLIDE_MS)
            page.screenshot(path=OUT / f"{name}.jpg", type="jpeg", quality=QUALITY)
            page.close()
        browser.close()
    of_examples.close()
    of_demos.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    everything = [*DEMOS, *sorted(path.stem for path in examples.EXAMPLES.glob("*.html"))]
    parser.add_argument("names", nargs="*", default=everything, metavar="NAME", help="default: all")
    examples.make_bundle()
    examples.make_backbone()
    demo.build_pages()
    take(parser.parse_args().names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
