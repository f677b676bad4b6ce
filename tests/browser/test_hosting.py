"""Statements of docs/deploy.md about servers: sub-folders, isolation by a service worker, offline, in a page as users
have."""

import atexit
import base64
import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as PlaywrightError

from .conftest import PAGE_TIMEOUT_MS, watched_page
from .server import ISOLATION_HEADERS, ROOT, Reply, Site
from .test_js_package import STRICT_POLICY, npx

DEPLOY = (ROOT / "docs" / "deploy.md").read_text()

MAIN = """
import { env, Tensor, TrainingSession } from "PACKAGE";

env.logLevel = "info";
env.wasm.numThreads = 2;
SETTINGS
const session = await TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" });
const points = new Tensor("float32", [0.1, 0.2, 0.9, -0.8], [2, 2]);
const labels = new Tensor("int64", [1n, 0n], [2]);
const losses = [];
for (let step = 0; step < 10; step++) {
  losses.push((await session.runTrainStep({ points, labels }))[session.trainingOutputNames[0]].data[0]);
  await session.runOptimizerStep();
  await session.lazyResetGrad();
}
await session.release();
document.title = losses[9] < losses[0] ? "trained" : "failed";
"""

PAGE = """<!doctype html>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<title>starting</title>
HEAD
<script type="module" src="main.js"></script>
"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page; what it logs is the test's business."""
    fresh, _ = watched_page(browser)
    yield fresh
    fresh.context.close()


def block(language: str, phrase: str) -> str:
    """The code of docs/deploy.md that has a phrase."""
    (found,) = (code for code in re.findall(rf"```{language}.*?\n(.*?)```", DEPLOY, re.DOTALL) if phrase in code)
    return str(found)


@cache
def copied_package() -> Path:
    """What `npx trainweb copy` writes."""
    folder = Path(tempfile.mkdtemp(prefix="trainweb-copy-"))
    atexit.register(shutil.rmtree, folder)
    assert npx("copy", str(folder / "trainweb")).returncode == 0
    return folder / "trainweb"


def put_up(folder: Path, *, package: str = "./trainweb/index.js", settings: str = "", head: str = "") -> None:
    """Lay down a page with the model and the package beside it."""
    shutil.copytree(copied_package(), folder / "trainweb")
    (folder / "first.onnx").write_bytes((ROOT / "docs" / "first.onnx").read_bytes())
    (folder / "main.js").write_text(MAIN.replace("PACKAGE", package).replace("SETTINGS", settings))
    (folder / "index.html").write_text(PAGE.replace("HEAD", head))


def wait_until_trained(page: Page, condition: str = "true") -> None:
    """Poll: the page may load itself anew, and policies forbid Playwright's own waiting."""
    deadline = time.monotonic() + PAGE_TIMEOUT_MS / 1000
    state = None
    while time.monotonic() < deadline and state != ["trained", True]:
        with contextlib.suppress(PlaywrightError):
            state = page.evaluate(f"() => [document.title, {condition}]")
        page.wait_for_timeout(100)
    assert state == ["trained", True]


def test_files_may_lie_in_another_folder(page: Page, make_site: Callable[..., Site], tmp_path: Path) -> None:
    setting = block("js", "../shared/trainweb/")
    put_up(tmp_path / "app", settings=setting)
    (tmp_path / "shared").mkdir()
    (tmp_path / "app" / "trainweb").rename(tmp_path / "shared" / "trainweb")
    (tmp_path / "app" / "trainweb").mkdir()
    script = (tmp_path / "shared" / "trainweb" / "index.js").rename(tmp_path / "app" / "trainweb" / "index.js")
    assert script.exists()
    site = make_site(mounts={"/sub/": (tmp_path,)})
    page.goto(site.url("/sub/app/index.html"))
    wait_until_trained(page)
    assert site.requests("/sub/app/trainweb/") == ["/sub/app/trainweb/index.js"]
    assert "/sub/shared/trainweb/worker.js" in site.requests()


@pytest.mark.parametrize(
    ("kind", "policy"), [("", STRICT_POLICY), (' type="module"', None)], ids=["classic, strict policy", "module"]
)
def test_a_script_tag_gives_the_global(
    page: Page, make_site: Callable[..., Site], tmp_path: Path, kind: str, policy: str | None
) -> None:
    """`<script src>` of the copy, in another folder than the page: the files lie beside the script."""
    put_up(tmp_path / "app", head=f'<script{kind} src="/files/trainweb/trainweb.js"></script>')
    (tmp_path / "app" / "trainweb").rename(tmp_path / "trainweb")
    main = tmp_path / "app" / "main.js"
    imports, _, rest = main.read_text().lstrip().partition("\n")
    names = re.search(r"{.*}", imports)
    assert names is not None
    main.write_text(f"const {names[0]} = trainweb;\n{rest}")
    site = make_site(mounts={"/": (tmp_path / "app",), "/files/": (tmp_path,)}, csp=policy)
    page.goto(site.url("/index.html"))
    wait_until_trained(page)
    assert page.evaluate("trainweb.default.TrainingSession === trainweb.TrainingSession")


def test_a_cdn_that_follows_exports(page: Page, make_site: Callable[..., Site], tmp_path: Path) -> None:
    """As jsDelivr's `/+esm`: the script of `exports` under another address and origin, with addresses for imports."""
    put_up(tmp_path, package="CDN/npm/trainweb@0.1.0/+esm")
    shutil.rmtree(tmp_path / "trainweb")
    package = json.loads((ROOT / "package.json").read_text())
    cdn = make_site(mounts={"/npm/trainweb@0.1.0/": (ROOT,)})
    script = (ROOT / package["exports"]["."]["default"]).read_text()
    common = ROOT / "node_modules" / "onnxruntime-common"
    path = "/npm/onnxruntime-common@1.30.0/dist/esm/"
    served = re.sub(r'(from|import) "onnxruntime-common"', rf'\1 "{path}index.js"', script)
    assert served != script
    cdn.mounts[path] = (common / "dist" / "esm",)
    cdn.add("/npm/trainweb@0.1.0/+esm", served, "text/javascript")
    main = tmp_path / "main.js"
    main.write_text(main.read_text().replace("CDN", cdn.origin))
    page.goto(make_site(mounts={"/": (tmp_path,)}).url("/index.html"))
    wait_until_trained(page)
    assert "/npm/trainweb@0.1.0/dist/npm/worker.js" in cdn.requests()


@pytest.mark.parametrize("policy", [None, STRICT_POLICY], ids=["no policy", "strict policy"])
def test_a_service_worker_isolates(
    page: Page, make_site: Callable[..., Site], tmp_path: Path, policy: str | None
) -> None:
    """On a server without the headers, in a sub-folder: threads from the second load on, which comes by itself."""
    put_up(tmp_path, head=block("html", "isolate.js"))
    done = npx("isolate", str(tmp_path))
    assert done.returncode == 0, done.stderr
    if policy is not None:
        policy = f"{policy}; {policy_line('require-trusted-types-for')}"
    site = make_site(mounts={"/sub/": (tmp_path,)}, csp=policy)
    lines: list[str] = []
    page.on("console", lambda message: lines.append(message.text))
    page.goto(site.url("/sub/index.html"))
    wait_until_trained(page, "crossOriginIsolated")
    assert any(re.search(r"kernels\S*\.threads, 2 threads", line) for line in lines), lines
    page.reload()
    wait_until_trained(page, "crossOriginIsolated")


BROWSERS_REDIRECTS = 100
"""More than browsers follow."""

REDIRECTED = """<!doctype html>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<script src="isolate.js"></script>
<script type="module">
const module = (path) => import(path).then(({ where, url, dep }) => [where, url, dep], String);
const posted = (path) => fetch(path, { method: "POST", body: "x" }).then((r) => r.text());
const worker = (path) => new Promise((resolve) => {
  const started = new Worker(path, { type: "module" });
  started.onmessage = ({ data }) => resolve(data);
  started.onerror = () => resolve("failed");
});
const asked = async (path, options) => {
  try {
    const response = await fetch(path, options);
    return [await response.text(), response.url, response.redirected];
  } catch (error) { return error.name; }
};
if (crossOriginIsolated) {
  window.found = {
    module: await module("./latest/mod.js"), far: await module("./far/mod.js"),
    other: await module("OTHER/latest/mod.js"), whole: await module("./v1/mod.js"),
    worker: await worker("./latest/mod.js"), fetched: await asked("./latest/text"), twice: await asked("./newest/text"),
    own: await asked("./cookie"), endless: await asked("./loop"), posted: await posted("./post"),
    opaque: (await fetch("OTHER/latest/mod.js", { mode: "no-cors" })).type,
    right: await asked("./latest/text", { integrity: "RIGHT" }),
    wrong: await asked("./latest/text", { integrity: "WRONG" }),
  };
}
</script>
"""


def test_a_service_worker_keeps_redirects(page: Page, make_site: Callable[..., Site], tmp_path: Path) -> None:
    """Modules behind a redirect find others beside the file, not beside the redirect, and nothing goes on for ever."""
    assert npx("isolate", str(tmp_path)).returncode == 0
    site, cdn = make_site(mounts={"/sub/": (tmp_path,)}), make_site()
    module = """
      import {{ dep }} from "./dep.js";
      export const where = "{}", url = import.meta.url;
      export {{ dep }};
      if (typeof document === "undefined") postMessage([where, url, dep]);
    """

    def redirect(at: Site, path: str, target: str, status: int = 302) -> None:
        at.add(path, "", status=status, headers={"Location": target})

    for one, folder in ((site, "/sub"), (cdn, "")):
        for version in ("latest", "v1"):
            one.add(f"{folder}/{version}/dep.js", f"export const dep = '{version}';")
        one.add(f"{folder}/v1/mod.js", module.format("v1"))
        redirect(one, f"{folder}/latest/mod.js", f"{folder}/v1/mod.js")
    redirect(site, "/sub/far/mod.js", cdn.url("/latest/mod.js"))
    redirect(site, "/sub/latest/text", "/sub/v1/text")
    redirect(site, "/sub/newest/text", "/sub/latest/text", 301)
    site.add("/sub/v1/text", "text")
    redirect(site, "/sub/post", "/sub/posted", 307)
    site.add("/sub/posted", "posted")
    # A login sends there and back each time that it is asked for; the other never ends.
    turns = cycle([302, 200])
    redirect(site, "/sub/login", "/sub/cookie")
    site.add_dynamic("/sub/cookie", lambda: Reply(b"in", status=next(turns), headers={"Location": "/sub/login"}))
    redirect(site, "/sub/loop", "/sub/back")
    redirect(site, "/sub/back", "/sub/loop")
    text = REDIRECTED.replace("OTHER", cdn.origin)
    for name, body in (("RIGHT", b"text"), ("WRONG", b"other")):
        text = text.replace(name, f"sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}")
    (tmp_path / "index.html").write_text(text)
    page.goto(site.url("/sub/index.html"))
    deadline = time.monotonic() + PAGE_TIMEOUT_MS / 1000
    found = None
    while found is None and time.monotonic() < deadline:
        with contextlib.suppress(PlaywrightError):
            found = page.evaluate("() => window.found ?? null")
        page.wait_for_timeout(100)
    assert found == {
        "module": ["v1", site.url("/sub/v1/mod.js"), "v1"],
        "far": ["v1", cdn.url("/v1/mod.js"), "v1"],
        "other": ["v1", cdn.url("/v1/mod.js"), "v1"],
        "worker": ["v1", site.url("/sub/v1/mod.js"), "v1"],
        "fetched": ["text", site.url("/sub/v1/text"), True],
        "twice": ["text", site.url("/sub/v1/text"), True],
        # Redirected to its own URL: which is right, though not that it was redirected.
        "own": ["in", site.url("/sub/cookie"), False],
        "endless": "TypeError",
        "opaque": "opaque",
        "right": ["text", site.url("/sub/v1/text"), True],
        "wrong": "TypeError",
        "posted": "posted",
        "whole": ["v1", site.url("/sub/v1/mod.js"), "v1"],
    }
    assert len(site.requests("/sub/posted")) == 1, "what is sent is not sent again"
    assert len(site.requests("/sub/loop")) < BROWSERS_REDIRECTS


def test_a_page_trains_offline(page: Page, make_site: Callable[..., Site], tmp_path: Path) -> None:
    put_up(tmp_path, settings=block("js", "serviceWorker.register"))
    (tmp_path / "sw.js").write_text(block("js", "self.addEventListener"))
    site = make_site(mounts={"/sub/": (tmp_path,)})
    for _ in range(2):
        page.goto(site.url("/sub/index.html"))
        wait_until_trained(page)
    site.close()
    page.goto("about:blank")
    page.goto(site.url("/sub/index.html"))
    wait_until_trained(page)


def policy_line(phrase: str) -> str:
    """The one policy of docs/deploy.md that has a phrase, in one line."""
    return " ".join(block("text", phrase).split())


@pytest.mark.parametrize("isolated", [False, True])
def test_a_policy_for_files_of_another_origin(
    page: Page, make_site: Callable[..., Site], tmp_path: Path, isolated: bool
) -> None:
    """The lines of the guide, with Trusted Types."""
    cdn = make_site(mounts={"/npm/": (tmp_path / "trainweb",)}, isolated=isolated)
    put_up(tmp_path, package=cdn.url("/npm/index.js"))
    own = policy_line("https://cdn.example").replace("https://cdn.example", cdn.origin)
    policy = f"default-src 'none'; {own}; {policy_line('trusted-types')}"
    site = make_site(mounts={"/app/": (tmp_path,)}, csp=policy, isolated=isolated)
    page.goto(site.url("/app/index.html"))
    wait_until_trained(page, f"crossOriginIsolated === {str(isolated).lower()}")
    assert site.requests("/app/trainweb/") == []


def errors_of(page: Page, address: str) -> list[str]:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    deadline = time.monotonic() + PAGE_TIMEOUT_MS / 1000
    while not errors and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    return errors


SANDBOXED = """
import { CheckpointStore, readImages } from "PACKAGE";
window.errors = [];
for (const backend of [null, "indexedDB", "opfs"]) {
  const store = new CheckpointStore("default", { backend });
  await store.save(session, "a").catch(({ message }) => errors.push(message));
  await store.list().catch(({ name }) => errors.push(name));
  await store.delete("a").catch(({ name }) => errors.push(name));
}
const { losses: fitted } = await session.fit({ points: [[0, 0], [1, 1]], labels: [0, 1] }, { epochs: 3 });
const pictures = readImages([new ImageData(4, 4)], { input: "x", width: 2, height: 2 });
const sizes = [];
for await (const { x } of pictures) sizes.push(...x.dims);
const sgd = { loss: "CrossEntropyLoss", optimizer: "SGD" };
const cached = await TrainingSession.createFromModel("first.onnx", sgd, { cache: true });
await cached.release();
window.told = [fitted.length, sizes];
"""


@pytest.mark.parametrize(("isolated", "inline"), [(False, True), (True, False)], ids=["inline", "isolated"])
def test_a_sandboxed_frame_trains(
    page: Page, make_site: Callable[..., Site], tmp_path: Path, isolated: bool, inline: bool
) -> None:
    """CodePen, notebooks and viewers of generated pages show them in a frame without an origin."""
    put_up(tmp_path)
    main = MAIN.replace("await session.release();", SANDBOXED + "await session.release();")
    (tmp_path / "main.js").write_text(main.replace("PACKAGE", "./trainweb/index.js").replace("SETTINGS", ""))
    site = make_site(mounts={"/app/": (tmp_path,)}, isolated=isolated)
    head = {**(ISOLATION_HEADERS if isolated else {}), "Cross-Origin-Resource-Policy": "cross-origin"}
    html = PAGE.replace("HEAD", f'<base href="{site.url("/app/")}">')
    source = f'srcdoc="{escape(html)}"' if inline else f'src="{site.url("/app/framed.html")}"'
    site.add("/app/framed.html", html, headers=head)
    page.goto(site.add("/outer.html", f'<!doctype html><iframe sandbox="allow-scripts" {source}></iframe>'))
    frame = next(one for one in page.frames if one != page.main_frame)
    frame.wait_for_function("document.title === 'trained'", timeout=PAGE_TIMEOUT_MS)
    told, errors, origin = frame.evaluate("[window.told, window.errors, origin]")
    assert told == [3, [3, 2, 2]] and origin == "null"
    for message, *names in (errors[:3], errors[3:6], errors[6:]):
        assert "There is no storage for checkpoints" in message and "denied" in message.lower(), message
        assert names == ["StorageError"] * 2


REFUSED = {
    "no worker": ("worker-src 'none'", r"worker\.js is there, but did not start\. .* must allow worker-src 'self'; "),
    "no policy": (
        "require-trusted-types-for 'script'; trusted-types other",
        r"No worker can be started: .* must allow trusted-types trainweb\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_policy_forbids_is_said(page: Page, make_site: Callable[..., Site], tmp_path: Path, name: str) -> None:
    policy, message = REFUSED[name]
    put_up(tmp_path)
    site = make_site(mounts={"/app/": (tmp_path,)}, csp=policy)
    errors = errors_of(page, site.url("/app/index.html"))
    assert any(re.search(message, error) for error in errors), errors


def test_a_worker_without_the_header_of_its_page_is_told(
    page: Page, make_site: Callable[..., Site], tmp_path: Path
) -> None:
    """The headers only on pages: the worker's script is there, and the browser does not start it."""
    put_up(tmp_path)
    site = make_site(mounts={"/trainweb/": (tmp_path / "trainweb",)}, isolated=False)
    for name in ("main.js", "first.onnx"):
        site.add(f"/{name}", (tmp_path / name).read_bytes())
    site.add("/index.html", (tmp_path / "index.html").read_bytes(), headers=ISOLATION_HEADERS)
    errors = errors_of(page, site.url("/index.html"))
    assert any("needs the header Cross-Origin-Embedder-Policy" in error for error in errors), errors
