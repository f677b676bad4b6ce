"""Four rows against all others: a workgroup keeps the four, and a lane scores one of the others at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, Operand
from trainweb.backend.webgpu.templates.tools import fold_over_lanes

ROWS = 4
MOST_KEPT = 320
"""Elements of a row at most that the workgroup keeps: two such groups of rows take 10 KiB of 16."""
MOST_SLOTS = 32
"""Columns of a lane at most where lanes are few."""

Read = Callable[[str, str], str]
"""The element at a row and a column."""
Columns = Callable[[str], str]
"""The elements of the four rows at a column."""


def four(of: Callable[[int], str]) -> str:
    """A vector of something of each of the four rows."""
    return f"vec4f({', '.join(of(r) for r in range(ROWS))})"


def start(k: Kernel, rows: str, **axes: str) -> None:
    """Run a workgroup for each four rows from `first` on, along other axes; past the end the last row repeats."""
    k.count("tiles", ceil(k.value(rows) / ROWS))
    k.blocks(**axes, tile="tiles")
    k.add(f"let first = tile * {ROWS}u;", *(f"let row{r} = min(first + {r}u, u.{rows} - 1u);" for r in range(ROWS)))


def store_rows(k: Kernel, count: str, at: str, *names: str) -> None:
    """Store numbers of the four rows, which are variables with the names of fields, where they are wanted."""
    stores = k.wanted(at, **{name: f"{name}[lane]" for name in names})
    k.add(f"if (lane < {ROWS}u && first + lane < {count}) {{", *stores, "}")


def keep(k: Kernel, name: str, read: Read, size: int, width: str) -> Columns:
    """Keep the elements of the four rows, by column."""

    def elements(column: str) -> str:
        return four(lambda r: read(f"row{r}", column))

    if size > MOST_KEPT:
        return elements
    k.declare(f"var<workgroup> {name}: array<vec4f, {ceil(size / k.lanes) * k.lanes}>;")
    k.each_step(width, f"{name}[column] = {elements('column')};", variable="column")
    k.add("workgroupBarrier();")
    return lambda column: f"{name}[{column}]"


def products(name: str, tile: Columns, read: Read, row: str, width: str) -> list[str]:
    """Statements for `name`: the products of the four rows with one of the others."""
    loop = f"for (var column = 0u; column < {width}; column++) {{"
    return [f"var {name} = vec4f(0.0f);", loop, f"{name} += {tile('column')} * {read(row, 'column')};", "}"]


def for_chunks(k: Kernel, first: str, end: str) -> str:
    """Begin a loop over the chunks of the others, which a brace ends; `other` is the lane's."""
    return f"for (var chunk = {first}; chunk < {end}; chunk += {k.lanes}u) {{ let other = chunk + lane;"


class ColumnSums:
    """Sums of the others' values, weighted by the scores of a chunk; variables of both begin with `name`.

    If there are fewer columns, `size`, than lanes, several lanes share the others of a column.
    """

    def __init__(self, k: Kernel, name: str, size: int) -> None:
        self.k, self.name = k, name
        wide = min(k.lanes, 1 << (size - 1).bit_length())
        self.width, self.parts = k.count(f"{name}_width", wide), k.count(f"{name}_parts", k.lanes // wide)
        self.size = k.count(f"{name}_size", size)
        self.slots = range(ceil(size / k.lanes))
        if k.is_few and len(self.slots) > MOST_SLOTS:
            raise NoKernelError(f"more than {MOST_SLOTS} columns of a lane")
        k.declare(f"var<workgroup> {name}_scores: array<vec4f, {k.lanes}>;")
        self.all_sum = fold_over_lanes(k, "sum4")
        for s in self.slots:
            k.add(f"let {name}_column{s} = lane % {self.width} + {s * k.lanes}u;", f"var {name}{s} = vec4f(0.0f);")
            k.add(f"let {name}_place{s} = min({name}_column{s}, {self.size} - 1u);")

    def add(self, read: Read, end: str) -> list[str]:
        """Statements that add the values of a chunk, weighted by the scores that `NAME_scores` has."""
        name = self.name
        loop = f"for (var at = lane / {self.width}; at < min({self.k.lanes}u, {end} - chunk); at += {self.parts}) {{"
        values = [read("(chunk + at)", f"{name}_place{s}") for s in self.slots]
        sums = [f"{name}{s} += {name}_scores[at] * {value};" for s, value in enumerate(values)]
        return [loop, *sums, "}"]

    def store(self, count: str, out: Operand, place: Read, value: str = "{}", *, accumulate: bool = False) -> None:
        """Store the sums at their places, of rows that are there; `value` is made of a sum and the row's number."""
        k, name = self.k, self.name
        for s in self.slots:
            k.add(f"{name}{s} = {self.all_sum}(lane, {name}{s}, {self.width});")
            k.add(f"if (lane < {self.width} && {name}_column{s} < {self.size}) {{")
            for r in range(ROWS):
                at, result = place(f"row{r}", f"{name}_column{s}"), value.format(f"{name}{s}[{r}]", r)
                stored = out.store(at, f"{out[at]} + {result}" if accumulate else result)
                k.add(f"if (first + {r}u < {count}) {{ {stored} }}")
            k.add("}")


def add_chunk(k: Kernel, end: str, *parts: tuple[ColumnSums, str, Read], scale: str = "") -> None:
    """Add the values of a chunk, weighted by the scores that each lane has, to sums that are scaled before."""
    k.add(*(f"{sums.name}_scores[lane] = {scores};" for sums, scores, _ in parts), "workgroupBarrier();")
    for sums, _, read in parts:
        k.add(*(f"{sums.name}{s} *= {scale};" for s in sums.slots if scale), *sums.add(read, end))
    k.add("workgroupBarrier();")


def weigh_by_softmax(
    k: Kernel, bounds: tuple[str, str], scores: list[str], sums: ColumnSums | None, values: Read, *dropped: str
) -> None:
    """Sum up values by the exponentials of their scores, of four rows; statements `scores` set `least`.

    `top` is then the largest score, by which exponentials are divided, and `sum` their sum. `dropped` changes the
    shares of a chunk before the values take them.
    """
    all_max, all_sum = (fold_over_lanes(k, fold) for fold in ("max4", "sum4"))
    k.add("var top = vec4f(from_bits(0xff800000u));", "var sum = vec4f(0.0f);", for_chunks(k, *bounds))
    k.add("var least = vec4f(from_bits(0xff800000u));", f"if (other < {bounds[1]}) {{", *scores, "}")
    k.add(f"let highest = larger4(top, {all_max}(lane, least, 1u));", "let shift = finite4(highest);")
    k.add("let factor = exp4(top - shift);", "var share = exp4(least - shift);", "top = highest;")
    k.add(f"if (other >= {bounds[1]}) {{ share = vec4f(0.0f); }}", "sum = sum * factor + share;", *dropped)
    if sums is not None:
        add_chunk(k, bounds[1], (sums, "share", values), scale="factor")
    k.add("}", f"sum = {all_sum}(lane, sum, 1u);")
