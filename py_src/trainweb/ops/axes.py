"""The fate of axes in an operator: which axis of an output is which of an input, and along which it mixes elements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TypeAlias

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.einsum import Einsum
from trainweb.ops.frame.op import Elementwise, Op
from trainweb.ops.reduce import Reduction
from trainweb.ops.softmax_loss import LogSoftmax, Softmax

Labels: TypeAlias = Sequence[Hashable]
Types: TypeAlias = Sequence[TensorType | None]


@dataclass(frozen=True, slots=True)
class Axes:
    """Labels of axes; equal labels are the same axis."""

    inputs: Sequence[Labels | None]
    """Labels of each input's axes; None for parameters such as a shape. Missing ones at the end are parameters."""
    output: Labels
    """Labels of the axes of every output."""
    mixed: frozenset[Hashable] = frozenset()
    """Labels of axes along which an output's element depends on several elements, or on its position."""
    shape_input: int | None = None
    """The input that holds the output's shape, if there is one."""
    moves: bool = False
    """True if the output is elements of the first input in another order or shape."""


def axes_of(op: Op, types: Types, result: TensorType) -> Axes | None:
    """The axes of a node with inputs of these types; None for an operator that is not known to keep axes apart."""
    if isinstance(op, Elementwise):
        distances = [None if t is None else range(t.rank, 0, -1) for t in types]
        return Axes(distances, range(result.rank, 0, -1))
    if op.is_view:
        return _view(types, result)
    if isinstance(op, Reduction):
        return _reduction(op, types)
    rule = _RULES.get((op.domain, op.op_type()))
    return None if rule is None else rule(op, types, result)


def _first(types: Types) -> TensorType:
    assert types[0] is not None
    return types[0]


def _view(types: Types, result: TensorType) -> Axes:
    """Axes of the same size with as many elements before them are the same."""
    shape = _first(types).shape
    before = dict[tuple[int, int], int]()
    for axis, place in enumerate(zip(accumulate((1, *shape), mul), shape, strict=False)):
        before[place] = axis
    places = zip(accumulate((1, *result.shape), mul), result.shape, strict=False)
    output = [before.get(place, ("new", k)) for k, place in enumerate(places)]
    return Axes([range(len(shape))], output, shape_input=1, moves=True)


def _reduction(op: Reduction, types: Types) -> Axes:
    rank = _first(types).rank
    gone = op.reduced_axes(types[1] if len(types) > 1 else None, rank)
    labels = [("reduced", k) if k in gone else k for k in range(rank) if op.keepdims or k not in gone]
    return Axes([range(rank)], labels, frozenset(gone))


def _product(a: Labels, b: Labels, rank_a: int, rank_b: int) -> Axes:
    """A matrix product; `a` and `b` label the last two axes."""

    def labels(rank: int, last: Labels) -> list[Hashable]:
        return [*range(rank, 2, -1), *last] if rank > 1 else ["k"]

    rows = ["m"] * (rank_a > 1) + ["n"] * (rank_b > 1)
    return Axes([labels(rank_a, a), labels(rank_b, b)], [*range(max(rank_a, rank_b), 2, -1), *rows], frozenset("k"))


def _matmul(op: Op, types: Types, result: TensorType) -> Axes:
    a, b = (t.rank for t in types if t is not None)
    return _product("mk", "kn", a, b)


def _fused_matmul(op: Op, types: Types, result: TensorType) -> Axes | None:
    if op.transBatchA or op.transBatchB:
        return None
    a, b = (t.rank for t in types if t is not None)
    return _product("km" if op.transA else "mk", "nk" if op.transB else "kn", a, b)


def _gemm(op: Op, types: Types, result: TensorType) -> Axes:
    product = _product("km" if op.transA else "mk", "nk" if op.transB else "kn", 2, 2)
    c = types[2] if len(types) > 2 else None
    bias = [] if c is None else [product.output[2 - c.rank :]]
    return Axes([*product.inputs, *bias], product.output, product.mixed)


def _einsum(op: Op, types: Types, result: TensorType) -> Axes:
    assert isinstance(op, Einsum)
    terms, output = op.labels([t.rank for t in types if t is not None])
    return Axes(terms, output, frozenset("".join(terms)) - frozenset(output))


def _transpose(op: Op, types: Types, result: TensorType) -> Axes:
    rank = _first(types).rank
    return Axes([range(rank)], op.perm or range(rank)[::-1], moves=True)


def _expand(op: Op, types: Types, result: TensorType) -> Axes:
    shape = _first(types).shape
    grown = [("new", k) if k > len(shape) or shape[-k] != result.shape[-k] else k for k in range(result.rank, 0, -1)]
    return Axes([range(len(shape), 0, -1)], grown, shape_input=1, moves=True)


def _concat(op: Op, types: Types, result: TensorType) -> Axes:
    return Axes([range(result.rank)] * len(types), range(result.rank), frozenset({op.axis % result.rank}))


def _gather(op: Op, types: Types, result: TensorType) -> Axes:
    data, indices = (t.rank for t in types if t is not None)
    axis = op.axis % data
    picked = [("index", k) for k in range(indices)]
    return Axes([range(data), picked], [*range(axis), *picked, *range(axis + 1, data)], frozenset({axis}))


def _gather_nd(op: Op, types: Types, result: TensorType) -> Axes:
    """The last axis of the indices has a place on each axis of the data that it picks from."""
    data, indices = (t for t in types if t is not None)
    places = indices.shape[-1]
    assert isinstance(places, int)
    batch = op.batch_dims
    picked = [*range(batch), *(("index", k) for k in range(batch, indices.rank - 1))]
    gone = range(batch, batch + places)
    return Axes(
        [range(data.rank), [*picked, "place"]],
        [*picked, *range(batch + places, data.rank)],
        frozenset({*gone, "place"}),
    )


def _gather_rows(op: Op, types: Types, result: TensorType) -> Axes:
    """Rows of a quantized table; its columns are packed."""
    picked = [("index", k) for k in range(result.rank - 1)]
    return Axes([["row", "packed"], picked], [*picked, "column"], frozenset({"row"}))


def _along(op: Op, types: Types, result: TensorType) -> Axes:
    """One axis is mixed, of the first input; the others are parameters."""
    rank = _first(types).rank
    return Axes([range(rank)], range(rank), frozenset({op.axis % rank}))


def _softmax(op: Op, types: Types, result: TensorType) -> Axes:
    assert isinstance(op, Softmax | LogSoftmax)
    axis = op.axis_for(result.rank)
    return Axes(
        [range(result.rank)], range(result.rank), frozenset(range(axis, result.rank if op.flattens else axis + 1))
    )


def _normalization(op: Op, types: Types, result: TensorType) -> Axes:
    rank = _first(types).rank
    return Axes([range(rank)], range(rank), frozenset(range(op.axis % rank, rank)))


def _changed(op: Op, types: Types, result: TensorType) -> Axes:
    """Axes that keep their size are not touched, as a slice from the start with steps of 1 is whole then."""
    shape = _first(types).shape
    touched = {k for k, (a, b) in enumerate(zip(shape, result.shape, strict=True)) if a != b}
    return Axes([range(len(shape))], range(len(shape)), frozenset(touched | _moved(op, types)))


def _moved(op: Op, types: Types) -> set[int]:
    """Axes that a Slice turns round, or that a Pad shifts."""
    inputs = op.complete(types)
    rank = _first(types).rank
    if op.op_type() == "Slice":
        return {k for k, (start, _, step) in enumerate(op.bounds(*inputs)) if start != 0 or step != 1}
    return {k for k, margins in enumerate(op.margins(rank, inputs[1], inputs[3])) if margins != (0, 0)}


def _unmixed(op: Op, types: Types, result: TensorType) -> Axes:
    rank = _first(types).rank
    return Axes([range(rank)], range(rank))


_RULES: Mapping[tuple[str, str], Callable[[Op, Types, TensorType], Axes | None]] = {
    ("", "MatMul"): _matmul,
    (MS, "FusedMatMul"): _fused_matmul,
    ("", "Gemm"): _gemm,
    ("", "Einsum"): _einsum,
    ("", "Transpose"): _transpose,
    ("", "Expand"): _expand,
    ("", "Concat"): _concat,
    ("", "Gather"): _gather,
    ("", "GatherElements"): _concat,
    ("", "GatherND"): _gather_nd,
    (MS, "GatherBlockQuantized"): _gather_rows,
    ("", "Softmax"): _softmax,
    ("", "LogSoftmax"): _softmax,
    ("", "Split"): _along,
    ("", "TopK"): _along,
    ("", "LayerNormalization"): _normalization,
    ("", "SimplifiedLayerNormalization"): _normalization,
    ("", "Slice"): _changed,
    ("", "Pad"): _changed,
    ("", "Dropout"): _unmixed,
}
"""Rules by domain and name. Composite operators are expanded before."""
