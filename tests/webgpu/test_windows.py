"""Segments of more bytes than a device binds at once: windows of them, and the same bytes after some steps."""

from itertools import combinations

import numpy as np
import pytest
from tests.webgpu.host import SEGMENTS, GpuHost
from tests.webgpu.train import Batches, open_model, types_of

from trainweb.backend.plan import Plan
from trainweb.backend.webgpu import windows
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS, STATE
from trainweb.model.graph import Tensor
from trainweb.training.core import SessionCore
from trainweb.training.step_kind import TRAIN

LASTING = (PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1)
CANARY = 0x5A


def limit(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Have plans for devices that bind so many bytes, and a device that binds no more."""
    monkeypatch.setattr(windows, "BINDING_BYTES", nbytes)
    monkeypatch.setattr(GpuHost, "most", nbytes)


def trained(core: SessionCore, batches: Batches, steps: int, clips: bool) -> tuple[list[Plan], list[bytes]]:
    """The plans of some steps, their losses, and then all that lasts, with what lies behind it."""
    host = GpuHost(list(core.host.sizes))
    plans = [
        core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu"),
        core.models.compile_clip(target="webgpu"),
        core.models.compile_optimizer(target="webgpu"),
    ]
    try:
        for segment in LASTING:
            nbytes = core.host.sizes[segment]
            host.write(segment, 0, core.host.read_segment(segment, 0, nbytes))
            host.write(segment, nbytes, bytes([CANARY]) * (host.buffers[segment].size - nbytes))
        host.head.write_segment(STATE, 0, core.host.read_segment(STATE, 0, core.host.sizes[STATE]))
        train, clip, update = map(host.load, plans)
        limits = {"limits": Tensor("limits", "float32", (2,), np.array([0.02, 0.1], np.float32).tobytes())}
        result = []
        for k in range(steps):
            host.run(train, batches[k % len(batches)])
            result.append(host.output(train, core.outputs["train"][0]).tobytes())
            if clips:
                host.run(clip, limits)
            host.run(update, {})
        return plans, [*result, *(host.read(s, 0, host.buffers[s].size) for s in LASTING)]
    finally:
        host.release()


@pytest.mark.parametrize(("name", "most"), [("D", 160 << 10), ("E", 1 << 15), ("R", 1 << 13), ("S", 270 << 10)])
def test_training_in_windows_gives_the_same_bytes(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(name, 2, is_small=True) as (core, batches):
        clips = most > 1 << 17  # a part of clipping has 64 KiB
        plain, expected = trained(core, batches, 3, clips)
        limit(monkeypatch, most)
        cut, actual = trained(core, batches, 3, clips)
    assert actual == expected
    assert all(plan.body is not None and [*plan.body.windows] == [()] for plan in plain)
    groups = [
        group for plan in (cut if clips else (cut[0], cut[2])) if plan.body is not None for group in plan.body.windows
    ]
    segments = {segment for group in groups for _, segment, *_ in group}
    assert segments == {s for s in (ARENA, *LASTING) if s == ARENA or core.host.sizes[s] > most}
    assert any(sum(segment == ARENA for _, segment, *_ in group) > 1 for group in groups)
    for group in groups:
        assert len({binding for binding, *_ in group}) == len(group) and {b for b, *_ in group} <= {*SEGMENTS}
        assert all(offset % 256 == 0 and nbytes <= most for _, _, offset, nbytes, _ in group)
        for (_, one, start, length, _), (_, other, offset, nbytes, _) in combinations(group, 2):
            assert one != other or start + length <= offset or offset + nbytes <= start


@pytest.mark.parametrize("value", [0.02, np.inf])
def test_clipping_in_parts_is_that_of_numpy(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 128 << 10)
    with open_model("S", 1, is_small=True) as (core, _):
        sizes, plan = list(core.host.sizes), core.models.compile_clip(target="webgpu")
    host = GpuHost(sizes)
    try:
        g = np.random.default_rng(3).normal(0, 0.02, sizes[GRADIENTS] // 4).astype(np.float32)
        host.write(GRADIENTS, 0, g.tobytes())
        clip = host.load(plan)
        host.run(clip, {"limits": Tensor("limits", "float32", (2,), np.array([value, 0.5], np.float32).tobytes())})
        actual = np.frombuffer(host.read(GRADIENTS, 0, sizes[GRADIENTS]), np.float32)
    finally:
        host.release()
    expected = np.clip(g.astype(np.float64), -np.float32(value), np.float32(value))
    expected *= min(1, 0.5 / (np.sqrt((expected**2).sum()) + 1e-6))
    np.testing.assert_allclose(actual, expected, rtol=2e-6)
    assert len(clip.body.nodes) > 2


def test_a_tensor_of_more_bytes_than_a_device_binds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1 << 12)
    with open_model("E", 1, is_small=True) as (core, batches):
        body = core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu").body
        sizes = {slot.name: slot.nbytes for slot in core.layout.slots.values()}
    assert body is not None
    named = {name: nbytes for group in body.windows for _, s, _, nbytes, name in group if s == PARAMETERS}
    assert {name for name, nbytes in sizes.items() if nbytes > 1 << 12} <= {*named}
    assert all(named[name] >= nbytes for name, nbytes in sizes.items() if nbytes > 1 << 12)


def tensor(segment: int, offset: int, nbytes: int, shift: int = 0) -> Buf:
    """A tensor of bytes at a place."""
    return Buf(Storage(segment, nbytes, offset), "float32", ((nbytes - shift) // 4,), shift=shift, name=f"{offset}")


def test_a_dispatch_of_many_tensors_has_no_more_windows_than_bindings() -> None:
    """Ten tensors far from each other, of an arena of 10 GiB: four windows of up to three times as many bytes."""
    most = windows.BINDING_BYTES
    far = [tensor(ARENA, 8 * most * k, 1000) for k in range(10)]
    others = [tensor(segment, 0, 100) for segment in (CONSTANTS, PARAMETERS, GRADIENTS)]
    cut = windows.windows_of([*far, *others], {ARENA: 81 * most, CONSTANTS: 100, PARAMETERS: 100, GRADIENTS: 100})
    assert len(cut) <= 5 and {w.segment for w in cut} == {ARENA}
    assert {w.binding for w in cut}.isdisjoint({CONSTANTS, PARAMETERS, GRADIENTS, STATE})
    for b in far:
        assert any(w.offset <= b.storage.offset and b.storage.offset + 1000 <= w.offset + w.nbytes for w in cut)


def test_tensors_that_share_the_alignment_of_a_window_are_in_one() -> None:
    most = windows.BINDING_BYTES
    first, second = tensor(PARAMETERS, 0, most - 100), tensor(PARAMETERS, most - 100, most - 400)
    (window,) = windows.windows_of([first, second], {PARAMETERS: 4 * most})
    assert window == (PARAMETERS, PARAMETERS, 0, 2 * most - 500, "0")
    apart = windows.windows_of([first, tensor(PARAMETERS, most + 156, most - 256)], {PARAMETERS: 4 * most})
    assert [(w.binding, w.offset) for w in apart] == [(PARAMETERS, 0), (8, most)]
