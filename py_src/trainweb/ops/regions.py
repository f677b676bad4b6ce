"""What detectors and decoders of pooled images do: MaxUnpool, RoiAlign."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trainweb.errors import UnsupportedError
from trainweb.ir.dims import UndecidedError, equal, equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.arguments import checked
from trainweb.ops.arguments import integers as known_integers
from trainweb.ops.attention import extent, integers, part, reshape, unsqueeze
from trainweb.ops.composite import Composite
from trainweb.ops.emission import Emission
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import f32, i64
from trainweb.ops.op import Bad, Float, Int, Ints, Sample, Str, register
from trainweb.ops.symbolic import Var


@register
class MaxUnpool(Composite):
    """Elements at the Indices of MaxPool among zeros. https://onnx.ai/onnx/operators/onnx__MaxUnpool.html"""

    versions = (9, 11, 22)
    attrs = {"kernel_shape": Ints(required=True), "pads": Ints(), "strides": Ints()}
    min_inputs, max_inputs = 2, 3
    differentiable = (0,)
    static_inputs = (2,)
    samples = (
        Sample([(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]])], {"kernel_shape": [2, 2], "strides": [2, 2]}, opset=11),
        Sample(
            [(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]]), i64([1, 1, 5, 5])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            opset=11,
        ),
        Sample([(2, 1, 2), i64([[[0, 3]], [[5, 6]]])], {"kernel_shape": [2], "strides": [2]}, opset=11),
    )
    bad = (
        Bad([(1, 1, 2, 2), i64([[[[5, 7]]]])], {"kernel_shape": [2, 2]}, opset=11),
        Bad([(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]])], {"kernel_shape": [2]}, opset=11),
    )

    def infer(self, x: TensorType, indices: TensorType, shape: TensorType | None = None) -> TensorType:
        self.need_float32(x)
        n = x.rank - 2
        strides, pads = self.strides or [1] * n, self.pads or [0] * (2 * n)
        if n < 1 or len(self.kernel_shape) != n or len(strides) != n or len(pads) != 2 * n:
            raise self.error(f"kernel_shape {list(self.kernel_shape)} for X of shape {list(x.shape)}.")
        if indices.dtype != "int64" or not equal_shapes(indices.shape, x.shape):
            raise self.error(f"the indices are {indices.dtype}{list(indices.shape)}, X has shape {list(x.shape)}.")
        if shape is not None:
            return checked(self, "float32", known_integers(self, shape, "output_shape"))
        sizes = [
            (d - 1) * s + k - low - high
            for d, s, k, low, high in zip(x.shape[2:], strides, self.kernel_shape, pads[:n], pads[n:], strict=True)
        ]
        return checked(self, "float32", (*x.shape[:2], *sizes))

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x, indices, shape = (*ins, None)[:3]
        assert x is not None and indices is not None
        given = None if shape is None else g.type(shape.name)
        result = self.infer(g.type(x.name), g.type(indices.name), given).shape
        pooled = self.infer(g.type(x.name), g.type(indices.name)).shape
        if not static(*result, *pooled):
            raise UndecidedError("the size of an image")
        zeros = Var(g, g.op("ConstantOfShape", [integers(g, [prod(pooled)]).name]), x.dtype)
        put = reshape(zeros.op("ScatterElements", reshape(indices, -1), reshape(x, -1), axis=0), *pooled)
        if result == pooled:
            return [put]
        # Indices count in an image of the usual size, which lies at the start of the larger one.
        margin = [r - p for r, p in zip(result, pooled, strict=True)]
        return [put.op("Pad", integers(g, [0] * len(margin) + margin))]

    def reference(self, x: Any, indices: Any, shape: Any = None) -> Any:
        size = self.infer(TensorType("float32", x.shape), TensorType("int64", indices.shape)).shape
        put = np.zeros(prod(size))
        put[indices.reshape(-1)] = x.reshape(-1)
        y = np.zeros(size if shape is None else [int(n) for n in shape])
        y[tuple(map(slice, size))] = put.reshape(size)
        return y


@register
class RoiAlign(Composite):
    """Regions of images, resampled bin by bin. https://onnx.ai/onnx/operators/onnx__RoiAlign.html

    He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870. No gradient goes to the regions.
    """

    versions = (10, 16, 22)
    attrs = {
        "coordinate_transformation_mode": Str("half_pixel"),
        "mode": Str("avg"),
        "output_height": Int(1),
        "output_width": Int(1),
        "sampling_ratio": Int(0),
        "spatial_scale": Float(1.0),
    }
    min_inputs = max_inputs = 3
    differentiable = (0,)
    samples = (
        Sample(
            [(2, 3, 6, 5), f32([[0.3, 0.6, 3.1, 4.2], [1.2, 0.1, 4.7, 5.9], [2.0, 2.0, 9.0, 9.0]]), i64([0, 1, 0])],
            {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
            opset=16,
            grad=(0,),
        ),
        Sample(
            [(1, 2, 5, 5), f32([[0.3, 0.6, 3.1, 4.2]]), i64([0])],
            {"output_height": 2, "output_width": 2, "sampling_ratio": 3, "spatial_scale": 0.5, "mode": "max"},
            opset=16,
            grad=(0,),
        ),
        Sample([(1, 1, 4, 4), f32([[0.0, 0.0, 0.5, 3.0]]), i64([0])], {"sampling_ratio": 1}, opset=10, grad=(0,)),
    )
    bad = (
        Bad([(1, 1, 4, 4), f32([[0.0, 0.0, 2.0]]), i64([0])], {"sampling_ratio": 1}, opset=16),
        Bad([(1, 1, 4, 4), f32([[0.0, 0.0, 2.0, 2.0]]), i64([0, 0])], {"sampling_ratio": 1}, opset=16),
        Bad([(1, 1, 4, 4), f32([[0.0, 0.0, 2.0, 2.0]]), i64([0])], error=UnsupportedError, opset=16),
    )

    def infer(self, x: TensorType, rois: TensorType, batch: TensorType) -> TensorType:
        self.need_float32(x, rois)
        if (
            x.rank != 4
            or rois.rank != 2
            or not equal(rois.shape[1], 4)
            or not equal_shapes(batch.shape, rois.shape[:1])
        ):
            raise self.error(f"X, rois and indices have the shapes {[list(t.shape) for t in (x, rois, batch)]}.")
        if self.mode not in ("avg", "max") or min(self.output_height, self.output_width) < 1:
            raise self.error(f"mode {self.mode!r} of {self.output_height} by {self.output_width} bins.")
        if self.sampling_ratio < 1:
            raise self.unsupported("a sampling_ratio of 0, by which the data decide about sizes; set one, such as 2,")
        return checked(self, "float32", (rois.shape[0], x.shape[1], self.output_height, self.output_width))

    @property
    def is_half_pixel(self) -> bool:
        """Whether regions are moved by half a pixel, and may be of any size."""
        return self.opset >= 16 and self.coordinate_transformation_mode == "half_pixel"

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        x, rois, batch = (v for v in ins if v is not None)
        height, width = (self._axis(x, rois, axis) for axis in (0, 1))
        pixels = x.op("Transpose", perm=[0, 2, 3, 1])
        channels = extent(x, 1)
        pixels = pixels.op("Reshape", integers(g, [-1]).op("Concat", unsqueeze(channels, 0), axis=0))
        first = unsqueeze(batch.cast("int64"), 1) * extent(x, 2)
        terms = []
        for row, by_row in height:
            for column, by_column in width:
                index = unsqueeze((first + row) * extent(x, 3), 2) + unsqueeze(column, 1)
                weight = unsqueeze(by_row, 2) * unsqueeze(by_column, 1)
                terms.append(pixels.op("Gather", index, axis=0) * unsqueeze(weight, 3))
        how = "Sum" if self.mode == "avg" else "Max"
        found = terms[0].op(how, *terms[1:])
        n = self.sampling_ratio
        bins = reshape(found, 0, self.output_height, n, self.output_width, n, -1)
        for axis in (4, 2):
            bins = self._reduced(bins, axis)
        return [bins.op("Transpose", perm=[0, 3, 1, 2])]

    def _reduced(self, bins: Var, axis: int) -> Var:
        kind = "ReduceMean" if self.mode == "avg" else "ReduceMax"
        if self.opset >= 18:
            return bins.op(kind, integers(bins.g, [axis]), keepdims=0)
        return bins.op(kind, axes=[axis], keepdims=0)

    def _axis(self, x: Var, rois: Var, axis: int) -> list[tuple[Var, Var]]:
        """The two pixels of each sample along an axis (0: rows), and their weights: [regions, samples]."""
        g, bins, n = x.g, (self.output_height, self.output_width)[axis], self.sampling_ratio
        shift = 0.5 if self.is_half_pixel else 0.0
        start, end = (part(rois, 1, k, k + 1) * self.spatial_scale - shift for k in (1 - axis, 3 - axis))
        span = end - start if self.is_half_pixel else (end - start).op("Max", 1.0)
        steps = [bin_of + (k + 0.5) / n for bin_of in range(bins) for k in range(n)]
        at = start + span / float(bins) * Var(g, g.constant("float32", (len(steps),), steps), "float32")
        size = extent(x, 2 + axis).cast("float32")
        inside = (at < -1.0).or_(at > size).not_().cast("float32")
        held = at.op("Max", 0.0).op("Min", size - 1.0)
        low = held.op("Floor")
        share = held - low
        high = (low + 1.0).op("Min", size - 1.0)
        return [(low.cast("int64"), (1.0 - share) * inside), (high.cast("int64"), share * inside)]

    def reference(self, x: Any, rois: Any, batch: Any) -> Any:
        h, w, n = self.output_height, self.output_width, self.sampling_ratio
        y = np.zeros((len(rois), x.shape[1], h, w))
        for r, c, i, j in np.ndindex(*y.shape):
            image = x[int(batch[r]), c]
            box = np.asarray(rois[r], np.float64) * self.spatial_scale - (0.5 if self.is_half_pixel else 0.0)
            spans = box[2:] - box[:2] if self.is_half_pixel else np.maximum(box[2:] - box[:2], 1.0)
            taps = [
                self._taps(
                    image,
                    box[1] + spans[1] / h * (i + (a + 0.5) / n),
                    box[0] + spans[0] / w * (j + (b + 0.5) / n),
                )
                for a in range(n)
                for b in range(n)
            ]
            y[r, c, i, j] = np.mean([sum(t) for t in taps]) if self.mode == "avg" else max(max(t) for t in taps)
        return y

    @staticmethod
    def _taps(image: Any, row: float, column: float) -> list[float]:
        """Four pixels, weighted."""
        (height, width), found = image.shape, []
        if row < -1 or row > height or column < -1 or column > width:
            return [0.0]
        row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
        for i in (int(row), int(row) + 1):
            for j in (int(column), int(column) + 1):
                weight = max(0.0, 1 - abs(row - i)) * max(0.0, 1 - abs(column - j))
                found.append(weight * image[min(i, height - 1), min(j, width - 1)])
        return found
