"""Batch and group normalization of [batch, channels, size], and their gradients.

A workgroup has a channel of all images, or a group of channels of one.
"""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls

LANES = 256
AT = "((step / u.size) * u.channels + block) * u.size + step % u.size"
"""The element of a step within the channel `block`."""


def _channels(k: Kernel, call: calls.BatchNormTrain | calls.BatchNormGrad) -> str:
    """A workgroup for each channel; returns the function that sums over its lanes."""
    all_sum = fold_over_lanes(k, "sum")
    k.blocks(call.channels, "channels")
    k.count("size", call.size)
    k.count("steps", call.batch * call.size)
    return all_sum


def batch_norm(call: calls.BatchNorm) -> list[Kernel]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics."""
    k = Kernel("batch_norm", LANES)
    named = {name: k.operand(f"{name}_of", getattr(call, name)) for name in ("x", "scale", "bias", "mean", "var", "y")}
    k.elements(call.batch * call.channels * call.size)
    k.add(f"let channel = (i / {k.count('size', call.size)}) % {k.count('channels', call.channels)};")
    of = {name: named[name].load("channel") for name in ("scale", "bias", "mean", "var")}
    inverse = f"1.0f / sqrt({of['var']} + {k.real('epsilon', call.epsilon)})"
    value = f"({named['x'].load('i')} - {of['mean']}) * ({inverse}) * {of['scale']} + {of['bias']}"
    k.add(named["y"].store("i", value))
    return [k]


def batch_norm_train(call: calls.BatchNormTrain) -> list[Kernel]:
    """The same with the statistics of the batch, in two passes; running statistics follow them."""
    k = Kernel("batch_norm_train", LANES)
    x, y, all_sum = k.operand("x", call.x), k.operand("y", call.y), _channels(k, call)
    k.add("var mean = 0.0f;", *over_lanes(k, "step", "u.steps", f"mean += {x.load(AT)};"))
    k.add(f"mean = {all_sum}(lane, mean) / f32(u.steps);", "var variance = 0.0f;")
    k.add(*over_lanes(k, "step", "u.steps", f"let part = {x.load(AT)} - mean;", "variance += part * part;"))
    k.add(f"variance = {all_sum}(lane, variance) / f32(u.steps);")
    k.add(f"let inverse = 1.0f / sqrt(variance + {k.real('epsilon', call.epsilon)});")
    k.add(f"let factor = inverse * {k.operand('scale', call.scale).load('block')};")
    value = f"({x.load(AT)} - mean) * factor + {k.operand('bias', call.bias).load('block')}"
    k.add(*over_lanes(k, "step", "u.steps", y.store(AT, value)), "if (lane == 0u) {")
    for name, b, statistic in (("mean_of", call.mean, "mean"), ("inv_std_of", call.inv_std, "inverse")):
        if b is not None:
            k.add(k.operand(name, b).store("block", statistic))
    for name, b, statistic in (("means", call.running_mean, "mean"), ("variances", call.running_var, "variance")):
        if b is not None:
            running, momentum = k.operand(name, b), k.real("momentum", call.momentum)
            k.add(running.store("block", f"{momentum} * {running.load('block')} + (1.0f - {momentum}) * {statistic}"))
    k.add("}")
    return [k]


def batch_norm_gradient(call: calls.BatchNormGrad) -> list[Kernel]:
    """dx, and the sums of dy and of dy times the normalized x; frozen statistics are constants."""
    k = Kernel("batch_norm_gradient", LANES)
    dy, x, all_sum = k.operand("dy", call.dy), k.operand("x", call.x), _channels(k, call)
    k.add(f"let mean = {k.operand('mean_of', call.mean).load('block')};")
    k.add(f"let inverse = {k.operand('inv_std_of', call.inv_std).load('block')};")
    normal = f"({x.load(AT)} - mean) * inverse"
    k.add("var slope = 0.0f;", "var along = 0.0f;")
    k.add(
        *over_lanes(
            k, "step", "u.steps", f"let each = {dy.load(AT)};", "slope += each;", f"along += each * ({normal});"
        )
    )
    k.add(f"slope = {all_sum}(lane, slope);", f"along = {all_sum}(lane, along);")
    if call.dx is not None:
        k.add(f"let factor = inverse * {k.operand('scale', call.scale).load('block')};")
        value = f"factor * {dy.load(AT)}"
        if not call.frozen:
            value = f"factor * (({dy.load(AT)} - slope / f32(u.steps)) - ({normal}) * (along / f32(u.steps)))"
        k.add(*over_lanes(k, "step", "u.steps", k.operand("dx", call.dx).store(AT, value)))
    k.add("if (lane == 0u) {")
    for name, b, total in (("dscale", call.dscale, "along"), ("dbias", call.dbias, "slope")):
        if b is not None:
            k.add(k.operand(name, b).store("block", total))
    k.add("}")
    return [k]


GROUP_AT = "block * u.steps + step"
"""The element of a step within a group of an image, whose channel is `channel`."""
CHANNEL = "block % u.groups * u.width + step / u.size"


def _group(k: Kernel, call: calls.GroupNorm | calls.GroupNormGrad) -> str:
    """A workgroup for each group of an image: its `mean` and `inverse`; returns the function that sums over lanes."""
    x, all_sum = k.operand("x", call.x), fold_over_lanes(k, "sum")
    width = call.channels // call.groups
    for name, value in (("size", call.size), ("groups", call.groups), ("width", width), ("steps", width * call.size)):
        k.count(name, value)
    k.blocks(call.batch * call.groups)
    k.add("var mean = 0.0f;", *over_lanes(k, "step", "u.steps", f"mean += {x.load(GROUP_AT)};"))
    k.add(f"mean = {all_sum}(lane, mean) / f32(u.steps);", "var variance = 0.0f;")
    k.add(*over_lanes(k, "step", "u.steps", f"let part = {x.load(GROUP_AT)} - mean;", "variance += part * part;"))
    k.add(f"variance = {all_sum}(lane, variance) / f32(u.steps);")
    k.add(f"let inverse = 1.0f / sqrt(variance + {k.real('epsilon', call.epsilon)});")
    return all_sum


def group_norm(call: calls.GroupNorm) -> list[Kernel]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the statistics of a group of an image."""
    k = Kernel("group_norm", LANES)
    _group(k, call)
    x, y, scale, bias = (k.operand(name, getattr(call, name)) for name in ("x", "y", "scale", "bias"))
    value = f"({x.load(GROUP_AT)} - mean) * inverse * {scale.load(CHANNEL)} + {bias.load(CHANNEL)}"
    k.add(*over_lanes(k, "step", "u.steps", y.store(GROUP_AT, value)))
    return [k]


def group_norm_gradient(call: calls.GroupNormGrad) -> list[Kernel]:
    """dx of a group, which leaves its statistics for the sums of dscale and dbias over the images."""
    k = Kernel("group_norm_gradient", LANES)
    all_sum = _group(k, call)
    x, dy, scale, partial = (k.operand(name, getattr(call, name)) for name in ("x", "dy", "scale", "partial"))
    k.add("if (lane == 0u) {", partial.store("2u * block", "mean"), partial.store("2u * block + 1u", "inverse"), "}")
    normal, slope = f"({x.load(GROUP_AT)} - mean) * inverse", f"{dy.load(GROUP_AT)} * {scale.load(CHANNEL)}"
    if call.dx is not None:
        k.add("var slopes = 0.0f;", "var along = 0.0f;")
        k.add(
            *over_lanes(
                k, "step", "u.steps", f"let slope = {slope};", "slopes += slope;", f"along += slope * {normal};"
            )
        )
        k.add(f"slopes = {all_sum}(lane, slopes) / f32(u.steps);", f"along = {all_sum}(lane, along) / f32(u.steps);")
        value = f"inverse * ({slope} - slopes - {normal} * along)"
        k.add(*over_lanes(k, "step", "u.steps", k.operand("dx", call.dx).store(GROUP_AT, value)))
    return [k] if call.dscale is None and call.dbias is None else [k, _group_sums(call)]


def _group_sums(call: calls.GroupNormGrad) -> Kernel:
    k = Kernel("group_norm_gradient (scale, bias)", LANES)
    x, dy, partial = (k.operand(name, getattr(call, name)) for name in ("x", "dy", "partial"))
    all_sum = fold_over_lanes(k, "sum")
    k.blocks(call.channels, "channels")
    k.count("size", call.size)
    k.count("steps", call.batch * call.size)
    at = f"step / u.size * {k.count('groups', call.groups)} + block / {k.count('width', call.channels // call.groups)}"
    k.add("var slope = 0.0f;", "var along = 0.0f;")
    k.add(
        *over_lanes(
            k, "step", "u.steps", f"let at = 2u * ({at});", f"let each = {dy.load(AT)};", "slope += each;",
            f"along += each * ({x.load(AT)} - {partial.load('at')}) * {partial.load('at + 1u')};",
        )
    )  # fmt: skip
    k.add(f"slope = {all_sum}(lane, slope);", f"along = {all_sum}(lane, along);", "if (lane == 0u) {")
    for name, b, total in (("dscale", call.dscale, "along"), ("dbias", call.dbias, "slope")):
        if b is not None:
            k.add(k.operand(name, b).store("block", total))
    k.add("}")
    return k
