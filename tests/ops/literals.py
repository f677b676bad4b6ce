"""Small tensors written down as nested lists."""

from typing import Any

from trainweb.model.graph import Tensor


def literal(dtype: str, nested: Any) -> Tensor:
    """A tensor from a number or nested lists of numbers."""
    shape, flat = [], [nested]
    while flat and isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = [x for row in flat for x in row]
    return Tensor.of("", dtype, shape, flat)


def f32(nested: Any) -> Tensor:
    return literal("float32", nested)


def f16(nested: Any) -> Tensor:
    return literal("float16", nested)


def i64(nested: Any) -> Tensor:
    return literal("int64", nested)


def i32(nested: Any) -> Tensor:
    return literal("int32", nested)


def bools(nested: Any) -> Tensor:
    return literal("bool", nested)
