"""The encoding of plans: the flat words that the executor runs (docs/architecture-plan.md)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from math import prod

from trainweb.backend.memory import place_of
from trainweb.backend.plan import LargeConstants, Plan
from trainweb.backend.wasm.chunks import GRAIN_ELEMENTS, chunk_elements
from trainweb.backend.wasm.codegen import FunctionSpec, emit_module
from trainweb.ir import layout
from trainweb.ir.expr import text_of
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall
from trainweb.ir.loop import written_out
from trainweb.ir.shapes import collapse

GENERATED = 0
REDUCTIONS = {layout.REDUCE_SUM: "sum", layout.REDUCE_MEAN: "mean", layout.REDUCE_SUM_SQUARES: "sum of squares"}


def encode(
    instructions: Sequence[Instruction],
    feeds: Sequence[Buf],
    outputs: Sequence[Buf],
    arena_bytes: int,
    constants: bytes,
    large: LargeConstants,
    segment_bytes: Sequence[int],
) -> Plan:
    """Turn placed instructions into a Plan.

    `segment_bytes` are sizes of the segments; the arena and the constants follow from the other arguments.
    """
    encoder = _Encoder()
    flops = sum(i.flops() for i in instructions if isinstance(i, KernelCall))
    instructions = written_out(instructions)
    for instruction in instructions:
        encoder.add(instruction)
    sizes = [arena_bytes, len(constants), *segment_bytes[2 : layout.LARGE_CONSTANTS], *([len(large)] if large else [])]
    constant = (layout.CONSTANTS, layout.LARGE_CONSTANTS)
    segments = [(0, size, 0 if k in constant else layout.PLAN_WRITABLE) for k, size in enumerate(sizes)]
    n_code = len(encoder.code)
    tables = layout.SEGMENT_WORDS * len(segments) + layout.BUFFER_WORDS * len(encoder.buffers)
    total = layout.HEADER_WORDS + tables + 2 * n_code
    header = [0] * layout.HEADER_WORDS
    header[layout.HEADER_MAGIC] = layout.PLAN_MAGIC
    header[layout.HEADER_VERSION] = layout.PLAN_VERSION
    header[layout.HEADER_TOTAL_WORDS] = total
    header[layout.HEADER_FINGERPRINT] = layout.FINGERPRINT
    header[layout.HEADER_N_SEGMENTS] = len(segments)
    header[layout.HEADER_N_BUFFERS] = len(encoder.buffers)
    header[layout.HEADER_N_CODE] = n_code
    header[layout.HEADER_N_INSTRUCTIONS] = len(instructions)
    header[layout.HEADER_N_FUNCTIONS] = len(encoder.specs)
    words = array("I", [*header, *chain.from_iterable(segments), *chain.from_iterable(encoder.buffers)])
    return Plan(
        b"".join([words, encoder.code, bytes(4 * n_code)]),
        constants,
        large,
        emit_module(list(encoder.specs)) if encoder.specs else b"",
        len(encoder.specs),
        arena_bytes,
        {b.name: place_of(b) for b in feeds},
        {b.name: place_of(b) for b in outputs},
        [i.node for i in instructions],
        encoder.text,
        flops,
    )


def _operand(b: Buf) -> str:
    shape = "x".join(map(str, b.shape)) or "scalar"
    return f"{layout.SEGMENT_NAMES[b.storage.segment]}+{(b.storage.offset or 0) + b.shift}:{b.dtype}[{shape}]"


class _Encoder:
    def __init__(self) -> None:
        self.code = array("I")
        self.buffers: dict[tuple[int, int, int], int] = {}
        self.specs: dict[FunctionSpec, int] = {}
        self.text: list[str] = []

    def buffer(self, b: Buf | None) -> int:
        """Index of the buffer table entry of `b`."""
        if b is None:
            return layout.PLAN_NO_BUFFER
        entry = (b.storage.segment, (b.storage.offset or 0) + b.shift, b.nbytes)
        return self.buffers.setdefault(entry, len(self.buffers))

    def add(self, instruction: Instruction) -> None:
        if isinstance(instruction, KernelCall):
            self._kernel(instruction)
        else:
            self._generated(instruction)

    def _kernel(self, call: KernelCall) -> None:
        words: list[int] = []
        shown: list[str] = []
        operands, floats = call.OPERANDS, call.FLOATS
        for name in call.ARGUMENTS:
            value = getattr(call, name)
            if name in operands:
                words.append(self.buffer(value))
                shown.append(f"{name}={_operand(value) if value is not None else 'null'}")
            elif name in floats:
                words.append(int.from_bytes(struct.pack("<f", value), "little"))
                shown.append(f"{name}={value:g}")
            elif isinstance(value, tuple):
                words += [n & 0xFFFFFFFF for n in value]
                shown.append(f"{name}={list(value)}")
            else:
                words.append(value & 0xFFFFFFFF)
                shown.append(f"{name}={value}")
        text = f"{call.KERNEL}({', '.join(shown)})  ; {call.node}"
        if len(words) != call.WORDS:
            raise ValueError(f"{call.WORDS} words of arguments expected, {len(words)} are given: {text}")
        self.code.extend((call.OPCODE | len(words) << 16, *words))
        self.text.append(text)

    def _generated(self, call: ElementwiseCall) -> None:
        dims, strides = collapse(call.shape, [b.shape for b in call.ins])
        inner, outer = dims[-1], dims[:-1]
        steps = tuple(s[-1] for s in strides)
        reduces = call.reduction is not None
        spec = FunctionSpec(
            tuple(b.dtype for b in call.ins),
            steps,
            tuple(call.roots),
            len(outer),
            reduces,
            len(call.outs) == len(call.roots) + reduces,
        )
        number = self.specs.setdefault(spec, len(self.specs))
        words: list[int] = []
        if outer:
            words = [inner, *outer[1:], *(s for row in strides for s in row[:-1])]
        n = prod(outer) if outer else inner
        grain = max(1, GRAIN_ELEMENTS // inner) if outer else GRAIN_ELEMENTS
        reduced = ""
        if r := call.reduction:
            unit = inner if outer else 1
            elements = chunk_elements(unit, r)
            grain = elements // unit
            words += [grain, unit, elements // r.n if r.n else r.inner, r.n, r.inner, r.op]
            rows = f"{r.n}" if r.n else f"{elements // r.inner} at a time"
            reduced = f" -> {REDUCTIONS[r.op]} over {rows}, inner={r.inner}"
        bufs = [(b, 0) for b in call.ins] + [(b, 1) for b in call.outs]
        args: list[int] = [number, n, grain, len(bufs), len(words)]
        for b, writes in bufs:
            args += [self.buffer(b), b.nbytes, writes]
        args += words
        self.code.extend((GENERATED | len(args) << 16, *args))
        operands = ", ".join(_operand(b) for b in call.outs) + " = " + ", ".join(_operand(b) for b in call.ins)
        size = "x".join(map(str, dims))
        self.text.append(f"generated f{number} {size} {operands}: {text_of(call.roots)}{reduced}  ; {call.node}")
