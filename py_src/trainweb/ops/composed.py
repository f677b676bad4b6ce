"""Operators that are made of a few others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainweb.ir.shapes import TensorType
from trainweb.ops.attention import places, unsqueeze
from trainweb.ops.composite import Composite
from trainweb.ops.emission import Emission
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import f32, i64
from trainweb.ops.op import Bad, Int, Sample, register
from trainweb.ops.symbolic import Var


def _one(ins: Sequence[Var | None]) -> Var:
    (x,) = ins
    assert x is not None
    return x


@register
class GlobalLpPool(Composite):
    """The p-norm of each channel of each image. https://onnx.ai/onnx/operators/onnx__GlobalLpPool.html"""

    versions = (2, 22)
    attrs = {"p": Int(2)}
    differentiable = (0,)
    samples = (Sample([(2, 3, 4, 5)]), Sample([(2, 3, 4)], {"p": 3}, away_from=(0.0,)))
    bad = (Bad([(2,)]), Bad([(2, 3, 4)], {"p": 0}))

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if x.rank < 3 or self.p < 1:
            raise self.error(f"X has shape {list(x.shape)} and p is {self.p}; images and at least 1 are needed.")
        return TensorType(x.dtype, (*x.shape[:2], *[1] * (x.rank - 2)))

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x = _one(ins)
        total = g.reduce_sum((x.op("Abs") ** float(self.p)).name, range(2, g.rank(x.name)), keepdims=True)
        return [Var(g, total, x.dtype) ** (1 / self.p)]

    def reference(self, x: Any) -> Any:
        return (np.abs(x) ** self.p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / self.p)


@register
class Hardmax(Composite):
    """1 at the first largest element along an axis, else 0. https://onnx.ai/onnx/operators/onnx__Hardmax.html

    Before opset 13 over all dims from the axis on, which then is 1 by default.
    """

    versions = (1, 11, 13)
    attrs = {"axis": Int()}
    samples = (
        Sample([f32([[3, 0, 1, 2], [2, 5, 1, 5], [0, 1, 3, 2]])]),
        Sample([(2, 3, 4)], {"axis": 1}),
        Sample([(2, 3, 4)], {"axis": -1}, opset=13),
        Sample([(2, 3, 4)], opset=11),
        Sample([(2, 3, 4)], {"axis": 2}, opset=7),
    )
    bad = (Bad([(2, 3)], {"axis": 2}),)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        self._axis(x.rank)
        return x

    def _axis(self, rank: int) -> int:
        given = self.axis if self.axis is not None else -1 if self.opset >= 13 else 1
        return self.axis_of(given, rank)

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x = given = _one(ins)
        axis = self._axis(g.rank(x.name))
        if self.opset < 13:
            x, axis = x.op("Flatten", axis=axis), 1
        rank = g.rank(x.name)
        where = x.op("ArgMax", dtype="int64", axis=axis, keepdims=1)
        at = places(x, axis)
        y = where.equal(unsqueeze(at, *range(1, rank - axis)) if axis < rank - 1 else at).cast(x.dtype)
        return [Var(g, g.reshape_like(y.name, given.name), x.dtype) if self.opset < 13 else y]

    def reference(self, x: Any) -> Any:
        axis = self._axis(x.ndim)
        rows = x if self.opset >= 13 else x.reshape(int(np.prod(x.shape[:axis])), -1)
        along = axis if self.opset >= 13 else 1
        y = np.zeros_like(rows)
        np.put_along_axis(y, np.expand_dims(rows.argmax(along), along), 1, along)
        return y.reshape(x.shape)


@register
class ReverseSequence(Composite):
    """The first elements of each sequence turned round. https://onnx.ai/onnx/operators/onnx__ReverseSequence.html"""

    versions = (10, 28)
    attrs = {"batch_axis": Int(1), "time_axis": Int(0)}
    min_inputs = max_inputs = 2
    differentiable = (0,)
    samples = (
        Sample([(4, 3), i64([4, 1, 2])]),
        Sample([(3, 4, 2), i64([4, 1, 2])], {"batch_axis": 0, "time_axis": 1}),
    )
    bad = (Bad([(4, 3), (3,)]), Bad([(4, 3), i64([1, 2, 3])], {"batch_axis": 0}))

    def infer(self, x: TensorType, lengths: TensorType) -> TensorType:
        if sorted((self.batch_axis, self.time_axis)) != [0, 1] or x.rank < 2:
            raise self.error(
                f"batch_axis {self.batch_axis} and time_axis {self.time_axis} must be 0 and 1, X at least 2-D."
            )
        if lengths.dtype != "int64" or lengths.rank != 1:
            raise self.error("sequence_lens must be a vector of int64.")
        self.need_float32(x)
        return x

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x, lengths = ins
        assert x is not None and lengths is not None
        at = unsqueeze(places(x, self.time_axis), self.batch_axis)
        own = unsqueeze(lengths, self.time_axis)
        source = (at < own).where(own - at - 1, at)
        # An index for each element: GatherElements moves along time.
        rank = g.rank(x.name)
        source = unsqueeze(source, *range(2, rank)) if rank > 2 else source
        full = source.op("Expand", Var(g, g.shape_of(x.name), "int64"))
        return [x.op("GatherElements", full, axis=self.time_axis)]

    def reference(self, x: Any, lengths: Any) -> Any:
        y = x.copy()
        rows, out = (np.moveaxis(t, (self.batch_axis, self.time_axis), (0, 1)) for t in (x, y))
        for k, n in enumerate(lengths):
            out[k, :n] = rows[k, :n][::-1]
        return y
