"""Models of float16, bfloat16 and float64 in a page: the bytes of native sessions, past Python, too."""

import base64
import hashlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Browser
from tests.python import test_halves as halves

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.ir.shapes import TensorType
from trainweb.lora import inject
from trainweb.model.lazy import LARGE
from trainweb.model.reader import read_model
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.models import MODELS
from trainweb.training.state import CheckpointState

from .js_session import JsPage, open_js_page
from .server import Site

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float64": TensorProto.DOUBLE}
ROWS, WIDTH, BATCH = 8, LARGE // 8, 4

STEPS = """
    const tensor = (values, dims) => {
      const bits = Uint8Array.from(atob(values), (c) => c.charCodeAt(0)).buffer;
      if (dtype === "float64") return new Tensor("float64", new Float64Array(bits), dims);
      if (dtype === "bfloat16") return new Tensor("uint16", new Uint16Array(bits), dims);
      return new Tensor("float16", useFloat16Array ? new Float16Array(bits) : new Uint16Array(bits), dims);
    };
    const feeds = { x: tensor(x, [batch, rows]), target: tensor(target, [batch, 2]) };
    const step = async (s) => {
      const results = await s.runTrainStep(feeds);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
      return results;
    };
    const options = { threads: 1, reproducible: true };
    const session = await TrainingSession.createFromModel(
      url, { loss: "MSELoss", optimizer: "AdamW", additionalOutputNames: ["y"] }, options);
    let results;
    for (let k = 0; k < 2; k++) results = await step(session);
    const y = results.y;
    const saved = await session.saveCheckpoint();
    const blob = await session.saveCheckpoint({ as: "blob" });
    const exported = await session.exportModelForInferencing(["y"]);
    const whole = await session.saveCheckpoint({ includeOptimizerState: true });
    const files = await session.artifacts();
    await step(session);
    const after = await session.getContiguousParameters();
    const resumed = await TrainingSession.create({
      checkpointState: whole, trainModel: files.trainModel, evalModel: files.evalModel,
      optimizerModel: files.optimizerModel,
    }, options);
    await step(resumed);
    const again = await resumed.getContiguousParameters();
    const inference = await InferenceSession.create(exported, options);
    const inferred = await inference.run({ x: feeds.x });
    const report = await inspectModel(url, { loss: "MSELoss", optimizer: "AdamW" });
    const out = {
      y: base64(y.data), type: y.type, array: y.data.constructor.name, saved: base64(saved),
      blob: base64(new Uint8Array(await blob.arrayBuffer())), exported: base64(exported),
      resumes: after.data.every((value, k) => Object.is(value, again.data[k])),
      inferred: base64(inferred.y.data), precision: report.precision,
    };
    for (const s of [session, resumed, inference]) await s.release();
    return out;
"""


def model_of(dtype: str) -> bytes:
    """x [n, ROWS] -> y [n, 2]; its first weight is large enough to stay outside of Python."""
    rng, code = np.random.default_rng(5), CODES[dtype]
    tensors = {"wide": (ROWS, WIDTH), "bias": (WIDTH,), "narrow": (WIDTH, 2)}
    nodes = [
        helper.make_node("MatMul", ["x", "wide"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "narrow"], ["y"]),
    ]
    edges = [helper.make_tensor_value_info(*v) for v in (("x", code, ["n", ROWS]), ("y", code, ["n", 2]))]
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(DTYPES[dtype]), name)
        for name, shape in tensors.items()
    ]
    graph = helper.make_graph(nodes, "g", edges[:1], edges[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def feeds_of(dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {name: rng.standard_normal((BATCH, k)).astype(DTYPES[dtype]) for name, k in (("x", ROWS), ("target", 2))}


def native(model: bytes, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, bytes, bytes]:
    """Output of the second step, checkpoint and exported model."""
    files = build_artifacts(model, loss="MSELoss", optimizer="AdamW", additional_output_names=["y"])
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    models = files.training_model, files.eval_model, files.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as session:
        for _ in range(2):
            results = session.train_step(feeds)
            session.optimizer_step()
            session.lazy_reset_grad()
        saved = trainweb.CheckpointState.save_checkpoint(state)
        assert saved is not None
        return results["y"], saved, session.export_model_for_inferencing(["y"])


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    for dtype in DTYPES:
        plain_site.add(f"/floats/{dtype}.onnx", model_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_gives_the_same_bytes_as_python(js: JsPage, dtype: str) -> None:
    feeds = feeds_of(dtype)
    has_array = bool(js.run("return typeof Float16Array === 'function';"))
    given = {name: base64.b64encode(array.tobytes()).decode() for name, array in feeds.items()}
    found = js.run(
        STEPS, **given, dtype=dtype, url=f"/floats/{dtype}.onnx", batch=BATCH, rows=ROWS, useFloat16Array=has_array
    )
    y, saved, exported = native(model_of(dtype), feeds)
    decoded = {name: base64.b64decode(found[name]) for name in ("y", "saved", "blob", "exported", "inferred")}
    assert decoded["y"] == y.tobytes()
    arrays = {
        "float64": "Float64Array",
        "bfloat16": "Uint16Array",
        "float16": "Float16Array" if has_array else "Uint16Array",
    }
    assert (found["type"], found["array"]) == ("uint16" if dtype == "bfloat16" else dtype, arrays[dtype])
    assert decoded["saved"] == decoded["blob"] == saved
    assert decoded["exported"] == exported
    written = {t.name: t.data_type for t in onnx.load_from_string(exported).graph.initializer}
    assert written == dict.fromkeys(("wide", "bias", "narrow"), CODES[dtype])
    assert found["resumes"]
    assert f"inputs of {dtype}: x" in found["precision"]
    session = trainweb.InferenceSession(exported, {"reproducible": True})
    (expected,) = session.run(None, {"x": feeds["x"]})
    session.release()
    assert decoded["inferred"] == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_is_converted_to_the_type_of_the_input(js: JsPage, dtype: str) -> None:
    x = np.arange(BATCH * ROWS).reshape(BATCH, ROWS) % 7 / 3
    kinds = {"float32": x, "float16": x, "int32": x, "bool": x > 1}
    arrays = {kind: array.astype(kind) for kind, array in kinds.items()}
    found = js.run(
        """const s = await TrainingSession.createFromModel(`/floats/${dtype}.onnx`, { loss: "MSELoss" });
        const Arrays = { float32: Float32Array, float16: Uint16Array, int32: Int32Array, bool: Uint8Array };
        const found = [];
        for (const [kind, values, bits] of given) {
          const isHalf = kind === "float16" && typeof Float16Array === "function";
          const data = isHalf ? Float16Array.from(values.flat()) : Arrays[kind].from(bits ?? values.flat());
          for (const x of [new Tensor(kind, data, [values.length, values[0].length]), values]) {
            found.push(base64((await s.predict({ x })).y.data));
          }
        }
        await s.release();
        return found;""",
        dtype=dtype,
        given=[
            [kind, array.tolist(), array.view(np.uint16).ravel().tolist() if kind == "float16" else None]
            for kind, array in arrays.items()
        ],
    )
    with trainweb.TrainingSession.from_model(model_of(dtype), loss="MSELoss") as s:
        expected = [s.predict({"x": array.astype(DTYPES[dtype])})["y"] for array in arrays.values() for _ in range(2)]
    assert [base64.b64decode(one) for one in found] == [y.tobytes() for y in expected]


HALF_STEPS = """
    const options = { threads: 1, reproducible: true };
    const steps = async (s, count) => {
      const losses = [];
      for (let k = 0; k < count; k++) {
        const tensors = [ids, labels].map((v) => new Tensor("int64", BigInt64Array.from(v, BigInt), [v.length]));
        const feeds = Object.fromEntries(s.trainingInputNames.map((name, k) => [name, tensors[k]]));
        losses.push(Number((await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0]));
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return losses;
    };
"""
HALVES = """
    const lora = { rank: 4, targets: ["m.fc"], seed: 3 };
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", learningRate: 0.01, lora };
    const session = await TrainingSession.createFromModel("/floats/halves.onnx", config, options);
    const losses = await steps(session, 3);
    const saved = await session.saveCheckpoint({ includeOptimizerState: true });
    const files = await session.artifacts();
    const found = {
      losses,
      parameters: (await session.memory()).parameters,
      layer: base64((await session.getParameter("m.fc.weight")).data),
      all: base64((await session.getContiguousParameters(false)).data),
      saved: base64(saved),
      started: base64(files.checkpoint),
      trainModel: base64(files.trainModel),
      exported: base64(await session.exportModelForInferencing(["logits"])),
    };
    const after = await steps(session, 2);
    const { trainModel, evalModel, optimizerModel } = files;
    const models = { trainModel, evalModel, optimizerModel };
    const resumed = await TrainingSession.create({ checkpointState: saved, ...models }, options);
    found.resumes = String(await steps(resumed, 2)) === String(after);
    const values = Float32Array.from({ length: 65 * 65 }, (_, k) => Math.sin(k));
    await resumed.updateParameter("m.fc.weight", new Tensor("float32", values, [65, 65]));
    found.rounded = base64((await resumed.getParameter("m.fc.weight")).data);
    const { data: everything } = await resumed.getContiguousParameters(false);
    await session.loadParametersBuffer(everything, false);
    found.loads = String(await steps(session, 1)) === String(await steps(resumed, 1));
    for (const s of [session, resumed]) await s.release();
    return found;
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_frozen_matrices_of_16_bits_are_what_they_are_in_python(browser: Browser, plain_site: Site, dtype: str) -> None:
    values, model = halves.weights(dtype), halves.model_of(halves.weights(dtype))
    plain_site.add("/floats/halves.onnx", model)
    ids, labels = (array.tolist() for array in halves.feeds().values())
    with open_js_page(browser, plain_site) as page:
        found = page.run(HALF_STEPS + HALVES, ids=ids, labels=labels)
    with halves.session_of(model, options={"reproducible": True}) as session:
        start = session.memory().parameters
        assert found["losses"] == halves.steps(session, 3)
        everything = session.get_contiguous_parameters(False)
        exported = session.export_model_for_inferencing(["logits"])
    assert found["parameters"] == start
    decoded = {name: base64.b64decode(text) for name, text in found.items() if isinstance(text, str)}
    layer = values["m.fc.weight"]
    assert decoded["layer"] == layer.astype(np.float32).tobytes()
    assert decoded["all"] == everything.tobytes()
    assert decoded["exported"] == exported
    # What is handed out has the bytes of the file, once.
    for name, weight in ((n, w) for n in ("saved", "started") for w in ("embed.weight", "m.fc.weight")):
        assert decoded[name].count(values[weight].tobytes()) == 1
        assert values[weight].astype(np.float32).tobytes() not in decoded[name]
    given = np.array([math.sin(k) for k in range(65 * 65)], np.float32).astype(DTYPES[dtype])
    assert decoded["rounded"] == given.astype(np.float32).tobytes()
    assert found["resumes"] and found["loads"]


def test_a_bundle_has_matrices_of_16_bits_where_python_wants_them(browser: Browser, plain_site: Site) -> None:
    adapted = inject(read_model(halves.model_of(halves.weights("bfloat16"))), ["m.fc"], rank=4, seed=3)
    made = adapted.build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    models = {name: made[name] for name in MODELS}
    ids, labels = halves.feeds().values()
    with trainweb.TrainingSession(
        CheckpointState.load_checkpoint(made.checkpoint), *models.values(), {"reproducible": True}
    ) as session:
        expected = halves.steps(session, 3)
        names = session.input_names()
    core = SessionCore(CheckpointState.load_checkpoint(made.checkpoint), *map(read_model, models.values()))
    core.release()
    feeds = {name: TensorType("int64", ids.shape) for name in names}
    plain_site.add("/floats/bundle", make_bundle(core.models, core.state._lent(), [feeds], models))
    body = """
        const session = await TrainingSession.create({ bundle: "/floats/bundle" }, options);
        const losses = await steps(session, 3);
        // Another length needs Python, which must find the parameters in the same places.
        ids.pop();
        labels.pop();
        const [other] = await steps(session, 1);
        await session.release();
        return { losses, isFinite: Number.isFinite(other) };
    """
    with open_js_page(browser, plain_site) as page:
        found = page.run(HALF_STEPS + body, ids=ids.tolist(), labels=labels.tolist())
    assert found == {"losses": expected, "isFinite": True}


def test_a_frozen_matrix_of_float16_is_handed_out_after_its_file_is_freed(js: JsPage, plain_site: Site) -> None:
    size = 3000  # more than a piece of 16 MiB, as large files are fetched
    wide = np.sin(np.arange(size * size)).reshape(size, size).astype(np.float16)
    nodes = [helper.make_node("MatMul", ["x", "wide"], ["z"]), helper.make_node("Add", ["z", "bias"], ["y"])]
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", size]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(v, n) for n, v in (("wide", wide), ("bias", np.zeros(size, np.float16)))]
    graph = helper.make_graph(nodes, "g", edges[:1], edges[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    plain_site.add("/floats/frozen.onnx", model)
    found = js.run("""
        const config = { loss: "MSELoss", frozenParams: ["wide"] };
        const session = await TrainingSession.createFromModel("/floats/frozen.onnx", config);
        const files = [await session.exportModelForInferencing(["y"]), (await session.artifacts()).checkpoint];
        await session.release();
        const hashes = await Promise.all(files.map((file) => crypto.subtle.digest("SHA-256", file)));
        return hashes.map((hash) => Array.from(new Uint8Array(hash)));
    """)
    settings: dict[str, Any] = {"loss": "MSELoss", "frozen_params": ["wide"]}
    with trainweb.TrainingSession.from_model(model, **settings) as session:
        exported = session.export_model_for_inferencing(["y"])
    files = (exported, build_artifacts(model, optimizer="AdamW", **settings).checkpoint)
    assert found == [list(hashlib.sha256(file).digest()) for file in files]
    assert all(wide.tobytes() in file for file in files)
