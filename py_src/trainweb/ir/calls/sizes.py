"""Sizes and conditions that kernels.def names. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from math import prod

from trainweb.ir.extents import ceil4, reach_up


def chunks(n: int) -> int:
    """`chunks` of kernels.def."""
    return (n + 16384 - 1) // 16384


def bands(n: int) -> int:
    """`bands` of kernels.def."""
    return (n + 64 - 1) // 64


def ctc_states(labels: int) -> int:
    """`ctc_states` of kernels.def.

    The labels with blanks before, between and behind them.
    """
    return 2 * labels + 1


def key_blocks(n: int) -> int:
    """`key_blocks` of kernels.def."""
    return (n + 64 - 1) // 64


def mask_spans(batch: tuple[int, ...], m: int, n: int, mask_strides: tuple[int, ...]) -> int:
    """`mask_spans` of kernels.def.

    What each mask leaves of each block of keys for each tile of rows.
    """
    return (1 + 16 * key_blocks(n)) * ((m + 64 - 1) // 64) * max(1, batch[0] * (mask_strides[0] > 0)) * max(1, batch[1] * (mask_strides[1] > 0))


def cell_gates(cell: int) -> int:
    """`cell_gates` of kernels.def."""
    return 1 + 3 * (cell == 2) + 2 * (cell >= 3)


def cell_kept(cell: int) -> int:
    """`cell_kept` of kernels.def.

    Floats a state that the backward pass needs: the gates; of a GRU also the product that r multiplies, or r times the
    state.
    """
    return 1 + 3 * (cell >= 2)


def panels(hidden: int) -> int:
    """`panels` of kernels.def."""
    return (hidden + 7) // 8 * 8


def conv_weights(c: int, m: int, groups: int, kernel: tuple[int, ...]) -> int:
    """`conv_weights` of kernels.def."""
    return m * (c // groups) * prod(kernel)


def grouped(c: int, m: int, groups: int) -> bool:
    """`grouped` of kernels.def."""
    return c >= 1 and m >= 1 and (groups >= 1) and (c // groups * groups == c) and (m // groups * groups == m)


def few_positions(n: int, m: int, weights: int, out: tuple[int, ...]) -> bool:
    """`few_positions` of kernels.def.

    Columns take at most twice the memory of the weights.
    """
    return prod(out) <= 64 and n * prod(out) <= min(512, 2 * m) and (weights >= 32768)


def windows(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    out: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pad: tuple[int, ...],
) -> bool:
    """`windows` of kernels.def."""
    return prod(size) >= 1 and prod(out) >= 1 and (prod(kernel) >= 1) and (prod(stride) >= 1) and (prod(dilation) >= 1) and (reach_up(out, stride) + reach_up(kernel, dilation) + pad[0] + pad[1] + pad[2] <= 1073741824)


def winograd_planes(c: int, m: int) -> int:
    """`winograd_planes` of kernels.def.

    Winograd's method for 3x3 windows of stride 1 and 2 without dilation or groups (conv/winograd.c). Transformed
    weights: a plane for each point; `flipped`: for the data gradient, where c counts the channels of dy and m those of
    dx.
    """
    return 36 * (ceil4(m) * ceil4(c) + 16)


def winograd_channels(c: int, m: int, stride: int) -> bool:
    """`winograd_channels` of kernels.def.

    Channels of which a block of the fewest tiles fits a thread's workspace.
    """
    return max(c, m) <= 1024 - 384 * stride


def winograd_window(
    n: int, c: int, m: int, size: tuple[int, ...], out: tuple[int, ...], stride: int, pad: tuple[int, ...]
) -> bool:
    """`winograd_window` of kernels.def."""
    return stride >= 1 and stride <= 2 and (n >= 1) and (c >= 1) and (m >= 1) and winograd_channels(c, m, stride) and (prod(size) >= 1) and (prod(out) >= 1) and (max(max(out[0], out[1]), max(size[0], size[1])) * stride + pad[0] + pad[1] <= 1073741824)


def winograd_tiled(n: int, stride: int, flipped: int) -> int:
    """`winograd_tiled` of kernels.def.

    Outputs along an axis in whole tiles of 4, or of 8 where the data gradient goes back through a stride of 2.
    """
    return (n + 3 + 4 * (stride - 1) * flipped) // (4 + 4 * (stride - 1) * flipped) * (4 + 4 * (stride - 1) * flipped)


def positions(n: int, out: tuple[int, ...]) -> int:
    """`positions` of kernels.def."""
    return n * prod(out)
