"""Elementwise calls: an invocation computes an element, or the four of a word where results have bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from trainweb.backend.webgpu.expressions import write_expressions
from trainweb.backend.webgpu.shader import WORD, Kernel, NoKernelError, Operand, split, template
from trainweb.backend.webgpu.templates.tools import sum_of
from trainweb.ir.instructions import Buf, ElementwiseCall
from trainweb.ir.shapes import collapse
from trainweb.model.graph import ITEM_SIZE


@template(ElementwiseCall, lanes=256)
def elementwise(k: Kernel, call: ElementwiseCall) -> None:
    """outs[k] = roots[k](*ins)."""
    if call.reduction is not None:
        raise NoKernelError("a reduction within")
    dims, strides = collapse(call.shape, [b.shape for b in call.ins])
    ins = [k.operand(f"x{n}", b) for n, b in enumerate(call.ins)]
    outs = [k.operand(f"y{n}", b) for n, b in enumerate(call.outs)]
    places, lines = _places(k, dims, strides)
    values, results = write_expressions(call.roots, lambda n: ins[n][places[n]])
    lines += values
    packed = [one for one in zip(outs, call.outs, results, strict=True) if ITEM_SIZE[one[1].dtype] == 1]
    lines += [out.store("i", x) for out, x in zip(outs, results, strict=True) if ITEM_SIZE[out.dtype] > 1]
    if packed:
        each_of_word(k, prod(dims), packed, *lines)
    else:
        k.count("size", prod(dims))
        k.elements(element="size")
        k.add(*lines)


def each_of_word(k: Kernel, size: int, packed: Sequence[tuple[Operand, Buf, str]], *body: str) -> None:
    """Run an invocation for each word of four elements `i` of results of bytes: their values follow from the body."""
    if any(b.shift or b.storage.nbytes != b.nbytes for _, b, _ in packed):
        raise NoKernelError("bytes of a part of a tensor")  # results own whole words: the rest of the last is nobody's
    k.count("words", ceil(size / WORD))
    k.elements(word="words")
    k.add(*(f"var bytes{n} = 0u;" for n in range(len(packed))), "for (var part = 0u; part < 4u; part++) {")
    k.add("let i = word * 4u + part;", f"if (i < {k.count('size', size)}) {{", *body)
    k.add(*(f"bytes{n} |= (u32({value}) & 255u) << (8u * part);" for n, (_, _, value) in enumerate(packed)), "}", "}")
    k.add(*(f"{result.word('word')} = bytes{n};" for n, (result, _, _) in enumerate(packed)))


def _places(k: Kernel, dims: list[int], strides: list[list[int]]) -> tuple[list[str], list[str]]:
    """The element of each operand, and the statements before that."""
    full = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = []
    for n, row in enumerate(strides):
        terms = [f"d{axis} * {k.count(f'x{n}_stride{axis}', step)}" for axis, step in enumerate(row) if step]
        places.append("i" if row == full else sum_of(terms))
    if not any("d" in place for place in places):
        return places, []
    for axis, size in enumerate(dims):
        k.count(f"dim{axis}", size)
    return places, split("i", **{f"d{axis}": f"dim{axis}" for axis in range(len(dims))})
