"""Gradients of tokens without a label are rows of zeros, which products leave out (wasm_kernels/zero_rows.c)."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from trainweb.ir.calls import CrossEntropyGrad, Gemm, GemmQuantized, HeadLoss, HeadLossQuantized
from trainweb.ir.instructions import Storage
from trainweb.ir.program import Program

if TYPE_CHECKING:
    from trainweb.compiler.context import Context

Product = Gemm | GemmQuantized
_LOSSES = CrossEntropyGrad | HeadLoss | HeadLossQuantized


def gradients_of(program: Program) -> set[Storage]:
    """Storages of gradients, if their loss ignores a label."""
    gradients = set[Storage]()
    for i in program:
        if isinstance(i, _LOSSES):
            slope = i.dx if isinstance(i, CrossEntropyGrad) else i.slope
            if i.has_ignore and slope is not None:
                gradients.add(slope.storage)
        elif any(b.storage in gradients for b in i.reads):
            gradients.update(b.storage for b in i.writes)
    return gradients


def leave_out_zero_rows(program: Program, _: Context) -> None:
    """Let products of gradients leave out rows of zeros, if the loss ignores a label."""
    gradients = gradients_of(program)
    for i in program:
        if isinstance(i, Product) and i.a.storage in gradients and i.a_col == 1 and i.bias is None:
            new = copy(i)
            new.sparse = 1
            program.replace(i, new)
