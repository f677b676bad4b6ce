"""Linear quantization of inference models: integers on a grid of scale and zero point, and products of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import UndecidedError, at_most, equal, equal_shapes, static
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import CONSTANTS, PACKED_4, PACKED_8, PACKED_16, PACKED_32, PARAMETERS
from trainweb.ir.shapes import TensorType, broadcast_shapes
from trainweb.model.checks import DTYPE_CODES, ONNX_DTYPES
from trainweb.model.graph import MS, NIBBLES, TRAINWEB, Tensor, data_bytes
from trainweb.ops.conv import Conv, convolution_of
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Attr, Int, Names, Op
from trainweb.ops.frame.symbolic import Var, integers

RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
"""Quantized dtypes."""
NIBBLE = 16
"""Products of a nibble and a byte are summed in float32, exactly up to `MAX_SUMMED` of them: 16 * 255 * 4096 < 2^24."""
MAX_SUMMED = 4096
ROUND_SINCE = 11
"""The opset that brought Round."""
PACKINGS = {
    **dict.fromkeys(NIBBLES, PACKED_4),
    **dict.fromkeys(("uint8", "int8"), PACKED_8),
    **dict.fromkeys(("uint16", "int16"), PACKED_16),
    "int32": PACKED_32,
}
"""Kernels' names of the dtypes of quantized numbers."""
SIGN_BITS = {"int4": 1 << 3, "int8": 1 << 7, "int16": 1 << 15}
"""Signed dtypes; kernels compute with the number whose sign bit is flipped. Numbers of 32 bits wrap instead."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, cols], stored with `pitch` numbers a row, and its blocks, which have a scale each."""

    rows: int
    cols: int
    pitch: int
    block_rows: int
    block_cols: int
    """Elements of a block."""
    scale_row: int
    scale_col: int
    """Distance of the scales of neighbouring blocks."""
    zero_row: int | None = None
    """Distance of the zero points of blocks one below the other, if it is another."""
    center: int = 0
    """The number that stands for zero without zero points; 0 unless it is given."""


def dequantize(m: Blocks, y: Buf, x: Buf, scale: Buf | None, zero: Buf | None) -> calls.Dequantize:
    """The call that makes y [rows, cols] of the numbers x, which are of the dtype that PACKINGS names."""
    dtype = x.dtype
    flip = SIGN_BITS.get(dtype, 0)
    return calls.Dequantize(
        x=_bytes_of(x),
        scale=scale,
        zero=zero and _bytes_of(zero),
        y=y,
        rows=m.rows,
        cols=m.cols,
        pitch=m.pitch,
        packing=PACKINGS[dtype],
        flip=flip,
        center=m.center ^ flip,
        block_rows=m.block_rows,
        block_cols=m.block_cols,
        scale_row=m.scale_row,
        scale_col=m.scale_col,
        zero_row=m.scale_row if m.zero_row is None else m.zero_row,
        zero_col=m.scale_col,
    )


def _bytes_of(x: Buf) -> Buf:
    return Buf(x.storage, "uint8", (x.nbytes,), None, x.shift, x.name)


def rounded(x: Var) -> Var:
    """Round to the nearest integer, halves to even."""
    if x.g.opset >= ROUND_SINCE:
        return x.op("Round")
    up = (x + 0.5).op("Floor")
    is_odd = ((up / 2.0).op("Floor") * 2.0).equal(up).not_()
    return up - (up - x).equal(0.5).and_(is_odd).cast("float32")


class _Linear(Op, abstract=True):
    attrs = {"axis": Int(1), "block_size": Int(0), "output_dtype": Int(0)}
    min_inputs, max_inputs = 2, 3

    def check(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> None:
        """The scale is one number, one for each place along the axis, or one for each block along it."""
        self.need_float32(scale)
        # As in ONNX Runtime, one number may be a scalar or the only element of a vector, each for itself.
        ranks_fit = zero is None or zero.rank == scale.rank or max(zero.rank, scale.rank) == 1
        if zero is not None and not (ranks_fit and equal(zero.size, scale.size)):
            raise self.error(f"the zero point has shape {list(zero.shape)}, the scale {list(scale.shape)}.")
        if self.block_size:
            axis = self.axis_of(self.axis, x.rank)
            blocks = (x.shape[axis] + self.block_size - 1) // self.block_size
            if scale.rank != x.rank or not equal(scale.shape[axis], blocks):
                raise self.error(f"a scale of shape {list(scale.shape)} is not one for each block of {list(x.shape)}.")
        elif scale.rank > 1:
            raise self.error(f"the scale has shape {list(scale.shape)}: more than one axis needs block_size.")
        elif static(scale.size) and scale.size != 1 and not equal(scale.size, x.shape[self.axis_of(self.axis, x.rank)]):
            raise self.error(f"{scale.size} scales are not for the places along axis {self.axis} of {list(x.shape)}.")

    def spread(self, x: Var, v: Var) -> Var:
        """Scale or zero point, as it broadcasts to X."""
        shape = x.shape
        if self.block_size:
            axis = self.axis % len(shape)
            if not isinstance(shape[axis], int):
                raise UndecidedError("the size of the axis of blocks")
            return v.op("Gather", integers(x.g, [k // self.block_size for k in range(shape[axis])]), axis=axis)
        if v.size == 1:
            return v.reshape(1) if shape else v.reshape()
        axis = self.axis % len(shape)
        return v.reshape(*(-1 if k == axis else 1 for k in range(len(shape))))

    def places(self, x: Var, scale: Var, zero: Var | None) -> Var:
        """x on the grid, before it is clipped."""
        places = rounded(x / self.spread(x, scale))
        return places if zero is None else places + self.spread(x, zero.cast("float32"))


class QuantizeLinear(_Linear, Composite):
    """round(x / scale) + zero point, within the range of its dtype. https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html"""

    versions = (10, 13, 19, 21, 23, 24, 25, 28)
    attrs = {**_Linear.attrs, "saturate": Int(1), "precision": Int(0)}

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        self.need_float32(x)
        self.check(x, scale, zero)
        dtype = zero.dtype if zero is not None else ONNX_DTYPES.get(self.output_dtype, "uint8")
        if self.output_dtype and ONNX_DTYPES.get(self.output_dtype) != dtype:
            raise self.error(f"output_dtype is {self.output_dtype}, the zero point {dtype}.")
        self.need_dtype(RANGES, dtype)
        if self.precision not in (0, DTYPE_CODES["float32"]):
            raise self.unsupported(f"precision {self.precision}")
        return TensorType(dtype, x.shape)

    def expand(self, g: Emission, x: Var, scale: Var, zero: Var | None) -> Sequence[Var | None]:
        dtype = zero.dtype if zero is not None else ONNX_DTYPES.get(self.output_dtype, "uint8")
        return [_clipped(self.places(x, scale, zero), dtype)]


def _clipped(places: Var, dtype: str) -> Var:
    low, high = RANGES[dtype]
    return places.op("Clip", float(low), float(high)).cast(dtype)


class DequantizeLinear(_Linear):
    """(x - zero point) * scale. https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html"""

    versions = (10, 13, 19, 21, 23, 24, 25, 28)
    differentiable = (1,)
    takes_nibbles = unpacks = True

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType | None = None) -> TensorType:
        self.check(x, scale, zero)
        self.need_dtype(PACKINGS, x.dtype)
        if zero is not None and zero.dtype != x.dtype:
            raise self.error(f"x is {x.dtype}, the zero point {zero.dtype}.")
        if self.output_dtype not in (0, DTYPE_CODES["float32"]):
            raise self.unsupported(f"output_dtype {self.output_dtype}")
        return TensorType("float32", x.shape)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, scale: Buf, zero: Buf | None) -> None:
        out = outs[0]
        if not out.size:
            return
        if self.block_size or x.dtype in NIBBLES or x.storage.segment in (CONSTANTS, PARAMETERS):
            self._of_constant(b, out, x, scale, zero)
            return
        axis = self.axis % max(1, len(x.shape))
        shape = () if scale.size == 1 else tuple(d if k == axis else 1 for k, d in enumerate(x.shape))

        def compute(e: Emitter, number: Expr, factor: Expr, *zero: Expr) -> Expr:
            number = e.cast(number, "int32")
            difference = e.sub(number, e.cast(zero[0], "int32")) if zero else number
            return e.mul(e.cast(difference, "float32"), factor)

        b.elementwise([out], [x, scale.view(shape), *([zero.view(shape)] if zero else [])], compute)

    def _of_constant(self, b: Builder, out: Buf, x: Buf, scale: Buf, zero: Buf | None) -> None:
        """Matrices of rows, which a product may read as they are stored."""
        shape = x.shape or (1,)
        axis = self.axis % len(shape) if scale.size > 1 or self.block_size else len(shape) - 1
        outer, dim, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        blocks = scale.shape[axis] if self.block_size else 1
        size = self.block_size or (dim if scale.size == 1 else 1)
        if inner == 1:
            columns = Blocks(outer, dim, dim, 1 if self.block_size else outer, size, blocks, int(scale.size > 1))
            b.emit(dequantize(columns, out, x, scale, zero))
            return
        rows = Blocks(dim, inner, inner, 1, inner, 1, 0)
        if self.block_size:
            rows = Blocks(dim, inner, inner, size, 1, inner, 1)
        step, at = dim * inner, blocks * inner if self.block_size else 0
        for k in range(outer):
            factors = scale.view((scale.size - k * at,), k * at)
            points = None if zero is None else self._numbers(zero, k * at)
            b.emit(dequantize(rows, out.view((step,), k * step), self._numbers(x, k * step), factors, points))

    def _numbers(self, x: Buf, first: int) -> Buf:
        """The numbers of x from one on."""
        if x.dtype in NIBBLES and first % 2:
            raise self.unsupported(f"{x.dtype} along an axis whose parts start within a byte")
        return Buf(x.storage, x.dtype, (x.size - first,), None, x.shift + data_bytes(x.dtype, first), x.name)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, scale, *zero = ins
        shape, of_x, dy = g.shape(scale), g.shape(x), douts[0]
        ones = g.op("ConstantOfShape", [g.shape_of(scale)], value=Tensor.of("", "float32", (1,), (1.0,)))
        attrs = {name: value for name, value in self.node.attrs.items() if name in self.attrs}
        places = g.op("DequantizeLinear", [x, ones, *zero], **attrs)
        terms = g.op("Mul", [str(dy), places])
        rank, axis = len(of_x), self.axis % max(1, len(of_x))
        if self.block_size:
            if not static(*shape, *of_x):
                raise self.unsupported(
                    "the gradient of scales of blocks, of which run time decides how many there are,"
                )
            missing = shape[axis] * self.block_size - of_x[axis]
            pads = [0] * rank + [missing if k == axis else 0 for k in range(rank)]
            terms = g.op("Pad", [terms, g.constant("int64", (2 * rank,), pads)]) if missing else terms
            parted = (*of_x[:axis], shape[axis], self.block_size, *of_x[axis + 1 :])
            terms = g.op("Reshape", [terms, g.constant("int64", (rank + 1,), parted)])
            return [None, g.reduce_sum(terms, [axis + 1], keepdims=False), *[None for _ in zero]]
        axes = [k for k in range(rank) if prod(shape) == 1 or k != axis]
        return [None, g.reshape_like(g.reduce_sum(terms, axes, keepdims=False), scale), *[None for _ in zero]]


class Unclipped(_Linear, Composite):
    """True where QuantizeLinear did not clip the value: (X, scale, quantized, zero point)."""

    domain = TRAINWEB
    attrs = {"axis": Int(1), "block_size": Int(0)}

    def infer(
        self, x: TensorType, scale: TensorType, quantized: TensorType, zero: TensorType | None = None
    ) -> TensorType:
        self.need_float32(x)
        self.check(x, scale, zero)
        if quantized.dtype not in RANGES or not equal_shapes(quantized.shape, x.shape):
            raise self.error(f"{quantized.dtype}{list(quantized.shape)} is not what X of {list(x.shape)} becomes.")
        return TensorType("bool", x.shape)

    def expand(self, g: Emission, x: Var, scale: Var, quantized: Var, zero: Var | None) -> Sequence[Var | None]:
        return [self.places(x, scale, zero).equal(quantized.cast("float32"))]


class DynamicQuantizeLinear(Composite):
    """x as uint8, with the scale and zero point of its range. https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html"""

    versions = (11,)
    n_outputs = 3

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.need_float32(x)
        return TensorType("uint8", x.shape), TensorType("float32", ()), TensorType("uint8", ())

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        low = x.op("ReduceMin", keepdims=0).op("Min", x.lift(0.0))
        high = x.op("ReduceMax", keepdims=0).op("Max", x.lift(0.0))
        scale = (high - low) / 255.0
        zero = rounded((-(low / scale)).op("Clip", 0.0, 255.0))
        return [_clipped(rounded(x / scale) + zero, "uint8"), scale, zero.cast("uint8")]


def exactly(op_type: str, a: Var, b: Var, **attrs: Any) -> Var:
    """The int32 matrix product or convolution of int32 values of at most 9 bits."""
    wide, right = a.cast("float32"), b.cast("float32")
    high = (wide / float(NIBBLE)).op("Floor")
    parts = [v.op(op_type, right, **attrs).cast("int32") for v in (high, wide - high * float(NIBBLE))]
    return parts[0] * NIBBLE + parts[1]


class _IntegerProduct(Composite, abstract=True):
    def product_shape(self, a: TensorType, b: TensorType) -> tuple[int, ...]:
        """Shape of the product of matrices."""
        self.need_dtype(("int8", "uint8"), a.dtype, b.dtype)
        if a.rank < 2 or b.rank < 2 or not equal(a.shape[-1], b.shape[-2]):
            raise self.error(f"shapes {list(a.shape)} and {list(b.shape)} are not those of matrices to multiply.")
        if not at_most(a.shape[-1], MAX_SUMMED):
            raise self.unsupported(f"a sum of more than {MAX_SUMMED} products")
        return (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


class MatMulInteger(_IntegerProduct):
    """(A - its zero point) (B - its zero point) in int32. https://onnx.ai/onnx/operators/onnx__MatMulInteger.html"""

    versions = (10,)

    def infer(
        self, a: TensorType, b: TensorType, za: TensorType | None = None, zb: TensorType | None = None
    ) -> TensorType:
        for zero in (za, zb):
            if zero is not None and zero.rank > 1:
                raise self.unsupported(f"a zero point of shape {list(zero.shape)}")
        return TensorType("int32", self.product_shape(a, b))

    def expand(self, g: Emission, a: Var, b: Var, za: Var | None, zb: Var | None) -> Sequence[Var | None]:
        left, right = a.cast("int32"), b.cast("int32")
        if za is not None:
            rows = za.cast("int32")
            left = left - (rows.reshape(-1, 1) if za.size != 1 else rows)
        if zb is not None:
            right = right - zb.cast("int32")
        return [exactly("MatMul", left, right)]


class QLinearMatMul(_IntegerProduct):
    """The product of quantized matrices, quantized. https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html"""

    versions = (10, 21)
    min_inputs = max_inputs = 8

    def infer(self, *inputs: TensorType) -> TensorType:
        a, sa, za, b, sb, zb, sy, zy = inputs
        self.need_float32(sa, sb, sy)
        for t in (sa, za, sb, zb, sy, zy):
            if not equal(t.size, 1):
                raise self.unsupported(f"a scale or zero point of shape {list(t.shape)}")
        self.need_dtype(("int8", "uint8"), zy.dtype)
        return TensorType(zy.dtype, self.product_shape(a, b))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        a, sa, za, b, sb, zb, sy, zy = (
            x.reshape() if k not in (0, 3) else x for k, x in enumerate(ins) if x is not None
        )
        product = exactly("MatMul", a.cast("int32") - za.cast("int32"), b.cast("int32") - zb.cast("int32"))
        places = rounded(product.cast("float32") * (sa * sb / sy)) + zy.cast("float32")
        return [_clipped(places, zy.dtype)]


class _IntegerConvolution(Composite, abstract=True):
    attrs: ClassVar[dict[str, Attr]] = Conv.attrs

    def convolved(self, x: TensorType, w: TensorType) -> tuple[int, ...]:
        """Shape of the convolution."""
        self.need_dtype(("int8", "uint8"), x.dtype, w.dtype)
        images, weights = (TensorType("float32", t.shape) for t in (x, w))
        shape = convolution_of(self).infer(images, weights, None).shape
        if not at_most(prod(w.shape[1:]), MAX_SUMMED):
            raise self.unsupported(f"a sum of more than {MAX_SUMMED} products")
        return shape

    def check_numbers(self, t: TensorType | None, channels: int) -> None:
        """A scale or zero point is one number, or one for each channel."""
        if t is not None and (t.rank > 1 or (static(t.size) and t.size != 1 and not equal(t.size, channels))):
            raise self.error(f"a scale or zero point has shape {list(t.shape)} for {channels} channels.")


def _zeroed(x: Var, zero: Var | None, *shape: int) -> Var:
    """Integers less their zero point."""
    wide = x.cast("int32")
    return wide if zero is None else wide - zero.reshape(*shape).cast("int32")


class ConvInteger(_IntegerConvolution):
    """The convolution of x and w less their zero points in int32. https://onnx.ai/onnx/operators/onnx__ConvInteger.html"""

    versions = (10,)

    def infer(
        self, x: TensorType, w: TensorType, zx: TensorType | None = None, zw: TensorType | None = None
    ) -> TensorType:
        self.check_numbers(zx, 1)
        self.check_numbers(zw, w.shape[0])
        return TensorType("int32", self.convolved(x, w))

    def expand(self, g: Emission, x: Var, w: Var, zx: Var | None, zw: Var | None) -> Sequence[Var | None]:
        channels = (-1, *[1] * (w.rank - 1))
        attrs = convolution_of(self).copied_attrs()
        return [exactly("Conv", _zeroed(x, zx, 1), _zeroed(w, zw, *channels), **attrs)]


class QLinearConv(_IntegerConvolution):
    """The convolution of quantized images, quantized. https://onnx.ai/onnx/operators/onnx__QLinearConv.html"""

    versions = (10,)
    min_inputs, max_inputs = 8, 9

    def infer(self, *inputs: TensorType | None) -> TensorType:
        x, sx, zx, w, sw, zw, sy, zy, bias = inputs
        assert x is not None and w is not None and zy is not None
        self.need_float32(sx, sw, sy)
        for t in (sx, zx, sy, zy):
            self.check_numbers(t, 1)
        for t in (sw, zw):
            self.check_numbers(t, w.shape[0])
        if bias is not None and (bias.dtype != "int32" or not equal_shapes(bias.shape, w.shape[:1])):
            raise self.error(f"the bias is {bias.dtype} {list(bias.shape)}, not int32 {list(w.shape[:1])}.")
        self.need_dtype(("int8", "uint8"), zy.dtype)
        return TensorType(zy.dtype, self.convolved(x, w))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, sx, zx, w, sw, zw, sy, zy, bias = ins
        assert x is not None and w is not None and sx is not None and sw is not None
        assert sy is not None and zy is not None
        spread = [1] * (w.rank - 2)
        attrs = convolution_of(self).copied_attrs()
        total = exactly("Conv", _zeroed(x, zx, 1), _zeroed(w, zw, -1, 1, *spread), **attrs)
        total = total if bias is None else total + bias.reshape(1, -1, *spread)
        scale = sx.reshape(1) * sw.reshape(1, -1, *spread) / sy.reshape(1)
        places = rounded(total.cast("float32") * scale) + zy.reshape(1).cast("float32")
        return [_clipped(places, zy.dtype)]


class FakeQuant(Op):
    """x rounded to multiples of scale within [quant_min, quant_max], and a mask of the unclipped numbers."""

    domain = MS
    attrs = {"quant_min": Int(0), "quant_max": Int(255)}
    n_outputs = 2
    differentiable = (0,)

    def infer(self, x: TensorType, scale: TensorType, zero_point: TensorType) -> tuple[TensorType, TensorType]:
        self.need_float32(x)
        for t, what in ((scale, "scale"), (zero_point, "zero_point")):
            if t.dtype != "float32" or not equal(t.size, 1):
                raise self.error(f"{what} is {t.dtype}{list(t.shape)}; it must be one float32.")
        if self.quant_min > self.quant_max:
            raise self.error(f"quant_min {self.quant_min} is above quant_max {self.quant_max}.")
        return TensorType("float32", x.shape), TensorType("bool", x.shape)

    def compute(self, e: Emitter, x: Expr, scale: Expr, zero: Expr) -> tuple[Expr, Expr]:
        """The rounded value, and whether it was within the range."""
        low, high = e.like(x, self.quant_min), e.like(x, self.quant_max)
        steps = e.round(e.add(e.div(x, scale), zero))
        inside = e.and_(e.compare("ge", steps, low), e.compare("le", steps, high))
        return e.mul(e.sub(e.min(e.max(steps, low), high), zero), scale), inside

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, scale: Buf, zero_point: Buf) -> None:
        b.elementwise(outs[:2], [x, scale.view(()), zero_point.view(())], self.compute)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        mask = g.extra_output(1, "_mask")
        return [g.op("FakeQuantGrad", [douts[0], mask], domain=MS), None, None]


class FakeQuantGrad(Op):
    """dY where the mask holds, else 0."""

    domain = MS

    def infer(self, dy: TensorType, mask: TensorType) -> TensorType:
        if mask.dtype != "bool" or not equal_shapes(mask.shape, dy.shape):
            raise self.error("the mask must be a bool for each element of dY.")
        return TensorType(dy.dtype, dy.shape)

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, mask: Buf) -> None:
        b.elementwise(outs[:1], [dy, mask], lambda e, d, m: e.select(m, d, e.like(d, 0)))
