"""Types and shapes of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from trainweb.ir.dims import Extremum, certainly_at_most, maximum, resolve, sole_atom, static, table_of


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and shape of a tensor; `value` has its elements, flat, where they are known.

    Dims, and elements of shape arithmetic, are ints when a plan is compiled, and may be `SymbolicDim`s before.
    """

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
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for k in range(-rank, 0):
        dims = {s[k] for s in shapes if len(s) >= -k} - {1}
        if len(dims) > 1:
            met = None if static(*dims) else _meet([s[k] for s in shapes if len(s) >= -k])
            if met is None:
                raise ValueError(shapes)
            dims = {met}
        out.append(dims.pop() if dims else 1)
    return tuple(out)


def _meet(dims: Sequence[int]) -> int | None:
    """The dim that these broadcast to, of which some are symbolic; None where they cannot.

    Dims that are certainly larger than 1 must be equal. Others may be 1: symbols that meet are not taken for equal.
    """
    dims = [dim for dim in dict.fromkeys(map(resolve, dims)) if dim != 1]
    table = table_of(dims)
    if table is None:
        return (dims or [1])[0] if len(dims) < 2 else None
    sure = [dim for dim in dims if certainly_at_most(2, dim)]
    for dim in dims:
        # min(n, 512) beside n, as where rows are cut from a table, is not 1: it broadcasts with n only if it is n.
        atom = sole_atom(dim)
        if isinstance(atom, Extremum) and not atom.largest:
            others = [d for d in atom.args if d in dims]
            if others and all(d in others or certainly_at_most(2, d) for d in atom.args):
                table.unify(dim, others[0])
    if not all(table.unify(sure[0], dim) for dim in sure[1:]):
        return None
    return resolve(sure[0]) if sure else maximum(*dims)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(accumulate(shape[:0:-1], mul, initial=1))[::-1] if shape else ()


def collapse(shape: tuple[int, ...], operands: Sequence[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Fewest dims that cover `shape`, and each operand's element strides along them (0 where it broadcasts).

    The last stride of each operand is 0 or 1.
    """
    if broadcast_shapes(shape, *operands) != shape:
        raise ValueError(f"{operands} do not broadcast to {shape}")
    rows = []
    for operand in operands:
        full = (1,) * (len(shape) - len(operand)) + tuple(operand)
        rows.append([s if d != 1 else 0 for d, s in zip(full, contiguous_strides(full), strict=True)])
    dims, *strides = merged_dims(shape, *rows)
    return dims or [1], [steps or [0] for steps in strides]


def merged_dims(dims: Sequence[int], *strides: Sequence[int]) -> list[list[int]]:
    """`dims` without ones, neighbours merged where every stride allows; then the strides alike."""
    merged: list[list[int]] = []
    for dim, *steps in zip(dims, *strides, strict=True):
        if dim == 1:
            continue
        last = merged[-1] if merged else None
        if last and all(last[1 + k] == step * dim for k, step in enumerate(steps)):
            merged[-1] = [last[0] * dim, *steps]
        else:
            merged.append([dim, *steps])
    return [[row[k] for row in merged] for k in range(1 + len(strides))]
