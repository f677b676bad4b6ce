"""Max and average pooling, and their gradients."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.ir import calls

OUTPUTS = {"plane": "planes", **{f"o{axis}": f"out{axis}" for axis in range(3)}}
INPUTS = {"plane": "planes", **{f"p{axis}": f"size{axis}" for axis in range(3)}}
INPUT = "((plane * u.size0 + u32(p0)) * u.size1 + u32(p1)) * u.size2 + u32(p2)"
OUTPUT = "((plane * u.out0 + o0) * u.out1 + o1) * u.out2 + o2"


def _over_window(k: Kernel, *body: str) -> None:
    """Run lines for each element under the window of an output: `p0`, `p1`, `p2` is its place."""
    for axis in range(3):
        k.add(f"for (var in{axis} = 0u; in{axis} < u.kernel{axis}; in{axis}++) {{")
        k.add(f"let p{axis} = i32(o{axis} * u.stride{axis} + in{axis} * u.dilation{axis}) - u.pad{axis};")
        k.add(f"if (p{axis} < 0i || p{axis} >= i32(u.size{axis})) {{ continue; }}")
    k.add(*body, "}", "}", "}")


@template(calls.MaxPool)
def max_pool(k: Kernel, _: calls.MaxPool) -> None:
    """The first of the largest elements under each window, and its place: -1 where there is only padding."""
    x = k.operand("x")
    k.elements(**OUTPUTS)
    k.add("var largest = from_bits(0xff800000u);", "var place = -1i;")
    is_new = "place < 0i || (!is_nan(largest) && (is_nan(value) || value > largest))"
    body = f"let at = {INPUT};", f"let value = {x['at']};", f"if ({is_new}) {{ largest = value; place = i32(at); }}"
    _over_window(k, *body)
    k.add(*k.wanted("i", y="largest", indices="place"))


@template(calls.MaxPoolGradient)
def max_pool_gradient(k: Kernel, call: calls.MaxPoolGradient) -> None:
    """Four invocations for each plane. Each owns every fourth element, and adds up what comes to those, in order."""
    dy, indices, dx = k.fields("dy", "indices", "dx")
    k.count("parts", 4)
    k.elements(plane="planes", part="parts")
    k.add("let first = plane * u.size;", "for (var step = part; step < u.size; step += 4u) {")
    k.add(dx.store("first + step", "0.0f"), "}", "for (var step = 0u; step < u.out_size; step++) {")
    k.add(f"let place = {indices['plane * u.out_size + step']};")
    k.add("if (place >= 0i && (u32(place) - first) % 4u == part) {")
    k.add(dx.store("u32(place)", f"{dx['u32(place)']} + {dy['plane * u.out_size + step']}"), "}", "}")


def _declare_divisor(k: Kernel) -> None:
    """Declare the number of positions under a window; with `count_include_pad` it includes the padding."""
    k.declare(
        "fn taps(start: i32, first: i32, end: i32, kernel: u32, dilation: u32) -> i32 {\n"
        "  let step = i32(dilation);\n"
        "  let low = max(0i, (first - start + step - 1i) / step);\n"
        "  let high = min(i32(kernel), (end - start + step - 1i) / step);\n"
        "  return max(0i, high - low);\n}"
    )
    factors = []
    for axis in range(3):
        first, end = "0i", f"i32(u.size{axis})"
        if k.call.count_include_pad:
            first, end = f"-u.pad{axis}", f"{end} + u.pad_end{axis}"
        start = f"i32(place{axis} * u.stride{axis}) - u.pad{axis}"
        factors.append(f"taps({start}, {first}, {end}, u.kernel{axis}, u.dilation{axis})")
    k.declare(
        f"fn divisor(place0: u32, place1: u32, place2: u32) -> f32 {{ return f32(max(1i, {' * '.join(factors)})); }}"
    )


@template(calls.AveragePool)
def average_pool(k: Kernel, call: calls.AveragePool) -> None:
    """The mean under each window."""
    x, y = k.fields("x", "y")
    _declare_divisor(k)
    k.elements(**OUTPUTS)
    k.add("var sum = 0.0f;")
    _over_window(k, f"sum += {x[INPUT]};")
    k.add(y.store("i", "sum / divisor(o0, o1, o2)"))


@template(calls.AveragePoolGradient)
def average_pool_gradient(k: Kernel, call: calls.AveragePoolGradient) -> None:
    """An invocation adds up what comes to its element from the windows over it."""
    dy, dx = k.fields("dy", "dx")
    _declare_divisor(k)
    k.elements(**INPUTS)
    k.add("var sum = 0.0f;")
    for axis in range(3):
        k.add(f"for (var in{axis} = 0u; in{axis} < u.kernel{axis}; in{axis}++) {{")
        k.add(f"let from{axis} = p{axis} + u32(u.pad{axis}) - in{axis} * u.dilation{axis};")
        k.add(f"let o{axis} = from{axis} / u.stride{axis};")  # from wraps around where it is negative
        k.add(f"if (from{axis} % u.stride{axis} != 0u || o{axis} >= u.out{axis}) {{ continue; }}")
    k.add(f"sum += {dy[OUTPUT]} / divisor(o0, o1, o2);", "}", "}", "}", dx.store("i", "sum"))
