"""Elementwise calls around products that the product itself computes: factors, a bias, an activation."""

from __future__ import annotations

from math import prod

from trainweb.ir.expr import Expr, inputs_of
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Storage, index_uses

RESULTS = {"gemm_f32": "c", "conv_f32": "y", "winograd_conv_f32": "y"}
"""Kernels with an epilogue, and their result."""
RELU = 1


def absorb_factors(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Let constant factors of a product's operands and of its result be its `alpha`."""
    return _Absorber(_absorb_operand_factors(instructions, outputs), outputs, only_factors=True).run()


def fuse_epilogues(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    """Fold a constant factor, a bias and relu into the product before them."""
    return _Absorber(instructions, outputs).run()


def _absorb_operand_factors(instructions: list[Instruction], outputs: list[Buf]) -> list[Instruction]:
    kept = {b.storage for b in outputs}
    readers, writers = index_uses(instructions)
    result: list[Instruction] = []
    for k, e in enumerate(instructions):
        if isinstance(e, ElementwiseCall) and len(e.roots) == 1 and (factor := constant_factor(e.roots[0])) is not None:
            x, out = e.ins[0], e.outs[0]
            after = readers.get(out.storage, [])
            products = [call for r in after if (call := _product_of(instructions[r], out.storage)) is not None]
            if (
                out.storage.segment == ARENA
                and out.storage not in kept
                and writers[out.storage] == [k]
                and products
                and len(products) == len(after)
                and x.size == out.size == prod(e.shape)
                and out.nbytes == out.storage.nbytes
                and not any(k < w <= max(after) for w in writers.get(x.storage, ()))
            ):
                for call in products:
                    _scale_operand(call, out, x, factor)
                continue
        result.append(e)
    return result


def _product_of(i: Instruction, storage: Storage) -> KernelCall | None:
    """`i` if it is a product that reads `storage` only as an operand."""
    if not isinstance(i, KernelCall) or i.KERNEL != "gemm_f32":
        return None
    return i if all(b is None or b.storage is not storage for b in (i.args["c"], i.args["bias"])) else None


def _scale_operand(call: KernelCall, scaled: Buf, x: Buf, factor: float) -> None:
    """Read `x` where `call` reads `scaled`, which is `factor * x`."""
    for name in ("a", "b"):
        old = call.args[name]
        if old.storage is scaled.storage:
            new = Buf(x.storage, old.dtype, old.shape, None, x.shift + old.shift - scaled.shift, x.name)
            call.args[name], call.args["alpha"] = new, call.args["alpha"] * factor


class _Absorber:
    def __init__(self, instructions: list[Instruction], outputs: list[Buf], *, only_factors: bool = False) -> None:
        self.slots: list[Instruction | None] = list(instructions)
        self.only_factors = only_factors
        self.kept = {b.storage for b in outputs}
        self.made: dict[Storage, int] = {}
        """Where the product is that a storage holds the result of."""
        self.touched: dict[Storage, set[int]] = {}
        for k, instruction in enumerate(instructions):
            self._note(k, instruction)

    def _note(self, k: int, instruction: Instruction) -> None:
        for b in (*instruction.reads, *instruction.writes):
            self.touched.setdefault(b.storage, set()).add(k)

    def run(self) -> list[Instruction]:
        """The instructions that are left."""
        for k, instruction in enumerate(self.slots):
            if isinstance(instruction, ElementwiseCall):
                self._visit(k, instruction)
            elif instruction is not None and instruction.KERNEL in RESULTS:
                self.made[instruction.args[RESULTS[instruction.KERNEL]].storage] = k
        return [i for i in self.slots if i is not None]

    def _visit(self, k: int, e: ElementwiseCall) -> None:
        for b in e.ins:
            p = self.made.get(b.storage)
            call = self.slots[p] if p is not None else None
            if p is None or not isinstance(call, KernelCall) or not self._only_reader(call, b, p, k):
                continue
            # The result is stored earlier than it was: nobody may use its place until then.
            if any(p <= t < k for t in self.touched[e.outs[0].storage]):
                continue
            if self.only_factors and (len(e.roots) != 1 or constant_factor(e.roots[0]) is None):
                continue
            if _absorb(call, e, b, self._changed(p, k)):
                self.slots[k] = None
                self.made[e.outs[0].storage] = p
                for used in (*e.ins, *e.outs):
                    self.touched[used.storage].discard(k)
                self._note(p, call)
                return

    def _changed(self, p: int, k: int) -> set[Storage]:
        """What instructions after `p` and up to `k` write."""
        return {b.storage for i in self.slots[p + 1 : k + 1] if i is not None for b in i.writes}

    def _only_reader(self, call: KernelCall, b: Buf, p: int, k: int) -> bool:
        result = call.args[RESULTS[call.KERNEL]]
        return (
            b.storage.segment == ARENA
            and b.storage not in self.kept
            and result.same_place(b)
            and self.touched[b.storage] == {p, k}
        )


def _absorb(call: KernelCall, e: ElementwiseCall, b: Buf, changed: set[Storage]) -> bool:
    """Let `call` compute what `e` makes of its result `b`; False where it cannot.

    `changed` is what would be read too early if `call` read it.
    """
    if len(e.roots) != 1 or b.size != prod(e.shape) or e.outs[0].size != b.size:
        return False
    root, out = e.roots[0], e.outs[0]
    only_b = all(e.ins[i].same_place(b) for i in inputs_of([root]))
    if only_b and _is_relu(root):
        if call.args["activation"]:
            return False
        call.args["activation"] = RELU
    elif only_b and (factor := constant_factor(root)) is not None:
        if call.KERNEL != "gemm_f32" or call.args["activation"] or call.args["bias"] is not None:
            return False
        call.args["alpha"] *= factor
    else:
        other = added_operand(root, e, b)
        if other is None or other.storage in changed or call.args["activation"] or not _add(call, other):
            return False
    _redirect(call, out)
    return True


def _is_relu(root: Expr) -> bool:
    return (
        root.op == "pmax"
        and root.dtype == "float32"
        and root.args[0].op == "input"
        and root.args[1].op == "const"
        and root.args[1].imm == 0
    )


def constant_factor(root: Expr) -> float | None:
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


def added_operand(root: Expr, e: ElementwiseCall, b: Buf) -> Buf | None:
    """The other summand where `root` is `b + other`."""
    if root.op != "add" or any(a.op != "input" for a in root.args) or root.args[0] is root.args[1]:
        return None
    ins = [e.ins[int(a.imm or 0)] for a in root.args]
    others = [x for x in ins if not x.same_place(b)]
    return others[0] if len(others) == 1 else None


def _add(call: KernelCall, other: Buf) -> bool:
    """Take `other` as the bias, where it is a vector along the result's columns (gemm) and there is none yet."""
    if call.KERNEL != "gemm_f32" or call.args["bias"] is not None or call.args["accumulate"]:
        return False
    n = call.args["n"]
    if other.size != n or other.shape[-1:] != (n,):
        return False
    call.args.update(bias=other, beta=1.0, bias_row=0, bias_col=1, bias_batch=(0, 0))
    return True


def _redirect(call: KernelCall, out: Buf) -> None:
    """Store the result in `out`."""
    name = RESULTS[call.KERNEL]
    old = call.args[name]
    call.args[name] = Buf(out.storage, out.dtype, old.shape, None, out.shift, out.name)
