"""Low-rank products beside a product of the same operand, as adapters are, go into its weight for the step.

x W + (x A) B is x (W + A B). If x has more rows than W, the sum of weights takes less work than a product with B for
every row. It also saves a pass over a tensor as large as the result. Hu et al., "LoRA" (2021), section 4, do so for
inference. The weight itself stays as it is.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from trainweb.compiler.context import Context
from trainweb.ir.calls import Gemm
from trainweb.ir.instructions import Buf
from trainweb.ir.program import Program, Refusal

ROWS_PER_ROW = 2
"""Rows of x for a row of W from which on the sum of weights pays, which is made anew wherever it is read."""
RANKS = 2
"""Least ratio of both dims of W to the rank."""


def merge_low_rank(program: Program, _: Context) -> None:
    """Merge a product and an added low-rank product into one product with the sum of the weights."""
    for last in program:
        if isinstance(last, Gemm) and last.accumulate and program.is_temporary(last.c.storage):
            first, *others = program.writers(last.c.storage)
            if others == [last] and isinstance(first, Gemm):
                for full, outer in ((first, last), (last, first)):
                    adapted = _find(program, full, outer)
                    if adapted is None:
                        continue
                    if why := _refusal(program, adapted, first, last):
                        program.refusals.append(Refusal("low-rank product", outer.node, why))
                    else:
                        _merge(program, adapted, first, last)
                    break


@dataclass(frozen=True, slots=True)
class _Adapted:
    """`full` = x W, `inner` = x A and `outer` = `inner` B."""

    full: Gemm
    inner: Gemm
    outer: Gemm


def _find(program: Program, full: Gemm, outer: Gemm) -> _Adapted | None:
    writers = program.writers(outer.a.storage)
    inner = writers[0] if len(writers) == 1 else None
    if not isinstance(inner, Gemm) or inner.bias or inner.activation or not outer.a.same_place(inner.c):
        return None
    x, y = full.a, inner.a
    alike = x.storage is y.storage and x.shift == y.shift and (full.a_row, full.a_col) == (inner.a_row, inner.a_col)
    if not alike or (full.m, full.k, inner.n, inner.c_row, 1) != (inner.m, inner.k, outer.k, outer.a_row, outer.a_col):
        return None
    single = all(call.batch == (1, 1) for call in (full, inner, outer))
    in_order = (full.b_row, full.b_col) in ((full.n, 1), (1, full.k)) and full.b.size == full.k * full.n
    is_low = RANKS * inner.n <= min(full.k, full.n)
    return _Adapted(full, inner, outer) if single and in_order and is_low else None


def _refusal(program: Program, adapted: _Adapted, first: Gemm, last: Gemm) -> str:
    """Why the sum of weights does not pay, or cannot stand at the place of `last`; empty if neither holds."""
    full = adapted.full
    if full.m < ROWS_PER_ROW * full.k:
        return f"{full.m} rows are fewer than {ROWS_PER_ROW} for each of the {full.k} rows of the weight"
    if last.bias is not None or first.activation:
        return "a bias or an activation comes before the sum"
    if program.is_read_between(first.c.storage, first, last):
        return "another node reads one of the products"
    start = min(adapted.inner, first, key=lambda call: call.position)
    read = (full.a, full.b, adapted.inner.b, adapted.outer.b, first.bias)
    is_written = any(b is not None and program.is_written_between(b.storage, start, last) for b in read)
    return "an operand changes before the sum" if is_written else ""


def _merge(program: Program, adapted: _Adapted, first: Gemm, last: Gemm) -> None:
    full, inner, outer = adapted.full, adapted.inner, adapted.outer
    builder = program.build(f"{outer.node}, in the weight")
    weight = builder.temp("float32", (full.k, full.n))
    builder.emit(_sum_of_weights(adapted, weight))
    new = copy(full)
    new.b, new.c, new.alpha, new.accumulate, new.activation = weight, last.c, 1.0, 0, last.activation
    new.bias, new.beta, new.bias_row, new.bias_col = first.bias, first.beta, first.bias_row, first.bias_col
    program.remove(first)
    program.replace(last, *builder.instructions, new)
    if program.is_temporary(inner.c.storage) and not program.readers(inner.c.storage):
        program.remove(inner)


def _sum_of_weights(adapted: _Adapted, weight: Buf) -> Gemm:
    """W + A B, by the factors of the products, which lies as W does."""
    full, inner, outer = adapted.full, adapted.inner, adapted.outer
    new = copy(outer)
    new.activation = new.accumulate = 0
    new.c, new.c_row, new.alpha = weight, max(full.b_row, full.b_col), outer.alpha * inner.alpha
    new.bias, new.bias_row, new.bias_col, new.beta = full.b, new.c_row, 1, full.alpha
    if full.b_col == 1:
        new.m, new.a, new.a_row, new.a_col = full.k, inner.b, inner.b_row, inner.b_col
    else:
        new.m, new.a, new.a_row, new.a_col = full.n, outer.b, outer.b_col, outer.b_row
        new.n, new.b, new.b_row, new.b_col = full.k, inner.b, inner.b_col, inner.b_row
    return new
