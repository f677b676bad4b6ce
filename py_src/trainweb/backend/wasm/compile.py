"""From a finished Program to a Plan."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb import messages
from trainweb.backend.memory import place, place_constants
from trainweb.backend.plan import Plan
from trainweb.backend.wasm.encode import encode
from trainweb.ir.instructions import KernelCall
from trainweb.ir.program import Program

name = "wasm"


def has(kind: type[KernelCall]) -> bool:
    """Return True: the kernels run every call (`Target`)."""
    return kind in KernelCall.KERNELS


def compile_program(program: Program, segment_bytes: Sequence[int], arena_limit: int) -> Plan:
    """Place the storages of a program and encode its instructions (`Target`)."""
    instructions, feeds, outputs = program.instructions, program.feeds, program.outputs
    arena_bytes = place(instructions, feeds, outputs)
    if arena_bytes > arena_limit:
        raise messages.ARENA_LIMIT(nbytes=arena_bytes, limit=arena_limit)
    constants, large = place_constants(instructions, outputs)
    return encode(instructions, feeds, outputs, arena_bytes, constants, large, segment_bytes)
