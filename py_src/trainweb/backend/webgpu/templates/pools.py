"""Max pooling and its gradient."""

from __future__ import annotations

from math import prod

from trainweb.backend.webgpu.shader import Kernel
from trainweb.ir import calls


def max_pool(call: calls.MaxPool) -> list[Kernel]:
    """The first of the largest elements under each window, and its place: -1 where there is only padding."""
    k = Kernel("max_pool")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    for name in ("size", "kernel", "out", "stride", "dilation"):
        for axis, value in enumerate(getattr(call, name)):
            k.count(f"{name}{axis}", value)
    for axis, value in enumerate(call.pad):
        k.signed(f"pad{axis}", value)
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
