"""TensorProto -> `Tensor`: every encoding of the elements becomes little-endian bytes."""

from __future__ import annotations

import sys
from array import array
from math import prod
from typing import Any

from ..errors import LimitError, ModelError
from .checks import Limits, check_data, check_dtype, check_name, check_shape, check_size
from .external_data import ExternalData, parse_location
from .graph import ITEM_SIZE, NIBBLES, Tensor, data_bytes
from .remote import LOCATION, RemoteRange, tensor_of
from .weights import Absent, Weights

EXTERNAL = 1
"""`TensorProto.DataLocation`."""

TYPED_FIELD = {
    "float32": ("float_data", "f"),
    "float64": ("double_data", "d"),
    "int64": ("int64_data", "q"),
    "uint64": ("uint64_data", "Q"),
    "uint32": ("uint64_data", "I"),
    "int32": ("int32_data", "i"),
    "int16": ("int32_data", "h"),
    "uint16": ("int32_data", "H"),
    "int8": ("int32_data", "b"),
    "uint8": ("int32_data", "B"),
    "bool": ("int32_data", "B"),
    "float16": ("int32_data", "H"),
    "bfloat16": ("int32_data", "H"),
    **dict.fromkeys(NIBBLES, ("int32_data", "B")),
}
"""Field of a TensorProto with typed elements, and the `array` code; half floats are bit patterns.

Two numbers of 4 bits are one element.
"""

TYPED_FIELDS = (
    "float_data",
    "double_data",
    "int64_data",
    "uint64_data",
    "int32_data",
    "string_data",
)


class TensorReader:
    """Converts tensors and counts their bytes; `absent` returns noted parameters that have no initializers."""

    def __init__(self, limits: Limits, external: ExternalData) -> None:
        self._limits = limits
        self._external = external
        self._bytes = 0
        self.absent: Absent = list

    def read(self, proto: Any, what: str = "") -> Tensor:
        """A `Tensor` of a TensorProto. `what` names it if it has no name."""
        name = check_name(proto.name, f"the name of {what or 'a tensor'}")
        what = what or f"tensor {name!r}"
        dtype = check_dtype(proto.data_type, what)
        shape = check_shape(proto.dims, what)
        if proto.HasField("segment"):
            raise ModelError(f"{what} is one segment of a tensor: such parts are not supported by ONNX itself")
        weights = self._weights_of(proto, shape, what)
        if weights is not None:
            self.account(dtype, shape, what)
            return weights.tensor(name, dtype, shape, self.absent)
        if proto.data_location == EXTERNAL:
            self.account(dtype, shape, what)
            data: bytes | memoryview | RemoteRange = self._external_data(proto, dtype, shape, what)
            check_data(dtype, shape, data, what)
        else:
            data = self._inline_data(proto, dtype, what)
            check_data(dtype, shape, data, what)
            self.account(dtype, shape, what)
        return tensor_of(name, dtype, shape, data)

    def _weights_of(self, proto: Any, shape: tuple[int, ...], what: str) -> Weights | None:
        """The files of weights that have the data of a tensor, which is not in the model; None: it is."""
        if proto.data_location == EXTERNAL:
            location = parse_location(proto.external_data, what)
            is_whole = location.length is None and not location.offset
            return self._external.weights(location.name, what) if is_whole else None
        weights = self._external.safetensors
        is_empty = weights is not None and prod(shape) > 0 and not proto.raw_data and not _typed_fields(proto)
        return weights if is_empty else None

    def account(self, dtype: str, shape: tuple[int, ...], what: str) -> None:
        """Add a tensor to the bytes of the model, before they are allocated."""
        self._bytes += data_bytes(dtype, prod(shape))
        if self._bytes > self._limits.arena_bytes:
            raise LimitError(
                f"{what} of {dtype} {list(shape)} makes the constants of the model exceed "
                f"the limit of {self._limits.arena_bytes} bytes"
            )

    def _external_data(
        self, proto: Any, dtype: str, shape: tuple[int, ...], what: str
    ) -> bytes | memoryview | RemoteRange:
        if _typed_fields(proto) or proto.raw_data:
            raise ModelError(f"{what} has both external data and data of its own")
        location = parse_location(proto.external_data, what)
        if location.name == LOCATION and location.length is not None:
            check_size(dtype, shape, location.length, what)
        return self._external.read(location, data_bytes(dtype, prod(shape)), what)

    def _inline_data(self, proto: Any, dtype: str, what: str) -> bytes:
        if len(proto.external_data):
            raise ModelError(f"{what} has external data, but its data location does not say so")
        typed = _typed_fields(proto)
        raw = proto.HasField("raw_data")
        if raw and typed:
            raise ModelError(f"{what} has both raw_data and {typed[0]}")
        if raw or not typed:
            data: bytes = proto.raw_data
            return data
        field, code = TYPED_FIELD[dtype]
        if typed != [field]:
            other = next(name for name in typed if name != field)
            raise ModelError(f"{what} is {dtype}, but has {other}")
        return _pack(code, getattr(proto, field), what)

    def sparse(self, proto: Any, what: str) -> Tensor:
        """The dense form of a SparseTensorProto."""
        values = self.read(proto.values, f"the values of {what}")
        indices = self.read(proto.indices, f"the indices of {what}")
        shape = check_shape(proto.dims, what)
        self.account(values.dtype, shape, what)
        count = values.size
        if not shape or len(values.shape) != 1 or indices.dtype != "int64":
            raise ModelError(f"{what} must have rank 1 or more, values of rank 1 and int64 indices")
        if indices.shape not in ((count,), (count, len(shape))):
            raise ModelError(
                f"{what} has indices of shape {list(indices.shape)}; [{count}] or [{count}, {len(shape)}] is expected"
            )
        positions = _positions(indices, shape, what)
        item = ITEM_SIZE[values.dtype]
        data = bytearray(prod(shape) * item)
        source = memoryview(values.data)
        last = -1
        for index, position in enumerate(positions):
            if not last < position < prod(shape):
                raise ModelError(f"{what} has index {position} at position {index}: not ascending, or outside")
            data[position * item : (position + 1) * item] = source[index * item : (index + 1) * item]
            last = position
        return Tensor(values.name, values.dtype, shape, bytes(data))


def _typed_fields(proto: Any) -> list[str]:
    return [name for name in TYPED_FIELDS if len(getattr(proto, name))]


def _positions(indices: Tensor, shape: tuple[int, ...], what: str) -> list[int]:
    """Flat positions from linear indices or coordinates."""
    flat = indices.values()
    if len(indices.shape) == 1:
        return list(flat)
    positions = []
    rank = len(shape)
    for start in range(0, len(flat), rank):
        position = 0
        for size, index in zip(shape, flat[start : start + rank], strict=True):
            if not 0 <= index < size:
                raise ModelError(f"{what} has coordinate {index} in a dimension of size {size}")
            position = position * size + index
        positions.append(position)
    return positions


def _pack(code: str, values: Any, what: str) -> bytes:
    try:
        packed = array(code, values)
    except OverflowError as error:
        raise ModelError(f"{what} has an element outside the range of its data type") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
