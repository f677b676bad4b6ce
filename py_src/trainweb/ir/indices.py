"""Integers that calls read: the axes of indices and labels, checks, and the bounds of those that calls compute."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from trainweb.ir import calls
from trainweb.ir.builder import index_check
from trainweb.ir.expr import Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA

AXES = ("dim", "axis_dim", "c", "rows")
"""Fields with the size of the axis that indices or labels go along. A call has one of these, or `dims`."""


def axes_of(i: Any) -> Sequence[int]:
    """The sizes of the axes that the indices of a call, or its labels, go along."""
    if isinstance(i, (calls.GatherNd, calls.ScatterNd)):
        return i.dims[: i.k]
    return [getattr(i, name) for name in AXES if hasattr(i, name)][:1]


def check_of(i: Any, integers: Buf) -> Instruction:
    """The call that fails where an index or a label of a call is out of range, or another integer beyond 32 bits."""
    if all(b is not integers for b in i.checked):
        return index_check(integers, -(2**31), 2**31 - 1, None, 0)
    if isinstance(i, (calls.GatherNd, calls.ScatterNd)):
        # A lookup of slices without bytes only checks.
        shape = {name: getattr(i, name) for name in ("batch", "n", "k", "dims", "index_size")}
        nothing = Buf(Storage(ARENA, 0), "uint8", (0,))
        return calls.GatherNd(data=integers, indices=integers, y=nothing, slice=0, **shape)
    (size,) = axes_of(i)
    if hasattr(i, "has_ignore"):
        return index_check(integers, 0, size, i.ignore_index if i.has_ignore else None, 1)
    return index_check(integers, -size, size, None, 0)


class Bounds:
    """Which storages have places: integers from 0 to less than a bound."""

    def __init__(self) -> None:
        self._bounds: dict[Storage, float] = {}

    def are_inside(self, i: Instruction, indices: Buf) -> bool:
        """Return whether all these indices of a call are in range, whatever the values of its feeds."""
        return self._bounds.get(indices.storage, inf) <= min(axes_of(i))

    def note(self, i: Any) -> None:
        """Note what a call makes: places of extremes, and what one operand holds, as integers."""
        is_move = isinstance(i, calls.Copy) or (isinstance(i, ElementwiseCall) and _is_operand(*i.roots))
        bound = inf
        if is_move:
            bound = self._bounds.get(i.reads[0].storage, inf)
        elif isinstance(i, (calls.ArgReduce, calls.Topk)):
            bound = i.n
        for b in i.writes:
            is_all = b.dtype in ("int64", "int32") and b.nbytes == b.storage.nbytes
            self._bounds[b.storage] = bound if is_all else inf


def _is_operand(root: Expr, *others: Expr) -> bool:
    return not others and (root.op == "input" or (root.op == "cast" and root.args[0].op == "input"))
