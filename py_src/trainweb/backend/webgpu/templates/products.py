"""Products of matrices: every invocation keeps a tile of the result in registers, without workgroup memory.

A long sum with few tiles is split; a second kernel adds the parts in their order. A large product has another form in
which 256 lanes share tiles of the operands in workgroup memory. The page takes it on hardware that gains by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, Operand
from trainweb.backend.webgpu.templates.tools import sum_of
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import ACTIVATION_RELU

TILE = 4
"""Rows and columns of a tile, where the result has as many."""
LEAST_TILES, LEAST_SUM = 2048, 512
"""A product with fewer tiles than this is split, if its sums are longer than this."""
MOST_SPLITS = 16
SHARED_TILE, SHARED_STEPS, SHARED_LANES, LINE = 64, 16, 256, 65
"""Rows and columns of a shared tile, steps at a time, lanes, and the elements from a step to the next: an odd number,
so that lanes write into different banks."""
LEAST_SHARED = 32
"""Rows and columns of a result from which on tiles are shared."""


@dataclass(frozen=True, slots=True)
class Side:
    """How a kernel reads one operand of a product.

    Attributes
    ----------
    outer
        Statements about a row of a (a column of b), by the name of its number: they run once.
    load
        The element at that row (column) and at `step`. `batch` is the number of the product.
    step
        Statements about `step`.
    is_along
        True if the elements of neighbouring steps lie side by side.
    """

    outer: Callable[[str], list[str]]
    load: Callable[[str], str]
    step: tuple[str, ...] = ()
    is_along: bool = True


Sides = Callable[[Kernel], tuple[Side, Side]]
"""Declares what a kernel reads."""
Store = Callable[[Kernel, str, str, str], list[str]]
"""Statements that store a result of `batch`, by row, column and value."""


@dataclass(frozen=True, slots=True)
class Product:
    """The sums c[batch](row, column) = sum over k of a(row, k) b(k, column)."""

    name: str
    m: int
    n: int
    k: int
    batch: int


def product_kernels(p: Product, operands: Sides, results: Callable[[Kernel], Store]) -> list[Kernel]:
    """The kernels of a product; `operands` and `results` declare what they read and write in a kernel."""
    height, width = (TILE if size >= TILE else 1 for size in (p.m, p.n))
    tiles = ceil(p.m / height) * ceil(p.n / width) * p.batch
    splits = 1
    if tiles < LEAST_TILES and p.k >= LEAST_SUM:
        splits = min(MOST_SPLITS, p.k // (LEAST_SUM // 2), ceil(LEAST_TILES / tiles))
    k = Kernel(p.name)
    is_large = min(p.m, p.n) >= LEAST_SHARED
    if is_large:
        k.shared = Kernel(f"{p.name} (shared tiles)", SHARED_LANES)
    if splits == 1:
        _tile(k, p, (height, width), 1, operands, results(k))
        if k.shared:
            _shared_tile(k.shared, p, 1, operands, results(k.shared))
        return [k]
    _, room = k.partial("parts", splits * p.batch * p.m * p.n)

    def keep(k: Kernel, row: str, column: str, value: str) -> list[str]:
        at = f"((batch * u.splits + split) * u.m + {row}) * u.n + {column}"
        return [k.operand("parts", room).store(at, value)]

    _tile(k, p, (height, width), splits, operands, keep)
    if k.shared:
        _shared_tile(k.shared, p, splits, operands, keep)
    return [k, _sum_of_parts(p, splits, room, results)]


def _tile(
    k: Kernel,
    p: Product,
    tile: tuple[int, int],
    splits: int,
    operands: Sides,
    store: Store,
) -> None:
    height, width = tile
    rows, columns = ceil(p.m / height), ceil(p.n / width)
    for name, value in (("m", p.m), ("n", p.n), ("k", p.k), ("columns", columns)):
        k.count(name, value)
    k.elements(rows * columns * p.batch * splits)
    k.add(f"let column = (i % u.columns) * {width}u;", "var rest = i / u.columns;")
    k.add(f"let row = (rest % {k.count('rows', rows)}) * {height}u;", "rest = rest / u.rows;", *_range(k, p, splits))
    side_a, side_b = operands(k)
    for r in range(height):
        k.add(f"let row{r} = min(row + {r}u, u.m - 1u);", *side_a.outer(f"row{r}"))
    for c in range(width):
        k.add(f"let column{c} = min(column + {c}u, u.n - 1u);", *side_b.outer(f"column{c}"))
    kind = "vec4f" if width > 1 else "f32"
    k.add(*(f"var sum{r} = {kind}(0.0f);" for r in range(height)), "for (var step = first; step < last; step++) {")
    k.add(*side_a.step, *side_b.step)
    k.add(f"let b = {kind}({', '.join(side_b.load(f'column{c}') for c in range(width))});")
    k.add(*(f"sum{r} += {side_a.load(f'row{r}')} * b;" for r in range(height)), "}")
    for r in range(height):
        for c in range(width):
            result = f"sum{r}[{c}]" if width > 1 else f"sum{r}"
            k.add(f"if (row + {r}u < u.m && column + {c}u < u.n) {{")
            k.add(*store(k, f"row{r}", f"column{c}", result), "}")


def _range(k: Kernel, p: Product, splits: int) -> list[str]:
    """Statements that compute the steps [first, last) of a split, and `batch`, from the variable `rest`."""
    if splits == 1:
        return ["let first = 0u;", "let last = u.k;", "let batch = rest;"]
    number, span = k.count("splits", splits), k.count("span", ceil(p.k / splits))
    lines = [f"let split = rest % {number};", f"let batch = rest / {number};", f"let first = split * {span};"]
    return [*lines, f"let last = min(u.k, first + {span});"]


def _shared_tile(k: Kernel, p: Product, splits: int, operands: Sides, store: Store) -> None:
    """A workgroup for each 64 x 64 results: its lanes have four rows and every 16th column."""
    rows, columns = ceil(p.m / SHARED_TILE), ceil(p.n / SHARED_TILE)
    for name, value in (("m", p.m), ("n", p.n), ("k", p.k), ("columns", columns), ("rows", rows)):
        k.count(name, value)
    k.blocks(rows * columns * p.batch * splits)
    k.add(f"let first_column = (block % u.columns) * {SHARED_TILE}u;", "var rest = block / u.columns;")
    k.add(f"let first_row = (rest % u.rows) * {SHARED_TILE}u;", "rest = rest / u.rows;", *_range(k, p, splits))
    sides = operands(k)
    k.add(*(f"var sum{r} = vec4f(0.0f);" for r in range(TILE)), "let row_of_lane = lane / 16u * 4u;")
    k.add("let column_of_lane = lane % 16u;", f"for (var tile = first; tile < last; tile += {SHARED_STEPS}u) {{")
    for side, name, start, size in zip(sides, "ab", ("first_row", "first_column"), ("u.m", "u.n"), strict=True):
        k.declare(f"var<workgroup> tile_{name}: array<f32, {SHARED_STEPS * LINE}>;")
        inner, outer = (f"at % {SHARED_STEPS}u", f"at / {SHARED_STEPS}u") if side.is_along else ("at / 64u", "at % 64u")
        k.add(f"for (var at = lane; at < {SHARED_STEPS * SHARED_TILE}u; at += {SHARED_LANES}u) {{")
        k.add(f"let inner = {inner};", f"let outer = {outer};", "let step = tile + inner;", "var value = 0.0f;")
        k.add(f"let place = min({start} + outer, {size} - 1u);", "if (step < last) {", *side.outer("place"), *side.step)
        k.add(f"value = {side.load('place')};", "}", f"tile_{name}[inner * {LINE}u + outer] = value;", "}")
    k.add("workgroupBarrier();", f"for (var inner = 0u; inner < {SHARED_STEPS}u; inner++) {{")
    b = ", ".join(f"tile_b[line + column_of_lane + {16 * c}u]" for c in range(TILE))
    k.add(f"let line = inner * {LINE}u;", f"let b = vec4f({b});")
    k.add(*(f"sum{r} += tile_a[line + row_of_lane + {r}u] * b;" for r in range(TILE)), "}", "workgroupBarrier();", "}")
    for r in range(TILE):
        for c in range(TILE):
            k.add(
                "{",
                f"let row = first_row + row_of_lane + {r}u;",
                f"let column = first_column + column_of_lane + {16 * c}u;",
            )
            k.add("if (row < u.m && column < u.n) {", *store(k, "row", "column", f"sum{r}[{c}]"), "}", "}")


def _sum_of_parts(p: Product, splits: int, room: Buf, results: Callable[[Kernel], Store]) -> Kernel:
    k = Kernel(f"{p.name} (sum of parts)")
    parts, store = k.operand("parts", room), results(k)
    k.elements(p.batch * p.m * p.n)
    k.count("m", p.m)
    k.add(f"let column = i % {k.count('n', p.n)};", "let row = (i / u.n) % u.m;", "let batch = i / (u.n * u.m);")
    k.add("var sum = 0.0f;", f"for (var part = 0u; part < {k.count('splits', splits)}; part++) {{")
    k.add(f"sum += {parts.load('((batch * u.splits + part) * u.m + row) * u.n + column')};", "}")
    k.add(*store(k, "row", "column", "sum"))
    return k


def finished(k: Kernel, value: str, accumulate: Operand | None, at: str, activation: int) -> list[str]:
    """Statements for `y`: a sum with what the result holds, and its activation."""
    lines = [f"var y = {value};"]
    if accumulate is not None:
        lines.append(f"y += {accumulate.load(at)};")
    if activation == ACTIVATION_RELU:
        lines.append("y = p_max(y, 0.0f);")
    elif activation:
        raise NoKernelError(f"the activation {activation}")
    return lines


def gemm(call: calls.Gemm) -> list[Kernel]:
    """Products with any strides, a bias, relu and a sum into the result."""
    if call.a.dtype != "float32" or call.b.dtype != "float32":
        raise NoKernelError(f"a product of {call.a.dtype} and {call.b.dtype}")
    return matrix_product(call, lambda k: _side(k, k.operand("b", call.b), call, call.b_batch, call.b_col, call.b_row))


def _place(k: Kernel, call: Any, name: str, at: tuple[tuple[str, int], ...], strides: tuple[int, ...]) -> str:
    """The element of an operand at these places along axes with strides, in a batch."""
    terms = [(where, step) for where, step in at if step]
    if isinstance(call, calls.Gemm):
        batches = (f"(batch / {k.count('batch1', call.batch[1])})", "(batch % u.batch1)")
        terms = [(where, step) for where, step in (*zip(batches, strides, strict=True), *at) if step]
    return sum_of([f"{where} * {k.count(f'{name}_stride{n}', step)}" for n, (where, step) in enumerate(terms)])


def _side(k: Kernel, x: Operand, call: Any, strides: tuple[int, ...], outer: int, inner: int) -> Side:
    """An operand that is a matrix in memory."""
    name = x.start
    along = k.count(f"{name}_step", inner)
    return Side(
        lambda at: [f"let {name}_{at} = {_place(k, call, name, ((at, outer),), strides)};"],
        lambda at: x.load(f"{name}_{at} + step * {along}"),
        is_along=inner == 1,
    )


def matrix_product(call: calls.Gemm | calls.GemmQuantized, right: Callable[[Kernel], Side]) -> list[Kernel]:
    """A product of matrices whose right operand a kernel reads as `right` declares."""
    if call.wanted is not None:
        raise NoKernelError("wanted rows")
    strides: dict[str, tuple[int, ...]] = {"a": (), "c": (), "bias": ()}
    batch = 1
    if isinstance(call, calls.Gemm):
        strides, batch = {"a": call.a_batch, "c": call.c_batch, "bias": call.bias_batch}, prod(call.batch)

    def operands(k: Kernel) -> tuple[Side, Side]:
        return _side(k, k.operand("a", call.a), call, strides["a"], call.a_row, call.a_col), right(k)

    def results(k: Kernel) -> Store:
        c, bias = k.operand("c", call.c), None if call.bias is None else k.operand("bias", call.bias)
        k.real("alpha", call.alpha)
        if bias is not None:
            k.real("beta", call.beta)

        def store(k: Kernel, row: str, column: str, value: str) -> list[str]:
            at = _place(k, call, "c", ((row, call.c_row), (column, 1)), strides["c"])
            added = ""
            if bias is not None:
                of_bias = _place(k, call, "bias", ((row, call.bias_row), (column, call.bias_col)), strides["bias"])
                added = f" + u.beta * {bias.load(of_bias)}"
            lines = finished(k, f"u.alpha * {value}{added}", c if call.accumulate else None, at, call.activation)
            return [*lines, c.store(at, "y")]

        return store

    return product_kernels(Product("gemm", call.m, call.n, call.k, batch), operands, results)
