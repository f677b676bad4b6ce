"""Chunks of elementwise calls: what a thread computes while its operands are in the cache."""

from __future__ import annotations

from math import lcm

from trainweb.ir.instructions import Reduction

GRAIN_ELEMENTS = 16384
"""Elements a chunk of an elementwise call works on: 64 KiB of float32, which the second-level cache holds."""


def chunk_elements(unit: int, reduction: Reduction) -> int:
    """Elements of a chunk that reduces its result: whole rows of `unit`, and whole planes of the reduction.

    Zero if one plane is more than a chunk.
    """
    plane = lcm(unit, max(reduction.n, 1) * reduction.inner)
    return GRAIN_ELEMENTS // plane * plane
