"""A session in a page describes itself like the Python session after the same calls."""

import json

import trainweb

from .js_session import JsPage
from .server import ROOT

MLP = ROOT / "tests" / "golden" / "mlp"

CALLS = """
const s = await TrainingSession.create(golden("mlp"));
const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
"""


def test_properties_are_listed_deleted_and_keep_their_kind(js: JsPage) -> None:
    found = js.run(
        CALLS
        + """
        await s.addProperty("big", 2n ** 62n + 1n);
        await s.addProperty("one", 1, "float");
        await s.addProperty("gone", "x");
        const names = await s.propertyNames();
        await s.deleteProperty("gone");
        const errors = [];
        for (const call of [
            () => s.deleteProperty("gone"), () => s.addProperty("a", 1, "double"), () => s.addProperty("a", "1", "int"),
            () => s.addProperty("a", 1.5, "int"), () => s.addProperty("a", 1, "string"),
        ]) errors.push((await failure(call)).name);
        const big = String(await s.getProperty("big"));
        const file = Array.from(await s.saveCheckpoint());
        await s.release();
        return { names, errors, big, file };"""
    )
    assert found["names"] == ["big", "one", "gone"]
    assert found["errors"] == ["CheckpointError", "TypeError", "TypeError", "TypeError", "TypeError"]
    assert found["big"] == str(2**62 + 1)
    properties = trainweb.CheckpointState.load_checkpoint(bytes(found["file"])).properties
    assert dict(properties.items()) == {"big": 2**62 + 1, "one": 1.0}
    assert isinstance(properties["one"], float) and isinstance(properties["big"], int)


def test_what_migrated_pages_set_does_not_break_them(js: JsPage) -> None:
    """`env` as pages of onnxruntime-web fill it, its default import and its back ends: one warning, and a session."""
    found = js.run(
        """
        const warnings = [];
        const before = [console.warn, trainweb.env.wasm.wasmPaths];
        console.warn = (...parts) => warnings.push(parts.join(" "));
        const ort = trainweb.default;
        ort.env.wasm.wasmPaths = { wasm: "/dist/ort-wasm-simd-threaded.wasm", mjs: "/dist/ort-wasm-simd-threaded.mjs" };
        ort.env.webgl.pack = true;
        ort.env.webgpu.powerPreference = "high-performance";
        ort.registerBackend("mine", { init: async () => {}, createInferenceSessionHandler: async () => {} }, -1);
        for (let k = 0; k < 2; k++) {
            const s = await ort.TrainingSession.create(golden("mlp"));
            await s.release();
        }
        [console.warn, trainweb.env.wasm.wasmPaths] = before;
        return { warnings, common: ort.env.versions.common, names: Object.keys(ort).includes("TrainingSession") };"""
    )
    assert len(found["warnings"]) == 1
    assert "env.wasm.wasmPaths" in found["warnings"][0] and "Delete" in found["warnings"][0]
    package = json.loads((ROOT / "node_modules" / "onnxruntime-common" / "package.json").read_text())
    assert found["common"] == package["version"] and found["names"]


def test_a_run_logs_from_the_severity_that_it_asks_for(js: JsPage) -> None:
    found = js.run(
        CALLS
        + """
        const lines = [];
        const before = console.debug;
        console.debug = (...parts) => lines.push(parts.join(" "));
        await s.runTrainStep({ x, labels });
        await s.runTrainStep({ x, labels }, { logSeverityLevel: 0, tag: "night" });
        await s.runOptimizerStep({ logSeverityLevel: 0 });
        await s.runEvalStep({ x, labels }, { logSeverityLevel: 1 });
        console.debug = before;
        const wrong = await failure(() => s.runTrainStep({ x, labels }, { logSeverityLevel: 9 }));
        await s.release();
        return { lines, wrong: wrong.message };"""
    )
    first, second = found["lines"]
    assert first.startswith("trainweb: night: train step: ") and first.endswith(" ms")
    assert second.startswith("trainweb: optimizer step: ")
    assert "9" in found["wrong"]


def test_a_session_logs_from_the_severity_that_it_was_made_with(js: JsPage) -> None:
    lines = js.run(
        """
        const lines = [];
        const before = console.debug;
        console.debug = (...parts) => lines.push(parts.join(" "));
        const s = await TrainingSession.create(golden("mlp"), { logSeverityLevel: 0 });
        const x = new Tensor("float32", new Float32Array(80), [8, 10]);
        const labels = new Tensor("int64", new BigInt64Array(8), [8]);
        lines.length = 0;
        await s.runTrainStep({ x, labels });
        await s.runEvalStep({ x, labels }, { logSeverityLevel: 2 });
        await s.runOptimizerStep();
        console.debug = before;
        await s.release();
        return lines;"""
    )
    assert [line.split(":")[1].strip() for line in lines] == ["train step", "optimizer step"]


def test_dims_are_given_sizes(js: JsPage) -> None:
    found = js.run(
        """
        const options = { freeDimensionOverrides: { batch: 8 } };
        const x = new Tensor("float32", new Float32Array(80), [8, 10]);
        const labels = new Tensor("int64", new BigInt64Array(8), [8]);
        const few = { x: new Tensor("float32", new Float32Array(20), [2, 10]), labels };
        const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
        const found = [];
        for (const make of [
          () => TrainingSession.create(golden("mlp"), options),
          () => TrainingSession.createFromModel("/golden/mlp/base.onnx", config, options),
        ]) {
          const s = await make();
          const loss = Object.values(await s.runTrainStep({ x, labels }))[0].data[0];
          const refused = await failure(() => s.runTrainStep(few));
          found.push([(await s.inputMetadata()).map(({ shape }) => shape), loss, refused.name]);
          await s.release();
        }
        const i = await InferenceSession.create("/golden/mlp/base.onnx", options);
        await i.run({ x });
        const refused = await failure(() => i.run({ x: few.x }));
        await i.release();
        const wrong = { freeDimensionOverrides: { bat: 8 } };
        const unknown = await failure(() => InferenceSession.create("/golden/mlp/base.onnx", wrong));
        return { found, inference: refused.name, unknown: unknown.message };"""
    )
    for shapes, loss, error in found["found"]:
        assert shapes == [[8, 10], [8]] and loss > 0 and error == "FeedError"
    assert found["inference"] == "FeedError" and "'batch'" in found["unknown"]


def test_runs_of_an_inference_session_are_profiled(js: JsPage) -> None:
    """As onnxruntime-common has it: two calls without arguments. The browser's timeline says what was measured."""
    found = js.run(
        """
        const lines = [];
        const info = console.info;
        console.info = (...words) => lines.push(words.join(" "));
        env.logLevel = "info";
        const s = await InferenceSession.create("/golden/mlp/base.onnx");
        const x = new Tensor("float32", new Float32Array(10), [1, 10]);
        const measures = () => performance.getEntriesByName("trainweb run").length;
        const counts = [];
        await s.run({ x }); counts.push(measures());
        s.startProfiling();
        await s.run({ x }); await s.run({ x }); counts.push(measures());
        const ended = s.endProfiling();
        await s.run({ x }); counts.push(measures());
        s.endProfiling();
        await s.release();
        const released = await failure(() => s.startProfiling());
        env.logLevel = "warning";
        console.info = info;
        return { counts, ended: ended === undefined, lines, released: released.name };"""
    )
    assert found["counts"] == [0, 2, 2] and found["ended"]
    assert len([line for line in found["lines"] if "2 runs of x: " in line]) == 1
    assert found["released"] == "ReleasedError"
