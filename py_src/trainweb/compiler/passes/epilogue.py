"""Elementwise calls around products that the product itself computes: factors, a bias, an activation."""

from __future__ import annotations

from copy import copy
from math import prod

from trainweb.compiler.context import Context
from trainweb.compiler.passes.strided import summed_product
from trainweb.ir.calls import Accumulates, Gemm, TakesBias, TakesFactor, TakesRelu
from trainweb.ir.expr import Expr, inputs_of
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction
from trainweb.ir.layout import ACTIVATION_RELU
from trainweb.ir.program import Program

Product = TakesRelu | TakesFactor | TakesBias
"""Kernels with an epilogue."""


def absorb_factors(program: Program, _: Context) -> None:
    """Move constant factors of a product's operands and result into its `alpha`."""
    for e in program:
        if isinstance(e, ElementwiseCall):
            scaled = scaled_operand(e)
            if scaled is not None and not _scale_products(program, e, *scaled) and not _scale_sum(program, e, *scaled):
                _fuse_into_product(program, e)


def fuse_epilogues(program: Program, _: Context) -> None:
    """Fold a constant factor, a bias and relu into the product before them."""
    for e in program:
        if isinstance(e, ElementwiseCall):
            _fuse_into_product(program, e)


def _scale_products(program: Program, e: ElementwiseCall, x: Buf, factor: float) -> bool:
    """Let the products that read `factor * x` read x; False where something else reads it, too."""
    out = e.outs[0]
    readers = program.readers(out.storage)
    products = [r for r in readers if isinstance(r, Gemm) and (r.bias is None or r.bias.storage is not out.storage)]
    if (
        not products
        or len(products) < len(readers)
        or not program.is_temporary(out.storage)
        or program.writers(out.storage) != (e,)
        or not x.size == out.size == prod(e.shape)
        or out.nbytes != out.storage.nbytes
        or any(e.position < w.position <= readers[-1].position for w in program.writers(x.storage))
    ):
        return False

    def unscaled(b: Buf) -> Buf:
        return Buf(x.storage, b.dtype, b.shape, None, x.shift + b.shift - out.shift, x.name)

    for product in products:
        new = copy(product)
        if new.a.storage is out.storage:
            new.a, new.alpha = unscaled(new.a), new.alpha * factor
        if new.b.storage is out.storage:
            new.b, new.alpha = unscaled(new.b), new.alpha * factor
        program.replace(product, new)
    program.remove(e)
    return True


def _scale_sum(program: Program, e: ElementwiseCall, x: Buf, factor: float) -> bool:
    """Let the product whose matrices are summed to `x` take the factor; False where `x` is no such sum."""
    summed, out = summed_product(program, x, e), e.outs[0]
    if summed is None or not x.size == out.size == prod(e.shape):
        return False
    product, total = copy(summed[0]), copy(summed[1])
    product.alpha, total.y = product.alpha * factor, out
    program.replace(summed[0], product)
    program.remove(summed[1])
    program.replace(e, total)
    return True


def _fuse_into_product(program: Program, e: ElementwiseCall) -> None:
    """Let the product before `e` compute what `e` makes of its result."""
    for b in e.ins:
        terms = _products_before(program, e, b)
        # The result is stored earlier than it was: nobody may use its place until then.
        if not terms or program.is_used_from(e.outs[0].storage, terms[0], e):
            continue
        new = _absorbed(program, terms, e, b)
        if new is not None:
            program.remove(e)
            for call in terms[:-1]:
                moved = copy(call)
                moved.result = _at(e.outs[0], call)
                program.replace(call, moved)
            program.replace(terms[-1], new)
            return


def _products_before(program: Program, e: ElementwiseCall, b: Buf) -> list[Product]:
    """The product whose result `b` is, if nobody but `e` reads it; if it is added to others, those first."""
    terms: list[Product] = []
    for call in program.writers(b.storage):
        adds = isinstance(call, Accumulates) and bool(call.accumulate)
        if not isinstance(call, Product) or not call.result.same_place(b) or adds != bool(terms):
            return []
        terms.append(call)
    alone = program.users(b.storage) == [*terms, e] and program.is_temporary(b.storage)
    return terms if alone and not any(call.activation for call in terms) else []


def _at(out: Buf, call: Product) -> Buf:
    """The result of a product, in the place of `out`."""
    return Buf(out.storage, out.dtype, call.result.shape, None, out.shift, out.name)


def _absorbed(program: Program, terms: list[Product], e: ElementwiseCall, b: Buf) -> Product | None:
    """The last of `terms` so that it computes what `e` makes of their sum `b`; None where it cannot."""
    if len(e.roots) != 1 or b.size != prod(e.shape) or e.outs[0].size != b.size:
        return None
    call = terms[-1]
    new, root = copy(call), e.roots[0]
    only_b = all(e.ins[i].same_place(b) for i in inputs_of([root]))
    if only_b and _is_relu(root):
        new.activation = ACTIVATION_RELU
    elif only_b and (factor := constant_factor(root)) is not None:
        if not isinstance(new, TakesFactor) or new.bias is not None or new.accumulate:
            return None
        new.alpha *= factor
    else:
        other = added_operand(root, e, b)
        if other is None or not isinstance(new, TakesBias) or new.bias is not None:
            return None
        # A bias is a vector along the columns, and is read where the product is.
        if other.size != new.n or other.shape[-1:] != (new.n,) or _changes(program, other, call, e):
            return None
        new.bias, new.beta, new.bias_row, new.bias_col = other, 1.0, 0, 1
        if isinstance(new, Gemm):
            new.bias_batch = (0, 0)
    new.result = _at(e.outs[0], call)
    return new


def _changes(program: Program, b: Buf, call: Instruction, e: Instruction) -> bool:
    """Return whether instructions after `call` and up to `e` write what `b` holds."""
    return any(call.position < w.position <= e.position for w in program.writers(b.storage))


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


def scaled_operand(e: ElementwiseCall) -> tuple[Buf, float] | None:
    """x and c where all that `e` computes is `c * x`; it may have inputs that it does not read."""
    factor = constant_factor(e.roots[0]) if len(e.roots) == 1 else None
    return None if factor is None else (e.ins[inputs_of(e.roots)[0]], factor)


def added_operand(root: Expr, e: ElementwiseCall, b: Buf) -> Buf | None:
    """The other summand where `root` is `b + other`."""
    if root.op != "add" or any(a.op != "input" for a in root.args) or root.args[0] is root.args[1]:
        return None
    ins = [e.ins[int(a.imm or 0)] for a in root.args]
    others = [x for x in ins if not x.same_place(b)]
    return others[0] if len(others) == 1 else None
