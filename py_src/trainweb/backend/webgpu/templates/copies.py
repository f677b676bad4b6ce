"""Copies, lookups and their gradient."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import WORD, Kernel, NoKernelError, template
from trainweb.backend.webgpu.templates.tools import wrapped_index
from trainweb.ir import calls


@template(calls.Copy)
def copy(k: Kernel, call: calls.Copy) -> None:
    """A copy of whole words."""
    is_whole = call.dst.shift == 0 and call.dst.storage.nbytes == call.n
    if call.n % WORD and not is_whole:
        raise NoKernelError("a copy of parts of words")
    source, target = k.fields("src", "dst")
    k.count("words", -(-call.n // WORD))
    k.elements(word="words")
    k.add(f"{target.word('i')} = {source.word('i')};")


@template(calls.StridedCopy)
def strided_copy(k: Kernel, call: calls.StridedCopy) -> None:
    """A copy with strides on both sides: slices, padding, joins, transposition."""
    if call.size not in (WORD, 2 * WORD):
        raise NoKernelError(f"a strided copy of elements of {call.size} bytes")
    source, target = k.fields("src", "dst")
    axes = [axis for axis, n in enumerate(call.dims) if n > 1] or [0]
    for n, axis in enumerate(axes):  # the same form for the same number of axes
        k.count(f"size{n}", call.dims[axis])
        k.count(f"src{n}", call.src_strides[axis], "i32")
        k.count(f"dst{n}", call.dst_strides[axis], "i32")
    k.elements(**{f"d{n}": f"size{n}" for n in range(len(axes))})
    for side in ("src", "dst"):
        places = "".join(f" + i32(d{n}) * u.{side}{n}" for n in range(len(axes)))
        k.add(f"let {side}_at = u32(u.{side}_offset{places});")
    words = call.size // WORD
    for part in range(words):
        at = [f"{words}u * {side}_at + {part}u" for side in ("src", "dst")]
        k.add(f"{target.word(at[1])} = {source.word(at[0])};")


@template(calls.Gather)
def gather(k: Kernel, call: calls.Gather) -> None:
    """Rows by their indices."""
    if call.inner % WORD:
        raise NoKernelError(f"a lookup of rows of {call.inner} bytes")
    data, indices, y = k.fields("data", "indices", "y")
    k.count("words", call.inner // WORD)
    k.elements(outer="outer", row="n", column="words")
    k.add(*wrapped_index(indices, "row", "u.dim"))
    k.add(f"{y.word('i')} = {data.word('(outer * u.dim + u32(index)) * u.words + column')};")


@template(calls.GatherGrad)
def gather_gradient(k: Kernel, call: calls.GatherGrad) -> None:
    """An invocation adds up what came from an element, in the order of the indices."""
    indices, dy, dx = k.fields("indices", "dy", "dx")
    k.elements(outer="outer", row="dim", column="inner")
    k.add("var sum = 0.0f;", "for (var step = 0u; step < u.n; step++) {", *wrapped_index(indices, "step", "u.dim"))
    k.add(f"if (u32(index) == row) {{ sum += {dy['(outer * u.n + step) * u.inner + column']}; }}", "}")
    k.add(dx.store("i", "sum"))
