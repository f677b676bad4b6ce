"""Types and shapes of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and static shape of a tensor; `value` has its elements, flat, where they are known."""

    dtype: str
    shape: tuple[int, ...]
    value: tuple[Any, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcasting rule; ValueError where it does not hold."""
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for k in range(-rank, 0):
        dims = {s[k] for s in shapes if len(s) >= -k} - {1}
        if len(dims) > 1:
            raise ValueError(shapes)
        out.append(dims.pop() if dims else 1)
    return tuple(out)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))
