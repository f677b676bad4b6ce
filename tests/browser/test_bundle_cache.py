"""Bundles that the page keeps: the cache in the origin's private file system."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from .bundles import SESSION, open_page, python_requests
from .js_session import JsPage
from .server import ROOT, Site

CACHE = """
    const cached = (more) => TrainingSession.create(golden("mlp", more), { reproducible: true, cache: true });
    const files = async () => {
      const found = {};
      try {
        let folder = await navigator.storage.getDirectory();
        for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
        for await (const [name, handle] of folder.entries()) found[name] = handle;
      } catch (error) {
        if (error.name !== "NotFoundError") throw error;
      }
      return found;
    };
    const contents = async (handle) => {
      for (;;) {
        try {
          return text(new Uint8Array(await (await handle.getFile()).arrayBuffer()));
        } catch (error) {
          if (error.name === "NotFoundError") return "";  // it is being replaced, or was removed
          if (error.name !== "NotReadableError") throw error;  // it was written meanwhile
        }
      }
    };
    const stored = async () => Promise.all(Object.values(await files()).map(contents));
    // The limit is that of the test: a machine with other work takes its time.
    const until = async (condition) => {
      while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 50));
    };
    const written = (count = 1) => until(async () => Object.keys(await files()).length === count);
"""

FIRST_VISIT = f"""{SESSION}{CACHE}
    const s = await cached();
    const seen = [await step(s), await step(s), await parameters(s)];
    await written();
    await s.release();
    return seen;
"""


def visit(js: JsPage, body: str, **variables: Any) -> Any:
    """Load the page anew and run something in it; the site's log starts anew."""
    js.site.clear_log()
    return JsPage(js.page, js.site).run(body, **variables)


def test_a_second_visit_starts_from_the_cache(browser: Browser, plain_site: Site) -> None:
    """Without Python, from the parameters of the start and not from those trained since."""
    with open_page(browser, plain_site) as js:
        first = js.run(FIRST_VISIT)
        assert python_requests(plain_site)
        second = visit(
            js,
            f"""{SESSION}{CACHE}
            const s = await cached();
            return [await step(s), await step(s), await parameters(s)];""",
        )
        assert python_requests(plain_site) == []
        assert second == first


def test_the_cache_learns_what_is_used_later(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(FIRST_VISIT)
        first = visit(
            js,
            f"""{SESSION}{CACHE}
            const before = await stored();
            const s = await cached();
            const seen = [await step(s), await step(s, small), text(await s.saveCheckpoint())];
            await until(async () => Object.keys(await files()).length === 1
                                    && (await stored())[0] !== before[0]);
            return seen;""",
        )
        assert python_requests(plain_site)
        second = visit(js, f"{SESSION}{CACHE} const s = await cached(); return [await step(s), await step(s, small)];")
        assert python_requests(plain_site) == []
        assert second == first[:2]


def test_other_artifacts_are_not_taken_for_the_cached_ones(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(FIRST_VISIT)
        different = """checkpointState: await trained()"""
        visit(
            js,
            f"""{SESSION}{CACHE}
            const trained = async () => {{
              const s = await fromModels();
              await s.setLearningRate(0.5);
              await step(s);
              return s.saveCheckpoint();
            }};
            await step(await cached({{ {different} }}));
            await written(2);
            await step(await cached({{ evalModel: undefined }}));
            await written(3);""",
        )
        assert python_requests(plain_site)


def test_models_are_cached_with_their_configuration(browser: Browser, plain_site: Site) -> None:
    """createFromModel: the artifacts can still be had, and are the same."""
    body = f"""{SESSION}{CACHE}
        const s = await TrainingSession.createFromModel(
          "/golden/mlp/base.onnx", {{ loss: "CrossEntropyLoss", optimizer, nominalCheckpoint: nominal }},
          {{ reproducible: true, cache: true }});
        if (nominal) await s.loadParametersBuffer(new Float32Array(432).map((_, i) => Math.cos(i)), false);
        const given = {{ [s.trainingInputNames[0]]: x, [s.trainingInputNames[1]]: labels }};
        const seen = [await step(s, given), await parameters(s)];
        if (wait) await written(wait);
        window.session = s;
        return seen;"""
    artifacts = """
        const a = await session.artifacts();
        return Object.values(a).map((data) => Array.from(data).reduce((h, b) => (h * 31 + b) % 4294967291, 7));"""
    with open_page(browser, plain_site) as js:
        for count, nominal in enumerate((False, True), 1):
            first = visit(js, body, optimizer="AdamW", nominal=nominal, wait=count)
            assert python_requests(plain_site)
            made = js.run(artifacts)
            assert visit(js, body, optimizer="AdamW", nominal=nominal, wait=0) == first
            assert python_requests(plain_site) == []
            assert js.run(artifacts) == made
        visit(js, body, optimizer="SGD", nominal=False, wait=3)
        assert python_requests(plain_site)


@pytest.fixture(scope="module")
def visited(browser: Browser) -> Iterator[tuple[JsPage, list[str], dict[str, str]]]:
    """A page of a site of its own after a first visit, what that saw, and the files that it left."""
    site = Site()
    with open_page(browser, site) as js:
        first = js.run(FIRST_VISIT)
        kept = js.run(
            f"""{SESSION}{CACHE}
            await until(async () => atob((await stored())[0] ?? "").startsWith("TWBS"));
            const [[name, handle]] = Object.entries(await files());
            return {{ [name]: await contents(handle) }};"""
        )
        yield js, first, kept
    site.close()


RESTORE = f"""{SESSION}{CACHE}
    let folder = await navigator.storage.getDirectory();
    for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
    const removed = (name) => folder.removeEntry(name).then(() => true, (error) => {{
      if (error.name !== "NoModificationAllowedError") throw error;  // the worker of the page before still ends
      return false;
    }});
    for (const name of Object.keys(await files())) await until(() => removed(name));
    for (const [name, data] of Object.entries(kept)) {{
      const writable = await (await folder.getFileHandle(name, {{ create: true }})).createWritable();
      await writable.write(bytes(data));
      await writable.close();
    }}
"""
"""The files of the first visit, and no others."""


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "header"])
def test_damaged_cache_files_are_ignored_and_written_anew(
    visited: tuple[JsPage, list[str], dict[str, str]], damage: str
) -> None:
    js, first, kept = visited
    js.run(RESTORE, kept=kept)
    after = visit(
        js,
        f"""{SESSION}{CACHE}
        await until(async () => atob((await stored())[0] ?? "").startsWith("TWBS"));
        const handle = Object.values(await files())[0];
        const data = new Uint8Array(await (await handle.getFile()).arrayBuffer());
        if (damage === "flip") data[data.length >> 1] ^= 1;
        if (damage === "header") data[9] ^= 1;
        const kept = {{ cut: data.length - 1, empty: 0 }}[damage] ?? data.length;
        const writable = await handle.createWritable();
        await writable.write(data.subarray(0, kept));
        await writable.close();
        const [damaged] = await stored();
        const s = await cached();
        const seen = [await step(s), await step(s), await parameters(s)];
        await s.release();
        await until(async () => {{
          const [now] = await stored();
          return now !== damaged && atob(now ?? "").startsWith("TWBS");  // the header comes last
        }});
        return seen;""",
        damage=damage,
    )
    assert python_requests(js.site)
    assert after == first
    assert visit(js, f"{SESSION}{CACHE} const s = await cached(); return step(s);") == first[0]
    assert python_requests(js.site) == []


UNAVAILABLE = {
    "no storage": "Object.defineProperty(navigator, 'storage', { value: undefined });",
    "refused": "navigator.storage.getDirectory = async () => { throw new DOMException('no', 'SecurityError'); };",
    "no sync handles": "delete FileSystemFileHandle.prototype.createSyncAccessHandle;",
    "no hashes": "Object.defineProperty(crypto, 'subtle', { value: undefined });",
    "no locks": "Object.defineProperty(navigator, 'locks', { value: undefined });",
}


def worker_site(site: Site, prefix: str) -> None:
    """Let the worker of the package start with a line of the test's own."""
    site.remove("/dist/worker.js")
    source = (ROOT / "dist" / "npm" / "worker.js").read_text()
    site.add("/dist/worker.js", f"{prefix}\n{source}")


@pytest.fixture
def own_site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@pytest.mark.parametrize("what", UNAVAILABLE)
def test_storage_that_is_not_there_is_no_error(
    browser: Browser, own_site: Site, visited: tuple[JsPage, list[str], dict[str, str]], what: str
) -> None:
    worker_site(own_site, UNAVAILABLE[what])
    body = f"{SESSION}{CACHE} const s = await cached(); const v = await step(s); await s.release(); return v;"
    with open_page(browser, own_site) as js:
        assert js.run(body) == visited[1][0]


FAULT = """
    let operations = 0;
    const told = new BroadcastChannel("operations");
    const fail = (object, name) => {
      const original = object[name];
      object[name] = function (...args) {
        told.postMessage(++operations);
        if (operations > %d) throw new DOMException("no room", "QuotaExceededError");
        return original.apply(this, args);
      };
    };
    for (const name of ["truncate", "write", "flush"]) fail(FileSystemSyncAccessHandle.prototype, name);
    fail(FileSystemFileHandle.prototype, "createSyncAccessHandle");
    fail(FileSystemDirectoryHandle.prototype, "removeEntry");
"""
N_OPERATIONS = 7
"""Of writing a file: open, truncate, write and flush the contents, write and flush the header, remove the old one."""
TRIED = (0, 2, 4, 5, N_OPERATIONS)
"""Faults at the ends, in the contents, and on both sides of the header."""


@pytest.mark.parametrize(
    "fault", [k if k in TRIED else pytest.param(k, marks=pytest.mark.sweep) for k in range(N_OPERATIONS + 1)]
)
def test_an_interrupted_write_leaves_the_old_or_the_new_file(
    visited: tuple[JsPage, list[str], dict[str, str]], fault: int
) -> None:
    """Everything from operation `fault` on fails; then the storage is opened again."""
    js, first, kept = visited
    site = js.site
    js.run(RESTORE, kept=kept)
    worker_site(site, FAULT % fault)
    more = visit(
        js,
        f"""{SESSION}{CACHE}
        let operations = 0;
        new BroadcastChannel("operations").onmessage = ({{ data }}) => {{ operations = data; }};
        const s = await cached();
        const seen = [await step(s), await step(s, small)];
        await until(() => operations >= wanted);
        return seen;""",
        wanted=min(fault + 1, N_OPERATIONS),
    )
    assert more[0] == first[0]
    worker_site(site, "")
    visit(js, f"{SESSION}{CACHE} window.s = await cached(); return step(s);")
    assert python_requests(site) == [], "neither the old file nor the new one"
    assert js.run(f"{SESSION} return step(s, small);") == more[1]
    # The header is the fifth operation: with it the new file, which has the other batch, is there.
    assert (python_requests(site) == []) == (fault >= 5)


def test_old_files_make_room(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        count = js.run(
            f"""{SESSION}{CACHE}
            const folder = await (await (await navigator.storage.getDirectory())
              .getDirectoryHandle("trainweb", {{ create: true }})).getDirectoryHandle("bundles", {{ create: true }});
            for (let k = 0; k < 30; k++) {{
              const writable = await (await folder.getFileHandle(`old${{k}}.0`, {{ create: true }})).createWritable();
              await writable.write("old");
              await writable.close();
            }}
            const s = await cached();
            await step(s);
            await until(async () => Object.keys(await files()).length < 30);
            const left = Object.keys(await files());
            return [left.length, left.filter((name) => !name.startsWith("old")).length];"""
        )
        assert count == [16, 1]
