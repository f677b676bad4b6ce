"""Shape inference over symbolic dimensions: every operator infers once, over dims.

The dims that inputs declare are symbols. Operators' demands on them are found on the way: where a weight demands n = 4,
the model's own declaration is refined. Sizes that data decide are symbols of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trainweb.errors import LimitError, ModelError
from trainweb.ir.dims import SymbolicDim, resolve, static
from trainweb.ir.shapes import TensorType
from trainweb.ir.symbols import SymbolTable
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.frame.infer import infer_outputs, initializer_type
from trainweb.ops.frame.op import Op, bind

SHAPE_ELEMENTS = 16
"""Integer vectors of at most this length may be shapes: numbers in them that data decide get symbols."""


def infer_shapes(graph: Graph) -> dict[str, Value]:
    """Type of every tensor of `graph`, by its name.

    A dim is an int, an expression of the symbols of the inputs, or None. None stands for dims made of unnamed ones or
    decided by data. Raise ModelError if a node's inputs do not fit, whatever the symbolic dims are. Raise
    UnsupportedError for an unknown operator, and for a rank that depends on data.
    """
    inference = ShapeInference(graph)
    return {name: inference.value(name) for name in inference.names()}


class ShapeInference:
    """The types of a graph's tensors; nodes may be added afterwards.

    The graph's inputs must have a rank. If `former` has the types of a graph with many of the same nodes, results for
    them from the same types, without symbols, are reused. `table` has the symbols, and what is known of them. `ops` are
    the operators of the graph's nodes, without nodes that were added afterwards.
    """

    def __init__(self, graph: Graph, former: ShapeInference | None = None) -> None:
        self.table = SymbolTable()
        self._opsets = graph.opsets
        self._types = _Types(self.table)
        self._makers: dict[str, str | Node] = {}
        self._rankless: set[str] = set()
        self._unread: set[str] = set()
        self._read: set[str] = set()
        for name, tensor in graph.initializers.items():
            self._types.constant(tensor)
            self._makers[name] = "a constant"
        for value in graph.inputs:
            if isinstance(value, Value):
                self._input(value)
        values = (*graph.value_info.values(), *graph.outputs)
        declared = {v.name: v for v in values if isinstance(v, Value) and v.shape and str in map(type, v.shape)}
        self.ops: list[Op] = []
        # Domains may have come to the opsets, such as the domains of gradients.
        fits = former is not None and former._opsets.items() <= graph.opsets.items()
        operators = {op.node.outputs[0]: op for op in former.ops} if former and fits else {}
        for node in graph.nodes:
            op = operators.get(node.outputs[0])
            again = self._again(op, node, former._types) if op and former else None
            self.ops.append(again or self.add(node))
            for name in node.outputs:
                if name in declared:
                    self._call_dims(declared[name])

    def names(self) -> Iterator[str]:
        """Names of all tensors whose type is known."""
        return iter(self._types)

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def __getitem__(self, name: str) -> TensorType:
        """Type of a tensor with the present knowledge of its dims."""
        return self._types[name]

    def dtype(self, name: str) -> str:
        """Dtype of a tensor."""
        return self._types.first(name).dtype

    def value(self, name: str) -> Value:
        """Dtype and shape of a tensor, as a file declares them."""
        t = self._types[name]
        shape = t.shape if static(*t.shape) else tuple(map(self.table.text, t.shape))
        return Value(name, t.dtype, shape)

    def refined(self, value: Value) -> Value:
        """The declaration of an input, with what operators demand of its dims."""
        if value.name not in self or value.shape is None:
            return value
        pairs = zip(value.shape, self._types.first(value.name).shape, strict=True)
        dims = [dim if resolve(first) is first else self.table.text(first) or dim for dim, first in pairs]
        return replace(value, shape=tuple(dims))

    def add(self, node: Node) -> Op:
        """Infer one more node, whose inputs are known; returns its operator."""
        self.table.node, self.table.conflict = node, None
        rankless = self._rankless and self._rankless.intersection(node.inputs)
        if rankless:
            raise ModelError(
                f"Input {min(rankless)!r} has no declared shape; its rank must be known: {node} reads it. "
                "Declare its dims, with names where they vary, as dynamic_axes or dynamic_shapes of the exporter do."
            )
        try:
            op = bind(node, self._opsets)
            results, _ = infer_outputs(op, self._types)
        except (LimitError, ModelError) as error:
            raise type(error)(f"{error}{self._origins(node)}") from error
        for name, t in zip(node.outputs, results, strict=False):
            if name:
                self._types.put(name, self._with_symbols(name, t))
                self._makers[name] = node
        for name in self._unread.intersection(node.inputs):
            atoms = [a for d in self._types.first(name).shape if isinstance(d, SymbolicDim) for a in d.atoms()]
            self._read.update(a.key for a in atoms)
            self._unread.remove(name)
        return op

    def _again(self, op: Op, node: Node, types: _Types) -> Op | None:
        """The operator of a node that equals the node of `op`, if all types in `types` are the same and static."""
        if op.node != node or node.domain not in self._opsets or self._rankless:
            return None
        mine = self._types
        for name in node.inputs:
            if name and (not types.is_static(name) or not mine.is_static(name) or types[name] != mine[name]):
                return None
        for name in node.outputs:
            if name and not types.is_static(name):
                return None
        for name in node.outputs:
            if name:
                mine.put(name, types[name])
                self._makers[name] = node
        result: Op = object.__new__(type(op))
        vars(result).update(vars(op), node=node, types=mine)
        return result

    def set_input(self, name: str, t: TensorType) -> None:
        """Set the type of an input that is known better than its declaration."""
        self._types.put(name, t)
        self._rankless.discard(name)

    def same(self, name: str, as_tensor: str) -> None:
        """Tensor `name` has the type of `as_tensor`."""
        t = self._types[as_tensor]
        self._types.put(name, TensorType(t.dtype, t.shape))

    def constant(self, tensor: Tensor) -> None:
        """Add an initializer."""
        self._types.constant(tensor)

    def _input(self, value: Value) -> None:
        if value.shape is None:
            self._rankless.add(value.name)
            return
        shape = tuple(self.table.declared(dim, value.name, axis) for axis, dim in enumerate(value.shape))
        self._types.put(value.name, self._with_symbols(value.name, TensorType(value.dtype, shape)))
        self._makers[value.name] = "an input"
        self._unread.add(value.name)

    def _with_symbols(self, name: str, t: TensorType) -> TensorType:
        """`t` with symbols for the numbers in it that data decide, where it may be a shape, an axis, a count."""
        if t.value is not None or t.dtype not in ("int64", "int32") or t.rank > 1:
            return t
        if not static(t.size) or t.size > SHAPE_ELEMENTS:
            return t
        elements = [f"{name}[{k}]" for k in range(t.size)] if t.rank else [name]
        value = tuple(self.table.symbol(e, f"the number {e}", low=None, named=False) for e in elements)
        return TensorType(t.dtype, t.shape, value)

    def _call_dims(self, declared: Value) -> None:
        # A symbol may stand for a computed size, which later inputs share: labels[tokens].
        shape = self._types[declared.name].shape
        if len(shape) != len(declared.shape or ()):
            return
        for axis, (dim, size) in enumerate(zip(declared.shape or (), shape, strict=True)):
            if isinstance(dim, str) and dim not in self._read:
                self.table.call(dim, size, declared.name, axis)

    def _origins(self, node: Node) -> str:
        """Describe the origin of the dims of a node's inputs, for an error."""
        parts, dims = [], []
        for name in dict.fromkeys(filter(None, node.inputs)):
            if name in self._types:
                first = self._types.first(name)
                dims += [d for d in first.shape if isinstance(d, SymbolicDim)]
                maker = self._makers.get(name, "made for a gradient")
                origin = f"made by {maker}" if isinstance(maker, Node) else maker
                parts.append(f"{name!r} {list(first.shape)} is {origin}")
        facts = self.table.explain(dims)
        if self.table.conflict and not any(self.table.conflict in t for t in facts):
            facts.append(self.table.conflict)
        return f" ({'; '.join([*parts, *facts])}.)" if parts and (dims or facts) else ""


class _Types(Mapping[str, TensorType]):
    """Types by tensor name; they follow the knowledge of the table."""

    def __init__(self, table: SymbolTable) -> None:
        self.table = table
        self._types: dict[str, TensorType] = {}
        self._now: dict[str, tuple[int, TensorType]] = {}
        """Types with symbols, as known at a version of the table."""

    def constant(self, tensor: Tensor) -> None:
        """Set the type of a constant."""
        self._types[tensor.name] = initializer_type(tensor)

    def put(self, name: str, t: TensorType) -> None:
        """Set the type of a tensor."""
        self._types[name] = t
        self._now.pop(name, None)
        if not static(*t.shape) or (t.value is not None and not static(*t.value)):
            self._now[name] = (-1, t)

    def is_static(self, name: str) -> bool:
        """Return whether a tensor is known, and without symbols."""
        return name in self._types and name not in self._now

    def first(self, name: str) -> TensorType:
        """The type as it was first inferred."""
        return self._types[name]

    def __getitem__(self, name: str) -> TensorType:
        entry = self._now.get(name)
        if entry is None:
            return self._types[name]
        version, now = entry
        if version != self.table.version:
            t = self._types[name]
            value = None if t.value is None else tuple(map(resolve, t.value))
            now = TensorType(t.dtype, tuple(map(resolve, t.shape)), value)
            self._now[name] = (self.table.version, now)
        return now

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)
