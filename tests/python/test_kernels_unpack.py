"""Products with quantized weights, and rows of them, against dequantization by numpy in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.kernel_cases import assert_close_sum, random
from tests.python.kernel_runner import BUILDS, runner
from tests.python.plan_builder import PlanFailed

SIGN = {np.int8: 0x80, np.int16: 0x8000}


@dataclass
class Packed:
    """The arguments of a kernel that say how a matrix is stored, and its values."""

    args: dict[str, Any]
    values: np.ndarray


def nibbles(rows: np.ndarray) -> np.ndarray:
    """Two numbers a byte, the first in the lower half; a row may start in the middle of a byte."""
    flat = rows.reshape(-1).astype(np.uint8) & 15
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    return flat[::2] | flat[1::2] << 4


def spread(of_blocks: np.ndarray, shape: tuple[int, int], blocks: tuple[int, int]) -> np.ndarray:
    rows, cols = (min(block, size) for block, size in zip(blocks, shape, strict=True))
    return of_blocks.repeat(rows, 0).repeat(cols, 1)[: shape[0], : shape[1]]


def packed(
    kind: str, shape: tuple[int, int], blocks: tuple[int, int], zeros: bool, *, pad: int = 0, signed: bool = True
) -> Packed:
    """A random matrix of numbers of `kind`, with `pad` more of them a row."""
    rng = np.random.default_rng(hash((shape, blocks, pad)) % 2**32)
    rows, cols = shape
    counts = -(-rows // blocks[0]), -(-cols // blocks[1])
    args: dict[str, Any] = {"pitch": cols + pad, "block_rows": blocks[0], "block_cols": blocks[1]}
    args |= {"scale": None, "zero": None, "scale_row": 0, "scale_col": 0, "zero_row": 0, "zero_col": 0}
    args |= {"flip": 0, "center": 0}
    if kind in ("half", "bfloat"):
        x = (rng.standard_normal((rows, cols + pad)) * 10.0 ** rng.integers(-9, 4, (rows, cols + pad))).astype(
            np.float32
        )
        bits = x.astype(np.float16).view(np.uint16) if kind == "half" else (x.view(np.uint32) >> 16).astype(np.uint16)
        values = bits.view(np.float16) if kind == "half" else (bits.astype(np.uint32) << 16).view(np.float32)
        args |= {"packing": 4 if kind == "half" else 5, "x": bits.reshape(-1).view(np.uint8)}
        return Packed(args, values[:, :cols].astype(np.float64))
    bits_of = {"4": 4, "8": 8, "16": 16, "32": 32}[kind]
    low, high = (-(2 ** (bits_of - 1)), 2 ** (bits_of - 1)) if signed else (0, 2**bits_of)
    limit = (low, high) if bits_of < 32 else (-(2**20), 2**20)
    numbers = rng.integers(*limit, (rows, cols + pad))
    dtype = np.dtype(f"{'i' if signed else 'u'}{max(bits_of // 8, 1)}")

    def stored(x: np.ndarray) -> np.ndarray:
        return nibbles(x) if bits_of == 4 else np.ascontiguousarray(x.astype(dtype)).reshape(-1).view(np.uint8)

    scale = (rng.random(counts) + 0.5).astype(np.float32)
    zero = rng.integers(*limit, counts) if zeros else np.full(counts, 0 if signed else 7)
    flip = (1 << bits_of - 1) if signed and bits_of < 32 else 0
    args |= {"packing": ["4", "8", "16", "32"].index(kind), "x": stored(numbers), "scale": scale.reshape(-1)}
    args |= {"zero": stored(zero) if zeros else None, "flip": flip, "center": flip if signed else 7}
    args |= dict.fromkeys(("scale_row", "zero_row"), counts[1]) | dict.fromkeys(("scale_col", "zero_col"), 1)
    difference = numbers[:, :cols] - spread(zero, shape, blocks)
    return Packed(args, difference * spread(scale.astype(np.float64), shape, blocks))


LAYOUTS = [
    ("4", (37, 96), (1, 32)),
    ("4", (24, 45), (1, 16)),
    ("4", (33, 24), (32, 1)),
    ("4", (7, 33), (7, 33)),
    ("8", (37, 96), (1, 32)),
    ("8", (64, 41), (1000, 1)),
    ("8", (50, 70), (1, 1000)),
    ("8", (33, 40), (16, 1)),
    ("8", (20, 30), (20, 30)),
    ("16", (9, 21), (1, 4)),
    ("32", (5, 11), (5, 1)),
    ("half", (33, 43), (1, 1)),
    ("bfloat", (12, 45), (1, 1)),
]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
@over("kind, shape, blocks", LAYOUTS)
def test_rows_are_dequantized_exactly(
    kind: str, shape: tuple[int, int], blocks: tuple[int, int], zeros: bool, signed: bool, build: str
) -> None:
    m = packed(kind, shape, blocks, zeros, signed=signed)
    rows, cols = shape
    args = m.args | {"y": np.full(rows * cols, np.nan, np.float32), "rows": rows, "cols": cols}
    # A product of a number of at most 24 bits and a float32 scale, rounded once.
    expected = m.values.astype(np.float32)
    for last in ("x", *(name for name in ("scale", "zero") if m.args[name] is not None)):
        got = runner(build).run("dequantize_f32", args, last=last)["y"]
        np.testing.assert_array_equal(got.reshape(shape), expected)
    indices = np.array([rows - 1, 0, -2, 3, 3], np.int64)
    args |= {"indices": indices.view(np.uint8), "index_size": 8, "n": len(indices)}
    args["y"] = np.full(len(indices) * cols, np.nan, np.float32)
    got = runner(build).run("gather_dequantized_f32", args)["y"]
    np.testing.assert_array_equal(got.reshape(-1, cols), expected[indices])
    args["indices"] = np.array([0, rows, 0, 0, 0], np.int64).view(np.uint8)
    with pytest.raises(PlanFailed, match=f"TW_BAD_INDEX.*value {rows} at 1"):
        runner(build).run("gather_dequantized_f32", args)


def test_every_half_is_exact() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    args = packed("half", (256, 256), (1, 1), False).args | {"x": bits.view(np.uint8), "rows": 256, "cols": 256}
    args["y"] = np.zeros(1 << 16, np.float32)
    got = runner("kernels").run("dequantize_f32", args)["y"]
    np.testing.assert_array_equal(got, bits.view(np.float16).astype(np.float32))


PRODUCTS = [
    ("4", (1, 32)),
    ("4", (1, 16)),
    ("8", (1, 32)),
    ("8", (10000, 1)),
    ("8", (1, 10000)),
    ("8", (32, 1)),
    ("half", (1, 1)),
    ("bfloat", (1, 1)),
]
SIZES = [
    (1, 1, 1),
    (1, 70, 96),
    (1, 1100, 9),
    (1, 40, 9000),
    (3, 5, 7),
    (2, 33, 600),
    (130, 45, 64),
    (490, 96, 530),
    (4, 3, 0),
]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("kind", "blocks"), PRODUCTS)
@over("size", SIZES)
def test_products(size: tuple[int, int, int], kind: str, blocks: tuple[int, int], turned: bool, build: str) -> None:
    m, n, k = size
    for zeros, pad, bias, activation, accumulate in ((True, 0, True, 1, 0), (False, 5, False, 0, 1)):
        w = packed(kind, (n, k) if turned else (k, n), blocks, zeros, pad=pad)
        values = w.values.T if turned else w.values
        for by_columns in (False, True):
            a = random(k, m, seed=1) if by_columns else random(m, k, seed=1)
            left = (a.T if by_columns else a).astype(np.float64)
            offset, start = random(n, seed=2), random(m, n, seed=3)
            args = {name: value for name, value in w.args.items() if name != "x"} | {"w": w.args["x"], "m": m, "n": n}
            args |= {"k": k, "turned": int(turned), "a": a.reshape(-1), "alpha": 0.5, "beta": -2.0, "c_row": n}
            args |= {"a_row": 1 if by_columns else k, "a_col": m if by_columns else 1, "bias": offset if bias else None}
            args |= {
                "bias_row": 0,
                "bias_col": 1,
                "accumulate": accumulate,
                "activation": activation,
                "clears": 0,
                "wanted": None,
            }
            args["c"] = (start if accumulate else np.full_like(start, np.nan)).reshape(-1)
            last = "c" if k == 0 else "w"
            args["w"] = args["w"][: args["w"].size - (pad // 2 if kind == "4" else pad) * bool(k)]
            got = runner(build).run("gemm_quantized_f32", args, last=last)["c"].reshape(m, n)
            want = 0.5 * (left @ values) - 2.0 * offset * bias + start * accumulate
            magnitude = 0.5 * (abs(left) @ abs(values)) + 2 * abs(offset) * bias + abs(start) * accumulate
            assert_close_sum(got, np.maximum(want, 0) if activation else want, magnitude + abs(want), k + 4)
