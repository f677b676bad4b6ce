"""Cases of trainweb.ops.packed."""

from math import prod
from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import packed


def _bytes(*shape: int) -> Any:
    """Bytes of all kinds as nested lists, for samples."""
    rows: list[Any] = [k * 73 % 256 for k in range(prod(shape))]
    for size in reversed(shape[1:]):
        rows = [rows[k : k + size] for k in range(0, len(rows), size)]
    return rows


CASES[packed.DequantizeBlocks] = Cases(
    samples=(
        Sample([literal("uint8", _bytes(3, 2, 8)), (6,)], {"K": 32, "N": 3, "bits": 4, "block_size": 16}),
        Sample(
            [literal("uint8", _bytes(2, 3, 8)), (2, 3), literal("uint8", [0x4A, 0xF1, 0x03, 0x2C])],
            {"K": 37, "N": 2, "bits": 4, "block_size": 16},
        ),
        Sample(
            [literal("uint8", _bytes(2, 2, 16)), (2, 2), literal("uint8", [1, 200, 30, 128])],
            {"K": 32, "N": 2, "bits": 8, "block_size": 16},
        ),
    ),
    bad=(
        Bad([literal("uint8", _bytes(2, 2, 8)), (3,)], {"K": 32, "N": 2, "bits": 4, "block_size": 16}),
        Bad(
            [literal("uint8", _bytes(2, 2, 8)), (4,)], {"K": 32, "N": 2, "bits": 2, "block_size": 16}, UnsupportedError
        ),
        Bad([literal("uint8", _bytes(2, 2, 8)), (4,), (4,)], {"K": 32, "N": 2, "bits": 4, "block_size": 16}),
    ),
)

CASES[packed.MatMulNBits] = Cases(
    samples=(
        Sample([(2, 3, 32), literal("uint8", _bytes(3, 2, 8)), (6,)], {"K": 32, "N": 3, "bits": 4, "block_size": 16}),
        Sample(
            [(2, 20), literal("uint8", _bytes(2, 2, 8)), (4,), literal("uint8", [0x4A, 0xF1])],
            {"K": 20, "N": 2, "bits": 4, "block_size": 16},
        ),
    ),
    bad=(
        Bad([(2, 30), literal("uint8", _bytes(2, 2, 8)), (4,)], {"K": 32, "N": 2, "bits": 4, "block_size": 16}),
        Bad([(2, 32), literal("uint8", _bytes(2, 2, 8)), (3,)], {"K": 32, "N": 2, "bits": 4, "block_size": 16}),
        Bad(
            [(2, 32), literal("uint8", _bytes(2, 2, 8)), (4,)],
            {"K": 32, "N": 2, "bits": 2, "block_size": 16},
            UnsupportedError,
        ),
    ),
)

CASES[packed.GatherBlockQuantized] = Cases(
    samples=(
        Sample([literal("uint8", _bytes(4, 16)), i64([[3, 0], [-1, 1]]), (4, 2)], {"block_size": 16}),
        Sample(
            [literal("uint8", _bytes(4, 16)), i64([2]), (4, 2), literal("uint8", [[0x4A], [0xF1], [0x03], [0x2C]])],
            {"block_size": 16},
        ),
        Sample([literal("uint8", _bytes(3, 32)), i64([2, 1]), (3, 2)], {"block_size": 16, "bits": 8}),
    ),
    bad=(
        Bad([literal("uint8", _bytes(4, 16)), i64([4]), (4, 2)], {"block_size": 16}),
        Bad([literal("uint8", _bytes(4, 16)), i64([0]), (4, 3)], {"block_size": 16}),
        Bad([literal("uint8", _bytes(4, 16)), i64([0]), (4, 2)], {"block_size": 16, "bits": 2}, UnsupportedError),
        Bad(
            [literal("uint8", _bytes(4, 16)), i64([0]), (4, 2)], {"block_size": 16, "gather_axis": 1}, UnsupportedError
        ),
    ),
)


def matrix(op: packed._Rows, packed: Any, scales: Any, zeros: Any) -> Any:
    if zeros is None:
        points = np.full((op.N, op.blocks), 2.0 ** (op.bits - 1))
    elif zeros.dtype == np.uint8:
        points = unpacked(zeros.reshape(op.N, -1), op.bits)[:, : op.blocks]
    else:
        points = zeros.reshape(op.N, op.blocks)
    rows = (unpacked(packed, op.bits) - points[..., None]) * scales.reshape(op.N, op.blocks, 1)
    return rows.reshape(op.N, -1)[:, : op.K]


def unpacked(x: Any, bits: int) -> Any:
    """Numbers of the last axis of a numpy array of bytes, in float64."""
    if bits == 8:
        return x.astype(float)
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1).astype(float)


@reference(packed.DequantizeBlocks)
def dequantize_blocks(op: packed.DequantizeBlocks, packed: Any, scales: Any, zeros: Any = None) -> Any:
    return matrix(op, packed, scales, zeros)


@reference(packed.MatMulNBits)
def mat_mul_n_bits(
    op: packed.MatMulNBits, a: Any, packed: Any, scales: Any, zeros: Any = None, order: Any = None, bias: Any = None
) -> Any:
    return a @ matrix(op, packed, scales, zeros).T + (0 if bias is None else bias)


@reference(packed.GatherBlockQuantized)
def gather_block_quantized(
    op: packed.GatherBlockQuantized, data: Any, indices: Any, scales: Any, zeros: Any = None
) -> Any:
    table = unpacked(data, op.bits)
    points = np.full(scales.shape, 2.0 ** (op.bits - 1)) if zeros is None else unpacked(zeros, op.bits)
    spread = [x.repeat(op.block_size, 1)[:, : table.shape[1]] for x in (points, scales)]
    return ((table - spread[0]) * spread[1])[indices]
