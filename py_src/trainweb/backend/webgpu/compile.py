"""From a finished Program to a Plan for the GPU: the head as words for the kernels, and the body as dispatches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil

from trainweb import messages
from trainweb.backend.chosen import TARGETS, WASM
from trainweb.backend.memory import place, place_constants
from trainweb.backend.plan import GpuBody, LargeConstants, Plan, TensorPlace
from trainweb.backend.webgpu.partition import LEFT_OUT, BodyPart, Parts, cut
from trainweb.backend.webgpu.shader import TEMPLATES, WORD, Kernel
from trainweb.ir.instructions import Buf, KernelCall
from trainweb.ir.program import Program

name = "webgpu"


def has(kind: type[KernelCall]) -> bool:
    """Return True if a template takes calls of this kind (`Target`)."""
    return kind in TEMPLATES or kind in LEFT_OUT


def compile_program(program: Program, segment_bytes: Sequence[int], arena_limit: int) -> Plan:
    """Cut a program, place its storages and write its shaders (`Target`)."""
    # Shaders name segments, and a large constant learns its own where it is placed.
    on_gpu = place_constants(program.instructions, program.outputs)
    parts = cut(program.instructions, program.outputs)
    feeds = [b.among(parts.places) for b in program.feeds if b.storage in parts.places]
    results = [Buf(s, "uint8", (s.nbytes,), name=f"upload{n}") for n, s in enumerate(parts.uploads.values())]
    head = Program(program.builder, feeds, results, parts.head)
    plan = TARGETS[WASM].compile_program(head, segment_bytes, arena_limit)
    plan.outputs = {}
    plan.target = name
    plan.body = _body(parts, program, on_gpu, arena_limit)
    plan.text = [*plan.text, *plan.body.text]
    return plan


def _body(parts: Parts, program: Program, constants: tuple[bytes, LargeConstants], arena_limit: int) -> GpuBody:
    """The body, placed."""
    calls = [part.for_memory() for part in parts.body]
    read = {b.storage for i in calls for b in i.reads}
    feeds = [b for b in program.feeds if b.storage in read or b.storage in {o.storage for o in program.outputs}]
    uploads = [Buf(s, "uint8", (s.nbytes,)) for s in parts.uploads]
    arena_bytes = place(calls, [*feeds, *uploads], program.outputs)
    if arena_bytes > arena_limit:
        raise messages.ARENA_LIMIT(nbytes=arena_bytes, limit=arena_limit)
    texts, uniforms, dispatches = _dispatches(parts.body)
    return GpuBody(
        texts,
        uniforms,
        *dispatches,
        arena_bytes,
        *constants,
        {b.name: _place_of(b) for b in feeds},
        {b.name: _place_of(b) for b in program.outputs},
        # Whole words: no other tensor shares the last one.
        [(s.offset or 0, t.offset or 0, WORD * ceil(t.nbytes / WORD)) for t, s in parts.uploads.items()],
        [part.call.node for part in parts.body for _ in part.kernels],
        [f"{k.name} {k.grid}  ; {part.call.node}" for part in parts.body for k in part.kernels],
        [_work(part) // len(part.kernels) for part in parts.body for _ in part.kernels],
    )


def _work(part: BodyPart) -> int:
    """Operations of an instruction, or elements where they are more."""
    flops = part.call.flops() if isinstance(part.call, KernelCall) else 0
    return max(flops, *(b.size for b in (*part.call.reads, *part.call.writes)))


def _dispatches(body: Sequence[BodyPart]) -> tuple[list[str], bytes, tuple[bytes, bytes, bytes]]:
    """The texts, the numbers of dispatches, and pipeline, grid and slot of each: for all, fast ones, software."""
    texts: dict[str, int] = {}
    slots: dict[bytes, int] = {}

    def words(kernels: list[Kernel]) -> bytes:
        numbers = array("I")
        for k in kernels:
            pipeline = texts.setdefault(k.text(), len(texts))
            numbers.extend((pipeline, *k.grid, slots.setdefault(k.uniforms(), len(slots))))
        return numbers.tobytes()

    kernels = [k for part in body for k in part.kernels]
    dispatches = words(kernels), words([k.shared or k for k in kernels]), words([k.few or k for k in kernels])
    return [*texts], b"".join(slots), dispatches


def _place_of(b: Buf) -> TensorPlace:
    segment = b.storage.segment
    return TensorPlace(b.name, segment, (b.storage.offset or 0) + b.shift, b.nbytes, b.dtype, b.shape)
