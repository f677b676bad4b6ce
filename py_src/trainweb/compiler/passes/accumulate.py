"""Products that add what they make to a tensor themselves: no workspace for it, and one pass over memory less."""

from __future__ import annotations

from copy import copy
from math import prod

from trainweb.compiler.context import Context
from trainweb.compiler.passes.epilogue import added_operand
from trainweb.ir.calls import Accumulates, TakesBias, TakesRelu
from trainweb.ir.expr import Expr
from trainweb.ir.instructions import Buf, ElementwiseCall
from trainweb.ir.layout import ARENA, GRADIENTS
from trainweb.ir.program import Program


def accumulate_in_place(program: Program, _: Context) -> None:
    """Let products add to gradient buffers directly, if their results are read nowhere else."""
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
    """Return the call that adds the result `b` of `call` to a gradient buffer, if nothing else reads `b`."""
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


def accumulate_sums(program: Program, _: Context) -> None:
    """Let a product add to another product's result directly, with the same bits."""
    for e in program:
        if isinstance(e, ElementwiseCall) and len(e.roots) == 1:
            summands = _summands(e.roots[0])
            if len(set(summands)) == len(summands) > 1:
                _sum_products(program, e, summands)


def _summands(root: Expr) -> list[Expr]:
    """The inputs of which `root` is the sum, in the order in which they are added; none where it is something else."""
    others: list[Expr] = []
    while root.op == "add" and root.dtype == "float32" and root.args[1].op == "input":
        others.insert(0, root.args[1])
        root = root.args[0]
    return [root, *others] if root.op == "input" else []


def _sum_products(program: Program, e: ElementwiseCall, summands: list[Expr]) -> None:
    """Let the first summands of `e` that are products add to the one of them that comes first."""
    calls: list[TakesBias] = []
    for x in summands:
        call = _summand(program, e, *_bufs(e, [x]))
        # Only the first two may change their order.
        if call is None or (len(calls) > 1 and calls[-1].position > call.position):
            break
        calls.append(call)
        calls.sort(key=lambda call: call.position)
    out, is_complete = e.outs[0], len(calls) == len(summands)
    if len(calls) < 2 or any(call.bias is not None for call in calls[1:]):
        return
    if is_complete and (out.size != prod(e.shape) or program.is_used_from(out.storage, calls[0], e)):
        return
    place = out if is_complete else calls[0].c
    program.replace(e, *([] if is_complete else [_sum(program, e, [place, *_bufs(e, summands[len(calls) :])])]))
    for call in calls:
        new = copy(call)
        new.accumulate = int(call is not calls[0])
        new.c = Buf(place.storage, call.c.dtype, call.c.shape, None, place.shift, place.name)
        program.replace(call, new)


def _bufs(e: ElementwiseCall, inputs: list[Expr]) -> list[Buf]:
    return [e.ins[int(x.imm or 0)] for x in inputs]


def _sum(program: Program, e: ElementwiseCall, summands: list[Buf]) -> ElementwiseCall:
    """A call that makes of these, the first of which has the size of the result, what `e` made."""
    emitter = program.emitter
    root = emitter.input(0, "float32")
    for k in range(1, len(summands)):
        root = emitter.add(root, emitter.input(k, "float32"))
    return ElementwiseCall(e.shape, [summands[0].view(e.shape), *summands[1:]], e.outs, [root], e.node)


def _summand(program: Program, e: ElementwiseCall, b: Buf) -> TakesBias | None:
    """The product whose result `b` only `e` reads, element by element."""
    users = program.users(b.storage)
    once = sum(x.storage is b.storage for x in e.ins) == 1
    call = users[0] if once and len(users) == 2 and users[1] is e else None
    if not isinstance(call, TakesBias) or call.activation or call.accumulate or not program.is_temporary(b.storage):
        return None
    return call if call.c.same_place(b) and b.size == prod(e.shape) else None
