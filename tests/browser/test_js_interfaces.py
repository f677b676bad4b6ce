"""A page's share of onnxruntime's interfaces besides training: ORT format, options, metadata, shared states."""

from typing import Any

import numpy as np
import pytest
from tests.golden.calls.scenarios import X, Y
from tests.python.test_ort_format import FOLDER, READABLE, large_model, recorded

import trainweb
from trainweb.model.reader import read_metadata

from .js_session import JsPage, from_json, to_json
from .server import ROOT

MLP = ROOT / "tests" / "golden" / "mlp"


# ORT format.


@pytest.mark.parametrize("name", READABLE)
def test_a_model_in_ort_format_runs(isolated: JsPage, name: str) -> None:
    feeds = {key: to_json(array) for key, array in recorded(name, "in").items()}
    found = isolated.run(
        """const session = await InferenceSession.create(`/golden/ort_format/${name}`,
             { extra: { session: { load_model_format: "ORT" } } });
           const given = Object.entries(feeds).map(([n, t]) => [n, toTensor(t)]);
           const results = await session.run(Object.fromEntries(given));
           await session.release();
           return Object.fromEntries(Object.entries(results).map(([n, t]) => [n, fromTensor(t)]));""",
        name=name,
        feeds=feeds,
    )
    for output, wanted in recorded(name, "out").items():
        np.testing.assert_allclose(from_json(found[output]), wanted, rtol=0, atol=1e-5, err_msg=output)


def test_a_model_in_ort_format_trains_as_the_onnx_file(isolated: JsPage) -> None:
    found = isolated.run(
        """const losses = async (model) => {
             const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
             const session = await TrainingSession.createFromModel(model, config);
             const found = [];
             for (let k = 0; k < 3; k++) {
               const results = await session.runTrainStep({ x: toTensor(x), labels: toTensor(labels) });
               found.push(Object.values(results)[0].data[0]);
               await session.runOptimizerStep();
               await session.lazyResetGrad();
             }
             const names = await session.parameterNames();
             await session.release();
             return [names, found];
           };
           const report = await inspectModel("/golden/ort_format/mlp.ort", { loss: "CrossEntropyLoss" });
           return [await losses("/golden/ort_format/mlp.plain.ort"), await losses("/golden/mlp/base.onnx"),
                   report.ok, Object.keys(report.trainable)];""",
        x=to_json(X),
        labels=to_json(Y),
    )
    ort, onnx, ok, trainable = found
    assert ort == onnx and ort[1][0] != ort[1][2]
    assert ok and trainable == onnx[0]


def test_large_tensors_of_an_ort_file_go_right_into_kernel_memory(isolated: JsPage) -> None:
    isolated.site.add("/large.ort", large_model())
    x = np.random.default_rng(1).normal(size=(2, 200)).astype(np.float32)
    found = isolated.run(
        """const session = await InferenceSession.create("/large.ort");
           const { y } = await session.run({ x: toTensor(x) });
           await session.release();
           return fromTensor(y);""",
        x=to_json(x),
    )
    session = trainweb.InferenceSession(large_model())
    np.testing.assert_allclose(from_json(found), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
    session.release()


def test_a_damaged_ort_file_is_a_model_error(isolated: JsPage) -> None:
    data = (FOLDER / "mlp.plain.ort").read_bytes()
    isolated.site.add("/cut.ort", data[: len(data) // 2])
    error = isolated.failure('await InferenceSession.create("/cut.ort");')
    assert error["name"] == "ModelError" and "corrupt or truncated" in error["message"]


# Options.


def warnings_of(isolated: JsPage, body: str, **variables: Any) -> list[str]:
    """Warnings that the page logs meanwhile."""
    found: list[str] = []
    listen = lambda message: found.append(message.text) if message.type == "warning" else None  # noqa: E731
    isolated.page.on("console", listen)
    isolated.run(body, **variables)
    isolated.page.remove_listener("console", listen)
    return [text for text in found if text.startswith("trainweb: ")]


OTHERS = """{ executionProviders: ["webgpu", "wasm"], graphOptimizationLevel: "disabled", executionMode: "parallel",
  enableCpuMemArena: false, enableMemPattern: false, interOpNumThreads: 4, extra: { ep: { a: true } } }"""


def test_options_that_change_nothing_are_accepted_with_one_warning(isolated: JsPage) -> None:
    make = "const s = await TrainingSession.create(golden('mlp'), {}); await s.release();"
    (text,) = warnings_of(isolated, make.replace("{}", OTHERS))
    assert text.startswith("trainweb: These options have no effect here: executionProviders='webgpu' (")
    for part in (
        *("graphOptimizationLevel='disabled' (every plan is optimized)", "executionMode='parallel' (", "ep.a='1' ("),
        *("enableCpuMemArena=false (", "enableMemPattern=false (", "interOpNumThreads=4 ("),
    ):
        assert part in text
    as_is = """{ executionProviders: ["wasm", { name: "cpu" }], graphOptimizationLevel: "all",
      executionMode: "sequential", enableCpuMemArena: true, interOpNumThreads: 1,
      extra: { session: { disable_prepacking: "1" } } }"""
    assert warnings_of(isolated, make.replace("{}", as_is)) == []


def test_entries_of_runs_are_warned_of_once(isolated: JsPage) -> None:
    found = warnings_of(
        isolated,
        """const s = await TrainingSession.create(golden("mlp"));
           const extra = { memory: { enable_memory_arena_shrinkage: "cpu:0" } };
           for (let k = 0; k < 3; k++) await s.runTrainStep({ x: toTensor(x), labels: toTensor(labels) }, { extra });
           await s.release();""",
        x=to_json(X),
        labels=to_json(Y),
    )
    assert len(found) == 1 and "memory.enable_memory_arena_shrinkage='cpu:0'" in found[0]


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        ("{extra: {session: {disable_prepacking: '0'}}}", "UnsupportedError", "Prepacking is not supported"),
        ("{extra: {session: {set_denormal_as_zero: 1}}}", "UnsupportedError", "Denormal numbers stay"),
        ("{extra: {optimization: {enable_gelu_approximation: true}}}", "UnsupportedError", "Gelu is computed"),
        ("{extra: {session: {load_model_format: 'TFLITE'}}}", "RangeError", "must be ONNX or ORT, got 'TFLITE'"),
        ("{enableMemPattern: 'no'}", "TypeError", "'enableMemPattern' must be a boolean"),
        ("{interOpNumThreads: -1}", "SessionError", "'interOpNumThreads' must be an integer >= 0"),
        ("{executionProviders: 'wasm'}", "TypeError", "'executionProviders' must be an array, got a string"),
        ("{executionProviders: [null]}", "TypeError", "'executionProviders' has null, which is neither a name"),
        ("{executionProviders: [{}]}", "TypeError", "'executionProviders' has Object, which is neither a name"),
    ],
)
def test_options_that_would_change_something_are_refused(isolated: JsPage, options: str, name: str, text: str) -> None:
    error = isolated.failure(f"await TrainingSession.create(golden('mlp'), {options});")
    assert error["name"] == name and text in error["message"]


MOST_LETTERS = 600
"""Of a message that quotes what a caller gave."""


def test_what_a_caller_gives_is_not_quoted_whole(isolated: JsPage) -> None:
    body = """const huge = "n".repeat(1e5);
        const open = (options) => TrainingSession.create(golden("mlp"), options);
        const s = await open({ extra: { [huge]: huge } });
        const calls = [
          () => s.runTrainStep({ x: toTensor(x), labels: toTensor(labels) }, [huge]),
          () => open({ integrity: { [huge]: "sha256-x" } }), () => open({ integrity: `sha256-${huge}` }),
          () => open({ extra: { session: { load_model_format: huge } } }), () => open({ executionProviders: [huge] }),
        ];
        const found = [];
        for (const call of calls) {
          const { message } = await failure(call);
          found.push(message.includes("nnn") && message.length);
        }
        await s.release();
        window.found = found;"""
    (warning,) = warnings_of(isolated, body, x=to_json(X), labels=to_json(Y))
    lengths = isolated.run("return found;")
    assert all(0 < length < MOST_LETTERS for length in [*lengths, len(warning)]), lengths


# Names, flags, properties, metadata.


def test_names_cannot_be_changed(isolated: JsPage) -> None:
    found = isolated.run(
        """const session = await TrainingSession.create(golden("mlp"));
           const inference = await InferenceSession.create("/golden/mlp/base.onnx");
           const names = ["trainingInputNames", "trainingOutputNames", "evalInputNames", "evalOutputNames"];
           const lists = [...names.map((name) => session[name]), inference.inputNames, inference.outputNames,
                          inference.inputMetadata];
           const errors = [];
           for (const list of lists) errors.push((await failure(() => list.push("zz")))?.name);
           const results = await session.runTrainStep({ x: toTensor(x), labels: toTensor(labels) });
           await session.release(); await inference.release();
           return [errors, Object.keys(results).length];""",
        x=to_json(X),
        labels=to_json(Y),
    )
    assert found == [["TypeError"] * 7, 1]


def test_flags_and_buffers_are_checked(isolated: JsPage) -> None:
    found = isolated.run(
        """const s = await TrainingSession.create(golden("mlp"));
           const state = await CheckpointState.load(golden("mlp").checkpointState);
           const feeds = { x: toTensor(x), labels: toTensor(labels) };
           const out = new Float32Array(432);
           const given = await s.getContiguousParameters(true, { out });
           const wanted = await s.getContiguousParameters(true);
           const calls = [
             () => s.getContiguousParameters("false"), () => s.getContiguousParameters(true, { ema: 1 }),
             () => s.getParametersSize({ trainableOnly: 0 }), () => s.loadParametersBuffer(out, 1),
             () => s.getContiguousParameters(true, { out: new Float32Array(431) }),
             () => s.getContiguousParameters(true, { out: [] }), () => s.parameterNames({ trainableOnly: "no" }),
             () => s.loadParametersBuffer(new Int32Array(432)),
             () => s.saveCheckpoint({ includeOptimizerState: "false" }), () => s.explain({}, { training: "false" }),
             () => s.profile({}, { training: "false" }), () => s.runTrainStep(feeds, { transfer: "false" }),
             () => state.save({ includeOptimizerState: "false" }), () => state.parameterNames({ trainableOnly: "no" }),
           ];
           const errors = [];
           for (const call of calls) errors.push((await failure(call)).name);
           await s.release(); await state.release();
           return [given.data === out && String(out) === String(wanted.data), given.dims, errors];""",
        x=to_json(X),
        labels=to_json(Y),
    )
    refused = ["TypeError"] * 4 + ["BufferSizeError"] + ["TypeError"] * 9
    assert found == [True, [432], refused]


def test_properties_say_what_they_are_kept_as(isolated: JsPage) -> None:
    found = isolated.run(
        """const s = await TrainingSession.create(golden("mlp"));
           const state = await CheckpointState.load(golden("mlp").checkpointState);
           const found = [];
           for (const one of [s, state]) {
             await one.addProperty("a", 1);
             await one.addProperty("b", 1, "float");
             await one.addProperty("c", "1");
             for (const name of ["a", "b", "c"]) found.push(await one.getPropertyKind(name));
             for (const [value, kind] of [[2n ** 63n], [2n ** 63n, "int"], [-(2n ** 63n) - 1n], [10n ** 400n]]) {
               const error = await failure(() => one.addProperty("a", value, kind));
               found.push([error.name, error.message]);
             }
             await one.addProperty("big", 2n ** 63n, "float");
             await one.addProperty("most", 2n ** 63n - 1n);
             found.push(await one.getPropertyKind("big"), await one.getPropertyKind("most"),
                        String(await one.getProperty("most")), (await failure(() => one.getPropertyKind("zz"))).name);
           }
           await s.release(); await state.release();
           return found;"""
    )
    text = "A property may be an integer of at most 64 bits; this one has {}. Keep it as a text or as a float."
    refused = [["RangeError", text.format(bits)] for bits in (65, 65, 65, 1330)]
    wanted = ["int", "float", "string", *refused, "float", "int", str(2**63 - 1), "CheckpointError"]
    assert found == wanted * 2


@pytest.mark.parametrize("name", ["branches.onnx", "branches.ort"])
def test_a_model_says_of_itself_what_it_says_in_python(isolated: JsPage, name: str) -> None:
    found = isolated.run(
        """const session = await InferenceSession.create(`/golden/ort_format/${name}`);
           const report = await inspectModel(`/golden/ort_format/${name}`);
           const { modelMetadata, inputMetadata, outputMetadata } = session;
           await session.release();
           const shown = ({ version, ...more }) => ({ ...more, version: String(version) });
           return [shown(modelMetadata), shown(report.modelMetadata), inputMetadata, outputMetadata];""",
        name=name,
    )
    wanted = read_metadata(FOLDER / name)
    for about in found[:2]:
        assert about == {
            "producerName": wanted["producer_name"],
            "graphName": wanted["graph_name"],
            "domain": "org.example",
            "description": "about it",
            "graphDescription": "about the graph",
            "version": "3",
            "customMetadataMap": {"author": "somebody", "empty": ""},
        }
    tensor = {"isTensor": True, "type": "float32"}
    assert found[2] == [
        {"name": "x", **tensor, "shape": ["rows", 4]},
        {"name": "n", "isTensor": True, "type": "int64", "shape": []},
    ]
    assert found[3] == [{"name": "y", **tensor, "shape": []}, {"name": "h", **tensor, "shape": ["rows", 4]}]


# Several sessions on one state.

ALTERNATE = """
const files = golden("mlp");
const state = await CheckpointState.load(files.checkpointState);
const [a, b] = [await TrainingSession.create({ ...files, checkpointState: state }, { reproducible: true }),
                await TrainingSession.create({ ...files, checkpointState: state }, { reproducible: true, ...more })];
const losses = [], rates = [];
await a.registerLinearLRScheduler(1, 9, 0.1);
for (let k = 0; k < 4; k++) {
  const [s, other] = k % 2 ? [a, b] : [b, a];
  const results = await s.runTrainStep({ x: toTensor(x), labels: toTensor(labels) });
  losses.push(Object.values(results)[0].data[0]);
  await s.runOptimizerStep();
  await s.lazyResetGrad();
  await s.schedulerStep();
  rates.push(await other.getLearningRate() === await s.getLearningRate());
}
"""


@pytest.mark.parametrize("more", [{}, {"threads": 2}], ids=["one worker", "two workers"])
def test_two_sessions_on_one_state_are_one_training(isolated: JsPage, more: dict[str, Any]) -> None:
    found = isolated.run(
        ALTERNATE
        + """
        await a.addProperty("steps", 4);
        const seen = [await b.getProperty("steps")];
        await a.updateParameter("fc2.bias", new Tensor("float32", new Float32Array(12).fill(2), [12]));
        seen.push((await b.getParameter("fc2.bias")).data[0], (await state.getParameter("fc2.bias")).data[0]);
        // Calls that are made at once come in their order.
        const answers = await Promise.all([a.stepCount(), b.runOptimizerStep(), a.stepCount(), b.stepCount()]);
        seen.push(answers[0], answers[2], answers[3]);
        await a.release();
        seen.push(await b.stepCount());
        await b.setLearningRate(0.5);
        await b.release();
        const end = Array.from(await state.save({ includeOptimizerState: true }));
        await state.release();
        return { losses, rates, seen, end };""",
        x=to_json(X),
        labels=to_json(Y),
        more=more,
    )
    state = trainweb.CheckpointState.load_checkpoint(MLP / "checkpoint")
    files = [MLP / f"{name}_model.onnx" for name in ("training", "eval", "optimizer")]
    options = {"reproducible": True}
    a, b = (trainweb.TrainingSession(state, *files, options) for _ in range(2))
    a.register_linear_lr_scheduler(1, 9, 0.1)
    losses = []
    for k in range(4):
        s = a if k % 2 else b
        losses += [float(v) for v in s.train_step({"x": X, "labels": Y}).values()]
        s.optimizer_step()
        s.lazy_reset_grad()
        s.scheduler_step()
    assert found["losses"] == losses and all(found["rates"])
    state.properties["steps"] = 4
    a.update_parameter("fc2.bias", np.full(12, 2, np.float32))
    b.optimizer_step()
    assert found["seen"] == [4, 2, 2, 4, 5, 5, 5]
    a.release()
    b.set_learning_rate(0.5)
    b.release()
    wanted = trainweb.checkpoint.read_checkpoint(
        trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True)
    )
    got = trainweb.checkpoint.read_checkpoint(bytes(found["end"]))
    assert (got.trained, got.frozen, got.step, got.moments) == (
        wanted.trained,
        wanted.frozen,
        wanted.step,
        wanted.moments,
    )
    assert got.properties == wanted.properties


def test_a_session_without_an_optimizer_keeps_the_moments_of_the_other(isolated: JsPage) -> None:
    found = isolated.run(
        """const files = golden("mlp");
           const state = await CheckpointState.load(files.checkpointState);
           const a = await TrainingSession.create({ ...files, checkpointState: state });
           const looks = await TrainingSession.create({ trainModel: files.trainModel, evalModel: files.evalModel,
                                                        checkpointState: state });
           const feeds = { x: toTensor(x), labels: toTensor(labels) };
           await a.runTrainStep(feeds);
           await a.runOptimizerStep();
           const before = await a.getMoments("fc1.bias");
           const [own] = Object.values(await a.runEvalStep(feeds));
           const [its] = Object.values(await looks.runEvalStep(feeds));
           const after = await a.getMoments("fc1.bias");
           const steps = await a.stepCount();
           await a.release(); await looks.release(); await state.release();
           const text = (moments) => String(Object.values(moments).map(({ data }) => data));
           return [own.data[0] === its.data[0], text(before) === text(after), steps];""",
        x=to_json(X),
        labels=to_json(Y),
    )
    assert found == [True, True, 1]
