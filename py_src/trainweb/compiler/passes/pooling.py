"""Compute the gradient of relu before the gradient of the max pooling after it.

A maximum is positive where the element that it was taken from is, and there are fewer maxima than elements. The
pooling's input need not be kept for the backward pass then.
"""

from __future__ import annotations

from copy import copy
from math import prod

from trainweb.compiler.context import Context
from trainweb.ir.calls import MaxPool, MaxPoolGradient
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Program


def mask_maxima(program: Program, _: Context) -> None:
    """Swap the gradients of max pooling and relu if nothing else reads the tensor between them: the same bits."""
    for e in program:
        if not isinstance(e, ElementwiseCall) or (operands := _masked(e)) is None:
            continue
        gradient, mask = operands
        back = _maker(program, gradient)
        if (
            not isinstance(back, MaxPoolGradient)
            or program.readers(gradient.storage) != (e,)
            or not program.is_temporary(gradient.storage)
        ):
            continue
        forward = _maker(program, back.indices)
        if not isinstance(forward, MaxPool) or not mask.same_place(forward.x):
            continue
        dy, y = back.dy, forward.y
        if program.writers(y.storage) != (forward,):
            continue
        if any(w.position > forward.position for w in program.writers(mask.storage)):
            continue
        masked = Buf(Storage(ARENA, dy.nbytes), "float32", y.shape, name="temp")
        ins = [dy.view(y.shape) if b is gradient else y for b in e.ins]
        new = copy(back)
        new.dy, new.dx = masked, e.outs[0]
        program.replace(e, new)
        program.replace(back, ElementwiseCall(y.shape, ins, [masked], e.roots, e.node))


def _maker(program: Program, b: Buf) -> Instruction | None:
    """Return the only instruction that writes a tensor of the workspace."""
    writers = program.writers(b.storage)
    return writers[0] if len(writers) == 1 and b.storage.segment == ARENA else None


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
