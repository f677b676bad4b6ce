"""Products of matrices: every invocation keeps a tile of the result in registers, without workgroup memory.

A long sum with few tiles is split; a second kernel adds the parts in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

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
    """

    outer: Callable[[str], list[str]]
    load: Callable[[str], str]
    step: tuple[str, ...] = ()


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
    if splits == 1:
        _tile(k, p, (height, width), 1, operands, results(k))
        return [k]
    parts, room = k.partial("parts", splits * p.batch * p.m * p.n)

    def keep(k: Kernel, row: str, column: str, value: str) -> list[str]:
        at = f"((batch * u.splits + split) * u.m + {row}) * u.n + {column}"
        return [parts.store(at, value)]

    _tile(k, p, (height, width), splits, operands, keep)
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
    k.add(f"let row = (rest % {k.count('rows', rows)}) * {height}u;", "rest = rest / u.rows;")
    if splits > 1:
        k.add(f"let split = rest % {k.count('splits', splits)};", "rest = rest / u.splits;")
        k.add(f"let first = split * {k.count('span', ceil(p.k / splits))};", "let last = min(u.k, first + u.span);")
    else:
        k.add("let first = 0u;", "let last = u.k;")
    k.add("let batch = rest;")
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
    if call.wanted is not None:
        raise NoKernelError("wanted rows")
    if call.a.dtype != "float32" or call.b.dtype != "float32":
        raise NoKernelError(f"a product of {call.a.dtype} and {call.b.dtype}")

    def place(k: Kernel, name: str, at: tuple[tuple[str, int], ...], strides: tuple[int, ...]) -> str:
        """The element of an operand at these places along axes with strides, in a batch."""
        batches = (f"(batch / {k.count('batch1', call.batch[1])})", "(batch % u.batch1)")
        terms = [(where, step) for where, step in (*zip(batches, strides, strict=True), *at) if step]
        return sum_of([f"{where} * {k.count(f'{name}_stride{n}', step)}" for n, (where, step) in enumerate(terms)])

    def side(k: Kernel, x: Operand, strides: tuple[int, ...], outer: int, inner: int) -> Side:
        name = x.start
        along = k.count(f"{name}_step", inner)
        return Side(
            lambda at: [f"let {name}_{at} = {place(k, name, ((at, outer),), strides)};"],
            lambda at: x.load(f"{name}_{at} + step * {along}"),
        )

    def operands(k: Kernel) -> tuple[Side, Side]:
        a, b = k.operand("a", call.a), k.operand("b", call.b)
        return side(k, a, call.a_batch, call.a_row, call.a_col), side(k, b, call.b_batch, call.b_col, call.b_row)

    def results(k: Kernel) -> Store:
        c, bias = k.operand("c", call.c), None if call.bias is None else k.operand("bias", call.bias)
        k.real("alpha", call.alpha)
        if bias is not None:
            k.real("beta", call.beta)

        def store(k: Kernel, row: str, column: str, value: str) -> list[str]:
            at = place(k, "c", ((row, call.c_row), (column, 1)), call.c_batch)
            added = ""
            if bias is not None:
                of_bias = place(k, "bias", ((row, call.bias_row), (column, call.bias_col)), call.bias_batch)
                added = f" + u.beta * {bias.load(of_bias)}"
            lines = finished(k, f"u.alpha * {value}{added}", c if call.accumulate else None, at, call.activation)
            return [*lines, c.store(at, "y")]

        return store

    return product_kernels(Product("gemm", call.m, call.n, call.k, prod(call.batch)), operands, results)
