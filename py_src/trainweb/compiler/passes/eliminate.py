"""Equal computations run once; results that nothing reads are not stored."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from trainweb.compiler.context import Context
from trainweb.ir.instructions import KernelCall
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Tensor
from trainweb.model.lazy import identity
from trainweb.ops.frame.op import Op


def computation(op: Op, results: Sequence[TensorType]) -> Hashable:
    """Return the computation of a pure node. Nodes of one graph for which it is equal have equal results."""
    node = op.node
    # repr() distinguishes 0.0 from -0.0, and 1 from 1.0.
    attrs = sorted((k, v if isinstance(v, Tensor) else repr(v)) for k, v in node.attrs.items())
    flat = tuple((k, identity(v) if isinstance(v, Tensor) else v) for k, v in attrs)
    wanted = tuple(map(bool, node.outputs))
    return node.domain, node.op_type, flat, tuple(node.inputs), wanted, tuple((t.dtype, t.shape) for t in results)


def drop_unread_results(program: Program, _: Context) -> None:
    """Omit optional results of kernels that no instruction reads, such as a mask that is drawn again."""
    for call in program:
        if not isinstance(call, KernelCall):
            continue
        unread = [
            name
            for name, b in call.operands()
            if name in call.OPTIONAL_RESULTS and program.is_temporary(b.storage) and not program.readers(b.storage)
        ]
        if unread:
            program.replace(call, call.without(unread))
