"""Sessions on the GPU from bundles, caches and artifacts, and of models with adapters and large constants."""

import json
import time
from pathlib import Path

from playwright.sync_api import Browser, Route
from tests.python.test_large_constants import large_bytes, model

from .bundles import MLP, compile_bundle, python_requests
from .js_session import JsPage, open_js_page
from .server import Site
from .test_node import node
from .webgpu import OPEN, close

__all__ = ["model"]  # the fixture
HELD = 30
"""How many tenths of a second a file is held back for the GPU's script."""


def test_the_gpu_is_opened_while_files_are_on_their_way(gpu_browser: Browser, plain_site: Site) -> None:
    plain_site.add("/late.bundle", compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu")))
    asked: dict[str, bool] = {}

    def hold(route: Route) -> None:
        for _ in range(HELD):
            if plain_site.requests("/dist/webgpu.js"):
                break
            time.sleep(0.1)
        asked[route.request.url.rpartition("?")[2]] = bool(plain_site.requests("/dist/webgpu.js"))
        route.continue_()

    with open_js_page(gpu_browser, plain_site) as page:
        page.page.route("**/late.bundle?*", hold)
        plain_site.clear_log()
        losses = page.run(f"""{OPEN}
            const losses = [];
            for (const [device, options] of [["wasm", {{}}], ["webgpu", gpu]]) {{
              const s = await TrainingSession.create({{ bundle: `/late.bundle?${{device}}` }}, options);
              losses.push(await train(s, 2));
            }}
            return losses;
        """)
    close(*losses)
    assert asked == {"wasm": False, "webgpu": True}


def test_a_cached_session_trains_on_the_gpu_without_python(gpu_browser: Browser, plain_site: Site) -> None:
    body = f"""{OPEN}
        const s = await open({{ ...gpu, cache: true }});
        const losses = await train(s, 3);
        await s.release();
        await env.release();
        return losses;
    """
    with open_js_page(gpu_browser, plain_site) as page:
        first = page.run(body)
        assert python_requests(plain_site)
        plain_site.clear_log()
        assert JsPage(page.page, plain_site).run(body) == first
        assert python_requests(plain_site) == []


def test_artifacts_train_on_the_gpu(gpu: JsPage) -> None:
    on_gpu, on_kernels, text, profile = gpu.run(f"""{OPEN}
        const at = (name) => `/golden/mlp/${{name}}`;
        const files = {{ trainModel: at("training_model.onnx"), evalModel: at("eval_model.onnx"),
          optimizerModel: at("optimizer_model.onnx"), checkpointState: at("checkpoint") }};
        const losses = [];
        for (const options of [gpu, {{}}]) {{
          const s = await TrainingSession.create(files, options);
          losses.push([...(await train(s, 3)), (await s.evaluate(rows(16), {{ batchSize: 8 }})).loss]);
          if (options.device === "webgpu") {{
            // A profile adds to the gradients, as this step and the next do.
            await s.runTrainStep(rows(8));
            window.text = await s.explain(rows(8));
            window.profile = (await s.profile(rows(8), {{ runs: 2 }})).entries;
          }}
        }}
        return [...losses, window.text, window.profile];
    """)
    close(on_gpu, on_kernels)
    *_, dispatches = text.split("dispatches on the GPU\n")
    lines = dispatches.splitlines()
    assert lines[0].startswith("gemm") and "(1, 1, 1)" in lines[0]
    assert [entry["text"] for entry in profile] == lines
    assert {"gemm"} < {entry["kernel"] for entry in profile}
    assert all(entry["milliseconds"] >= 0 for entry in profile) and sum(entry["milliseconds"] for entry in profile) > 0


def test_a_profile_without_timestamps_has_times_of_submits(gpu: JsPage) -> None:
    start = "window.s = await open(); await train(s, 1); return (await s.profile(rows(8), { runs: 1 })).ofSubmits;"
    assert gpu.run(OPEN + start) is False
    gpu.worker.evaluate("() => { GPUSupportedFeatures.prototype.has = () => false; }")
    entries, losses, *told = gpu.run(f"""{OPEN}
        const profile = await s.profile(rows(8), {{ runs: 2 }});
        await s.lazyResetGrad();
        return [profile.entries, await train(s, 2), String(profile).split("\\n")[0].split(/ +/), profile.ofSubmits];
    """)
    gpu.worker.evaluate("() => { delete GPUSupportedFeatures.prototype.has; }")
    times = [entry["milliseconds"] for entry in entries]
    assert min(times) >= 0 and sum(times) > 0 and len(entries) > 10 and len(losses) == 2
    assert told == [["kernel", "ms/submit", "share"], True]


def test_adapters_train_on_large_quantized_weights(gpu: JsPage, model: bytes) -> None:
    gpu.site.add("/quantized.onnx", model)
    on_gpu, on_kernels, memory, adapters = gpu.run(f"""{OPEN}
        const token = (k) => (_, i) => BigInt((i * 41 + 7 * k) % 4096);
        const ids = (k) => new Tensor("int64", BigInt64Array.from({{ length: 6 }}, token(k)), [1, 6]);
        const [losses, adapters, memory] = [[], [], []];
        for (const options of [gpu, {{}}]) {{
          const config = {{ loss: "CrossEntropyLoss", optimizer: "AdamW", lora: {{ rank: 2, seed: 3 }} }};
          const make = () => TrainingSession.createFromModel("/quantized.onnx", config, options);
          const s = await make();
          await s.setLearningRate(0.01);
          const own = [];
          // The second of two steps adds to the gradients, by a plan of its own.
          for (const k of [0, 1, 2, 3]) {{
            const results = await s.runTrainStep({{ input_ids: ids(k), labels: ids(k + 1) }});
            own.push(results[s.trainingOutputNames[0]].data[0]);
            if (k % 2 === 1) {{
              await s.runOptimizerStep();
              await s.lazyResetGrad();
            }}
          }}
          losses.push(own);
          memory.push((await s.memory()).gpu);
          const t = await make();
          await t.loadAdapter(await s.adapter());
          adapters.push(String(await parameters(t)) === String(await parameters(s)));
          await Promise.all([s.release(), t.release()]);
        }}
        return [losses[0], losses[1], memory, adapters];
    """)
    close(on_gpu, on_kernels)
    assert on_gpu[2:] != on_gpu[:2] and adapters == [True, True]
    mine, none = memory
    # Plans that overwrite and plans that add share it.
    assert large_bytes(model) <= mine["large_constants"] < 1.5 * large_bytes(model), mine
    assert mine["parameters"] > 0 and mine["arena"] > 0 and none == {}


NODE = """
import { env, TrainingSession } from "trainweb";
const open = () => TrainingSession.createFromModel("tests/golden/mlp/base.onnx",
  { loss: "CrossEntropyLoss", optimizer: "AdamW" }, { device: "webgpu" });
const ends = [];
for (const gpu of [GPU, 3]) {
  env.webgpu.gpu = gpu;
  await open().catch(({ name, message }) => ends.push([name, message]));
}
console.log(JSON.stringify(ends));
"""


def test_node_takes_the_gpu_of_a_module(tmp_path: Path) -> None:
    module = tmp_path / "gpu.mjs"
    module.write_text("""
        // The module sees Node, not the worker that the thread becomes.
        const isNode = typeof process.platform === "string";
        export const create = (flags) => ({
          requestAdapter: async () => ({
            info: { vendor: "stand-in" },
            limits: {},
            requestDevice: async () => { throw new Error(`asked with ${flags.length} flags, ${isNode}`); },
          }),
        });
    """)
    no_device, no_module = json.loads(node(NODE.replace("GPU", json.dumps(module.as_uri()))))
    assert no_device[0] == "DeviceError" and "asked with 0 flags, true." in no_device[1]
    assert no_module == ["TypeError", "env.webgpu.gpu must be the URL of a module, got number."]


def test_a_page_refuses_the_module_of_a_gpu(gpu: JsPage) -> None:
    gpu.run("env.webgpu.gpu = 'webgpu';")
    error = gpu.failure(f"{OPEN} await open();")
    gpu.run("delete env.webgpu.gpu;")
    assert error["name"] == "TypeError" and error["message"] == "env.webgpu.gpu is for Node: a page has navigator.gpu."


def test_shaders_are_reported_while_they_are_compiled(gpu: JsPage) -> None:
    reports, device = gpu.run(f"""{OPEN}
        const reports = [];
        const onProgress = ({{ stage, loaded, total, percent }}) => {{
          if (stage === "shaders") reports.push([loaded, total, percent]);
        }};
        const other = await open({{ onProgress }});
        const s = await open({{ ...gpu, onProgress }});
        await train(s, 1);
        const device = s.device;
        await Promise.all([train(other, 1), s.release()]);
        await train(await open(), 1);
        return [reports, device];
    """)
    pipelines = {plan["step"]: plan["pipelines"] for plan in device["plans"]}
    expected = [[k, n, 100 * k // n] for n in (pipelines["train"], pipelines["optimizer"]) for k in range(1, n + 1)]
    assert reports == expected
