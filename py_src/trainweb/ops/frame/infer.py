"""Types, and the values of shape arithmetic, from node to node."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from trainweb.errors import ModelError, TrainwebError
from trainweb.ir.dims import UndecidedError, static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import NIBBLES, STRUCT_FORMAT, Tensor
from trainweb.ops.frame.op import Op

FOLDED_INTEGERS, FOLDED_FLOATS = 4096, 64
"""Constants of at most this many elements are known by value at compile time: shapes, axes, scalars."""


def folded_elements(dtype: str) -> int:
    """Return the largest number of elements of a tensor whose value is known at compile time."""
    if dtype not in STRUCT_FORMAT:
        return 0
    return FOLDED_FLOATS if dtype.startswith("float") else FOLDED_INTEGERS


def initializer_type(tensor: Tensor) -> TensorType:
    """Type of a constant, with its value where it is small."""
    return TensorType(tensor.dtype, tensor.shape, tensor.values() if may_decide(tensor) else None)


def may_decide(tensor: Tensor | TensorType) -> bool:
    """Return whether a tensor has few enough elements for its values to be known at compile time."""
    return tensor.size <= folded_elements(tensor.dtype)


def infer_outputs(op: Op, types: Mapping[str, TensorType]) -> tuple[list[TensorType], bool]:
    """Output types of a node by the types known so far, and whether output 0 is known by value.

    Raise ModelError for an input that nothing defines, and for inputs that do not fit. Raise UnsupportedError if the
    operator's work depends on an unknown size, or on unknown data.
    """
    try:
        inputs = op.complete([types[name] if name else None for name in op.node.inputs])
    except KeyError as e:
        raise ModelError(f"{op.node} reads {e.args[0]!r}, which nothing defines.") from None
    op.types = types
    for t in inputs:
        if t is not None and t.dtype in NIBBLES and not op.takes_nibbles:
            raise op.unsupported(f"dtype {t.dtype}")
    try:
        outputs = op.infer(*inputs)
    except TrainwebError:
        raise
    except UndecidedError as e:
        raise op.unsupported(f"what depends on a size that is only known at run time ({e})") from e
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError) as e:
        raise ModelError(f"{op.node}: its inputs do not fit ({e}).") from e
    results = [outputs] if isinstance(outputs, TensorType) else list(outputs)
    most = max(len(results), op.n_outputs)
    if len(op.node.outputs) > most:
        named = [k for k, name in enumerate(op.node.outputs, 1) if name]
        if named and named[-1] > most:
            raise op.error(f"{named[-1]} outputs are named; {op.op_type()} has {most}.")
    value = _evaluate(op, inputs, results[0])
    if value is not None:
        results[0] = TensorType(results[0].dtype, results[0].shape, value)
    return results, value is not None


def _evaluate(op: Op, inputs: list[TensorType | None], result: TensorType) -> tuple[Any, ...] | None:
    """Value of output 0 where all inputs' values are known and it is small."""
    if result.value is not None:
        return result.value
    for t in inputs:
        if t is not None and t.value is None:
            return None
    if type(op).evaluate is Op.evaluate or not static(result.size) or result.size > FOLDED_INTEGERS:
        return None
    try:
        value = op.evaluate(*inputs)
    except UndecidedError:
        return None
    if value is not None and result.dtype == "float32" and static(*value):
        # As a kernel would have rounded it.
        return struct.unpack(f"<{len(value)}f", struct.pack(f"<{len(value)}f", *value))
    return value
