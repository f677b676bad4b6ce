"""Layer, batch and group normalization, and their gradients: statistics in two passes.

A workgroup has a row, a channel of all images, or a group of channels of an image. Images are [batch, channels, size].
"""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import fold_columns, fold_steps
from trainweb.ir import calls

LANES = 256
ROW = "block * u.n + step"
CHANNEL = "((step / u.size) * u.channels + block) * u.size + step % u.size"
GROUP = "block * u.steps + step"
"""The element of a step."""
CHANNEL_OF_GROUP = "group_of * u.width + step / u.size"


def _moments(k: Kernel, x: str, count: str, *, has_mean: bool = True) -> None:
    """Statements for `mean`, `variance` and `inverse`, 1 / sqrt(variance + epsilon), of the elements x at `step`."""
    if has_mean:
        fold_steps(k, "sum", count, mean=x)
    k.add(f"mean = mean / f32({count});" if has_mean else "let mean = 0.0f;")
    fold_steps(k, "sum", count, f"let part = {x} - mean;", variance="part * part")
    k.add(f"variance = variance / f32({count});", "let inverse = 1.0f / sqrt(variance + u.epsilon);")


def _normalize(k: Kernel, at: str, count: str, channel: str, *, has_mean: bool = True) -> None:
    """Store (x - mean) * inverse * scale + bias."""
    x, y = k.fields("x", "y")
    _moments(k, x[at], count, has_mean=has_mean)
    affine = k.if_given("scale", " * {}", channel) + k.if_given("bias", " + {}", channel)
    k.each_step(count, y.store(at, f"({x[at]} - mean) * inverse{affine}"))


def _store_gradient(k: Kernel, at: str, count: str, channel: str, normal: str, *, has_mean: bool = True) -> None:
    """Store dx, the gradient through the statistics, where it is wanted."""
    if k.call.dx is None:
        return
    dy, dx = k.fields("dy", "dx")
    slope = dy[at] + k.if_given("scale", " * {}", channel)
    fold_steps(k, "sum", count, f"let slope = {slope};", slopes="slope", along=f"slope * {normal}")
    k.add(f"slopes = {f'slopes / f32({count})' if has_mean else '0.0f'};", f"along = along / f32({count});")
    k.each_step(count, dx.store(at, f"inverse * (({slope} - slopes) - {normal} * along)"))


@template(calls.LayerNorm)
def layer_norm(k: Kernel, call: calls.LayerNorm) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; without a mean where `rms` is set."""
    k.blocks(row="rows")
    _normalize(k, ROW, "u.n", "step", has_mean=not call.rms)
    k.once(mean="mean", inv_std="inverse")


def _normal(k: Kernel, at: str, row: str) -> str:
    return f"({k.operand('x')[at]}{k.if_given('mean', ' - {}', row)}) * {k.operand('inv_std')[row]}"


@template(calls.LayerNormGrad)
def layer_norm_gradient(k: Kernel, call: calls.LayerNormGrad) -> None:
    """dx of a row by a workgroup, and sums over the rows for dscale and dbias."""
    if call.dx is not None:
        k.blocks(row="rows")
        k.add(f"let inverse = {k.operand('inv_std')['block']};")
        _store_gradient(k, ROW, "u.n", "step", _normal(k, ROW, "block"), has_mean=not call.rms)
    if call.dscale is None and call.dbias is None:
        return
    k = k.then("scale, bias", LANES)
    k.count("one", 1)
    body = f"let slope = {k.operand('dy')['at']};", f"let x = {_normal(k, 'at', 'step')};"
    is_first = fold_columns(k, "sum", ("one", "rows", "n"), *body, scale="slope * x", bias="slope")
    k.add(f"if ({is_first}) {{", *k.wanted("column", dscale="scale", dbias="bias"), "}")


@template(calls.BatchNorm, lanes=LANES)
def batch_norm(k: Kernel, call: calls.BatchNorm) -> None:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics."""
    k.elements(image="batch", channel="channels", place="size")
    mean, variance, scale, bias = (b["channel"] for b in k.fields("mean", "var", "scale", "bias"))
    inverse = f"(1.0f / sqrt({variance} + u.epsilon))"
    k.add(k.operand("y").store("i", f"({k.operand('x')['i']} - {mean}) * {inverse} * {scale} + {bias}"))


def _channels(k: Kernel) -> None:
    k.blocks(channel="channels")
    k.count("steps", k.call.batch * k.call.size)


@template(calls.BatchNormTrain, lanes=LANES)
def batch_norm_train(k: Kernel, call: calls.BatchNormTrain) -> None:
    """The same with the statistics of the batch; running statistics follow them."""
    _channels(k)
    _normalize(k, CHANNEL, "u.steps", "block")
    following = {
        name: k.if_given(name, "u.momentum * {} + (1.0f - u.momentum) * ", "block") + statistic
        for name, statistic in (("running_mean", "mean"), ("running_var", "variance"))
    }
    k.once(mean="mean", inv_std="inverse", **following)


@template(calls.BatchNormGrad, lanes=LANES)
def batch_norm_gradient(k: Kernel, call: calls.BatchNormGrad) -> None:
    """dx, and the sums of dy and of dy times the normalized x."""
    dy, x, mean, inverse = k.fields("dy", "x", "mean", "inv_std")
    _channels(k)
    k.add(f"let mean = {mean['block']};", f"let inverse = {inverse['block']};")
    normal = f"({x[CHANNEL]} - mean) * inverse"
    fold_steps(k, "sum", "u.steps", f"let each = {dy[CHANNEL]};", slope="each", along=f"each * {normal}")
    if call.dx is not None:
        k.add(f"let factor = inverse * {k.operand('scale')['block']};")
        value = f"({dy[CHANNEL]} - slope / f32(u.steps)) - {normal} * (along / f32(u.steps))"
        k.each_step("u.steps", k.operand("dx").store(CHANNEL, f"factor * ({value})"))
    k.once(dscale="along", dbias="slope")


def _groups(k: Kernel) -> None:
    width = k.call.channels // k.call.groups
    k.count("width", width)
    k.count("steps", width * k.call.size)
    k.blocks(image="batch", group_of="groups")


@template(calls.GroupNorm, lanes=LANES)
def group_norm(k: Kernel, _: calls.GroupNorm) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the statistics of a group of an image."""
    _groups(k)
    _normalize(k, GROUP, "u.steps", CHANNEL_OF_GROUP)


@template(calls.GroupNormGrad, lanes=LANES)
def group_norm_gradient(k: Kernel, call: calls.GroupNormGrad) -> None:
    """dx of a group, which leaves its statistics for the sums of dscale and dbias over the images."""
    _groups(k)
    x, dy, partial = k.fields("x", "dy", "partial")
    _moments(k, x[GROUP], "u.steps")
    k.once(partial.store("2u * block", "mean"), partial.store("2u * block + 1u", "inverse"))
    _store_gradient(k, GROUP, "u.steps", CHANNEL_OF_GROUP, f"({x[GROUP]} - mean) * inverse")
    if call.dscale is None and call.dbias is None:
        return
    k = k.then("scale, bias", LANES)
    _channels(k)
    body = "let at = 2u * (step / u.size * u.groups + block / u.width);", f"let each = {dy[CHANNEL]};"
    along = f"each * ({x[CHANNEL]} - {partial['at']}) * {partial['at + 1u']}"
    fold_steps(k, "sum", "u.steps", *body, slope="each", along=along)
    k.once(dscale="along", dbias="slope")
