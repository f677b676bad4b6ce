"""Random numbers and dropout by Philox, as wasm_kernels/random.c draws them: the same bits for an element."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, template
from trainweb.backend.webgpu.templates.elementwise import each_of_word
from trainweb.ir import calls
from trainweb.ir.layout import STATE_RANDOM_OFFSET, STATE_SEED
from trainweb.model.graph import as_float32

KEPT = "select(0.0f, u.kept, half_of_random({}, u.salt, offset, seed) >= u.threshold)"
"""By what dropout multiplies an element, after `drop`."""


def draw(k: Kernel) -> None:
    """Begin to draw the numbers of a node in a step, from the session's state, which the head brought up."""
    state = k.operand("state")
    words = [state.word(f"{at + n}u") for at in (STATE_SEED, STATE_RANDOM_OFFSET) for n in (0, 1)]
    k.add(f"let seed = vec2u({words[0]}, {words[1]});", f"let drawn = {words[2]} + u.draw;")
    k.add(f"let offset = vec2u(drawn, {words[3]} + select(0u, 1u, drawn < u.draw));")


def drop(k: Kernel) -> None:
    """Begin to drop elements. The ratio is rounded to a multiple of 2^-16, the factor is not."""
    ratio = as_float32(k.call.ratio)
    if not 0 <= ratio < 1:
        raise NoKernelError(f"dropout with the ratio {k.call.ratio}")
    draw(k)
    k.count("threshold", min(65535, int(as_float32(ratio * 65536 + 0.5))))
    k.count("kept", 1 / as_float32(1 - ratio), "f32")


@template(calls.Dropout)
def dropout(k: Kernel, call: calls.Dropout) -> None:
    """x / (1 - ratio) where a random number is not below the ratio, else 0."""
    x, y = k.fields("x", "y")
    drop(k)
    result = y.store("i", f"select({x['i']} * factor, 0.0f, factor == 0.0f)")
    each_of_word(k, call.n, f"let factor = {KEPT.format('i')};", result, mask="select(1u, 0u, factor == 0.0f)")
    if call.mask is not None:
        k.add(f"{k.operand('mask').word('word')} = mask;")


@template(calls.Random)
def random(k: Kernel, call: calls.Random) -> None:
    """Uniform numbers in [a, b), or normal ones with the mean a and the standard deviation b, by Box and Muller."""
    draw(k)
    k.elements(element="n")
    k.add("let place = (i >> 2u) & 3u;", "let bits = philox((i >> 4u) * 4u + (i & 3u), u.salt, offset, seed);")
    if call.normal:
        k.add("let pair = place & 2u;", "let radius = sqrt(-2.0f * log_(uniform_of(bits[pair]) + 0x1p-24f));")
        k.add("let angle = uniform_of(bits[pair + 1u]) * 6.2831853f;")
        k.add("let x = radius * select(cos_(angle), sin_(angle), (place & 1u) == 1u);")
    else:
        k.add("let x = uniform_of(bits[place]);")
        k.count("b", as_float32(as_float32(call.b) - as_float32(call.a)), "f32")
    k.add(k.operand("y").store("i", "x * u.b + u.a"))
