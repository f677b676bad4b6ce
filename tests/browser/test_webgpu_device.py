"""The GPU of a worker (web/src/webgpu/device.ts) on Chromium's software adapter, and its failures."""

import subprocess
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from .conftest import PAGE_TIMEOUT_MS
from .server import ROOT, Site
from .webgpu import WITHOUT_GPU

ENTRY = """
export * from "./webgpu/device.js";
export * from "./webgpu/plans.js";
import { log } from "./wire/log.js";
import { sessionError } from "./wire/messages.js";
import { useTools } from "./webgpu/device.js";
useTools({ log, sessionError });
"""

WORKER = """
import { dispatchesOf, GpuDevice, sharedDevice } from "/webgpu/device.js";
self.onmessage = async ({ data }) => {
  const failure = async (action) => {
    try {
      await action();
      return null;
    } catch ({ name, message, reason }) {
      return { name, message, reason };
    }
  };
  const AsyncFunction = (async () => {}).constructor;
  const run = new AsyncFunction("GpuDevice", "sharedDevice", "gpu", "failure", "dispatchesOf", data);
  try {
    postMessage({ ok: await run(GpuDevice, sharedDevice, navigator.gpu, failure, dispatchesOf) });
  } catch (error) {
    postMessage({ error: String(error.stack) });
  }
};
"""

RUN = """(body) => new Promise((resolve, reject) => {
  const worker = new Worker("/webgpu/worker.js", { type: "module" });
  worker.onerror = ({ message }) => reject(new Error(message));
  worker.onmessage = ({ data }) => {
    worker.terminate();
    data.error === undefined ? resolve(data.ok) : reject(new Error(data.error));
  };
  worker.postMessage(body);
})"""


@pytest.fixture(scope="module")
def webgpu_page(gpu_browser: Browser, plain_site: Site) -> Iterator[Page]:
    """A page of a Chromium with the software adapter."""
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    command = [esbuild, "--bundle", "--format=esm", "--loader=ts"]
    built = subprocess.run(command, cwd=ROOT / "web" / "src", input=ENTRY.encode(), capture_output=True, check=True)
    plain_site.add("/webgpu/device.js", built.stdout)
    plain_site.add("/webgpu/worker.js", WORKER)
    plain_site.add("/webgpu/page.html", "<!doctype html><title>WebGPU</title>")
    page = gpu_browser.new_context().new_page()
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    page.goto(plain_site.url("/webgpu/page.html"))
    yield page
    page.context.close()


@pytest.fixture
def run(webgpu_page: Page) -> Callable[[str], Any]:
    """Run the body of an async function in a worker."""
    return lambda body: webgpu_page.evaluate(RUN, body)


def test_a_device_has_the_buffers_of_its_adapter(run: Callable[[str], Any]) -> None:
    adapter, offered, sizes, copy = run("""
        const one = await GpuDevice.open(gpu);
        const { device } = one;
        const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ;
        const buffer = device.createBuffer({ size: 8, usage });
        device.queue.writeBuffer(buffer, 0, Float32Array.of(3, 4));
        await one.settled(buffer.mapAsync(GPUMapMode.READ));
        const copy = Array.from(new Float32Array(buffer.getMappedRange()));
        const sizes = ({ limits }) => [limits.maxBufferSize, limits.maxStorageBufferBindingSize];
        return [one.adapter, sizes(await gpu.requestAdapter()), sizes(device), copy];
    """)
    assert adapter["vendor"] == "google" and adapter["isFallback"]
    assert sizes == offered and min(sizes) > 2**27
    assert copy == [3, 4]


def test_a_missing_gpu_is_named(run: Callable[[str], Any], webgpu_page: Page, plain_site: Site) -> None:
    begin = monotonic()
    errors = run("""
        const broken = { ...await gpu.requestAdapter(), info: {}, limits: {}, requestDevice: async () => {
          throw new TypeError("no room\\nmore");
        } };
        const blocked = async () => { throw new DOMException("blocked", "NotSupportedError"); };
        const silent = () => new Promise(() => {});
        const answers = [async () => null, silent, async () => broken, blocked];
        const adapters = answers.map((requestAdapter) => ({ requestAdapter }));
        return Promise.all([undefined, ...adapters].map((one) => failure(() => GpuDevice.open(one))));
    """)
    assert [error["name"] for error in errors] == ["DeviceError"] * 5 and monotonic() - begin < 12
    texts = [
        "set env.webgpu.gpu.",
        *["may need --enable-unsafe-webgpu."] * 2,
        *(f"gives no device: {x}." for x in ("no room", "blocked")),
    ]
    assert all(error["message"].endswith(f"{text} {WITHOUT_GPU}") for error, text in zip(errors, texts, strict=True))
    insecure = webgpu_page.context.new_page()
    insecure.goto(plain_site.url("/webgpu/page.html").replace("127.0.0.1", "app.test"))
    (error,) = insecure.evaluate(RUN, "return [await failure(() => GpuDevice.open(gpu))];")
    insecure.close()
    assert error["message"] == f"Pages have WebGPU only with a secure origin: https:// or localhost. {WITHOUT_GPU}"


def test_a_lost_device_ends_waits_and_later_calls(run: Callable[[str], Any]) -> None:
    waiting, later, early = run("""
        const one = await GpuDevice.open(gpu);
        // What stays pending with a lost device must not stay so for whoever waits.
        const waiting = failure(() => one.settled(new Promise(() => {})));
        // A call may fail before the device says that it is lost.
        const early = failure(() => one.settled(Promise.reject(new Error("early"))));
        one.device.destroy();
        return [await waiting, await failure(async () => one.check()), await early];
    """)
    assert waiting == later == early and waiting["reason"] == "destroyed"
    assert waiting["message"].startswith("The GPU was lost after step 0 (destroyed): ")
    assert waiting["message"].endswith(f"continue from a checkpoint. {WITHOUT_GPU}")


def test_firefox_gets_work_while_somebody_waits(
    run: Callable[[str], Any], gpu_browser: Browser, plain_site: Site
) -> None:
    wait = """
        const one = await GpuDevice.open(gpu);
        let submits = 0;
        const { submit } = GPUQueue.prototype;
        GPUQueue.prototype.submit = function (buffers) {
          submits++;
          return submit.call(this, buffers);
        };
        const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
        const longEnough = async (most) => { while (submits < 4 && most-- > 0) await pause(20); };
        await one.settled(longEnough(navigator.userAgent.includes("Firefox") ? 3000 : 5));
        const waited = submits;
        await pause(50);
        return [waited, submits - waited];
    """
    assert run(wait) == [0, 0]
    page = gpu_browser.new_context(user_agent="Mozilla/5.0 Gecko/20100101 Firefox/147.0").new_page()
    page.goto(plain_site.url("/webgpu/page.html"))
    waited, after = page.evaluate(RUN, wait)
    page.context.close()
    assert waited > 3 and after == 0


def test_an_error_of_a_call_fails_the_next_read(run: Callable[[str], Any]) -> None:
    error, after = run("""
        const one = await GpuDevice.open(gpu);
        one.device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE });
        const wait = () => one.settled(one.device.queue.onSubmittedWorkDone());
        let error = null;
        for (let k = 0; k < 100 && error === null; k++) error = await failure(wait);
        const other = await GpuDevice.open(gpu);
        return [error, await failure(async () => other.check())];
    """)
    assert error["name"] == "DeviceError" and error["reason"] == "GPUValidationError"
    assert error["message"].startswith("The GPU reports an error: ") and after is None


def test_sessions_share_a_device_until_it_is_lost(run: Callable[[str], Any]) -> None:
    assert run("""
        let asked = 0;
        const counted = { requestAdapter: async (...args) => {
          asked++;
          return asked === 1 ? null : gpu.requestAdapter(...args);
        } };
        const shared = () => sharedDevice(counted);
        const none = await failure(() => shared());
        const [first, second] = await Promise.all([shared(), shared()]);
        first.device.destroy();
        await failure(() => first.settled(new Promise(() => {})));
        const fresh = await shared();
        return [none.name, first === second, first === fresh, first.isBroken, fresh.isBroken, asked];
    """) == ["DeviceError", True, False, True, False, 3]


DAMAGED = {
    "a grid of 0": ("words: [0, 1, 0, 1, 0, 0]", "dispatch 0"),
    "a grid that no device has": ("words: [0, 65536, 1, 1, 0, 0]", "dispatch 0"),
    "no such shader": ("words: [1, 1, 1, 1, 0, 0]", "dispatch 0"),
    "no such numbers": ("words: [0, 1, 1, 1, 1, 0]", "dispatch 0"),
    "no such windows": ("words: [0, 1, 1, 1, 0, 1]", "dispatch 0"),
    "a window at no binding": ("windows: [[[6, 0, 0, 4, 'w']]]", "w"),
    "a window of the state": ("windows: [[[0, 6, 0, 0, 'w']]]", "w"),
    "a window behind its segment": ("windows: [[[0, 0, 0, 132, 'w']]]", "w"),
    "a part of a dispatch": ("words: [0, 1, 1, 1, 0]", "dispatches"),
    "a node less": ("nodes: []", "dispatches"),
    "a part of the numbers": ("uniforms: new Uint8Array(255)", "numbers"),
    "turns behind the arena": ("turns: 63", "numbers"),
    "an upload behind the arena": ("uploads: [[64, 0, 4]]", "uploads"),
    "an upload to a part of a word": ("uploads: [[0, 2, 4]]", "uploads"),
    "a download to behind the arena": ("downloads: [[0, 64, 4]]", "uploads"),
    "a result elsewhere": ("outputs: [{ name: 'y', segment: 6, offset: 0, nbytes: 4 }]", "y"),
}


def test_damaged_dispatches_are_refused(run: Callable[[str], Any]) -> None:
    errors = run(
        """
        const whole = { uniforms: new Uint8Array(256), windows: [[]], texts: [""], inputs: [], outputs: [],
          uploads: [[60, 124, 4]], downloads: [[124, 60, 4]], nodes: ["n"], work: [1], arenaBytes: 128, constants: [],
          large: [], turns: 62 };
        const blob = (words) => new Uint8Array(Uint32Array.from(words).buffer);
        const small = { device: { limits: { maxStorageBufferBindingSize: 124 } } };
        const read = ({ words = [0, 1, 1, 1, 0, 0], ...change }) => {
          const body = { ...whole, dispatches: blob(words), ...change };
          return dispatchesOf(small, { arenaBytes: 64, body }, Array(9).fill(0));
        };
        read({ windows: [[[8, 0, 0, 124, "w"]]] });
        const large = { arenaBytes: 2 ** 33, windows: [[[0, 0, 0, 2 ** 32 + 128, "w"]]] };
        return Promise.all([large, %s].map((change) => failure(() => read(change))));
        """
        % ", ".join(f"{{ {change} }}" for change, _ in DAMAGED.values())
    )
    large = errors.pop(0)
    assert large["message"] == (
        "'w' takes 4294967424 bytes at once; maxStorageBufferBindingSize of this GPU is 124. " + WITHOUT_GPU
    )
    assert [large["name"], *(error["name"] for error in errors)] == ["DeviceError", *["ModelError"] * len(DAMAGED)]
    for error, (name, (_, part)) in zip(errors, DAMAGED.items(), strict=True):
        assert part in error["message"], name
