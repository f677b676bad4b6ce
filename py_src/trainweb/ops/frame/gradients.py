"""The tools of an operator's `gradient` for emitting nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from trainweb.ir.dims import SymbolicDim, static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, Graph, Node
from trainweb.ops.frame.emission import Emission


class Walk(Protocol):
    """The walk from the loss to the parameters, as a builder uses it (`autodiff/gradient.py`)."""

    graph: Graph

    @property
    def makers(self) -> Mapping[str, Node]:
        """The forward nodes by the tensors that they make."""

    @property
    def needed(self) -> Collection[str]:
        """Tensors whose gradients are wanted."""

    def type(self, name: str, pending: Sequence[Node] = ()) -> TensorType:
        """Type of a forward tensor, of a gradient, or of a tensor a node in `pending` makes."""

    def dtype(self, name: str, pending: Sequence[Node] = ()) -> str:
        """Its dtype."""

    def fresh(self, name: str) -> str:
        """`name`, or a variation of it that is not in use."""

    def constant(self, dtype: str, shape: tuple[int, ...], values: tuple[Any, ...]) -> str:
        """An initializer, shared between equal ones."""

    def refresh(self, node: Node) -> None:
        """A forward node got one more output."""

    def shape_of(self, g: GradientBuilder, name: str) -> str:
        """Shape of `name` as a tensor; one node serves all who ask."""


class GradientBuilder(Emission):
    """Emits the nodes of an operator's `gradient`; bound to one forward node."""

    def __init__(self, walk: Walk, node: Node, index: int) -> None:
        super().__init__(f"{node.name or f'{node.op_type}_{index}'}_Grad")
        self._walk, self._node = walk, node

    # Questions.

    @property
    def opset(self) -> int:
        return self._walk.graph.opsets.get("", self._walk.graph.opsets.get("ai.onnx", 1))

    def type(self, name: str) -> TensorType:
        return self._walk.type(name, self.nodes)

    def dtype(self, name: str) -> str:
        return self._walk.dtype(name, self.nodes)

    def known(self, name: str) -> TensorType | None:
        """The type, with its value, of a tensor whose elements are known without running anything."""
        t = self._walk.type(name, self.nodes)
        return t if t.value is not None and static(*t.value) else None

    def wants(self, name: str) -> bool:
        """Return whether the gradient of this forward tensor is wanted."""
        return name in self._walk.needed

    def producer(self, name: str) -> Node | None:
        """The forward node that makes a tensor."""
        return self._walk.makers.get(name)

    # Emission.

    def fresh(self, base: str) -> str:
        return self._walk.fresh(base)

    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        return self._walk.constant(dtype, tuple(shape), tuple(values))

    def extra_output(self, index: int, suffix: str) -> str:
        """Name of the forward node's optional output `index`, which it is made to produce."""
        outputs = self._node.outputs
        outputs += [""] * (index + 1 - len(outputs))
        if not outputs[index]:
            outputs[index] = self._walk.fresh(outputs[0] + suffix)
            self._walk.refresh(self._node)
        return outputs[index]

    # Shapes.

    def shape_of(self, name: str) -> str:
        return self._walk.shape_of(self, name)

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
        axes = self.op("BroadcastGradientArgs", [shape, self.shape_of(full)], domain=MS, n_outputs=2)[0]
        if self.opset >= 13:
            summed = self.op("ReduceSum", [dy, axes], keepdims=1, noop_with_empty_axes=1)
        else:
            summed = self.op("ReduceSumTraining", [dy, axes], domain=MS, keepdims=1, noop_with_empty_axes=1)
        return self.op("Reshape", [summed, shape])

    # Names.

    def claim(self, result: str, name: str, claimed: dict[str, str]) -> None:
        """Give the tensor `result` the name `name`; `claimed` has what earlier results became."""
        owned = any(result in node.outputs for node in self.nodes)
        if owned:  # after a rename no node has `result`
            self.rename(result, name)
            claimed[result] = name
            return
        node_name = f"{self.prefix}/Identity_{len(self.nodes)}"
        self.nodes.append(Node("Identity", [claimed.get(result, result)], [name], {}, "", node_name))

    def rename(self, old: str, new: str) -> None:
        """Rename a tensor in the emitted nodes."""
        for node in self.nodes:
            node.inputs = [new if name == old else name for name in node.inputs]
            node.outputs = [new if name == old else name for name in node.outputs]
