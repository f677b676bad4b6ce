"""The package as it is shipped: importable anywhere, strict policies, other origins, declarations."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .conftest import require_built
from .js_session import expose_python, open_js_page
from .server import ROOT, Site

NPM = ROOT / "dist" / "npm"
PYTHON_FILES = [
    "python/packages.zip",
    "python/snapshot.bin",
    "python/python_stdlib.zip",
    "python/pyodide.mjs",
    "python/pyodide.asm.mjs",
    "python/pyodide.asm.wasm.gz",
]

TRAIN = """
    const s = await TrainingSession.create(golden("mlp"));
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const losses = [];
    for (let k = 0; k < 3; k++) {
      losses.push((await s.runTrainStep({ x, labels }))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    await s.release();
    return losses;
"""

ORT_WEB_BYTES = 11_854_635
"""What a first visit fetches of onnxruntime-web 1.19.2: its WebAssembly and its scripts."""

STRICT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "worker-src 'self'",
        "connect-src 'self'",
        "img-src data:",
    )
)


def node(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        ["node", *arguments, "--input-type=module", "-e", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("specifier", ["trainweb", "trainweb/bundle", "trainweb/engine"])
def test_imports_on_a_server(specifier: str) -> None:
    """Nothing of a browser is touched at import: server-side rendering loads the module, too."""
    require_built(NPM / "index.js")
    names = json.loads(
        node(
            "for (const name of ['window', 'document', 'Worker', 'crossOriginIsolated', 'navigator'])"
            "  Object.defineProperty(globalThis, name, { get() { throw new Error(name) } });"
            f"console.log(JSON.stringify(Object.keys(await import('{specifier}'))))"
        )
    )
    wanted = {"Engine"} if specifier.endswith("engine") else {"TrainingSession", "Tensor", "env"}
    assert wanted <= set(names)


def test_tensor_is_that_of_onnxruntime_common() -> None:
    assert (
        node(
            "import { Tensor } from 'trainweb'; import * as ort from 'onnxruntime-common';"
            "console.log(Tensor === ort.Tensor)"
        ).strip()
        == "true"
    )


def test_a_session_on_a_server_is_a_typed_error() -> None:
    assert "EngineError: sessions need Worker" in node(
        "import { TrainingSession } from 'trainweb';"
        "await TrainingSession.create({ trainModel: new Uint8Array(1), checkpointState: new Uint8Array(1) })"
        ".catch((error) => console.log(String(error)))"
    )


def test_declarations_compile_for_a_user(tmp_path: Path) -> None:
    """A program in strict TypeScript, with the declarations as a user gets them."""
    require_built(NPM / "page" / "index.d.ts")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "trainweb").symlink_to(ROOT)
    (tmp_path / "node_modules" / "onnxruntime-common").symlink_to(ROOT / "node_modules/onnxruntime-common")
    (tmp_path / "program.ts").write_text(
        """
import { env, FeedError, InferenceSession, Tensor, TrainingSession } from "trainweb";
import type { SessionOptions, TrainingConfig, UnsupportedError } from "trainweb";

env.wasm.numThreads = 2;
const options: SessionOptions = { reproducible: true, limits: { nodes: 10 } };
const session: TrainingSession = await TrainingSession.create(
  { trainModel: "a", checkpointState: new Uint8Array(1), evalModel: new Blob([]) }, options);
const feeds = { x: new Tensor("float32", [1], [1]) };
const results = await session.runTrainStep(feeds, ["loss"], { transfer: true });
const loss: Tensor | undefined = results["loss"];
await session.runEvalStep(feeds, { loss: null });
const size: number = await session.getParametersSize();
const config: TrainingConfig = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
await using made = await TrainingSession.createFromModel("m.onnx", config);
const inference = await InferenceSession.create(await made.exportModelForInferencing(["y"]));
await inference.run(feeds);
try { await session.release(); } catch (error) {
  if (error instanceof FeedError) console.log(error.message, size, loss?.dims);
  const op: string | null | undefined = (error as UnsupportedError).op;
  console.log(op);
}
// @ts-expect-error a checkpoint is required
await TrainingSession.create({ trainModel: "a" });
// @ts-expect-error no such loss
await TrainingSession.createFromModel("a", { loss: "Cosine" });
// @ts-expect-error no such level
env.logLevel = "loud";
// @ts-expect-error sessions are made by create
new TrainingSession();
"""
    )
    done = subprocess.run(
        [
            "node",
            str(ROOT / "node_modules/typescript/bin/tsc"),
            "--noEmit",
            "--strict",
            "--exactOptionalPropertyTypes",
            "--target",
            "es2022",
            "--module",
            "es2022",
            "--moduleResolution",
            "bundler",
            "--lib",
            "es2023,dom,esnext.disposable",
            "--types",
            "",
            "program.ts",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_package_lists_what_it_needs() -> None:
    done = subprocess.run(["npm", "pack", "--dry-run", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    listing = json.loads(done.stdout)
    entry = listing[0] if isinstance(listing, list) else next(iter(listing.values()))
    files = {file["path"] for file in entry["files"]}
    package = json.loads((ROOT / "package.json").read_text())
    targets = re.findall(r': "\./([^"]+)"', json.dumps(package["exports"]))
    assert len(targets) > 8
    assert set(targets) <= files
    for name in ("worker.js", "pool-worker.js", *PYTHON_FILES):
        assert f"dist/npm/{name}" in files
    assert not any(path.endswith(".whl") for path in files)
    assert not any(path.startswith(("py_src/", "tests/", "web/", ".")) for path in files)


def test_lock_file_names_no_registry() -> None:
    assert "resolved" not in (ROOT / "package-lock.json").read_text()


def test_workers_and_assets_are_named_literally() -> None:
    """The form that bundlers recognise must survive our own bundling."""
    module = (NPM / "module.js").read_text()
    assert re.search(r'new Worker\(new URL\("\./worker\.js", import\.meta\.url\)', module)
    worker = (NPM / "worker.js").read_text()
    kinds = ("", ".relaxed", ".threads", ".relaxed.threads")
    names = [f"kernels{kind}.wasm{packed}" for kind in kinds for packed in ("", ".gz")]
    for name in ("pool-worker.js", *names, *PYTHON_FILES):
        assert f'new URL("./{name}",import.meta.url)' in worker, name


@pytest.mark.parametrize("isolated", [False, True])
def test_a_strict_content_security_policy(browser: Browser, make_site: Callable[..., Site], isolated: bool) -> None:
    site = make_site(csp=STRICT_POLICY, isolated=isolated)
    with open_js_page(browser, site) as js:
        losses = js.run("env.wasm.numThreads = 2;" + TRAIN)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("isolated", [False, True])
def test_loaded_from_another_origin(browser: Browser, make_site: Callable[..., Site], isolated: bool) -> None:
    """As from a content delivery network: scripts, kernels and Python all come from there."""
    page_site, cdn = make_site(isolated=isolated), make_site(isolated=isolated)
    with open_js_page(browser, page_site, package=cdn.url("/dist/index.js")) as js:
        losses = js.run("env.wasm.numThreads = 2;" + TRAIN)
    assert losses[2] < losses[0]
    assert page_site.requests("/dist/") == []
    kernels = "/dist/kernels.relaxed.threads.wasm.gz" if isolated else "/dist/kernels.relaxed.wasm.gz"
    assert kernels in cdn.requests()
    assert ("/dist/pool-worker.js" in cdn.requests()) == isolated


SESSION_FILES = (
    "/tests/session.html",
    "/tests/session.mjs",
    "/dist/index.js",
    "/dist/worker.js",
    "/dist/kernels.relaxed.wasm.gz",
    "/golden/mlp/training_model.onnx",
    "/golden/mlp/eval_model.onnx",
    "/golden/mlp/optimizer_model.onnx",
    "/golden/mlp/checkpoint",
)
PLAIN_FILES = ("/dist/python/packages.zip", "/dist/python/python_stdlib.zip")


def fetched(prefix: str, packed: str, *others: str) -> list[str]:
    """All that a page asks for which trains with Pyodide from `prefix`."""
    runtime = [f"{prefix}{name}" for name in ("pyodide.mjs", "pyodide.asm.mjs", f"pyodide.asm.wasm{packed}")]
    return sorted([*SESSION_FILES, *runtime, *others])


@pytest.mark.parametrize("snapshot", [True, False])
def test_nothing_else_is_fetched(browser: Browser, make_site: Callable[..., Site], snapshot: bool) -> None:
    """Neither numpy nor a package index: what a first visit costs is listed here in full."""
    site = make_site()
    with open_js_page(browser, site) as js:
        js.run(f"env.pyodide.snapshot = {json.dumps(snapshot)};" + TRAIN)
    others = ["/dist/python/snapshot.bin"] if snapshot else PLAIN_FILES
    assert sorted(site.requests()) == fetched("/dist/python/", ".gz", *others)
    if snapshot:
        assert site.bytes_served() < ORT_WEB_BYTES


def test_pyodide_of_the_page(browser: Browser, make_site: Callable[..., Site]) -> None:
    """A distribution of the same version starts from the snapshot, too."""
    site = make_site()
    with open_js_page(browser, site) as js:
        losses = js.run("env.pyodide.indexURL = '/pyodide/';" + TRAIN)
    assert losses[2] < losses[0]
    assert sorted(site.requests()) == fetched("/pyodide/", "", "/dist/python/snapshot.bin")


def test_the_library_is_fetched_when_something_else_is_imported(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    site = make_site()
    expose_python(site)
    with open_js_page(browser, site) as js:
        js.run(TRAIN)
        before = site.requests()
        value = js.worker.evaluate("python.runPython('import fractions; str(fractions.Fraction(6, 4))')")
    assert value == "3/2"
    assert "/dist/python/python_stdlib.zip" not in before
    assert "/dist/python/python_stdlib.zip" in site.requests()


@pytest.mark.parametrize("how", ["missing", "a page", "broken off", "unpacked"])
def test_pyodide_that_does_not_arrive_is_an_error(browser: Browser, make_site: Callable[..., Site], how: str) -> None:
    """And not a session that never comes; bytes that a server has unpacked already are fine."""
    site = make_site()
    path = "/dist/python/pyodide.asm.wasm.gz"
    data = (NPM / "python" / "pyodide.asm.wasm.gz").read_bytes()
    replies = {"missing": b"", "a page": b"<!doctype html>", "broken off": data[: len(data) // 2]}
    site.add(path, replies.get(how) or gzip.decompress(data), status=404 if how == "missing" else 200)
    with open_js_page(browser, site, ("404",)) as js:
        if how == "unpacked":
            losses = js.run(TRAIN)
            assert losses[2] < losses[0]
            return
        error = js.failure(TRAIN)
    assert error["name"] == "EngineError"
    if how != "broken off":
        assert path in error["message"]


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "plain"])
@pytest.mark.page_errors("404")
def test_a_snapshot_that_does_not_fit_is_no_harm(browser: Browser, make_site: Callable[..., Site], damage: str) -> None:
    """Python starts plainly then; bytes that a server has unpacked already are fine, too."""
    site = make_site()
    data = (NPM / "python" / "snapshot.bin").read_bytes()
    path = "/dist/python/snapshot.bin"
    if damage == "missing":
        site.add(path, b"", status=404)
    elif damage == "garbage":
        site.add(path, b"<!doctype html>")
    elif damage == "truncated":
        site.add(path, data[: len(data) // 2])
    else:
        site.add(path, gzip.decompress(data))
    with open_js_page(browser, site, ("404",)) as js:
        losses = js.run(TRAIN)
    assert losses[2] < losses[0]
    assert ("/dist/python/packages.zip" in site.requests()) == (damage != "plain")


def test_another_pyodide_starts_plainly(browser: Browser, make_site: Callable[..., Site]) -> None:
    """The snapshot belongs to one version; it is not even fetched for another."""
    site = make_site()
    loader = (ROOT / ".build" / "pyodide" / "pyodide.mjs").read_text()
    version = re.search(r'"(314\.\d+\.\d+)"', loader)
    assert version is not None
    site.add("/pyodide/pyodide.mjs", loader.replace(version[1], "314.0.99"))
    with open_js_page(browser, site, ("version", "lock")) as js:
        error = js.failure("env.pyodide.indexURL = '/pyodide/';" + TRAIN)
    assert "snapshot" not in error["message"]
    assert "/dist/python/snapshot.bin" not in site.requests()
