"""Random numbers and dropout by Philox, as wasm_kernels/random.c draws them: the same bits for an element."""

from __future__ import annotations

import struct
from math import ceil

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, grid_of
from trainweb.ir import calls
from trainweb.ir.layout import STATE_RANDOM_OFFSET, STATE_SEED

PER_WORD = 4
"""Elements of an invocation of dropout, whose mask shares a word."""


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


class Stream:
    """The numbers that one node draws in a step; `state` is the session's, which the head brought up."""

    def __init__(
        self, k: Kernel, call: calls.Dropout | calls.Random | calls.Attention | calls.AttentionGradient
    ) -> None:
        assert call.state is not None
        state = k.operand("state", call.state)
        k.count("salt", call.salt)
        k.count("draw", call.draw)
        words = [state.word(f"{at + n}u") for at in (STATE_SEED, STATE_RANDOM_OFFSET) for n in (0, 1)]
        k.add(f"let seed = vec2u({words[0]}, {words[1]});", f"let drawn = {words[2]} + u.draw;")
        k.add(f"let offset = vec2u(drawn, {words[3]} + select(0u, 1u, drawn < u.draw));")

    @staticmethod
    def bits(counter: str) -> str:
        """Four random words."""
        return f"philox({counter}, u.salt, offset, seed)"


class Dropping(Stream):
    """The elements that a Dropout keeps. The ratio is rounded to a multiple of 2^-16, the factor is not."""

    def __init__(self, k: Kernel, call: calls.Dropout | calls.Attention | calls.AttentionGradient) -> None:
        ratio = _float32(call.ratio)
        if not 0 <= ratio < 1:
            raise NoKernelError(f"dropout with the ratio {call.ratio}")
        super().__init__(k, call)
        k.count("threshold", min(65535, int(_float32(ratio * 65536 + 0.5))))
        k.real("kept", 1 / _float32(1 - ratio))

    @staticmethod
    def factor(index: str) -> str:
        """By what an element is multiplied."""
        return f"select(0.0f, u.kept, half_of_random({index}, u.salt, offset, seed) >= u.threshold)"


def dropout(call: calls.Dropout) -> list[Kernel]:
    """x / (1 - ratio) where a random number is not below the ratio, else 0."""
    k = Kernel("dropout")
    x, y = k.operand("x", call.x), k.operand("y", call.y)
    k.grid = grid_of(ceil(ceil(call.n / PER_WORD) / k.lanes))
    k.add(f"let word = block * {k.lanes}u + lane;", f"if (word * 4u >= {k.count('n', call.n)}) {{ return; }}")
    factors = Dropping(k, call)
    k.add("var mask = 0u;", "for (var part = 0u; part < 4u; part++) {", "let i = word * 4u + part;", "if (i < u.n) {")
    k.add(f"let factor = {factors.factor('i')};", f"var result = {x.load('i')} * factor;")
    k.add(
        "if (factor == 0.0f) { result = 0.0f; } else { mask |= 1u << (8u * part); }", y.store("i", "result"), "}", "}"
    )
    if call.mask is not None:
        k.add(f"{k.operand('mask', call.mask).word('word')} = mask;")
    return [k]


def random(call: calls.Random) -> list[Kernel]:
    """Uniform numbers in [a, b), or normal ones with the mean a and the standard deviation b, by Box and Muller."""
    k = Kernel("random")
    y = k.operand("y", call.y)
    k.elements(call.n)
    stream = Stream(k, call)
    k.add("let place = (i >> 2u) & 3u;", f"let bits = {stream.bits('(i >> 4u) * 4u + (i & 3u)')};")
    k.real("a", call.a)
    if call.normal:
        k.add("let pair = place & 2u;", "let radius = sqrt(-2.0f * log_(uniform_of(bits[pair]) + 0x1p-24f));")
        k.add("let angle = uniform_of(bits[pair + 1u]) * 6.2831853f;")
        k.add("let x = radius * select(cos_(angle), sin_(angle), (place & 1u) == 1u);")
        k.real("b", call.b)
    else:
        k.add("let x = uniform_of(bits[place]);")
        k.real("b", _float32(_float32(call.b) - _float32(call.a)))
    k.add(y.store("i", "x * u.b + u.a"))
    return [k]
