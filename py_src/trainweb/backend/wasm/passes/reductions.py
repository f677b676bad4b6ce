"""Reductions inside elementwise calls: a chain sums its result chunk by chunk, while it is in the cache."""

from __future__ import annotations

from math import lcm, prod

from trainweb.backend.wasm.chunks import GRAIN_ELEMENTS, chunk_elements
from trainweb.ir.calls import Reduce
from trainweb.ir.instructions import ElementwiseCall, Reduction
from trainweb.ir.layout import REDUCE_MEAN, REDUCE_SUM, REDUCE_SUM_SQUARES
from trainweb.ir.program import Program
from trainweb.ir.shapes import collapse

CACHED_BYTES = 4 << 20
"""A result that the cache holds is read again in less time than many partial sums take."""
MIN_ROWS = (64, 4)
"""Rows of a chunk that are worth a partial sum, of such a result and of a bigger one."""


def fuse_reductions(program: Program, _: object) -> None:
    """Let elementwise calls reduce their results; `reduce_f32` combines partial sums of several chunks."""
    for call in program:
        if not isinstance(call, Reduce):
            continue
        before = [w for w in program.writers(call.x.storage) if w.position < call.position]
        source = before[-1] if before else None
        if isinstance(source, ElementwiseCall) and not program.is_used_from(call.y.storage, source, call):
            stored = program.users(call.x.storage) != [source, call] or not program.is_temporary(call.x.storage)
            _reduce_inside(program, source, call, stored)


def _reduce_inside(program: Program, source: ElementwiseCall, call: Reduce, stored: bool) -> None:
    """Let `source`, which makes the operand of `call`, reduce it, if it can. `call` adds up the rest."""
    x, y, n, inner, op = call.x, call.y, call.n, call.inner, call.op
    number = next((k for k, out in enumerate(source.outs) if out.same_place(x)), None)
    if number is None or source.reduction or op not in (REDUCE_SUM, REDUCE_MEAN, REDUCE_SUM_SQUARES):
        return
    if n < 2 or prod(source.shape) != x.size:
        return
    dims, _ = collapse(source.shape, [b.shape for b in source.ins])
    unit = dims[-1] if len(dims) > 1 else 1
    is_big, builder = x.nbytes >= CACHED_BYTES, program.build(call.node)
    full, partial = Reduction(op, n, inner), Reduction(REDUCE_SUM, 0, inner)
    pays = lcm(unit, inner) <= GRAIN_ELEMENTS // MIN_ROWS[is_big] and (is_big or not stored)
    if chunk_elements(unit, full):
        reduction, target = full, y
    elif pays and call.outer == 1 and op != REDUCE_SUM_SQUARES:
        reduction = partial
        n_chunks = -(-x.size // chunk_elements(unit, partial))
        target = builder.temp("float32", (n_chunks, inner))
        total = y if op == REDUCE_SUM else builder.temp("float32", (inner,))
        builder.emit(Reduce(x=target, y=total, outer=1, n=n_chunks, inner=inner, op=REDUCE_SUM))
        if op == REDUCE_MEAN:
            builder.elementwise([y.view((inner,))], [total], lambda e, a: e.div(a, e.const(n, "float32")))
    else:
        return
    outs, roots = list(source.outs), list(source.roots)
    out, root = outs.pop(number), roots.pop(number)
    outs += [out, target] if stored else [target]
    program.replace(call, *builder.instructions)
    program.replace(source, ElementwiseCall(source.shape, source.ins, outs, [*roots, root], source.node, reduction))
