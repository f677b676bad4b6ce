"""Batch and group normalization of [batch, channels, size], and their gradients.

A workgroup has a channel of all images, or a group of channels of one.
"""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import fold_steps, moments
from trainweb.ir import calls

LANES = 256
AT = "((step / u.size) * u.channels + block) * u.size + step % u.size"
"""The element of a step within the channel `block`."""


def _channels(k: Kernel) -> None:
    """Run a workgroup for each channel, with `steps` elements."""
    k.blocks(channel="channels")
    k.count("steps", k.call.batch * k.call.size)


@template(calls.BatchNorm, lanes=LANES)
def batch_norm(k: Kernel, call: calls.BatchNorm) -> None:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics."""
    k.elements(image="batch", channel="channels", place="size")
    mean, variance, scale, bias = (b["channel"] for b in k.fields("mean", "var", "scale", "bias"))
    inverse = f"(1.0f / sqrt({variance} + u.epsilon))"
    k.add(k.operand("y").store("i", f"({k.operand('x')['i']} - {mean}) * {inverse} * {scale} + {bias}"))


@template(calls.BatchNormTrain, lanes=LANES)
def batch_norm_train(k: Kernel, call: calls.BatchNormTrain) -> None:
    """The same with the statistics of the batch, in two passes; running statistics follow them."""
    x, y, scale, bias = k.fields("x", "y", "scale", "bias")
    _channels(k)
    moments(k, x[AT], "u.steps")
    k.add(f"let factor = inverse * {scale['block']};")
    k.each_step("u.steps", y.store(AT, f"({x[AT]} - mean) * factor + {bias['block']}"))
    following = {
        name: k.if_given(name, "u.momentum * {} + (1.0f - u.momentum) * ", "block") + statistic
        for name, statistic in (("running_mean", "mean"), ("running_var", "variance"))
    }
    k.once(mean="mean", inv_std="inverse", **following)


@template(calls.BatchNormGrad, lanes=LANES)
def batch_norm_gradient(k: Kernel, call: calls.BatchNormGrad) -> None:
    """dx, and the sums of dy and of dy times the normalized x; frozen statistics are constants."""
    dy, x, mean, inverse = k.fields("dy", "x", "mean", "inv_std")
    _channels(k)
    k.add(f"let mean = {mean['block']};", f"let inverse = {inverse['block']};")
    normal = f"({x[AT]} - mean) * inverse"
    fold_steps(k, "sum", "u.steps", f"let each = {dy[AT]};", slope="each", along=f"each * ({normal})")
    if call.dx is not None:
        k.add(f"let factor = inverse * {k.operand('scale')['block']};")
        value = dy[AT] if call.frozen else f"({dy[AT]} - slope / f32(u.steps)) - ({normal}) * (along / f32(u.steps))"
        k.each_step("u.steps", k.operand("dx").store(AT, f"factor * ({value})"))
    k.once(dscale="along", dbias="slope")


GROUP_AT = "block * u.steps + step"
"""The element of a step within a group of an image, whose channel is `channel`."""
CHANNEL = "group_of * u.width + step / u.size"


def _group(k: Kernel) -> None:
    """Run a workgroup for each group of an image: its `mean` and `inverse`."""
    width = k.call.channels // k.call.groups
    k.count("width", width)
    k.count("steps", width * k.call.size)
    k.blocks(image="batch", group_of="groups")
    moments(k, k.operand("x")[GROUP_AT], "u.steps")


@template(calls.GroupNorm, lanes=LANES)
def group_norm(k: Kernel, call: calls.GroupNorm) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the statistics of a group of an image."""
    _group(k)
    x, y, scale, bias = k.fields("x", "y", "scale", "bias")
    k.each_step("u.steps", y.store(GROUP_AT, f"({x[GROUP_AT]} - mean) * inverse * {scale[CHANNEL]} + {bias[CHANNEL]}"))


@template(calls.GroupNormGrad, lanes=LANES)
def group_norm_gradient(k: Kernel, call: calls.GroupNormGrad) -> None:
    """dx of a group, which leaves its statistics for the sums of dscale and dbias over the images."""
    _group(k)
    x, dy, scale, partial = k.fields("x", "dy", "scale", "partial")
    k.once(partial.store("2u * block", "mean"), partial.store("2u * block + 1u", "inverse"))
    normal, slope = f"({x[GROUP_AT]} - mean) * inverse", f"{dy[GROUP_AT]} * {scale[CHANNEL]}"
    if call.dx is not None:
        fold_steps(k, "sum", "u.steps", f"let slope = {slope};", slopes="slope", along=f"slope * {normal}")
        value = f"inverse * ({slope} - slopes / f32(u.steps) - {normal} * (along / f32(u.steps)))"
        k.each_step("u.steps", k.operand("dx").store(GROUP_AT, value))
    if call.dscale is not None or call.dbias is not None:
        _group_sums(k.then("scale, bias", LANES))


def _group_sums(k: Kernel) -> None:
    x, dy, partial = k.fields("x", "dy", "partial")
    _channels(k)
    k.count("width", k.call.channels // k.call.groups)
    body = "let at = 2u * (step / u.size * u.groups + block / u.width);", f"let each = {dy[AT]};"
    along = f"each * ({x[AT]} - {partial['at']}) * {partial['at + 1u']}"
    fold_steps(k, "sum", "u.steps", *body, slope="each", along=along)
    k.once(dscale="along", dbias="slope")
