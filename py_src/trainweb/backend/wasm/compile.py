"""The back end for the WebAssembly kernels: from a finished Program to a Plan.

This is the seam for another back end, such as WebGPU: it takes programs, and says how much workspace they need.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainweb import messages
from trainweb.backend.wasm.memory import place
from trainweb.backend.wasm.plan import Plan, TensorPlace, encode
from trainweb.ir.instructions import Buf, Instruction, Storage
from trainweb.ir.program import Program

__all__ = ["Plan", "TensorPlace", "compile_program", "workspace_bytes"]


def workspace_bytes(
    instructions: Sequence[Instruction],
    feeds: Sequence[Buf],
    outputs: Sequence[Buf],
    inner: frozenset[Storage] | None = None,
) -> int:
    """Return the bytes of workspace that these instructions take.

    With `inner`, they are a loop's, and only its own storages are placed.
    """
    return place(instructions, feeds, outputs, inner)[0]


def compile_program(program: Program, segment_bytes: Sequence[int], arena_limit: int) -> Plan:
    """Place the storages of a program and encode its instructions.

    Parameters
    ----------
    segment_bytes
        Sizes of the segments; the sizes of the arena and the constants are computed.
    arena_limit
        Bytes of workspace that the plan may take.

    Raises
    ------
    LimitError
        It would take more.
    """
    instructions, feeds, outputs = program.instructions, program.feeds, program.outputs
    arena_bytes, constants = place(instructions, feeds, outputs)
    if arena_bytes > arena_limit:
        raise messages.ARENA_LIMIT(nbytes=arena_bytes, limit=arena_limit)
    return encode(instructions, feeds, outputs, arena_bytes, constants, segment_bytes)
