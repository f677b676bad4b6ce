"""Matrices that lie transposed, as torch's exporter stores the weights of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from .floats import ConvertedTensor
from .graph import ITEM_SIZE, Tensor
from .lazy import LazyTensor
from .local import elements
from .remote import LONG_READ, RemoteTensor


def transposed(tensor: Tensor) -> Tensor:
    """The transpose of a matrix. Data that lies elsewhere stays there, and is transposed as it is read."""
    if isinstance(tensor, ConvertedTensor):
        return ConvertedTensor(transposed(tensor.source), tensor.dtype, tensor.notes)
    rows, width = tensor.shape
    if isinstance(tensor, LazyTensor):
        place = tensor.place and replace(tensor.place, rows=rows)
        return LazyTensor(
            tensor.name, tensor.dtype, (width, rows), partial(_transpose_into, tensor), place, tensor.notes
        )
    data = bytearray(tensor.nbytes)
    _transpose_into(tensor, memoryview(data))
    return Tensor(tensor.name, tensor.dtype, (width, rows), bytes(data), tensor.notes)


def _transpose_into(tensor: Tensor, out: memoryview) -> None:
    """Fill a buffer with the transpose of a matrix."""
    (rows, width), size = tensor.shape, ITEM_SIZE[tensor.dtype]
    target, start = elements(out, size), 0
    for strip in _strips(tensor):
        numbers = elements(strip, size)
        end = start + len(numbers) // max(1, width)
        for j in range(width):
            target[j * rows + start : j * rows + end] = numbers[j::width]
        start = end


def _strips(tensor: Tensor) -> Iterator[bytes | bytearray | memoryview]:
    """The data of a matrix, of a file some rows at a time."""
    row = tensor.shape[1] * ITEM_SIZE[tensor.dtype]
    if not isinstance(tensor, RemoteTensor) or not row:
        yield tensor.data
        return
    step = max(1, LONG_READ // row) * row
    for start in range(0, tensor.nbytes, step):
        yield tensor.read(start, min(step, tensor.nbytes - start))
