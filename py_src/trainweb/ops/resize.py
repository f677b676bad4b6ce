"""Resizing of images and other grids by interpolation."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, floor, inf, prod
from types import MappingProxyType
from typing import ClassVar

from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB, Node
from trainweb.ops.copies import gather_axis
from trainweb.ops.frame.arguments import checked, integers, numbers, type_of, unknown
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Floats, Int, Ints, Names, Op, Str
from trainweb.ops.matmul import lower_matmul

CROP = "tf_crop_and_resize"
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", CROP)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
RADIUS = {"linear": 1, "cubic": 2}
"""Distance that an element reaches, in elements of the input."""
MODES = ("nearest", *RADIUS)
Part = tuple[float, float]
"""Start and end of a crop along an axis, as parts of its size less 1."""
WHOLE = (0.0, 1.0)


def _single(value: float) -> float:
    """A number as float32 rounds it; those beyond its range are too large for a size as they are."""
    if abs(value) >= 2.0**127:
        return value
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _resized(n: int, scale: float, part: Part) -> int:
    """Size of an axis times a scale: the product is float32, as in ONNX's shape inference, where 5 * 1.4 is 7."""
    if part != WHOLE:
        return floor(_single(_single(n * _single(part[1] - part[0])) * _single(scale)))
    return floor(_single(n * _single(scale)))


def _fraction(value: float) -> Fraction:
    """The simplest fraction that float32 rounds to the same number: 7/5 of 1.4, which a file has as 1.39999998."""
    if value < 0:
        return -_fraction(-value)
    if not 0 < value < 2**24:  # without a part that is rounded
        return Fraction(value)
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, exact, above = (Fraction(struct.unpack("<f", struct.pack("<I", bits + k))[0]) for k in (-1, 0, 1))
    return _simplest((below + exact) / 2, (exact + above) / 2)


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the least denominator from `low` to `high`, by continued fractions."""
    integer = floor(low)
    if integer == low or integer < floor(high):
        return Fraction(ceil(low))
    return integer + 1 / _simplest(1 / (high - integer), 1 / (low - integer))


class Resize(Op):
    """Interpolation to another size, one axis after the other. https://onnx.ai/onnx/operators/onnx__Resize.html

    Along an axis the result is a product with a matrix of weights (linear and cubic), or a choice of slices (nearest).
    """

    versions: ClassVar[tuple[int, ...]] = (10, 11, 13, 18, 19)
    attrs = {
        "antialias": Int(0),
        "axes": Ints(),
        "coordinate_transformation_mode": Str("half_pixel", among=COORDINATES),
        "cubic_coeff_a": Float(-0.75),
        "exclude_outside": Int(0),
        "extrapolation_value": Float(0.0),
        "keep_aspect_ratio_policy": Str("stretch", among=POLICIES),
        "mode": Str("nearest", among=MODES),
        "nearest_mode": Str("round_prefer_floor", among=ROUNDINGS),
    }
    differentiable: ClassVar[Sequence[int]] = (0,)
    static_inputs: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(self, node: Node, opset: int) -> None:
        super().__init__(node, opset)
        if self.is_old:
            self.coordinate_transformation_mode, self.nearest_mode = "asymmetric", "floor"

    @property
    def is_old(self) -> bool:
        """Before opset 11 there were X and scales, and one way to place elements."""
        return self.domain == "" and self.opset < 11

    def asked(
        self, rank: int, scales: TensorType | None, sizes: TensorType | None
    ) -> tuple[list[int], tuple[float, ...], tuple[int, ...]]:
        """Axes, and their scales or their sizes."""
        if self.antialias and self.mode == "nearest":
            raise self.error("antialias is for modes linear and cubic.")
        axes = [self.axis_of(a, rank) for a in (range(rank) if self.axes is None else self.axes)]
        factors = numbers(self, scales, "scales") if scales is not None and scales.size else ()
        target = integers(self, sizes, "sizes") if sizes is not None and sizes.size else ()
        numbers_of = factors or target
        positive = all(0 < f < inf for f in factors) and all(at_most(1, n) for n in target)
        if bool(factors) == bool(target) or len(numbers_of) != len(axes) or not positive:
            raise self.error(f"it needs positive scales or sizes, not both, for {len(axes)} axes.")
        return axes, factors, target

    def crops(self, rank: int, roi: TensorType | None) -> dict[int, Part]:
        """The part of each axis that is resized, of mode tf_crop_and_resize."""
        if self.coordinate_transformation_mode != CROP:
            return {}
        axes = [self.axis_of(a, rank) for a in (range(rank) if self.axes is None else self.axes)]
        if roi is None or roi.size != 2 * len(axes):
            raise self.error(f"it needs a roi of {2 * len(axes)} numbers.")
        values = [float(v) for v in numbers(self, roi, "roi")]
        return {a: (values[k], values[k + len(axes)]) for k, a in enumerate(axes)}

    def scaled(
        self,
        x: tuple[int, ...],
        scales: TensorType | None,
        sizes: TensorType | None,
        crops: Mapping[int, Part] = MappingProxyType({}),
    ) -> dict[int, tuple[int, float]]:
        """Size and scale of every axis that is resized."""
        axes, factors, target = self.asked(len(x), scales, sizes)
        if factors:
            parts = (crops.get(a, WHOLE) for a in axes)
            plan = {a: (_resized(x[a], f, part), float(f)) for a, part, f in zip(axes, parts, factors, strict=True)}
        else:
            ratios = {a: n / x[a] if x[a] else 1.0 for a, n in zip(axes, target, strict=True)}
            plan = {a: (n, ratios[a]) for a, n in zip(axes, target, strict=True)}
            if self.keep_aspect_ratio_policy != "stretch":
                ratio = (min if self.keep_aspect_ratio_policy == "not_larger" else max)(ratios.values())
                plan = {a: (floor(x[a] * ratio + 0.5), ratio) for a in axes}
        return {a: (n, f) for a, (n, f) in sorted(plan.items()) if n != x[a] or f != 1 or crops.get(a, WHOLE) != WHOLE}

    def source(self, i: int, n_in: int, n_out: int, scale: float, part: Part = WHOLE) -> float:
        """Return the place of the output's element `i` in the input."""
        mode = self.coordinate_transformation_mode
        if mode == CROP:
            start, end = part
            middle = (start + end) / 2 if n_out == 1 else start + i * (end - start) / (n_out - 1)
            return middle * (n_in - 1)
        if mode == "align_corners":
            return i * (n_in - 1) / (n_out - 1) if n_out > 1 else 0.0
        if mode == "asymmetric":
            return i / scale
        if mode == "pytorch_half_pixel" and n_out == 1:
            return 0.0
        offset = n_in / 2 * (1 - n_out / (n_in * scale)) if mode == "half_pixel_symmetric" else 0.0
        return offset + (i + 0.5) / scale - 0.5

    def nearest(self, n_in: int, n_out: int, scale: float, part: Part = WHOLE) -> list[int]:
        """The input's element for each of the output, of mode nearest."""

        def rounded(x: float) -> int:
            if self.nearest_mode == "floor":
                return floor(x)
            if self.nearest_mode == "ceil":
                return ceil(x)
            return ceil(x - 0.5) if self.nearest_mode == "round_prefer_floor" else floor(x + 0.5)

        return [min(max(rounded(self.source(i, n_in, n_out, scale, part)), 0), n_in - 1) for i in range(n_out)]

    def inside(self, n_in: int, n_out: int, scale: float, part: Part = WHOLE) -> list[bool]:
        """Return whether the output's elements lie in the input.

        Elements of crops beyond it are `extrapolation_value`.
        """
        if self.coordinate_transformation_mode != CROP:
            return [True] * n_out
        return [0 <= self.source(i, n_in, n_out, scale, part) <= n_in - 1 for i in range(n_out)]

    def weights(self, n_in: int, n_out: int, scale: float, part: Part = WHOLE) -> list[list[float]]:
        """Weights of the input's elements for each of the output: (n_out, n_in)."""
        rows = self._rows(n_in, n_out, scale, part)
        inside = self.inside(n_in, n_out, scale, part)
        return [row if within else [0.0] * n_in for row, within in zip(rows, inside, strict=True)]

    def _rows(self, n_in: int, n_out: int, scale: float, part: Part) -> list[list[float]]:
        if self.mode == "nearest":
            return [[float(k == j) for k in range(n_in)] for j in self.nearest(n_in, n_out, scale, part)]
        stretch = max(1.0, 1 / scale) if self.antialias else 1.0
        reach = RADIUS[self.mode] * stretch
        matrix = []
        for i in range(n_out):
            x = self.source(i, n_in, n_out, scale, part)
            taps = [(j, self._kernel(abs(j - x) / stretch)) for j in range(floor(x - reach), ceil(x + reach) + 1)]
            if self.exclude_outside:
                taps = [(j, w) for j, w in taps if 0 <= j < n_in]
            total = sum(w for _, w in taps) or 1.0
            row = [0.0] * n_in
            for j, w in taps:
                row[min(max(j, 0), n_in - 1)] += w / total
            matrix.append(row)
        return matrix

    def _kernel(self, x: float) -> float:
        """Weight at a distance; the cubic one is that of R. Keys (1981)."""
        if self.mode == "linear":
            return max(0.0, 1 - x)
        a: float = self.cubic_coeff_a
        if x <= 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return ((x - 5) * x + 8) * x * a - 4 * a if x < 2 else 0.0

    def infer(
        self,
        x: TensorType,
        roi: TensorType | None = None,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
    ) -> TensorType:
        if self.mode != "nearest" or self.coordinate_transformation_mode == CROP:
            self.need_float32(x)
        scales = roi if self.is_old else scales
        crop = self.coordinate_transformation_mode == CROP and roi is not None and roi.value is None
        fed = crop or (scales is not None and scales.value is None and scales.size != 0)
        if fed or not static(*x.shape, *(sizes.value or () if sizes is not None else ())):
            return checked(self, x.dtype, self._symbolic(x.shape, roi, scales, sizes))
        scaled = self.scaled(x.shape, scales, sizes, self.crops(x.rank, roi))
        if any(not x.shape[a] and n for a, (n, _) in scaled.items()):
            raise self.error(f"X of shape {list(x.shape)} has nothing to interpolate.")
        return checked(self, x.dtype, [scaled[a][0] if a in scaled else n for a, n in enumerate(x.shape)])

    def _symbolic(
        self, x: tuple[int, ...], roi: TensorType | None, scales: TensorType | None, sizes: TensorType | None
    ) -> list[int]:
        """Return the shape of the output if the shape of the input is not known."""
        result = list(x)
        if scales is not None and scales.value is None and static(scales.size) and scales.size:
            axes: Sequence[int] = range(len(x)) if self.axes is None else self.axes
            for a in axes:
                result[a] = unknown(self, a, *x)
            return result
        axes, factors, target = self.asked(len(x), scales, sizes)
        is_fed = roi is not None and roi.value is None and self.coordinate_transformation_mode == CROP
        crops = self.crops(len(x), roi) if factors and not is_fed else {}
        for k, a in enumerate(axes):
            if factors and is_fed:
                result[a] = unknown(self, a, *x)
            elif factors:
                start, end = crops.get(a, WHOLE)
                scale = _fraction(factors[k]) * _fraction(end - start)
                result[a] = x[a] * scale.numerator // scale.denominator
            elif self.keep_aspect_ratio_policy == "stretch":
                result[a] = target[k]
            else:
                result[a] = unknown(self, a, *x, *target)
        return result

    def lower(self, b: Builder, outs: list[Buf], x: Buf, roi: Buf | None, *sizes: Buf | None) -> None:
        crops = self.crops(len(x.shape), type_of(roi))
        sizes = (roi,) if self.is_old else sizes
        self.resize(b, outs[0], x, *map(type_of, sizes), crops=crops)

    def resize(
        self,
        b: Builder,
        y: Buf | None,
        x: Buf,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
        *,
        crops: Mapping[int, Part] = MappingProxyType({}),
    ) -> None:
        """y = x of another size."""
        if y is None or not y.size:
            return
        shape = x.shape
        scaled = self.scaled(x.shape, scales, sizes, crops)
        if not scaled:
            b.copy(y, x)
        for k, (axis, (n, scale)) in enumerate(scaled.items(), 1):
            out = y if k == len(scaled) else b.temp(x.dtype, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
            n_in, part = x.shape[axis], crops.get(axis, WHOLE)
            if self.mode == "nearest" and all(self.inside(n_in, n, scale, part)):
                gather_axis(b, out, x, b.constant("int64", (n,), self.nearest(n_in, n, scale, part)), axis)
            else:
                _multiply_axis(b, out, x, self.weights(n_in, n, scale, part), axis)
            x = out
        beyond = self._beyond(shape, scaled, crops)
        if beyond is not None:
            b.elementwise([y], [y, b.constant("float32", *beyond)], lambda e, a, c: e.add(a, c))

    def _beyond(
        self, x: Sequence[int], scaled: Mapping[int, tuple[int, float]], crops: Mapping[int, Part]
    ) -> tuple[tuple[int, ...], list[float]] | None:
        """Return the tensor (1, ..., sizes of resized axes) to add where the output lies beyond the input, or None."""
        inside = [self.inside(x[a], *scaled[a], crops.get(a, WHOLE)) if a in scaled else [True] for a in range(len(x))]
        if not self.extrapolation_value or all(map(all, inside)):
            return None
        values = [0.0 if all(cell) else self.extrapolation_value for cell in product(*inside)]
        return tuple(map(len, inside)), values

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        shape, sizes, dx = g.shape(ins[0]), list(g.shape(outs[0])), douts[0]
        rest: list[str | None] = [None] * (len(ins) - 1)
        if self.is_old:
            attrs = {name: getattr(self, name) for name in ("mode", "coordinate_transformation_mode", "nearest_mode")}
            return [g.op("ResizeGrad", [dx, g.shape_of(ins[0]), ins[1]], domain=TRAINWEB, **attrs), *rest]
        if self.coordinate_transformation_mode == CROP:
            inputs = [dx, g.shape_of(ins[0]), *[*ins, "", ""][2:4], ins[1]]
            return [g.op("ResizeGrad", inputs, domain=TRAINWEB, **self.node.attrs), *rest]
        scaled = self._scaled_back(g, ins, shape, sizes)
        if scaled is None or not all(static(*shape[k:], *sizes[k:]) for k in scaled):
            inputs = [dx, g.shape_of(ins[0]), *(ins[2:] if len(ins) > 2 else [])]
            return [g.op("ResizeGrad", inputs, domain=TRAINWEB, **self.node.attrs), *rest]
        for axis, (n, scale) in reversed(scaled.items()):
            sizes[axis] = n_in = shape[axis]
            dx = self._axis_gradient(g, dx, (n_in, n, prod(sizes[axis + 1 :])), scale)
        return [g.reshape_like(dx, ins[0]) if scaled else dx, *rest]

    def _scaled_back(
        self, g: GradientBuilder, ins: list[str], shape: Sequence[int], sizes: Sequence[int]
    ) -> dict[int, tuple[int, float]] | None:
        """Return the result of `scaled`; sizes that are not resized, such as the batch, may be symbolic.

        None where scales or sizes of axes that are resized are not known.
        """
        scales, target = (g.known(name) if name else None for name in [*ins, "", ""][2:4])
        by_scale = len(ins) > 2 and bool(ins[2]) and g.size(ins[2]) != 0
        if (scales if by_scale else target) is None:
            return None
        if static(*shape):
            return self.scaled(tuple(shape), scales, target)
        if not by_scale and self.keep_aspect_ratio_policy != "stretch":
            return None
        axes = range(len(shape)) if self.axes is None else [a % len(shape) for a in self.axes]
        factors = dict(zip(axes, scales.value or (), strict=True)) if by_scale and scales is not None else None
        factors_of = {}
        for a, (n, n_in) in enumerate(zip(sizes, shape, strict=True)):
            if factors.get(a, 1.0) == 1.0 if factors is not None else n == n_in:
                continue
            if not static(n, n_in):
                return None
            factors_of[a] = (n, n / n_in if factors is None else factors[a])
        return factors_of

    def _axis_gradient(self, g: GradientBuilder, dy: str, sizes: tuple[int, int, int], scale: float) -> str:
        """Return the gradient (-1, n_in, rest) of an input from the gradient of its outputs, (-1, n, rest)."""
        n_in, n, rest = sizes
        weights = self.weights(n_in, n, scale)
        flat = g.op("Reshape", [dy, self._shape(g, (-1, n) if rest == 1 else (-1, n, rest))])
        if rest == 1:
            by_output = g.constant("float32", (n, n_in), [w for row in weights for w in row])
            dx: str = g.op("MatMul", [flat, by_output])
            return dx
        by_input = g.constant("float32", (n_in, n), [row[j] for j in range(n_in) for row in weights])
        dx = g.op("MatMul", [by_input, flat])
        return dx

    @staticmethod
    def _shape(g: GradientBuilder, shape: Sequence[int]) -> str:
        return g.constant("int64", (len(shape),), shape)


def _multiply_axis(b: Builder, y: Buf, x: Buf, rows: list[list[float]], axis: int, *, transposed: bool = False) -> None:
    """y = the matrix `rows`, or its transpose, times x along an axis."""
    lead, rest = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    n, m = y.shape[axis], x.shape[axis]
    if rest == 1:
        weights = b.constant("float32", (len(rows), len(rows[0])), [w for row in rows for w in row])
        lower_matmul(b, y.view((lead, n)), x.view((lead, m)), weights, trans_b=not transposed)
    else:
        columns = zip(*rows, strict=True) if transposed else rows
        weights = b.constant("float32", (n, m), [w for row in columns for w in row])
        lower_matmul(b, y.view((lead, n, rest)), weights, x.view((lead, m, rest)))


class ResizeGrad(Resize):
    """Gradient of Resize from (dY, shape of X, scales, sizes, roi) (ai.trainweb), of sizes that are known late.

    Along each axis the transposed product with the matrix of weights.
    """

    domain = TRAINWEB
    versions = (1,)
    differentiable = ()
    static_inputs: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    gradient = Op.gradient  # type: ignore[assignment]

    def infer(
        self,
        dy: TensorType,
        shape: TensorType,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
        roi: TensorType | None = None,
    ) -> TensorType:
        self.need_float32(dy)
        x = TensorType("float32", integers(self, shape, "the shape of X"))
        self.need_shape("dY", dy, super().infer(x, roi, scales, sizes).shape)
        return x

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, _shape: Buf | None, *others: Buf | None) -> None:
        dx = outs[0]
        if not dx.size:
            return
        scales, sizes, roi = map(type_of, others)
        crops = self.crops(len(dx.shape), roi)
        scaled = self.scaled(dx.shape, scales, sizes, crops)
        if not scaled:
            b.copy(dx, dy)
        for k, (axis, (n, scale)) in enumerate(reversed(scaled.items()), 1):
            n_in = dx.shape[axis]
            out = dx if k == len(scaled) else b.temp("float32", (*dy.shape[:axis], n_in, *dy.shape[axis + 1 :]))
            _multiply_axis(b, out, dy, self.weights(n_in, n, scale, crops.get(axis, WHOLE)), axis, transposed=True)
            dy = out


class Upsample(Resize):
    """Enlargement of opset 7 to 9: element i lies at i / scale. https://onnx.ai/onnx/operators/onnx__Upsample.html"""

    versions = (7, 9, 10)
    attrs = {"mode": Str("nearest", among=MODES), "scales": Floats()}
    min_inputs, max_inputs = 1, 2
    static_inputs = (1,)
    antialias = exclude_outside = 0
    axes = None
    cubic_coeff_a = extrapolation_value = 0.0
    keep_aspect_ratio_policy = "stretch"

    def _factors(self, scales: TensorType | None) -> TensorType:
        if self.opset > 9:
            raise self.unsupported("a model of opset 10 or newer, which has Resize")
        if scales is None:
            if self.scales is None:
                raise self.error("scales are missing.")
            scales = TensorType("float32", (len(self.scales),), tuple(self.scales))
        if self.mode == "cubic" or any(scale < 1 for scale in scales.value or ()):
            raise self.error(
                f"mode {self.mode!r} with scales {list(scales.value or ())}: at least 1, nearest or linear."
            )
        return scales

    def infer(self, x: TensorType, scales: TensorType | None = None, *_: TensorType | None) -> TensorType:
        return super().infer(x, self._factors(scales), None, None)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, scales: Buf | None = None, *_: Buf | None) -> None:
        factors = self._factors(type_of(scales))
        self.resize(b, outs[0], x, factors)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        inputs = ins if len(ins) > 1 else [*ins, g.constant("float32", (len(self.scales or ()),), self.scales or ())]
        return super().gradient(g, inputs, outs, douts)[: len(ins)]
