"""Products that add to a gradient buffer themselves: no workspace for what they add, and one pass over memory less."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from trainweb.compiler.passes.epilogue import added_operand
from trainweb.ir.calls import Accumulates, TakesRelu
from trainweb.ir.instructions import Buf, ElementwiseCall
from trainweb.ir.layout import ARENA, GRADIENTS
from trainweb.ir.program import Program

if TYPE_CHECKING:
    from trainweb.compiler.context import Context


def accumulate_in_place(program: Program, _: Context) -> None:
    """Let products whose results are only added to gradient buffers add them."""
    for call in program:
        if not isinstance(call, Accumulates) or call.accumulate or (isinstance(call, TakesRelu) and call.activation):
            continue
        sums = {b: e for b in call.accumulated if (e := _sum_of(program, call, b)) is not None}
        if len(sums) < len(call.accumulated):
            continue
        new = copy(call)
        new.accumulate = 1
        for b, e in sums.items():
            buffer = e.outs[0]
            new.replace_operand(b, Buf(buffer.storage, b.dtype, b.shape, None, buffer.shift, buffer.name))
            program.remove(e)
        program.replace(call, new)


def _sum_of(program: Program, call: Accumulates, b: Buf) -> ElementwiseCall | None:
    """What adds the result `b` of `call` to a gradient buffer, if nothing else reads it."""
    if b.storage.segment != ARENA or b.storage in program.output_storages:
        return None
    users = program.users(b.storage)
    if len(users) != 2 or users[0] is not call:
        return None
    e = users[1]
    if not isinstance(e, ElementwiseCall) or len(e.roots) != 1:
        return None
    buffer = e.outs[0]
    value = next((x for x in e.ins if x.storage is b.storage), b)
    other = added_operand(e.roots[0], e, value)
    if buffer.storage.segment != GRADIENTS or other is None or not other.same_place(buffer):
        return None
    # Nothing may read or write the buffer between the product and the sum.
    if not value.same_place(b) or value.size != buffer.size or program.is_used_from(buffer.storage, call, e):
        return None
    return e
