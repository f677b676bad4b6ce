"""Reductions along the middle axis of [outer, n, inner], softmax and its gradient."""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.tools import FOLDS, fold_columns, fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir import layout as c

COLUMNS, SLICES = 16, 16
"""A workgroup of a reduction with columns: lanes that read side by side, and parts of each column."""

KINDS: dict[int, tuple[str, str, str, str]] = {
    c.REDUCE_SUM: ("sum", "0.0f", "x", "y"),
    c.REDUCE_MEAN: ("sum", "0.0f", "x", "y / f32(u.n)"),
    c.REDUCE_MAX: ("max", "from_bits(0xff800000u)", "x", "y"),
    c.REDUCE_MIN: ("min", "from_bits(0x7f800000u)", "x", "y"),
    c.REDUCE_PROD: ("prod", "1.0f", "x", "y"),
    c.REDUCE_SUM_SQUARES: ("sum", "0.0f", "x * x", "y"),
    c.REDUCE_SUM_ABS: ("sum", "0.0f", "abs(x)", "y"),
    c.REDUCE_NORM: ("sum", "0.0f", "x * x", "sqrt(y)"),
    c.REDUCE_LOG_SUM: ("sum", "0.0f", "x", "log_(y)"),
}
"""By operation: how values are folded, the value to begin with, what is folded, and the result."""


def reduce(call: calls.Reduce) -> list[Kernel]:
    """Rows by a workgroup each, or columns side by side."""
    if call.op == c.REDUCE_LOG_SUM_EXP:
        return _log_sum_exp(call)
    fold, start, term, result = KINDS[call.op]
    is_rows = call.inner == 1
    k = Kernel("reduce", 64 if is_rows else COLUMNS * SLICES)
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    k.count("n", call.n)
    if is_rows:
        all_of = fold_over_lanes(k, fold)
        k.blocks(call.outer)
        k.add(f"var sum = {start};")
        k.add(
            *over_lanes(
                k, "step", "u.n", f"let x = {x.load('block * u.n + step')};", f"sum = fold_{fold}(sum, {term});"
            )
        )
        k.add(f"let y = {all_of}(lane, sum);", f"if (lane == 0u) {{ {y.store('block', result)} }}")
        return [k]
    k.declare(f"var<workgroup> cells: array<f32, {k.lanes}>;")
    k.declare(f"fn fold_{fold}(a: f32, b: f32) -> f32 {{ return {FOLDS[fold]}; }}")
    k.count("inner", call.inner)
    strips = ceil(call.inner / COLUMNS)
    k.blocks(call.outer * strips)
    k.add(f"let outer = block / {k.count('strips', strips)};")
    k.add(f"let column = (block % u.strips) * {COLUMNS}u + lane % {COLUMNS}u;", f"var sum = {start};")
    k.add("if (column < u.inner) {", f"for (var step = lane / {COLUMNS}u; step < u.n; step += {SLICES}u) {{")
    k.add(f"let x = {x.load('(outer * u.n + step) * u.inner + column')};", f"sum = fold_{fold}(sum, {term});", "}", "}")
    k.add("cells[lane] = sum;", *fold_columns(k, "cells", f"fold_{fold}({{}}, {{}})", COLUMNS))
    k.add(f"if (lane < {COLUMNS}u && column < u.inner) {{", "let y = cells[lane];")
    k.add(y.store("outer * u.inner + column", result), "}")
    return [k]


def _columns(k: Kernel, outer: int, n: int, inner: int) -> str:
    """A workgroup for each column; returns the element of `step`."""
    k.count("n", n)
    k.blocks(outer * inner)
    k.add(f"let start = (block / {k.count('inner', inner)}) * u.n * u.inner + block % u.inner;")
    return "start + step * u.inner"


def _log_sum_exp(call: calls.Reduce) -> list[Kernel]:
    k = Kernel("log_sum_exp")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    all_max, all_sum = fold_over_lanes(k, "max"), fold_over_lanes(k, "sum")
    at = _columns(k, call.outer, call.n, call.inner)
    k.add("var top = from_bits(0xff800000u);", *over_lanes(k, "step", "u.n", f"top = larger(top, {x.load(at)});"))
    k.add(f"top = {all_max}(lane, top);", "let shift = select(top, 0.0f, is_infinite(top));", "var sum = 0.0f;")
    k.add(*over_lanes(k, "step", "u.n", f"sum += exp_({x.load(at)} - shift);"), f"sum = {all_sum}(lane, sum);")
    k.add(f"if (lane == 0u) {{ {y.store('block', 'shift + log_(sum)')} }}")
    return [k]


def softmax(call: calls.Softmax) -> list[Kernel]:
    """e^(x - max) over its sum, or the logarithm of that."""
    k = Kernel("softmax")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    all_max, all_sum = fold_over_lanes(k, "max"), fold_over_lanes(k, "sum")
    at = _columns(k, call.outer, call.n, call.inner)
    value = x.load(at)
    k.add("var top = from_bits(0xff800000u);", *over_lanes(k, "step", "u.n", f"top = larger(top, {value});"))
    k.add(f"top = {all_max}(lane, top);", "var sum = 0.0f;")
    k.add(*over_lanes(k, "step", "u.n", f"sum += exp_({value} - top);"), f"sum = {all_sum}(lane, sum);")
    k.add("let rest = log_(sum);" if call.log else "let rest = 1.0f / sum;")
    result = f"({value} - top) - rest" if call.log else f"exp_({value} - top) * rest"
    k.add(*over_lanes(k, "step", "u.n", y.store(at, result)))
    return [k]


def softmax_gradient(call: calls.SoftmaxGrad) -> list[Kernel]:
    """y (dy - sum of dy y), or dy - e^y sum of dy."""
    k = Kernel("softmax_gradient")
    dy, y, dx = k.operand("dy", call.dy), k.operand("y", call.y), k.operand("dx", call.dx)
    all_sum = fold_over_lanes(k, "sum")
    at = _columns(k, call.outer, call.n, call.inner)
    term = dy.load(at) if call.log else f"{dy.load(at)} * {y.load(at)}"
    k.add("var sum = 0.0f;", *over_lanes(k, "step", "u.n", f"sum += {term};"), f"sum = {all_sum}(lane, sum);")
    result = f"{dy.load(at)} - exp_({y.load(at)}) * sum" if call.log else f"({dy.load(at)} - sum) * {y.load(at)}"
    k.add(*over_lanes(k, "step", "u.n", dx.store(at, result)))
    return [k]
