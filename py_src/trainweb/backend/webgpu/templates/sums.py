"""Reductions along the middle axis of [outer, n, inner], softmax and its gradient; clipping of gradients."""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import fold_columns, fold_steps, middle_axis
from trainweb.backend.webgpu.windows import parts_of
from trainweb.ir import calls
from trainweb.ir import layout as c

PART = 16384
"""Elements of a partial sum of clipping."""
SMALL = "0x1.0c6f7ap-20f"
"""1e-6, which torch adds to the norm."""
KINDS: dict[int, tuple[str, str, str]] = {
    c.REDUCE_SUM: ("sum", "x", "y"),
    c.REDUCE_MEAN: ("sum", "x", "y / f32(u.n)"),
    c.REDUCE_MAX: ("max", "x", "y"),
    c.REDUCE_MIN: ("min", "x", "y"),
    c.REDUCE_PROD: ("prod", "x", "y"),
    c.REDUCE_SUM_SQUARES: ("sum", "x * x", "y"),
    c.REDUCE_SUM_ABS: ("sum", "abs(x)", "y"),
    c.REDUCE_NORM: ("sum", "x * x", "sqrt(y)"),
    c.REDUCE_LOG_SUM: ("sum", "x", "log_(y)"),
}
"""By operation: how values are folded, what is folded, and the result."""


@template(calls.Reduce)
def reduce(k: Kernel, call: calls.Reduce) -> None:
    """Rows by a workgroup each, or columns side by side."""
    if call.op == c.REDUCE_LOG_SUM_EXP:
        element = k.operand("x")[middle_axis(k, "outer", "n", "inner")]
        fold_steps(k, "max", "u.n", top=element)
        k.add("let shift = select(top, 0.0f, is_infinite(top));")
        fold_steps(k, "sum", "u.n", sum=f"exp_({element} - shift)")
        return k.once(y="shift + log_(sum)")
    fold, term, result = KINDS[call.op]
    x, y = k.fields("x", "y")
    if call.inner == 1:
        k.blocks(row="outer")
        fold_steps(k, fold, "u.n", f"let x = {x['block * u.n + step']};", y=term)
        return k.once(y=result)
    k.lanes *= 4
    is_first = fold_columns(k, fold, ("outer", "n", "inner"), f"let x = {x['at']};", y=term)
    return k.add(f"if ({is_first}) {{ {y.store('column', result)} }}")


@template(calls.Softmax)
def softmax(k: Kernel, call: calls.Softmax) -> None:
    """e^(x - max) over its sum, or the logarithm of that."""
    x, y = k.fields("x", "y")
    at = middle_axis(k, "outer", "n", "inner")
    fold_steps(k, "max", "u.n", top=x[at])
    fold_steps(k, "sum", "u.n", sum=f"exp_({x[at]} - top)")
    k.add("let rest = log_(sum);" if call.log else "let rest = 1.0f / sum;")
    k.each_step("u.n", y.store(at, f"({x[at]} - top) - rest" if call.log else f"exp_({x[at]} - top) * rest"))


@template(calls.SoftmaxGrad)
def softmax_gradient(k: Kernel, call: calls.SoftmaxGrad) -> None:
    """y (dy - sum of dy y), or dy - e^y sum of dy."""
    dy, y, dx = k.fields("dy", "y", "dx")
    at = middle_axis(k, "outer", "n", "inner")
    fold_steps(k, "sum", "u.n", sum=dy[at] if call.log else f"{dy[at]} * {y[at]}")
    k.each_step("u.n", dx.store(at, f"{dy[at]} - exp_({y[at]}) * sum" if call.log else f"({dy[at]} - sum) * {y[at]}"))


@template(calls.ClipGrads, calls.ClipGradNorm)
def clip_gradients(k: Kernel, call: calls.ClipGrads | calls.ClipGradNorm) -> None:
    """Clip each number to the first limit, and then the norm of all to the second; ClipGradNorm has only this one."""
    is_all, runs, first = isinstance(call, calls.ClipGrads), parts_of(call.g, PART), 0
    for run in runs:
        part = k.then("sums")
        g, size = part.operand("g", run), part.count("size", run.size)
        part.count("parts", ceil(run.size / PART))
        part.blocks(part="parts")
        part.add(f"let count = min({PART}u, {size} - block * {PART}u);")
        body = [f"let i = block * {PART}u + step;", f"var x = {g['i']};"]
        if is_all:
            body += [f"let limit = {part.operand('limits')['0u']};"]
            body += ["if (!is_infinite(limit)) { x = smaller(larger(x, -limit), limit); }", g.store("i", "x")]
        fold_steps(part, "sum", "count", *body, sum="x * x")
        part.once(part.operand("partial").store(f"block + {part.count('first', first)}", "sum"))
        first += part.value("parts")
    for run in runs:
        part = k.then("norm")
        g, _ = part.operand("g", run), part.count("size", run.size)
        fold_steps(part, "sum", part.count("parts", first), sum=part.operand("partial")["step"])
        limit = part.operand("limits")["1u"] if is_all else "u.max_norm"
        part.add(f"let limit = {limit};", f"let factor = limit / (sqrt(sum) + {SMALL});")
        part.elements(number="size")
        part.add("if (!is_infinite(limit) && (factor < 1.0f || is_nan(factor))) {")
        part.add(g.store("i", f"{g['i']} * factor"), "}")
