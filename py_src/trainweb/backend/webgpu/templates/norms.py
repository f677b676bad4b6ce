"""Normalizations of rows and their gradients: statistics in two passes over a row."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import COLUMNS, SLICES, fold_columns, fold_steps, moments
from trainweb.ir import calls

AT = "block * u.n + step"


@template(calls.LayerNorm)
def layer_norm(k: Kernel, call: calls.LayerNorm) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; without a mean where `rms` is set."""
    x, y = k.fields("x", "y")
    k.blocks(row="rows")
    moments(k, x[AT], "u.n", has_mean=not call.rms)
    affine = k.if_given("scale", " * {}", "step") + k.if_given("bias", " + {}", "step")
    k.each_step("u.n", y.store(AT, f"({x[AT]} - mean) * inverse{affine}"))
    k.once(mean="mean", inv_std="inverse")


def _normalized(k: Kernel, at: str, row: str) -> str:
    """The normalized element of x."""
    return f"({k.operand('x')[at]}{k.if_given('mean', ' - {}', row)}) * {k.operand('inv_std')[row]}"


@template(calls.LayerNormGrad)
def layer_norm_gradient(k: Kernel, call: calls.LayerNormGrad) -> None:
    """dx of a row by a workgroup, and sums over the rows for dscale and dbias."""
    if call.dx is not None:
        _row_gradient(k, call)
    if call.dscale is not None or call.dbias is not None:
        _column_gradients(k.then("scale, bias", COLUMNS * SLICES))


def _row_gradient(k: Kernel, call: calls.LayerNormGrad) -> None:
    dy, dx, inverse = k.fields("dy", "dx", "inv_std")
    k.blocks(row="rows")
    slope, x = dy[AT] + k.if_given("scale", " * {}", "step"), _normalized(k, AT, "block")
    fold_steps(k, "sum", "u.n", f"let slope = {slope};", mean="slope", along=f"slope * {x}")
    k.add(f"mean = {'0.0f' if call.rms else 'mean / f32(u.n)'};", "along = along / f32(u.n);")
    k.each_step("u.n", dx.store(AT, f"{inverse['block']} * (({slope} - mean) - {x} * along)"))


def _column_gradients(k: Kernel) -> None:
    k.count("one", 1)
    body = f"let slope = {k.operand('dy')['at']};", f"let x = {_normalized(k, 'at', 'step')};"
    is_first = fold_columns(k, "sum", ("one", "rows", "n"), *body, scale="slope * x", bias="slope")
    for name, total in (("dscale", "scale"), ("dbias", "bias")):
        if getattr(k.call, name) is not None:
            k.add(f"if ({is_first}) {{ {k.operand(name).store('column', total)} }}")
