"""Matrices that lie transposed, as torch's exporter stores the weights of linear layers."""

from __future__ import annotations

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
    """Fill a buffer with the transpose of a matrix, of which some rows at a time are read."""
    (rows, width), size = tensor.shape, ITEM_SIZE[tensor.dtype]
    target = elements(out, size)
    n_rows = max(1, LONG_READ // max(1, width * size)) if isinstance(tensor, RemoteTensor) else rows
    for start in range(0, rows, n_rows):
        count = min(n_rows, rows - start)
        is_part = isinstance(tensor, RemoteTensor)
        data = tensor.read(start * width * size, count * width * size) if is_part else tensor.data
        strip = elements(data, size)
        for j in range(width):
            target[j * rows + start : j * rows + start + count] = strip[j::width]
