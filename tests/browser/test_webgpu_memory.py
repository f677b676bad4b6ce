"""Weights of a session on the GPU lie there alone, until the CPU needs them: calls, and steps of the kernels."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench import smol
from onnx import numpy_helper
from playwright.sync_api import Browser

from .bundles import MLP, compile_bundle
from .js_session import JsPage, open_js_page
from .server import Site
from .test_js_session import SPY
from .test_webgpu_faults import ONCE
from .webgpu import OPEN, close

SIZE = smol.Size(layers=2, width=256, heads=4, key_heads=4, hidden=512, vocabulary=4096)
LARGE = {"table": (36_000, 256), "head": (256, 3)}
MEMORY = f"""{SPY}
    const memory = () => new Promise((resolve) => {{
      const id = `memory ${{Math.random()}}`;
      const worker = workers[0];
      const listen = ({{ data }}) => {{
        if (data.id === id) {{
          worker.removeEventListener("message", listen);
          resolve(data.result.ok.total);
        }}
      }};
      worker.addEventListener("message", listen);
      worker.postMessage([{{ id, method: "memory", args: [] }}]);
    }});
"""
"""The size of the kernels' memory, which never shrinks."""
LORA = """
    const lora = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 2, seed: 3 } };
    const make = (options) => TrainingSession.createFromModel("/smol.onnx", lora, options);
    const token = (k) => (_, i) => BigInt((i * 41 + 7 * k) % 4096);
    const ids = (k) => new Tensor("int64", BigInt64Array.from({ length: 6 }, token(k)), [1, 6]);
    const sha = async (data) => {
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
      return Array.from(digest, (x) => x.toString(16).padStart(2, "0")).join("");
    };
    const steps = async (s) => {
      await s.setLearningRate(0.01);
      const losses = [];
      for (const k of [0, 1, 2]) {
        const results = await s.runTrainStep({ input_ids: ids(k), labels: ids(k + 1) });
        losses.push(results[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return losses;
    };
"""


@pytest.fixture(scope="module", params=["float32", "float16"])
def weights(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plain_site: Site
) -> dict[str, np.ndarray]:
    """Two layers of SmolLM2, served as one file; its weights are at odd places in it."""
    path: Path = smol.write(tmp_path_factory.mktemp("smol"), SIZE)
    model = onnx.load(path)
    if request.param == "float16":
        large = {t.name: tuple(t.dims) for t in model.graph.initializer if len(t.dims) == 2 and t.dims[0] > 64}
        for tensor in model.graph.initializer:
            if tensor.name in large:
                tensor.raw_data = numpy_helper.to_array(tensor).astype(np.float16).tobytes()
        model = smol.as_halves(model, large)
    largest = max((t.raw_data for t in model.graph.initializer), key=len)
    while (model.SerializeToString().index(largest)) % 4 != 1:
        model.doc_string += "."
    plain_site.add("/smol.onnx", model.SerializeToString())
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {name: values for name, values in tensors.items() if values.nbytes > 100_000}


def hashes(weights: dict[str, np.ndarray]) -> list[str]:
    return [hashlib.sha256(values.astype(np.float32).tobytes()).hexdigest() for values in weights.values()]


@pytest.fixture
def page(gpu_browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(gpu_browser, plain_site) as page:
        yield page


def test_frozen_weights_are_on_the_gpu_alone(page: JsPage, weights: dict[str, np.ndarray]) -> None:
    nbytes = sum(values.nbytes for values in weights.values())
    names = list(weights)
    found = page.run(
        f"""{MEMORY}{OPEN}{LORA}
        const s = await make(gpu);
        const start = await memory();
        const losses = await steps(s);
        const {{ loss }} = await s.evaluate({{ input_ids: ids(5), labels: ids(6) }});
        const trained = [await memory(), await s.memory()];
        const tokens = [];
        for await (const {{ token }} of s.generate([5, 17, 4000, 23], {{ maxTokens: 4 }})) tokens.push(token);
        const generated = [await memory(), await s.memory()];
        const values = [];
        for (const name of names) values.push(await sha((await s.getParameter(name)).data));
        losses.push(...await steps(s), loss);
        await s.release();
        const t = await make({{}});
        const own = await steps(t);
        const onCpu = (await t.evaluate({{ input_ids: ids(5), labels: ids(6) }})).loss;
        const theirs = [];
        for await (const {{ token }} of t.generate([5, 17, 4000, 23], {{ maxTokens: 4 }})) theirs.push(token);
        own.push(...await steps(t), onCpu);
        return {{ start, trained, generated, tokens, theirs, losses, own, values }};
    """,
        names=names,
    )
    (total, memory), (later, held) = found["trained"], found["generated"]
    assert nbytes > 4_000_000
    assert memory["parameters"] == memory["gradients"] == memory["moments"] == 0
    assert memory["gpu"]["parameters"] >= nbytes
    assert total < found["start"] + nbytes / 2, (found["start"], total)
    assert held["parameters"] >= nbytes and held["gradients"] == held["moments"] == 0
    assert later > total + nbytes / 2
    assert found["tokens"] == found["theirs"]
    close(found["losses"], found["own"])
    assert found["values"] == hashes(weights)


def test_pieces_of_a_large_file_may_begin_within_a_word(page: JsPage, plain_site: Site) -> None:
    """Files of more than 32 MiB come in pieces of 16 MiB, which cut a tensor anywhere."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[n] ids) => (float[n,3] logits)
        { rows = Gather (table, ids) logits = MatMul (rows, head) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(4)
    tensors = {name: rng.normal(size=size).astype(np.float32) for name, size in LARGE.items()}
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in tensors.items())
    while model.SerializeToString().index(tensors["table"].tobytes()) % 4 != 1:
        model.doc_string += "."
    plain_site.add("/table.onnx", model.SerializeToString())
    value = page.run(f"""{LORA}
        const config = {{ loss: "CrossEntropyLoss", optimizer: "SGD", frozenParams: ["table"] }};
        const s = await TrainingSession.createFromModel("/table.onnx", config, {{ device: "webgpu" }});
        await s.runTrainStep({{ ids: new Tensor("int64", [1n, 2n], [2]), labels: new Tensor("int64", [1n, 2n], [2]) }});
        return sha((await s.getParameter("table")).data);
    """)
    assert [value] == hashes({"table": tensors["table"]})


def test_a_session_starts_on_the_gpu_without_python(page: JsPage, weights: dict[str, np.ndarray]) -> None:
    """Of the cache: from the file of the model, in pieces that end anywhere, and from what no file has."""
    names = list(weights)
    first, second = (
        JsPage(page.page, page.site).run(
            f"""{MEMORY}{OPEN}{LORA}
            const s = await make({{ ...gpu, cache: true }});
            const losses = await steps(s);
            const [total, held] = [await memory(), (await s.memory()).parameters];
            const values = [];
            for (const name of names) values.push(await sha((await s.getParameter(name)).data));
            const {{ checkpoint }} = await s.artifacts();
            await s.release();
            await env.release();
            return {{ losses, total, held, values, checkpoint: await sha(checkpoint) }};
        """,
            names=names,
        )
        for _ in range(2)
    )
    assert first["held"] == second["held"] == 0
    assert second["total"] < sum(values.nbytes for values in weights.values())
    assert first["checkpoint"] == second["checkpoint"], "Python reads frozen weights where they are then, or in files"
    assert first["losses"] == second["losses"]
    assert first["values"] == second["values"] == hashes(weights)


def test_a_bundle_starts_on_the_gpu_alone(page: JsPage) -> None:
    bundle = compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu"))
    page.site.add("/small.bundle", bundle)
    found = page.run(f"""{OPEN}
        const results = [];
        for (const options of [gpu, {{}}]) {{
          const s = await TrainingSession.create({{ bundle: "/small.bundle" }}, options);
          const start = await s.memory();
          const rate = await s.getLearningRate();
          const own = await parameters(s);
          results.push([start, own, rate, await s.stepCount(), await train(s, 3)]);
        }}
        return results;
    """)
    (start, *mine, losses), (_, *theirs, expected) = found
    assert start["parameters"] == start["moments"] == 0 and start["gpu"]["parameters"] > 0
    assert mine == theirs
    close(losses, expected)


def test_moments_of_a_checkpoint_start_on_the_gpu(page: JsPage) -> None:
    starts, momentums, losses = page.run(f"""{OPEN}
        const at = (name) => `/golden/mlp/${{name}}`;
        const files = {{ trainModel: at("training_model.onnx"), optimizerModel: at("optimizer_model.onnx") }};
        const create = (checkpointState, options) => TrainingSession.create({{ ...files, checkpointState }}, options);
        const first = await create(at("checkpoint"), {{}});
        await train(first, 4);
        const kept = await first.saveCheckpoint({{ includeOptimizerState: true }});
        const [starts, momentums, losses] = [[], [], []];
        for (const options of [gpu, {{}}]) {{
          const s = await create(kept, options);
          starts.push((await s.memory()).moments);
          momentums.push(Object.values(await s.getMoments("fc1.weight")).map(({{ data }}) => Array.from(data)));
          losses.push(await train(s, 3, 4));
        }}
        return [starts, momentums, [...losses, await train(first, 3, 4)]];
    """)
    assert starts[0] == 0 < starts[1]
    assert momentums[0] == momentums[1] and any(map(any, momentums[0]))
    close(losses[0], losses[2])
    close(losses[1], losses[2], 1e-6)


def test_a_session_goes_on_from_a_file_where_frozen_weights_are_on_the_gpu_alone(
    page: JsPage, weights: dict[str, np.ndarray]
) -> None:
    """The file has other frozen weights. With moments, training has the same bytes as without a break."""
    first, changed, held, is_same, errors, ends = page.run(
        f"""{LORA}
        const open = (device, seed, more = {{}}) => {{
          const config = {{ ...lora, lora: {{ rank: 2, seed, ...more }} }};
          return TrainingSession.createFromModel("/smol.onnx", config, {{ device }});
        }};
        const hashes = async (s) =>
          Promise.all([(await s.adapter()).weights, (await s.getParameter(name)).data].map(sha));
        const end = async (s) => {{
          const losses = await steps(s);
          const {{ loss }} = await s.evaluate({{ input_ids: ids(5), labels: ids(6) }});
          return [[...losses, loss], ...await hashes(s)];
        }};
        const store = new CheckpointStore("gpu alone");
        const [ends, held] = [[], []];
        let first, changed, file;
        for (const device of ["wasm", "webgpu"]) {{
          const s = await open(device, 3);
          await steps(s);
          const {{ data, dims }} = await s.getParameter(name);
          const mixed = data.map((x, k) => (k % 2 ? x : -x));
          [first, changed] = [await sha(data), await sha(mixed)];
          await s.updateParameter(name, new Tensor("float32", mixed, dims));
          await store.save(s, device);
          file = await s.save();
          const [stored, parameters] = [await store.read(device), await s.saveCheckpoint()];
          const found = [await end(s)];
          await s.release();
          const load = (one) => (t) => t.loadCheckpoint(one);
          const loads = [load(file), load(parameters), load(stored), (t) => store.load(t, device)];
          for (const some of device === "wasm" ? [loads] : [loads.slice(0, 2), loads.slice(2)]) {{
            const t = await open(device, 4);
            await steps(t);
            held.push((await t.memory()).parameters);
            for (const one of some) {{
              await one(t);
              found.push(await end(t));
            }}
            await t.release();
          }}
          ends.push(found);
        }}
        const other = await open("webgpu", 4, {{ alpha: 8 }});
        await steps(other);
        const before = await hashes(other);
        const errors = [];
        for (const call of [() => other.loadCheckpoint(file), () => store.load(other, "webgpu")]) {{
          errors.push((await failure(call)).name);
        }}
        const isSame = String(before) === String(await hashes(other));
        await other.release();
        return [first, changed, held, isSame, errors, ends];
    """,
        name=next(iter(weights)),
    )
    assert held[0] > 0 and held[1:] == [0, 0]
    assert first == hashes(weights)[0] != changed
    assert is_same and errors == ["CheckpointError", "CheckpointError"]
    for undisturbed, full, parameters, *stored in ends:
        assert [undisturbed] * 3 == [full, *stored] and undisturbed[2] == parameters[2] == changed
        assert parameters[0][0] == undisturbed[0][0] and parameters[1] != undisturbed[1]
    for (losses, *_), (expected, *_) in zip(*ends, strict=True):
        close(losses, expected)


def test_a_gpu_without_memory_for_the_start_is_named_or_left(page: JsPage) -> None:
    """The start then lies in the kernels' memory, before it is read."""
    page.run(f"{OPEN} await (await open({{}})).release();")
    page.worker.evaluate(f"""() => {{ {ONCE}
        Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", {{ value: false }});
        globalThis.exhaust = () => {{
          let buffers = 0;
          // Those of the arena and of constants come first.
          once(GPUDevice, "popErrorScope", (call) =>
            ++buffers < 3 ? "again" : call().then(() => new GPUOutOfMemoryError("planted")));
        }};
        exhaust();
    }}""")
    error = page.failure(f"{OPEN} await open();")
    assert error["name"] == "DeviceError" and "bytes of 'parameters': planted." in error["message"], error
    page.worker.evaluate("() => exhaust()")
    device, memory, losses, expected, others = page.run(f"""{OPEN}
        const s = await open({{ device: "auto" }});
        const [device, memory] = [s.device, await s.memory()];
        const losses = await train(s, 3);
        const t = await open({{}});
        const u = await open({{ device: "auto" }});
        return [device, memory, losses, await train(t, 3), [await train(u, 3), u.device.kind]];
    """)
    assert device["kind"] == "wasm" and "planted" in device["why"]
    assert {plan["device"] for plan in device["plans"]} == {"wasm"}
    assert memory["parameters"] > 0 and "parameters" not in memory["gpu"]
    assert losses == expected
    close(others[0], expected)
    assert others[1] == "webgpu"
