"""Functions that facts of kernels.def use besides `max`, `min` and `prod`; conditions are only checked in C."""

from __future__ import annotations

from collections.abc import Sequence


def ceil4(n: int) -> int:
    """The next multiple of 4."""
    return -(-n // 4) * 4


def reach_up(dims: Sequence[int], strides: Sequence[int]) -> int:
    """Return the largest offset that strides lead up from the first element."""
    return sum((d - 1) * max(s, 0) for d, s in zip(dims, strides, strict=True))
