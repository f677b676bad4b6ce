"""Sessions on the GPU from bundles, caches and artifacts, and of models with adapters and large constants."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Browser

from .bundles import MLP, compile_bundle, python_requests
from .js_session import JsPage, open_js_page
from .server import Site
from .webgpu import OPEN, close


def test_a_bundle_trains_on_the_gpu_without_python(gpu_browser: Browser, plain_site: Site) -> None:
    plain_site.add("/gpu.bundle", compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu")))
    with open_js_page(gpu_browser, plain_site) as page:
        plain_site.clear_log()
        on_gpu, on_kernels, devices = page.run(f"""{OPEN}
            const [losses, devices] = [[], []];
            for (const options of [gpu, {{}}]) {{
              const s = await TrainingSession.create({{ bundle: "/gpu.bundle" }}, options);
              const {{ epochs }} = await s.fit(rows(40), {{ epochs: 2, batchSize: 8, accumulate: 2, clipGradNorm: 1 }});
              losses.push([...(await train(s, 3)), ...epochs.map(({{ loss }}) => loss)]);
              devices.push(s.device);
            }}
            return [...losses, devices];
        """)
        assert python_requests(plain_site) == []
    close(on_gpu, on_kernels)
    assert [device["kind"] for device in devices] == ["webgpu", "wasm"]
    assert all(plan["dispatches"] > 0 for plan in devices[0]["plans"] if plan["device"] == "webgpu")


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


def wide_model() -> bytes:
    """A network with a constant of 1.3 MB in its middle."""
    numbers = np.random.default_rng(3)
    constant = numpy_helper.from_array(numbers.standard_normal((600, 550), np.float32) / 25, "fixed")
    weights = [(10, 600, "first"), (550, 3, "last")]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h0"]),
        helper.make_node("Relu", ["h0"], ["h1"]),
        helper.make_node("Constant", [], ["fixed"], value=constant),
        helper.make_node("MatMul", ["h1", "fixed"], ["h2"]),
        helper.make_node("MatMul", ["h2", "last"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 10])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(numbers.standard_normal((n, m), np.float32) / 5, name) for n, m, name in weights],
    )
    opset = helper.make_opsetid("", 20)
    serialized: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()
    return serialized


def test_adapters_and_large_constants_train_on_the_gpu(gpu: JsPage) -> None:
    gpu.site.add("/wide.onnx", wide_model())
    on_gpu, on_kernels, memory, adapters = gpu.run(f"""{OPEN}
        const [losses, adapters, memory] = [[], [], []];
        for (const options of [gpu, {{}}]) {{
          const config = {{ loss: "CrossEntropyLoss", optimizer: "AdamW", lora: {{ rank: 2 }} }};
          const s = await TrainingSession.createFromModel("/wide.onnx", config, options);
          await s.setLearningRate(0.01);
          const {{ epochs }} = await s.fit(rows(16), {{ epochs: 3, batchSize: 4, accumulate: 2, shuffle: false }});
          losses.push([...(await train(s, 3)), ...epochs.map(({{ loss }}) => loss)]);
          memory.push((await s.memory()).gpu);
          const {{ weights }} = await s.adapter();
          const t = await TrainingSession.createFromModel("/wide.onnx", config, options);
          await t.loadAdapter({{ weights, config: (await s.adapter()).config }});
          adapters.push(String(await parameters(t)) === String(await parameters(s)));
        }}
        return [...losses, memory, adapters];
    """)
    close(on_gpu, on_kernels)
    assert on_gpu[-1] < on_gpu[-3] and adapters == [True, True]
    mine, none = memory
    # Plans that overwrite and plans that add share it.
    assert mine["largeConstants"] < 2 * 600 * 550 * 4 and mine["parameters"] > 0 and mine["arena"] > 0
    assert none == {}
