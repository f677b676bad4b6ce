"""Einstein summation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from string import ascii_letters

from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import REDUCE_SUM
from trainweb.ir.shapes import TensorType, broadcast_shapes, contiguous_strides
from trainweb.ops.copies import strided_copy, transpose
from trainweb.ops.frame.evaluate import INT_BITS
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import MANY, Names, Op, Str
from trainweb.ops.matmul import lower_matmul
from trainweb.ops.reduce import reduce

ELLIPSIS = "..."
_DTYPES = ("float32", *INT_BITS)


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor and the label of each of its dims; no label twice."""

    labels: str
    buf: Buf

    def size(self, labels: str) -> int:
        """Elements of the dims of these labels."""
        return prod(self.buf.shape[self.labels.index(label)] for label in labels)


class Einsum(Op):
    """Sums of products over labelled dims; each pair of operands, from the left, is one batched matrix product.

    https://onnx.ai/onnx/operators/onnx__Einsum.html; labels as in numpy.einsum.
    """

    versions = (12, 28)
    attrs = {"equation": Str(required=True)}
    max_inputs = MANY
    differentiable = range(MANY)

    def labels(self, ranks: list[int]) -> tuple[list[str], str]:
        """Labels of every operand and of the output; the dims of an ellipsis get letters that are free."""
        left, arrow, right = self.equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if len(terms) != len(ranks):
            raise self.error(f"equation {self.equation!r} has {len(terms)} operands, the node {len(ranks)}.")
        used = {c for term in (*terms, right) for c in term.replace(ELLIPSIS, "")}
        if not used <= set(ascii_letters) or any(term.count(ELLIPSIS) > 1 for term in (*terms, right)):
            raise self.error(f"equation {self.equation!r} is malformed.")
        widths = [rank - len(term.replace(ELLIPSIS, "")) for term, rank in zip(terms, ranks, strict=True)]
        for term, rank, width in zip(terms, ranks, widths, strict=True):
            if width < 0 or (width and ELLIPSIS not in term):
                raise self.error(f"operand {term!r} of {self.equation!r} does not fit a tensor of rank {rank}.")
        free = "".join(sorted(set(ascii_letters) - used))[: max(widths)]
        if len(free) < max(widths):
            raise self.unsupported("more labels than letters")
        full = [t.replace(ELLIPSIS, free[len(free) - n :]) for t, n in zip(terms, widths, strict=True)]
        if arrow:
            out = right.replace(ELLIPSIS, free)
        else:
            joined = "".join(terms)
            out = free + "".join(sorted(c for c in used if joined.count(c) == 1))
        if len(set(out)) < len(out) or not set(out) <= {c for term in full for c in term}:
            raise self.error(f"the output of {self.equation!r} must name labels of the operands, each once.")
        return full, out

    def sizes(self, terms: list[str], shapes: list[tuple[int, ...]]) -> dict[str, int]:
        """Size of every label; only dims of an ellipsis broadcast."""
        sizes: dict[str, int] = {}
        for term, shape in zip(terms, shapes, strict=True):
            for label, dim in zip(term, shape, strict=True):
                known = sizes.setdefault(label, dim)
                try:
                    if label in self.equation and not equal(known, dim):
                        raise ValueError(label)
                    (sizes[label],) = broadcast_shapes((known,), (dim,))
                except ValueError:
                    message = f"label {label!r} of {self.equation!r} has sizes {known} and {dim}."
                    raise self.error(message) from None
        return sizes

    def infer(self, *inputs: TensorType | None) -> TensorType:
        types = [t for t in inputs if t is not None]
        dtype = types[0].dtype
        self.need_dtype(_DTYPES, dtype)
        if any(t.dtype != dtype for t in types):
            raise self.error(f"the inputs are {', '.join(t.dtype for t in types)}, not of one dtype.")
        terms, out = self.labels([t.rank for t in types])
        sizes = self.sizes(terms, [t.shape for t in types])
        return TensorType(dtype, tuple(sizes[label] for label in out))

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf) -> None:
        y = outs[0]
        if not y.size:
            return
        labels, out = self.labels([len(x.shape) for x in ins])
        sizes = self.sizes(labels, [x.shape for x in ins])
        if 0 in sizes.values():
            b.fill(y, 0.0)
            return
        terms = [self._distinct(b, term, x, sizes) for term, x in zip(labels, ins, strict=True)]
        target = _Term(out, y)
        while len(terms) > 1:
            left, right, *rest = terms
            needed = set(out).union(*(t.labels for t in rest))
            terms = [self._contract(b, left, right, needed, None if rest else target), *rest]
        result = self._sum_out(b, terms[0], set(out))
        if result is not target:
            self._order_into(b, target.buf, result, target.labels)

    def _distinct(self, b: Builder, labels: str, x: Buf, sizes: dict[str, int]) -> _Term:
        """The operand without dims that are broadcast, and with the diagonal of labels that stand twice."""
        strides = dict.fromkeys(labels, 0)
        for label, dim, step in zip(labels, x.shape, contiguous_strides(x.shape), strict=True):
            if dim == sizes[label]:
                strides[label] += step
            else:
                strides.pop(label, None)
        once, dims = "".join(strides), [sizes[label] for label in strides]
        if len(once) == len(labels) or prod(dims) == x.size:
            return _Term(once, x.view(dims))
        diagonal = b.temp(x.dtype, dims)
        strided_copy(b, diagonal, x, dims, contiguous_strides(dims), list(strides.values()))
        return _Term(once, diagonal)

    def _ordered(self, b: Builder, term: _Term, labels: str) -> _Term:
        """The same tensor with its dims in another order."""
        if term.labels == labels:
            return term
        moved = b.temp(term.buf.dtype, [term.size(label) for label in labels])
        self._order_into(b, moved, term, labels)
        return _Term(labels, moved)

    def _order_into(self, b: Builder, y: Buf, term: _Term, labels: str) -> None:
        transpose(b, y, term.buf, [term.labels.index(label) for label in labels])

    def _sum_out(self, b: Builder, term: _Term, needed: set[str]) -> _Term:
        """The sum over the labels that nobody needs any more."""
        dropped = "".join(label for label in term.labels if label not in needed)
        if not dropped:
            return term
        labels = "".join(label for label in term.labels if label in needed)
        y = b.temp(term.buf.dtype, [term.size(label) for label in labels])
        reduce(b, y, term.buf, [term.labels.index(label) for label in dropped], REDUCE_SUM)
        return _Term(labels, y)

    def _contract(self, b: Builder, left: _Term, right: _Term, needed: set[str], target: _Term | None) -> _Term:
        """Product of two operands, summed over the labels that both have and nobody else needs."""
        left, right = (self._sum_out(b, t, needed | set(other.labels)) for t, other in ((left, right), (right, left)))
        common = [label for label in left.labels if label in right.labels]
        batch = "".join(label for label in common if label in needed)
        inner = "".join(label for label in common if label not in needed)
        rows = "".join(label for label in left.labels if label not in common)
        columns = "".join(label for label in right.labels if label not in common)
        left = self._ordered(b, left, batch + rows + inner)
        right = self._ordered(b, right, batch + inner + columns)
        labels, lead = batch + rows + columns, left.buf.shape[: len(batch)]
        m, k, n = left.size(rows), left.size(inner), right.size(columns)
        result = target if target is not None and target.labels == labels else None
        if result is None:
            dims = [t.size(label) for t, part in ((left, batch + rows), (right, columns)) for label in part]
            result = _Term(labels, b.temp(left.buf.dtype, dims))
        y = result.buf.view((*lead, m, n))
        if inner and y.dtype == "float32":
            lower_matmul(b, y, left.buf.view((*lead, m, k)), right.buf.view((*lead, k, n)))
        elif inner:
            # No kernel multiplies matrices of integers: all products first, then their sums.
            products = b.temp(y.dtype, (*lead, m, k, n))
            pair = [left.buf.view((*lead, m, k, 1)), right.buf.view((*lead, 1, k, n))]
            b.elementwise([products], pair, lambda e, p, q: e.mul(p, q))
            reduce(b, y, products, [len(lead) + 1], REDUCE_SUM)
        else:
            pair = [left.buf.view((*lead, m, 1)), right.buf.view((*lead, 1, n))]
            b.elementwise([y], pair, lambda e, p, q: e.mul(p, q))
        return result

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        terms, out = self.labels([g.rank(x) for x in ins])
        shapes = [g.shape(x) for x in ins]
        broadcast: list[list[int]] = [[] for _ in ins]
        for label in sorted({c for term in terms for c in term}):
            dims = {shape[term.index(label)] for term, shape in zip(terms, shapes, strict=True) if label in term}
            if len(dims - {1}) > 1:
                sizes = " and ".join(map(str, sorted(dims, key=str)))
                raise self.unsupported(f"the gradient of an operand that may broadcast: sizes {sizes}")
            for term, shape, axes in zip(terms, shapes, broadcast, strict=True):
                if len(dims) > 1 and label in term and shape[term.index(label)] == 1:
                    axes.append(term.index(label))
        # An operand that broadcasts is one without these dims.
        terms = ["".join(c for i, c in enumerate(t) if i not in axes) for t, axes in zip(terms, broadcast, strict=True)]
        operands = [g.squeeze(x, sorted(axes)) if axes else x for x, axes in zip(ins, broadcast, strict=True)]
        gradients: list[str | None] = []
        for k, (x, axes) in enumerate(zip(ins, broadcast, strict=True)):
            dx = self._operand_gradient(g, operands, terms, out, k, douts[0]) if g.wants(x) else None
            gradients.append(g.unsqueeze(dx, sorted(axes)) if dx and axes else dx)
        return gradients

    def _operand_gradient(self, g: GradientBuilder, ins: list[str], terms: list[str], out: str, k: int, dy: str) -> str:
        """The output's gradient times the other operands, summed over what operand k does not have."""
        mine, diagonals = self._parted(terms, out, k)
        others = [i for i in range(len(ins)) if i != k]
        known = set(out).union(*(terms[i] for i in others), *diagonals)
        factors = [out, *(terms[i] for i in others), *diagonals]
        equation = ",".join(factors) + "->" + "".join(c for c in mine if c in known)
        ones = [self._identity(g, ins[k], terms[k].index(pair[0])) for pair in diagonals]
        dx: str = g.op("Einsum", [dy, *(ins[i] for i in others), *ones], equation=equation)
        missing = [axis for axis, label in enumerate(mine) if label not in known]
        return g.op("Expand", [g.unsqueeze(dx, missing), g.shape_of(ins[k])]) if missing else dx

    def _parted(self, terms: list[str], out: str, k: int) -> tuple[str, list[str]]:
        """The labels of operand k, each once, and pairs that are equal on its diagonals: (iij) is (iaj) where a = i."""
        free = iter(sorted(set(ascii_letters) - set(out).union(*terms)))
        mine, diagonals = "", []
        for label in terms[k]:
            mine += label if label not in mine else next(free)
            if mine[-1] != label:
                diagonals.append(label + mine[-1])
        return mine, diagonals

    def _identity(self, g: GradientBuilder, x: str, axis: int) -> str:
        size = g.size_of(x, axis)
        return g.op("EyeLike", [g.op("ConstantOfShape", [g.op("Concat", [size, size], axis=0)])])
