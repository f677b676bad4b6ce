"""Normalizations of rows and their gradients: statistics in two passes over a row."""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.tools import fold_columns, fold_over_lanes, moments, over_lanes
from trainweb.ir import calls

COLUMNS, SLICES = 16, 16
"""A workgroup of sums over rows: columns side by side, and parts of each."""


def layer_norm(call: calls.LayerNorm) -> list[Kernel]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; without a mean where `rms` is set."""
    k = Kernel("layer_norm")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    k.blocks(call.rows, "rows")
    k.count("n", call.n)
    at = "block * u.n + step"
    moments(k, x.load(at), "u.n", call.epsilon, has_mean=not call.rms)
    value = f"({x.load(at)} - mean) * inverse"
    if call.scale is not None:
        value += f" * {k.operand('scale', call.scale).load('step')}"
    if call.bias is not None:
        value += f" + {k.operand('bias', call.bias).load('step')}"
    k.add(*over_lanes(k, "step", "u.n", y.store(at, value)), "if (lane == 0u) {")
    for name, b, result in (("mean", call.mean, "mean"), ("inv_std", call.inv_std, "inverse")):
        if b is not None:
            k.add(k.operand(f"{name}_of", b).store("block", result))
    k.add("}")
    return [k]


def _normalized(k: Kernel, call: calls.LayerNormGrad, at: str, row: str) -> str:
    """The normalized element of x."""
    x = k.operand("x", call.x).load(at)
    inverse = k.operand("inv_std_of", call.inv_std).load(row)
    return (
        f"{x} * {inverse}" if call.mean is None else f"({x} - {k.operand('mean_of', call.mean).load(row)}) * {inverse}"
    )


def layer_norm_gradient(call: calls.LayerNormGrad) -> list[Kernel]:
    """dx of a row by a workgroup, and sums over the rows for dscale and dbias."""
    kernels = []
    if call.dx is not None:
        kernels.append(_row_gradient(call))
    if call.dscale is not None or call.dbias is not None:
        kernels.append(_column_gradients(call))
    return kernels


def _row_gradient(call: calls.LayerNormGrad) -> Kernel:
    k = Kernel("layer_norm_gradient")
    assert call.dx is not None
    dy, dx, all_sum = k.operand("dy", call.dy), k.operand("dx", call.dx), fold_over_lanes(k, "sum")
    k.blocks(call.rows, "rows")
    k.count("n", call.n)
    at = "block * u.n + step"
    slope = dy.load(at) + ("" if call.scale is None else f" * {k.operand('scale', call.scale).load('step')}")
    x = _normalized(k, call, at, "block")
    k.add("var mean = 0.0f;", "var along = 0.0f;")
    k.add(*over_lanes(k, "step", "u.n", f"let slope = {slope};", "mean += slope;", f"along += slope * ({x});"))
    k.add(f"mean = {all_sum}(lane, mean) / f32(u.n);" if not call.rms else "mean = 0.0f;")
    k.add(f"along = {all_sum}(lane, along) / f32(u.n);")
    inverse = k.operand("inv_std_of", call.inv_std).load("block")
    k.add(*over_lanes(k, "step", "u.n", dx.store(at, f"{inverse} * (({slope} - mean) - ({x}) * along)")))
    return k


def _column_gradients(call: calls.LayerNormGrad) -> Kernel:
    k = Kernel("layer_norm_gradient (scale, bias)", COLUMNS * SLICES)
    dy = k.operand("dy", call.dy)
    k.declare(f"var<workgroup> scales: array<f32, {k.lanes}>;")
    k.declare(f"var<workgroup> biases: array<f32, {k.lanes}>;")
    k.blocks(ceil(call.n / COLUMNS))
    k.count("n", call.n)
    k.add(f"let column = block * {COLUMNS}u + lane % {COLUMNS}u;", "var scale = 0.0f;", "var bias = 0.0f;")
    k.add(
        "if (column < u.n) {",
        f"for (var row = lane / {COLUMNS}u; row < {k.count('rows', call.rows)}; row += {SLICES}u) {{",
    )
    k.add(f"let slope = {dy.load('row * u.n + column')};", "bias += slope;")
    k.add(f"scale += slope * ({_normalized(k, call, 'row * u.n + column', 'row')});", "}", "}")
    k.add("scales[lane] = scale;", *fold_columns(k, "scales", "{} + {}", COLUMNS))
    k.add("biases[lane] = bias;", *fold_columns(k, "biases", "{} + {}", COLUMNS))
    k.add(f"if (lane < {COLUMNS}u && column < u.n) {{")
    for name, b in (("scales", call.dscale), ("biases", call.dbias)):
        if b is not None:
            k.add(k.operand(f"d{name}", b).store("column", f"{name}[lane]"))
    k.add("}")
    return k
