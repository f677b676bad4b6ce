"""Clipping of gradients: their magnitude, and their joint norm from partial sums that are added in one order."""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import fold_steps
from trainweb.ir import calls

LANES, PART = 256, 16384
"""Invocations of a workgroup, and elements of a partial sum."""
SMALL = "0x1.0c6f7ap-20f"
"""1e-6, which torch adds to the norm."""


@template(calls.ClipGrads, calls.ClipGradNorm, lanes=LANES)
def clip_gradients(k: Kernel, call: calls.ClipGrads | calls.ClipGradNorm) -> None:
    """Clip each number to the first limit, and then the norm of all to the second; ClipGradNorm has only this one."""
    is_all = isinstance(call, calls.ClipGrads)
    g = k.operand("g")
    k.count("parts", ceil(call.n / PART))
    k.blocks(part="parts")
    k.add(f"let count = min({PART}u, u.n - block * {PART}u);")
    body = [f"let i = block * {PART}u + step;", f"var x = {g['i']};"]
    if is_all:
        body += [f"let limit = {k.operand('limits')['0u']};"]
        body += ["if (!is_infinite(limit)) { x = smaller(larger(x, -limit), limit); }", g.store("i", "x")]
    fold_steps(k, "sum", "count", *body, sum="x * x")
    k.once(partial="sum")
    k = k.then("norm", LANES)
    fold_steps(k, "sum", "u.parts", sum=k.operand("partial")["step"])
    limit = k.operand("limits")["1u"] if is_all else "u.max_norm"
    k.add(f"let limit = {limit};", f"let factor = limit / (sqrt(sum) + {SMALL});")
    k.elements(number="n")
    k.add("if (!is_infinite(limit) && (factor < 1.0f || is_nan(factor))) {", g.store("i", f"{g['i']} * factor"), "}")
