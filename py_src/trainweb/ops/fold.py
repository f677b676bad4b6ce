"""Images put together of overlapping blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from trainweb.ir.dims import UndecidedError, equal, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.arguments import checked, integers
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Ints
from trainweb.ops.frame.symbolic import Var, constant


class Col2Im(Composite):
    """Blocks added up to images, torch.nn.Fold. https://onnx.ai/onnx/operators/onnx__Col2Im.html

    X is (N, C * elements of a block, blocks), the result (N, C, *image_shape).
    """

    versions = (18,)
    attrs = {"dilations": Ints(), "pads": Ints(), "strides": Ints()}
    differentiable = (0,)
    static_inputs = (1, 2)

    def _blocks(self, image: Sequence[int], block: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the number of blocks along each axis, and the number of elements left over behind the last one."""
        n = len(image)
        counts, rest = [], []
        strides, dilations = self.strides or (1,) * n, self.dilations or (1,) * n
        pads = self.pads or (0,) * 2 * n
        if len(block) != n or (len(strides), len(dilations), len(pads)) != (n, n, 2 * n):
            raise self.error(f"block_shape, strides, dilations or pads are not for {n} axes.")
        if min(*strides, *dilations) < 1 or min(*block, *image) < 1 or min(pads) < 0:
            raise self.error("shapes, strides and dilations must be positive, pads not negative.")
        for k in range(n):
            room = image[k] + pads[k] + pads[n + k] - dilations[k] * (block[k] - 1) - 1
            counts.append(room // strides[k] + 1)
            rest.append(room % strides[k])
        return counts, rest

    def infer(self, x: TensorType, image_shape: TensorType, block_shape: TensorType) -> TensorType:
        self.need_float32(x)
        image, block = integers(self, image_shape, "image_shape"), integers(self, block_shape, "block_shape")
        if x.rank != 3:
            raise self.error(f"X has shape {list(x.shape)}; it must be 3-D.")
        if not 1 <= len(image) <= 3:
            raise self.unsupported(f"{len(image)} spatial dimensions")
        size = prod(block)
        if static(*image, *block):
            counts, _ = self._blocks(image, block)
            if not equal(x.shape[1] % size, 0) or not equal(x.shape[2], prod(counts)):
                raise self.error(f"X of shape {list(x.shape)} has not {prod(counts)} blocks of {list(block)}.")
        return checked(self, "float32", (x.shape[0], x.shape[1] // size, *image))

    def expand(self, g: Emission, x: Var, image_shape: Var, block_shape: Var) -> Sequence[Var | None]:
        image, block = (v.type.value or () for v in (image_shape, block_shape))
        channels = x.shape[1]
        if not static(channels, *image, *block):
            raise UndecidedError("the sizes of images, blocks or channels")
        counts, rest = self._blocks(image, block)
        size, n = prod(block), len(image)
        # Each element of a block goes to one place: a transposed convolution with unit matrices.
        units = [float(i == j) for i, j in product(range(size), repeat=2)]
        kernel = constant(g, "float32", (size, 1, *block), units)
        attrs: dict[str, Any] = {
            name: list(getattr(self, name)) for name in self.attrs if getattr(self, name) is not None
        }
        blocks = x.reshape(-1, size, *counts)
        if any(rest):
            attrs["output_padding"] = rest
        images = blocks.op("ConvTranspose", kernel, kernel_shape=list(block), **attrs)
        return [images.reshape(-1, channels // size, *image[:n])]
