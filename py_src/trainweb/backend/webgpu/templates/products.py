"""Products of matrices, in the three forms of docs/architecture-webgpu.md. A long sum with few tiles is split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import ceil, inf, prod
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, Operand, split, template
from trainweb.backend.webgpu.templates.tools import fold_steps, sum_of, unrolled
from trainweb.ir import calls
from trainweb.ir.layout import ACTIVATION_NONE, ACTIVATION_RELU

TILE = 4
"""Rows and columns of a tile at most."""
MOST_UNROLLED = 8
"""Steps of a window's axis at most that are no loop."""
FLOORS = {ACTIVATION_NONE: -inf, ACTIVATION_RELU: 0.0}
"""The least result by activation: a number, so that products with and without relu share a pipeline."""
UNROLLED = 4
"""Steps of other axes at once. Half of them for a whole tile: as fast, and sooner compiled."""
LEAST_TILES, LEAST_SUM = 2048, 512
"""A product with fewer tiles than this is split, if its sums are longer than this."""
MOST_SPLITS = 16
SHARED_TILE, SHARED_STEPS, SHARED_LANES, LINE = 64, 16, 256, 65
"""Rows and columns of a shared tile, steps at a time, lanes, and the elements from a step to the next: an odd number,
so that lanes write into different banks."""
LEAST_SHARED = 32
"""Rows and columns of a result from which on tiles are shared."""
LEAST_VECTOR = 256
"""Steps of the sums of a row or a column, or of few rows with few tiles, from which on lanes share them."""

Axes = dict[str, str]
"""Names of axes, and of the numbers that are their sizes. The last axis is the innermost."""
Offsets = Counter[str]
"""Places behind the variables of axes: of an element in a tile, and of a step among several. Others are 0."""
Statements = Callable[[Offsets], list[str]]
Store = Callable[[str, str, str], list[str]]
"""Statements that store a result of `batch`, by row, column and value. Axes of the columns that have no tiles are
variables."""
PART = "((batch * u.splits + split) * u.height + {}) * u.width + {}"
"""The element of a part of a sum."""
RANGE = "let first = split * u.{span}; let last = min(u.{end}, first + u.{span});"


@dataclass(frozen=True, slots=True)
class Side:
    """The access to one operand of a product. A place along an axis is the variable of its name, and an offset."""

    outer: Statements
    """About a row or a column: they run before all steps."""
    steps: dict[str, Statements]
    """About the place along an axis of the steps. Equal ones run once."""
    load: Callable[[Offsets], str]
    """The element."""
    is_along: bool = True
    """True if the elements of neighbouring steps lie side by side."""


def linear(x: Operand, axis: str, start: str, steps: dict[str, str], *, is_along: bool = True) -> Side:
    """An operand whose element is the sum of a part for a row or a column, and of one for the steps.

    In the texts, `{at}` is the place along an axis. `steps` names the axes in order; `{before}` is the part of the axis
    before. The last part is the one that counts.
    """
    inner, name = [*steps][-1], x.start

    def part(step: str, before: str) -> Statements:
        def statements(offsets: Offsets) -> list[str]:
            n = offsets[step]
            return [f"let {name}_{step}{n} = {steps[step].format(at=_behind(step, n), before=f'{name}_{before}0')};"]

        return statements

    return Side(
        lambda offsets: [f"let {name}_{offsets[axis]} = {start.format(at=_behind(axis, offsets[axis]))};"],
        {step: part(step, before) for step, before in zip(steps, ["", *steps], strict=False)},
        lambda offsets: x[f"{name}_{offsets[axis]} + {name}_{inner}{offsets[inner]}"],
        is_along,
    )


def _behind(axis: str, offset: int) -> str:
    return f"({axis} + {offset}u)" if offset else axis


@dataclass(frozen=True, slots=True)
class Product:
    """The sums c[batch](row, column) = sum over the steps of a(row, step) b(step, column)."""

    rows: Axes
    """One axis."""
    columns: Axes
    steps: Axes
    batches: int
    tile: dict[str, int]
    """Elements of a tile along axes of the columns, in their order. Others have one."""
    left: Side
    right: Side
    store: Store

    def fill(self, k: Kernel) -> None:
        """Write the kernels of the product."""
        k.count("floor", FLOORS[getattr(k.call, "activation", ACTIVATION_NONE)], "f32")
        height, width, depth = (prod(map(k.value, axes.values())) for axes in (self.rows, self.columns, self.steps))
        tiles = ceil(height / TILE) * ceil(width / TILE) * self.batches
        longest = k.value(next(iter(self.steps.values())))
        is_split, most = tiles < LEAST_TILES and depth >= LEAST_SUM and longest > 1, min(MOST_SPLITS, longest)
        splits = min(most, depth // (LEAST_SUM // 2), ceil(LEAST_TILES / tiles)) if is_split and not k.is_few else 1
        parts = k.room("parts", splits * self.batches * height * width) if splits > 1 else None
        span = ceil(longest / splits / UNROLLED) * UNROLLED
        sizes = {"height": height, "width": width, "depth": depth, "batches": self.batches, "splits": splits}
        for name, value in (sizes | {"span": span, "depth_span": ceil(depth / splits)}).items():
            k.count(name, value)
        store = self.store
        if parts is not None:

            def store(row: str, column: str, value: str) -> list[str]:
                return [parts.store(PART.format(row, column), value)]

        is_low = min(height, width) == 1 or (tiles < LEAST_TILES and min(height, width) <= 2 * TILE)
        if min(height, width) >= LEAST_SHARED:
            self._shared_tile(k.share("shared tiles", SHARED_LANES), store)
        elif is_low and depth >= LEAST_VECTOR:
            self._vector(k.share("vector"), store)
        self._tile(k, store)
        if parts is not None:
            self._add_parts(k.then("sum of parts"), parts)
        elif is_split:  # Software has few cores: the dispatch for the parts has no elements, in the same text.
            rest = k.then("nothing")
            rest.count("elements", 0)
            rest.lanes, rest._declared, rest._code = k.lanes, k._declared, k._code

    # A tile for each invocation.

    def _tile(self, k: Kernel, store: Store) -> None:
        """An invocation for each tile: its sums are variables."""
        axes, (row,) = self.rows | self.columns, self.rows
        tile = {row: min(TILE, k.value("height"))} | self.tile
        rows = [Counter({row: n}) for n in range(tile[row])]
        columns = [Counter(dict(zip(self.tile, at, strict=True))) for at in product(*map(range, self.tile.values()))]
        for axis, size in axes.items():
            k.count(f"{axis}_tiles", ceil(k.value(size) / tile.get(axis, 1)))
        k.elements(batch="batches", split="splits", **{f"{axis}_tile": f"{axis}_tiles" for axis in axes})
        k.add(*(f"let {axis} = {axis}_tile * {tile.get(axis, 1)}u;" for axis in axes))
        places = [(self.left, rows), (self.right, columns)]
        k.add(*_once(side.outer(at) for side, offsets in places for at in offsets))
        sums = [f"sum{r}_{c}" for r, c in product(range(len(rows)), range(len(columns)))]
        k.add(*(f"var {name} = 0.0f;" for name in sums))
        self._add_products(k, places)
        # A loop: software compiles 16 stores for longer than all the rest.
        k.add(f"var sums = array<f32, {len(sums)}>({', '.join(sums)});", f"for (var n = 0u; n < {len(sums)}u; n++) {{")
        place = "n"
        for axis in reversed(tile):
            k.add(f"let {axis} = {axis} + {place} % {tile[axis]}u;")
            place = f"({place} / {tile[axis]}u)"
        column = reduce(lambda before, axis: f"({before}) * u.{self.columns[axis]} + {axis}", self.columns)
        k.add(f"if ({' && '.join(f'{axis} < u.{axes[axis]}' for axis in tile)}) {{")
        k.add(*store(row, f"({column})", "sums[n]"), "}", "}")

    def _add_products(self, k: Kernel, places: list[tuple[Side, list[Offsets]]]) -> None:
        """The loops over the steps. The first axis is split; several steps of the last are taken at once."""
        first, inner = next(iter(self.steps)), [*self.steps][-1]
        k.add(RANGE.format(span="span", end=self.steps[first]))
        for axis, size in self.steps.items():
            start, end = ("first", "last") if axis == first else ("0u", f"u.{size}")
            if axis != inner:
                k.add(f"for (var {axis} = {start}; {axis} < {end}; {axis}++) {{", *_at_step(axis, places))
            elif size.startswith("kernel") and k.value(size) <= MOST_UNROLLED:
                k.add(f"let {axis} = 0u;", *_sums(axis, places, k.value(size)))
            else:
                most = UNROLLED // 2 if prod(len(offsets) for _, offsets in places) >= TILE * TILE else UNROLLED
                at_once = [most, 1] if k.value(size) % most else [most]
                k.add(*unrolled(axis, start, end, at_once, partial(_sums, axis, places)))
        k.add("}" * (len(self.steps) - 1))

    # The forms for fast workgroup memory.

    def _element(self, side: Side, axes: Axes, number: str, store: str) -> list[str]:
        """Statements that store the element of one row or column, by its number, and of one `step`."""
        at: Offsets = Counter()
        lines = [*split(number, **axes), *side.outer(at), *split("step", **self.steps)]
        lines += [line for axis in self.steps for line in _at_step(axis, [(side, [at])])]
        return ["{", *lines, f"{store} {side.load(at)};", "}"]

    def _vector(self, k: Kernel, store: Store) -> None:
        """A workgroup for each result, whose lanes share the sum."""
        k.blocks(batch="batches", split="splits", row_number="height", column_number="width")
        k.add(RANGE.format(span="depth_span", end="depth"), "var product = 0.0f;")
        signs = {"row": "=", "column": "*="}
        factors = [self._element(side, axes, f"{n}_number", f"product {signs[n]}") for side, axes, n in self._sides()]
        fold_steps(k, "sum", "last", *factors[0], *factors[1], start="first + lane", sum="product")
        k.once(*split("column_number", **self.columns), *store("row_number", "column_number", "sum"))

    def _sides(self) -> list[tuple[Side, Axes, str]]:
        return [(self.left, self.rows, "row"), (self.right, self.columns, "column")]

    def _shared_tile(self, k: Kernel, store: Store) -> None:
        """A workgroup for each 64 x 64 results: its lanes have four rows and every 16th column."""
        for name, size in (("row", "height"), ("column", "width")):
            k.count(f"{name}_tiles", ceil(k.value(size) / SHARED_TILE))
        k.blocks(batch="batches", split="splits", row_tile="row_tiles", column_tile="column_tiles")
        k.add(RANGE.format(span="depth_span", end="depth"), *(f"var sum{r} = vec4f(0.0f);" for r in range(TILE)))
        k.add(f"for (var tile = first; tile < last; tile += {SHARED_STEPS}u) {{")
        for (side, axes, name), size in zip(self._sides(), ("height", "width"), strict=True):
            k.declare(f"var<workgroup> {name}s: array<f32, {SHARED_STEPS * LINE}>;")
            inner, outer = ("at % 16u", "at / 16u") if side.is_along else ("at / 64u", "at % 64u")
            k.add(f"for (var at = lane; at < {SHARED_STEPS * SHARED_TILE}u; at += {SHARED_LANES}u) {{")
            k.add(f"let inner = {inner};", f"let outer = {outer};", "let step = tile + inner;", "var value = 0.0f;")
            k.add(f"let number = min({name}_tile * {SHARED_TILE}u + outer, u.{size} - 1u);", "if (step < last) {")
            k.add(*self._element(side, axes, "number", "value ="), "}")
            k.add(f"{name}s[inner * {LINE}u + outer] = value;", "}")
        k.add("workgroupBarrier();", f"for (var inner = 0u; inner < {SHARED_STEPS}u; inner++) {{")
        b = ", ".join(f"columns[line + lane % 16u + {16 * c}u]" for c in range(TILE))
        k.add(f"let line = inner * {LINE}u;", f"let b = vec4f({b});")
        k.add(*(f"sum{r} += rows[line + lane / 16u * 4u + {r}u] * b;" for r in range(TILE)))
        k.add("}", "workgroupBarrier();", "}")
        for r, c in product(range(TILE), range(TILE)):
            k.add("{", f"let row_number = row_tile * {SHARED_TILE}u + lane / 16u * 4u + {r}u;")
            k.add(f"let column_number = column_tile * {SHARED_TILE}u + lane % 16u + {16 * c}u;")
            k.add("if (row_number < u.height && column_number < u.width) {", *split("column_number", **self.columns))
            k.add(*store("row_number", "column_number", f"sum{r}[{c}]"), "}", "}")

    def _add_parts(self, k: Kernel, parts: Operand) -> None:
        k.elements(batch="batches", row_number="height", column_number="width")
        k.add("var sum = 0.0f;", "for (var split = 0u; split < u.splits; split++) {")
        k.add(f"sum += {parts[PART.format('row_number', 'column_number')]};", "}")
        k.add(*split("column_number", **self.columns), *self.store("row_number", "column_number", "sum"))


def _once(statements: Iterable[list[str]]) -> list[str]:
    """Lines without those that are there before."""
    return [*dict.fromkeys(line for lines in statements for line in lines)]


def _at_step(axis: str, places: list[tuple[Side, list[Offsets]]]) -> list[str]:
    return _once(side.steps[axis](at) for side, offsets in places for at in offsets if axis in side.steps)


def _sums(axis: str, places: list[tuple[Side, list[Offsets]]], steps: int) -> list[str]:
    """Statements that add the products of some steps to the sums of a tile."""
    several = [(side, [at | Counter({axis: n}) for at in offsets for n in range(steps)]) for side, offsets in places]
    lines = _at_step(axis, several)
    for name, (side, offsets) in zip("ab", several, strict=True):
        lines += [f"let {name}{n // steps}_{n % steps} = {side.load(at)};" for n, at in enumerate(offsets)]
    for r, c in product(*(range(len(offsets)) for _, offsets in places)):
        lines.append(f"sum{r}_{c} += {' + '.join(f'a{r}_{n} * b{c}_{n}' for n in range(steps))};")
    return lines


def finished(k: Kernel, value: str, result: Operand, at: str) -> list[str]:
    """Statements that store a sum, with what the result holds and its activation, as the call says."""
    value = f"{value} + {result[at]}" if k.call.accumulate else value
    return [result.store(at, f"p_max({value}, u.floor)" if hasattr(k.call, "activation") else value)]


@template(calls.Gemm)
def gemm(k: Kernel, call: calls.Gemm) -> None:
    """Products with any strides, a bias, relu and a sum into the result."""
    if call.a.dtype != "float32" or call.b.dtype != "float32":
        raise NoKernelError(f"a product of {call.a.dtype} and {call.b.dtype}")
    if call.bias is None:
        # The text of a product with a bias, of which a factor of 0 takes none: they share a pipeline.
        k.call = copy(call)
        k.call.bias, k.call.bias_col, k.call.beta = call.b, 1, 0.0
    matrix_product(k, _side(k, "b", "column", "b_col", "b_row"))


def _place(k: Kernel, name: str, *places: tuple[str, str]) -> str:
    """The element of an operand in a batch, by places and the fields that are their strides, but for those of 0."""
    if isinstance(k.call, calls.Gemm):
        places = ("(batch / u.batch1)", f"{name}_batch0"), ("(batch % u.batch1)", f"{name}_batch1"), *places
    return sum_of([f"{at} * u.{stride}" for at, stride in places if k.field(stride)])


def _side(k: Kernel, name: str, axis: str, outer: str, inner: str) -> Side:
    """An operand that is a matrix in memory, with the fields that are its strides."""
    start = _place(k, name, ("{at}", outer))
    return linear(k.operand(name), axis, start, {"k": f"{{at}} * u.{inner}"}, is_along=k.field(inner) == 1)


def matrix_product(k: Kernel, right: Side) -> None:
    """A product of matrices, of which the right one is read as `right` says."""
    call: Any = k.call
    if call.wanted is not None:
        raise NoKernelError("wanted rows")
    left, c = _side(k, "a", "row", "a_row", "a_col"), k.operand("c")
    bias = k.if_given("bias", " + select(0.0f, u.beta * {}, u.beta != 0.0f)", "{at}")

    def store(row: str, column: str, value: str) -> list[str]:
        added = bias and bias.format(at=_place(k, "bias", (row, "bias_row"), (column, "bias_col")))
        return finished(k, f"u.alpha * {value}{added}", c, f"{_place(k, 'c', (row, 'c_row'))} + {column}")

    batches = prod(call.batch) if isinstance(call, calls.Gemm) else 1
    tile = {"column": min(TILE, call.n)}
    Product({"row": "m"}, {"column": "n"}, {"k": "k"}, batches, tile, left, right, store).fill(k)
