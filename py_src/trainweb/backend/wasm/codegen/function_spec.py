"""The computation of a generated function, and the words of its call.

A generated function is `(args: i32, lo: i32, hi: i32) -> ()`. `args` is the address of 32-bit words. The addresses of
the inputs come first, then the addresses of the outputs, `inner`, and the outer dims (all but the first). For each
input its strides (in elements) along the outer dims follow. The function computes rows [lo, hi); a row is `inner`
elements. Without outer dims ("flat") [lo, hi) are elements and `inner` is not used.

A function that reduces has one chunk of the executor in [lo, hi) and, last, the words of `reduction` (kernels.def).
It hands its last result, which is in the thread's scratch memory if it is not stored, to kernels.v_reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainweb.backend.wasm.codegen.assembler import leb
from trainweb.backend.wasm.codegen.dtypes import DTYPES
from trainweb.ir.expr import Expr, walk
from trainweb.model.graph import ITEM_SIZE

ACCESS_SECTION = "trainweb.access"
"""Custom section of a module with what `FunctionSpec.access` says of each of its functions."""
_SCALAR = ("div", "shl", "shr")
"""Of integers, one element at a time."""


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The computation of one generated function; equal specs share one function.

    `steps[i]` is 1 where input i advances along a row and 0 where it is one value per row (or, flat, one value in all).
    """

    in_dtypes: tuple[str, ...]
    steps: tuple[int, ...]
    roots: tuple[Expr, ...]
    n_outer: int
    reduces: bool = False
    stored: bool = True
    """True if the last root has an output; the output of a reduction follows."""

    @property
    def n_addresses(self) -> int:
        """Words that are addresses: they come first."""
        return len(self.in_dtypes) + len(self.roots) - (not self.stored) + self.reduces

    @property
    def n_words(self) -> int:
        """Words after the addresses, except the words of a reduction."""
        if self.n_outer == 0:
            return 0
        return 1 + (self.n_outer - 1) + self.n_outer * len(self.in_dtypes)

    def access(self, scratch_bytes: int) -> bytes:
        """Return the reads and writes of the function, for the verifier of plans (wasm_kernels/generated.c).

        Numbers in LEB128: inputs, and of each its bytes an element and its step; results, and of each its bytes an
        element; outer dims; whether the last result is reduced, and whether it is stored; bytes of the thread's scratch
        memory besides that result, if it is not.
        """
        numbers = [len(self.in_dtypes)]
        for dtype, step in zip(self.in_dtypes, self.steps, strict=True):
            numbers += [ITEM_SIZE[dtype], step]
        numbers += [len(self.roots), *(ITEM_SIZE[root.dtype] for root in self.roots)]
        numbers += [self.n_outer, self.reduces, self.stored, scratch_bytes]
        return b"".join(map(leb, numbers))

    @property
    def is_vector(self) -> bool:
        """Return whether every operation has a form for four lanes."""
        return all(
            DTYPES[x.dtype].vector is not None and (x.op not in _SCALAR or x.dtype == "float32")
            for x in walk(self.roots)
        )
