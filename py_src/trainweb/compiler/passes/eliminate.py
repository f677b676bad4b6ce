"""What is computed twice is computed once; results that nothing reads are not stored."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from trainweb.ir.layout import ARENA
from trainweb.ir.program import Buf, Instruction, KernelCall
from trainweb.model.graph import Tensor

if TYPE_CHECKING:
    from trainweb.backend.wasm.engine.description import Description
    from trainweb.ir.shapes import TensorType
    from trainweb.ops.op import Op


def computation(op: Op, results: Sequence[TensorType]) -> Hashable:
    """What a pure node computes: nodes of one graph for which this is equal have equal results."""
    node = op.node
    # The text tells 0.0 from -0.0, and 1 from 1.0.
    attrs = sorted((k, v if isinstance(v, Tensor) else repr(v)) for k, v in node.attrs.items())
    flat = tuple((k, (v.dtype, v.shape, bytes(v.data)) if isinstance(v, Tensor) else v) for k, v in attrs)
    wanted = tuple(map(bool, node.outputs))
    return node.domain, node.op_type, flat, tuple(node.inputs), wanted, tuple((t.dtype, t.shape) for t in results)


def drop_unread_results(
    instructions: list[Instruction], outputs: list[Buf], description: Description
) -> list[Instruction]:
    """Leave out the optional results of kernels that no instruction reads, such as a mask that is drawn again."""
    read = {b.storage for i in instructions for b in i.reads} | {b.storage for b in outputs}
    for call in instructions:
        if not isinstance(call, KernelCall):
            continue
        for arg in description.kernels[call.KERNEL].args:
            b = call.args[arg.name]
            if arg.kind == "out" and arg.optional and b and b.storage.segment == ARENA and b.storage not in read:
                call.args[arg.name] = None
    return instructions
