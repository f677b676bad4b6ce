"""Weights that go from files to kernel memory and back into files, without Python: the same bytes as through Python."""

import hashlib
from base64 import b64decode
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Browser

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.backend.wasm.engine import get_engine
from trainweb.ir.shapes import TensorType
from trainweb.model.reader import read_model
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState

from .js_session import READY, JsPage, expose_python, open_js_page
from .server import Site
from .test_js_large import CLASSES, large_model

MIB = 33
"""Of weights in a file that the page leaves with the browser (from 32 MiB on)."""
ROWS = MIB * 2**18 // CLASSES

OPEN = """
    const options = { threads: 1, reproducible: true };
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const bytesOf = async (file) => base64(file instanceof Blob ? await file.arrayBuffer() : file);
    /** Every file of a session, before and after training. */
    const filesOf = async (s, more = {}) => {
      const found = {};
      for (const when of ["at the start", "after training"]) {
        found[`saved ${when}`] = await s.saveCheckpoint({ includeOptimizerState: true, ...more });
        found[`weights ${when}`] = await s.saveCheckpoint(more);
        found[`export ${when}`] = await s.exportModelForInferencing(["logits"], more);
        const artifacts = await s.artifacts(more).catch(() => ({}));
        for (const [name, file] of Object.entries(artifacts)) found[`${name} ${when}`] = file;
        for (let k = 0; k < 3; k++) {
          await s.runTrainStep({ x, labels });
          await s.runOptimizerStep();
          await s.lazyResetGrad();
        }
      }
      for (const [name, file] of Object.entries(found)) found[name] = await bytesOf(file);
      await s.release();
      return found;
    };
    const fromModel = () => TrainingSession.createFromModel("/golden/mlp/base.onnx", config, options);
    const fromArtifacts = () => TrainingSession.create(golden("mlp"), options);
    const infer = async () => {
      const s = await InferenceSession.create("/golden/mlp/base.onnx", options);
      const [output] = s.outputNames;
      return [...(await s.run({ [s.inputNames[0]]: x }))[output].data];
    };
"""

LOWER = """
from trainweb.model import remote
from trainweb.page import bridge
remote.LARGE = bridge.LARGE = 64
"""
RESTORE = LOWER.replace("64", "2**16")
HEAP = "python._module.HEAPU8.length"


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    expose_python(plain_site)
    with open_js_page(browser, plain_site) as page:
        yield page
    plain_site.remove("/dist/worker.js")


def test_files_are_the_same_bytes(js: JsPage) -> None:
    run = OPEN + """
        const found = { model: await filesOf(await fromModel()), artifacts: await filesOf(await fromArtifacts()) };
        return { ...found, inference: await infer() };"""  # fmt: skip
    wanted = js.run(run)
    js.worker.evaluate("(code) => python.runPython(code)", LOWER)
    found = js.run(run)
    blobs = js.run(OPEN + "return filesOf(await fromModel(), { as: 'blob' });")
    js.worker.evaluate("(code) => python.runPython(code)", RESTORE)
    assert len(wanted["model"]) == 14 and len(wanted["artifacts"]) == 6
    assert wanted["model"]["saved at the start"] != wanted["model"]["saved after training"]
    assert found == wanted
    assert blobs == wanted["model"]


def test_a_blob_is_read_again(js: JsPage) -> None:
    first, second = js.run(
        OPEN
        + """
        const s = await fromArtifacts();
        await s.runTrainStep({ x, labels });
        await s.runOptimizerStep();
        const checkpointState = await s.saveCheckpoint({ includeOptimizerState: true, as: "blob" });
        const t = await TrainingSession.create({ ...golden("mlp"), checkpointState }, options);
        const again = await t.saveCheckpoint({ includeOptimizerState: true, as: "blob" });
        return [await bytesOf(checkpointState), await bytesOf(again)];"""
    )
    assert first == second and b64decode(first)[4:8] == b"ODTC"


@pytest.mark.parametrize("value", ["'stream'", "null", "1"])
def test_other_forms_are_refused(js: JsPage, value: str) -> None:
    for call in ("saveCheckpoint(", "artifacts(", "exportModelForInferencing(['logits'], "):
        error = js.failure(OPEN + f"await (await fromModel()).{call}{{ as: {value} }});")
        assert error["name"] == "TypeError" and '"bytes" or "blob"' in error["message"]


SOURCES = {
    "bytes": "model",
    "Blob": "new Blob([model])",
    "File": 'new File([model], "model.onnx")',
    "URL": '"/large/model"',
}

FROM_SOURCE = """
    const model = new Uint8Array(await (await fetch("/large/model")).arrayBuffer());
    const s = await TrainingSession.createFromModel(SOURCE, config, options);
    const kept = (await s.getContiguousParameters()).data;
    const { checkpoint } = await s.artifacts();
    const rows = kept.length / 1024;
    const feeds = {
      x: new Tensor("float32", new Float32Array(rows).fill(1 / 64), [1, rows]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    };
    await s.runTrainStep(feeds);
    await s.runOptimizerStep();
    const saved = await s.saveCheckpoint();
    const again = await s.artifacts({ as: "blob" });
    const files = [kept, checkpoint, await again.checkpoint.arrayBuffer(), saved];
    const result = [];
    for (const file of files) result.push(await hash(file));
    await s.release();
    return result;
"""


PLAIN_STREAMS = (
    "() => { globalThis.stream = Blob.prototype.stream; Blob.prototype.stream = () => new ReadableStream(); }"
)
"""What browsers have whose Blobs cannot be read into buffers of one's own."""


def test_large_files_come_from_everywhere(js: JsPage, plain_site: Site) -> None:
    head, tail = large_model(ROWS)
    weights = np.random.default_rng(1).standard_normal(ROWS * CLASSES).astype("<f4").tobytes()
    plain_site.add("/large/model", head + weights + tail)
    built = build_artifacts(head + weights + tail, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    start, checkpoint = (hashlib.sha256(data).hexdigest() for data in (weights, built.checkpoint))
    js.run(OPEN + "await (await fromModel()).release();")
    saved, heap = set(), js.worker.evaluate(HEAP)
    for source in SOURCES.values():
        found = js.run(OPEN + FROM_SOURCE.replace("SOURCE", source))
        assert found[:3] == [start, checkpoint, checkpoint], source
        saved.add(found[3])
    js.worker.evaluate(PLAIN_STREAMS)
    found = js.run(OPEN + FROM_SOURCE.replace("SOURCE", SOURCES["Blob"]))
    js.worker.evaluate("() => { Blob.prototype.stream = globalThis.stream; }")
    assert found[:3] == [start, checkpoint, checkpoint]
    saved.add(found[3])
    assert len(saved) == 1 and checkpoint not in saved
    # Nothing of it went through Python.
    assert js.worker.evaluate(HEAP) < heap + MIB * 2**20 / 2
    plain_site.remove("/large/model")


CACHED = """
    const cached = { ...options, cache: true };
    const s = await TrainingSession.createFromModel("/large/model", { ...config, ...more }, cached);
    const feeds = {
      x: new Tensor("float32", new Float32Array(rows).fill(1 / 64), [1, rows]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    };
    const folderOf = async () => {
      let folder = await navigator.storage.getDirectory();
      for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
      return folder;
    };
    const sizes = async () => {
      const found = [];
      for await (const handle of (await folderOf()).values()) found.push((await handle.getFile()).size);
      return found.sort((a, b) => a - b);
    };
    const train = async () => {
      const [loss] = s.trainingOutputNames;
      const losses = [];
      for (let k = 0; k < 2; k++) {
        losses.push((await s.runTrainStep(feeds))[loss].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      await s.release();
      await env.release();  // what is kept is kept before the worker ends
      return losses;
    };
"""


RANK = 128
"""Of adapters that take more than 4 MiB."""


def test_large_adapters_are_cached_in_a_file_of_their_own(browser: Browser, make_site: Callable[..., Site]) -> None:
    """A visit notices damage, and leaves the next one a file from which that starts without Python."""
    site = make_site()
    head, tail = large_model(ROWS)
    weights = np.random.default_rng(2).standard_normal(MIB * 2**18).astype("<f4").tobytes()
    site.add("/large/model", head + weights + tail)
    run = OPEN + CACHED + "return [await train(), await sizes()];"
    given = {"rows": ROWS, "more": {"lora": {"rank": RANK, "seed": 1, "targets": ["w"]}}}
    with open_js_page(browser, site) as js:
        first, (small, large) = js.run(run, **given)
        adapters = 4 * RANK * (ROWS + CLASSES)
        assert adapters < large < adapters + 2**10 and small < 2**20
        for damage in ("gone", "cut", "byte", None):
            js.run(
                OPEN
                + """
                let folder = await navigator.storage.getDirectory();
                for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
                for await (const [name, handle] of folder.entries()) {
                  if (damage === null || !name.endsWith(".large")) continue;
                  if (damage === "gone") { await folder.removeEntry(name); continue; }
                  const writable = await handle.createWritable({ keepExistingData: true });
                  if (damage === "cut") await writable.truncate((await handle.getFile()).size - 1);
                  else await writable.write({ type: "write", position: 2 ** 22, data: new Uint8Array([77]) });
                  await writable.close();
                }""",
                damage=damage,
            )
            site.clear_log()
            again, sizes = JsPage(js.page, site).run(run, **given)
            assert (again, sizes) == (first, [small, large])
            assert bool(site.requests("/dist/python/")) == (damage is not None), damage


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_cache_names_the_places_of_weights_in_their_file(
    browser: Browser, make_site: Callable[..., Site], is_kept: bool
) -> None:
    """It holds no copy of them. A file with one other byte is another one."""
    site = make_site()
    table = np.random.default_rng(2).standard_normal((ROWS, CLASSES)).astype("<f4")
    given = {"rows": ROWS, "more": {}}
    run = OPEN + CACHED + "return [await train(), await sizes()];"
    with open_js_page(browser, site) as js:
        found = []
        for visit in range(4):
            if visit == 2:
                table[777, 3] *= -1
            head, tail = large_model(len(table))
            headers = {"ETag": f'"{visit // 2}"'} if is_kept else {}
            site.add("/large/model", head + table.tobytes() + tail, headers=headers)
            site.clear_log()
            losses, sizes = JsPage(js.page, site).run(run, **given)
            assert bool(site.requests("/dist/python/")) == (visit in (0, 2))
            assert all(size < 2**20 for size in sizes)
            found.append(losses)
    assert found[0] == found[1] != found[2] == found[3]
    for losses in (found[2], found[0]):
        logits = table.astype(np.float64).sum(0) / 64
        assert losses[0] == pytest.approx(np.log(np.exp(logits).sum()) - logits[3], rel=1e-6)
        table[777, 3] *= -1


BUNDLE = """
    const file = new Uint8Array(await (await fetch("/large/bundle")).arrayBuffer());
    if (damaged !== null) file[damaged] ^= 1;
    const sources = { bytes: file, Blob: new Blob([file]), ...(damaged === null ? { URL: "/large/bundle" } : {}) };
    const feeds = {
      x: new Tensor("float32", new Float32Array(rows).fill(1 / 64), [1, rows]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    };
    const train = async (bundle) => {
      const s = await TrainingSession.create({ bundle }, options);
      const found = [await hash((await s.getContiguousParameters()).data)];
      for (let k = 0; k < 2; k++) {
        await s.runTrainStep(feeds);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      found.push(await hash((await s.getContiguousParameters()).data));
      await s.release();
      return found;
    };
"""
WATCH_BLOBS = """() => {
  const { arrayBuffer } = Blob.prototype;
  globalThis.largest = 0;
  Blob.prototype.arrayBuffer = function () {
    globalThis.largest = Math.max(globalThis.largest, this.size);
    return arrayBuffer.call(this);
  };
}"""


def large_bundle() -> tuple[bytes, bytes]:
    """A bundle of 33 MiB, and its weights."""
    head, tail = large_model(ROWS)
    weights = np.random.default_rng(6).standard_normal(MIB * 2**18).astype("<f4").tobytes()
    built = build_artifacts(head + weights + tail, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    state = CheckpointState.load_checkpoint(built.checkpoint)
    models = (built.training_model, built.eval_model, built.optimizer_model)
    core = SessionCore(state, *map(read_model, models), engine=get_engine(reproducible=True))
    core.release()
    types = {"x": TensorType("float32", (1, ROWS)), "labels": TensorType("int64", (1,))}
    return make_bundle(core.models, state._lent(), [types], None), weights


def test_a_large_bundle_is_read_by_parts(js: JsPage, plain_site: Site) -> None:
    """From a Blob as from bytes: weights go to kernel memory, and a byte that is wrong is found wherever it is."""
    bundle, weights = large_bundle()
    plain_site.add("/large/bundle", bundle)
    run = OPEN + BUNDLE + "const found = {}; for (const [name, source] of Object.entries(sources)) found[name] = "
    js.run(OPEN + "await (await fromModel()).release();")
    js.worker.evaluate(WATCH_BLOBS)
    found = js.run(run + "await train(source); return found;", damaged=None, rows=ROWS)
    assert js.worker.evaluate("() => globalThis.largest") == 2**24
    assert found["bytes"][0] == hashlib.sha256(weights).hexdigest() != found["bytes"][1]
    assert found["Blob"] == found["URL"] == found["bytes"]
    for at in (2**24 + 100, len(bundle) - 1):
        errors = js.run(run + "await failure(() => train(source)); return found;", damaged=at, rows=ROWS)
        for name, error in errors.items():
            assert error["name"] == "ModelError" and "damaged" in error["message"], (at, name)
    chunks = [hashlib.sha256(bundle[k : k + 2**24]).digest() for k in range(64, len(bundle), 2**24)]
    assert bundle[16:48] == hashlib.sha256(b"".join(chunks)).digest()
    plain_site.remove("/large/bundle")


CONSTANT = """
    const feeds = (row) => ({
      row: new Tensor("int64", BigInt64Array.of(BigInt(row)), [1]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    });
    const train = async (more) => {
      const s = await TrainingSession.createFromModel("/large/table", config, { ...options, ...more });
      const losses = [];
      for (const row of [5, 60000, 67583, 5]) {
        losses.push((await s.runTrainStep(feeds(row)))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      const { plans } = await s.memory();
      await s.release();
      return { losses, plans };
    };
"""


def large_table() -> bytes:
    """Logits of a row that is chosen from a frozen table of 33 MiB."""
    table = np.random.default_rng(7).integers(-1000, 1000, (MIB * 2**20 // 512, 64))
    weights = np.random.default_rng(8).standard_normal((64, 10)).astype(np.float32) / 1000
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "row"], ["found"]),
            helper.make_node("Cast", ["found"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Gemm", ["float", "w"], ["logits"]),
        ],
        "table",
        [helper.make_tensor_value_info("row", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_large_constant_goes_from_its_file_to_kernel_memory(js: JsPage, plain_site: Site) -> None:
    """And into the cache: the next visit starts without Python, as a native session trains."""
    model = large_table()
    plain_site.add("/large/table", model)
    js = JsPage(js.page, plain_site)  # in which no session lives that would keep the worker
    js.run(OPEN + "await (await fromModel()).release();")
    heap = js.worker.evaluate(HEAP)
    found = [js.run(OPEN + CONSTANT + "return train({ cache: true });")]
    assert js.worker.evaluate(HEAP) < heap + MIB * 2**20 / 2
    js.run("await env.release();")  # what is kept is kept before the worker ends
    js.page.reload()
    js.page.evaluate(READY, 60_000)
    plain_site.clear_log()
    found.append(js.run(OPEN + CONSTANT + "return train({ cache: true });"))
    assert plain_site.requests("/dist/python/") == []
    built = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    state = CheckpointState.load_checkpoint(built.checkpoint)
    models = (built.training_model, built.eval_model, built.optimizer_model)
    losses = []
    with trainweb.TrainingSession(state, *models, options={"reproducible": True}) as session:
        for row in (5, 60000, 67583, 5):
            given = {"row": np.array([row]), "labels": np.array([3])}
            losses.append(float(next(iter(session.train_step(given).values()))))
            session.optimizer_step()
            session.lazy_reset_grad()
    for visit in found:
        assert visit["losses"] == losses
        assert MIB * 2**20 < visit["plans"] < 1.1 * MIB * 2**20  # one for both kinds of train step
    plain_site.remove("/large/table")


FOLDED = """
    const s = await TrainingSession.createFromModel("/large/folded", config, options);
    const feeds = (batch) => ({
      x: new Tensor("float32", Float32Array.from({ length: 6400 * batch }, (_, i) => Math.sin(i)), [batch, 6400]),
      labels: new Tensor("int64", BigInt64Array.from({ length: batch }, (_, i) => BigInt(7 * i)), [batch]),
    });
    const losses = [];
    for (const batch of [1, 1, 2]) {
      losses.push((await s.runTrainStep(feeds(batch)))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    losses.push((await s.runEvalStep(feeds(2)))[s.trainingOutputNames[0]].data[0]);
    await s.release();
    return losses;
"""


def folded_table() -> bytes:
    """Logits of products with the floats of a frozen table of 33 MiB of integers, halved."""
    classes = MIB * 2**20 // (4 * 6400)
    table = np.random.default_rng(7).integers(-1000, 1000, (classes, 6400), np.int32)
    weights = np.random.default_rng(8).standard_normal(6400).astype(np.float32) / 100_000
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "w"], ["h"]),
            helper.make_node("Cast", ["table"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["float", "half"], ["halved"]),
            helper.make_node("Transpose", ["halved"], ["across"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "across"], ["logits"]),
        ],
        "folded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6400])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.float32(0.5), "half"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_what_is_made_of_large_constants_alone_never_is_in_python(js: JsPage, plain_site: Site) -> None:
    """Natively, where its bytes are in Python anyway, it is folded: a product of it adds in another order."""
    model = folded_table()
    plain_site.add("/large/folded", model)
    js.run(OPEN + "await (await fromModel()).release();")
    heap = js.worker.evaluate(HEAP)
    found = js.run(OPEN + FOLDED)
    assert js.worker.evaluate(HEAP) < heap + 16 * 2**20  # pieces of 4 MiB are read for a hash
    plain_site.remove("/large/folded")
    built = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    state = CheckpointState.load_checkpoint(built.checkpoint)
    models = (built.training_model, built.eval_model, built.optimizer_model)

    def feeds(batch: int) -> dict[str, np.ndarray]:
        x = np.sin(np.arange(6400.0 * batch)).astype(np.float32).reshape(batch, 6400)
        return {"x": x, "labels": 7 * np.arange(batch)}

    losses = []
    with trainweb.TrainingSession(state, *models, options={"reproducible": True}) as session:
        for batch in (1, 1, 2):
            losses.append(float(next(iter(session.train_step(feeds(batch)).values()))))
            session.optimizer_step()
            session.lazy_reset_grad()
        losses.append(float(next(iter(session.eval_step(feeds(2)).values()))))
    assert found == pytest.approx(losses, rel=1e-6)


EXTERNAL = """
    const model = new Uint8Array(await (await fetch("/external/model.onnx")).arrayBuffer());
    const weights = new Uint8Array(await (await fetch("/external/w.bin")).arrayBuffer());
    const data = (source) => ({ ...options, externalData: [{ path: "w.bin", data: source }] });
    const checkpointOf = async (given, more) => {
      const s = await TrainingSession.createFromModel(given, config, more);
      const saved = [await hash(await s.saveCheckpoint()), await hash((await s.artifacts()).checkpoint)];
      await s.release();
      return saved;
    };
    const outputOf = async (given, more) => {
      const s = await InferenceSession.create(given, more);
      const feed = new Tensor("float32", new Float32Array(512).map((_, k) => k / 512), [1, 512]);
      return [...(await s.run({ x: feed })).y.data];
    };
"""


@pytest.fixture
def external(plain_site: Site) -> None:
    """A model whose weights lie in a file beside it, and the same in one file."""
    weights = np.random.default_rng(4).standard_normal((512, 128)).astype("<f4")
    inside = numpy_helper.from_array(weights, "w")
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[512, 128], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "64"), ("length", str(weights.nbytes))):
        outside.external_data.add(key=key, value=value)
    for path, tensor in (("/external/whole.onnx", inside), ("/external/model.onnx", outside)):
        graph = helper.make_graph(
            [helper.make_node("Gemm", ["x", "w"], ["y"])],
            "external",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 128])],
            [tensor],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        plain_site.add(path, model.SerializeToString())
    plain_site.add("/external/alone/model.onnx", model.SerializeToString())
    plain_site.add("/external/w.bin", bytes(64) + weights.tobytes())


def test_external_data_is_taken_from_the_page(js: JsPage, external: None) -> None:
    wanted, output = js.run(
        OPEN + EXTERNAL + """
        const whole = "/external/whole.onnx";
        return [await checkpointOf(whole, options), await outputOf(whole, options)];"""
    )  # fmt: skip
    for source in ("weights", "new Blob([weights])", '"/external/w.bin"', "weights.buffer"):
        found = js.run(
            OPEN + EXTERNAL + f"const more = data({source});"
            "return [await checkpointOf(model, more), await outputOf(model, more)];"
        )
        assert found == [wanted, output], source


def test_external_data_beside_a_url_is_found(js: JsPage, external: None, plain_site: Site) -> None:
    """As in a folder: of the files that the graph names, but for those of the options, at a URL with a query too."""
    whole, *found, refused = js.run(
        OPEN + EXTERNAL + """
        const asked = [];
        const ask = window.fetch;
        window.fetch = (url, ...more) => {
          asked.push(new URL(url, location).pathname);
          const isLost = asked.at(-1).includes("/alone/w.bin");
          return isLost ? Promise.resolve(new Response(null, { status: 404 })) : ask(url, ...more);
        };
        const both = async (url, more = options) => [await checkpointOf(url, more), await outputOf(url, more)];
        const path = "/external/model.onnx";
        const results = [await both("/external/whole.onnx")];
        for (const url of [path, `..${path}`, new URL(`${path}?v=a/b#c`, location)]) results.push(await both(url));
        const beside = asked.filter((path) => path.startsWith("/external/"));
        asked.length = 0;
        results.push(await both(path, data(weights)));
        results.push([beside, asked.filter((path) => path.endsWith("w.bin"))]);
        const { message } = await failure(() => outputOf("/external/alone/model.onnx", options));
        window.fetch = ask;
        return [...results, message];"""
    )  # fmt: skip
    assert found[:4] == [whole] * 4
    beside, given = found[4]
    assert sorted(set(beside)) == ["/external/model.onnx", "/external/w.bin", "/external/whole.onnx"]
    assert beside.count("/external/w.bin") == 6 and given == []
    assert "externalData of 'w.bin'" in refused and "404" in refused


def test_gradient_graphs_take_external_data(js: JsPage, external: None) -> None:
    """The gradient for x of x w is the incoming one times w transposed."""
    found = js.run(
        EXTERNAL.replace("...options, ", "")
        + """
        const builder = new GradientGraphBuilder(model, ["y"], ["x"]);
        let refused = null;
        await builder.build().catch((e) => { refused = [e.name, e.message]; });
        await builder.build(data(new Blob([weights])));
        const session = await InferenceSession.create(builder.getModel());
        const ones = new Tensor("float32", new Float32Array(128).fill(1), [1, 128]);
        const x = new Tensor("float32", new Float32Array(512), [1, 512]);
        const { x_grad } = await session.run({ x, y_grad: ones });
        await session.release();
        const limits = { ...data(weights), limits: { arenaBytes: 1000 } };
        const limited = await builder.build(limits).catch((e) => e.name);
        return [refused, [...x_grad.data], limited];"""
    )
    refused, gradient, limited = found
    assert refused[0] == "ModelError" and "externalData" in refused[1]
    weights = np.random.default_rng(4).standard_normal((512, 128)).astype("<f4")
    np.testing.assert_allclose(gradient, weights.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-4)
    assert limited == "LimitError"


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [
        ("checkpointOf(model, options)", "ModelError", "externalData"),
        ("outputOf(model, options)", "ModelError", "externalData"),
        ("checkpointOf(model, data(weights.subarray(1)))", "ModelError", "which has 262207 bytes"),
        ("checkpointOf(model, data(weights.subarray(64)))", "ModelError", "262144 bytes"),
        ("outputOf(model, { ...options, externalData: [{ path: 'b', data: weights }] })", "ModelError", "'w.bin'"),
        ("checkpointOf(model, { ...options, externalData: weights })", "TypeError", "array"),
        ("checkpointOf(model, { ...options, externalData: [weights] })", "TypeError", "path"),
        ("checkpointOf(model, { ...options, externalData: ['a', 'a'] })", "TypeError", "twice"),
        ("TrainingSession.create(golden('mlp'), data(weights))", "TypeError", "createFromModel"),
    ],
)  # fmt: skip
def test_external_data_that_does_not_fit_is_refused(
    js: JsPage, external: None, call: str, name: str, text: str
) -> None:
    error = js.failure(OPEN + EXTERNAL + f"await {call};")
    assert error["name"] == name and text in error["message"]
