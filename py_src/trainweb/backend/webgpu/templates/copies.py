"""Copies, lookups and their gradient."""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import WORD, Kernel, NoKernelError
from trainweb.backend.webgpu.templates.tools import wrapped_index
from trainweb.ir import calls


def copy(call: calls.Copy) -> list[Kernel]:
    """A copy of whole words."""
    is_whole = call.dst.shift == 0 and call.dst.storage.nbytes == call.n
    if call.n % WORD and not is_whole:
        raise NoKernelError("a copy of parts of words")
    k = Kernel("copy")
    source, target = k.operand("src", call.src), k.operand("dst", call.dst)
    k.elements(-(-call.n // WORD))
    k.add(f"{target.word('i')} = {source.word('i')};")
    return [k]


def strided_copy(call: calls.StridedCopy) -> list[Kernel]:
    """A copy with strides on both sides: slices, padding, joins, transposition."""
    if call.size not in (WORD, 2 * WORD):
        raise NoKernelError(f"a strided copy of elements of {call.size} bytes")
    words = call.size // WORD
    k = Kernel("strided_copy")
    source, target = k.operand("src", call.src), k.operand("dst", call.dst)
    k.elements(prod(call.dims))
    k.add("var rest = i;", f"var from_ = {k.signed('src_offset', call.src_offset)};")
    k.add(f"var to = {k.signed('dst_offset', call.dst_offset)};")
    axes = [axis for axis, n in enumerate(call.dims) if n > 1]
    for number, axis in enumerate(reversed(axes)):
        size = k.count(f"size{number}", call.dims[axis])
        k.add("{", f"let place = i32(rest % {size});", f"rest = rest / {size};")
        k.add(f"from_ += place * {k.signed(f'src{number}', call.src_strides[axis])};")
        k.add(f"to += place * {k.signed(f'dst{number}', call.dst_strides[axis])};", "}")
    for part in range(words):
        at = [f"{words}u * u32({name}) + {part}u" for name in ("from_", "to")]
        k.add(f"{target.word(at[1])} = {source.word(at[0])};")
    return [k]


def gather(call: calls.Gather) -> list[Kernel]:
    """Rows by their indices."""
    if call.inner % WORD:
        raise NoKernelError(f"a lookup of rows of {call.inner} bytes")
    words = call.inner // WORD
    k = Kernel("gather")
    data, indices, y = k.operand("data", call.data), k.operand("indices", call.indices), k.operand("y", call.y)
    k.elements(call.outer * call.n * words)
    k.add(f"let column = i % {k.count('words', words)};", f"let row = (i / u.words) % {k.count('n', call.n)};")
    k.add("let outer = i / (u.words * u.n);", *wrapped_index(indices, "row", k.count("dim", call.dim)))
    k.add(f"{y.word('i')} = {data.word('(outer * u.dim + u32(index)) * u.words + column')};")
    return [k]


def gather_gradient(call: calls.GatherGrad) -> list[Kernel]:
    """An invocation adds up what came from an element, in the order of the indices."""
    k = Kernel("gather_gradient")
    indices, dy, dx = k.operand("indices", call.indices), k.operand("dy", call.dy), k.operand("dx", call.dx)
    k.elements(call.outer * call.dim * call.inner)
    k.add(f"let column = i % {k.count('inner', call.inner)};", f"let row = (i / u.inner) % {k.count('dim', call.dim)};")
    k.add("let outer = i / (u.inner * u.dim);", "var sum = 0.0f;")
    k.add(f"for (var step = 0u; step < {k.count('n', call.n)}; step++) {{", *wrapped_index(indices, "step", "u.dim"))
    k.add(f"if (u32(index) == row) {{ sum += {dy.load('(outer * u.n + step) * u.inner + column')}; }}", "}")
    k.add(dx.store("i", "sum"))
    return [k]
