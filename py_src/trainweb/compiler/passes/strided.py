"""Products read and write transposed, split and joined tensors where they lie, instead of copies of them.

A `gemm_f32` takes any strides. The copy of a Transpose, Split or Concat is left out if only products read its result,
or if a product makes its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Literal

from trainweb.compiler.context import Context
from trainweb.compiler.footprint import Part, footprint
from trainweb.ir.calls import Copy, Gemm, Reduce, StridedCopy
from trainweb.ir.instructions import Buf, Instruction
from trainweb.ir.layout import ARENA, GRADIENTS, REDUCE_SUM
from trainweb.ir.program import Program
from trainweb.ir.shapes import contiguous_strides
from trainweb.model.graph import ITEM_SIZE

FLOAT = ITEM_SIZE["float32"]

Side = Literal["a", "b", "c"]
"""An operand or the result of a product."""
Loops = tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]
"""(size, stride) of the two dims of the batch, of rows and of columns."""


def operand(call: Gemm, side: Side) -> tuple[Buf, Loops]:
    """The buffer of a product's operand, and the loops of the product over it."""
    if side == "a":
        place, strides, row, column = call.a, call.a_batch, (call.m, call.a_row), (call.k, call.a_col)
    elif side == "b":
        place, strides, row, column = call.b, call.b_batch, (call.k, call.b_row), (call.n, call.b_col)
    else:
        place, strides, row, column = call.c, call.c_batch, (call.m, call.c_row), (call.n, 1)
    return place, ((call.batch[0], strides[0]), (call.batch[1], strides[1]), row, column)


def _with_operand(call: Gemm, side: Side, place: Buf, strides: Sequence[int]) -> Gemm:
    """A copy of a product whose operand lies at `place` with these strides."""
    new = copy(call)
    outer, inner, row, column = strides
    if side == "a":
        new.a, new.a_batch, new.a_row, new.a_col = place, (outer, inner), row, column
    elif side == "b":
        new.b, new.b_batch, new.b_row, new.b_col = place, (outer, inner), row, column
    else:
        new.c, new.c_batch, new.c_row = place, (outer, inner), row
    return new


@dataclass(frozen=True, slots=True)
class Move:
    """A strided copy between a tensor that lies in order (`dense`) and one that does not (`sparse`)."""

    dense: Buf
    sparse: Buf
    dims: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @staticmethod
    def into(call: StridedCopy) -> Move | None:
        """The move of a copy whose target is complete and in order, or None."""
        to, source = (call.dst, call.dst_offset, call.dst_strides), (call.src, call.src_offset, call.src_strides)
        return Move._between(call, *to, *source)

    @staticmethod
    def out_of(call: StridedCopy) -> Move | None:
        """The move of a copy whose source is complete and in order, or None."""
        to, source = (call.dst, call.dst_offset, call.dst_strides), (call.src, call.src_offset, call.src_strides)
        return Move._between(call, *source, *to)

    @staticmethod
    def _between(
        call: StridedCopy,
        dense: Buf,
        start: int,
        order: Sequence[int],
        sparse: Buf,
        offset: int,
        strides: Sequence[int],
    ) -> Move | None:
        axes = [k for k, d in enumerate(call.dims) if d != 1]
        axes.sort(key=lambda k: -order[k])
        dims = tuple(call.dims[k] for k in axes)
        if start or prod(dims) != dense.size:
            return None
        if tuple(order[k] for k in axes) != contiguous_strides(dims):
            return None
        steps = tuple(strides[k] for k in axes)
        return None if any(s < 0 for s in steps) else Move(dense, sparse, dims, offset, steps)

    def strides_of(self, loops: Sequence[tuple[int, int]], b: Buf) -> list[int] | None:
        """Strides in the sparse tensor for loops over the dense one from where `b` starts, or None.

        Each loop must go along one dim, and all of them together must stay within every dim.
        """
        spans = contiguous_strides(self.dims)
        room = [dim - 1 - at for dim, at in zip(self.dims, self._coordinates(b), strict=True)]
        result = []
        for size, stride in loops:
            if size == 1 or stride == 0:
                result.append(0)
                continue
            for k, (span, target) in enumerate(zip(spans, self.strides, strict=True)):
                if stride % span == 0 and stride // span * (size - 1) <= room[k]:
                    room[k] -= stride // span * (size - 1)
                    result.append(stride // span * target)
                    break
            else:
                return None
        return result

    def _coordinates(self, b: Buf) -> list[int]:
        """Return the coordinates in the dense tensor at which its part `b` starts."""
        index = (b.shift - self.dense.shift) // FLOAT
        return [index // span % dim for span, dim in zip(contiguous_strides(self.dims), self.dims, strict=True)]

    def place(self, b: Buf) -> Buf:
        """Return the place of `b`, a part of the dense tensor from some element on, in the sparse tensor."""
        at = self.offset + sum(c * s for c, s in zip(self._coordinates(b), self.strides, strict=True))
        rest = self.sparse.size - at
        return Buf(self.sparse.storage, "float32", (rest,), None, self.sparse.shift + FLOAT * at, self.sparse.name)


def absorb_copies(program: Program, _: Context) -> None:
    """Let products read strided tensors directly, and drop copies that become unread."""
    for product in program:
        if isinstance(product, Gemm):
            call: Gemm | None = product
            while call is not None:
                call = _read_source(program, call, "a") or _read_source(program, call, "b")
    for reader in program:
        if isinstance(reader, StridedCopy):
            _sum_transposed(program, reader)
    for product in program:
        if isinstance(product, Gemm):
            call = product
            while call is not None:
                call = _write_target(program, call)
    copies = [i for i in program if isinstance(i, StridedCopy) and program.is_temporary(i.dst.storage)]
    for unread in reversed(copies):
        if not program.readers(unread.dst.storage):
            program.remove(unread)


def _read_source(program: Program, call: Gemm, side: Side) -> Gemm | None:
    """`call` that reads what the copy before it was made of; None where it cannot."""
    source, loops = operand(call, side)
    makers = program.writers(source.storage)
    if len(makers) != 1 or not isinstance(before := makers[0], StridedCopy) or before.position >= call.position:
        return None
    move = Move.into(before)
    if move is None or program.is_written_between(move.sparse.storage, before, call):
        return None
    strides = move.strides_of(loops, source)
    # Packing needs one direction in order.
    if strides is None or (1 not in strides[2:] and min(size for size, _ in loops[2:]) > 1):
        return None
    new = _with_operand(call, side, move.place(source), strides)
    program.replace(call, new)
    return new


def _write_target(program: Program, call: Gemm) -> Gemm | None:
    """`call` that stores its result where the only reader, a copy, would move it; None where it cannot."""
    c, loops = operand(call, "c")
    after = [r for r in program.readers(c.storage) if r.position > call.position]
    if call.accumulate or not program.is_temporary(c.storage) or program.writers(c.storage) != (call,):
        return None
    if len(after) != 1 or not isinstance(reader := after[0], StridedCopy):
        return None
    move = Move.out_of(reader)
    if move is None or not move.dense.same_place(Buf(c.storage, "float32", (c.size,), None, c.shift)):
        return None
    target, strides = move.sparse.storage, move.strides_of(loops, c)
    if strides is None or target.segment not in (ARENA, GRADIENTS):
        return None
    if any(r.position < reader.position for r in program.readers(target)):
        return None
    # A copy to the whole target has no effect if all of it is overwritten afterwards, such as one of the former state.
    before = [w for w in program.writers(target) if w.position < reader.position]
    fills = [w for w in before if isinstance(w, Copy) and move.dense.nbytes == target.nbytes == w.n]
    # Other copies and products may put parts beside this one; what overlaps it must come first.
    place = footprint(reader)
    for w in before:
        apart = isinstance(w, Part) and place.is_apart(footprint(w))
        if w.position > call.position and w not in fills and not apart:
            return None
    new = call
    if strides[3] != 1 and call.n > 1:
        if strides[2] != 1:
            return None
        new = _transposed(call)
        strides[2], strides[3] = strides[3], strides[2]
    new = _with_operand(new, "c", move.place(c), strides)
    for fill in fills:
        program.remove(fill)
    program.remove(reader)
    program.replace(call, new)
    return new


def summed_product(program: Program, y: Buf, reader: Instruction) -> tuple[Gemm, Reduce] | None:
    """The product and the sum of its matrices that make `y`, as of keys that heads share, if only `reader` reads it."""
    total = next(iter(program.writers(y.storage)), None)
    if not isinstance(total, Reduce) or total.op != REDUCE_SUM:
        return None
    product = next(iter(program.writers(total.x.storage)), None)
    if not isinstance(product, Gemm) or product.bias is not None or product.activation:
        return None
    steps = ((product, product.c, total.x, total), (total, total.y, y, reader))
    is_alone = all(
        made.same_place(read) and program.is_temporary(made.storage) and program.users(made.storage) == [maker, user]
        for maker, made, read, user in steps
    )
    return (product, total) if is_alone else None


def _sum_transposed(program: Program, reader: StridedCopy) -> None:
    """Let a product store transposed matrices if the copy `reader` transposes their sum."""
    summed, move = summed_product(program, reader.src, reader), Move.out_of(reader)
    if summed is None or move is None:
        return
    product, total = summed
    sizes, strides = zip(*operand(product, "c")[1], strict=True)
    m, n = sizes[2:]
    dense = contiguous_strides(sizes)
    is_dense = all(s == d for size, s, d in zip(sizes, strides, dense, strict=True) if size != 1)
    moved = move.strides_of(((total.outer, m * n), (m, n), (n, 1)), total.y)
    if not is_dense or total.inner != m * n or moved != [m * n if total.outer > 1 else 0, 1, m]:
        return
    new, last, place = _transposed(product), copy(total), move.place(total.y)
    new.c_row, last.y = m, Buf(place.storage, "float32", (total.y.size,), None, place.shift, place.name)
    program.replace(product, new)
    program.remove(total)
    program.replace(reader, last)


def _transposed(call: Gemm) -> Gemm:
    """The transposed product: c' = b' a'."""
    new = copy(call)
    new.m, new.n = call.n, call.m
    new.a, new.a_batch, new.a_row, new.a_col = call.b, call.b_batch, call.b_col, call.b_row
    new.b, new.b_batch, new.b_row, new.b_col = call.a, call.a_batch, call.a_col, call.a_row
    new.bias_row, new.bias_col = call.bias_col, call.bias_row
    return new
