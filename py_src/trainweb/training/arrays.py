"""The edge to numpy: arrays to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainweb.errors import FeedError, LimitError
from trainweb.model.graph import Tensor

SUPPORTED = ("float32", "float64", "int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool")


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A writable copy."""
    array = np.frombuffer(tensor.data, dtype=np.dtype(tensor.dtype).newbyteorder("<")).reshape(tensor.shape)
    return array.astype(tensor.dtype)


def from_numpy(name: str, value: Any) -> Tensor:
    """`value` as little-endian row-major bytes."""
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise FeedError(f"{name!r} cannot be made an array: {e}") from e
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in SUPPORTED:
        raise FeedError(f"{name!r} has dtype {array.dtype}, which is not supported.")
    try:
        contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    except MemoryError as e:
        raise LimitError(
            f"{name!r} of shape {list(array.shape)} has {array.nbytes} bytes, more than there is room for."
        ) from e
    return Tensor(name, dtype, array.shape, contiguous.reshape(-1).view(np.uint8).data)


def as_feed(name: str, value: Any, dtype: str) -> Tensor:
    """A feed: lists and numbers are converted to `dtype`, arrays must have it."""
    if not isinstance(value, np.ndarray) and not isinstance(value, np.generic):
        try:
            value = np.asarray(value, dtype=dtype)
        except (ValueError, TypeError, OverflowError) as e:
            raise FeedError(f"Feed {name!r} cannot be made a {dtype} array: {e}") from e
    return from_numpy(name, value)
