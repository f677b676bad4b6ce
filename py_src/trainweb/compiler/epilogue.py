"""Epilogues: a bias or an activation that only reads a product's result is applied as the product is stored."""

from __future__ import annotations

from math import prod

from trainweb.compiler.expr import Expr
from trainweb.compiler.lower import ARENA, Buf, ElementwiseCall, Instruction, KernelCall, Storage

RESULTS = {"gemm_f32": "c", "conv_f32": "y"}
"""Kernels with an epilogue, and their result."""
RELU = 1


def fuse_epilogues(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Fold a constant factor, a bias and relu into the product before them."""
    uses: dict[Storage, int] = {}
    for instruction in instructions:
        for b in {id(x): x for x in (*instruction.reads, *instruction.writes)}.values():
            uses[b.storage] = uses.get(b.storage, 0) + 1
    for b in outputs:
        uses[b.storage] = uses.get(b.storage, 0) + 1
    made: dict[Storage, KernelCall] = {}
    slots: list[Instruction | None] = list(instructions)
    for k, instruction in enumerate(instructions):
        if isinstance(instruction, KernelCall):
            if instruction.kernel in RESULTS:
                made[instruction.args[RESULTS[instruction.kernel]].storage] = instruction
            continue
        for b in instruction.ins:
            call = made.get(b.storage)
            # The product itself and this call: two uses, `c` being read and written counts once or twice.
            if call is None or not _only_reader(call, b, uses):
                continue
            if _absorb(call, instruction, b):
                slots[k] = None
                made[instruction.outs[0].storage] = call
                break
    return [i for i in slots if i is not None]


def _only_reader(call: KernelCall, b: Buf, uses: dict[Storage, int]) -> bool:
    result = call.args[RESULTS[call.kernel]]
    own = len({id(x) for x in (*call.reads, *call.writes) if x.storage is b.storage})
    return b.storage.segment == ARENA and result.same_place(b) and uses[b.storage] == own + 1


def _absorb(call: KernelCall, e: ElementwiseCall, b: Buf) -> bool:
    """Let `call` compute what `e` makes of its result `b`; False where it cannot."""
    if len(e.roots) != 1 or b.size != prod(e.shape) or e.outs[0].size != b.size:
        return False
    root, out = e.roots[0], e.outs[0]
    if _is_relu(root):
        if call.args["activation"]:
            return False
        call.args["activation"] = RELU
    elif (factor := _factor(root)) is not None:
        if call.kernel != "gemm_f32" or call.args["activation"] or call.args["bias"] is not None:
            return False
        call.args["alpha"] *= factor
    else:
        other = _added(root, e, b)
        if other is None or call.args["activation"] or not _add(call, other):
            return False
    _redirect(call, out)
    return True


def _is_relu(root: Expr) -> bool:
    return (
        root.op == "pmax" and root.dtype == "float32" and root.args[0].op == "input"
        and root.args[1].op == "const" and root.args[1].imm == 0
    )  # fmt: skip


def _factor(root: Expr) -> float | None:
    """c where `root` is `c * x` or `x / (1 / c)` of one input."""
    if root.op not in ("mul", "div") or root.dtype != "float32":
        return None
    constants = [a for a in root.args if a.op == "const"]
    if len(constants) != 1 or sum(a.op == "input" for a in root.args) != 1:
        return None
    value = float(constants[0].imm or 0)
    if root.op == "mul":
        return value
    return 1 / value if root.args[1] is constants[0] and value else None


def _added(root: Expr, e: ElementwiseCall, b: Buf) -> Buf | None:
    """The other summand where `root` is `b + other`."""
    if root.op != "add" or any(a.op != "input" for a in root.args) or root.args[0] is root.args[1]:
        return None
    ins = [e.ins[int(a.imm or 0)] for a in root.args]
    others = [x for x in ins if not x.same_place(b)]
    return others[0] if len(others) == 1 else None


def _add(call: KernelCall, other: Buf) -> bool:
    """Take `other` as the bias, where it is a vector along the result's columns (gemm) and there is none yet."""
    if call.kernel != "gemm_f32" or call.args["bias"] is not None or call.args["accumulate"]:
        return False
    n = call.args["n"]
    # A bias made after the product would be read too early: only what lives outside of the arena is safe.
    if other.storage.segment == ARENA or other.size != n or other.shape[-1:] != (n,):
        return False
    call.args.update(bias=other, beta=1.0, bias_row=0, bias_col=1)
    call.reads.append(other)
    return True


def _redirect(call: KernelCall, out: Buf) -> None:
    """Store the result in `out`."""
    name = RESULTS[call.kernel]
    old = call.args[name]
    call.args[name] = Buf(out.storage, out.dtype, old.shape, None, out.shift, out.name)
    call.writes = [call.args[name] if w is old else w for w in call.writes]
    call.reads = [call.args[name] if r is old else r for r in call.reads]
