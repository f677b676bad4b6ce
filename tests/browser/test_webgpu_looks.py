"""Steps that only look, such as evaluation with metrics, on the GPU: their results are those of the kernels."""

import numpy as np
import onnx
import pytest
from playwright.sync_api import Browser

from .bundles import MLP, compile_bundle, header_of, python_requests, with_header
from .js_session import JsPage, open_js_page
from .server import ROOT, Site
from .webgpu import OPEN, close, count, counted

METRICS = """
    const topK = { type: "topK", k: 2 };
    const metrics = ["accuracy", topK, { type: "f1", average: "none" }, "confusionMatrix", "auc", "perplexity"];
    const planOf = ({ device }, name) => device.plans.find(({ step }) => step === name);
"""
FIT = f"""{OPEN} {METRICS}
    const fit = async (options, more = {{}}) => {{
      const s = await open(options, more.make);
      const history = await s.fit(rows(40), {{ epochs: 3, batchSize: 8, validationData: rows(21, 5), metrics }});
      const values = history.epochs.map(({{ loss, validationLoss, metrics }}) => [loss, validationLoss, metrics]);
      const after = await s.evaluate(rows(13, 2), {{ metrics, batchSize: 5 }});
      return [JSON.parse(JSON.stringify([values, after])), s];
    }};
"""


@pytest.mark.parametrize("make", ["{}", "{ ema: { decay: 0.9 } }"])
def test_validation_of_a_fit_is_that_of_the_kernels(gpu: JsPage, make: str) -> None:
    found, plans, parameters = gpu.run(f"""{FIT}
        const found = await Promise.all([gpu, {{}}].map((options) => fit(options, {{ make: {make} }})));
        const sessions = found.map(([, s]) => s);
        const ends = await Promise.all(sessions.map(parameters));
        return [found.map(([values]) => values), planOf(sessions[0], "eval"), ends];
    """)
    close_values(*found)
    assert plans["device"] == "webgpu" and plans["dispatches"] > plans["pipelines"] > 0 and plans["why"] == ""
    close(*parameters)


def close_values(on_gpu: object, on_kernels: object) -> None:
    """The same numbers in the same places."""
    if isinstance(on_kernels, dict):
        assert isinstance(on_gpu, dict) and [*on_gpu] == [*on_kernels]
        on_gpu, on_kernels = [*on_gpu.values()], [*on_kernels.values()]
    if isinstance(on_kernels, list):
        assert isinstance(on_gpu, list) and len(on_gpu) == len(on_kernels)
        for a, b in zip(on_gpu, on_kernels, strict=True):
            close_values(a, b)
    elif on_kernels is None or isinstance(on_kernels, int):
        assert on_gpu == on_kernels
    else:
        close(on_gpu, on_kernels, 1e-5)


def test_looking_leaves_parameters_on_the_gpu(gpu: JsPage) -> None:
    """An evaluation reads once for each batch, and parameters that came down before are still there."""
    gpu.run(f"""{OPEN} {METRICS}
        globalThis.s = await open();
        await train(s, 2);
        await s.evaluate(rows(8), {{ metrics }});
        globalThis.before = await parameters(s);
    """)
    count(gpu)
    found = gpu.run(f"""{OPEN} {METRICS}
        await s.evaluate(rows(8), {{ metrics }});
        return [before, await parameters(s)];
    """)
    assert found[0] == found[1]
    assert counted(gpu)["mapAsync"] == 1
    dims, plan = gpu.run(f"""{OPEN} {METRICS}
        const outputs = await s.predict({{ x: rows(8).x }}, {{ outputs: ["logits"] }});
        return [outputs.logits.dims, planOf(s, "predict")];
    """)
    assert dims == [8, 4] and plan["device"] == "webgpu" and plan["dispatches"] > 0


def with_late_product() -> bytes:
    """The perceptron with a product of the two largest of many scores: the GPU has no kernel for these."""
    model = onnx.load(ROOT / "tests" / "golden" / "mlp" / "base.onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    (logits,) = (value.name for value in model.graph.output)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 4), np.float32), "w"))
    wide = np.random.default_rng(3).normal(size=(4, 2000)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(wide, "wide"))
    model.graph.node.append(helper.make_node("MatMul", [logits, "wide"], ["many"], "many"))
    model.graph.node.append(helper.make_node("TopK", ["many", "two"], ["best", "places"], "best"))
    model.graph.node.append(helper.make_node("MatMul", ["best", "w"], ["late"], "late"))
    model.graph.output.append(helper.make_tensor_value_info("late", onnx.TensorProto.FLOAT, None))
    serialized: bytes = model.SerializeToString()
    return serialized


def test_a_step_that_the_gpu_cannot_run_runs_on_the_kernels(gpu: JsPage) -> None:
    gpu.site.add("/late.onnx", with_late_product())
    on_gpu, (predict, evaluation, train), on_kernels, _ = gpu.run(f"""{OPEN} {METRICS}
        const names = {{ lossInputNames: ["logits"], frozenParams: ["w", "wide"] }};
        const make = {{ loss: "CrossEntropyLoss", optimizer: "AdamW", ...names }};
        const results = [];
        for (const options of [gpu, {{}}]) {{
          const s = await TrainingSession.createFromModel("/late.onnx", make, options);
          const losses = await train(s, 2);
          const {{ loss }} = await s.evaluate(rows(8));
          const {{ late }} = await s.predict({{ x: rows(8).x }}, {{ outputs: ["late"] }});
          results.push([...losses, loss, ...late.data], ["predict", "eval", "train"].map((step) => planOf(s, step)));
        }}
        return results;
    """)
    close(on_gpu, on_kernels)
    assert [plan["device"] for plan in (predict, evaluation, train)] == ["wasm", "webgpu", "webgpu"]
    assert predict["why"].startswith("This step cannot run on the GPU: MatMul node 'late' needs a result that the host")


def test_a_bundle_trains_and_looks_without_python(gpu_browser: Browser, plain_site: Site) -> None:
    """Also where its eval plans are for the CPU only, as in older bundles."""
    bundle = compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu"))
    header = header_of(bundle)
    header["plans"] = [p for p in header["plans"] if (p["kind"], p.get("target")) != ("eval", "webgpu")]
    plain_site.add("/new.bundle", bundle)
    plain_site.add("/old.bundle", with_header(bundle, header))
    with open_js_page(gpu_browser, plain_site) as page:
        plain_site.clear_log()
        values, plans, gradients, losses = page.run(f"""{OPEN} {METRICS}
            const [values, plans, gradients, losses] = [[], [], [], []];
            const gradient = async (s) => Array.from((await s.getGradient("fc1.weight")).data);
            for (const [name, options] of [["new", gpu], ["old", gpu], ["old", {{}}]]) {{
              const s = await TrainingSession.create({{ bundle: `/${{name}}.bundle` }}, options);
              const {{ epochs }} = await s.fit(rows(40), {{ epochs: 2, batchSize: 8, accumulate: 2, clipGradNorm: 1 }});
              losses.push([...(await train(s, 2)), ...epochs.map(({{ loss }}) => loss)]);
              gradients.push(await gradient(s));
              values.push((await s.evaluate(rows(16), {{ batchSize: 8 }})).loss);
              gradients.push(await gradient(s));
              plans.push(["train", "eval", "optimizer", "clip"].map((step) => planOf(s, step)));
            }}
            return [values, plans, gradients, losses];
        """)
        assert python_requests(plain_site) == []
    close(values[:2], [values[2]] * 2)
    close(losses[0], losses[2])
    assert gradients[::2] == gradients[1::2], "an evaluation is no train step"
    assert [plan["device"] for plan in (*plans[0][:2], *plans[1][:2])] == ["webgpu", "webgpu", "webgpu", "wasm"]
    assert all(plan["dispatches"] > 0 for plan in plans[0])
    assert plans[1][1]["why"] == "The bundle has plans of this step for the CPU only."
