"""Operators whose results have a length that the data decide.

A plan is compiled for known sizes. Values that decide sizes are fed or constant, and belong to the signature
(docs/architecture-operators.md). Type inference knows them. If a step computes such a value, the operator is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from trainweb.ir.dims import UndecidedError, at_most, equal, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.arguments import checked, is_fed, is_known_later, scalar, unknown
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Names, Op
from trainweb.ops.frame.symbolic import Var, integers


def values_of(op: Op, t: TensorType, what: str) -> tuple[Any, ...] | None:
    """The elements of an input that decides a size; None where they are not known yet but will be.

    Raise UnsupportedError if the step computes them.
    """
    if is_known_later(op, t) or is_fed(t):
        return None
    if t.value is None:
        raise op.unsupported(
            f"{what} that the step computes, though it decides how large the result is (feed it as an input of the "
            "model, of at most 4096 integers or bools or 64 floats, or keep the size: choose with Where, or multiply "
            "by a mask)"
        )
    return t.value


def coordinates(position: int, shape: Sequence[int]) -> list[int]:
    """Indices of an element, from its place in row-major order."""
    indices = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        indices.append(index)
    return indices[::-1]


class Selection(Op, abstract=True):
    """An operator that picks by value: its results are known where its inputs are, and have no gradient."""

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [None] * len(ins)


class NonZero(Selection):
    """Indices of the elements that are not zero. https://onnx.ai/onnx/operators/onnx__NonZero.html"""

    versions = (9, 13)
    static_inputs = (0,)

    def infer(self, x: TensorType) -> TensorType:
        value = values_of(self, x, "an input")
        if value is None:
            return TensorType("int64", (x.rank, unknown(self, 1, *(x.value or x.shape))))
        places = [coordinates(k, x.shape) for k, v in enumerate(value) if v]
        return TensorType(
            "int64", (x.rank, len(places)), tuple(place[axis] for axis in range(x.rank) for place in places)
        )


class Compress(Composite):
    """The slices along an axis for which a condition holds. https://onnx.ai/onnx/operators/onnx__Compress.html"""

    versions = (9, 11, 28)
    attrs = {"axis": Int()}
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, condition: TensorType) -> TensorType:
        if condition.dtype != "bool" or condition.rank != 1:
            raise self.error(f"the condition is {condition.dtype}{list(condition.shape)}; it must be bools in one row.")
        axis = None if self.axis is None else self.axis_of(self.axis, x.rank)
        if not at_most(condition.size, x.size if axis is None else x.shape[axis]):
            raise self.error(f"{condition.size} conditions are more than X of shape {list(x.shape)} has slices.")
        value = values_of(self, condition, "a condition")
        count = unknown(self, axis or 0, *x.shape) if value is None else sum(map(bool, value))
        return TensorType(x.dtype, (count,) if axis is None else (*x.shape[:axis], count, *x.shape[axis + 1 :]))

    def expand(self, g: Emission, x: Var, condition: Var) -> Sequence[Var | None]:
        value = condition.type.value
        if value is None or not static(*value):
            raise UndecidedError("the condition")
        picked = integers(g, [k for k, holds in enumerate(value) if holds])
        if self.axis is None:
            return [x.reshape(-1).op("Gather", picked, axis=0)]
        return [x.op("Gather", picked, axis=self.axis)]


class Unique(Selection):
    """The different elements, or slices along an axis, with where they are. https://onnx.ai/onnx/operators/onnx__Unique.html

    NaN equals NaN.
    """

    versions = (11, 28)
    attrs = {"axis": Int(), "sorted": Int(1)}
    n_outputs = 4
    static_inputs = (0,)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        axis = None if self.axis is None else self.axis_of(self.axis, x.rank)
        value = values_of(self, x, "an input")
        if value is None:
            count = unknown(self, axis or 0, *(x.value or x.shape))
            all_of = x.size if axis is None else x.shape[axis]
            rest = tuple(TensorType("int64", (n,)) for n in (count, all_of, count))
            return TensorType(x.dtype, self._shape(x.shape, axis, count)), *rest
        slices = [(v,) for v in value] if axis is None else self._slices(value, x.shape, axis)
        first, inverse, counts = self._grouped(slices)
        n = len(first)
        shape = self._shape(x.shape, axis, n)
        if axis is None:
            elements = [value[k] for k in first]
        else:
            inner = prod(shape[axis + 1 :])
            blocks = range(prod(shape[:axis]))
            elements = [slices[k][o * inner + i] for o in blocks for k in first for i in range(inner)]
        types = (TensorType("int64", (len(v),), tuple(v)) for v in (first, inverse, counts))
        return TensorType(x.dtype, shape, tuple(elements)), *types

    @staticmethod
    def _shape(shape: Sequence[int], axis: int | None, count: int) -> tuple[int, ...]:
        return (count,) if axis is None else (*shape[:axis], count, *shape[axis + 1 :])

    @staticmethod
    def _slices(value: Sequence[Any], shape: Sequence[int], axis: int) -> list[tuple[Any, ...]]:
        """The elements of each slice along an axis, in row-major order."""
        n, inner = shape[axis], prod(shape[axis + 1 :])
        outer = prod(shape[:axis])
        return [tuple(value[(o * n + k) * inner + i] for o in range(outer) for i in range(inner)) for k in range(n)]

    def _grouped(self, slices: Sequence[tuple[Any, ...]]) -> tuple[list[int], list[int], list[int]]:
        """The first place of each different slice, the group of every slice, and how many a group has."""
        keys = [tuple((v != v, 0 if v != v else v) for v in s) for s in slices]
        places: dict[Any, int] = {}
        for k, key in enumerate(keys):
            places.setdefault(key, k)
        order = sorted(places) if self.sorted else list(places)
        group = {key: k for k, key in enumerate(order)}
        inverse = [group[key] for key in keys]
        return [places[key] for key in order], inverse, [inverse.count(k) for k in range(len(order))]


class NonMaxSuppression(Selection):
    """The boxes with the best scores that do not overlap much. https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html"""

    versions = (10, 11)
    attrs = {"center_point_box": Int(0)}
    min_inputs, max_inputs = 2, 5
    static_inputs = (0, 1, 2, 3, 4)

    def infer(self, boxes: TensorType, scores: TensorType, *limits: TensorType | None) -> TensorType:
        fits = boxes.rank == scores.rank == 3 and equal(boxes.shape[2], 4) and equal(boxes.shape[0], scores.shape[0])
        if not fits or not equal(boxes.shape[1], scores.shape[2]):
            raise self.error(f"boxes and scores have the shapes {list(boxes.shape)} and {list(scores.shape)}.")
        types = [t for t in (boxes, scores, *limits) if t is not None]
        values = [values_of(self, t, "boxes, scores and limits") for t in types]
        if any(v is None for v in values):
            return TensorType(
                "int64", (unknown(self, 0, *boxes.shape, *(limits[0].value or () if limits[0] else ())), 3)
            )
        names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
        most, overlap, least = (
            None if t is None else scalar(self, t, what) for t, what in zip(limits, names, strict=True)
        )
        overlap = overlap or 0.0
        if not 0 <= overlap <= 1:
            raise self.error(f"iou_threshold is {overlap}; it must be between 0 and 1.")
        assert boxes.value is not None and scores.value is not None
        rows = list(self._selected(boxes, scores, int(most or 0), overlap, least))
        t = checked(self, "int64", (len(rows), 3))
        return TensorType(t.dtype, t.shape, tuple(k for row in rows for k in row))

    def _selected(
        self, boxes: TensorType, scores: TensorType, most: int, overlap: float, least: float | None
    ) -> Iterable[tuple[int, int, int]]:
        n, classes = boxes.shape[1], scores.shape[1]
        corners = [self._corners(boxes.value[4 * k : 4 * k + 4]) for k in range(boxes.size // 4)] if boxes.value else []
        for image in range(boxes.shape[0]):
            of_image = corners[image * n : (image + 1) * n]
            for kind in range(classes):
                start = (image * classes + kind) * n
                score = (scores.value or ())[start : start + n]
                chosen: list[int] = []
                for k in sorted(range(n), key=lambda k: -score[k]):
                    if len(chosen) >= most or (least is not None and not score[k] > least):
                        break
                    if all(intersection_over_union(of_image[k], of_image[j]) <= overlap for j in chosen):
                        chosen.append(k)
                yield from ((image, kind, k) for k in chosen)

    def _corners(self, box: Sequence[float]) -> tuple[float, float, float, float]:
        """The least and the largest coordinates of a box: two of them, then two."""
        if self.center_point_box:
            x, y, width, height = box
            return x - width / 2, y - height / 2, x + width / 2, y + height / 2
        a, b, c, d = box
        return min(a, c), min(b, d), max(a, c), max(b, d)


def intersection_over_union(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the common share of the area that two boxes cover; boxes are (least, least, largest, largest)."""
    width, height = (min(a[2 + k], b[2 + k]) - max(a[k], b[k]) for k in (0, 1))
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    areas = ((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return common / (sum(areas) - common)
