"""The rules for arguments and options of the JavaScript interface, row by row."""

from base64 import b64encode
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import Browser
from tests.conformance.models import make_model

from .js_session import JsPage, open_js_page
from .server import Site

OUT = "onnx::loss::2"

FEEDS_TEXT = "'feeds' must be an object that use input names as keys and OnnxValue as corresponding values."

# arguments of run*Step, class of the error, its text
RUN_RULES = [
    ("", "TypeError", FEEDS_TEXT),
    ("null", "TypeError", FEEDS_TEXT),
    ("7", "TypeError", FEEDS_TEXT),
    ("[x, labels]", "TypeError", FEEDS_TEXT),
    ("x", "TypeError", FEEDS_TEXT),
    ("feeds, null", "TypeError", "Unexpected argument[1]: cannot be null."),
    ("feeds, x", "TypeError", "'fetches' cannot be a Tensor"),
    ("feeds, []", "TypeError", "'fetches' cannot be an empty array."),
    ("feeds, [1]", "TypeError", "'fetches' must be a string array or an object."),
    ("feeds, ['nope']", "RangeError", "'fetches' contains invalid output name: nope."),
    ("feeds, [out, 'nope']", "RangeError", "'fetches' contains invalid output name: nope."),
    ("feeds, 'loss'", "TypeError", "Unexpected argument[1]: must be 'fetches' or 'options'."),
    ("feeds, 1", "TypeError", "Unexpected argument[1]: must be 'fetches' or 'options'."),
    ("feeds, [out], null", "TypeError", "'options' must be an object."),
    ("feeds, [out], 7", "TypeError", "'options' must be an object."),
    ("feeds, {[out]: null}, 'x'", "TypeError", "'options' must be an object."),
    ("{}", "FeedError", "input 'x' is missing in 'feeds'."),
    ("{x}", "FeedError", "input 'labels' is missing in 'feeds'."),
    ("{x, labels: undefined}", "FeedError", "input 'labels' is missing in 'feeds'."),
    ("{x, labels, y: x}", "FeedError", "invalid input 'y': the model's inputs are x, labels."),
    (
        "{y: x, labels}",
        "FeedError",
        "input 'x' is missing in 'feeds', which has 'y': the model's inputs are x, labels.",
    ),
    ("{x, labels: [1, 2]}", "FeedError", "feed 'labels' must be a Tensor or a typed array, got Array."),
    ("{x: null, labels}", "FeedError", "feed 'x' must be a Tensor or a typed array, got null."),
    (
        "{x: new Float32Array(11), labels}",
        "FeedError",
        "feed 'x' must be a Tensor: the 11 elements of Float32Array do not tell its dims, [batch, 10].",
    ),
    (
        "{x: new DataView(new ArrayBuffer(4)), labels}",
        "FeedError",
        "feed 'x' must be a Tensor or a typed array, got DataView.",
    ),
    (
        "{x: new Float64Array(10), labels}",
        "FeedError",
        "Unexpected input data type of 'x'. Actual: (float64), expected: (float32). "
        "Make the tensor with new Tensor('float32', Float32Array.from(values), dims).",
    ),
    ("feeds, {terminat: true}", "TypeError", "The run option 'terminat' is not known; did you mean 'terminate'?"),
    # the order of the checks
    ("null, null", "TypeError", FEEDS_TEXT),
    ("{}, null", "TypeError", "Unexpected argument[1]: cannot be null."),
    ("{}, ['nope'], null", "RangeError", "'fetches' contains invalid output name: nope."),
    ("{}, [out], null", "TypeError", "'options' must be an object."),
    ("{}, [out]", "FeedError", "input 'x' is missing in 'feeds'."),
    # inherited keys are no feeds
    ("Object.create(feeds)", "FeedError", "input 'x' is missing in 'feeds'."),
]

FILE_TEXT = "a URL, Uint8Array, ArrayBuffer or Blob"

CREATE_RULES = [
    ("", "TypeError", "'trainingOptions' must be an object"),
    ("null", "TypeError", "'trainingOptions' must be an object"),
    ("{}", "TypeError", f"'trainingOptions.trainModel' is required: {FILE_TEXT}."),
    (
        "{trainModel: 'a'}",
        "TypeError",
        f"'trainingOptions.checkpoint' is required: {FILE_TEXT}.",
    ),
    ("{...files, checkpoint: files.checkpointState}", "TypeError", "takes 'checkpoint' and 'checkpointState' for the"),
    ("{...files, trainModell: 7}", "TypeError", "did you mean 'trainModel'?"),
    ("{...files, trainModel: 7}", "TypeError", f"must be {FILE_TEXT}, got a number."),
    ("{...files, evalModel: {}}", "TypeError", f"must be {FILE_TEXT}, got Object."),
    ("files, null", "TypeError", "'options' must be an object."),
    ("files, 'fast'", "TypeError", "'options' must be an object."),
    ("files, {executionProviders: ['cuda']}", "Error", "no available backend found. ERR: "),
    (
        "files, {graphOptimizationLevel: 'best'}",
        "Error",
        "unsupported graph optimization level: best",
    ),
    ("files, {executionMode: 'random'}", "Error", "unsupported execution mode: random"),
    ("files, {logSeverityLevel: 5}", "Error", "log serverity level is not valid: 5"),
    ("files, {logSeverityLevel: 1.5}", "Error", "log serverity level is not valid: 1.5"),
    ("files, {logVerbosityLevel: -1}", "Error", "log verbosity level is not valid: -1"),
    ("files, {memorybudget: 1}", "TypeError", "'memorybudget' is not known; did you mean 'memoryBudget'?"),
    ("files, {enableProfiling: true}", "UnsupportedError", "session.profile(feeds)"),
    ("files, {enableGraphCapture: true}", "UnsupportedError", "enableGraphCapture is not supported: it is for WebGPU"),
    ("files, {optimizedModelFilePath: 'a'}", "UnsupportedError", "session.explain(feeds)"),
    ("files, {preferredOutputLocation: 'gpu-buffer'}", "UnsupportedError", "'gpu-buffer' is not supported"),
    ("files, {preferredOutputLocation: {a: 'texture'}}", "UnsupportedError", "'texture' is not supported"),
    ("files, {freeDimensionOverrides: {batch: -1}}", "SessionError", "'freeDimensionOverrides.batch' must be"),
    ("files, {freeDimensionOverrides: {bath: 8}}", "ModelError", "did you mean 'batch'?"),
    ("{bundle: 'a'}, {freeDimensionOverrides: {batch: 8}}", "TypeError", "a bundle has the sizes"),
    ("files, {extra: circular}", "Error", "Circular reference in options"),
    ("files, {extra: {f() {}}}", "Error", "Can't handle extra config type: function"),
    ("files, {threads: 1.5}", "SessionError", "'threads' must be an integer >= 0, got 1.5."),
    ("files, {threads: -1}", "SessionError", "'threads' must be an integer >= 0, got -1."),
    ("files, {reproducible: 1}", "TypeError", "'reproducible' must be a boolean, got a number."),
    ("files, {memoryBudget: 0}", "SessionError", "'memoryBudget' must be an integer >= 1, got 0."),
    ("files, {limits: {nodes: 'many'}}", "SessionError", "'limits.nodes' must be an integer >= 1"),
]

INFERENCE_RULES = [
    ("", "TypeError", "Unexpected argument[0]: must be 'path' or 'buffer'."),
    ("7", "TypeError", "Unexpected argument[0]: must be 'path' or 'buffer'."),
    ("'a', 7", "TypeError", "'options' must be an object."),
    ("'a', null", "TypeError", "'options' must be an object."),
    ("bytes, 0", "TypeError", "'options' must be an object."),
    ("buffer, 'x'", "TypeError", "'options' must be an object."),
    ("buffer, 1.5", "RangeError", "'byteOffset' must be an integer."),
    ("buffer, -1", "RangeError", "'byteOffset' is out of range [0, 16)."),
    ("buffer, 16", "RangeError", "'byteOffset' is out of range [0, 16)."),
    ("buffer, 4, 0.5", "RangeError", "'byteLength' must be an integer."),
    ("buffer, 4, 0", "RangeError", "'byteLength' is out of range (0, 12]."),
    ("buffer, 4, 13", "RangeError", "'byteLength' is out of range (0, 12]."),
    ("buffer, 4, 12, 'x'", "TypeError", "'options' must be an object."),
]

METHOD_RULES = [
    ("s.loadParametersBuffer([1, 2])", "TypeError", "'buffer' must be a Uint8Array or Float32Array"),
    ("s.loadParametersBuffer(new Uint8Array(5))", "BufferSizeError", "Actual: 5 bytes"),
    ("s.loadParametersBuffer(new Uint8Array(8))", "BufferSizeError", "Expected: 1728 bytes, Actual: 8"),
    ("s.setLearningRate('fast')", "TypeError", "'learningRate' must be a number, got a string."),
    ("s.registerLinearLRScheduler(1, 5.5, 0.1)", "SessionError", "'totalStepCount' must be an integer"),
    ("s.updateParameter('fc1.bias', 7)", "TypeError", "'tensor' must be a Tensor, got a number."),
    ("s.addProperty('p', null)", "TypeError", "'value' must be a number, bigint or string, got null."),
    ("s.addProperty('p', true)", "TypeError", "got a boolean."),
    ("s.exportModelForInferencing('y')", "TypeError", "'outputNames' must be an array of strings"),
    ("s.artifacts()", "SessionError", "createFromModel"),
    ("s.runOptimizerStep(5)", "TypeError", "'options' must be an object."),
    ("s.runTrainStep(feeds, {signal: 5})", "TypeError", "'options.signal' must be an AbortSignal."),
    ("s.runTrainStep(feeds, {terminate: 1})", "TypeError", "'options.terminate' must be a boolean, got a number."),
    ("s.runTrainStep(feeds, {tag: 1})", "TypeError", "'options.tag' must be a string, got a number."),
    ("s.runTrainStep(feeds, {terminate: true})", "SessionError", "Exiting due to terminate flag being set to true."),
    ("s.runEvalStep(feeds, {terminate: true})", "SessionError", "Exiting due to terminate flag being set to true."),
    ("s.runOptimizerStep({terminate: true})", "SessionError", "Exiting due to terminate flag being set to true."),
]

FEED_RULES = [
    # changes to the feeds, texts in the FeedError
    (
        "{labels: new Tensor('int32', new Int32Array(8), [8])}",
        ["'labels'", "int32", "int64", "new Tensor('int64', BigInt64Array.from(values, BigInt), dims)"],
    ),
    ("{x: new Tensor('string', ['a'], [1])}", ["'x'", "string"]),
    ("{x: new Tensor('float16', new Uint16Array(80), [8, 10])}", ["'x'", "float16"]),
    ("{x: disposed}", ["'x'", "disposed"]),
    ("{x: detached}", ["'x'", "transferred"]),
]

OPEN = """
    window.s ??= await TrainingSession.create(golden("mlp"));
    const s = window.s;
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const out = s.trainingOutputNames[0];
    const circular = {}; circular.self = { circular };
    const files = golden("mlp");
    const buffer = new ArrayBuffer(16);
    const bytes = new Uint8Array(16);
"""


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        page.run(OPEN)
        yield page


def check(error: dict, name: str, *texts: str) -> None:
    assert error["name"] == name
    for text in texts:
        assert text in error["message"]
    # nothing but sentences: no bare numbers, no traces of Python
    assert "Traceback" not in error["message"]


@pytest.mark.parametrize("step", ["runTrainStep", "runEvalStep"])
@pytest.mark.parametrize(("arguments", "name", "text"), RUN_RULES)
def test_run_rules(js: JsPage, step: str, arguments: str, name: str, text: str) -> None:
    error = js.failure(f"{OPEN} await s.{step}({arguments});")
    check(error, name)
    assert error["message"] == text


@pytest.mark.parametrize(("arguments", "name", "text"), CREATE_RULES)
def test_create_rules(js: JsPage, arguments: str, name: str, text: str) -> None:
    check(js.failure(f"{OPEN} await TrainingSession.create({arguments});"), name, text)


@pytest.mark.parametrize(("arguments", "name", "text"), INFERENCE_RULES)
def test_inference_rules(js: JsPage, arguments: str, name: str, text: str) -> None:
    error = js.failure(f"{OPEN} await InferenceSession.create({arguments});")
    check(error, name)
    assert error["message"] == text


@pytest.mark.parametrize(("call", "name", "text"), METHOD_RULES)
def test_method_rules(js: JsPage, call: str, name: str, text: str) -> None:
    check(js.failure(f"{OPEN} await {call};"), name, text)


@pytest.mark.parametrize(("change", "texts"), FEED_RULES)
def test_feeds_that_do_not_fit(js: JsPage, change: str, texts: list[str]) -> None:
    before = js.run(f"{OPEN} return fromTensor(await s.getContiguousParameters());")
    error = js.failure(
        f"""{OPEN}
        const disposed = new Tensor("float32", new Float32Array(80), [8, 10]);
        disposed.dispose();
        const detached = new Tensor("float32", new Float32Array(80), [8, 10]);
        structuredClone(detached.data, {{ transfer: [detached.data.buffer] }});
        await s.runTrainStep({{ ...feeds, ...{change} }});"""
    )
    check(error, "FeedError", *texts)
    assert js.run(f"{OPEN} return fromTensor(await s.getContiguousParameters());") == before


def test_steps_are_rejections_not_throws(js: JsPage) -> None:
    assert js.run(f"{OPEN} const p = s.runTrainStep(null); p.catch(() => {{}}); return p instanceof Promise;")


def test_sessions_cannot_be_constructed(js: JsPage) -> None:
    check(js.failure("new TrainingSession();"), "TypeError", "TrainingSession.create")
    check(js.failure("new InferenceSession();"), "TypeError", "InferenceSession.create")


def test_env(js: JsPage) -> None:
    assert js.run("return env.logLevel") == "warning"
    assert js.run("env.logLevel = undefined; return env.logLevel") == "warning"
    error = js.failure("env.logLevel = 'loud';")
    assert (error["name"], error["message"]) == ("Error", "Unsupported logging level: loud")
    assert js.run("env.logLevel = 'error'; const l = env.logLevel; env.logLevel = 'warning'; return l") == "error"
    assert js.run("return env.wasm.simd") is True
    versions = js.run("return {...env.versions}")
    assert set(versions) >= {"common", "web"}
    check(js.failure("'use strict'; env.versions.web = '9';"), "TypeError")


@pytest.mark.parametrize(("level", "is_told"), [("warning", False), ("info", True)])
def test_the_log_level_counts_in_the_worker(
    browser: Browser, make_site: Callable[..., Site], level: str, is_told: bool
) -> None:
    with open_js_page(browser, make_site()) as js:
        said: list[str] = []
        js.page.on("console", lambda line: said.append(line.text))
        js.run(
            """env.logLevel = level;
            // A file in the place of the folder of the cache.
            await (await navigator.storage.getDirectory()).getFileHandle("trainweb", { create: true });
            await (await TrainingSession.create(golden("mlp"), { cache: true })).release();""",
            level=level,
        )
    assert any("no stored" in text for text in said) == is_told


def test_names(js: JsPage) -> None:
    names = js.run(f"{OPEN} return [s.trainingInputNames, s.trainingOutputNames, s.evalInputNames, s.evalOutputNames];")
    assert names == [["x", "labels"], [OUT], ["x", "labels"], [OUT]]


def test_without_an_eval_model(js: JsPage) -> None:
    """What calls say then is in the table of behaviours; here, that it is said before the feeds are looked at."""
    names, error = js.run(
        f"""{OPEN}
        const {{ trainModel, checkpointState }} = files;
        const bare = await TrainingSession.create({{ trainModel, checkpointState, evalModel: null }});
        const error = await failure(() => bare.runEvalStep());
        const names = [bare.evalInputNames, bare.evalOutputNames];
        await bare.release();
        return [names, error.message];"""
    )
    assert (names, error) == ([[], []], "This TrainingSession has no EvalModel loaded.")


def test_aborted_calls_are_refused(js: JsPage) -> None:
    error = js.failure(f"{OPEN} await s.runTrainStep(feeds, {{ signal: AbortSignal.abort() }});")
    assert error["name"] == "AbortError"


def test_aborted_calls_are_refused_at_once(js: JsPage) -> None:
    """Not once the step that is under way is answered."""
    order = js.run(
        f"""{OPEN}
        const order = [], options = {{ signal: AbortSignal.abort() }};
        const note = (what) => () => void order.push(what);
        const running = s.runTrainStep(feeds).then(note("ran"));
        const aborted = s.runTrainStep(feeds, options).catch((error) => order.push(error.name));
        await Promise.all([running, aborted]);
        await s.lazyResetGrad();
        return order;"""
    )
    assert order == ["AbortError", "ran"]


FRESH = f"await window.s?.release(); window.s = undefined; {OPEN}"
QUEUED = f"""
{FRESH}
const controller = new AbortController();
const signal = controller.signal;
labels.data[3] = 9n;
const wrong = await failure(() => s.runTrainStep(feeds, {{ tag: "wrong" }}));
labels.data[3] = 0n;
const first = s.runTrainStep(feeds);
const aborted = [
    s.runTrainStep(feeds, {{ signal, tag: "second" }}),
    s.runOptimizerStep({{ signal }}),
    s.runEvalStep(feeds, {{ signal }}),
];
const last = s.runTrainStep(feeds);
if (ABORT) controller.abort();
const outcomes = await Promise.all(aborted.map((call) => call.then(() => "ran", (e) => `${{e.name}} ${{e.tag}}`)));
await first;
await last;
await s.runOptimizerStep();
const {{ data }} = await s.getContiguousParameters();
return {{ tag: wrong.tag, outcomes, sum: Array.from(data).reduce((a, b) => a + b) }};
"""


def test_steps_that_wait_never_start_once_they_are_aborted(js: JsPage) -> None:
    aborted = js.run(QUEUED.replace("ABORT", "true"))
    assert aborted["outcomes"] == ["AbortError undefined"] * 3 and aborted["tag"] == "wrong"
    ran = js.run(QUEUED.replace("ABORT", "false"))
    assert ran["outcomes"] == ["ran"] * 3
    plain = js.run(
        f"""{FRESH} labels.data[3] = 0n; await s.runTrainStep(feeds);
        await s.runTrainStep(feeds); await s.runOptimizerStep();
        const {{ data }} = await s.getContiguousParameters();
        return Array.from(data).reduce((a, b) => a + b);"""
    )
    assert aborted["sum"] == plain != ran["sum"]


def test_feeds_in_shared_memory_outlast_a_workspace_that_grows(browser: Browser, isolated_site: Site) -> None:
    """The page writes feeds where they lay before. A step that adds to gradients has another plan and more room.

    The kernels' memory grows for it; where little of that is left over, the plan lies where the feeds were. Products
    make the plan long, and one of the tables makes the rest short.
    """
    rows, width, products = 1000, 16, 150
    ids = np.arange(rows) * 17
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["read"], "read"),
        helper.make_node("Mul", ["read", "x"], ["product"], "product"),
        helper.make_node("Tanh", ["product"], ["y"], "tanh"),
        helper.make_node("ReduceMean", ["y"], ["mean"], "mean", keepdims=0),
        helper.make_node("Slice", ["x", "start", "end"], ["s0"], "cut"),
        *(helper.make_node("MatMul", [f"s{k}", "turn"], [f"s{k + 1}"], f"turn{k}") for k in range(products)),
        helper.make_node("ReduceSum", [f"s{products}"], ["sum"], "sum", keepdims=0),
        helper.make_node("Add", ["mean", "sum"], ["loss"], "loss"),
    ]
    others = {"start": np.array([0, 0]), "end": np.array([2, 2]), "turn": np.array([[0, 1], [1, 0]], np.float32)}
    x = np.sin(np.arange(rows * width) + np.arange(3)[:, None]).reshape(3, rows, width)
    with open_js_page(browser, isolated_site) as page:
        for entries in range(40_000, 40_000 + 6 * 111, 111):
            table = np.cos(np.arange(entries * width)).astype(np.float32).reshape(entries, width)
            inputs = {"ids": [rows], "x": [rows, width]}
            types = {"ids": TensorProto.INT64}
            model = make_model(nodes, inputs, {"loss": []}, others | {"table": table}, types=types)
            found = page.run(
                f"""
                const bytes = Uint8Array.from(atob(model), (c) => c.charCodeAt(0));
                const config = {{ loss: null, requiresGrad: ["table"], optimizer: "SGD" }};
                const s = await TrainingSession.createFromModel(bytes, config);
                const places = BigInt64Array.from({{ length: {rows} }}, (_, i) => BigInt(17 * i));
                const ids = new Tensor("int64", places, [{rows}]);
                const found = [];
                for (let k = 0; k < 3; k++) {{
                  const values = Float32Array.from({{ length: {rows * width} }}, (_, i) => Math.sin(i + k));
                  if (k < 2) await s.lazyResetGrad();
                  const x = new Tensor("float32", values, [{rows}, {width}]);
                  found.push((await s.runTrainStep({{ ids, x }})).loss.data[0]);
                }}
                await s.release();
                return found;""",
                model=b64encode(model.SerializeToString()).decode(),
            )
            expected = np.tanh(x * table[ids]).mean((1, 2)) + x[:, :2, :2].sum((1, 2))
            assert found == pytest.approx(expected.tolist(), rel=1e-5), entries
