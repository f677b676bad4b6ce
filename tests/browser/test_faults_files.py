"""Files of the package that are not what they should be: an error names the file, what is expected and what came."""

import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from .bundles import open_page
from .js_session import JsPage
from .server import ROOT, Reply, Site, mime_type
from .test_js_session import BUNDLED, OPEN

NPM = ROOT / "dist" / "npm"
HTML = (
    b"<!doctype html><title>Home</title><p>There is nothing here, but we are friendly and say it with status 200.</p>"
)
KERNELS = "kernels.relaxed.wasm.gz"
THREADED = "kernels.relaxed.threads.wasm.gz"
POOL = "pool-worker.js"
FILES = {
    "worker.js": "JavaScript",
    KERNELS: "WebAssembly",
    THREADED: "WebAssembly",
    "python/pyodide.mjs": "JavaScript",
    "python/pyodide.asm.mjs": "JavaScript",
    "python/pyodide.asm.wasm.gz": "WebAssembly",
    "python/python_stdlib.zip": "zip archive",
    "python/packages.zip": "zip archive",
}
"""What is fetched at a plain start, that for threads in isolated pages, and what errors call it."""


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
STARTING = """
    env.timeouts.stall = stall;
    env.pyodide.snapshot = snapshot;
    const threads = crossOriginIsolated ? 2 : 1;
    const attempt = async () => {
      try {
        const s = await open({ threads });
        const value = await loss(s);
        await s.release();
        return { value };
      } catch (error) {
        return { name: error.name, message: error.message };
      }
    };
    const late = new Promise((resolve) => setTimeout(() => resolve({ name: "nothing within a minute" }), 60000));
    const start = performance.now();
    const found = await Promise.race([attempt(), late]);
    return { ...found, seconds: (performance.now() - start) / 1000 };
"""
WORDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "html": lambda kind: ("text/html", kind),
    "empty": lambda kind: ("empty",),
    "stalled": lambda kind: ("stalls",),
    "silent": lambda kind: ("stalls",),
    "missing": lambda kind: ("404", kind),
    "forbidden": lambda kind: ("403", kind),
    "broken off": lambda kind: ("broke off",),
}
"""What an error must say besides the URL."""
STALL_MS = 1000
PATIENT_MS = 30_000
"""For files that come, on a machine that is busy."""
DEFAULT_STALL_MS = 8000
"""Of `env.timeouts`, as it is when nobody sets it."""


class Starts:
    """Starts of a separate page, with the files that a test wants."""

    def __init__(self, js: JsPage, site: Site, script: str, *, snapshot: bool) -> None:
        self.js, self.site, self.script, self.snapshot = js, site, script + STARTING, snapshot

    def attempt(self, stall_ms: int = PATIENT_MS) -> dict[str, Any]:
        """A start, by a new worker, and a step."""
        self.js.run("await env.release();")
        found: dict[str, Any] = self.js.run(self.script, snapshot=self.snapshot, stall=stall_ms)
        return found

    def with_fault(self, path: str, fault: str, stall_ms: int | None = None) -> dict[str, Any]:
        """A start where a file is not what it should be. A script that runs without its end hangs, too."""
        hangs = fault in ("stalled", "silent") or path in ("worker.js", POOL)
        self.site.add_dynamic(f"/dist/{path}", lambda: FAULTS[fault](path))
        found = self.attempt(stall_ms or (STALL_MS if hangs else PATIENT_MS))
        self.site.remove(f"/dist/{path}")
        return found

    def check(self, found: dict[str, Any], path: str, fault: str) -> None:
        """The error is ours, and says what was expected where, and what came."""
        where = f"{path}, {fault}: {found}"
        assert found["name"] == "EngineError", where
        assert self.site.url(f"/dist/{path}") in found["message"], where
        for word in WORDS.get(fault, lambda _: ())(FILES[path]):
            assert word in found["message"], where


@pytest.fixture
def starts(browser: Browser, make_site: Callable[..., Site], request: pytest.FixtureRequest) -> Iterator[Starts]:
    """With Python where the test is of its files, and from the snapshot where that has them all."""
    path = str((getattr(request.node, "callspec", None) and request.node.callspec.params.get("path")) or "python/")
    site = make_site(isolated=path in (THREADED, POOL))
    with open_page(browser, site, expected=(r".*",)) as js:
        script = OPEN if path.startswith("python/") else BUNDLED
        yield Starts(js, site, script, snapshot=getattr(request, "param", not path.endswith(".zip")))


OF_CONTENTS = ("html", "random", "cut off", "missing", "damaged")
"""Faults that each kind of file shows in its own way. The others are of the connection."""
OF_ARCHIVES = ("missing", "damaged")
"""The same of files that Python unpacks after its start, which takes three seconds for each fault."""


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_something_else(starts: Starts, path: str) -> None:
    """Fault after fault in one page: each has its error, and the page starts when all are repaired.

    Worker, kernels and Pyodide have all faults, scripts of Python those of contents. The sweep tries all.
    """
    for fault in {"mjs": OF_CONTENTS, "zip": OF_ARCHIVES}.get(path.rpartition(".")[2], FAULTS):
        starts.check(starts.with_fault(path, fault), path, fault)
    assert starts.attempt().get("value", 0) > 0


def without_threads(starts: Starts, fault: str, value: float) -> None:
    """A step needs none of them: it computes the same, and a warning says what is wrong with which file."""
    said: list[str] = []
    starts.js.page.on("console", lambda message: said.append(message.text))
    assert starts.with_fault(POOL, fault).get("value") == value, fault
    (warning,) = (text for text in said if "running with 1 of 2 threads" in text)
    assert starts.site.url(f"/dist/{POOL}") in warning, warning
    for word in WORDS.get(fault, lambda _: ())("JavaScript"):
        assert word in warning, (fault, warning)


@pytest.mark.parametrize("path", [POOL])
def test_without_the_script_of_threads_there_is_one(starts: Starts, path: str) -> None:
    value = starts.attempt()["value"]
    assert value > 0
    for fault in ("html", "damaged"):
        without_threads(starts, fault, value)


@pytest.mark.sweep
@pytest.mark.parametrize("path", [POOL])
@pytest.mark.parametrize("fault", FAULTS)
def test_without_the_script_of_threads_there_is_one_whatever_is_wrong(starts: Starts, path: str, fault: str) -> None:
    without_threads(starts, fault, starts.attempt()["value"])


def test_a_snapshot_that_is_something_else(starts: Starts) -> None:
    """Python starts without it, and trains as with it."""
    value = starts.attempt()["value"]
    assert value > 0
    for fault in ("missing", "damaged"):
        assert starts.with_fault("python/snapshot.bin", fault).get("value") == value, fault
    assert starts.attempt().get("value") == value


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", FILES)
def test_a_page_recovers_from_every_fault(starts: Starts, path: str, fault: str) -> None:
    """With the limits that pages have. The time until the errors is printed, for docs/security.md."""
    found = starts.with_fault(path, fault, DEFAULT_STALL_MS)
    starts.check(found, path, fault)
    print(f"{path}, {fault}: {found['seconds']:.1f} s")
    assert starts.attempt(DEFAULT_STALL_MS).get("value", 0) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS)
def test_a_page_recovers_from_every_fault_of_the_snapshot(starts: Starts, fault: str) -> None:
    found = starts.with_fault("python/snapshot.bin", fault)
    assert found.get("value", 0) == starts.attempt().get("value"), found


def test_the_archives_are_archives() -> None:
    """The archives that the faults above damage really are archives: otherwise no error could name them."""
    for path, what in FILES.items():
        assert zipfile.is_zipfile(NPM / path) == (what == "zip archive")
        assert Path(NPM / path).stat().st_size > 4096


def test_other_kernels_than_ours(starts: Starts) -> None:
    """WebAssembly, but of something else."""
    starts.site.add(f"/dist/{KERNELS}", b"\0asm\x01\0\0\0")
    found = starts.attempt()
    assert found["name"] == "EngineError" and "holds no kernels of trainweb" in found["message"]
    assert starts.site.url(f"/dist/{KERNELS}") in found["message"]


@pytest.mark.parametrize("fault", ["its first half", "another script"])
def test_a_worker_that_runs_and_takes_no_calls(starts: Starts, fault: str) -> None:
    """A script that is cut off between two statements is still a script, and so is another script."""
    script = (NPM / "worker.js").read_text()
    listening = script.rindex('addEventListener("message"')
    found_bytes = {"its first half": script[:listening].encode(), "another script": b"export const answer = 42;"}[fault]
    starts.site.add("/dist/worker.js", found_bytes)
    found = starts.attempt(STALL_MS)
    assert found["name"] == "EngineError", found
    for words in (
        starts.site.url("/dist/worker.js"),
        f"expected the worker of trainweb of {len(script.encode())} bytes",
        f"found {len(found_bytes)} bytes without its end",
        "env.baseURL",
    ):
        assert words in found["message"], found
    starts.site.remove("/dist/worker.js")
    assert starts.attempt().get("value", 0) > 0


@pytest.mark.parametrize("starts", [False], indirect=True, ids=["no snapshot"])
def test_nothing_is_fetched_from_elsewhere(starts: Starts) -> None:
    """Not even where the browser lacks what unpacks our own files."""
    asked: list[str] = []
    starts.js.page.context.on("request", lambda request: asked.append(request.url))
    starts.attempt()
    script = (NPM / "worker.js").read_text()
    starts.site.add("/dist/worker.js", f"delete globalThis.DecompressionStream;{script}")
    found = starts.attempt()
    assert asked and all(url.startswith((starts.site.origin, "blob:", "data:")) for url in asked)
    assert found["name"] == "EngineError" and "DecompressionStream" in found["message"]
