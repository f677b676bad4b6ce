"""Sessions of pages on Chromium's software adapter of WebGPU, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .server import ROOT

if TYPE_CHECKING:
    from .js_session import JsPage

SWIFTSHADER = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
WITHOUT_GPU = 'device: "wasm" trains everywhere.'

OPEN = """
    const url = "/golden/mlp/base.onnx";
    const gpu = { device: "webgpu" };
    const open = (options = gpu, more = {}) =>
      TrainingSession.createFromModel(url, { loss: "CrossEntropyLoss", optimizer: "AdamW", ...more }, options);
    const wave = (n, shift) => Float32Array.from({ length: n }, (_, i) => ((i + shift) * 37 % 101) / 50 - 1);
    const rows = (n, shift = 0) => ({
      x: new Tensor("float32", wave(10 * n, shift), [n, 10]),
      labels: new Tensor("int64", BigInt64Array.from({ length: n }, (_, i) => BigInt(((i + shift) * 7) % 3)), [n]),
    });
    const wide = { ...rows(2), labels: new Tensor("int64", [0n, 2n ** 40n], [2]) };
    const train = async (s, steps, first = 0) => {
      const losses = [];
      for (let k = 0; k < steps; k++) {
        const { x, labels } = rows(8, 3 * (first + k));
        losses.push((await s.runTrainStep({ x, [s.trainingInputNames[1]]: labels }))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return losses;
    };
    const parameters = async (s) => Array.from((await s.getContiguousParameters(true)).data);
"""
"""Open sessions, make rows, and train."""


def close(a: Any, b: Any, tolerance: float = 1e-4) -> None:
    assert a == pytest.approx(b, rel=tolerance, abs=tolerance)


PROBE = (ROOT / "bench" / "pages" / "probe.js").read_text()


def count(page: JsPage) -> None:
    """Count calls of WebGPU that cost time, and bytes of new buffers, in the page's worker from now on."""
    page.worker.evaluate(PROBE + "Object.assign(gpuProbe, { calls: {}, liveBytes: 0, peakBytes: 0 });")


def counted(page: JsPage) -> dict[str, int]:
    """The calls since then."""
    calls: dict[str, int] = page.worker.evaluate("gpuProbe.calls")
    return calls


LIMIT = """([maxBufferSize, maxStorageBufferBindingSize]) => {
    globalThis.limits ??= Object.getOwnPropertyDescriptor(GPUDevice.prototype, "limits");
    Object.defineProperty(GPUDevice.prototype, "limits", maxBufferSize === 0 ? limits : {
      configurable: true, get: () => ({ maxBufferSize, maxStorageBufferBindingSize }) });
}"""


def limit(page: JsPage, buffer: int = 0, binding: int = 1 << 27) -> None:
    """Give the GPU of a page these limits, or its own if `buffer` is 0."""
    page.worker.evaluate(LIMIT, [buffer, binding])
