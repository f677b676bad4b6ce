"""Images read at places between their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Int, Str
from trainweb.ops.frame.symbolic import Var, integers

MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
"""Opset 16 has the names of two dimensions."""
CUBIC = -0.75
"""The parameter a of Keys' cubic convolution, https://doi.org/10.1109/TASSP.1981.1163711, as ONNX has it."""
LEAST_RANGE = 1e-6
"""An image of one pixel is reflected within this."""

Corner = tuple[Var, Var | None]
"""Index of a pixel along an axis, as a float, and its weight, None for 1."""


class GridSample(Composite):
    """X at the places of a grid. https://onnx.ai/onnx/operators/onnx__GridSample.html

    X is (N, C, sizes ...), the grid (N, sizes of the result ..., n). Each place has n coordinates between -1 and 1, the
    last axis first. Of mode nearest no gradient goes to the grid. In mode cubic with padding border each pixel beyond
    the image is the nearest one within, as in PyTorch and ONNX Runtime; ONNX's reference evaluator moves the place to
    the image first, which gives other numbers.
    """

    versions = (16, 20, 22)
    attrs = {
        "align_corners": Int(0),
        "mode": Str("linear", among=MODES),
        "padding_mode": Str("zeros", among=("zeros", "border", "reflection")),
    }
    differentiable = (0, 1)

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        self.need_float32(x, grid)
        n = x.rank - 2
        fits = n >= 1 and grid.rank == x.rank and equal(grid.shape[0], x.shape[0])
        if not fits or not equal_shapes(grid.shape[-1:], (n,)):
            raise self.error(f"X and the grid have the shapes {list(x.shape)} and {list(grid.shape)}.")
        if MODES[self.mode] == "cubic" and n != 2:
            raise self.unsupported(f"mode cubic in {n} dimensions")
        return TensorType("float32", (*x.shape[:2], *grid.shape[1:-1]))

    def expand(self, g: Emission, x: Var, grid: Var) -> Sequence[Var | None]:
        n = x.rank - 2
        sizes = [x.extent(2 + k).cast("float32") for k in range(n)]
        places = grid.reshape(0, -1, n)
        corners = []
        for k, size in enumerate(sizes):
            # Coordinates come in the reverse order of the axes.
            at = places.part(2, n - 1 - k, n - k).squeeze(2)
            corners.append(self._corners(self._pixels(at, size), size))
        pixels = x.reshape(0, 0, -1)
        total: Var | None = None
        for chosen in product(*corners):
            term = self._term(pixels, chosen, sizes)
            total = term if total is None else total + term
        assert total is not None
        shape = x.sizes()
        result = grid.sizes()
        target = shape.part(0, 0, 2).op("Concat", result.part(0, 1, n + 1), axis=0)
        return [total.op("Reshape", target)]

    def _pixels(self, at: Var, size: Var) -> Var:
        """Return the coordinates in pixels."""
        at = (at + 1.0) * (size - 1.0) / 2.0 if self.align_corners else ((at + 1.0) * size - 1.0) / 2.0
        if not self._moves_places():
            return at
        at = self._reflected(at, size) if self.padding_mode == "reflection" else at
        # No gradient goes through a place on the border, as in PyTorch; Max and Min would have half.
        at, last = (at > 0.0).where(at, 0.0), size - 1.0
        return (at < last).where(at, last)

    def _moves_places(self) -> bool:
        """Return whether places are moved into the image; cubic interpolation moves the pixels around them."""
        return self.padding_mode != "zeros" and MODES[self.mode] != "cubic"

    def _reflected(self, at: Var, size: Var) -> Var:
        """Thrown back at the centres of the outer pixels, or at their edges."""
        low = 0.0 if self.align_corners else -0.5
        span = (size - 1.0).op("Max", LEAST_RANGE) if self.align_corners else size
        around = at - low
        around = around - (around / (span * 2.0)).op("Floor") * (span * 2.0)
        return span - (around - span).op("Abs") + low

    def _corners(self, at: Var, size: Var) -> list[Corner]:
        """The pixels along one axis that a place is interpolated from."""
        if MODES[self.mode] == "nearest":
            return [(at.op("Round"), None)]
        low = at.op("Floor")
        t = at - low
        if MODES[self.mode] == "linear":
            return [(low, 1.0 - t), (low + 1.0, t)]

        def near(d: Var) -> Var:
            return ((d * (CUBIC + 2.0)) - (CUBIC + 3.0)) * d * d + 1.0

        def far(d: Var) -> Var:
            return ((d - 5.0) * d + 8.0) * d * CUBIC - 4.0 * CUBIC

        weights = (far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t))
        corners: list[Corner] = []
        for k, weight in zip((-1.0, 0.0, 1.0, 2.0), weights, strict=True):
            pixel = low + k
            corners.append((self._reflected(pixel, size) if self.padding_mode == "reflection" else pixel, weight))
        return corners

    def _term(self, pixels: Var, chosen: Sequence[Corner], sizes: Sequence[Var]) -> Var:
        """One pixel of each place, weighted; `pixels` are (N, C, all of them)."""
        g = pixels.g
        index: Var | None = None
        weight: Var | None = None
        inside: Var | None = None
        for (pixel, share), size in zip(chosen, sizes, strict=True):
            held = pixel.op("Max", 0.0).op("Min", size - 1.0)
            if self.padding_mode == "zeros":
                here = held.equal(pixel)
                inside = here if inside is None else inside.and_(here)
            place = held.cast("int64")
            index = place if index is None else index * size.cast("int64") + place
            if share is not None:
                weight = share if weight is None else weight * share
        assert index is not None
        # (N, 1, places) for every channel.
        shape = integers(g, [1]).op("Concat", pixels.sizes().part(0, 1, 2), axis=0)
        index = index.unsqueeze(1).op("Expand", shape.op("Concat", integers(g, [1]), axis=0))
        rows = pixels.op("GatherElements", index, axis=2)
        if weight is not None:
            rows = rows * weight.unsqueeze(1)
        return rows if inside is None else inside.unsqueeze(1).where(rows, 0.0)

    # The same in numpy, place by place.
