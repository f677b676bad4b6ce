"""Attention whose scores are never stored, its gradient, and rotary embedding (wasm_kernels/attention.c).

A forward workgroup has four rows of queries, and goes through the keys by chunks. The gradient makes the scores again:
once for four queries, and once for four keys and all queries of their group.
"""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, template
from trainweb.backend.webgpu.templates import tiles
from trainweb.backend.webgpu.templates.random import KEPT, drop
from trainweb.backend.webgpu.templates.tiles import ColumnSums, Read, four
from trainweb.backend.webgpu.templates.tools import fold_steps
from trainweb.ir import calls

MOST_SCORES = 2**32
SHARED = ("k", "v", "dk", "dv")
"""Operands that the heads of a group share."""
QUERIES, KEYS = ("row{}", "other"), ("other", "row{}")
"""Row and column of a score, where a workgroup has four queries or four keys."""
ROW = "item * u.m + first + lane"
"""A row of the queries in a workgroup that has four of them."""


def _rows(k: Kernel, *names: str) -> list[Read]:
    """The elements of operands at the item `outer`, `head`, by row and column; their starts are computed here."""

    def read(name: str) -> Read:
        x, place = k.operand(name), _place(k, name)
        return lambda row, column: x[place(row, column)]

    return [read(name) for name in names]


def _place(k: Kernel, name: str) -> Read:
    head = "shared_head" if name in SHARED else "head"
    k.add(f"let {name}_start = outer * u.{name}_strides0 + {head} * u.{name}_strides1;")
    return lambda row, column: f"{name}_start + {row} * u.{name}_strides2 + {column}"


def _masked(k: Kernel, row: str, column: str) -> list[str]:
    """Statements that scale `score`, and add the mask of four scores."""
    if k.call.mask is None:
        return ["score *= u.scale;"]
    (mask,) = _rows(k, "mask")
    masks = four(lambda r: mask(row.format(r), column.format(r)))
    return [f"let mask = {masks};", "score = masked4(score * u.scale, mask, u.fill);"]


def _dropped(k: Kernel, row: str, column: str) -> str:
    """The factors of dropout for four scores."""
    if k.call.state is None:
        return "vec4f(1.0f)"
    return four(lambda r: KEPT.format(f"(item * u.m + {row.format(r)}) * u.n + {column.format(r)}"))


def _start(k: Kernel, rows: str, heads: int) -> None:
    """Run a workgroup for each four rows of an item; `index` is the item, and `row0` the first row."""
    if k.call.state is not None:
        if prod(k.call.batch) * k.call.m * k.call.n > MOST_SCORES:
            raise NoKernelError("dropout of more than 2^32 scores")
        drop(k)
    k.count("heads", heads)
    tiles.start(k, rows, outer="batch0", index="heads")


def _start_queries(k: Kernel) -> None:
    _start(k, "m", k.call.batch[1])
    k.add("let head = index;", "let shared_head = head / u.group;", "let item = outer * u.heads + head;")


@template(calls.Attention)
def attention(k: Kernel, call: calls.Attention) -> None:
    """y = softmax(scale q k' + mask) v, and the statistics of its rows."""
    _start_queries(k)
    q, keys, values = _rows(k, "q", "k", "v")
    tile = tiles.keep(k, "queries", q, call.d, "u.d")
    y = ColumnSums(k, "values", call.e)
    scores = [*tiles.products("score", tile, keys, "other", "u.d"), *_masked(k, *QUERIES), "least = score;"]
    dropped = [] if call.state is None else [f"share *= {_dropped(k, *QUERIES)};"]
    tiles.weigh_by_softmax(k, ("0u", "u.n"), scores, y, values, *dropped)
    k.add("var inverse = 1.0f / sum;")
    value = "({0}) * inverse[{1}]"
    if call.guarded:
        k.add("let is_whole = (sum > vec4f(0.0f)) & !are_nan(sum);")
        k.add("top = select(vec4f(0.0f), top, is_whole);", "inverse = select(vec4f(0.0f), inverse, is_whole);")
        value = "select(0.0f, {0} * inverse[{1}], is_whole[{1}])"
    y.store("u.m", k.operand("y"), _place(k, "y"), value)
    tiles.store_rows(k, "u.m", ROW, "top", "inverse")


@template(calls.AttentionGradient)
def attention_gradient(k: Kernel, call: calls.AttentionGradient) -> None:
    """The gradients of queries with the sums of dy y, and then the gradients of keys and values."""
    _query_gradient(k, call)
    if call.dk is not None or call.dv is not None:
        _key_gradient(k.then("keys"), call)


def _query_gradient(k: Kernel, call: calls.AttentionGradient) -> None:
    _start_queries(k)
    q, keys, values, y, dy = _rows(k, "q", "k", "v", "y", "dy")
    slopes = tiles.keep(k, "slopes", dy, call.e, "u.e")
    fold_steps(k, "sum4", "u.e", delta=f"{slopes('step')} * {four(lambda r: y(f'row{r}', 'step'))}")
    tiles.store_rows(k, "u.m", ROW, "delta")
    if call.dq is None:
        return
    tile, dq = tiles.keep(k, "queries", q, call.d, "u.d"), ColumnSums(k, "dq", call.d)
    tops, inverses = k.fields("top", "inverse")
    k.add(f"let top = {four(lambda r: tops[f'item * u.m + row{r}'])};")
    k.add(f"let inverse = {four(lambda r: inverses[f'item * u.m + row{r}'])};")
    k.add(tiles.for_chunks(k, "0u", "u.n"), "var slope = vec4f(0.0f);", "if (other < u.n) {")
    k.add(*tiles.products("score", tile, keys, "other", "u.d"), *tiles.products("dp", slopes, values, "other", "u.e"))
    k.add(*_masked(k, *QUERIES), f"dp *= {_dropped(k, *QUERIES)};")
    k.add("slope = exp4(score - top) * inverse * (dp - delta) * u.scale;", *_unmasked(k), "}")
    tiles.add_chunk(k, "u.n", (dq, "slope", keys))
    k.add("}")
    dq.store("u.m", k.operand("dq"), _place(k, "dq"))


def _unmasked(k: Kernel) -> list[str]:
    """Statements that make the slopes of masked scores 0."""
    is_needed = k.call.mask is not None and k.call.conditional
    return ["slope = select(slope, vec4f(0.0f), are_hidden(mask));"] if is_needed else []


def _key_gradient(k: Kernel, call: calls.AttentionGradient) -> None:
    """A workgroup for each four keys of a group: the lanes take the queries of all its heads."""
    _start(k, "n", call.batch[1] // call.group)
    k.add("let shared_head = index;")
    keys, values = _rows(k, "k", "v")
    tile = tiles.keep(k, "keys", keys, call.d, "u.d")
    kept_values = tiles.keep(k, "values", values, call.e, "u.e")
    top, inverse, delta = (b["item * u.m + other"] for b in k.fields("top", "inverse", "delta"))
    dk = None if call.dk is None else ColumnSums(k, "dk", call.d)
    dv = None if call.dv is None else ColumnSums(k, "dv", call.e)
    k.add("for (var member = 0u; member < u.group; member++) {", "let head = index * u.group + member;")
    k.add("let item = outer * u.heads * u.group + head;")
    q, dy = _rows(k, "q", "dy")
    k.add(tiles.for_chunks(k, "0u", "u.m"), "var share = vec4f(0.0f);", "var slope = share;", "if (other < u.m) {")
    k.add(*tiles.products("score", tile, q, "other", "u.d"), *_masked(k, *KEYS))
    k.add(f"share = exp4(score - {top}) * {inverse};", f"let factor = {_dropped(k, *KEYS)};")
    if dk is not None:
        k.add(*tiles.products("dp", kept_values, dy, "other", "u.e"))
        k.add(f"slope = share * (dp * factor - {delta}) * u.scale;", *_unmasked(k))
    k.add("share = share * factor;", "}")
    parts = [(sums, name, rows) for sums, name, rows in ((dk, "slope", q), (dv, "share", dy)) if sums is not None]
    tiles.add_chunk(k, "u.m", *parts)
    k.add("}", "}")
    for sums, *_ in parts:
        sums.store("u.n", k.operand(sums.name), _place(k, sums.name))


@template(calls.Rotary)
def rotary(k: Kernel, call: calls.Rotary) -> None:
    """Two features of a row, half a row apart, turned by the angle of the row."""
    k.elements(d0="dims0", d1="dims1", d2="dims2", column="half")
    x, y, cosines, sines = k.fields("x", "y", "cos", "sin")

    def place(name: str) -> str:
        return "".join(f"d{axis} * u.{name}_strides{axis} + " for axis in range(3)) + "column"

    halves = ["", " + u.sin_half"]
    s1, s2 = reversed(halves) if call.back else halves
    sign = "-" if call.back else ""
    k.add(f"let x1 = {x[place('x')]};", f"let x2 = {x[place('x') + ' + u.half']};")
    k.add(f"let s1 = {sign}{sines[place('sin') + s1]};", f"let s2 = {sign}{sines[place('sin') + s2]};")
    k.add(y.store(place("y"), f"x1 * {cosines[place('cos')]} - x2 * s1"))
    k.add(y.store(place("y") + " + u.half", f"x2 * {cosines[place('cos') + ' + u.cos_half']} + x1 * s2"))
