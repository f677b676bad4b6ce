"""Inputs that must be known at compile time, and the limits of what they may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trainweb.errors import LimitError
from trainweb.ir.dims import at_most, equal, static, table_of
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.ir.symbols import SymbolTable
from trainweb.model.graph import ITEM_SIZE
from trainweb.ops.frame.op import Op

MAX_TENSOR_BYTES = 2**31 - 1
"""Kernels count bytes in 32-bit signed integers."""


def type_of(b: Buf | None) -> TensorType | None:
    """Type of an input of `lower`, with the elements where they are known."""
    return None if b is None else TensorType(b.dtype, b.shape, b.value)


def numbers(op: Op, t: TensorType, what: str) -> tuple[Any, ...]:
    """The elements of a scalar or 1-D input."""
    if t.rank > 1:
        raise op.error(f"{what} has shape {list(t.shape)}; it must be 1-D.")
    if t.value is None:
        raise op.unsupported(f"{what} that is only known at run time")
    return t.value


def integers(op: Op, t: TensorType, what: str) -> tuple[int, ...]:
    """The elements of a scalar or 1-D integer input."""
    if t.dtype not in ("int64", "int32"):
        raise op.error(f"{what} is {t.dtype}; it must be int64.")
    return numbers(op, t, what)


def scalar(op: Op, t: TensorType, what: str) -> Any:
    """The element of a one-element input."""
    if not equal(t.size, 1):
        raise op.error(f"{what} has shape {list(t.shape)}; it must be one number.")
    return numbers(op, t, what)[0]


def checked(op: Op, dtype: str, shape: Sequence[int]) -> TensorType:
    """A type whose size is checked, as the numbers in a model can ask for any."""
    if not all(at_most(0, dim) for dim in shape):
        raise op.error(f"the result would have shape {list(shape)}.")
    if not at_most(prod(shape) * ITEM_SIZE[dtype], MAX_TENSOR_BYTES):
        raise LimitError(f"{op.node}: a {dtype} result of shape {list(shape)} is larger than {MAX_TENSOR_BYTES} bytes.")
    return TensorType(dtype, tuple(shape))


def unknown(op: Op, axis: int, *because: int) -> int:
    """Return a size of output 0 that the values behind `because` decide at run time: a new symbol."""
    table = table_of(because) or _table_of_graph(op)
    if table is None:
        raise op.unsupported("a size that is only known at run time")
    name = op.node.outputs[0]
    return table.symbol(f"{name}[{axis}]", f"dimension {axis} of {name!r}", low=0, named=False)


def _table_of_graph(op: Op) -> SymbolTable | None:
    table: SymbolTable | None = getattr(op.types, "table", None)
    return table


def is_known_later(op: Op, t: TensorType | None) -> bool:
    """Return whether feeds decide an input's value that is not known yet: the graph is made, not compiled."""
    return t is not None and t.value is None and _table_of_graph(op) is not None


def is_fed(t: TensorType | None) -> bool:
    """Return whether a feed decides some of these integers, so that symbols stand for them."""
    return t is not None and t.value is not None and not static(*t.value)


def is_decided_later(op: Op, t: TensorType) -> bool:
    """Return whether a feed decides these integers or their number, while the graph is made and not compiled."""
    if t.dtype not in ("int64", "int32"):
        raise op.error(f"integers that decide are {t.dtype}; they must be int64.")
    return is_fed(t) or is_known_later(op, t)


def by_unknown_axes(op: Op, rank: int, axes: TensorType) -> tuple[int, ...]:
    """The shape of output 0, of this rank, where a feed decides along which axes the operator works."""
    if rank < 0:
        raise op.error(f"{axes.size} axes are more than there are dimensions.")
    return tuple(unknown(op, k, *axes.value or ()) for k in range(rank))
