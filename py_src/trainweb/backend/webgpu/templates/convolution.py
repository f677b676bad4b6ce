"""Convolutions as products whose operand is read through the window, and both gradients; groups are the batch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from trainweb.backend.webgpu.shader import Kernel, Operand, template
from trainweb.backend.webgpu.templates.products import Product, Side, Store, finished
from trainweb.backend.webgpu.templates.tools import fold_steps
from trainweb.ir import calls

Convolution = calls.Conv | calls.ConvDataGradient | calls.ConvWeightGradient


def _axes(call: Convolution) -> list[int]:
    """The axes of the images: without the depth where it is 1."""
    is_flat = (call.size[0], call.kernel[0], call.out[0], call.pad[0]) == (1, 1, 1, 0)
    return [1, 2] if is_flat else [0, 1, 2]


def _declare(k: Kernel) -> None:
    """Declare the sizes of planes, windows and groups."""
    call = k.call
    for name, value in (("plane", prod(call.size)), ("window", prod(call.kernel)), ("positions", prod(call.out))):
        k.count(name, value)
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


def _weight(axes: list[int], number: str, plane: str) -> list[str]:
    """Statements about a weight of the window: its distance along each axis, and the first element of its channel."""
    lines = _split(axes, number, number, "weight", "kernel")
    lines += [f"let far{axis}_{number} = weight{axis}_{number} * i32(u.dilation{axis});" for axis in axes]
    return [*lines, f"let channel_{number} = rest_{number} * {plane};"]


def _output(axes: list[int], number: str) -> list[str]:
    """Statements about a position of the output: where its window starts, and the first element of the image."""
    lines = _split(axes, number, number, "output", "out")
    lines += [f"let from{axis}_{number} = output{axis}_{number} * i32(u.stride{axis}) - u.pad{axis};" for axis in axes]
    return [*lines, f"let image_{number} = (rest_{number} * u.c + batch * u.group_inputs) * u.plane;"]


def _input(axes: list[int], number: str) -> list[str]:
    """Statements about a position of the input: where it is with the padding, and the first slope of the image."""
    lines = _split(axes, number, number, "input", "size")
    lines += [f"let from{axis}_{number} = input{axis}_{number} + u.pad{axis};" for axis in axes]
    return [*lines, f"let image_{number} = (rest_{number} * u.m + batch * u.group_outputs) * u.positions;"]


def _element(axes: list[int], x: Operand, size: str) -> str:
    place = f"p{axes[0]}"
    for axis in axes[1:]:
        place = f"({place}) * i32(u.{size}{axis}) + p{axis}"
    return x[f"plane + u32({place})"]


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


def _images(image: str, channels: str, plane: str) -> Callable[[Kernel], Store]:
    """Results as images: a row is a channel of the group, a column a position of all images."""

    def results(k: Kernel) -> Store:
        _declare(k)
        y, group = k.operand(image), "u.group_outputs" if channels == "u.m" else "u.group_inputs"

        def store(row: str, column: str, value: str) -> list[str]:
            channel = f"(batch * {group} + {row})"
            at = f"(({column} / {plane}) * {channels} + {channel}) * {plane} + {column} % {plane}"
            return finished(k, value + k.if_given("bias", " + {}", channel), y, at)

        return store

    return results


@template(calls.Conv)
def conv(k: Kernel, call: calls.Conv) -> None:
    """y[image, group m](position) = sum over c and the window of w x."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k)
        w, x = k.fields("w", "x")
        return (
            Side(
                lambda row: [f"let w_{row} = (batch * u.group_outputs + {row}) * u.depth;"],
                lambda row: w[f"w_{row} + step"],
            ),
            Side(
                lambda column: _output(axes, column),
                _read_inputs(k, axes, x, None, "step"),
                tuple(_weight(axes, "step", "u.plane")),
                is_along=False,
            ),
        )

    groups, steps = call.groups, call.c // call.groups * prod(call.kernel)
    results = _images("y", "u.m", "u.positions")
    Product(call.m // groups, call.n * prod(call.out), steps, groups, operands, results).fill(k)


@template(calls.ConvDataGradient)
def conv_data_gradient(k: Kernel, call: calls.ConvDataGradient) -> None:
    """dx[image, group c](position) = sum over m and the window of w dy."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k)
        w, dy = k.fields("w", "dy")
        first = "(batch * u.group_outputs + step / u.window) * u.group_inputs * u.window + step % u.window"
        return (
            Side(lambda row: [], lambda row: w[f"w_step + {row} * u.window"], (f"let w_step = {first};",)),
            Side(
                lambda column: _input(axes, column),
                _read_slopes(k, axes, dy),
                tuple(_weight(axes, "step", "u.positions")),
                is_along=False,
            ),
        )

    groups, steps = call.groups, call.m // call.groups * prod(call.kernel)
    results = _images("dx", "u.c", "u.plane")
    Product(call.c // groups, call.n * prod(call.size), steps, groups, operands, results).fill(k)


@template(calls.ConvWeightGradient)
def conv_weight_gradient(k: Kernel, call: calls.ConvWeightGradient) -> None:
    """dw[group m](c, window) = sum over images and positions of dy x, and db the sum of dy."""
    axes = _axes(call)

    def operands(k: Kernel) -> tuple[Side, Side]:
        _declare(k)
        dy, x = k.fields("dy", "x")
        first = "(step / u.positions * u.m + batch * u.group_outputs) * u.positions + step % u.positions"
        return (
            Side(lambda row: [], lambda row: dy[f"dy_step + {row} * u.positions"], (f"let dy_step = {first};",)),
            Side(
                lambda column: _weight(axes, column, "u.plane"),
                _read_inputs(k, axes, x, "step", None),
                tuple(_output(axes, "step")),
            ),
        )

    def results(k: Kernel) -> Store:
        _declare(k)
        dw = k.operand("dw")
        return lambda row, column, value: finished(
            k, value, dw, f"(batch * u.group_outputs + {row}) * u.width + {column}"
        )

    groups, width = call.groups, call.c // call.groups * prod(call.kernel)
    Product(call.m // groups, width, call.n * prod(call.out), groups, operands, results).fill(k)
    if call.db is not None:
        _bias_gradient(k.then("bias"))


def _bias_gradient(k: Kernel) -> None:
    dy, db = k.fields("dy", "db")
    _declare(k)
    k.blocks(channel="m")
    k.count("steps", k.call.n * prod(k.call.out))
    at = "((step / u.positions) * u.m + block) * u.positions + step % u.positions"
    fold_steps(k, "sum", "u.steps", sum=dy[at])
    k.once(*finished(k, "sum", db, "block"))
