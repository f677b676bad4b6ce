"""Emission of the nodes of gradients and composites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Node
from trainweb.ops.frame.since import domain_of


class Emission(ABC):
    """Emits nodes after the nodes of a graph, under names with a prefix; asks for the types of tensors known so far."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Node] = []

    @property
    @abstractmethod
    def opset(self) -> int:
        """Version of the ai.onnx operator set in force."""

    @abstractmethod
    def type(self, name: str) -> TensorType:
        """Type of a tensor; an unknown dim is a `SymbolicDim`."""

    def op(self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Emit a node of one output, and return its name."""
        return self.ops(op_type, inputs, 1, domain=domain, **attrs)[0]

    def ops(
        self, op_type: str, inputs: Sequence[str], wanted: int | Sequence[bool], /, *, domain: str = "", **attrs: Any
    ) -> list[str]:
        """Emit a node of a number of outputs, or of those `wanted`; return their names, "" for unwanted ones.

        An operator of ai.onnx that the model's opset does not have yet is one of ai.trainweb.
        """
        names = list(inputs)
        while names and not names[-1]:
            names.pop()
        name = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        outputs = [
            self.fresh(f"{name}_out" + (f"_{i}" if i else "")) if want else ""
            for i, want in enumerate([True] * wanted if isinstance(wanted, int) else wanted)
        ]
        self.add(Node(op_type, names, [*outputs], attrs, domain or domain_of(op_type, self.opset), name))
        return outputs

    @abstractmethod
    def fresh(self, base: str) -> str:
        """A new name for a tensor."""

    def add(self, node: Node) -> None:
        """Add a node behind the others."""
        self.nodes.append(node)

    @abstractmethod
    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        """An initializer, shared between equal ones."""

    def shape_of(self, name: str) -> str:
        """Shape of `name` as a tensor."""
        return self.op("Shape", [name])

    # Questions.

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; an unknown dim is a `SymbolicDim`, which is no int."""
        return self.type(name).shape

    def rank(self, name: str) -> int:
        """Number of dimensions of a tensor."""
        return len(self.shape(name))

    def dtype(self, name: str) -> str:
        """Dtype of a tensor."""
        return self.type(name).dtype

    def size(self, name: str) -> int:
        """Number of elements of a tensor."""
        return self.type(name).size

    # Operators whose form depends on the opset.

    def reshape_like(self, x: str, like: str) -> str:
        """`x` in the shape of `like`."""
        return self.op("Reshape", [x, self.shape_of(like)])

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        """`x` with dims of size 1 put in at `axes`."""
        return self._with_axes("Unsqueeze", x, axes, input_since=13)

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        """`x` without its dims of size 1 at `axes`."""
        return self._with_axes("Squeeze", x, axes, input_since=13)

    def reduce_sum(self, x: str, axes: Sequence[int] | None, keepdims: bool) -> str:
        """Sum over `axes` (None: all)."""
        if axes is None:
            return self.op("ReduceSum", [x], keepdims=int(keepdims))
        if not axes:
            return x
        return self._with_axes("ReduceSum", x, axes, input_since=13, keepdims=int(keepdims))

    def reduce_mean(self, x: str, axes: Sequence[int], keepdims: bool) -> str:
        """Mean over `axes`."""
        return self._with_axes("ReduceMean", x, axes, input_since=18, keepdims=int(keepdims))

    def reduce(self, op_type: str, x: str, axes: Sequence[int]) -> str:
        """A reduction over `axes`, which have size 1 after it, other than the sum."""
        return self._with_axes(op_type, x, axes, input_since=18, keepdims=1)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """Elements `start` to `end` of `x` along an axis."""
        if self.opset < 10:
            return self.op("Slice", [x], axes=[axis], starts=[start], ends=[end])
        return self.op("Slice", [x, *(self.constant("int64", (1,), [n]) for n in (start, end, axis))])

    def _with_axes(self, op_type: str, x: str, axes: Sequence[int], input_since: int, **attrs: Any) -> str:
        inputs, axes = [x], list(axes)
        if self.opset >= input_since:
            inputs.append(self.constant("int64", (len(axes),), axes))
        else:
            attrs["axes"] = axes
        return self.op(op_type, inputs, **attrs)
