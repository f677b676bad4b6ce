"""Products of matrices: every invocation keeps a tile of the result in registers, without workgroup memory.

A long sum with few tiles is split; a second kernel adds the parts in their order. Devices with fast workgroup memory
take another form: of a large product 256 lanes share tiles of the operands, of a row or a column the lanes share sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, Operand, template
from trainweb.backend.webgpu.templates.tools import fold_steps, sum_of
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import ACTIVATION_NONE, ACTIVATION_RELU

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
LEAST_VECTOR = 256
"""Steps of the sums of a row or a column from which on lanes share them."""


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
Store = Callable[[str, str, str], list[str]]
"""Statements that store a result of `batch`, by row, column and value."""
PART = "((batch * u.splits + split) * u.height + {}) * u.width + {}"
"""The element of a part of a sum."""


@dataclass(frozen=True, slots=True)
class Product:
    """The sums c[batch](row, column) = sum over the depth of a(row, step) b(step, column).

    Attributes
    ----------
    operands, results
        Declare what a kernel reads and writes.
    """

    height: int
    width: int
    depth: int
    batches: int
    operands: Sides
    results: Callable[[Kernel], Store]

    def fill(self, k: Kernel) -> None:
        """Write the kernels of the product."""
        tile = [TILE if size >= TILE else 1 for size in (self.height, self.width)]
        tiles = ceil(self.height / tile[0]) * ceil(self.width / tile[1]) * self.batches
        splits = 1
        if tiles < LEAST_TILES and self.depth >= LEAST_SUM:
            splits = min(MOST_SPLITS, self.depth // (LEAST_SUM // 2), ceil(LEAST_TILES / tiles))
        room = k.room(splits * self.batches * self.height * self.width) if splits > 1 else None

        def results(k: Kernel) -> Store:
            if room is None:
                return self.results(k)
            parts = k.operand("parts", room)
            return lambda row, column, value: [parts.store(PART.format(row, column), value)]

        self._tile(k, splits, tile, results(k))
        if min(self.height, self.width) >= LEAST_SHARED:
            k.shared = Kernel(f"{k.name} (shared tiles)", k.call, SHARED_LANES)
            self._shared_tile(k.shared, splits, results(k.shared))
        elif min(self.height, self.width) == 1 and self.depth >= LEAST_VECTOR:
            k.shared = Kernel(f"{k.name} (vector)", k.call)
            self._vector(k.shared, splits, results(k.shared))
        if room is not None:
            self._add_parts(k.then("sum of parts"), splits, room)

    def _declare(self, k: Kernel, splits: int, tile: list[int]) -> dict[str, str]:
        """Declare the sizes; returns the axes of the tiles."""
        sizes = {"height": self.height, "width": self.width, "depth": self.depth, "batches": self.batches}
        tiles = {"rows": ceil(self.height / tile[0]), "columns": ceil(self.width / tile[1])}
        for name, value in (sizes | tiles | {"splits": splits, "span": ceil(self.depth / splits)}).items():
            k.count(name, value)
        return {"batch": "batches", "split": "splits", "tile_row": "rows", "tile_column": "columns"}

    def _tile(self, k: Kernel, splits: int, tile: list[int], store: Store) -> None:
        height, width = tile
        k.elements(**self._declare(k, splits, tile))
        a, b = self.operands(k)
        k.add(RANGE, f"let row = tile_row * {height}u;", f"let column = tile_column * {width}u;")
        for r in range(height):
            k.add(f"let row{r} = min(row + {r}u, u.height - 1u);", *a.outer(f"row{r}"))
        for c in range(width):
            k.add(f"let column{c} = min(column + {c}u, u.width - 1u);", *b.outer(f"column{c}"))
        kind = "vec4f" if width > 1 else "f32"
        k.add(*(f"var sum{r} = {kind}(0.0f);" for r in range(height)), "for (var step = first; step < last; step++) {")
        k.add(*a.step, *b.step, f"let b = {kind}({', '.join(b.load(f'column{c}') for c in range(width))});")
        k.add(*(f"sum{r} += {a.load(f'row{r}')} * b;" for r in range(height)), "}")
        for r in range(height):
            for c in range(width):
                result = f"sum{r}[{c}]" if width > 1 else f"sum{r}"
                k.add(f"if (row + {r}u < u.height && column + {c}u < u.width) {{")
                k.add(*store(f"row{r}", f"column{c}", result), "}")

    def _vector(self, k: Kernel, splits: int, store: Store) -> None:
        """A workgroup for each result, whose lanes share the sum."""
        k.blocks(**self._declare(k, splits, [1, 1]))
        a, b = self.operands(k)
        k.add(RANGE, "let row = tile_row;", "let column = tile_column;", *a.outer("row"), *b.outer("column"))
        product = f"{a.load('row')} * {b.load('column')}"
        fold_steps(k, "sum", "last", *a.step, *b.step, start="first + lane", sum=product)
        k.once(*store("row", "column", "sum"))

    def _shared_tile(self, k: Kernel, splits: int, store: Store) -> None:
        """A workgroup for each 64 x 64 results: its lanes have four rows and every 16th column."""
        k.blocks(**self._declare(k, splits, [SHARED_TILE, SHARED_TILE]))
        sides = self.operands(k)
        k.add(RANGE, *(f"var sum{r} = vec4f(0.0f);" for r in range(TILE)), "let row_of_lane = lane / 16u * 4u;")
        k.add("let column_of_lane = lane % 16u;", f"for (var tile = first; tile < last; tile += {SHARED_STEPS}u) {{")
        for side, name, start, size in zip(sides, "ab", ("tile_row", "tile_column"), ("height", "width"), strict=True):
            k.declare(f"var<workgroup> tile_{name}: array<f32, {SHARED_STEPS * LINE}>;")
            inner, outer = ("at % 16u", "at / 16u") if side.is_along else ("at / 64u", "at % 64u")
            k.add(f"for (var at = lane; at < {SHARED_STEPS * SHARED_TILE}u; at += {SHARED_LANES}u) {{")
            k.add(f"let inner = {inner};", f"let outer = {outer};", "let step = tile + inner;", "var value = 0.0f;")
            k.add(f"let place = min({start} * {SHARED_TILE}u + outer, u.{size} - 1u);", "if (step < last) {")
            k.add(*side.outer("place"), *side.step, f"value = {side.load('place')};", "}")
            k.add(f"tile_{name}[inner * {LINE}u + outer] = value;", "}")
        k.add("workgroupBarrier();", f"for (var inner = 0u; inner < {SHARED_STEPS}u; inner++) {{")
        b = ", ".join(f"tile_b[line + column_of_lane + {16 * c}u]" for c in range(TILE))
        k.add(f"let line = inner * {LINE}u;", f"let b = vec4f({b});")
        k.add(*(f"sum{r} += tile_a[line + row_of_lane + {r}u] * b;" for r in range(TILE)))
        k.add("}", "workgroupBarrier();", "}")
        for r in range(TILE):
            for c in range(TILE):
                k.add("{", f"let row = tile_row * {SHARED_TILE}u + row_of_lane + {r}u;")
                k.add(f"let column = tile_column * {SHARED_TILE}u + column_of_lane + {16 * c}u;")
                k.add("if (row < u.height && column < u.width) {", *store("row", "column", f"sum{r}[{c}]"), "}", "}")

    def _add_parts(self, k: Kernel, splits: int, room: Buf) -> None:
        self._declare(k, splits, [1, 1])
        parts, store = k.operand("parts", room), self.results(k)
        k.elements(batch="batches", row="height", column="width")
        k.add("var sum = 0.0f;", "for (var split = 0u; split < u.splits; split++) {")
        k.add(f"sum += {parts[PART.format('row', 'column')]};", "}", *store("row", "column", "sum"))


RANGE = "let first = split * u.span; let last = min(u.depth, first + u.span);"


def finished(k: Kernel, value: str, result: Operand, at: str) -> list[str]:
    """Statements that store a sum, with what the result holds and its activation, as the call says."""
    lines = [f"var y = {value};"]
    activation = getattr(k.call, "activation", ACTIVATION_NONE)
    if k.call.accumulate:
        lines.append(f"y += {result[at]};")
    if activation == ACTIVATION_RELU:
        lines.append("y = p_max(y, 0.0f);")
    elif activation != ACTIVATION_NONE:
        raise NoKernelError(f"the activation {activation}")
    return [*lines, result.store(at, "y")]


@template(calls.Gemm)
def gemm(k: Kernel, call: calls.Gemm) -> None:
    """Products with any strides, a bias, relu and a sum into the result."""
    if call.a.dtype != "float32" or call.b.dtype != "float32":
        raise NoKernelError(f"a product of {call.a.dtype} and {call.b.dtype}")
    matrix_product(k, lambda k: _side(k, "b", "b_col", "b_row"))


def _place(k: Kernel, name: str, *places: tuple[str, str]) -> str:
    """The element of an operand in a batch, by places and the fields that are their strides, but for those of 0."""
    if isinstance(k.call, calls.Gemm):
        places = ("(batch / u.batch1)", f"{name}_batch0"), ("(batch % u.batch1)", f"{name}_batch1"), *places
    return sum_of([f"{at} * u.{stride}" for at, stride in places if k.field(stride)])


def _side(k: Kernel, name: str, outer: str, inner: str) -> Side:
    """An operand that is a matrix in memory, with the fields that are its strides."""
    x = k.operand(name)
    return Side(
        lambda at: [f"let {name}_{at} = {_place(k, name, (at, outer))};"],
        lambda at: x[f"{name}_{at} + step * u.{inner}"],
        is_along=k.field(inner) == 1,
    )


def matrix_product(k: Kernel, right: Callable[[Kernel], Side]) -> None:
    """A product of matrices whose right operand a kernel reads as `right` declares."""
    call: Any = k.call
    if call.wanted is not None:
        raise NoKernelError("wanted rows")

    def results(k: Kernel) -> Store:
        c = k.operand("c")

        def store(row: str, column: str, value: str) -> list[str]:
            bias = k.if_given("bias", " + u.beta * {}", _place(k, "bias", (row, "bias_row"), (column, "bias_col")))
            return finished(k, f"u.alpha * {value}{bias}", c, f"{_place(k, 'c', (row, 'c_row'))} + {column}")

        return store

    batches = prod(call.batch) if isinstance(call, calls.Gemm) else 1
    Product(call.m, call.n, call.k, batches, lambda k: (_side(k, "a", "a_row", "a_col"), right(k)), results).fill(k)
