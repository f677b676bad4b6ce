"""Operators of detectors and decoders of pooled images: MaxUnpool, RoiAlign, MaxRoiPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from trainweb.ir.dims import UndecidedError, equal, equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.arguments import checked
from trainweb.ops.frame.arguments import integers as known_integers
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Int, Ints, Str
from trainweb.ops.frame.symbolic import Var, constant, integers


class MaxUnpool(Composite):
    """Elements at the Indices of MaxPool among zeros. https://onnx.ai/onnx/operators/onnx__MaxUnpool.html"""

    versions = (9, 11, 22)
    attrs = {"kernel_shape": Ints(required=True), "pads": Ints(), "strides": Ints()}
    differentiable = (0,)
    static_inputs = (2,)

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

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, indices, shape = (*ins, None)[:3]
        assert x is not None and indices is not None
        sizes = None if shape is None else shape.type
        result = self.infer(x.type, indices.type, sizes).shape
        pooled = self.infer(x.type, indices.type).shape
        if not static(*result, *pooled):
            raise UndecidedError("the size of an image")
        zeros = Var(g, g.op("ConstantOfShape", [integers(g, [prod(pooled)]).name]), x.dtype)
        put = zeros.op("ScatterElements", indices.reshape(-1), x.reshape(-1), axis=0).reshape(*pooled)
        if result == pooled:
            return [put]
        # Indices are offsets in an output of the default size, which lies in the first corner of the larger one.
        margin = [r - p for r, p in zip(result, pooled, strict=True)]
        return [put.op("Pad", integers(g, [0] * len(margin) + margin))]


LARGEST_REGION = 4
"""Largest length of a region, in lengths of the image, if its number of samples follows from its length."""


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples along an axis, as many as the longest region may have: [regions, bins, samples]."""

    used: Var
    inside: Var
    """`used` is true if the region has this sample, and `inside` if it lies in the image."""
    at: Var
    """The place, in pixels of the image."""
    share: Var
    """One by how many there are: [regions, 1, 1]."""
    pixels: Var
    """The numbers of the pixels."""


class RoiAlign(Composite):
    """Regions of images, resampled bin by bin. https://onnx.ai/onnx/operators/onnx__RoiAlign.html

    He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870. No gradient goes to the regions. With a sampling_ratio of 0
    a region is at most four times as long as the image; a longer one fails the step.
    """

    versions = (10, 16, 22)
    attrs = {
        "coordinate_transformation_mode": Str("half_pixel"),
        "mode": Str("avg", among=("avg", "max")),
        "output_height": Int(1),
        "output_width": Int(1),
        "sampling_ratio": Int(0),
        "spatial_scale": Float(1.0),
    }
    differentiable = (0,)

    def infer(self, x: TensorType, rois: TensorType, batch: TensorType) -> TensorType:
        self.need_float32(x, rois)
        if (
            x.rank != 4
            or rois.rank != 2
            or not equal(rois.shape[1], 4)
            or not equal_shapes(batch.shape, rois.shape[:1])
        ):
            raise self.error(f"X, rois and indices have the shapes {[list(t.shape) for t in (x, rois, batch)]}.")
        if min(self.output_height, self.output_width) < 1:
            raise self.error(f"there are {self.output_height} by {self.output_width} bins.")
        return checked(self, "float32", (rois.shape[0], x.shape[1], self.output_height, self.output_width))

    @property
    def is_half_pixel(self) -> bool:
        """Return whether regions are moved by half a pixel, and may be of any size."""
        return self.opset >= 16 and self.coordinate_transformation_mode == "half_pixel"

    def expand(self, g: Emission, x: Var, rois: Var, batch: Var) -> Sequence[Var | None]:
        if self.sampling_ratio < 1:
            images = x.op("Gather", batch.cast("int64"), axis=0)
            if self.mode == "max":
                for axis in (1, 0):
                    images = self._largest(images, self._extremes(x, rois, axis), axis)
                return [images]
            # A mean over samples is one over rows of that over columns: two products.
            rows, columns = (self._mean(x, rois, axis).unsqueeze(1) for axis in (0, 1))
            return [rows.op("MatMul", images).op("MatMul", columns.op("Transpose", perm=[0, 1, 3, 2]))]
        height, width = (self._axis(x, rois, axis) for axis in (0, 1))
        pixels = x.op("Transpose", perm=[0, 2, 3, 1])
        channels = x.extent(1)
        pixels = pixels.op("Reshape", integers(g, [-1]).op("Concat", channels.unsqueeze(0), axis=0))
        first = batch.cast("int64").unsqueeze(1) * x.extent(2)
        terms = []
        for row, by_row in height:
            for column, by_column in width:
                index = ((first + row) * x.extent(3)).unsqueeze(2) + column.unsqueeze(1)
                weight = by_row.unsqueeze(2) * by_column.unsqueeze(1)
                terms.append(pixels.op("Gather", index, axis=0) * weight.unsqueeze(3))
        how = "Sum" if self.mode == "avg" else "Max"
        samples = terms[0].op(how, *terms[1:])
        n = self.sampling_ratio
        bins = samples.reshape(0, self.output_height, n, self.output_width, n, -1)
        for axis in (4, 2):
            bins = self._reduced(bins, axis, "ReduceMean" if self.mode == "avg" else "ReduceMax")
        return [bins.op("Transpose", perm=[0, 3, 1, 2])]

    def _reduced(self, bins: Var, axis: int, kind: str, keepdims: int = 0) -> Var:
        if self.opset >= 18:
            return bins.op(kind, integers(bins.g, [axis]), keepdims=keepdims)
        return bins.op(kind, axes=[axis], keepdims=keepdims)

    def _span(self, rois: Var, axis: int) -> tuple[Var, Var]:
        """Return the starts and the lengths of regions along an axis: [regions, 1]."""
        shift = 0.5 if self.is_half_pixel else 0.0
        start, end = (rois.part(1, k, k + 1) * self.spatial_scale - shift for k in (1 - axis, 3 - axis))
        return start, end - start if self.is_half_pixel else (end - start).op("Max", 1.0)

    def _samples(self, x: Var, rois: Var, axis: int) -> _Samples:
        """Samples along an axis that are at most a pixel apart: as many as a region is long."""
        g, bins = x.g, (self.output_height, self.output_width)[axis]
        pixels = x.shape[2 + axis]
        if not static(pixels):
            raise UndecidedError("the size of an image")
        most = -(-LARGEST_REGION * pixels // bins)
        start, span = self._span(rois, axis)
        count = (span / float(bins)).op("Ceil")
        # A count that is too large is an index error of the step, which names it.
        share = [0.0, *(1 / k for k in range(1, most + 1))]
        counted = count.op("Max", 0.0).cast("int64")
        weight = constant(g, "float32", (most + 1,), share).op("Gather", counted, axis=0).unsqueeze(2)
        each = constant(g, "float32", (1, 1, most), [k + 0.5 for k in range(most)])
        first = constant(g, "float32", (1, bins, 1), range(bins))
        at = start.unsqueeze(2) + span.unsqueeze(2) / float(bins) * (first + each * weight)
        return _Samples(
            (each < count.unsqueeze(2)),
            (at < -1.0).or_(at > float(pixels)).not_(),
            at.op("Max", 0.0).op("Min", pixels - 1.0),
            weight,
            constant(g, "float32", (pixels,), range(pixels)),
        )

    def _mean(self, x: Var, rois: Var, axis: int) -> Var:
        """Weights of the pixels along an axis in each bin: [regions, bins, pixels]."""
        samples = self._samples(x, rois, axis)
        near = (1.0 - (samples.at.unsqueeze(3) - samples.pixels).op("Abs")).op("Max", 0.0)
        taken = near * (samples.used.and_(samples.inside).cast("float32") * samples.share).unsqueeze(3)
        return taken.sum([2], keepdims=False)

    def _extremes(self, x: Var, rois: Var, axis: int) -> tuple[Var, Var]:
        """The largest and the smallest weight that samples give a pixel of theirs: [regions, bins, pixels].

        Below 0 where none of the bin reads the pixel.
        """
        samples = self._samples(x, rois, axis)
        low, inside = samples.at.op("Floor"), samples.inside.cast("float32")
        share = samples.at - low
        last = float(x.shape[2 + axis] - 1)
        largest, smallest = [], []
        for pixel, weight in ((low, 1.0 - share), ((low + 1.0).op("Min", last), share)):
            read = pixel.unsqueeze(3).equal(samples.pixels).and_(samples.used.unsqueeze(3))
            weights = (weight * inside).unsqueeze(3)
            largest.append(read.where(weights, -1.0))
            smallest.append(read.where(weights, 2.0))
        return (
            self._reduced(largest[0].op("Max", largest[1]), 2, "ReduceMax"),
            self._reduced(smallest[0].op("Min", smallest[1]), 2, "ReduceMin"),
        )

    def _largest(self, x: Var, extremes: tuple[Var, Var], axis: int) -> Var:
        """The maximum over samples along an axis of pixels (regions, C, height, width) times their weights, by bins.

        That is the pixel with its largest weight where it is above 0, else with its smallest.
        """
        bins = []
        others = [1, 3 - axis]
        for k in range((self.output_height, self.output_width)[axis]):
            most, least = (w.part(1, k, k + 1).reshape(0, -1).unsqueeze(*others) for w in extremes)
            held = (most < 0.0).where(x.lift(EMPTY), x * (x > 0.0).where(most, least))
            best = self._reduced(held, 2 + axis, "ReduceMax", keepdims=1)
            bins.append((best < EMPTY / 2).where(best.lift(0.0), best))
        return bins[0].op("Concat", *bins[1:], axis=2 + axis)

    def _axis(self, x: Var, rois: Var, axis: int) -> list[tuple[Var, Var]]:
        """The two pixels of each sample along an axis (0: rows), and their weights: [regions, samples]."""
        g, bins, n = x.g, (self.output_height, self.output_width)[axis], self.sampling_ratio
        start, span = self._span(rois, axis)
        steps = [bin_of + (k + 0.5) / n for bin_of in range(bins) for k in range(n)]
        at = start + span / float(bins) * constant(g, "float32", (len(steps),), steps)
        size = x.extent(2 + axis).cast("float32")
        inside = (at < -1.0).or_(at > size).not_().cast("float32")
        held = at.op("Max", 0.0).op("Min", size - 1.0)
        low = held.op("Floor")
        share = held - low
        high = (low + 1.0).op("Min", size - 1.0)
        return [(low.cast("int64"), (1.0 - share) * inside), (high.cast("int64"), share * inside)]


class MaxRoiPool(Composite):
    """The maximum of each bin of a region. https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html

    Girshick, Fast R-CNN, https://arxiv.org/abs/1504.08083. Regions are (image, x1, y1, x2, y2), rounded to pixels, both
    ends within; bins may overlap, and an empty one is 0. No gradient goes to the regions. Of equal pixels the first one
    has the gradient, row by row, as in torchvision's roi_pool.
    """

    versions = (1, 22)
    attrs = {"pooled_shape": Ints(required=True), "spatial_scale": Float(1.0)}
    differentiable = (0,)

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        self.need_float32(x, rois)
        if x.rank != 4 or rois.rank != 2 or not equal(rois.shape[1], 5):
            raise self.error(f"X and rois have the shapes {list(x.shape)} and {list(rois.shape)}.")
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise self.error(f"pooled_shape {list(self.pooled_shape)} is not a height and a width.")
        return checked(self, "float32", (rois.shape[0], x.shape[1], *self.pooled_shape))

    def expand(self, g: Emission, x: Var, rois: Var) -> Sequence[Var | None]:
        image = rois.part(1, 0, 1).cast("int64").squeeze(1)
        pooled = x.op("Gather", image, axis=0)
        for axis in (1, 0):
            pooled = self._pooled(pooled, self._bins(x, rois, axis), 2 + axis)
        return [(pooled < EMPTY / 2).where(pooled.lift(0.0), pooled)]

    def _bins(self, x: Var, rois: Var, axis: int) -> list[Var]:
        """Masks of the pixels along an axis that belong to each bin: [regions, pixels]."""
        count = self.pooled_shape[axis]
        # Half away from zero, as C rounds.
        start, end = (_rounded(rois.part(1, k, k + 1) * self.spatial_scale) for k in (2 - axis, 4 - axis))
        size = (end - start + 1.0).op("Max", 1.0) / float(count)
        pixel = x.places(2 + axis).cast("float32").unsqueeze(0)
        return [
            (pixel < start + (size * float(k)).op("Floor"))
            .or_((pixel < start + (size * float(k + 1)).op("Ceil")).not_())
            .not_()
            for k in range(count)
        ]

    def _pooled(self, x: Var, bins: Sequence[Var], axis: int) -> Var:
        """The maxima of (regions, C, height, width) over the pixels of each bin."""
        maxima = []
        for inside in bins:
            held = inside.unsqueeze(*(k for k in (1, 2, 3) if k != axis)).where(x, EMPTY)
            first = held.op("ArgMax", dtype="int64", axis=axis, keepdims=1)
            maxima.append(held.op("GatherElements", first, axis=axis))
        return maxima[0].op("Concat", *maxima[1:], axis=axis)


EMPTY = -3e38
"""Value of pixels outside of a bin: a maximum below half of it belongs to an empty bin."""


def _rounded(x: Var) -> Var:
    """The nearest whole number, of two the farther from zero."""
    return (x.op("Abs") + 0.5).op("Floor") * x.op("Sign")
