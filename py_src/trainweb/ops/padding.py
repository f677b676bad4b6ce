"""Padding of convolutions whose sizes are not known when their gradient is made, as shape arithmetic in the graph."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Op
from trainweb.ops.frame.symbolic import Var, integers

PADS_ARE_AN_INPUT_SINCE = 11
"""The opset in which Pad takes its pads as a tensor."""


class WindowSizes:
    """Sizes of a sliding window along the spatial dims, as int64 tensors of one element a dim.

    They are made of the input `x` (N, C, *size) and the weights `w` (M, C, *kernel). `size` is the input's. `stride`
    goes from one window to the next, `span` from the first element of a window to behind its last.
    """

    def __init__(self, g: GradientBuilder, op: Op, x: str, w: str) -> None:
        if g.opset < PADS_ARE_AN_INPUT_SINCE:
            raise op.unsupported("the gradient with auto_pad or output_shape, sizes that are not fixed and this opset")
        self._g = g
        axes = range(2, g.rank(x))
        spatial = integers(g, axes).name
        self.size, kernel = (Var(g, g.op("Gather", [g.shape_of(t), spatial]), "int64") for t in (x, w))
        self.stride = integers(g, op.strides or [1 for _ in axes])
        self.span = (kernel - 1) * integers(g, op.dilations or [1 for _ in axes]) + 1

    def same_pads(self, auto_pad: str) -> str:
        """The pads of `auto_pad` SAME_UPPER or SAME_LOWER, for Pad."""
        last = ((self.size + self.stride - 1) / self.stride - 1) * self.stride
        total = positive(last + self.span - self.size)
        begin = half(total, auto_pad)
        return self.pads(begin, total - begin)

    def transposed_pads(self, auto_pad: str, output_shape: Sequence[int] | None, extra: Sequence[int] | None) -> str:
        """Return the pads that make the output of a transposed convolution as large as all its windows together."""
        full = (self.size - 1) * self.stride + self.span
        out = integers(self._g, output_shape) if output_shape else self.size * self.stride
        begin = half(positive((full + integers(self._g, extra) if extra else full) - out), auto_pad)
        return self.pads(begin, full - begin - out)

    def pads(self, begin: Var, end: Var) -> str:
        """Pads of all dims."""
        others = integers(self._g, [0, 0]).name
        return self._g.op("Concat", [others, begin.name, others, end.name], axis=0)


def positive(x: Var) -> Var:
    """The larger one of an integer and 0: Max takes no integers in old opsets."""
    return x * (x > 0).cast("int64")


def half(total: Var, auto_pad: str) -> Var:
    """Padding at the begin: the odd element is at the end with SAME_UPPER."""
    return total / 2 if auto_pad == "SAME_UPPER" else total - total / 2
