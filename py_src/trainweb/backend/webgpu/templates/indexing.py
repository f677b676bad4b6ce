"""Copies, lookups, and elements by computed places; one-hot rows, cumulative sums, places of extremes.

If updates may meet, an invocation makes all updates of a line, in the order of the indices.
"""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import WORD, Kernel, NoKernelError, Operand, split, template
from trainweb.backend.webgpu.templates.elementwise import each_of_word
from trainweb.backend.webgpu.templates.tools import sum_of, wrapped_index
from trainweb.ir import calls
from trainweb.ir.layout import SCATTER_ADD, SCATTER_F32, SCATTER_MAX, SCATTER_MUL, SCATTER_SET

MOST_RANKED = 1024
"""Elements of a line whose order the GPU finds: each is compared with all others."""


def _words(nbytes: int) -> int:
    if nbytes % WORD:
        raise NoKernelError(f"elements of {nbytes} bytes")
    return nbytes // WORD


def _copy(target: Operand, to: str, source: Operand, at: str, words: int) -> list[str]:
    """Statements that copy an element of some words."""
    return [
        f"{target.word(f'{words}u * ({to}) + {n}u')} = {source.word(f'{words}u * ({at}) + {n}u')};"
        for n in range(words)
    ]


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
    k.add(*_copy(target, "dst_at", source, "src_at", _words(call.size)))


def _rows(k: Kernel, source: str, nbytes: int, /, *lines: str, **axes: str) -> None:
    """Copy rows of so many bytes: words, or four bytes at once; after `lines`, the data has them in row `source`."""
    data, y = k.fields("data", "y")
    k.count("width", nbytes if nbytes % WORD else nbytes // WORD)
    at = f"({source}) * u.width + column"
    if nbytes % WORD == 0:
        k.elements(**axes, column="width")
        k.add(*lines, f"{y.word('i')} = {data.word(at)};")
    else:
        each_of_word(k, k.call.y.size, [(y, k.call.y, data[at])], *split("i", **axes, column="width"), *lines)


@template(calls.Gather)
def gather(k: Kernel, call: calls.Gather) -> None:
    """Rows by their indices."""
    index = wrapped_index(k.operand("indices"), "row", "u.dim")
    _rows(k, "outer * u.dim + u32(index)", call.inner, *index, outer="outer", row="n")


@template(calls.GatherGrad)
def gather_gradient(k: Kernel, call: calls.GatherGrad) -> None:
    """An invocation adds up what came from an element, in the order of the indices."""
    indices, dy, dx = k.fields("indices", "dy", "dx")
    k.elements(outer="outer", row="dim", column="inner")
    k.add("var sum = 0.0f;", "for (var step = 0u; step < u.n; step++) {", *wrapped_index(indices, "step", "u.dim"))
    k.add(f"if (u32(index) == row) {{ sum += {dy['(outer * u.n + step) * u.inner + column']}; }}", "}")
    k.add(dx.store("i", "sum"))


def _update(k: Kernel, to: str, at: str, words: int) -> list[str]:
    """Statements that set an element of y to its update, or to both reduced to one."""
    (y, updates), how = k.fields("y", "updates"), k.call.reduction
    if how == SCATTER_SET:
        return _copy(y, to, updates, at, words)
    old, new = y[to], updates[at]
    if how in (SCATTER_ADD, SCATTER_MUL):
        return [y.store(to, f"{old} {'+' if how == SCATTER_ADD else '*'} {new}")]
    names = ("larger", "smaller") if k.call.type == SCATTER_F32 else ("max", "min")
    return [y.store(to, f"{names[how != SCATTER_MAX]}({old}, {new})")]


def _along(k: Kernel, call: calls.GatherElements | calls.ScatterElements) -> None:
    """Begin a loop of an invocation over a line of the indices along their axis, which a brace ends.

    `at` is the place of an index, and `place` is the place of its element in the data.
    """
    shape = list(zip(call.dims, call.strides, strict=True))
    axis = next((n for n, (size, step) in enumerate(shape) if size > 1 and not step), len(shape))
    others = [n for n in range(len(shape)) if n != axis]
    k.count("length", call.dims[axis] if axis < len(shape) else 1)
    k.count("inside", prod(call.dims[axis + 1 :]))
    k.elements(**{f"d{n}": f"dims{axis}" for n, axis in enumerate(others)})
    terms = [f"d{n} * u.strides{axis}" for n, axis in enumerate(others) if shape[axis][1] and shape[axis][0] > 1]
    k.add(f"let base = {sum_of(terms)};", "let first = i / u.inside * u.inside * u.length + i % u.inside;")
    k.add("for (var step = 0u; step < u.length; step++) {", "let at = first + step * u.inside;")
    k.add(*wrapped_index(k.operand("indices"), "at", "u.axis_dim"))
    k.add("let place = base + u32(index) * u.axis_stride;")


@template(calls.GatherElements)
def gather_elements(k: Kernel, call: calls.GatherElements) -> None:
    """y = data at the place of each index along an axis."""
    data, y = k.fields("data", "y")
    _along(k, call)
    k.add(*_copy(y, "at", data, "place", _words(call.size)), "}")


@template(calls.ScatterElements)
def scatter_elements(k: Kernel, call: calls.ScatterElements) -> None:
    """y at the place of each index along an axis = the update, or both reduced to one."""
    _along(k, call)
    k.add(*_update(k, "place", "at", _words(call.size)), "}")


def _place_of_tuple(k: Kernel, call: calls.GatherNd | calls.ScatterNd) -> list[str]:
    """Statements for `place`: the slice that a tuple of indices names."""
    k.count("plane", prod(call.dims))
    lines, indices = ["var place = 0u;"], k.operand("indices")
    for n in range(call.k):
        index = wrapped_index(indices, f"at * u.k + {n}u", f"u.dims{n}")
        lines += ["{", *index, f"place = place * u.dims{n} + u32(index);", "}"]
    return lines


@template(calls.GatherNd)
def gather_nd(k: Kernel, call: calls.GatherNd) -> None:
    """Slices by tuples of indices."""
    place = ["let at = item * u.n + row;", *_place_of_tuple(k, call)]
    _rows(k, "item * u.plane + place", call.slice, *place, item="batch", row="n")


@template(calls.ScatterNd)
def scatter_nd(k: Kernel, call: calls.ScatterNd) -> None:
    """Slices of y by tuples of indices = the updates, or both reduced to one."""
    words = 2 if call.y.dtype == "int64" else 1
    k.count("width", _words(call.slice) // words)
    k.elements(item="batch", column="width")
    k.add("for (var step = 0u; step < u.n; step++) {", "let at = item * u.n + step;", *_place_of_tuple(k, call))
    k.add("let to = (item * u.plane + place) * u.width + column;")
    k.add(*_update(k, "to", "at * u.width + column", words), "}")


@template(calls.OneHot)
def one_hot(k: Kernel, call: calls.OneHot) -> None:
    """The second value where the index says so, else the first."""
    indices, values, y = k.fields("indices", "values", "y")
    k.elements(row="outer", category="depth", column="inner")
    k.add(*wrapped_index(indices, "row * u.inner + column", "u.depth"))
    k.add("let value = select(0u, 1u, index == i32(category));", *_copy(y, "i", values, "value", _words(call.size)))


@template(calls.Cumsum)
def cumsum(k: Kernel, call: calls.Cumsum) -> None:
    """Sums along an axis; `error` is what their rounding lost."""
    x, y = k.fields("x", "y")
    k.elements(line="outer", column="inner")
    k.add("let start = line * u.n * u.inner + column;")
    k.add("var sum = 0.0f;", "var error = 0.0f;", "for (var step = 0u; step < u.n; step++) {")
    k.add(f"let at = start + {'(u.n - 1u - step)' if call.reverse else 'step'} * u.inner;", f"let value = {x['at']};")
    store = y.store("at", "sum + error")
    k.add(*([store] if call.exclusive else []), "let total = sum + value;")
    k.add("let is_larger = abs(sum) >= abs(value);", "if (abs(total) < 0x1p127f) {")
    k.add("error += (select(value, sum, is_larger) - total) + select(sum, value, is_larger);", "}", "sum = total;")
    k.add(*([] if call.exclusive else [store]), "}")


@template(calls.ArgReduce)
def arg_reduce(k: Kernel, call: calls.ArgReduce) -> None:
    """The place of the largest or the smallest element along an axis; a NaN wins."""
    x, y = k.fields("x", "y")
    k.elements(line="outer", column="inner")
    k.add("let start = line * u.n * u.inner + column;")
    sign = (">" if call.select_max else "<") + ("=" if call.last_index else "")
    k.add(f"var best = {x['start']};", "var place = 0i;", "for (var step = 1u; step < u.n; step++) {")
    k.add(f"let value = {x['start + step * u.inner']};", f"let is_new = value {sign} best;")
    wins = f"select(is_nan(value) || is_new, {'is_nan(value)' if call.last_index else 'false'}, is_nan(best))"
    k.add(f"if ({wins}) {{ best = value; place = i32(step); }}", "}", y.store("i", "place"))


@template(calls.Topk)
def topk(k: Kernel, call: calls.Topk) -> None:
    """An element goes behind all that come before it: NaN first, the lower of equals first."""
    if call.n > MOST_RANKED:
        raise NoKernelError(f"an order of more than {MOST_RANKED} elements")
    x = k.operand("x")
    k.elements(line="outer", row="n", column="inner")
    k.add("let start = line * u.n * u.inner + column;", f"let value = {x['i']};", "var place = 0u;")
    k.add("for (var step = 0u; step < u.n; step++) {", f"let other = {x['start + step * u.inner']};")
    k.add("let is_equal = select(!is_nan(value) && other == value, is_nan(value), is_nan(other));")
    k.add(f"let is_better = is_nan(other) || (!is_nan(value) && other {'>' if call.largest else '<'} value);")
    k.add("place += select(0u, 1u, select(is_better, step < row, is_equal));", "}")
    k.add("let to = (line * u.k + place) * u.inner + column;", "if (place < u.k) {")
    k.add(*k.wanted("to", y="value", at="i32(row)"), "}")
