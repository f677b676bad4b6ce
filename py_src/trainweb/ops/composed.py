"""Operators that are made of a few others."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, prod
from typing import Any

from trainweb.errors import UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import Node
from trainweb.ops.arguments import checked, scalar
from trainweb.ops.attention import part, places, unsqueeze
from trainweb.ops.composite import Composite
from trainweb.ops.elementwise import NUMBERS
from trainweb.ops.emission import Emission
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import f32, i32, i64
from trainweb.ops.op import Bad, Int, Ints, Sample, Str, bind, register
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


@register
class LpPool(Composite):
    """The p-norm of each window. https://onnx.ai/onnx/operators/onnx__LpPool.html"""

    versions = (2, 11, 18, 22)
    attrs = {
        "auto_pad": Str("NOTSET"),
        "ceil_mode": Int(0),
        "dilations": Ints(),
        "kernel_shape": Ints(required=True),
        "p": Int(2),
        "pads": Ints(),
        "strides": Ints(),
    }
    differentiable = (0,)
    samples = (
        Sample([(2, 3, 6, 5)], {"kernel_shape": [2, 3]}),
        Sample([(2, 3, 6)], {"kernel_shape": [3], "p": 3, "pads": [1, 1], "strides": [2]}, away_from=(0.0,)),
    )
    bad = (
        Bad([(2, 3, 4)], {"kernel_shape": [2], "p": 0}),
        Bad([(2, 3, 4)], {"kernel_shape": [2], "ceil_mode": 1}, UnsupportedError),
        Bad([(2, 3, 4)], {"kernel_shape": [2, 2]}),
    )

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if self.p < 1:
            raise self.error(f"p is {self.p}; it must be at least 1.")
        if self.ceil_mode:
            raise self.unsupported("ceil_mode 1")
        mean = bind(Node("AveragePool", ["x"], ["y"], self._window(), "", self.node.name), {"": self.opset})
        found = mean.infer(x)
        assert isinstance(found, TensorType)
        return found

    def _window(self) -> dict[str, Any]:
        """Attributes of a mean of as many numbers everywhere: padding counts as 0."""
        return {**{k: v for k, v in self.node.attrs.items() if k != "p"}, "count_include_pad": 1}

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x = _one(ins)
        mean = (x.op("Abs") ** float(self.p)).op("AveragePool", **self._window())
        return [(mean * float(prod(self.kernel_shape))) ** (1 / self.p)]

    def reference(self, x: Any) -> Any:
        n = x.ndim - 2
        pads, strides = list(self.pads or [0] * 2 * n), list(self.strides or [1] * n)
        padded = np.pad(np.abs(x) ** self.p, [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(self.kernel_shape), tuple(range(2, x.ndim)))
        kept = windows[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
        return kept.sum(tuple(range(-n, 0))) ** (1 / self.p)


@register
class CumProd(Composite):
    """Running product along an axis. https://onnx.ai/onnx/operators/onnx__CumProd.html"""

    versions = (26,)
    attrs = {"exclusive": Int(0), "reverse": Int(0)}
    min_inputs = max_inputs = 2
    differentiable = (0,)
    static_inputs = (1,)
    samples = (
        Sample([(3, 4), i64(0)]),
        Sample([(3, 5), i64([1])], {"exclusive": 1}),
        Sample([f32([[1.0, 0.0, 2.0, 0.0, 3.0]]), i64(-1)], {"reverse": 1}),
        Sample([i32([[1, 2, 3], [4, 5, 6]]), i64(1)], {"exclusive": 1, "reverse": 1}),
    )
    bad = (Bad([(3, 4), i64(2)]), Bad([(3, 4), i64([0, 1])]))

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        if x.dtype not in NUMBERS:
            raise self.unsupported(f"dtype {x.dtype}")
        self.axis_of(scalar(self, axis, "axis"), x.rank)
        return x

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x, at = ins
        assert x is not None and at is not None
        (axis,) = g.type(at.name).value or ()
        shape = g.shape(x.name)
        axis %= len(shape)
        size = shape[axis]
        if not isinstance(size, int):
            raise self.unsupported("an axis whose size is only known at run time")

        def moved(v: Var, by: int) -> Var:
            """Elements `by` places before (reverse: after), 1 where there are none."""
            kept = part(v, axis, by, size) if self.reverse else part(v, axis, 0, size - by)
            ends = part(v, axis, size - by, size) if self.reverse else part(v, axis, 0, by)
            ones = ends.op("Equal", ends, dtype="bool").cast(v.dtype)
            return kept.op("Concat", ones, axis=axis) if self.reverse else ones.op("Concat", kept, axis=axis)

        y = moved(x, 1) if self.exclusive and size else x
        by = 1
        while by < size:  # each element is the product of `by` of them
            y, by = y * moved(y, by), 2 * by
        return [y]

    def reference(self, x: Any, axis: Any) -> Any:
        rows = np.moveaxis(x, int(axis.item()), 0)
        rows = rows[::-1] if self.reverse else rows
        y, total = np.empty_like(rows), np.ones_like(rows[0])
        for k, row in enumerate(rows):
            y[k] = total if self.exclusive else total * row
            total = total * row
        return np.moveaxis(y[::-1] if self.reverse else y, 0, int(axis.item()))


class _Window(Composite):
    """A window of cosines; the size must be known."""

    versions = (17,)
    attrs = {"output_datatype": Int(1), "periodic": Int(1)}
    static_inputs = (0,)
    samples = (Sample([i64(10)]), Sample([i64(10)], {"periodic": 0}))
    bad = (Bad([i64([1, 2])]), Bad([i64(10)], {"output_datatype": 7}, UnsupportedError))
    weights: tuple[float, ...]
    """Of the cosines of 0, 1, ... turns along the window."""

    def infer(self, size: TensorType) -> TensorType:
        if self.output_datatype != DTYPE_CODES["float32"]:
            raise self.unsupported(f"output_datatype {self.output_datatype}")
        return checked(self, "float32", (scalar(self, size, "size"),))

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        (n,) = g.type(_one(ins).name).value or ()
        turn = 2 * pi / max(n if self.periodic else n - 1, 1)
        values = [sum(w * cos(turn * i * k) for i, w in enumerate(self.weights)) for k in range(n)]
        return [Var(g, g.constant("float32", (n,), values), "float32")]

    def reference(self, size: Any) -> Any:
        n = int(size.item())
        angles = np.linspace(0, 2 * np.pi, n + 1)[:n] if self.periodic else np.linspace(0, 2 * np.pi, n)
        return sum(w * np.cos(i * angles) for i, w in enumerate(self.weights))


@register
class HannWindow(_Window):
    """sin^2. https://onnx.ai/onnx/operators/onnx__HannWindow.html"""

    weights = (0.5, -0.5)


@register
class HammingWindow(_Window):
    """25/46 less 21/46 of a cosine. https://onnx.ai/onnx/operators/onnx__HammingWindow.html"""

    weights = (25 / 46, -21 / 46)


@register
class BlackmanWindow(_Window):
    """Three cosines. https://onnx.ai/onnx/operators/onnx__BlackmanWindow.html"""

    weights = (0.42, -0.5, 0.08)
