"""Products that add to a gradient buffer themselves: no workspace for what they add, and one pass over memory less."""

from __future__ import annotations

from trainweb.compiler.passes.epilogue import added_operand
from trainweb.ir.layout import ARENA, GRADIENTS
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Storage

RESULTS = {
    "gemm_f32": ("c",),
    "conv_weight_gradient_f32": ("dw", "db"),
    "winograd_weight_gradient_f32": ("dw", "db"),
}
"""Kernels that add to what their results hold where `accumulate` says so, and these results."""


def accumulate_in_place(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Let products whose results are only added to gradient buffers add them."""
    kept = {b.storage for b in outputs}
    touched: dict[Storage, list[int]] = {}
    for k, i in enumerate(instructions):
        for s in {b.storage for b in (*i.reads, *i.writes)}:
            touched.setdefault(s, []).append(k)
    gone: set[int] = set()
    for p, call in enumerate(instructions):
        if not isinstance(call, KernelCall) or call.KERNEL not in RESULTS or call.args["accumulate"]:
            continue
        results = {name: call.args[name] for name in RESULTS[call.KERNEL] if call.args[name] is not None}
        sums = {name: _sum_of(instructions, touched, p, b) for name, b in results.items() if b.storage not in kept}
        targets = {name: found for name, found in sums.items() if found is not None}
        if len(targets) < len(results) or call.args.get("activation"):
            continue
        for name, (k, buffer) in targets.items():
            old = results[name]
            new = Buf(buffer.storage, old.dtype, old.shape, None, buffer.shift, buffer.name)
            call.args[name] = new
            gone.add(k)
        call.args["accumulate"] = 1
    return [i for k, i in enumerate(instructions) if k not in gone]


def _sum_of(
    instructions: list[Instruction], touched: dict[Storage, list[int]], p: int, b: Buf
) -> tuple[int, Buf] | None:
    """Where the result `b` of instruction `p` is added to a gradient buffer, if nothing else becomes of it."""
    if b.storage.segment != ARENA or touched[b.storage][:1] != [p] or len(touched[b.storage]) != 2:
        return None
    k = touched[b.storage][1]
    e = instructions[k]
    if not isinstance(e, ElementwiseCall) or len(e.roots) != 1:
        return None
    buffer = e.outs[0]
    value = next((x for x in e.ins if x.storage is b.storage), b)
    other = added_operand(e.roots[0], e, value)
    is_sum = buffer.storage.segment == GRADIENTS and other is not None and other.same_place(buffer)
    whole = value.same_place(b) and value.size == buffer.size
    # Nothing may look at the buffer between the product and the sum.
    return (k, buffer) if is_sum and whole and not any(p <= t < k for t in touched[buffer.storage]) else None
