"""A page takes a graph's weights from safetensors files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bench import smol
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Browser
from tests.each import run_each
from tests.lora.test_lora import RECORDED, truth
from tests.python.test_safetensors_beside import NAME, SHAPE, TABLE, WEIGHT, file_of, graph_of, tied_model

from trainweb.lora.quantize import quantize
from trainweb.model import read_model

from .js_session import JsPage, open_js_page, to_json
from .processes import processes, resident_bytes
from .server import Site

OTHER = {"model.norm.weight": np.ones(3, np.float32)}
LARGE = {"lm_head.weight": np.ones((8 << 20) + 1024, np.float32)}
"""Makes a file that the page leaves with the browser (from 32 MiB on)."""

RUN = """
const bytes = async (url) => new Uint8Array(await (await fetch(url)).arrayBuffer());
const form = {
  url: async () => files[0],
  bytes: () => bytes(files[0]),
  blob: async () => new Blob([await bytes(files[0])]),
  shards: () => Promise.all(files.map(async (url, k) => (k ? url : bytes(url)))),
}[kind];
const session = await InferenceSession.create(model, { weights: await form() });
const { y } = await session.run({ x: new Tensor("float32", new Float32Array(128).fill(1), [1, 128]) });
await session.release();
return [...y.data];
"""

TRAIN = """
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 2, targets: ["up_proj"] } };
const session = await TrainingSession.createFromModel(model, config, { weights });
const given = [new Tensor("float32", new Float32Array(3 * 128).fill(1), [3, 128]),
  new Tensor("int64", BigInt64Array.of(0n, 5n, 191n), [3])];
const feeds = Object.fromEntries(session.trainingInputNames.map((name, k) => [name, given[k]]));
const found = await session.runTrainStep(feeds);
const loss = found[session.trainingOutputNames[0]].data[0];
await session.release();
return loss;
"""

FAIL = "return failure(() => InferenceSession.create(model, options));"


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    """A page for all tests that neither watch nor measure it."""
    with open_js_page(browser, plain_site, expected=(r"status of 404",)) as page:
        yield page


@pytest.fixture(params=["plain", pytest.param("isolated", marks=pytest.mark.sweep)])
def fresh(browser: Browser, request: pytest.FixtureRequest) -> Iterator[JsPage]:
    """A page whose memory is measured."""
    site: Site = request.getfixturevalue(f"{request.param}_site")
    with open_js_page(browser, site) as page:
        page.run("env.timeouts.idle = 1e9;")  # the worker waits however long the files take to make
        yield page


def served(site: Site, name: str, tensors: dict[str, Any]) -> str:
    return site.add(f"/w/{name}.safetensors", file_of(tensors))


FORMS = ("url", "bytes", "blob", "shards")


def check_found_by_name(js: JsPage, form: str, rest: dict[str, Any]) -> None:
    model = js.site.add("/w/model.onnx", graph_of())
    half = WEIGHT.astype(ml_dtypes.bfloat16)
    first = {NAME: half} if form == "shards" else {**rest, NAME: half}
    files = [served(js.site, "a", first), served(js.site, "b", rest)]
    found = js.run(RUN, model=model, files=files, kind=form)
    np.testing.assert_allclose(found, half.astype(np.float64).sum(1), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rest", [OTHER, LARGE], ids=["small", "large"])
def test_weights_are_found_by_name(js: JsPage, form: str, rest: dict[str, Any]) -> None:
    check_found_by_name(js, form, rest)


def test_large_files_of_weights_go_to_shared_memory(browser: Browser, isolated_site: Site) -> None:
    with open_js_page(browser, isolated_site) as page:
        run_each(FORMS, lambda form: check_found_by_name(page, form, LARGE))


def test_a_tied_table_is_found_by_its_other_name(js: JsPage) -> None:
    """A recorded language model with its table beside it, and the loss of PyTorch."""
    model, table = tied_model()
    data = truth("tied")
    config = (RECORDED / "tied.start/adapter_config.json").read_text()
    found = js.run(
        """const lora = { adapterConfig: config };
        const settings = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora };
        const session = await TrainingSession.createFromModel(model, settings, { weights });
        const feeds = { x: toTensor(x), labels: toTensor(labels) };
        const found = await session.runEvalStep(feeds);
        const loss = found[session.evalOutputNames[0]].data[0];
        await session.release();
        return loss;""",
        model=js.site.add("/w/tied.onnx", model),
        weights=served(js.site, "tied", {TABLE: table}),
        config=config,
        x=to_json(data["x"]),
        labels=to_json(data["labels"]),
    )
    np.testing.assert_allclose(found, data["losses"][0], rtol=1e-5)


def test_weights_may_be_larger_than_the_room_for_blobs(browser: Browser, plain_site: Site) -> None:
    """Chromium starts with room for 500 MB of Blobs, in an isolated page as in another."""
    huge = np.zeros(135 << 20, np.float32)
    model = plain_site.add("/w/model.onnx", graph_of())
    files = [served(plain_site, "huge", {"a": huge, NAME: WEIGHT})]
    with open_js_page(browser, plain_site) as page:
        found = page.run(RUN, model=model, files=files, kind="url")
    plain_site.remove("/w/huge.safetensors")
    np.testing.assert_allclose(found, WEIGHT.astype(np.float64).sum(1), atol=1e-4)


def test_adapters_train_beside_weights_of_a_file(js: JsPage) -> None:
    model = js.site.add("/w/model.onnx", graph_of())
    loss = js.run(TRAIN, model=model, weights=served(js.site, "a", {NAME: WEIGHT, **LARGE}))
    logits = WEIGHT.astype(np.float64).sum(1)
    assert loss == pytest.approx(np.log(np.exp(logits).sum()) - logits[[0, 5, 191]].mean(), rel=1e-5)


LIVE = "[...globalThis.buffers].reduce((sum, { byteLength }) => sum + byteLength, 0)"

WATCH_PAGE = f"""
const {{ read }} = ReadableStreamBYOBReader.prototype;
globalThis.buffers = new Set();
globalThis.most = 0;
ReadableStreamBYOBReader.prototype.read = async function (view) {{
  const result = await read.call(this, view);
  buffers.add(result.value.buffer);
  globalThis.most = Math.max(most, {LIVE});
  return result;
}};
"""

WATCH_COPIES = f"""() => {{
  const {{ set }} = Uint8Array.prototype;
  globalThis.buffers = new Set();
  globalThis.most = 0;
  Uint8Array.prototype.set = function (source, at) {{
    if (source.buffer?.byteLength === 2 ** 24) buffers.add(source.buffer);
    globalThis.most = Math.max(most, {LIVE});
    return set.call(this, source, at);
  }};
}}"""
"""In the worker, of the pieces that were copied so far."""

KEEP = """
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 2, targets: ["q_proj"] } };
const options = data ? { externalData: [{ path: "model.onnx.data", data }] } : { weights };
globalThis.kept = await TrainingSession.createFromModel(model, config, options);
"""

ARTIFACTS = """
const { checkpoint } = await kept.artifacts();
const ids = new Tensor("int64", BigInt64Array.from({ length: 128 }, (_, k) => BigInt(k)), [1, 128]);
const found = await kept.runEvalStep(Object.fromEntries(kept.trainingInputNames.map((name) => [name, ids])));
const loss = found[kept.trainingOutputNames[0]].data[0];
await kept.release();
const state = await CheckpointState.load(checkpoint);
return [loss, ...new Float32Array((await state.getParameter("model.norm.weight")).data.slice(0, 4)),
  ...(await state.getParameter("model.embed_tokens.weight")).data.slice(-4)];
"""


def test_a_page_holds_frozen_weights_once(fresh: JsPage, tmp_path: Path) -> None:
    """Also of a file in which the exporter's default puts constants between them."""
    fresh.run(TRAIN, model=fresh.site.add("/w/model.onnx", graph_of()), weights=served(fresh.site, "a", {NAME: WEIGHT}))
    size = smol.Size(layers=1)
    shapes = smol.shapes(size)
    weights = {name: smol.values_of(name, shape) for name, shape in shapes.items()}
    nbytes = sum(weight.nbytes for weight in weights.values())
    plain = {
        "model": fresh.site.add("/w/smol.onnx", smol.graph_of(size).SerializeToString()),
        "weights": served(fresh.site, "smol", weights),
        "data": None,
    }
    files = smol.write_optimized(tmp_path, size).items()
    default = {name: fresh.site.add(f"/w/{path.name}", path.read_bytes()) for name, path in files}
    losses = []
    fresh.worker.evaluate(WATCH_COPIES)
    for given in (plain, {"weights": None} | default):
        fresh.run(WATCH_PAGE)
        before = resident_bytes(processes())
        fresh.run(KEEP, **given)
        assert resident_bytes(processes()) - before < 1.6 * nbytes
        # Pieces wait as messages, and are free once they were copied: one of each file is left.
        assert fresh.run("return most;") <= 2 * 2**24
        assert fresh.worker.evaluate("most") <= 2 * 2**24
        assert fresh.worker.evaluate(LIVE) == 0
        loss, *found = fresh.run(ARTIFACTS)
        assert found == [1.0] * 4 + weights["model.embed_tokens.weight"].ravel()[-4:].tolist()
        losses.append(loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


TIED = """
const options = { externalData: [{ path: "w", data: weights }] };
const config = { loss: "CrossEntropyLoss", requiresGrad: ["c"], frozenParams: ["a", "b"] };
const session = await TrainingSession.createFromModel(model, config, options);
const last = [];
for (const name of ["a", "b"]) last.push((await session.getParameter(name)).data.slice(-3));
await session.release();
return last.map((data) => [...data]);
"""


def test_two_weights_may_have_the_same_bytes_of_a_file(js: JsPage) -> None:
    """The second one still finds the pieces, of which the first one has three."""
    values = np.arange(10 << 20, dtype=np.float32)
    shape = [128, values.size // 128]
    tensors = [TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape) for name in ("a", "b")]
    for tensor in tensors:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w")
    tensors.append(numpy_helper.from_array(np.zeros(shape[1], np.float32), "c"))
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Gemm", ["x", "s", "c"], ["y"])],
        "tied",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", shape[1]])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    url = js.site.add("/w/tied.onnx", model.SerializeToString())
    weights = js.site.add("/w/tied", values.tobytes())
    assert js.run(TIED, model=url, weights=weights) == [values[-3:].tolist()] * 2


WATCH_WORKER = """() => {
  const read = FileReaderSync.prototype.readAsArrayBuffer;
  globalThis.buffers = new Set();
  globalThis.nbytes = 0;
  FileReaderSync.prototype.readAsArrayBuffer = function (blob) {
    const buffer = read.call(this, blob);
    globalThis.nbytes += buffer.byteLength;
    buffers.add(buffer);
    return buffer;
  };
}"""

QUANTIZED = """
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 2, targets: ["q_proj"] } };
const session = await TrainingSession.createFromModel(model, config);
const ids = new Tensor("int64", BigInt64Array.of(5n, 7n, 11n), [1, 3]);
const feeds = Object.fromEntries(session.trainingInputNames.map((name) => [name, ids]));
await session.runTrainStep(feeds);
const { plans } = await session.memory();
await session.release();
return plans;
"""


def test_memory_that_files_passed_through_is_free(fresh: JsPage, tmp_path: Path) -> None:
    """After the first step: the page's buffers, and those in which the worker read constants of plans."""
    fresh.run(TRAIN, model=fresh.site.add("/w/model.onnx", graph_of()), weights=served(fresh.site, "a", {NAME: WEIGHT}))
    fresh.run(WATCH_PAGE)
    fresh.worker.evaluate(WATCH_WORKER)
    model = smol.write(tmp_path, smol.Size(layers=3), weights="safetensors")
    quantized = quantize(read_model(model, weights=tmp_path / smol.SAFETENSORS), 8)
    assert len(quantized) > 2**25, "it is a large file"
    plans = fresh.run(QUANTIZED, model=fresh.site.add("/w/quantized.onnx", quantized))
    fresh.site.remove("/w/quantized.onnx")
    assert plans > 2**25 and fresh.worker.evaluate("() => globalThis.nbytes") > 2**25
    assert fresh.run(f"return {LIVE};") == 0
    assert fresh.worker.evaluate(f"() => {LIVE}") < 2**20


def test_other_weights_are_refused(js: JsPage) -> None:
    model = js.site.add("/w/model.onnx", graph_of())
    wrong = served(js.site, "a", {NAME: WEIGHT.T.copy()})
    for options, name, text in (
        ({}, "ModelError", "has 0 bytes of data"),
        ({"weights": wrong}, "ModelError", f"the model declares {list(SHAPE)}"),
        ({"weights": js.site.url("/w/absent")}, "ModelError", "weights 0: http"),
        ({"weights": [1]}, "TypeError", "'weights' must be a URL, Uint8Array, ArrayBuffer or Blob, or an array"),
    ):
        error = js.run(FAIL, model=model, options=options)
        assert error["name"] == name and text in error["message"], error


def test_artifacts_have_no_weights_beside_them(js: JsPage) -> None:
    body = "return failure(() => TrainingSession.create(golden('mlp'), { weights: new Uint8Array(1) }));"
    error = js.run(body)
    assert error["name"] == "TypeError" and "artifacts and bundles have none" in error["message"]
