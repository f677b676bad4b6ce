"""Max and average pooling, and their gradients."""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import Kernel
from trainweb.ir import calls

Pool = calls.MaxPool | calls.AveragePool | calls.AveragePoolGradient


def _declare(k: Kernel, call: Pool) -> None:
    """Declare the sizes of a pool."""
    for name in ("size", "kernel", "out", "stride", "dilation"):
        for axis, value in enumerate(getattr(call, name)):
            k.count(f"{name}{axis}", value)
    for axis, value in enumerate(call.pad):
        k.signed(f"pad{axis}", value)


def max_pool(call: calls.MaxPool) -> list[Kernel]:
    """The first of the largest elements under each window, and its place: -1 where there is only padding."""
    k = Kernel("max_pool")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    _declare(k, call)
    k.elements(call.planes * prod(call.out))
    k.add("let plane = i / (u.out0 * u.out1 * u.out2);", "var largest = from_bits(0xff800000u);", "var place = -1i;")
    starts = ("(i / (u.out1 * u.out2)) % u.out0", "(i / u.out2) % u.out1", "i % u.out2")
    for axis, (name, start) in enumerate(zip("zyx", starts, strict=True)):
        k.add(f"let start_{name} = i32(({start}) * u.stride{axis}) - u.pad{axis};")
    for axis, name in enumerate("zyx"):
        k.add(f"for (var in_{name} = 0u; in_{name} < u.kernel{axis}; in_{name}++) {{")
        k.add(f"let {name} = start_{name} + i32(in_{name} * u.dilation{axis});")
        k.add(f"if ({name} < 0i || {name} >= i32(u.size{axis})) {{ continue; }}")
    k.add("let at = ((plane * u.size0 + u32(z)) * u.size1 + u32(y)) * u.size2 + u32(x);")
    k.add(f"let value = {x.load('at')};")
    k.add("if (place < 0i || (!is_nan(largest) && (is_nan(value) || value > largest))) {")
    k.add("largest = value;", "place = i32(at);", "}", "}", "}", "}", y.store("i", "largest"))
    if call.indices is not None:
        k.add(k.operand("indices", call.indices).store("i", "place"))
    return [k]


def max_pool_gradient(call: calls.MaxPoolGradient) -> list[Kernel]:
    """A workgroup for each plane, in which a lane owns every 64th element: it adds up what comes there, in order."""
    k = Kernel("max_pool_gradient")
    dy, indices, dx = k.operand("dy", call.dy), k.operand("indices", call.indices), k.operand("dx", call.dx)
    k.blocks(call.planes)
    size, out = k.count("size", call.size), k.count("out", call.out_size)
    k.add(f"for (var at = lane; at < {size}; at += {k.lanes}u) {{ {dx.store(f'block * {size} + at', '0.0f')} }}")
    k.add(f"for (var step = 0u; step < {out}; step++) {{", f"let place = {indices.load(f'block * {out} + step')};")
    k.add(f"if (place >= 0i && (u32(place) - block * {size}) % {k.lanes}u == lane) {{")
    k.add(dx.store("u32(place)", f"{dx.load('u32(place)')} + {dy.load(f'block * {out} + step')}"), "}", "}")
    return [k]


def _divisor(k: Kernel, call: calls.AveragePool | calls.AveragePoolGradient) -> str:
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
        if call.count_include_pad:
            first, end = f"-u.pad{axis}", f"{end} + {k.signed(f'pad_end{axis}', call.pad_end[axis])}"
        start = f"i32(place{axis} * u.stride{axis}) - u.pad{axis}"
        factors.append(f"taps({start}, {first}, {end}, u.kernel{axis}, u.dilation{axis})")
    k.declare(
        f"fn divisor(place0: u32, place1: u32, place2: u32) -> f32 {{ return f32(max(1i, {' * '.join(factors)})); }}"
    )
    return "divisor"


def average_pool(call: calls.AveragePool) -> list[Kernel]:
    """The mean under each window."""
    k = Kernel("average_pool")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    _declare(k, call)
    divisor = _divisor(k, call)
    k.elements(call.planes * prod(call.out))
    k.add("let o2 = i % u.out2;", "let o1 = (i / u.out2) % u.out1;", "let o0 = (i / (u.out1 * u.out2)) % u.out0;")
    k.add("let plane = i / (u.out0 * u.out1 * u.out2);", "var sum = 0.0f;")
    for axis in range(3):
        k.add(f"for (var in{axis} = 0u; in{axis} < u.kernel{axis}; in{axis}++) {{")
        k.add(f"let p{axis} = i32(o{axis} * u.stride{axis} + in{axis} * u.dilation{axis}) - u.pad{axis};")
        k.add(f"if (p{axis} < 0i || p{axis} >= i32(u.size{axis})) {{ continue; }}")
    at = "((plane * u.size0 + u32(p0)) * u.size1 + u32(p1)) * u.size2 + u32(p2)"
    k.add(f"sum += {x.load(at)};", "}", "}", "}", y.store("i", f"sum / {divisor}(o0, o1, o2)"))
    return [k]


def average_pool_gradient(call: calls.AveragePoolGradient) -> list[Kernel]:
    """An invocation adds up what comes to its element from the windows over it."""
    k = Kernel("average_pool_gradient")
    dy, dx = k.operand("dy", call.dy), k.operand("dx", call.dx)
    _declare(k, call)
    divisor = _divisor(k, call)
    k.elements(call.planes * prod(call.size))
    k.add("let p2 = i % u.size2;", "let p1 = (i / u.size2) % u.size1;", "let p0 = (i / (u.size1 * u.size2)) % u.size0;")
    k.add("let plane = i / (u.size0 * u.size1 * u.size2);", "var sum = 0.0f;")
    for axis in range(3):
        k.add(f"for (var in{axis} = 0u; in{axis} < u.kernel{axis}; in{axis}++) {{")
        k.add(f"let from{axis} = i32(p{axis}) + u.pad{axis} - i32(in{axis} * u.dilation{axis});")
        k.add(f"let o{axis} = u32(from{axis}) / u.stride{axis};")
        k.add(
            f"if (from{axis} < 0i || u32(from{axis}) % u.stride{axis} != 0u || o{axis} >= u.out{axis}) {{ continue; }}"
        )
    at = "((plane * u.out0 + o0) * u.out1 + o1) * u.out2 + o2"
    k.add(f"sum += {dy.load(at)} / {divisor}(o0, o1, o2);", "}", "}", "}", dx.store("i", "sum"))
    return [k]
