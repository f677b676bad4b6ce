"""Segments of more bytes than the GPU of a page binds at once: the same bytes as without a limit."""

from collections.abc import Iterator

import pytest

from trainweb.backend.webgpu import windows

from .bundles import MLP, compile_bundle
from .js_session import JsPage
from .webgpu import OPEN, WITHOUT_GPU, count, counted, limit

MOST = 1024
BOUND = """() => {
    globalThis.bound = 0;
    const { createBindGroup } = GPUDevice.prototype;
    GPUDevice.prototype.createBindGroup = function (group) {
      for (const { binding, resource: { size } } of group.entries) {
        bound = Math.max(bound, binding < 16 ? size : 0);
      }
      return createBindGroup.call(this, group);
    };
}"""
"""Note the most bytes that are bound."""
CREATE = f"""{OPEN}
    const create = () => TrainingSession.create({{ bundle: "/windows.bundle" }}, gpu);
"""
TRAIN = f"""{CREATE}
    const s = await create();
    const losses = await train(s, 2);
    for (const more of [{{}}, {{ onNaN: "skip", accumulate: 2 }}]) {{
      const {{ epochs }} = await s.fit(rows(48), {{ epochs: 2, batchSize: 8, shuffle: false, ...more }});
      losses.push(...epochs.map(({{ loss }}) => loss));
    }}
    return [losses, await parameters(s)];
"""
"""Steps one by one, and a fit whose guard looks, copies and scales."""


@pytest.fixture
def limited(gpu: JsPage, monkeypatch: pytest.MonkeyPatch) -> Iterator[JsPage]:
    """A page whose GPU binds so few bytes."""
    gpu.run(f"{OPEN} await (await open()).release();")
    monkeypatch.setattr(windows, "BINDING_BYTES", MOST)
    yield gpu
    limit(gpu)


def test_training_in_windows_gives_the_same_bytes(limited: JsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu"))
    monkeypatch.undo()
    limited.site.add("/windows.bundle", compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu")))
    limited.worker.evaluate(BOUND)
    expected = limited.run(TRAIN)
    whole = limited.worker.evaluate("bound")
    limited.worker.evaluate(BOUND)
    limit(limited, 1 << 28, MOST)
    limited.site.add("/windows.bundle", cut)
    assert limited.run(TRAIN) == expected
    assert limited.worker.evaluate("bound") <= MOST < whole


def test_a_step_in_windows_makes_no_groups(limited: JsPage) -> None:
    limited.site.add("/windows.bundle", compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu")))
    limit(limited, 1 << 28, MOST)
    limited.run(
        f'{OPEN} window.s = await TrainingSession.create({{ bundle: "/windows.bundle" }}, gpu); await train(s, 2);'
    )
    count(limited)
    limited.run(f"{OPEN} await train(s, 1);")
    counts = counted(limited)
    assert "createBindGroup" not in counts and "createBuffer" not in counts and counts["submit"] == 2


def test_a_tensor_beyond_the_limit_is_named(limited: JsPage) -> None:
    limited.site.add("/windows.bundle", compile_bundle("mlp", [MLP], models=False, targets=("wasm", "webgpu")))
    limit(limited, 1 << 28, 512)
    error = limited.failure(TRAIN)
    assert error["name"] == "DeviceError" and error["message"].endswith(
        f"bytes at once; maxStorageBufferBindingSize of this GPU is 512. {WITHOUT_GPU}"
    )
