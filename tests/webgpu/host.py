"""Runs plans for the GPU natively, by wgpu-py, in the order of docs/architecture-webgpu.md: for tests only.

The head runs on the kernels, in a host with a session's state. Everything else lies in buffers of the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from trainweb.backend.base import N_SEGMENTS
from trainweb.backend.chosen import RUNTIME
from trainweb.backend.plan import GpuBody, LoadedPlan, Plan, TensorPlace
from trainweb.backend.webgpu.shader import STATUS_BINDING, UNIFORM_BINDING, UNIFORM_BYTES
from trainweb.backend.webgpu.windows import BINDING_BYTES
from trainweb.ir.layout import ARENA, CONSTANTS, GRADIENTS, LARGE_CONSTANTS, MOMENTUM0, MOMENTUM1, PARAMETERS, PREPARED
from trainweb.model.graph import Tensor
from trainweb.training.arrays import to_numpy

SEGMENTS = (ARENA, CONSTANTS, PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1, PREPARED, LARGE_CONSTANTS)
"""The segments that are bound."""
MIN_BYTES = 256
WORD = 4


@cache
def open_device() -> Any:
    """The device of the tests; without the package or an adapter they are skipped, with the reason."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    wgpu = pytest.importorskip("wgpu", reason="the package wgpu is not installed (pip install wgpu==0.32.0)")
    try:
        adapter = wgpu.gpu.request_adapter_sync()
    except Exception as error:
        pytest.skip(f"there is no adapter of WebGPU (apt-get install mesa-vulkan-drivers): {error}")
    return adapter.request_device_sync(required_limits={"max-storage-buffers-per-shader-stage": len(SEGMENTS)})


@cache
def group_layout() -> Any:
    import wgpu

    storage = {"type": wgpu.BufferBindingType.storage}
    uniform = {"type": wgpu.BufferBindingType.uniform, "has_dynamic_offset": True, "min_binding_size": UNIFORM_BYTES}
    status = {"type": wgpu.BufferBindingType.uniform}
    entries = [(s, storage) for s in SEGMENTS] + [(UNIFORM_BINDING, uniform), (STATUS_BINDING, status)]
    return open_device().create_bind_group_layout(
        entries=[{"binding": b, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": kind} for b, kind in entries]
    )


@cache
def pipeline_of(text: str) -> Any:
    """The pipeline of a shader, compiled once for all tests."""
    layout = open_device().create_pipeline_layout(bind_group_layouts=[group_layout()])
    compute = {"module": open_device().create_shader_module(code=text), "entry_point": "main"}
    return open_device().create_compute_pipeline(layout=layout, compute=compute)


class GpuHost:
    """The buffers of a session, and plans that run on them.

    Parameters
    ----------
    sizes
        Bytes of each segment; those of the arena and of constants grow with the plans.
    form
        The dispatches to run: those for all devices, or `tiled` or `few` ones.
    """

    most = BINDING_BYTES
    """Bytes that are bound at once."""

    def __init__(self, sizes: list[int], form: str = "dispatches") -> None:
        self.form, self.device = form, open_device()
        self.wgpu = import_module("wgpu")
        self.sizes = sizes
        self.head = RUNTIME.open_host(RUNTIME.get_engine(), [0 if s != 6 else n for s, n in enumerate(sizes)])
        self.buffers = {s: self._buffer(sizes[s]) for s in SEGMENTS}
        self.layout = group_layout()
        self.status = self._buffer(0, uniform=True)

    def _buffer(self, nbytes: int, uniform: bool = False) -> Any:
        usage = self.wgpu.BufferUsage
        kind = usage.UNIFORM if uniform else usage.STORAGE
        size = max(MIN_BYTES, -(-nbytes // MIN_BYTES) * MIN_BYTES)
        return self.device.create_buffer(size=size, usage=kind | usage.COPY_SRC | usage.COPY_DST)

    def load(self, plan: Plan) -> LoadedGpuPlan:
        """Compile the pipelines of a plan, and make room for it; constants belong to one plan at a time."""
        assert plan.body is not None
        large = bytearray(len(plan.body.large))
        for at, piece in plan.body.large.pieces():
            large[at : at + len(piece)] = piece
        for segment, nbytes in ((ARENA, plan.body.arena_bytes), (CONSTANTS, len(plan.body.constants)), (8, len(large))):
            if nbytes > self.buffers[segment].size:
                self.buffers[segment] = self._buffer(nbytes)
        for pipeline, *_ in self.dispatches(plan.body):
            pipeline_of(plan.body.texts[pipeline])
        uniforms = self._buffer(len(plan.body.uniforms), uniform=True)
        if plan.body.uniforms:
            self.device.queue.write_buffer(uniforms, 0, plan.body.uniforms)
        return LoadedGpuPlan(self.head.load(plan), plan.body, bytes(large), uniforms)

    def dispatches(self, body: GpuBody) -> list[list[int]]:
        """Pipeline, grid and block of each dispatch."""
        words: list[list[int]] = np.frombuffer(getattr(body, self.form), np.uint32).reshape(-1, 6).tolist()
        return words

    def write(self, segment: int, offset: int, data: bytes) -> None:
        """Overwrite whole words of a segment."""
        padded = bytes(data) + bytes(-len(data) % WORD)
        if padded:
            self.device.queue.write_buffer(self.buffers[segment], offset, padded)

    def read(self, segment: int, offset: int, nbytes: int) -> bytes:
        """Bytes of a segment."""
        end = -(-(offset + nbytes) // WORD) * WORD
        start = offset // WORD * WORD
        return bytes(self.device.queue.read_buffer(self.buffers[segment], start, end - start))[offset - start :][
            :nbytes
        ]

    def run(self, loaded: LoadedGpuPlan, feeds: Mapping[str, Tensor]) -> None:
        """A step: the head, feeds and its results up, the dispatches in one pass, and the tail on what comes down."""
        body, plan = loaded.body, loaded.head.plan
        self.head.write_feeds(loaded.head, {n: feeds[n] for n in plan.inputs})
        self._take(loaded, b"\1\0")
        self.write(CONSTANTS, 0, body.constants)
        self.write(LARGE_CONSTANTS, 0, loaded.large)
        for name, place in body.inputs.items():
            self.write(place.segment, place.offset, bytes(feeds[name].data))
        for source, target, nbytes in body.uploads:
            self.write(ARENA, target, self.head.read_segment(ARENA, source, nbytes))
        groups = [self._group(loaded, windows) for windows in body.windows]
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, x, y, z, slot, group in self.dispatches(body):
            compute.set_pipeline(pipeline_of(body.texts[pipeline]))
            compute.set_bind_group(0, groups[group], [slot * UNIFORM_BYTES])
            compute.dispatch_workgroups(x, y, z)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        if body.downloads:
            for source, target, nbytes in body.downloads:
                self.head.write_segment(ARENA, target, self.read(ARENA, source, nbytes))
            self._take(loaded, b"\0\1")

    def _group(self, loaded: LoadedGpuPlan, windows: Iterable[tuple[int, int, int, int, str]]) -> Any:
        """A group of windows. Other bindings have the start of their segment, as far as a device binds it."""
        bound = {s: (b, 0, min(b.size, self.most)) for s, b in self.buffers.items()}
        for binding, segment, offset, nbytes, name in windows:
            assert nbytes <= self.most, name
            bound[binding] = self.buffers[segment], offset, -(-nbytes // WORD) * WORD
        bound |= {UNIFORM_BINDING: (loaded.uniforms, 0, UNIFORM_BYTES), STATUS_BINDING: (self.status, 0, 16)}
        entries = [
            {"binding": n, "resource": {"buffer": b, "offset": offset, "size": nbytes}}
            for n, (b, offset, nbytes) in bound.items()
        ]
        return self.device.create_bind_group(layout=self.layout, entries=entries)

    def _take(self, loaded: LoadedGpuPlan, turns: bytes) -> None:
        """Let the kernels run the head or the tail of a plan."""
        if loaded.body.downloads:
            self.head.write_segment(ARENA, loaded.body.turns, turns)
        self.head.run(loaded.head)

    def output(self, loaded: LoadedGpuPlan, name: str) -> np.ndarray:
        """A result of the last run, of the body or of the tail."""
        if name in loaded.head.plan.outputs:
            return to_numpy(self.head.read_outputs(loaded.head, [name])[name])
        return self.tensor(loaded.body.outputs[name])

    def tensor(self, place: TensorPlace) -> np.ndarray:
        return np.frombuffer(self.read(place.segment, place.offset, place.nbytes), place.dtype).reshape(place.shape)

    def release(self) -> None:
        """Give everything back."""
        self.head.release()
        for buffer in self.buffers.values():
            buffer.destroy()


class LoadedGpuPlan:
    """A plan that is ready to run."""

    def __init__(self, head: LoadedPlan, body: GpuBody, large: bytes, uniforms: Any) -> None:
        self.head, self.body, self.large, self.uniforms = head, body, large, uniforms


def forms_of(plan: Plan) -> list[str]:
    """The forms of dispatches that a plan has, each of equal ones once."""
    assert plan.body is not None
    return [*{getattr(plan.body, form): form for form in ("few", "tiled", "dispatches")}.values()][::-1]


def no_segments() -> list[int]:
    """Sizes of the segments of no session."""
    return [0] * N_SEGMENTS
