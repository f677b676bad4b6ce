"""From a finished Program to a Plan for the GPU: the head as words for the kernels, and the body as dispatches."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import ceil

from trainweb import messages
from trainweb.backend.chosen import DEFAULT_TARGET
from trainweb.backend.memory import place, place_constants, place_of
from trainweb.backend.plan import GpuBody, Plan
from trainweb.backend.webgpu.partition import LEFT_OUT, Parts, cut, for_memory
from trainweb.backend.webgpu.shader import TEMPLATES, WORD, Kernel
from trainweb.backend.webgpu.windows import ALIGNMENT, Window, calls_in_parts
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, CONSTANTS, LARGE_CONSTANTS
from trainweb.ir.loop import n_instructions
from trainweb.ir.program import Program

name = "webgpu"


def has(kind: type[KernelCall]) -> bool:
    """Return True if a template takes calls of this kind (`Target`)."""
    return kind in TEMPLATES or kind in LEFT_OUT


def compile_program(program: Program, segment_bytes: Sequence[int], arena_limit: int) -> Plan:
    """Cut a program, place its storages and write its shaders (`Target`)."""
    parts = cut([part for i in program.instructions for part in calls_in_parts(i)], program.outputs)
    feeds = [b.among(parts.places) for b in program.feeds if b.storage in parts.places]
    results = [b.among(parts.places) for b in program.outputs if parts.tail]
    turns = Buf(Storage(ARENA, 2), "bool", (2,))
    head_feeds = [*feeds, *_bytes_of(parts.downloads.values()), *([turns] if parts.tail else [])]
    uploads = _bytes_of(parts.uploads.values())
    head = Program(program.builder, head_feeds, [*results, *uploads], _in_turn(parts, program, turns))
    plan = DEFAULT_TARGET.compile_program(head, segment_bytes, arena_limit)
    plan.inputs = {b.name: plan.inputs[b.name] for b in feeds}
    plan.outputs = {b.name: plan.outputs[b.name] for b in results}
    plan.target = name
    plan.body = _body(parts, program, segment_bytes, arena_limit)
    plan.body.turns = turns.storage.offset or 0
    plan.text = [*plan.text, *plan.body.text]
    return plan


def _bytes_of(storages: Iterable[Storage]) -> list[Buf]:
    return [Buf(s, "uint8", (s.nbytes,)) for s in storages]


def _in_turn(parts: Parts, program: Program, turns: Buf) -> list[Instruction]:
    """Head and tail; where there is a tail, each runs if its byte of `turns` is not 0."""
    if not parts.tail:
        return parts.head
    zero, steps = program.builder.constant("int64", (1,), [0]), list[Instruction]()
    for k, part in enumerate((parts.head, parts.tail)):
        leave = calls.LoopWhile(condition=turns.view((1,), k), counter=zero, limit=1, skip=n_instructions(part))
        leave.node = parts.tail[0].node
        steps += [leave, *part]
    return steps


def _body(parts: Parts, program: Program, segment_bytes: Sequence[int], arena_limit: int) -> GpuBody:
    constants, large = place_constants(program.instructions, program.outputs)
    outputs = [] if parts.tail else program.outputs
    accesses = [for_memory(kernels) for kernels in parts.body]
    read = {b.storage for b in (*(b for i in accesses for b in i.reads), *outputs)}
    feeds = [b for b in program.feeds if b.storage in read]
    uploads, downloads = _bytes_of(parts.uploads), _bytes_of(parts.downloads)
    arena_bytes = place(accesses, [*feeds, *uploads], [*outputs, *downloads], alignment=ALIGNMENT)
    if arena_bytes > arena_limit:
        raise messages.ARENA_LIMIT(nbytes=arena_bytes, limit=arena_limit)
    kernels = [k for of_call in parts.body for k in of_call]
    of_plan = {ARENA: arena_bytes, CONSTANTS: len(constants), LARGE_CONSTANTS: len(large)}
    sizes = dict(enumerate(segment_bytes)) | of_plan
    texts, blocks, windows = dict[str, int](), dict[bytes, int](), dict[tuple[Window, ...], int]()

    def words(forms: Iterable[Kernel]) -> bytes:
        numbers = array("I")
        for k in forms:
            group = windows.setdefault(k.bind(sizes), len(windows))
            pipeline = texts.setdefault(k.text(), len(texts))
            numbers.extend((pipeline, *k.grid, blocks.setdefault(k.uniforms(), len(blocks)), group))
        return numbers.tobytes()

    dispatches = words(kernels), words(k.shared or k for k in kernels), words(k.few or k for k in kernels)
    return GpuBody(
        [*texts],
        b"".join(blocks),
        [*windows],
        *dispatches,
        arena_bytes,
        constants,
        large,
        {b.name: place_of(b) for b in feeds},
        {b.name: place_of(b) for b in outputs},
        [_copied(s, t) for t, s in parts.uploads.items()],
        [_copied(s, t) for s, t in parts.downloads.items()],
        [k.call.node for k in kernels],
        [" or ".join(f"{x.name} {x.grid}" for x in (k, k.shared) if x) + f"  ; {k.call.node}" for k in kernels],
        [_work(of_call[0].call) // len(of_call) for of_call in parts.body for _ in of_call],
    )


def _copied(source: Storage, target: Storage) -> tuple[int, int, int]:
    """Two offsets, and bytes. They are whole words: no other tensor shares the last one."""
    return source.offset or 0, target.offset or 0, WORD * ceil(target.nbytes / WORD)


def _work(call: Instruction) -> int:
    """Operations of an instruction, or elements where they are more."""
    return max(call.flops() if isinstance(call, KernelCall) else 0, *(b.size for b in (*call.reads, *call.writes)))
