"""The edge to numpy: arrays to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainweb.data.rows import numpy_dtype, plain_array
from trainweb.errors import FeedError, InvalidValueError, LimitError
from trainweb.model.graph import ITEM_SIZE, Tensor

SUPPORTED = tuple(ITEM_SIZE)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A writable copy."""
    dtype = numpy_dtype(tensor.dtype)
    little = dtype if dtype.itemsize == 1 or tensor.dtype == "bfloat16" else dtype.newbyteorder("<")
    return np.frombuffer(tensor.data, dtype=little).reshape(tensor.shape).astype(dtype)


class ReadOnlyCopy(np.ndarray):
    """A copy of a parameter's value: writing into it, which would change nothing else, raises and says how to write.

    Results computed from it are plain, writable arrays. So is ``copy()``, except for the name of its class.
    """

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_writable()
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        for out in (*(kwargs.get("out") or ()), *(inputs[:1] if method == "at" else ())):
            if isinstance(out, ReadOnlyCopy):
                out._check_writable()
        plain = {k: tuple(map(_plain, v)) if k == "out" else v for k, v in kwargs.items()}
        return getattr(ufunc, method)(*map(_plain, inputs), **plain)

    def fill(self, value: Any) -> None:
        """Raise as writing by index does; of a writable copy, fill it."""
        self._check_writable()
        super().fill(value)

    def _check_writable(self) -> None:
        if not self.flags.writeable:
            raise InvalidValueError(
                "This array is a copy of a parameter, which writing into it would not change. Use "
                "session.update_parameter(name, value), or assign the new value: state.parameters[name].data = value."
            )


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, ReadOnlyCopy) else value


def read_only(tensor: Tensor) -> ReadOnlyCopy:
    """A copy that nobody can write into by mistake."""
    array = to_numpy(tensor).view(ReadOnlyCopy)
    array.flags.writeable = False
    return array


def array_of(name: str, value: Any) -> np.ndarray:
    """Convert `value` to an array. Raise FeedError for lists of different lengths."""
    try:
        return plain_array(value)
    except ValueError as e:
        raise FeedError(f"{name!r} cannot be made an array: {e}") from e


def from_numpy(name: str, value: Any) -> Tensor:
    """`value` as little-endian row-major bytes."""
    array = array_of(name, value)
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in SUPPORTED:
        steps = " Steps make numbers of texts: call 'preprocess' with the 'preprocessing' of the training data first."
        raise FeedError(
            f"{name!r} has dtype {array.dtype}, which is not supported.{steps if array.dtype.kind in 'OSU' else ''}"
        )
    try:
        contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    except MemoryError as e:
        raise LimitError(
            f"{name!r} of shape {list(array.shape)} has {array.nbytes} bytes, more than there is room for."
        ) from e
    return Tensor(name, dtype, array.shape, contiguous.reshape(-1).view(np.uint8).data)


def parameter_bytes(buffer: Any) -> bytes | bytearray | memoryview:
    """The bytes of a buffer of parameters: float32, or bytes already."""
    array = np.frombuffer(buffer, np.uint8) if isinstance(buffer, (bytes, bytearray, memoryview)) else buffer
    array = array_of("buffer", array)
    if array.dtype.newbyteorder("=") not in (np.float32, np.uint8):
        raise TypeError(f"'buffer' must be float32, or bytes; got {array.dtype}.")
    return from_numpy("buffer", array).data


def as_feed(name: str, value: Any, dtype: str) -> Tensor:
    """A feed: lists and numbers are converted to `dtype`, arrays must have it."""
    if not isinstance(value, np.ndarray) and not isinstance(value, np.generic):
        try:
            value = plain_array(value, numpy_dtype(dtype))
        except (ValueError, TypeError, OverflowError) as e:
            raise FeedError(f"Feed {name!r} cannot be made a {dtype} array: {e}") from e
    return from_numpy(name, value)
