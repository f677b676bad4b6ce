"""The gradient of relu before that of the max pooling after it: maxima have all the signs, and are fewer.

What the pooling read need not be kept for the backward pass then.
"""

from __future__ import annotations

from copy import copy
from math import prod

from trainweb.ir.layout import ARENA
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Storage, index_uses


def mask_maxima(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Exchange gradients of max pooling and relu where nothing else reads what is between them: the same bits."""
    kept = {b.storage for b in outputs}
    readers, writers = index_uses(instructions)

    def maker(b: Buf, kernel: str) -> tuple[int, KernelCall] | None:
        k, *more = writers.get(b.storage, [-1])
        call = instructions[k]
        alone = b.storage.segment == ARENA and k >= 0 and not more
        return (k, call) if alone and isinstance(call, KernelCall) and kernel == call.KERNEL else None

    result = list(instructions)
    for k, e in enumerate(instructions):
        if not isinstance(e, ElementwiseCall) or (operands := _masked(e)) is None:
            continue
        gradient, mask = operands
        back = maker(gradient, "max_pool_gradient_f32")
        if back is None or readers[gradient.storage] != [k] or gradient.storage in kept:
            continue
        at, call = back
        forward = maker(call.args["indices"], "max_pool_f32")
        if forward is None or not mask.same_place(forward[1].args["x"]):
            continue
        dy, y = call.args["dy"], forward[1].args["y"]
        if writers.get(y.storage) != [forward[0]] or writers.get(mask.storage, [0])[-1] > forward[0]:
            continue
        masked = Buf(Storage(ARENA, dy.nbytes), "float32", y.shape, name="temp")
        ins = [dy.view(y.shape) if b is gradient else y for b in e.ins]
        result[at] = ElementwiseCall(y.shape, ins, [masked], e.roots, e.node)
        exchanged = copy(call)
        exchanged.args.update(dy=masked, dx=e.outs[0])
        result[k] = exchanged
    return result


def _masked(e: ElementwiseCall) -> tuple[Buf, Buf] | None:
    """g and y of an elementwise y > 0 ? g : 0 over whole tensors."""
    root = e.roots[0]
    if len(e.roots) != 1 or root.op != "select" or len(e.ins) != 2 or any(b.size != prod(e.shape) for b in e.ins):
        return None
    positive, g, zero = root.args
    if (positive.op, g.op, zero.op, zero.imm) != ("gt", "input", "const", 0) or positive.args[1] is not zero:
        return None
    y = positive.args[0]
    return (e.ins[int(g.imm or 0)], e.ins[int(y.imm or 0)]) if y.op == "input" and y is not g else None
