"""Files of the package that are not what they should be: an error names the file, what is expected and what came."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .js_session import open_js_page
from .server import ROOT, Reply, Site, mime_type
from .test_js_session import OPEN

NPM = ROOT / "dist" / "npm"
HTML = (
    b"<!doctype html><title>Home</title><p>There is nothing here, but we are friendly and say it with status 200.</p>"
)
KERNELS = "kernels.relaxed.wasm.gz"
FILES = {
    "worker.js": "JavaScript",
    KERNELS: "WebAssembly",
    "python/pyodide.mjs": "JavaScript",
    "python/pyodide.asm.mjs": "JavaScript",
    "python/pyodide.asm.wasm.gz": "WebAssembly",
    "python/python_stdlib.zip": "zip archive",
    "python/packages.zip": "zip archive",
}
"""What is fetched at a plain start, and what errors call it."""


def damaged(path: str) -> bytes:
    """The file with its middle overwritten: it starts as it should, and has its length."""
    data = bytearray((NPM / path).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = random.Random(path).randbytes(min(4096, len(data) - middle))
    return bytes(data)


def whole(path: str) -> bytes:
    return (NPM / path).read_bytes()


FAULTS: dict[str, Callable[[str], Reply]] = {
    "html": lambda path: Reply(HTML, "text/html"),
    "empty": lambda path: Reply(b"", mime_type(path)),
    "random": lambda path: Reply(random.Random(path).randbytes(5000), mime_type(path)),
    "cut off": lambda path: Reply(whole(path)[: len(whole(path)) // 2], mime_type(path)),
    "broken off": lambda path: Reply(whole(path), mime_type(path), sent=len(whole(path)) // 2),
    "stalled": lambda path: Reply(whole(path), mime_type(path), sent=len(whole(path)) // 2, hangs=True),
    "silent": lambda path: Reply(whole(path), mime_type(path), sent=0, hangs=True),
    "missing": lambda path: Reply(b"", "text/plain", 404),
    "forbidden": lambda path: Reply(HTML, "text/html", 403),
    "damaged": lambda path: Reply(damaged(path), mime_type(path)),
}
STARTING = f"""{OPEN}
    env.timeouts.stall = 2000;
    env.pyodide.snapshot = snapshot;
    const attempt = async () => {{
      try {{
        const s = await open({{ threads: 1 }});
        const value = await loss(s);
        await s.release();
        return {{ value }};
      }} catch (error) {{
        return {{ name: error.name, message: error.message }};
      }}
    }};
    const late = new Promise((resolve) => setTimeout(() => resolve({{ name: "nothing within a minute" }}), 60000));
    return Promise.race([attempt(), late]);
"""
SCRIPTS_RUN = {("worker.js", "random"), ("worker.js", "cut off"), ("worker.js", "damaged")}
"""Scripts that parse no more: the browser says so, and of which file, but not what came."""


def attempt(browser: Browser, site: Site, path: str, fault: str, *, snapshot: bool) -> tuple[dict, dict]:
    """A start with the fault, and another one in the same page when it is mended."""
    site.add_dynamic(f"/dist/{path}", lambda: FAULTS[fault](path))
    with open_js_page(browser, site, expected=(r".*",)) as js:
        found = js.run(STARTING, snapshot=snapshot)
        site.remove(f"/dist/{path}")
        return found, js.run(STARTING, snapshot=snapshot)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_something_else(browser: Browser, make_site: Callable[..., Site], path: str, fault: str) -> None:
    site = make_site()
    found, later = attempt(browser, site, path, fault, snapshot=False)
    assert found["name"] == "EngineError", found
    if (path, fault) not in SCRIPTS_RUN:
        assert site.url(f"/dist/{path}") in found["message"]
    words = {
        "html": ("text/html", FILES[path]),
        "empty": ("empty",),
        "stalled": ("stalls",),
        "silent": ("stalls",),
        "missing": ("404",),
        "forbidden": ("403",),
        "broken off": ("broke off",),
    }
    for word in words.get(fault, ()):
        assert word in found["message"], found
    assert later.get("value", 0) > 0, later


@pytest.mark.parametrize("fault", FAULTS)
def test_a_snapshot_that_is_something_else(browser: Browser, make_site: Callable[..., Site], fault: str) -> None:
    """Python starts without it, and trains as with it."""
    found, later = attempt(browser, make_site(), "python/snapshot.bin", fault, snapshot=True)
    assert found == later and later["value"] > 0


def test_the_archives_are_archives() -> None:
    """What the faults above damage: if these were no archives, no error could say so."""
    for path, what in FILES.items():
        assert zipfile.is_zipfile(NPM / path) == (what == "zip archive")
        assert Path(NPM / path).stat().st_size > 4096


def test_other_kernels_than_ours(browser: Browser, make_site: Callable[..., Site]) -> None:
    """WebAssembly, but of something else."""
    site = make_site()
    site.add(f"/dist/{KERNELS}", b"\0asm\x01\0\0\0")
    with open_js_page(browser, site, expected=(r".*",)) as js:
        found = js.run(STARTING, snapshot=False)
    assert found["name"] == "EngineError" and "holds no kernels of trainweb" in found["message"]
    assert site.url(f"/dist/{KERNELS}") in found["message"]


def test_nothing_is_fetched_from_elsewhere(browser: Browser, make_site: Callable[..., Site]) -> None:
    """Not even where the browser lacks what unpacks our own files."""
    asked: list[str] = []
    site = make_site()
    with open_js_page(browser, site, expected=(r".*",)) as js:
        js.page.context.on("request", lambda request: asked.append(request.url))
        js.run(STARTING, snapshot=False)
        script = (NPM / "worker.js").read_text()
        site.add("/dist/worker.js", f"delete globalThis.DecompressionStream;{script}")
        found = js.run(f"await env.release(); {STARTING}", snapshot=False)
    assert asked and all(url.startswith((site.origin, "blob:", "data:")) for url in asked)
    assert found["name"] == "EngineError" and "DecompressionStream" in found["message"]
