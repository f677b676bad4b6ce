"""The WebAssembly whose machine code browsers keep: it comes from a server unpacked, in the browser's own reply."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, open_js_page
from .server import ROOT, Reply, Site
from .test_js_session import OPEN

NPM = ROOT / "dist" / "npm"
WASM = "/dist/python/pyodide.asm.wasm.gz"
UNPACKED = {"Content-Encoding": "gzip"}
TELL = """
{
  const instantiate = WebAssembly.instantiateStreaming;
  WebAssembly.instantiateStreaming = async (source, imports) => {
    console.log(`compiled from <${(await source).url}>`);
    return instantiate(source, imports);
  };
}
"""
STEP = f"""{OPEN}
    env.timeouts.stall = 2000;
    try {{
      const s = await open();
      const value = await loss(s);
      await s.release();
      return {{ value }};
    }} catch (error) {{
      return {{ name: error.name, message: error.message }};
    }}
"""


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    made = make_site()
    made.add("/dist/worker.js", TELL + (NPM / "worker.js").read_text())
    return made


@pytest.fixture
def js(browser: Browser, site: Site) -> Iterator[tuple[JsPage, list[str]]]:
    with open_js_page(browser, site, expected=(r".*",)) as page:
        said: list[str] = []
        page.page.on("console", lambda message: said.append(message.text))
        yield page, said


def serve(site: Site, content_type: str, headers: dict[str, str], sent: int | None = None, hangs: bool = False) -> None:
    body = (NPM / WASM.removeprefix("/dist/")).read_bytes()
    site.add_dynamic(WASM, lambda: Reply(body, content_type, headers=headers, sent=sent, hangs=hangs))


@pytest.mark.parametrize(
    ("content_type", "headers", "is_own_reply"),
    [
        ("application/wasm", UNPACKED, True),
        ("application/gzip", UNPACKED, False),
        ("application/wasm", {}, False),
    ],
    ids=["unpacked", "unpacked, of another type", "packed"],
)
def test_what_is_compiled(
    js: tuple[JsPage, list[str]], site: Site, content_type: str, headers: dict[str, str], is_own_reply: bool
) -> None:
    """The browser's own reply, by whose URL it finds the machine code again, where that can be compiled as it is."""
    page, said = js
    serve(site, content_type, headers)
    assert page.run(STEP)["value"] > 0
    url = site.url(WASM) if is_own_reply else ""
    assert f"compiled from <{url}>" in said, said


@pytest.mark.parametrize(("hangs", "word"), [(False, "broke off"), (True, "stalls")])
def test_a_reply_that_does_not_come_whole(js: tuple[JsPage, list[str]], site: Site, hangs: bool, word: str) -> None:
    page, _ = js
    serve(site, "application/wasm", UNPACKED, sent=2**20, hangs=hangs)
    found = page.run(STEP)
    assert found["name"] == "EngineError" and site.url(WASM) in found["message"] and word in found["message"], found
    site.remove(WASM)
    assert page.run(STEP).get("value", 0) > 0
