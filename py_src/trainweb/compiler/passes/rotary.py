"""Rotary position embedding as one call: x cos + concat(-x2, x1) sin, or both halves apart, and the gradients.

Exporters write it as slices, negations, products and joins. The pass follows both halves of a result back through these
to products of columns, and compares the products with the formula. See Su et al., "RoFormer" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from trainweb.compiler.context import Context
from trainweb.compiler.passes.strided import FLOAT, Move
from trainweb.ir.calls import Rotary, StridedCopy
from trainweb.ir.expr import Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA
from trainweb.ir.program import POSITION, Program, Refusal
from trainweb.ir.shapes import contiguous_strides

Strides = tuple[int, ...]


def fuse_rotary(program: Program, _: Context) -> None:
    """Replace rotary position embedding and its gradient by `rotary_f32`, which reads and writes transposed tensors."""
    for i in program:
        if isinstance(i, ElementwiseCall):
            if i.roots[0].op == "add" and not i.reduction:
                _Rotation(program, i, i.outs[0]).fuse()
        elif isinstance(i, StridedCopy):
            columns = _columns(i)
            if columns and columns[1] == columns[2] == i.dst.shape[-1] - columns[2]:
                _Rotation(program, i, i.dst).fuse()


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a tensor, from those at byte `start` of a storage on; strides of three dims of rows, in elements."""

    storage: Storage
    start: int
    strides: Strides

    def after(self, n: int) -> _Columns:
        """The columns `n` elements further on."""
        return replace(self, start=self.start + FLOAT * n)

    def as_buf(self, dims: Strides, width: int) -> Buf:
        """The bytes from the first to the last element."""
        reach = sum((d - 1) * s for d, s in zip(dims, self.strides, strict=True))
        return Buf(self.storage, "float32", (reach + width,), None, self.start)


@dataclass(frozen=True, slots=True)
class _Term:
    """The product of two tensors' columns, negative or not."""

    negative: bool
    factors: tuple[_Columns, _Columns]

    def by(self, x: _Columns) -> _Columns | None:
        """The factor beside `x`, or None."""
        a, b = self.factors
        return b if a == x else a if b == x else None


@dataclass(frozen=True, slots=True)
class _Found:
    """A rotation of x; the first and the second half of each."""

    x: _Columns
    cos: tuple[_Columns, _Columns]
    sin: tuple[_Columns, _Columns]
    back: bool


class _Rotation:
    """A search for the rotation that makes `y`, which `last` completes."""

    def __init__(self, program: Program, last: ElementwiseCall | StridedCopy, y: Buf) -> None:
        self.program, self.last, self.y = program, last, y
        self.half = y.shape[-1] // 2 if y.shape else 0
        self.dims: Strides = (1,) * (4 - len(y.shape)) + y.shape[:-1]
        self.traced: dict[Instruction, None] = {}
        """Instructions that made a part of `y`."""

    def fuse(self) -> None:
        """Put one call in the place of `last`, if `y` is a rotation."""
        y, half = self.y, self.half
        if y.dtype != "float32" or not half or y.shape[-1] % 2 or len(self.dims) != 3 or not y.size:
            return
        low, high = (self._terms(y, start, half, self.last.position + 1) for start in (0, half))
        match = next(self._matches(low, high), None) if low and high else None
        why = "it turns other columns than both halves of a row" if not match and low and self._turns(low) else ""
        if match is not None and not self._is_alone():
            why = "another node reads or writes a part of the result"
        if why:
            self.program.refusals.append(Refusal("rotary embedding", self.last.node, why))
        if match is None or why:
            return
        x, target = self._source(match.x), self._target()
        call = Rotary(
            x=x.as_buf(self.dims, 2 * half),
            cos=match.cos[0].as_buf(self.dims, self._distance(match.cos) + half),
            sin=match.sin[0].as_buf(self.dims, self._distance(match.sin) + half),
            y=target.as_buf(self.dims, 2 * half),
            dims=self.dims,
            half=half,
            x_strides=x.strides,
            cos_strides=match.cos[0].strides,
            sin_strides=match.sin[0].strides,
            y_strides=target.strides,
            cos_half=self._distance(match.cos),
            sin_half=self._distance(match.sin),
            back=int(match.back),
        )
        builder = self.program.build(self.last.node)
        builder.emit(call)
        for w in self.program.writers(y.storage):
            if w is not self.last:
                self.program.remove(w)
        self.program.replace(self.last, *builder.instructions)
        self._drop_unread()

    # Sources of columns.

    def _terms(self, b: Buf, start: int, width: int, until: int) -> list[_Term] | None:
        """The products whose sum some columns of `b` are at position `until`; None if they are anything else."""
        maker = self._maker(b, start, width, until)
        if isinstance(maker, ElementwiseCall):
            return self._sum(maker.roots[0], maker, start, width)
        return None if maker is None else self._terms(maker[0], maker[1], width, maker[2])

    def _maker(self, b: Buf, start: int, width: int, until: int) -> ElementwiseCall | tuple[Buf, int, int] | None:
        """The call that computed some columns, or their place in the tensor that they were copied from, and when."""
        writers = self.program.writers(b.storage)
        if not writers or writers[-1].position >= until:
            return None
        for w in reversed(writers):
            if isinstance(w, ElementwiseCall):
                if len(w.outs) > 1 or not w.outs[0].same_place(b) or w.shape != b.shape:
                    return None
                self.traced[w] = None
                return w
            columns = _columns(w) if isinstance(w, StridedCopy) and w.dst.same_place(b) else None
            if columns is None or not isinstance(w, StridedCopy) or w.dst.shape[-1] != b.shape[-1]:
                return None
            source, target, count = columns
            self.traced[w] = None
            if target <= start and start + width <= target + count:
                rows = w.src.view((*b.shape[:-1], w.src.shape[-1]))
                return rows, source + start - target, w.position
            if start < target + count and target < start + width:
                return None
        return None

    def _sum(self, x: Expr, call: ElementwiseCall, start: int, width: int) -> list[_Term] | None:
        """The products whose sum an expression of a call is."""
        if x.op == "const":
            return [] if x.imm == 0 else None
        if x.op == "input":
            b = call.ins[int(x.imm or 0)]
            return self._terms(b, start, width, call.position) if b.shape == call.shape else None
        if x.op == "mul":
            first, second = (self._factor(a, call, start, width) for a in x.args)
            return [_Term(first[0] != second[0], (first[1], second[1]))] if first and second else None
        if x.op not in ("add", "sub", "neg"):
            return None
        terms: list[_Term] = []
        for k, a in enumerate(x.args):
            more = self._sum(a, call, start, width)
            if more is None:
                return None
            turns = x.op == "neg" or (x.op == "sub" and k == 1)
            terms += [replace(t, negative=t.negative != turns) for t in more]
        return terms

    def _factor(self, x: Expr, call: ElementwiseCall, start: int, width: int) -> tuple[bool, _Columns] | None:
        """The sign of a factor, and its columns, which are the same at `last`."""
        negative = False
        while True:
            while x.op == "neg":
                x, negative = x.args[0], not negative
            if x.op != "input":
                return None
            b, until = call.ins[int(x.imm or 0)], call.position
            if b.shape[-1:] != call.shape[-1:]:
                return None
            maker = self._maker(b, start, width, until)
            while isinstance(maker, tuple):
                b, start, until = maker
                maker = self._maker(b, start, width, until)
            if not isinstance(maker, ElementwiseCall) or maker.roots[0].op != "neg":
                break
            x, call = maker.roots[0], maker
        if any(until <= w.position <= self.last.position for w in self.program.writers(b.storage)):
            return None
        shape = (1,) * (4 - len(b.shape)) + b.shape
        steps = contiguous_strides(shape)
        strides = tuple(0 if d == 1 else s for d, s in zip(shape[:-1], steps[:-1], strict=True))
        fits = len(shape) == 4 and all(d in (1, n) for d, n in zip(shape[:-1], self.dims, strict=True))
        return (negative, _Columns(b.storage, b.shift + FLOAT * start, strides)) if fits else None

    # The formula.

    def _matches(self, low: list[_Term], high: list[_Term]) -> Iterator[_Found]:
        """The ways in which two sums of two products are the halves of a rotation."""
        if len(low) != 2 or len(high) != 2:
            return
        for (a, b), (c, d) in product((low, low[::-1]), (high, high[::-1])):
            if a.negative or c.negative or b.negative == d.negative:
                continue
            for x in a.factors:
                other = x.after(self.half)
                cos1, cos2, sin1, sin2 = a.by(x), c.by(other), b.by(other), d.by(x)
                if cos1 and cos2 and sin1 and sin2:
                    sin = (sin1, sin2) if b.negative else (sin2, sin1)
                    if all(self._distance(table) in (0, self.half) for table in ((cos1, cos2), sin)):
                        yield _Found(x, (cos1, cos2), sin, back=d.negative)

    @staticmethod
    def _distance(table: tuple[_Columns, _Columns]) -> int:
        """Elements from the first to the second half of a table; -1 if they do not belong together."""
        first, second = table
        if first.storage is not second.storage or first.strides != second.strides:
            return -1
        return (second.start - first.start) // FLOAT

    def _turns(self, terms: list[_Term]) -> bool:
        """Return whether a factor is made of another by copies, and by negations of some columns."""
        factors = {f.storage for term in terms for f in term.factors}
        for s in factors:
            sources, is_negated = [s], False
            for source in sources:
                for w in self.program.writers(source):
                    turn = isinstance(w, ElementwiseCall) and w.roots[0].op == "neg"
                    if turn or isinstance(w, StridedCopy):
                        is_negated = is_negated or turn
                        sources += [b.storage for b in w.reads if b.storage not in sources]
            if is_negated and not factors.isdisjoint(sources[1:]):
                return True
        return False

    def _is_alone(self) -> bool:
        """Return whether nothing sees `y` before it is complete. Its factors lie elsewhere: `last` would write them."""
        s, program = self.y.storage, self.program
        others = [w for w in program.writers(s) if w not in self.traced]
        seen = any(r.position <= self.last.position for r in program.readers(s))
        return not others and not seen and self.last in self.traced

    # Transposed tensors.

    def _source(self, x: _Columns) -> _Columns:
        """The columns of `x`; if `x` is a transposed copy, the columns of its source."""
        writers = self.program.writers(x.storage)
        if len(writers) != 1 or not isinstance(before := writers[0], StridedCopy):
            return x
        move = Move.into(before)
        if move is None or self.program.is_written_from(move.sparse.storage, before, self.last):
            return x
        self.traced[before] = None
        return self._moved(move, x) or x

    def _target(self) -> _Columns:
        """The columns of `y`; if only a transposing copy reads `y`, the columns of its target."""
        y = _Columns(self.y.storage, self.y.shift, contiguous_strides((*self.dims, 2 * self.half))[:3])
        readers = self.program.readers(y.storage)
        if len(readers) != 1 or not isinstance(copy := readers[0], StridedCopy):
            return y
        move, target = Move.out_of(copy), copy.dst.storage
        if move is None or not self.program.is_temporary(y.storage) or target.segment != ARENA:
            return y
        if any(i.position < copy.position for i in self.program.users(target)):
            return y
        moved = self._moved(move, y)
        if moved is not None:
            self.program.remove(copy)
        return moved or y

    def _moved(self, move: Move, c: _Columns) -> _Columns | None:
        """Columns of a tensor in the tensor that it is a copy of or that is a copy of it."""
        b = c.as_buf(self.dims, 2 * self.half)
        strides = move.strides_of((*zip(self.dims, c.strides, strict=True), (2 * self.half, 1)), b)
        if strides is None or strides[3] != 1:
            return None
        place = move.place(b)
        return _Columns(place.storage, place.shift, tuple(strides[:3]))

    def _drop_unread(self) -> None:
        """Remove the instructions whose results only the rotation read."""
        for i in sorted((i for i in self.traced if i.position >= 0), key=POSITION, reverse=True):
            if all(self.program.is_temporary(b.storage) and not self.program.readers(b.storage) for b in i.writes):
                self.program.remove(i)


def _columns(copy: StridedCopy) -> tuple[int, int, int] | None:
    """The first column in the source and in the target, and their number, if `copy` moves columns of all rows."""
    pitch, target = copy.src.shape[-1:], copy.dst.shape[-1:]
    if not pitch or not target or not copy.src.size or copy.dst.size * pitch[0] != copy.src.size * target[0]:
        return None
    rows = copy.src.size // pitch[0]
    count = prod(copy.dims) // rows
    loops = tuple(each for each in zip(copy.dims, copy.src_strides, copy.dst_strides, strict=True) if each[0] != 1)
    expected = tuple(each for each in ((rows, pitch[0], target[0]), (count, 1, 1)) if each[0] != 1)
    fits = copy.src_offset + count <= pitch[0] and copy.dst_offset + count <= target[0]
    return (copy.src_offset, copy.dst_offset, count) if loops == expected and fits else None
