"""Batch normalization of [batch, channels, size] and its gradient: a workgroup for each channel."""

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
