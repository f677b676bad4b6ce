"""Products and lookups read weights of fewer bits as they are stored: no copy of them in float32.

`gemm_quantized_f32` dequantizes a weight as it packs its panels, `gather_dequantized_f32` the rows that it picks. A
dequantized number is the same bytes in both ways.
"""

from __future__ import annotations

from math import prod

from trainweb.compiler.context import Context
from trainweb.ir.calls import Dequantize, Gather, GatherDequantized, Gemm, GemmQuantized
from trainweb.ir.instructions import Buf, Instruction
from trainweb.ir.program import Program, Refusal
from trainweb.model.graph import ITEM_SIZE


def read_packed(program: Program, _: Context) -> None:
    """Let products and lookups read quantized weights as they are stored, and drop what nothing else reads."""
    for call in program:
        if not isinstance(call, Dequantize) or program.writers(call.y.storage) != (call,):
            continue
        for reader in program.readers(call.y.storage):
            stored = [b for b in (call.x, call.scale, call.zero) if b is not None]
            new = _reading(call, reader)
            if new is not None and not any(program.is_written_between(b.storage, call, reader) for b in stored):
                program.replace(reader, new)
        readers = program.readers(call.y.storage)
        if program.is_temporary(call.y.storage) and not readers:
            program.remove(call)
        elif readers:
            reason = f"{readers[0].node} reads it in float32, of which a copy is made"
            program.refusals.append(Refusal(f"the weight {call.x.name!r}", call.node, reason))


def _reading(call: Dequantize, reader: Instruction) -> Instruction | None:
    """Return `reader` so that it reads the stored weight; None where it cannot."""
    if isinstance(reader, Gather):
        return _lookup(call, reader)
    return _product(call, reader) if isinstance(reader, Gemm) else None


def _is_whole(b: Buf, call: Dequantize) -> bool:
    return b.storage is call.y.storage and b.shift == call.y.shift


def _product(call: Dequantize, g: Gemm) -> GemmQuantized | None:
    others = [b.storage for b in (g.a, g.bias, g.c) if b is not None]
    if call.y.storage in others or prod(g.batch) != 1:
        return None
    in_order = (g.b_row, g.b_col) == (g.n, 1) and (g.k, g.n) == (call.rows, call.cols)
    turned = (g.b_row, g.b_col) == (1, g.k) and (g.n, g.k) == (call.rows, call.cols)
    if not in_order and not turned:
        return None
    shared = g.shared(GemmQuantized) | call.shared(GemmQuantized)
    new = GemmQuantized(**shared, w=call.x, turned=int(not in_order))
    new.node = g.node
    return new


def _lookup(call: Dequantize, g: Gather) -> GatherDequantized | None:
    is_all = g.outer == 1 and (g.dim, g.inner) == (call.rows, call.cols * ITEM_SIZE["float32"])
    if not _is_whole(g.data, call) or not is_all:
        return None
    stored = {name: value for name, value in call.arguments() if name != "y"}
    new = GatherDequantized(**stored, y=g.y, indices=g.indices, n=g.n, index_size=g.index_size)
    new.node = g.node
    return new
