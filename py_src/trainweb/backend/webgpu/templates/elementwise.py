"""Elementwise calls: an invocation computes an element, or the four of a word where results have bytes."""

from __future__ import annotations

from math import ceil, prod

from trainweb.backend.webgpu.expressions import write_expressions
from trainweb.backend.webgpu.shader import Kernel, NoKernelError, grid_of, position_in
from trainweb.backend.webgpu.templates.tools import sum_of
from trainweb.ir.instructions import Buf, ElementwiseCall
from trainweb.ir.shapes import collapse
from trainweb.model.graph import ITEM_SIZE

LANES = 256
PER_WORD = 4


def elementwise(call: ElementwiseCall) -> list[Kernel]:
    """outs[k] = roots[k](*ins)."""
    if call.reduction is not None:
        raise NoKernelError("a reduction within")
    k = Kernel("elementwise", LANES)
    dims, strides = collapse(call.shape, [b.shape for b in call.ins])
    ins = [k.operand(f"x{n}", b) for n, b in enumerate(call.ins)]
    outs = [k.operand(f"y{n}", b) for n, b in enumerate(call.outs)]
    places, split = _places(k, dims, strides)
    lines, results = write_expressions(call.roots, lambda n: ins[n].load(places[n]))
    packed = [n for n, b in enumerate(call.outs) if ITEM_SIZE[b.dtype] == 1]
    if packed:
        _check_words([call.outs[n] for n in packed])
        store = [f"bytes{n} |= u32({results[n]}) << (8u * part);" for n in packed]
        store += [out.store("i", results[n]) for n, out in enumerate(outs) if n not in packed]
        k.grid = grid_of(ceil(ceil(prod(dims) / PER_WORD) / LANES))
        k.add(
            f"let word = block * {LANES}u + lane;", f"if (word * 4u >= {k.count('elements', prod(dims))}) {{ return; }}"
        )
        k.add(*(f"var bytes{n} = 0u;" for n in packed))
        k.add("for (var part = 0u; part < 4u; part++) {", "let i = word * 4u + part;", "if (i < u.elements) {")
        k.add(*split, *lines, *store, "}", "}", *(f"{outs[n].word('word')} = bytes{n};" for n in packed))
    else:
        k.elements(prod(dims))
        k.add(*split, *lines, *(out.store("i", result) for out, result in zip(outs, results, strict=True)))
    return [k]


def _check_words(outs: list[Buf]) -> None:
    """Results of bytes own whole words: the bytes behind the last one are nobody's."""
    if any(b.shift or b.storage.nbytes != b.nbytes for b in outs):
        raise NoKernelError("bytes of a part of a tensor")


def _places(k: Kernel, dims: list[int], strides: list[list[int]]) -> tuple[list[str], list[str]]:
    """The element of each operand, and the statements before that."""
    full = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        full[axis] = full[axis + 1] * dims[axis + 1]
    places, is_split = [], False
    for n, row in enumerate(strides):
        if row == full:
            places.append("i")
            continue
        terms = [f"d{axis} * {k.count(f'x{n}_stride{axis}', step)}" for axis, step in enumerate(row) if step]
        is_split |= bool(terms)
        places.append(sum_of(terms))
    return places, position_in(k, dims)("i") if is_split else []
