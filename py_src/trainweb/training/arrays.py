"""The edge to numpy: arrays to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainweb.errors import FeedError
from trainweb.model.graph import Tensor

SUPPORTED = ("float32", "float64", "int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool")


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A writable copy."""
    array = np.frombuffer(tensor.data, dtype=np.dtype(tensor.dtype).newbyteorder("<")).reshape(tensor.shape)
    return array.astype(tensor.dtype)


def from_numpy(name: str, value: Any) -> Tensor:
    """`value` as little-endian row-major bytes."""
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in SUPPORTED:
        raise FeedError(f"{name!r} has dtype {array.dtype}, which is not supported.")
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return Tensor(name, dtype, array.shape, contiguous.reshape(-1).view(np.uint8).data)


def as_feed(name: str, value: Any, dtype: str) -> Tensor:
    """A feed: lists and numbers are converted to `dtype`, arrays must have it."""
    if not isinstance(value, np.ndarray) and not isinstance(value, np.generic):
        try:
            value = np.asarray(value, dtype=dtype)
        except (ValueError, TypeError, OverflowError) as e:
            raise FeedError(f"Feed {name!r} cannot be made a {dtype} array: {e}") from e
    return from_numpy(name, value)
