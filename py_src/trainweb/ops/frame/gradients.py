"""Emission of nodes by an operator's `gradient`."""

from __future__ import annotations

from abc import abstractmethod

from trainweb.ir.dims import SymbolicDim
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, Node
from trainweb.ops.frame.emission import Emission


class GradientBuilder(Emission):
    """Emits the nodes of an operator's `gradient`, for one forward node (`autodiff/gradient.py`)."""

    @abstractmethod
    def known(self, name: str) -> TensorType | None:
        """The type, with its value, of a tensor whose elements are known without running anything."""

    @abstractmethod
    def wants(self, name: str) -> bool:
        """Return whether the gradient of this forward tensor is wanted."""

    @abstractmethod
    def producer(self, name: str) -> Node | None:
        """The forward node that makes a tensor."""

    @abstractmethod
    def extra_output(self, index: int, suffix: str) -> str:
        """Name of the forward node's optional output `index`, which it is made to produce."""

    def size_of(self, name: str, axis: int) -> str:
        """Size of `name` along an axis, as a tensor of one element."""
        return self.op("Gather", [self.shape_of(name), self.constant("int64", (1,), [axis])])

    def reduce_to(self, dy: str, like: str, of: str | tuple[int, ...]) -> str:
        """Sum `dy`, of the shape of `of`, down to the shape of `like`, which broadcast to it.

        `of` is a tensor, or a shape where there is no such tensor.
        """
        target, source = self.shape(like), self.shape(of) if isinstance(of, str) else of
        grown = len(source) - len(target)
        axes = list(range(grown))
        for axis, (t, s) in enumerate(zip(target, source[grown:], strict=True), grown):
            if t == 1 and s != 1:
                axes.append(axis)
            elif isinstance(t, SymbolicDim) and t != s:
                return self._reduce_to_dynamic(dy, like, of if isinstance(of, str) else dy)
        if not axes:
            return dy
        if len(axes) == grown:
            return self.reduce_sum(dy, axes, keepdims=False)
        summed = self.reduce_sum(dy, axes, keepdims=True)
        return self.squeeze(summed, range(grown)) if grown else summed

    def _reduce_to_dynamic(self, dy: str, like: str, full: str) -> str:
        shape = self.shape_of(like)
        axes = self.ops("BroadcastGradientArgs", [shape, self.shape_of(full)], 2, domain=MS)[0]
        if self.opset >= 13:
            summed = self.op("ReduceSum", [dy, axes], keepdims=1, noop_with_empty_axes=1)
        else:
            summed = self.op("ReduceSumTraining", [dy, axes], domain=MS, keepdims=1, noop_with_empty_axes=1)
        return self.op("Reshape", [summed, shape])
