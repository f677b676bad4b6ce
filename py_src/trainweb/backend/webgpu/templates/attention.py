"""Attention whose scores are never stored, its gradient, and rotary embedding (wasm_kernels/attention.c).

A forward workgroup has four rows of queries, and goes through the keys by chunks. The gradient makes the scores again:
once for four queries, and once for four keys and all queries of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates.random import Dropping
from trainweb.backend.webgpu.templates.tiles import (
    ROWS,
    ColumnSums,
    Read,
    first_rows,
    for_chunks,
    four,
    keep,
    products,
    tiles,
)
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.instructions import Buf

MOST_SCORES = 2**32


class _Heads:
    """Operands of a kernel of attention, in the item `outer`, `head`."""

    def __init__(self, k: Kernel, call: calls.Attention | calls.AttentionGradient) -> None:
        self.k, self.call = k, call
        for name in ("m", "n", "d", "e", "group"):
            k.count(name, getattr(call, name))
        k.count("heads", call.batch[1])
        k.real("scale", call.scale)
        self.drop = None if call.state is None else Dropping(k, call)
        if self.drop and prod(call.batch) * call.m * call.n > MOST_SCORES:
            raise NoKernelError("dropout of more than 2^32 scores")

    def rows(self, name: str, b: Buf, strides: Sequence[int], group: str = "1u") -> Read:
        """Rows of an operand, which so many heads share."""
        x = self.k.operand(name, b)
        outer, head, row = (self.k.count(f"{name}_stride{n}", step) for n, step in enumerate(strides))
        return lambda at, column: x.load(f"outer * {outer} + head / {group} * {head} + {at} * {row} + {column}")

    def mask(self) -> Read | None:
        """Rows of the mask."""
        if self.call.mask is None:
            return None
        self.k.real("fill", self.call.fill)
        return self.rows("mask", self.call.mask, self.call.mask_strides)

    def scores(self, mask: str | None) -> list[str]:
        """Statements that scale `score`, and add the mask of four of them."""
        if mask is None:
            return ["score *= u.scale;"]
        return [f"let mask = {mask};", "score = masked4(score * u.scale, mask, u.fill);"]

    def dropped(self, of_row: str, of_key: str) -> str:
        """The factor of dropout for a score."""
        assert self.drop is not None
        return self.drop.factor(f"(item * u.m + {of_row}) * u.n + {of_key}")


def _queries(k: Kernel, call: calls.Attention | calls.AttentionGradient) -> None:
    """A workgroup for each four rows of queries."""
    count = k.count("tiles", tiles(call.m))
    k.blocks(prod(call.batch) * tiles(call.m))
    k.add(f"let item = block / {count};", f"let first = (block % {count}) * {ROWS}u;")
    k.add("let outer = item / u.heads;", "let head = item % u.heads;")
    first_rows(k, "u.m")


def attention(call: calls.Attention) -> list[Kernel]:
    """y = softmax(scale q k' + mask) v, and the statistics of its rows."""
    k = Kernel("attention")
    heads = _Heads(k, call)
    _queries(k, call)
    q = heads.rows("q", call.q, call.q_strides)
    keys, values = (heads.rows(n, getattr(call, n), getattr(call, f"{n}_strides"), "u.group") for n in ("k", "v"))
    kept, mask = keep(k, "queries", q, call.d, "u.d"), heads.mask()
    all_max, all_sum = (fold_over_lanes(k, name, is_four=True) for name in ("max", "sum"))
    y = ColumnSums(k, "values", call.e)
    k.add("var top = vec4f(from_bits(0xff800000u));", "var sum = vec4f(0.0f);", for_chunks("0u", "u.n"))
    k.add("var least = vec4f(from_bits(0xff800000u));", "if (other < u.n) {")
    k.add(*products("score", kept, keys, "other", "u.d"))
    k.add(*heads.scores(mask and four(lambda r: mask(f"row{r}", "other"))), "least = score;", "}")
    k.add(f"let highest = larger4(top, {all_max}(lane, least));", "let shift = finite4(highest);")
    k.add("let factor = exp4(top - shift);", "var share = exp4(least - shift);", "top = highest;")
    k.add("if (other >= u.n) { share = vec4f(0.0f); }", "sum = sum * factor + share;")
    if heads.drop:
        k.add(f"share *= {four(lambda r: heads.dropped(f'row{r}', 'other'))};")
    k.add(y.share("share"), "workgroupBarrier();", *y.scale("factor"), *y.add(values, "u.n"))
    k.add("workgroupBarrier();", "}", f"sum = {all_sum}(lane, sum);", "var inverse = 1.0f / sum;")
    value = "({}) * inverse[{}]"
    if call.guarded:
        k.add("let is_whole = (sum > vec4f(0.0f)) & !are_nan(sum);")
        k.add("top = select(vec4f(0.0f), top, is_whole);", "inverse = select(vec4f(0.0f), inverse, is_whole);")
        value = "select(0.0f, {} * inverse[{}], is_whole[{}])"
    out, strides = k.operand("y", call.y), [k.count(f"y_stride{n}", step) for n, step in enumerate(call.y_strides)]

    def store(row: str, column: str, x: str) -> list[str]:
        r = row.removeprefix("row")
        at = f"outer * {strides[0]} + head * {strides[1]} + {row} * {strides[2]} + {column}"
        return [out.store(at, value.format(x, r, r))]

    y.store("u.m", store)
    for name, b, of in (("tops", call.top, "top"), ("inverses", call.inverse, "inverse")):
        if b is not None:
            x = k.operand(name, b)
            k.add(f"if (lane < {ROWS}u && first + lane < u.m) {{", x.store("item * u.m + first + lane", f"{of}[lane]"))
            k.add("}")
    return [k]


def attention_gradient(call: calls.AttentionGradient) -> list[Kernel]:
    """The gradients of queries with the sums of dy y, and then the gradients of keys and values."""
    kernels = [_query_gradient(call)]
    if call.dk is not None or call.dv is not None:
        kernels.append(_key_gradient(call))
    return kernels


def _query_gradient(call: calls.AttentionGradient) -> Kernel:
    k = Kernel("attention_gradient (queries)")
    heads = _Heads(k, call)
    _queries(k, call)
    y, dy = (heads.rows(name, getattr(call, name), getattr(call, f"{name}_strides")) for name in ("y", "dy"))
    all_sum = fold_over_lanes(k, "sum", is_four=True)
    slopes = keep(k, "slopes", dy, call.e, "u.e")
    k.add("var delta = vec4f(0.0f);")
    k.add(*over_lanes(k, "column", "u.e", f"delta += {slopes} * {four(lambda r: y(f'row{r}', 'column'))};"))
    k.add(f"delta = {all_sum}(lane, delta);", f"if (lane < {ROWS}u && first + lane < u.m) {{")
    k.add(k.operand("deltas", call.delta).store("item * u.m + first + lane", "delta[lane]"), "}")
    if call.dq is None:
        return k
    q, mask = heads.rows("q", call.q, call.q_strides), heads.mask()
    keys, values = (heads.rows(n, getattr(call, n), getattr(call, f"{n}_strides"), "u.group") for n in ("k", "v"))
    kept, dq = keep(k, "queries", q, call.d, "u.d"), ColumnSums(k, "dq", call.d)
    tops, inverses = k.operand("tops", call.top), k.operand("inverses", call.inverse)
    k.add(f"let top = {four(lambda r: tops.load(f'item * u.m + row{r}'))};")
    k.add(f"let inverse = {four(lambda r: inverses.load(f'item * u.m + row{r}'))};")
    k.add(for_chunks("0u", "u.n"), "var slope = vec4f(0.0f);", "if (other < u.n) {")
    k.add(*products("score", kept, keys, "other", "u.d"), *products("dp", slopes, values, "other", "u.e"))
    k.add(*heads.scores(mask and four(lambda r: mask(f"row{r}", "other"))))
    if heads.drop:
        k.add(f"dp *= {four(lambda r: heads.dropped(f'row{r}', 'other'))};")
    k.add("slope = exp4(score - top) * inverse * (dp - delta) * u.scale;")
    if mask and call.conditional:
        k.add("slope = select(slope, vec4f(0.0f), are_hidden(mask));")
    k.add("}", dq.share("slope"), "workgroupBarrier();", *dq.add(keys, "u.n"), "workgroupBarrier();", "}")
    _store(k, dq, "dq", call.dq, call.dq_strides, "u.m")
    return k


def _store(
    k: Kernel, sums: ColumnSums, name: str, b: Buf, strides: Sequence[int], count: str, head: str = "head"
) -> None:
    out = k.operand(f"{name}_of", b)
    outer, inner, line = (k.count(f"{name}_stride{n}", step) for n, step in enumerate(strides))
    at = f"outer * {outer} + {head} * {inner} + {{}} * {line} + {{}}"
    sums.store(count, lambda row, column, x: [out.store(at.format(row, column), x)])


def _key_gradient(call: calls.AttentionGradient) -> Kernel:
    """A workgroup for each four keys of a group: the lanes take the queries of all its heads."""
    k = Kernel("attention_gradient (keys)")
    heads = _Heads(k, call)
    count = k.count("tiles", tiles(call.n))
    k.blocks(prod(call.batch) // call.group * tiles(call.n))
    k.add(f"let pair = block / {count};", f"let first = (block % {count}) * {ROWS}u;")
    k.add("let outer = pair / (u.heads / u.group);", "var head = pair % (u.heads / u.group) * u.group;")
    first_rows(k, "u.n")
    keys, values = (heads.rows(n, getattr(call, n), getattr(call, f"{n}_strides"), "u.group") for n in ("k", "v"))
    kept, kept_values = keep(k, "keys", keys, call.d, "u.d"), ""
    if call.dk is not None:
        kept_values = keep(k, "values", values, call.e, "u.e")
    q, dy, mask = heads.rows("q", call.q, call.q_strides), heads.rows("dy", call.dy, call.dy_strides), heads.mask()
    top, inverse, delta = (k.operand(f"{n}s", getattr(call, n)) for n in ("top", "inverse", "delta"))
    dk = None if call.dk is None else ColumnSums(k, "dk", call.d)
    dv = None if call.dv is None else ColumnSums(k, "dv", call.e)
    k.add("for (var member = 0u; member < u.group; member++) {", "let item = outer * u.heads + head;")
    k.add(for_chunks("0u", "u.m"), "var share = vec4f(0.0f);", "var slope = vec4f(0.0f);", "if (other < u.m) {")
    k.add(*products("score", kept, q, "other", "u.d"))
    k.add(*heads.scores(mask and four(lambda r: mask("other", f"row{r}"))))
    at = "item * u.m + other"
    k.add(f"share = exp4(score - {top.load(at)}) * {inverse.load(at)};")
    if heads.drop:
        k.add(f"let factor = {four(lambda r: heads.dropped('other', f'row{r}'))};")
    dropped = " * factor" if heads.drop else ""
    if dk is not None:
        k.add(*products("dp", kept_values, dy, "other", "u.e"))
        k.add(f"slope = share * (dp{dropped} - {delta.load(at)}) * u.scale;")
        if mask and call.conditional:
            k.add("slope = select(slope, vec4f(0.0f), are_hidden(mask));")
    k.add(f"share = share{dropped};", "}")
    parts = [(sums, name, rows) for sums, name, rows in ((dk, "slope", q), (dv, "share", dy)) if sums is not None]
    k.add(*(sums.share(name) for sums, name, _ in parts), "workgroupBarrier();")
    k.add(*(line for sums, _, rows in parts for line in sums.add(rows, "u.m")))
    k.add("workgroupBarrier();", "}", "head++;", "}", "head -= u.group;")
    if dk is not None and call.dk is not None:
        _store(k, dk, "dk", call.dk, call.dk_strides, "u.n", "head / u.group")
    if dv is not None and call.dv is not None:
        _store(k, dv, "dv", call.dv, call.dv_strides, "u.n", "head / u.group")
    return k


def rotary(call: calls.Rotary) -> list[Kernel]:
    """Two features of a row, half a row apart, turned by the angle of the row."""
    k = Kernel("rotary")
    half = k.count("half", call.half)
    k.elements(prod(call.dims) * call.half)
    k.add(f"let column = i % {half};", f"var rest = i / {half};")
    for axis in (2, 1):
        size = k.count(f"size{axis}", call.dims[axis])
        k.add(f"let d{axis} = rest % {size};", f"rest /= {size};")
    k.add("let d0 = rest;")

    def place(name: str, strides: Sequence[int]) -> str:
        terms = [f"d{axis} * {k.count(f'{name}_stride{axis}', step)}" for axis, step in enumerate(strides)]
        return " + ".join([*terms, "column"])

    x, y = k.operand("x", call.x), k.operand("y", call.y)
    cosines, sines = k.operand("cos", call.cos), k.operand("sin", call.sin)
    at = {name: place(name, getattr(call, f"{name}_strides")) for name in ("x", "y", "cos", "sin")}
    cos_half, sin_half = k.count("cos_half", call.cos_half), k.count("sin_half", call.sin_half)
    halves = ["", f" + {sin_half}"]
    s1, s2 = reversed(halves) if call.back else halves
    sign = "-" if call.back else ""
    k.add(f"let x1 = {x.load(at['x'])};", f"let x2 = {x.load(at['x'] + f' + {half}')};")
    k.add(f"let s1 = {sign}{sines.load(at['sin'] + s1)};", f"let s2 = {sign}{sines.load(at['sin'] + s2)};")
    k.add(y.store(at["y"], f"x1 * {cosines.load(at['cos'])} - x2 * s1"))
    k.add(y.store(at["y"] + f" + {half}", f"x2 * {cosines.load(at['cos'] + f' + {cos_half}')} + x1 * s2"))
    return [k]
