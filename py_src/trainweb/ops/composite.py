"""Operators that are graphs of others: they are expanded before differentiation and before compilation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from trainweb.ir.dims import UndecidedError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor
from trainweb.ops.emission import Emission
from trainweb.ops.infer import infer_outputs, initializer_type
from trainweb.ops.op import Op, bind, find
from trainweb.ops.symbolic import Var


class Composite(Op):
    """An operator that `expand` writes as nodes of other operators; differentiation and kernels are theirs."""

    def expand(self, g: Emission, ins: list[Var | None]) -> Sequence[Var | None]:
        """Emit the nodes; the outputs, None for those that the node leaves out."""
        raise self.unsupported("execution")

    def wants_output(self, index: int) -> bool:
        """Whether the node names output `index`."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])


class Types(Protocol):
    """The types of a graph's tensors, to which nodes and constants are added."""

    def __getitem__(self, name: str) -> TensorType: ...

    def __contains__(self, name: str) -> bool: ...

    def add(self, node: Node) -> None:
        """Infer one more node, whose inputs are known."""

    def constant(self, tensor: Tensor) -> None:
        """Add an initializer."""


class StaticTypes:
    """Types in a dict, which is copied."""

    def __init__(self, types: Mapping[str, TensorType], opsets: dict[str, int]) -> None:
        self._types, self._opsets = dict(types), opsets

    def __getitem__(self, name: str) -> TensorType:
        return self._types[name]

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def add(self, node: Node) -> None:
        """Infer one more node, whose inputs are known."""
        results, _ = infer_outputs(bind(node, self._opsets), self._types)
        self._types.update((name, t) for name, t in zip(node.outputs, results, strict=False) if name)

    def constant(self, tensor: Tensor) -> None:
        """Add an initializer."""
        self._types[tensor.name] = initializer_type(tensor)


def has_composites(graph: Graph) -> bool:
    """Whether any node is a graph of others."""
    return any(issubclass(find(node.domain, node.op_type) or Op, Composite) for node in graph.nodes)


def expand_composites(graph: Graph, types: Types) -> Graph:
    """`graph` with nodes of other operators in the place of composites; itself where there are none.

    Parameters
    ----------
    types
        Types of the inputs and initializers; those of the other tensors are added where they are missing.
    """
    if not has_composites(graph):
        return graph
    result = graph.copy()
    result.nodes = []
    used = set(graph.names())
    todo = list(reversed(graph.copy().nodes))
    while todo:
        node = todo.pop()
        op = bind(node, graph.opsets)
        if any(name and name not in types for name in node.outputs):
            types.add(node)
        if isinstance(op, Composite):
            todo += reversed(_Expansion(result, types, used, op).run())
        else:
            if node.domain:
                result.opsets.setdefault(node.domain, 1)
            result.nodes.append(node)
    return result


class _Expansion(Emission):
    """The nodes that stand for one node."""

    def __init__(self, graph: Graph, types: Types, used: set[str], op: Composite) -> None:
        self._graph, self._types, self._used, self._op = graph, types, used, op
        first = next(name for name in op.node.outputs if name)
        self._prefix = op.node.name or f"{op.node.op_type}_{first}"
        self._nodes: list[Node] = []
        self._constants: dict[tuple[Any, ...], str] = {}

    def run(self) -> list[Node]:
        """The nodes, whose results have the names of the outputs."""
        node = self._op.node
        given = [Var(self, name, self.dtype(name)) if name else None for name in node.inputs]
        try:
            results = self._op.expand(self, self._op.complete(given))
        except UndecidedError as e:
            raise self._op.unsupported(f"what depends on a size that is only known at run time ({e})") from e
        made = {name: n for n in self._nodes for name in n.outputs}
        for result, name in zip(results, node.outputs, strict=False):
            if not name:
                continue
            if result is None:
                raise self._op.unsupported(f"output {name!r}")
            source = made.pop(result.name, None)
            if source is None:
                self._nodes.append(Node("Identity", [result.name], [name], {}, "", f"{self._prefix}/Identity_{name}"))
                continue
            for n in self._nodes:
                n.inputs = [name if i == result.name else i for i in n.inputs]
                n.outputs = [name if o == result.name else o for o in n.outputs]
        return self._nodes

    @property
    def opset(self) -> int:
        return self._op.opset if not self._op.domain else self._graph.opsets.get("", 1)

    def type(self, name: str) -> TensorType:
        return self._types[name]

    def emit(
        self,
        op_type: str,
        inputs: list[str],
        domain: str,
        n_outputs: int,
        wanted: Sequence[bool],
        attrs: dict[str, Any],
    ) -> list[str]:
        name = f"{self._prefix}/{op_type}_{len(self._nodes)}"
        outputs = [self._fresh(f"{name}_out" + (f"_{i}" if i else "")) for i in range(n_outputs)]
        outputs = [output if want else "" for output, want in zip(outputs, wanted, strict=True)]
        node = Node(op_type, inputs, outputs, attrs, domain, name)
        self._types.add(node)
        self._nodes.append(node)
        return outputs

    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        values = tuple(values)
        key = (dtype, tuple(shape), tuple(map(repr, values)))
        if key not in self._constants:
            name = self._fresh(f"{self._prefix}/Constant_{len(self._constants)}")
            tensor = Tensor.of(name, dtype, shape, values)
            self._graph.initializers[name] = tensor
            self._types.constant(tensor)
            self._constants[key] = name
        return self._constants[key]

    def _fresh(self, name: str) -> str:
        unique, k = name, 0
        while unique in self._used:
            k += 1
            unique = f"{name}_{k}"
        self._used.add(unique)
        return unique
