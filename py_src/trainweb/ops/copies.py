"""Copies between strided arrangements, to which operators that move elements are lowered."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import KERNEL_RANK
from trainweb.ir.shapes import contiguous_strides, merged_dims
from trainweb.model.graph import ITEM_SIZE


def padded(values: Sequence[int], filler: int, b: Builder) -> tuple[int, ...]:
    """`values` as the kernels take them: of rank 8, filled up in front."""
    if len(values) > KERNEL_RANK:
        raise UnsupportedError(f"{b.node}: more than {KERNEL_RANK} dimensions are not supported.")
    return (filler,) * (KERNEL_RANK - len(values)) + tuple(values)


def strided_copy(
    b: Builder,
    out: Buf,
    source: Buf,
    dims: Sequence[int],
    out_strides: Sequence[int],
    source_strides: Sequence[int],
    *,
    out_start: int = 0,
    source_start: int = 0,
) -> None:
    """out[out_start + i . out_strides] = source[source_start + i . source_strides] for every i in `dims`."""
    if prod(dims) == 0:
        return
    sizes, to, start = merged_dims(dims, out_strides, source_strides)
    if to in ([], [1]) and start in ([], [1]):
        count = (prod(sizes),)
        b.copy(out.view(count, out_start), source.view(count, source_start))
        return
    call = calls.StridedCopy(
        src=source,
        dst=out,
        size=ITEM_SIZE[out.dtype],
        dims=padded(sizes, 1, b),
        src_strides=padded(start, 0, b),
        dst_strides=padded(to, 0, b),
        src_offset=source_start,
        dst_offset=out_start,
    )
    b.emit(call)


def transpose(b: Builder, out: Buf, x: Buf, perm: Sequence[int]) -> None:
    """Dims of `x` in the order `perm`."""
    steps = contiguous_strides(x.shape)
    dims = [x.shape[k] for k in perm]
    strided_copy(b, out, x, dims, contiguous_strides(dims), [steps[k] for k in perm])


def copy_axis(b: Builder, out: Buf, x: Buf, axis: int, size: int, *, out_start: int = 0, source_start: int = 0) -> None:
    """Copy `size` slices along `axis`, from position `source_start` of x to `out_start` of out."""
    inner = prod(x.shape[axis + 1 :])
    strided_copy(
        b,
        out,
        x,
        (prod(x.shape[:axis]), size * inner),
        (out.shape[axis] * inner, 1),
        (x.shape[axis] * inner, 1),
        out_start=out_start * inner,
        source_start=source_start * inner,
    )


def gather_axis(b: Builder, out: Buf, x: Buf, indices: Buf, axis: int) -> None:
    """Slices of `x` along `axis`, picked by `indices`."""
    call = calls.Gather(
        data=x,
        indices=indices,
        y=out,
        outer=prod(x.shape[:axis]),
        dim=x.shape[axis],
        n=indices.size,
        inner=prod(x.shape[axis + 1 :]) * ITEM_SIZE[x.dtype],
        index_size=ITEM_SIZE[indices.dtype],
    )
    b.emit(call)
