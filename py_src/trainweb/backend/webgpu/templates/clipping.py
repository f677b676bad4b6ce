"""Clipping of gradients: their magnitude, and their joint norm from partial sums that are added in one order."""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.instructions import Buf

LANES, PART = 256, 16384
"""Invocations of a workgroup, and elements of a partial sum."""
SMALL = "0x1.0c6f7ap-20f"
"""1e-6, which torch adds to the norm."""


def clip_gradients(call: calls.ClipGrads) -> list[Kernel]:
    """Clip each number to the first limit, and then the norm of all to the second."""
    return [
        _squares(call.g, call.partial, call.n, call.limits),
        _scaled(call.g, call.partial, call.n, call.limits, 0.0),
    ]


def clip_gradient_norm(call: calls.ClipGradNorm) -> list[Kernel]:
    """Clip the norm of all numbers."""
    return [_squares(call.g, call.partial, call.n, None), _scaled(call.g, call.partial, call.n, None, call.max_norm)]


def _squares(numbers: Buf, room: Buf, n: int, limits: Buf | None) -> Kernel:
    k = Kernel("clip (squares)", LANES)
    g, partial, all_sum = k.operand("g", numbers), k.operand("partial", room), fold_over_lanes(k, "sum")
    k.blocks(ceil(n / PART))
    k.add(f"let last = min((block + 1u) * {PART}u, {k.count('n', n)});", "var sum = 0.0f;")
    k.add(f"for (var i = block * {PART}u + lane; i < last; i += {LANES}u) {{", f"var x = {g.load('i')};")
    if limits is not None:
        k.add(f"let limit = {k.operand('limits', limits).load('0u')};")
        k.add("if (!is_infinite(limit)) { x = smaller(larger(x, -limit), limit); }", g.store("i", "x"))
    k.add(
        "sum += x * x;", "}", f"sum = {all_sum}(lane, sum);", f"if (lane == 0u) {{ {partial.store('block', 'sum')} }}"
    )
    return k


def _scaled(numbers: Buf, room: Buf, n: int, limits: Buf | None, most: float) -> Kernel:
    k = Kernel("clip (norm)", LANES)
    g, partial, all_sum = k.operand("g", numbers), k.operand("partial", room), fold_over_lanes(k, "sum")
    k.blocks(ceil(n / LANES))
    limit = k.real("most", most) if limits is None else k.operand("limits", limits).load("1u")
    k.add(
        "var sum = 0.0f;", *over_lanes(k, "part", k.count("parts", ceil(n / PART)), f"sum += {partial.load('part')};")
    )
    k.add(f"let norm = sqrt({all_sum}(lane, sum));", f"let limit = {limit};")
    k.add(f"let factor = limit / (norm + {SMALL});", f"let i = block * {LANES}u + lane;")
    k.add(f"if (i < {k.count('n', n)} && !is_infinite(limit) && (factor < 1.0f || is_nan(factor))) {{")
    k.add(g.store("i", f"{g.load('i')} * factor"), "}")
    return k
