"""Elements and slices by computed places, one-hot rows, cumulative sums and places of extremes (wasm_kernels/index.c).

If updates may meet, an invocation makes all updates of a line, in the order of the indices.
"""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import WORD, Kernel, NoKernelError, Operand, position_in
from trainweb.backend.webgpu.templates.tools import sum_of, wrapped_index
from trainweb.ir import calls
from trainweb.ir.layout import SCATTER_ADD, SCATTER_F32, SCATTER_MAX, SCATTER_MUL, SCATTER_SET

Elements = calls.GatherElements | calls.ScatterElements
Tuples = calls.GatherNd | calls.ScatterNd


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


def _updated(
    y: Operand, to: str, updates: Operand, at: str, call: calls.ScatterElements | calls.ScatterNd
) -> list[str]:
    """Statements that reduce an element and its update to one."""
    old, new = y.load(to), updates.load(at)
    if call.reduction in (SCATTER_ADD, SCATTER_MUL):
        return [y.store(to, f"{old} {'+' if call.reduction == SCATTER_ADD else '*'} {new}")]
    name = "max" if call.reduction == SCATTER_MAX else "min"
    if call.type == SCATTER_F32:
        name = {"max": "larger", "min": "smaller"}[name]
    return [y.store(to, f"{name}({old}, {new})")]


def _along(k: Kernel, call: Elements, indices: Operand) -> None:
    """A loop of an invocation over a line of the indices along their axis, which a brace ends.

    `at` is the place of an index, and `place` is the place of its element in the data.
    """
    shape = list(zip(call.dims, call.strides, strict=True))
    axis = next((n for n, (size, step) in enumerate(shape) if size > 1 and not step), len(shape))
    others = shape[:axis] + shape[axis + 1 :]
    length = call.dims[axis] if axis < len(shape) else 1
    inside = k.count("inside", prod(call.dims[axis + 1 :]))
    k.elements(prod(size for size, _ in others))
    k.add(*position_in(k, [size for size, _ in others])("i"))
    terms = [f"d{n} * {k.count(f'stride{n}', step)}" for n, (size, step) in enumerate(others) if step and size > 1]
    k.add(
        f"let base = {sum_of(terms)};",
        f"let first = i / {inside} * {inside} * {k.count('length', length)} + i % {inside};",
    )
    k.add("for (var step = 0u; step < u.length; step++) {", f"let at = first + step * {inside};")
    k.add(*wrapped_index(indices, "at", k.count("dim", call.axis_dim)))
    k.add(f"let place = base + u32(index) * {k.count('along', call.axis_stride)};")


def gather_elements(call: calls.GatherElements) -> list[Kernel]:
    """y = data at the place of each index along an axis."""
    k, words = Kernel("gather_elements"), _words(call.size)
    data, indices, y = k.operand("data", call.data), k.operand("indices", call.indices), k.operand("y", call.y)
    _along(k, call, indices)
    k.add(*_copy(y, "at", data, "place", words), "}")
    return [k]


def scatter_elements(call: calls.ScatterElements) -> list[Kernel]:
    """y at the place of each index along an axis = the update, or both reduced to one."""
    k, words = Kernel("scatter_elements"), _words(call.size)
    updates, indices, y = k.operand("updates", call.updates), k.operand("indices", call.indices), k.operand("y", call.y)
    _along(k, call, indices)
    is_set = call.reduction == SCATTER_SET
    k.add(*(_copy(y, "place", updates, "at", words) if is_set else _updated(y, "place", updates, "at", call)), "}")
    return [k]


def _tuple(k: Kernel, call: Tuples, indices: Operand) -> list[str]:
    """Statements for `slice`: the place of the slice that a tuple of indices names."""
    lines = ["var place = 0u;"]
    for n in range(call.k):
        size = k.count(f"dim{n}", call.dims[n])
        lines += [
            "{",
            *wrapped_index(indices, f"at * {k.count('k', call.k)} + {n}u", size),
            f"place = place * {size} + u32(index);",
            "}",
        ]
    return lines


def gather_nd(call: calls.GatherNd) -> list[Kernel]:
    """Slices by tuples of indices."""
    k, words = Kernel("gather_nd"), _words(call.slice)
    data, indices, y = k.operand("data", call.data), k.operand("indices", call.indices), k.operand("y", call.y)
    k.elements(call.batch * call.n * words)
    k.add(f"let at = i / {k.count('words', words)};", *_tuple(k, call, indices))
    k.add(f"let first = at / {k.count('n', call.n)} * {k.count('plane', prod(call.dims))};")
    k.add(f"{y.word('i')} = {data.word('(first + place) * u.words + i % u.words')};")
    return [k]


def scatter_nd(call: calls.ScatterNd) -> list[Kernel]:
    """Slices of y by tuples of indices = the updates, or both reduced to one."""
    k = Kernel("scatter_nd")
    updates, indices, y = k.operand("updates", call.updates), k.operand("indices", call.indices), k.operand("y", call.y)
    per = 2 if y.dtype == "int64" else 1
    elements = _words(call.slice) // per
    k.elements(call.batch * elements)
    k.add(f"let column = i % {k.count('elements_of_slice', elements)};", "let batch = i / u.elements_of_slice;")
    k.add(f"for (var step = 0u; step < {k.count('n', call.n)}; step++) {{", "let at = batch * u.n + step;")
    k.add(*_tuple(k, call, indices))
    k.add(f"let to = (batch * {k.count('plane', prod(call.dims))} + place) * u.elements_of_slice + column;")
    source = "at * u.elements_of_slice + column"
    if call.reduction == SCATTER_SET:
        k.add(*_copy(y, "to", updates, source, per), "}")
    else:
        k.add(*_updated(y, "to", updates, source, call), "}")
    return [k]


def one_hot(call: calls.OneHot) -> list[Kernel]:
    """The second value where the index says so, else the first."""
    k, words = Kernel("one_hot"), _words(call.size)
    indices, values, y = k.operand("indices", call.indices), k.operand("values", call.values), k.operand("y", call.y)
    k.elements(call.outer * call.depth * call.inner)
    k.add(
        f"let column = i % {k.count('inner', call.inner)};",
        f"let class_ = (i / u.inner) % {k.count('depth', call.depth)};",
    )
    k.add(*wrapped_index(indices, "i / (u.inner * u.depth) * u.inner + column", "u.depth"))
    k.add("let value = select(0u, 1u, index == i32(class_));", *_copy(y, "i", values, "value", words))
    return [k]


def _lines(k: Kernel, call: calls.Cumsum | calls.ArgReduce) -> None:
    """An invocation for each line along the middle axis; `start` is its first element."""
    k.elements(call.outer * call.inner)
    k.add(f"let start = i / {k.count('inner', call.inner)} * {k.count('n', call.n)} * u.inner + i % u.inner;")


def cumsum(call: calls.Cumsum) -> list[Kernel]:
    """Sums along an axis; `error` is what their rounding lost."""
    k = Kernel("cumsum")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    _lines(k, call)
    k.add("var sum = 0.0f;", "var error = 0.0f;", "for (var step = 0u; step < u.n; step++) {")
    k.add(
        f"let at = start + {'(u.n - 1u - step)' if call.reverse else 'step'} * u.inner;", f"let value = {x.load('at')};"
    )
    store = y.store("at", "sum + error")
    k.add(*([store] if call.exclusive else []), "let total = sum + value;")
    k.add("let is_larger = abs(sum) >= abs(value);", "if (abs(total) < 0x1p127f) {")
    k.add("error += (select(value, sum, is_larger) - total) + select(sum, value, is_larger);", "}", "sum = total;")
    k.add(*([] if call.exclusive else [store]), "}")
    return [k]


def arg_reduce(call: calls.ArgReduce) -> list[Kernel]:
    """The place of the largest or the smallest element along an axis; a NaN wins."""
    k = Kernel("arg_reduce")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    _lines(k, call)
    sign = ">" if call.select_max else "<"
    k.add(f"var best = {x.load('start')};", "var place = 0i;", "for (var step = 1u; step < u.n; step++) {")
    k.add(
        f"let value = {x.load('start + step * u.inner')};",
        f"let is_new = value {sign}{'=' if call.last_index else ''} best;",
    )
    wins = f"select(is_nan(value) || is_new, {'is_nan(value)' if call.last_index else 'false'}, is_nan(best))"
    k.add(f"if ({wins}) {{ best = value; place = i32(step); }}", "}", y.store("i", "place"))
    return [k]
