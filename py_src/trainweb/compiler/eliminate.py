"""Results that nothing reads are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainweb.compiler.lower import ARENA, Buf, Instruction, KernelCall

if TYPE_CHECKING:
    from trainweb.engine.description import Description


def drop_unread_results(
    instructions: list[Instruction], outputs: list[Buf], description: Description
) -> list[Instruction]:
    """Leave out the optional results of kernels that no instruction reads, such as a mask that is drawn again."""
    read = {b.storage for i in instructions for b in i.reads} | {b.storage for b in outputs}
    for call in instructions:
        if not isinstance(call, KernelCall):
            continue
        for arg in description.kernels[call.kernel].args:
            b = call.args[arg.name]
            if arg.kind == "out" and arg.optional and b and b.storage.segment == ARENA and b.storage not in read:
                call.args[arg.name] = None
                call.writes = [w for w in call.writes if w is not b]
    return instructions
