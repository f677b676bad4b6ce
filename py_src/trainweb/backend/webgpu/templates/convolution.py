"""Convolutions as products whose operand is read through the window, and both gradients; groups are the batch."""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import Kernel, Operand
from trainweb.backend.webgpu.templates.products import Load, Product, Store, finished, product_kernels
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.layout import ACTIVATION_NONE

Convolution = calls.Conv | calls.ConvDataGradient | calls.ConvWeightGradient

WINDOW = """  let kernel_x = step % u.kernel2;
  let kernel_y = (step / u.kernel2) % u.kernel1;
  let kernel_z = (step / (u.kernel2 * u.kernel1)) % u.kernel0;
  let channel = step / (u.kernel2 * u.kernel1 * u.kernel0);"""


def _window(k: Kernel, call: Convolution) -> None:
    """Declare the sizes of a convolution."""
    for name in ("size", "kernel", "out", "stride", "dilation"):
        for axis, value in enumerate(getattr(call, name)):
            k.count(f"{name}{axis}", value)
    for axis, value in enumerate(call.pad):
        k.signed(f"pad{axis}", value)
    k.count("inputs", call.c)
    k.count("outputs", call.m)
    k.count("group_inputs", call.c // call.groups)
    k.count("group_outputs", call.m // call.groups)


def _read_inputs(k: Kernel, x: Operand) -> str:
    """Declare `input_at(group, step, column)`: the input under a weight of the window at a position of the output."""
    place = "((image * u.inputs + group * u.group_inputs + channel) * u.size0 + u32(z)) * u.size1 + u32(y)"
    k.declare(f"""fn input_at(group: u32, step: u32, column: u32) -> f32 {{
{WINDOW}
  let image = column / (u.out0 * u.out1 * u.out2);
  let z = i32(((column / (u.out1 * u.out2)) % u.out0) * u.stride0 + kernel_z * u.dilation0) - u.pad0;
  let y = i32(((column / u.out2) % u.out1) * u.stride1 + kernel_y * u.dilation1) - u.pad1;
  let x = i32((column % u.out2) * u.stride2 + kernel_x * u.dilation2) - u.pad2;
  if (z < 0i || y < 0i || x < 0i || z >= i32(u.size0) || y >= i32(u.size1) || x >= i32(u.size2)) {{ return 0.0f; }}
  return {x.load(f"({place}) * u.size2 + u32(x)")};
}}""")
    return "input_at"


def _read_slopes(k: Kernel, dy: Operand) -> str:
    """Declare `slope_at(group, step, column)`: the slope that a weight of the window takes to a position of the input."""
    place = "((image * u.outputs + group * u.group_outputs + channel) * u.out0 + u32(z)) * u.out1 + u32(y)"
    steps = "\n".join(
        f"  let start_{name} = i32({at}) + u.pad{axis} - i32(kernel_{name} * u.dilation{axis});\n"
        f"  let {name} = start_{name} / i32(u.stride{axis});\n"
        f"  if (start_{name} < 0i || {name} * i32(u.stride{axis}) != start_{name} || {name} >= i32(u.out{axis})) "
        "{ return 0.0f; }"
        for axis, (name, at) in enumerate(
            (
                ("z", "(column / (u.size1 * u.size2)) % u.size0"),
                ("y", "(column / u.size2) % u.size1"),
                ("x", "column % u.size2"),
            )
        )
    )
    k.declare(f"""fn slope_at(group: u32, step: u32, column: u32) -> f32 {{
{WINDOW}
  let image = column / (u.size0 * u.size1 * u.size2);
{steps}
  return {dy.load(f"({place}) * u.out2 + u32(x)")};
}}""")
    return "slope_at"


def conv(call: calls.Conv) -> list[Kernel]:
    """y[image, group m](position) = sum over c and the window of w x."""

    def operands(k: Kernel) -> tuple[Load, Load]:
        _window(k, call)
        w, inputs = k.operand("w", call.w), _read_inputs(k, k.operand("x", call.x))
        return (
            lambda k, batch, row, step: w.load(f"({batch} * u.group_outputs + {row}) * u.k + {step}"),
            lambda k, batch, step, column: f"{inputs}({batch}, {step}, {column})",
        )

    def results(k: Kernel) -> Store:
        y, bias = k.operand("y", call.y), None if call.bias is None else k.operand("bias", call.bias)
        k.count("group_outputs", call.m // call.groups)
        k.count("outputs", call.m)
        positions = k.count("positions", prod(call.out))

        def store(k: Kernel, batch: str, row: str, column: str, value: str) -> list[str]:
            channel = f"({batch} * u.group_outputs + {row})"
            at = f"(({column} / {positions}) * u.outputs + {channel}) * {positions} + {column} % {positions}"
            added = "" if bias is None else f" + {bias.load(channel)}"
            lines = finished(k, value + added, y if call.accumulate else None, at, call.activation)
            return [*lines, y.store(at, "y")]

        return store

    groups = call.groups
    steps = call.c // groups * prod(call.kernel)
    return product_kernels(Product("conv", call.m // groups, call.n * prod(call.out), steps, groups), operands, results)


def conv_data_gradient(call: calls.ConvDataGradient) -> list[Kernel]:
    """dx[image, group c](position) = sum over m and the window of w dy."""

    def operands(k: Kernel) -> tuple[Load, Load]:
        _window(k, call)
        w, slopes = k.operand("w", call.w), _read_slopes(k, k.operand("dy", call.dy))
        window = k.count("window", prod(call.kernel))

        def weight(k: Kernel, batch: str, row: str, step: str) -> str:
            channel = f"({batch} * u.group_outputs + {step} / {window})"
            return w.load(f"({channel} * u.group_inputs + {row}) * {window} + {step} % {window}")

        return weight, lambda k, batch, step, column: f"{slopes}({batch}, {step}, {column})"

    def results(k: Kernel) -> Store:
        dx, bias = k.operand("dx", call.dx), None if call.bias is None else k.operand("bias", call.bias)
        k.count("group_inputs", call.c // call.groups)
        k.count("inputs", call.c)
        positions = k.count("positions", prod(call.size))

        def store(k: Kernel, batch: str, row: str, column: str, value: str) -> list[str]:
            channel = f"({batch} * u.group_inputs + {row})"
            at = f"(({column} / {positions}) * u.inputs + {channel}) * {positions} + {column} % {positions}"
            added = "" if bias is None else f" + {bias.load(channel)}"
            lines = finished(k, value + added, dx if call.accumulate else None, at, call.activation)
            return [*lines, dx.store(at, "y")]

        return store

    groups = call.groups
    steps = call.m // groups * prod(call.kernel)
    p = Product("conv_data_gradient", call.c // groups, call.n * prod(call.size), steps, groups)
    return product_kernels(p, operands, results)


def conv_weight_gradient(call: calls.ConvWeightGradient) -> list[Kernel]:
    """dw[group m](c, window) = sum over images and positions of dy x, and db the sum of dy."""

    def operands(k: Kernel) -> tuple[Load, Load]:
        _window(k, call)
        dy, inputs = k.operand("dy", call.dy), _read_inputs(k, k.operand("x", call.x))
        positions = k.count("positions", prod(call.out))

        def slope(k: Kernel, batch: str, row: str, step: str) -> str:
            channel = f"({batch} * u.group_outputs + {row})"
            return dy.load(f"(({step} / {positions}) * u.outputs + {channel}) * {positions} + {step} % {positions}")

        return slope, lambda k, batch, step, column: f"{inputs}({batch}, {column}, {step})"

    def results(k: Kernel) -> Store:
        dw = k.operand("dw", call.dw)
        k.count("group_outputs", call.m // call.groups)

        def store(k: Kernel, batch: str, row: str, column: str, value: str) -> list[str]:
            at = f"({batch} * u.group_outputs + {row}) * u.n + {column}"
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
