"""Fusion of elementwise calls: a producer that only elementwise calls read is computed inside its consumer.

A sum or mean of the result of a chain is computed by the chain, chunk by chunk, while it is in the cache.
"""

from __future__ import annotations

from math import lcm, prod

from trainweb.backend.wasm.plan import GRAIN_ELEMENTS, collapse
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.expr import MATH, Emitter, Expr, inputs_of, size_of
from trainweb.ir.layout import ARENA, REDUCE_MEAN, REDUCE_SUM
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Reduction, Storage

MAX_BUFFERS = 12
"""Addresses a fused function may hold: more spill."""
MAX_OPERATIONS = 48
"""Operations of a fused function."""
CHEAP_OPERATIONS = 4
"""Operations, no functions among them, that take less time than it takes to store a result and to read it again."""
CACHED_BYTES = 4 << 20
"""A result that the cache holds is read again in less time than many partial sums take."""
MIN_ROWS = (64, 4)
"""Rows of a chunk that are worth a partial sum, of such a result and of a bigger one."""


def fuse_elementwise(instructions: list[Instruction], outputs: list[Buf], emitter: Emitter) -> list[Instruction]:
    """Merge chains of elementwise calls of one iteration space; results stay the same bytes."""
    readers: dict[Storage, set[int]] = {}
    writers: dict[Storage, list[int]] = {}
    for k, instruction in enumerate(instructions):
        for b in instruction.reads:
            readers.setdefault(b.storage, set()).add(k)
        for b in instruction.writes:
            writers.setdefault(b.storage, []).append(k)
    kept = {b.storage for b in outputs}
    slots: list[Instruction | None] = list(instructions)
    producer: dict[Storage, int] = {}
    for k, instruction in enumerate(instructions):
        if not isinstance(instruction, ElementwiseCall):
            continue
        merged: ElementwiseCall = instruction
        for b in list(instruction.ins):
            p = producer.get(b.storage)
            source = slots[p] if p is not None else None
            if p is None or not isinstance(source, ElementwiseCall):
                continue
            if not _may_move(source, p, k, readers, writers):
                continue
            fused = _merge(source, merged, emitter, k, readers, kept)
            if fused is None:
                continue
            merged, slots[p] = fused, None
            for used in fused.ins:
                readers.setdefault(used.storage, set()).add(k)
                readers[used.storage].discard(p)
            for out in fused.outs:
                writers[out.storage] = [w if w != p else k for w in writers[out.storage]]
        slots[k] = merged
        for out in merged.outs:
            producer[out.storage] = k
    return [i for i in slots if i is not None]


def _may_move(
    source: ElementwiseCall,
    p: int,
    k: int,
    readers: dict[Storage, set[int]],
    writers: dict[Storage, list[int]],
) -> bool:
    # Between p and k nobody may read what the producer writes, or write what it reads or writes.
    for out in source.outs:
        if any(p < r < k for r in readers.get(out.storage, ())):
            return False
        if any(p < w < k for w in writers.get(out.storage, ())):
            return False
    return not any(p < w < k for b in source.ins for w in writers.get(b.storage, ()))


def _as_seen(b: Buf, shape: tuple[int, ...], size: int) -> Buf:
    return b.view(shape) if b.size == size else b.view(())


def _merge(
    source: ElementwiseCall,
    target: ElementwiseCall,
    e: Emitter,
    k: int,
    readers: dict[Storage, set[int]],
    kept: set[Storage],
) -> ElementwiseCall | None:
    """`target` with `source` computed inside, or None where that is not possible."""
    size = prod(target.shape)
    if prod(source.shape) != size:
        return None
    source_ins = source.ins
    if source.shape != target.shape:
        if not source.is_flat():
            return None
        source_ins = [_as_seen(b, target.shape, size) for b in source.ins]
    # Every use of the producer's results in the consumer must be element by element.
    for b in target.ins:
        for out in source.outs:
            if b.storage is out.storage and not (b.same_place(out) and b.size == size):
                return None
    ins: list[Buf] = []

    def number(b: Buf) -> Expr:
        for index, other in enumerate(ins):
            if other.same_place(b) and other.shape == b.shape:
                return e.input(index, b.dtype)
        ins.append(b)
        return e.input(len(ins) - 1, b.dtype)

    inner = {i: number(source_ins[i]) for i in inputs_of(source.roots)}
    source_roots = [e.substitute(r, inner) for r in source.roots]
    outer: dict[int, Expr] = {}
    for i in inputs_of(target.roots):
        b = target.ins[i]
        match = [r for o, r in zip(source.outs, source_roots, strict=True) if o.same_place(b)]
        outer[i] = match[0] if match else number(b)
    roots = [e.substitute(r, outer) for r in target.roots]
    outs = list(target.outs)
    for out, root in zip(source.outs, source_roots, strict=True):
        if any(o.same_place(out) for o in target.outs):
            continue  # overwritten by the consumer
        later = any(r > k for r in readers.get(out.storage, ()))
        if later or out.storage in kept or out.storage.segment != ARENA:
            outs.append(out.view(target.shape))
            roots.append(root)
    if len(ins) + len(outs) > MAX_BUFFERS or size_of(roots) > MAX_OPERATIONS:
        return None
    # A result that lies across an operand or another result would be seen half written.
    if any(o.collides(b) for o in outs for b in (*ins, *outs)):
        return None
    return _trimmed(target.shape, ins, outs, roots, target.node, e)


def _trimmed(
    shape: tuple[int, ...], ins: list[Buf], outs: list[Buf], roots: list[Expr], node: str, e: Emitter
) -> ElementwiseCall:
    """A call that reads those of `ins` alone that it needs."""
    used = inputs_of(roots)
    renumber = {old: e.input(new, ins[old].dtype) for new, old in enumerate(used)}
    return ElementwiseCall(shape, [ins[i] for i in used], outs, [e.substitute(r, renumber) for r in roots], node)


def repeat_cheap(instructions: list[Instruction], outputs: list[Buf], emitter: Emitter) -> list[Instruction]:
    """Compute cheap results again in the elementwise calls that read them along with all that they are made of.

    They are not kept until then, such as x / sqrt(2) of a GELU for its gradient, which reads x. The bytes are the same.
    """
    kept = {b.storage for b in outputs}
    slots: list[Instruction | None] = list(instructions)
    touched: dict[Storage, set[int]] = {}
    writers: dict[Storage, list[int]] = {}
    for k, i in enumerate(instructions):
        for b in (*i.reads, *i.writes):
            touched.setdefault(b.storage, set()).add(k)
        for b in i.writes:
            writers.setdefault(b.storage, []).append(k)
    for k in range(len(slots)):
        source = slots[k]
        if not isinstance(source, ElementwiseCall):
            continue
        results = list(zip(source.outs, source.roots, strict=True))
        for out, root in tuple(results):
            later = sorted(touched[out.storage] - {k})
            if out.storage in kept or out.storage.segment != ARENA or not later or later[0] < k or not _is_cheap(root):
                continue
            made_of = {source.ins[i].storage for i in inputs_of([root])}
            if any(k <= w < later[-1] for storage in made_of for w in writers.get(storage, ())):
                continue
            alone = ElementwiseCall(source.shape, source.ins, [out], [root], source.node)
            repeated = {r: _repeated(alone, slots[r], emitter, r) for r in later}
            if None not in repeated.values():
                slots[:] = [repeated.get(r, i) for r, i in enumerate(slots)]
                results.remove((out, root))
        if not results:
            slots[k] = None
        elif len(results) < len(source.outs):
            outs, roots = map(list, zip(*results, strict=True))
            slots[k] = _trimmed(source.shape, source.ins, outs, roots, source.node, emitter)
    return [i for i in slots if i is not None]


def _repeated(source: ElementwiseCall, target: Instruction | None, e: Emitter, k: int) -> ElementwiseCall | None:
    """`target` with `source` computed inside, or None where that takes reading anything more."""
    if not isinstance(target, ElementwiseCall) or any(source.outs[0].storage is o.storage for o in target.outs):
        return None
    fused = _merge(source, target, e, k, {}, set())
    return fused if fused and all(any(b.same_place(x) for x in target.ins) for b in fused.ins) else None


def _is_cheap(root: Expr) -> bool:
    if size_of([root]) > CHEAP_OPERATIONS or not inputs_of([root]):
        return False
    stack = [root]
    while stack:
        x = stack.pop()
        if x.op in MATH:
            return False
        stack.extend(x.args)
    return True


def fuse_reductions(instructions: list[Instruction], outputs: list[Buf], builder: Builder) -> list[Instruction]:
    """Let elementwise calls reduce their results; sums over several chunks end in a `reduce_f32` of partial ones."""
    kept = {b.storage for b in outputs}
    touched: dict[Storage, list[int]] = {}
    made: dict[Storage, int] = {}
    result: list[list[Instruction]] = []
    for k, i in enumerate(instructions):
        for storage in {b.storage for b in (*i.reads, *i.writes)}:
            touched.setdefault(storage, []).append(k)
    for k, i in enumerate(instructions):
        result.append([i])
        if isinstance(i, KernelCall) and i.KERNEL == "reduce_f32":
            x, y = i.args["x"], i.args["y"]
            p = made.get(x.storage, k)
            source = instructions[p]
            if isinstance(source, ElementwiseCall) and not any(p <= t < k for t in touched[y.storage]):
                stored = touched[x.storage] != [p, k] or x.storage in kept or x.storage.segment != ARENA
                rest = _reduce_inside(source, i, stored, builder)
                if rest is not None:
                    result[k] = rest
        made.update((b.storage, k) for b in i.writes)
    return [i for some in result for i in some]


def _reduce_inside(
    source: ElementwiseCall, call: KernelCall, stored: bool, builder: Builder
) -> list[Instruction] | None:
    """What is left of `call` when `source`, which makes its operand, reduces it; None where it cannot."""
    x, y, n, inner, op = (call.args[name] for name in ("x", "y", "n", "inner", "op"))
    number = next((k for k, out in enumerate(source.outs) if out.same_place(x)), None)
    if (
        number is None
        or source.reduction
        or op not in (REDUCE_SUM, REDUCE_MEAN)
        or n < 2
        or prod(source.shape) != x.size
    ):
        return None
    dims, _ = collapse(source.shape, [b.shape for b in source.ins])
    unit = dims[-1] if len(dims) > 1 else 1
    plane, row, is_big = lcm(unit, n * inner), lcm(unit, inner), x.nbytes >= CACHED_BYTES
    rest: list[Instruction] = []
    if plane <= GRAIN_ELEMENTS:
        reduction, target = Reduction(op, n, inner, GRAIN_ELEMENTS // plane * plane), y
    elif call.args["outer"] == 1 and row <= GRAIN_ELEMENTS // MIN_ROWS[is_big] and (is_big or not stored):
        reduction = Reduction(REDUCE_SUM, 0, inner, GRAIN_ELEMENTS // row * row)
        n_chunks = -(-x.size // reduction.elements)
        target = builder.temp("float32", (n_chunks, inner))
        total = y if op == REDUCE_SUM else builder.temp("float32", (inner,))
        rest.append(calls.Reduce(x=target, y=total, outer=1, n=n_chunks, inner=inner, op=REDUCE_SUM, node=call.node))
        if op == REDUCE_MEAN:
            e = builder.emitter
            mean = e.div(e.input(0, "float32"), e.const(n, "float32"))
            rest.append(ElementwiseCall((inner,), [total], [y.view((inner,))], [mean], call.node))
    else:
        return None
    out, root = source.outs.pop(number), source.roots.pop(number)
    source.outs += [out, target] if stored else [target]
    source.roots.append(root)
    source.reduction = reduction
    return rest
