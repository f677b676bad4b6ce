"""Large files that a page fetched stay in its private file system while their server says that they are the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.python.test_safetensors_beside import NAME, WEIGHT, file_of, graph_of

from .bundles import python_requests
from .js_session import JsPage, open_js_page
from .server import ROOT, Site

PATH = "/w/cached.safetensors"
REST = {"lm_head.weight": np.ones((8 << 20) + 1024, np.float32)}
"""Makes a file of more than 32 MiB, in three pieces."""

SUM = """
const warnings = [];
const warn = console.warn;
console.warn = (...texts) => warnings.push(texts.join(" "));
try {
  const session = await InferenceSession.create(model, { weights, cache: true });
  const { y } = await session.run({ x: new Tensor("float32", new Float32Array(128).fill(1), [1, 128]) });
  await session.release();
  return [y.data[0], warnings.join("\\n")];
} finally {
  console.warn = warn;
}
"""

DAMAGE = """
let folder = await navigator.storage.getDirectory();
for (const name of ["trainweb", "files"]) folder = await folder.getDirectoryHandle(name);
for await (const handle of folder.values()) {
  const writable = await handle.createWritable({ keepExistingData: true });
  if (how === "cut") await writable.truncate(2 ** 25);
  else await writable.write({ type: "write", position: at, data: new Uint8Array([77]) });
  await writable.close();
}
"""


@pytest.fixture
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page
    plain_site.remove(PATH)


def load(js: JsPage, scale: float, **headers: str) -> tuple[float, str]:
    """The first result with the weights of the server, which are `scale` times WEIGHT; and the warnings."""
    names = {"etag": "ETag", "modified": "Last-Modified"}
    given = {names[name]: value for name, value in headers.items()}
    weights = js.site.add(PATH, file_of({**REST, NAME: scale * WEIGHT}), headers=given)
    first, warnings = js.run(SUM, model=js.site.add("/w/model.onnx", graph_of()), weights=weights)
    return first / WEIGHT.astype(np.float64)[0].sum(), warnings


@pytest.mark.parametrize("validator", [{"etag": '"1"'}, {"modified": "Tue, 24 Nov 2026 12:00:00 GMT"}])
def test_a_file_is_kept_while_its_server_says_so(js: JsPage, validator: dict[str, str]) -> None:
    assert load(js, 1, **validator) == (pytest.approx(1, abs=1e-4), "")
    # A server that lies shows where the bytes come from.
    assert load(js, 2, **validator) == (pytest.approx(1, abs=1e-4), "")
    other = {name: value.replace("1", "2") for name, value in validator.items()}
    assert load(js, 3, **other) == (pytest.approx(3, abs=1e-4), "")
    assert load(js, 4, **other) == (pytest.approx(3, abs=1e-4), "")
    js.run("await (await import('/dist/index.js')).clearCache();")
    assert load(js, 5, **other) == (pytest.approx(5, abs=1e-4), "")


def test_damage_is_noticed(js: JsPage) -> None:
    load(js, 1, etag='"1"')
    for scale, (how, at) in enumerate([("byte", 0), ("byte", 2**25 + 5), ("cut", 0)], 2):
        js.run(DAMAGE, how=how, at=at)
        ratio, warnings = load(js, scale, etag='"1"')
        assert ratio == pytest.approx(scale, abs=1e-4)
        assert f"{PATH} is damaged in the cache, and is fetched again." in warnings
        assert load(js, 9, etag='"1"') == (pytest.approx(scale, abs=1e-4), "")


COUNT = """
globalThis.hashed = 0;
const { digest } = crypto.subtle;
crypto.subtle.digest = (name, data) => {
  globalThis.hashed += Math.floor(data.byteLength / 2 ** 24);
  return digest.call(crypto.subtle, name, data);
};
"""
"""The number of whole pieces of files that a page or its worker hashes."""

TRAIN = (
    COUNT
    + """
const warnings = [];
console.warn = (...texts) => warnings.push(texts.join(" "));
const lora = isAdapted ? { rank: 2, targets: ["up_proj"] } : undefined;
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora };
const weights = isFetched ? url : new Uint8Array(await (await fetch(url)).arrayBuffer());
const session = await TrainingSession.createFromModel(model, config, { weights, cache: true });
const given = [new Tensor("float32", new Float32Array(128).fill(1), [1, 128]),
  new Tensor("int64", BigInt64Array.of(5n), [1])];
const feeds = Object.fromEntries(session.trainingInputNames.map((name, k) => [name, given[k]]));
const found = await session.runTrainStep(feeds);
const loss = found[session.trainingOutputNames[0]].data[0];
await session.release();
const folder = async () => {
  let folder = await navigator.storage.getDirectory();
  for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
  return folder;
};
for (;;) {
  const names = [];
  try {
    for await (const name of (await folder()).keys()) names.push(name);
  } catch (error) {
    if (error.name !== "NotFoundError") throw error;
  }
  if (names.length >= count) return [loss, globalThis.hashed, warnings.join("\\n")];
  await new Promise((resolve) => setTimeout(resolve, 50));
}
"""
)
"""A step, and `count` compiled sessions are kept."""


def exact_file(nbytes: int, weight: np.ndarray) -> bytes:
    """A safetensors file with the weight, of a certain size."""
    for pad in range(4):
        name = "other" + "_" * pad
        floats = nbytes // 4 - weight.size
        excess = len(file_of({NAME: weight, name: np.zeros(floats, np.float32)})) - nbytes
        if excess % 4 == 0:
            return file_of({NAME: weight, name: np.zeros(floats - excess // 4, np.float32)})
    raise AssertionError("one of four lengths of a name fits")


def loss_of(weight: np.ndarray) -> float:
    """The loss of TRAIN."""
    logits = weight.astype(np.float64).sum(1)
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[5])


@pytest.mark.parametrize(
    ("more", "scales"), [(0, (1,)), (4, (1, 2))], ids=["whole pieces", "a part of a piece, and another file"]
)
def test_the_hash_of_a_kept_file_names_the_compiled_session(
    js: JsPage, plain_site: Site, more: int, scales: tuple[int, ...]
) -> None:
    """The page or its worker hashes a file, each byte once; the hash is the same."""
    plain_site.add("/dist/worker.js", COUNT + (ROOT / "dist" / "npm" / "worker.js").read_text())
    try:
        for k, scale in enumerate(scales):
            wanted = loss_of(scale * WEIGHT)
            body = exact_file(3 * 2**24 + more, scale * WEIGHT)
            given = {
                "model": plain_site.add("/w/model.onnx", graph_of()),
                "url": plain_site.add(PATH, body, headers={"ETag": f'"{k}"'}),
                "count": k + 1,
            }
            for visit, is_fetched in enumerate((False, True, True)):
                plain_site.clear_log()
                page = JsPage(js.page, plain_site)
                loss, hashed, _ = page.run(TRAIN, isFetched=is_fetched, isAdapted=True, **given)
                assert loss == pytest.approx(wanted, rel=1e-5)
                # A file that came is hashed by the page, which keeps it; bytes and kept files by the worker.
                assert (hashed, page.worker.evaluate("() => globalThis.hashed")) == ((3, 0) if visit == 1 else (0, 3))
                assert bool(python_requests(plain_site)) == (visit == 0), visit
    finally:
        plain_site.remove("/dist/worker.js")


def test_training_notices_damage(js: JsPage, plain_site: Site) -> None:
    """The worker, which starts a compiled session from the file, or compiles. A server that lies shows the fetch."""
    given = {"model": plain_site.add("/w/model.onnx", graph_of()), "url": PATH, "isFetched": True, "isAdapted": True}

    def train(sent: float, used: float, kept: int, is_compiled: bool) -> bool:
        """Train beside the file; whether it was damaged."""
        plain_site.add(PATH, file_of({**REST, NAME: sent * WEIGHT}), headers={"ETag": '"1"'})
        plain_site.clear_log()
        loss, _, warnings = JsPage(js.page, plain_site).run(TRAIN, count=kept, **given)
        assert loss == pytest.approx(loss_of(used * WEIGHT), rel=1e-5)
        assert bool(python_requests(plain_site)) == (not is_compiled)
        return f"{PATH} is damaged in the cache, and is fetched again." in warnings

    scale, kept = 1.0, 1
    assert not train(scale, scale, kept, is_compiled=False)
    for how, at, is_compiled in (("byte", 20, True), ("byte", 2**25 + 5, False), ("cut", 0, True), ("cut", 0, False)):
        js.run(DAMAGE, how=how, at=at)
        js.run("" if is_compiled else FORGET)
        scale, kept = scale + 0.5, kept * is_compiled + 1
        assert train(scale, scale, kept, is_compiled=False)
        assert not train(9, scale, kept, is_compiled=True)


@pytest.mark.parametrize("is_adapted", [True, False], ids=["frozen", "trained"])
def test_weights_of_16_bits_come_from_a_kept_file(js: JsPage, plain_site: Site, is_adapted: bool) -> None:
    """Frozen ones as they are, trained ones as float32."""
    halves = WEIGHT.astype(np.float16)
    given = {"model": plain_site.add("/w/model.onnx", graph_of()), "isFetched": True, "isAdapted": is_adapted}
    url = plain_site.add(PATH, file_of({**REST, NAME: halves}), headers={"ETag": '"1"'})
    for visit in range(2):
        plain_site.clear_log()
        loss, _, _ = JsPage(js.page, plain_site).run(TRAIN, url=url, count=1, **given)
        assert loss == pytest.approx(loss_of(halves), rel=1e-5)
        assert bool(python_requests(plain_site)) == (visit == 0)


FORGET = """
const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("trainweb");
await folder.removeEntry("bundles", { recursive: true });
"""
"""What was compiled."""


FULL = "navigator.storage.estimate = async () => ({ quota: 50e6, usage: 20e6 });"
ABSENT = "delete FileSystemFileHandle.prototype.createWritable;"


@pytest.mark.parametrize(
    ("prepare", "headers", "text"),
    [
        ("", {}, "its server sends neither ETag nor Last-Modified"),
        (FULL, {"etag": '"1"'}, "the browser gives this origin 30000000 more"),
        (ABSENT, {"etag": '"1"'}, "createWritable is not a function"),
    ],
    ids=["no validators", "no room", "no storage"],
)
def test_a_file_that_cannot_be_kept_is_said(js: JsPage, prepare: str, headers: dict[str, Any], text: str) -> None:
    js.run(prepare)
    for scale in (1, 2):
        ratio, warnings = load(js, scale, **headers)
        assert ratio == pytest.approx(scale, abs=1e-4)
        assert f"{PATH} is not kept, and the next visit fetches it again" in warnings and text in warnings
