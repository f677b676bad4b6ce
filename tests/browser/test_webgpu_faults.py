"""What goes wrong with a GPU ends calls with its error, soon, and the next session works."""

import re
from time import monotonic

import pytest
from playwright.sync_api import Browser
from tests.webgpu.networks import networks

from .js_session import JsPage, open_js_page
from .server import Site
from .webgpu import OPEN, WITHOUT_GPU, close, limit

ONCE = """
    const once = (owner, name, instead) => {
      const { prototype } = owner;
      const original = prototype[name];
      prototype[name] = function (...args) {
        const result = instead.call(this, (...given) => original.apply(this, given), ...args);
        if (result === "again") return original.apply(this, args);
        prototype[name] = original;
        return result;
      };
    };
    const lose = (owner, name) => once(owner, name, function (call, ...args) {
      (this instanceof GPUDevice ? this : globalThis.device).destroy();
      return call(...args);
    });
    const { createCommandEncoder } = GPUDevice.prototype;
    GPUDevice.prototype.createCommandEncoder = function (...args) {
      globalThis.device = this;
      return createCommandEncoder.apply(this, args);
    };
"""
LOST = "The GPU was lost after step {} (destroyed): "
FAULTS = {
    "memory": (
        """once(GPUDevice, "popErrorScope", async (call) => {
          await call();
          return new GPUOutOfMemoryError("planted");
        });""",
        "open",
        "The GPU has no memory for",
        "bytes of 'arena': planted. Smaller batches need less.",
    ),
    "shader": (
        'once(GPUDevice, "createShaderModule", (call, { code }) => call({ code: `${code} fn broken(` }));',
        "open",
        "The GPU refuses the shader 'elementwise' of com.microsoft.SGDOptimizerV2 node '",
        "Please report this.",
    ),
    "validation": (
        'once(GPUComputePassEncoder, "dispatchWorkgroups", (call) => call(70_000));',
        "open",
        "The GPU reports an error: ",
        "continue from a checkpoint.",
    ),
    "lost in load": ('lose(GPUDevice, "createComputePipelineAsync");', "open", LOST.format(0), "from a checkpoint."),
    "lost in a step": ('lose(GPUQueue, "submit");', "trained", LOST.format(2), "from a checkpoint."),
    "lost in a map": ('lose(GPUBuffer, "mapAsync");', "trained", LOST.format(2), "from a checkpoint."),
    "a read": (
        """once(GPUBuffer, "mapAsync", async () => { throw new DOMException("planted", "OperationError"); });""",
        "parameters",
        "The GPU reports an error: planted.",
        "continue from a checkpoint.",
    ),
    "lost in a claim": ('lose(GPUBuffer, "mapAsync");', "parameters", LOST.format(2), "from a checkpoint."),
    "lost in a profile": ('lose(GPUBuffer, "mapAsync");', "profile", LOST.format(2), "from a checkpoint."),
    "lost in steps": ('lose(GPUQueue, "submit");', "steps", LOST.format(2), "from a checkpoint."),
    "lost in a fit": ('lose(GPUQueue, "onSubmittedWorkDone");', "fit", LOST.format(2), "from a checkpoint."),
}
"""What goes wrong, the call that meets it, and the start and the end of its error."""
CALLS = {
    "open": "await train(fresh, 1)",
    "trained": "await train(s, 1)",
    "parameters": "await parameters(s)",
    "steps": "await s.runTrainSteps([rows(8), rows(8)])",
    "profile": "await s.profile(rows(8))",
    "fit": "await s.fit(rows(50), { epochs: 1, batchSize: 8 })",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_calls_and_the_next_session_works(gpu: JsPage, fault: str) -> None:
    plant, call, start, end = FAULTS[fault]
    # Shapes and a batch size of its own: the pipelines of others are known.
    gpu.run(f"""{OPEN}
        window.s = await open();
        await train(s, 2);
        window.fresh = await open(gpu, {{ optimizer: "SGD" }});
        window.other = await open({{}});
    """)
    gpu.worker.evaluate(f"() => {{ {ONCE} {plant} }}")
    begin = monotonic()
    error = gpu.failure(f"{OPEN} {CALLS[call]};")
    assert error["name"] == "DeviceError", error
    assert error["message"].startswith(start) and error["message"].endswith(f"{end} {WITHOUT_GPU}"), error
    if "lost" in fault:
        assert error["reason"] == "destroyed" and f" after step {error['step']} " in error["message"]
        later = [gpu.failure(f"{OPEN} await {each};") for each in ("parameters(s)", "s.stepCount()", "train(s, 1)")]
        assert {one["name"] for one in later} == {"DeviceError"}
        assert all("The GPU was lost" in one["message"] for one in later)
    assert monotonic() - begin < 5
    on_gpu, on_kernels = gpu.run(f"""{OPEN}
        await Promise.all([s.release(), fresh.release()]);
        const next = await open();
        const losses = [await train(next, 2), await train(other, 2)];
        await Promise.all([next.release(), other.release()]);
        return losses;
    """)
    close(on_gpu, on_kernels)


def test_a_lost_gpu_names_the_last_checkpoint_and_the_fit_goes_on_from_it(gpu: JsPage) -> None:
    gpu.run(f"{OPEN} window.s = await open(); await train(s, 1);")
    gpu.worker.evaluate(f"""() => {{ {ONCE}
        let n = 0;
        once(GPUQueue, "onSubmittedWorkDone", function (call) {{
          if (n++ < 20) return "again";
          globalThis.device.destroy();
          return call();
        }});
    }}""")
    fit = """{ epochs: 3, batchSize: 8, shuffle: false,
      checkpoint: { store: new CheckpointStore("lost"), name: "kept", every: 5 } }"""
    error = gpu.failure(f"{OPEN} await s.fit(rows(80), {fit});")
    assert error["name"] == "DeviceError" and error["checkpoint"] % 5 == 0 and error["checkpoint"] > 0
    assert error["message"].endswith(f"The last checkpoint is of step {error['checkpoint']}.")
    assert error["checkpoint"] <= error["step"]
    steps, whole = gpu.run(f"""{OPEN}
        const t = await open();
        const {{ epochs }} = await t.fit(rows(80), {fit});
        return [await t.stepCount(), epochs.length];
    """)
    assert steps >= 30 and whole == 3


def test_buffers_beyond_the_gpu_are_named(gpu: JsPage) -> None:
    gpu.run(f"{OPEN} window.s = await open();")
    limit(gpu, 300)
    segment = gpu.failure(f"{OPEN} await open();")
    limit(gpu, 4000)
    arena = gpu.failure(f"{OPEN} await s.runTrainStep(rows(64));")
    auto = gpu.run(f'{OPEN} return (await open({{ device: "auto" }})).device;')
    limit(gpu, 1 << 28)
    losses = gpu.run(f"{OPEN} return train(s, 2);")
    limit(gpu)
    for error in (segment, arena):
        assert error["name"] == "DeviceError" and error["message"].endswith(WITHOUT_GPU)
    assert segment["message"].startswith("'parameters' takes ")
    assert "maxBufferSize of this GPU is 300." in segment["message"]
    assert arena["message"].startswith("'arena' takes ")
    assert auto["kind"] == "wasm" and len(losses) == 2


def test_what_is_read_takes_no_buffer_beyond_the_gpu(gpu: JsPage) -> None:
    """The parameters have 5,200 bytes, of which the next power of two is more than the GPU has."""
    net = networks.Network("odd", 3, dict(kind="mlp", batch=8))
    net.output(net.linear(net.input([8, 64]), 8, 64, 20, "fc"), 8, 20)
    gpu.site.add("/odd.onnx", net.model().SerializeToString())
    gpu.run(f"{OPEN} await (await open()).release();")
    gpu.worker.evaluate("""() => {
        const { createBuffer } = GPUDevice.prototype;
        globalThis.largest = 0;
        GPUDevice.prototype.createBuffer = function (descriptor) {
          if (descriptor.usage & GPUBufferUsage.MAP_READ) largest = Math.max(largest, descriptor.size);
          return createBuffer.call(this, descriptor);
        };
    }""")
    limit(gpu, 6002)
    count = gpu.run(f"""{OPEN}
        const config = {{ loss: "CrossEntropyLoss", optimizer: "SGD" }};
        const s = await TrainingSession.createFromModel("/odd.onnx", config, gpu);
        const labels = new Tensor("int64", new BigInt64Array(8), [8]);
        await s.runTrainStep({{ x: new Tensor("float32", new Float32Array(512), [8, 64]), labels }});
        await s.runOptimizerStep();
        return (await parameters(s)).length;
    """)
    assert count == 64 * 20 + 20 and gpu.worker.evaluate("largest") == 6000


def test_a_fit_goes_on_in_a_page_that_is_hidden(gpu: JsPage) -> None:
    """Frames of a page in the background do not come, which follows the events of a fit by them."""
    follow = """
        const follow = async (s) => {
          const run = s.fit(rows(80), { epochs: 20, batchSize: 8, shuffle: false });
          let events = 0;
          for await (const { type } of run) events += type === "progress";
          return [events, (await run).epochs.map(({ loss }) => loss)];
        };
    """
    gpu.run(
        f"{OPEN} [window.s, window.t] = [await open(), await open()]; await Promise.all([train(s, 2), train(t, 2)]);"
    )
    begin = monotonic()
    seen, losses = gpu.run(f"""{OPEN} {follow}
        const frame = globalThis.requestAnimationFrame;
        globalThis.requestAnimationFrame = () => 0;
        Object.defineProperty(document, "visibilityState", {{ configurable: true, get: () => "hidden" }});
        document.dispatchEvent(new Event("visibilitychange"));
        try {{
          return await follow(s);
        }} finally {{
          globalThis.requestAnimationFrame = frame;
          delete document.visibilityState;
        }}
    """)
    assert monotonic() - begin < 5 and seen > 0
    assert gpu.run(f"{OPEN} {follow} return (await follow(t))[1];") == losses


def test_a_shader_that_compiles_for_a_minute_is_named(gpu: JsPage) -> None:
    lines: list[str] = []
    gpu.page.on("console", lambda line: lines.append(line.text))
    gpu.run(f"{OPEN} window.s = await open();")
    # The worker's clock is fast, and a pipeline waits for the warning.
    gpu.worker.evaluate("""() => {
        const { setInterval, console: { warn } } = globalThis;
        const { createComputePipelineAsync } = GPUDevice.prototype;
        const warned = new Promise((resolve) => {
          console.warn = (text) => { warn(text); if (text.includes("compiler has worked")) resolve(); };
        });
        globalThis.setInterval = (action, ms) => setInterval(action, ms / 1000);
        GPUDevice.prototype.createComputePipelineAsync = async function (descriptor) {
          await warned;
          Object.assign(globalThis, { setInterval });
          Object.assign(console, { warn });
          Object.assign(GPUDevice.prototype, { createComputePipelineAsync });
          return createComputePipelineAsync.call(this, descriptor);
        };
    }""")
    gpu.run(f"""{OPEN}
        const t = await open(gpu, {{ optimizer: "Lion" }});
        await train(t, 1);
        await Promise.all([s.release(), t.release()]);
    """)
    warning = next(line for line in lines if "compiler has worked" in line)
    assert re.search(r"more\. The shader of [A-Za-z.]+ node '.+' is not ready\.", warning)
    assert warning.endswith(WITHOUT_GPU)


def test_a_release_in_flight_settles_all_calls(gpu: JsPage) -> None:
    assert gpu.run(f"""{OPEN}
        const s = await open();
        const calls = [train(s, 3), s.fit(rows(80), {{ epochs: 20, batchSize: 8 }}), s.release()];
        const ends = await Promise.allSettled(calls);
        const t = await open();
        return [ends.length, (await train(t, 2)).length];
    """) == [3, 2]


AUTO = 'const auto = { device: "auto" };'


def test_auto_takes_the_cpu_where_no_hardware_is(gpu: JsPage, browser: Browser, plain_site: Site) -> None:
    with open_js_page(browser, plain_site) as page:
        device = page.run(f"{OPEN} {AUTO} return (await open(auto)).device;")
        assert device["kind"] == "wasm" and device["adapter"] is None and device["why"].endswith(WITHOUT_GPU)
        error = page.failure(f"{OPEN} await open();")
        assert error["name"] == "DeviceError" and error["message"].endswith(WITHOUT_GPU)
    software, asked, losses = gpu.run(f"""{OPEN} {AUTO}
        const s = await open(auto);
        return [s.device, (await open({{ ...auto, reproducible: true }})).device, await train(s, 1)];
    """)
    assert software["kind"] == "wasm" and "computes in software" in software["why"] and len(losses) == 1
    assert asked["kind"] == "wasm" and asked["why"] == "the option reproducible"


def test_auto_takes_a_gpu_that_can_run_the_steps(gpu_browser: Browser, plain_site: Site) -> None:
    with open_js_page(gpu_browser, plain_site) as page:
        page.run(f"{OPEN} await open({{}});")
        page.worker.evaluate("""() => {
            Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { value: false });
            const { requestAdapter } = GPU.prototype;
            GPU.prototype.requestAdapter = async function () {
              GPU.prototype.requestAdapter = requestAdapter;
              return null;
            };
        }""")
        none = page.failure(f"{OPEN} await open();")
        fits, leaves, losses = page.run(f"""{OPEN} {AUTO}
            const u = await open(auto);
            await train(u, 1);
            const s = await open(auto, {{ optimizer: "Lamb" }});
            const t = await open({{}}, {{ optimizer: "Lamb" }});
            const losses = [...await Promise.all([train(s, 5), train(t, 5)])];
            return [u.device, s.device, losses];
        """)
    assert none["name"] == "DeviceError" and "no WebGPU adapter" in none["message"]
    assert fits["kind"] == "webgpu" and fits["why"] == "a GPU is here"
    assert leaves["kind"] == "wasm" and "no GPU kernel" in leaves["why"] and leaves["adapter"] is not None
    assert {plan["device"] for plan in leaves["plans"]} == {"wasm"}
    close(losses[0], losses[1], 1e-3)
