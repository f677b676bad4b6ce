"""Convolutions as products whose operand is read through the window, and both gradients; groups are the batch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.backend.webgpu.shader import Kernel, Operand
from trainweb.backend.webgpu.templates.products import Product, Side, Store, finished, product_kernels
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import ACTIVATION_NONE

Convolution = calls.Conv | calls.ConvDataGradient | calls.ConvWeightGradient


def _axes(call: Convolution) -> list[int]:
    """The axes of the images: without the depth where it is 1."""
    is_flat = (call.size[0], call.kernel[0], call.out[0], call.pad[0]) == (1, 1, 1, 0)
    return [1, 2] if is_flat else [0, 1, 2]


def _declare(k: Kernel, call: Convolution) -> None:
    """Declare the sizes of a convolution."""
    for axis in _axes(call):
        for name in ("size", "kernel", "out", "stride", "dilation"):
            k.count(f"{name}{axis}", getattr(call, name)[axis])
        k.signed(f"pad{axis}", call.pad[axis])
    for name, value in (("size", prod(call.size)), ("window", prod(call.kernel)), ("positions", prod(call.out))):
        k.count(name, value)
    k.count("inputs", call.c)
    k.count("outputs", call.m)
    k.count("group_inputs", call.c // call.groups)
    k.count("group_outputs", call.m // call.groups)


def _split(axes: list[int], number: str, at: str, name: str, size: str) -> list[str]:
    """Statements that split a number into its place along each axis, NAME_AXIS_NUMBER, and the rest."""
    lines = [f"var rest_{number} = {at};"]
    for axis in reversed(axes):
        lines += [
            f"let {name}{axis}_{number} = i32(rest_{number} % u.{size}{axis});",
            f"rest_{number} /= u.{size}{axis};",
        ]
    return lines


def _weight(axes: list[int], number: str, plane: str, at: str) -> list[str]:
    """Statements about a weight of the window: its distance along each axis, and the first element of its channel."""
    lines = _split(axes, number, at, "weight", "kernel")
    lines += [f"let far{axis}_{number} = weight{axis}_{number} * i32(u.dilation{axis});" for axis in axes]
    return [*lines, f"let channel_{number} = rest_{number} * {plane};"]


def _output(axes: list[int], number: str) -> list[str]:
    """Statements about a position of the output: where its window starts, and the first element of the image."""
    lines = _split(axes, number, number, "output", "out")
    lines += [f"let from{axis}_{number} = output{axis}_{number} * i32(u.stride{axis}) - u.pad{axis};" for axis in axes]
    return [*lines, f"let image_{number} = (rest_{number} * u.inputs + batch * u.group_inputs) * u.size;"]


def _input(axes: list[int], number: str) -> list[str]:
    """Statements about a position of the input: where it is with the padding, and the first slope of the image."""
    lines = _split(axes, number, number, "input", "size")
    lines += [f"let from{axis}_{number} = input{axis}_{number} + u.pad{axis};" for axis in axes]
    return [*lines, f"let image_{number} = (rest_{number} * u.outputs + batch * u.group_outputs) * u.positions;"]


def _element(axes: list[int], x: Operand, size: str) -> str:
    place = f"p{axes[0]}"
    for axis in axes[1:]:
        place = f"({place}) * i32(u.{size}{axis}) + p{axis}"
    return x.load(f"plane + u32({place})")


def _read_inputs(
    k: Kernel, axes: list[int], x: Operand, position: str | None, weight: str | None
) -> Callable[[str], str]:
    """Declare the read of an input; one of position and weight is the name that the function is given."""
    outside = " || ".join(f"p{axis} < 0i || p{axis} >= i32(u.size{axis})" for axis in axes)
    arguments = ", ".join(f"p{axis}: i32" for axis in axes)
    k.declare(
        f"fn input_at(plane: u32, {arguments}) -> f32 {{\n"
        f"  if ({outside}) {{ return 0.0f; }}\n  return {_element(axes, x, 'size')};\n}}"
    )

    def read(name: str) -> str:
        p, w = position or name, weight or name
        places = ", ".join(f"from{axis}_{p} + far{axis}_{w}" for axis in axes)
        return f"input_at(image_{p} + channel_{w}, {places})"

    return read


def _read_slopes(k: Kernel, axes: list[int], dy: Operand) -> Callable[[str], str]:
    """Declare the read of the slope that a weight takes to a position of the input."""
    arguments = ", ".join(f"from{axis}: i32" for axis in axes)
    steps = "\n".join(
        f"  let p{axis} = from{axis} / i32(u.stride{axis});\n"
        f"  if (from{axis} < 0i || p{axis} * i32(u.stride{axis}) != from{axis} || p{axis} >= i32(u.out{axis})) "
        "{ return 0.0f; }"
        for axis in axes
    )
    k.declare(f"fn slope_at(plane: u32, {arguments}) -> f32 {{\n{steps}\n  return {_element(axes, dy, 'out')};\n}}")

    def read(name: str) -> str:
        places = ", ".join(f"from{axis}_{name} - far{axis}_step" for axis in axes)
        return f"slope_at(image_{name} + channel_step, {places})"

    return read


def _images(
    call: calls.Conv | calls.ConvDataGradient, image: Buf, channels: int, plane: int
) -> Callable[[Kernel], Store]:
    """Results as images of so many channels: a row is a channel of the group, a column a position of all images."""

    def results(k: Kernel) -> Store:
        y, bias = k.operand("image", image), None if call.bias is None else k.operand("bias", call.bias)
        all_channels, own = k.count("channels", channels), k.count("group_channels", channels // call.groups)
        positions = k.count("plane", plane)

        def store(k: Kernel, row: str, column: str, value: str) -> list[str]:
            channel = f"(batch * {own} + {row})"
            at = f"(({column} / {positions}) * {all_channels} + {channel}) * {positions} + {column} % {positions}"
            added = "" if bias is None else f" + {bias.load(channel)}"
            lines = finished(k, value + added, y if call.accumulate else None, at, call.activation)
            return [*lines, y.store(at, "y")]

        return store

    return results


def conv(call: calls.Conv) -> list[Kernel]:
    """y[image, group m](position) = sum over c and the window of w x."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k, call)
        w, x = k.operand("w", call.w), k.operand("x", call.x)
        return (
            Side(
                lambda row: [f"let w_{row} = (batch * u.group_outputs + {row}) * u.k;"],
                lambda row: w.load(f"w_{row} + step"),
            ),
            Side(
                lambda column: _output(axes, column),
                _read_inputs(k, axes, x, None, "step"),
                tuple(_weight(axes, "step", "u.size", "step")),
                is_along=False,
            ),
        )

    groups = call.groups
    steps = call.c // groups * prod(call.kernel)
    p = Product("conv", call.m // groups, call.n * prod(call.out), steps, groups)
    return product_kernels(p, operands, _images(call, call.y, call.m, prod(call.out)))


def conv_data_gradient(call: calls.ConvDataGradient) -> list[Kernel]:
    """dx[image, group c](position) = sum over m and the window of w dy."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k, call)
        w, dy = k.operand("w", call.w), k.operand("dy", call.dy)
        first = "(batch * u.group_outputs + step / u.window) * u.group_inputs * u.window + step % u.window"
        return (
            Side(lambda row: [], lambda row: w.load(f"w_step + {row} * u.window"), (f"let w_step = {first};",)),
            Side(
                lambda column: _input(axes, column),
                _read_slopes(k, axes, dy),
                tuple(_weight(axes, "step", "u.positions", "step")),
                is_along=False,
            ),
        )

    groups = call.groups
    steps = call.m // groups * prod(call.kernel)
    p = Product("conv_data_gradient", call.c // groups, call.n * prod(call.size), steps, groups)
    return product_kernels(p, operands, _images(call, call.dx, call.c, prod(call.size)))


def conv_weight_gradient(call: calls.ConvWeightGradient) -> list[Kernel]:
    """dw[group m](c, window) = sum over images and positions of dy x, and db the sum of dy."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k, call)
        dy, x = k.operand("dy", call.dy), k.operand("x", call.x)
        first = "(step / u.positions * u.outputs + batch * u.group_outputs) * u.positions + step % u.positions"
        return (
            Side(lambda row: [], lambda row: dy.load(f"dy_step + {row} * u.positions"), (f"let dy_step = {first};",)),
            Side(
                lambda column: _weight(axes, column, "u.size", column),
                _read_inputs(k, axes, x, "step", None),
                tuple(_output(axes, "step")),
            ),
        )

    def results(k: Kernel) -> Store:
        dw = k.operand("dw", call.dw)
        k.count("group_outputs", call.m // call.groups)

        def store(k: Kernel, row: str, column: str, value: str) -> list[str]:
            at = f"(batch * u.group_outputs + {row}) * u.n + {column}"
            lines = finished(k, value, dw if call.accumulate else None, at, ACTIVATION_NONE)
            return [*lines, dw.store(at, "y")]

        return store

    groups, steps = call.groups, call.n * prod(call.out)
    p = Product("conv_weight_gradient", call.m // groups, call.c // groups * prod(call.kernel), steps, groups)
    return [*product_kernels(p, operands, results), *([] if call.db is None else [_bias_gradient(call)])]


def _bias_gradient(call: calls.ConvWeightGradient) -> Kernel:
    k = Kernel("conv_bias_gradient")
    assert call.db is not None
    dy, db = k.operand("dy", call.dy), k.operand("db", call.db)
    all_sum, positions = fold_over_lanes(k, "sum"), k.count("positions", prod(call.out))
    k.blocks(call.m, "outputs")
    k.count("steps", call.n * prod(call.out))
    at = f"((step / {positions}) * u.outputs + block) * {positions} + step % {positions}"
    k.add("var sum = 0.0f;", *over_lanes(k, "step", "u.steps", f"sum += {dy.load(at)};"))
    k.add(f"sum = {all_sum}(lane, sum);", "if (lane == 0u) {")
    k.add(*finished(k, "sum", db if call.accumulate else None, "block", ACTIVATION_NONE), db.store("block", "y"), "}")
    return k
