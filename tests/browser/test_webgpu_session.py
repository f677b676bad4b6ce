"""Sessions that train on the GPU (`device: "webgpu"`), on Chromium's software adapter, against the kernels."""

from itertools import chain

import numpy as np
import onnx
import pytest
from playwright.sync_api import Browser
from tests.webgpu.networks import SMALL, SPECIAL, networks

from .conftest import CHROMIUM_FLAGS
from .js_session import JsPage, open_js_page, to_json
from .server import Site
from .webgpu import OPEN, SWIFTSHADER, close, count, counted


def test_losses_and_parameters_are_those_of_the_kernels(gpu: JsPage) -> None:
    losses, parameters, device = gpu.run(f"""{OPEN}
        const sessions = [await open(), await open({{}})];
        const losses = [];
        for (const s of sessions) {{
          await s.setLearningRate(0.01);
          losses.push(await train(s, 20));
        }}
        return [losses, await Promise.all(sessions.map(parameters)), sessions.map(({{ device }}) => device)];
    """)
    assert len(losses[0]) == 20 and losses[0][-1] < losses[0][0]
    close(losses[0], losses[1])
    close(parameters[0], parameters[1], 1e-3)
    assert device[0]["kind"] == "webgpu" and device[0]["adapter"]["isFallback"]
    plans = {plan.pop("step"): plan for plan in device[0]["plans"]}
    assert plans["train"]["device"] == "webgpu" and plans["train"]["why"] == ""
    assert plans["train"]["dispatches"] > plans["train"]["pipelines"] > plans["optimizer"]["dispatches"] > 0
    assert plans["clip"] == {"device": "webgpu", "dispatches": None, "pipelines": None, "why": ""}
    assert plans["eval"]["device"] == "webgpu" and plans["generate"]["why"] == "such steps run on the CPU only"
    assert device[1]["kind"] == "wasm" and device[1]["adapter"] is None


REPEATED = {"C": SMALL["C"], "E": SMALL["E"], "dropout": SPECIAL["dropout"]}


def test_trainings_are_those_of_the_kernels_and_have_the_same_bytes_in_a_fresh_browser(
    gpu: JsPage, browser: Browser, chromium_path: str, plain_site: Site
) -> None:
    """Convolutions, a transformer, and random numbers."""
    feeds = {}
    for name, make in REPEATED.items():
        net = make()
        plain_site.add(f"/repeated/{name}.onnx", net.model().SerializeToString())
        xs, ys = networks.batches(net, 1, 1)
        x = xs[0].astype(np.int64) if xs[0].dtype.kind == "i" else xs[0]
        feeds[name] = [to_json(x), to_json(ys[0].astype(np.int64))]
    body = """
        const ends = {};
        env.seed = 5;
        for (const [name, [x, labels]] of Object.entries(feeds)) {
          const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
          const s = await TrainingSession.createFromModel(`/repeated/${name}.onnx`, config, { device });
          const batch = () => ({ x: toTensor(x), labels: toTensor(labels) });
          const losses = Array.from(await s.runTrainSteps([batch(), batch(), batch(), batch()]));
          ends[name] = [losses, await hash((await s.getContiguousParameters(true)).data)];
          await s.release();
        }
        env.seed = undefined;
        return ends;
    """
    kernels, first, second = (gpu.run(body, feeds=feeds, device=device) for device in ("wasm", "webgpu", "webgpu"))
    other = browser.browser_type.launch(executable_path=chromium_path, args=[*CHROMIUM_FLAGS, *SWIFTSHADER])
    try:
        with open_js_page(other, plain_site) as page:
            fresh = page.run(body, feeds=feeds, device="webgpu")
    finally:
        other.close()
    assert first == second == fresh
    assert all(len({*losses}) == 4 for losses, _ in first.values())
    for name, (losses, _) in first.items():
        close(losses, kernels[name][0])


def test_fits_evaluate_and_keep_checkpoints_on_either_side(gpu: JsPage) -> None:
    found = gpu.run(f"""{OPEN}
        const store = new CheckpointStore("gpu");
        const run = async (options, other) => {{
          const s = await open(options, {{ ema: {{ decay: 0.9 }} }});
          await s.setLearningRate(0.01);
          const history = await s.fit(rows(50), {{
            epochs: 2, batchSize: 8, accumulate: 2, clipGradNorm: 1, validationData: rows(20), metrics: ["accuracy"],
          }});
          const losses = history.epochs.map(({{ loss, validation }}) => [loss, validation.loss, validation.accuracy]);
          const logits = Array.from(Object.values(await s.predict({{ x: rows(6).x }}))[0].data);
          const averaged = (await s.evaluate(rows(20), {{ batchSize: 8, ema: true }})).loss;
          const norms = await s.gradientNorms();
          await store.save(s, "kept");
          const t = await open(other, {{ ema: {{ decay: 0.9 }} }});
          await store.load(t, "kept");
          const more = [await train(s, 3), await train(t, 3)];
          const saved = await parameters(t);
          await s.loadParametersBuffer(new Float32Array(saved));
          const same = String(await parameters(s)) === String(saved);
          return {{ losses, logits, averaged, norms, more, same, saved }};
        }};
        return [await run(gpu, {{}}), await run({{}}, gpu)];
    """)
    a, b = found
    close([*chain(*a["losses"])], [*chain(*b["losses"])])
    close(a["averaged"], b["averaged"])
    assert len(a["logits"]) == 24
    close(a["logits"], b["logits"], 1e-3)
    close(list(a["norms"].values()), list(b["norms"].values()), 1e-2)
    for one in found:
        close(one["more"][0], one["more"][1])
        assert one["same"]
    close(a["saved"], b["saved"], 1e-2)


BUDGETS = {
    "A": (networks.MODELS["A"], 2),
    "C": (networks.MODELS["C"], 2),
    "E": (lambda: networks.gpt("E", 5, batch=1), 1),
    "LoRA of 6": (lambda: networks.gpt("E", 5, batch=1, layers=6), 1),
}
"""Networks of the benchmarks, and the writes of a step: pictures take one, and all else one."""


@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_stays_within_its_budget(gpu: JsPage, name: str) -> None:
    make, writes = BUDGETS[name]
    net = make()
    gpu.site.add("/budget.onnx", net.model().SerializeToString())
    (x,), (labels,) = (
        array.astype(np.int64 if array.dtype.kind == "i" else np.float32) for array in networks.batches(net, 1, 1)
    )
    feeds = {"x": to_json(x), "labels": to_json(labels)}
    gpu.run(f"{OPEN} await open();")
    count(gpu)
    body = """
        const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", ...(isLora && { lora: { rank: 8 } }) };
        const open = (device) => TrainingSession.createFromModel("/budget.onnx", config, { device });
        window.batch = () => ({ x: toTensor(feeds.x), labels: toTensor(feeds.labels) });
        const other = await open("wasm");
        window.kept = await open("webgpu");
        for (const one of [kept, other]) {
          await one.runTrainStep(batch());
          await one.runOptimizerStep();
          await one.runTrainSteps([batch()]);
        }
        return [await other.memory(), await kept.explain(batch())];
    """
    memory, text = gpu.run(body, feeds=feeds, isLora=name.startswith("LoRA"))
    if name == "A":
        # A tile has 4 x 256 numbers, or 64 x 64.
        assert "\ngemm (32, 1, 1) or gemm (shared tiles) (8, 1, 1)  ; Gemm node 'Gemm_2'\n" in text
    segments = sum(memory[part] for part in ("parameters", "gradients", "moments", "arena"))
    assert gpu.worker.evaluate("gpuProbe.peakBytes") <= 1.2 * (segments + x.nbytes + labels.nbytes), memory
    once = {"submit": 1, "createCommandEncoder": 1, "beginComputePass": 1}
    count(gpu)
    gpu.run("await kept.runTrainStep(batch());")
    calls = counted(gpu)
    train = calls.pop("dispatchWorkgroups")
    assert calls == {**once, "writeBuffer": writes, "mapAsync": 1}
    count(gpu)
    gpu.run("await kept.runOptimizerStep();")
    calls = counted(gpu)
    update = calls.pop("dispatchWorkgroups")
    assert calls == {**once, "writeBuffer": 1}
    count(gpu)
    gpu.run("await kept.runTrainSteps([batch()]);")
    # The guard is one more dispatch. The page of losses is read once. Pictures go up after what begins the page.
    submits = dict.fromkeys(("submit", "createCommandEncoder"), writes + 1)
    passes = {"beginComputePass": 3, "mapAsync": 1, "writeBuffer": writes}
    assert counted(gpu) == {**submits, **passes, "dispatchWorkgroups": train + update + 1}
    plans = {plan["step"]: plan["dispatches"] for plan in gpu.run("return kept.device.plans;")}
    assert (plans["train"], plans["optimizer"]) == (train, update)
    gpu.run("await kept.release();")


FITS = {
    "plain": ("{}", 0),
    "clipped": ("{ clipGradNorm: 1, accumulate: 2 }", 0),
    "undone": ("{ onNaN: 'skip', clipGradNorm: 1, accumulate: 2 }", 4),
    "restored": ("{ onNaN: 'restore' }", 4),
}
"""Options of a fit, and the segments that it copies."""


@pytest.mark.parametrize("options", FITS)
def test_a_fit_stays_within_its_budget(gpu: JsPage, options: str) -> None:
    """The first fit of each kind makes what stays. Steps make nothing."""
    settings, copies = FITS[options]
    body = f"{OPEN} await s.fit(rows(512), {{ epochs: 4, batchSize: 8, ...{settings} }});"
    gpu.run(f"{OPEN} window.s = window.s ?? await open();")
    gpu.worker.evaluate("() => { performance.now = () => 0; }")
    try:
        gpu.run(body)
        count(gpu)
        gpu.run(body)
    finally:
        gpu.worker.evaluate("() => { delete performance.now; }")
    counts, steps = counted(gpu), 4 * 64
    reads = counts.pop("mapAsync")
    assert reads <= steps / 8
    assert counts.pop("submit") <= steps + 2 * reads
    # Feeds, and what the heads and the guard need.
    assert counts.pop("writeBuffer") <= steps + reads
    for call in ("dispatchWorkgroups", "createCommandEncoder", "beginComputePass"):
        del counts[call]
    assert counts.pop("createBuffer", 0) == counts.pop("createBindGroup", 0) == copies
    assert counts == {}


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [
        ("open({ device: 'gpu' })", "TypeError", '\'device\' must be "wasm", "webgpu" or "auto", got '),
        ("open({ ...gpu, reproducible: true })", "UnsupportedError", "reproducible does not work"),
        ("open({ ...gpu, memoryBudget: 1 })", "UnsupportedError", "memoryBudget does not work"),
        ("open({ ...gpu, debug: { checkNumerics: true } })", "UnsupportedError", "debug.checkNumerics does not work"),
        ("InferenceSession.create(url, gpu)", "UnsupportedError", "an InferenceSession does not work"),
        ("(await open(gpu, { optimizer: 'Lamb' })).runTrainSteps([rows(8)])", "UnsupportedError", "no GPU kernel"),
        (
            "(await open()).runTrainStep(wide)",
            "FeedError",
            "'labels' has 1099511627776 at position 1; a GPU takes",
        ),
    ],
)
def test_refusals_name_what_does_not_work(gpu: JsPage, call: str, name: str, text: str) -> None:
    error = gpu.failure(f"{OPEN} await {call};")
    assert error["name"] == name and text in error["message"], error


def test_sessions_share_a_gpu_and_take_other_calls(gpu: JsPage) -> None:
    found = gpu.run(f"""{OPEN}
        const results = [];
        for (const options of [gpu, {{}}]) {{
          const sessions = [await open(options), await open(options)];
          const [a, b] = sessions;
          const [first, second] = await Promise.all([train(a, 4), train(b, 4, 9)]);
          const steps = Array.from(await a.runTrainSteps([rows(4), rows(64), rows(8)]));
          const adding = [];
          for (let k = 0; k < 3; k++) {{
            adding.push((await a.runTrainStep(rows(8, k)))[a.trainingOutputNames[0]].data[0]);
          }}
          const gradient = Array.from((await a.getGradient("fc1.weight")).data).slice(0, 5);
          const moments = Object.keys(await a.getMoments("fc1.weight"));
          const dead = (await a.deadUnits([rows(8)])).map(({{ units, count }}) => units ?? count);
          const weight = await a.getParameter("fc1.weight");
          await b.updateParameter("fc1.weight", weight);
          const moved = String((await b.getParameter("fc1.weight")).data) === String(weight.data);
          const checkpoint = await CheckpointState.load(await a.saveCheckpoint({{ includeOptimizerState: true }}));
          const last = [await train(b, 2), await a.getLearningRate(), await a.stepCount()];
          await a.release();
          last.push(await train(b, 1));
          const numbers = [first, second, steps, adding, gradient].flat();
          results.push([numbers, moments, dead, moved, last.flat(), (await b.memory()).parameters]);
        }}
        return results;
    """)
    on_gpu, on_kernels = found
    close(on_gpu[0], on_kernels[0], 1e-3)
    assert on_gpu[1:4] == on_kernels[1:4] and on_gpu[3]
    close(on_gpu[4], on_kernels[4], 1e-3)


def test_a_fit_stops_and_a_step_that_is_stopped_changes_nothing(gpu: JsPage) -> None:
    ended, counts, aborted = gpu.run(f"""{OPEN}
        const s = await open();
        await train(s, 1);
        const controller = new AbortController();
        const callbacks = ({{ type }}) => {{ if (type === "epoch") controller.abort(); }};
        const options = {{ epochs: 500, batchSize: 8, signal: controller.signal, callbacks }};
        const ended = await s.fit(rows(64), options).then(() => "ran", ({{ name }}) => name);
        const before = await s.stepCount();
        const end = new AbortController();
        end.abort();
        const aborted = await s.runTrainStep(rows(8), {{ signal: end.signal }}).then(() => "ran", ({{ name }}) => name);
        await train(s, 1);
        return [ended, [before, await s.stepCount()], aborted];
    """)
    assert ended == "AbortError" and 1 < counts[0] < 4000 and counts[1] == counts[0] + 1
    assert aborted != "ran"


SUM = "k = Add (i, i) f = Cast<to=1> (k)"
WIDE = "b = Greater (a, zero) k = Where (b, wide, i) f = Cast<to=1> (k)"
INTEGERS = {
    "sums of feeds": (1, SUM, ""),
    "sums among numbers of the GPU": (8, SUM, "sums of int64"),
    "constants": (8, WIDE, "constants of int64 beyond 32 bits"),
}
"""Columns of the integers, what is made of them, and why the GPU cannot."""


@pytest.mark.parametrize("case", INTEGERS)
def test_integers_beyond_32_bits_are_right_or_refused(gpu: JsPage, case: str) -> None:
    columns, body, reason = INTEGERS[case]
    types = f"(float[8,10] x, int64[8,{columns}] i) => (float[8,4] logits)"
    body = f"a = MatMul (x, w1) {body} s = Mul (f, tiny) z = Add (a, s) logits = MatMul (z, w2)"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {types} {{ {body} }}')
    rng = np.random.default_rng(3)
    tensors = {"w1": rng.normal(size=(10, 8)), "w2": rng.normal(size=(8, 4)), "tiny": 1e-9, "zero": 0.0}
    named = {name: np.float32(value) for name, value in tensors.items()} | {"wide": np.arange(8) << 33}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in named.items())
    gpu.site.add("/integers.onnx", model.SerializeToString())
    train = f"""{OPEN}
        const make = {{ loss: "CrossEntropyLoss", optimizer: "SGD" }};
        const s = await TrainingSession.createFromModel("/integers.onnx", make, options);
        const i = new Tensor("int64", new BigInt64Array({8 * columns}).fill(2_000_000_000n), [8, {columns}]);
        return Array.from(await s.runTrainSteps([{{ ...rows(8), i }}, {{ ...rows(8), i }}]));
    """
    if reason:
        error = gpu.failure(train, options={"device": "webgpu"})
        assert error["name"] == "UnsupportedError" and f" needs {reason}, for which" in error["message"], error
    else:
        close(*(gpu.run(train, options={"device": device}) for device in ("webgpu", "wasm")))
