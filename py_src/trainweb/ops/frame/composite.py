"""Operators that are graphs of others: they are expanded before differentiation and before compilation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from trainweb.ir.dims import UndecidedError
from trainweb.ir.shapes import TensorType
from trainweb.ir.symbols import SymbolTable
from trainweb.model.graph import TRAINWEB, Graph, Node, Tensor, take_name
from trainweb.model.lazy import identity
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.infer import infer_outputs, initializer_type
from trainweb.ops.frame.op import MANY, Int, Ints, Names, Op, Str, bind, find
from trainweb.ops.frame.symbolic import Var

if TYPE_CHECKING:
    from trainweb.ops.frame.shapes import ShapeInference

FORWARD = "forward_"
"""Attributes of a node whose gradient waits have this before their names."""


class Composite(Op, abstract=True):
    """An operator that `expand` writes as nodes of other operators; differentiation and kernels are theirs."""

    def expand(self, g: Emission, *ins: Any) -> Sequence[Var | None]:
        """Emit the nodes on `ins`, None where absent; return the outputs, None for outputs that the node leaves out."""
        raise self.unsupported("execution")

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        """One node, which is differentiated once the sizes that decide the expansion are known."""
        return gradient_for_sizes(self, g, ins, douts)

    def wants_output(self, index: int) -> bool:
        """Return whether the node names output `index`."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])


def gradient_for_sizes(op: Op, g: GradientBuilder, ins: Sequence[str], douts: Sequence[str | None]) -> list[str | None]:
    """Gradients as one node, which `op` differentiates when compilation knows the sizes."""
    wanted = [i for i, name in enumerate(ins) if i in op.differentiable and name and g.wants(name)]
    if not wanted:
        raise op.unsupported("differentiation before all sizes are known")
    seeds = [k for k, dy in enumerate(douts) if dy is not None]
    attrs: dict[str, Any] = {FORWARD + name: value for name, value in op.node.attrs.items()}
    attrs |= {"of": op.node.op_type, "inputs": len(ins), "wanted": wanted, "seeds": seeds}
    if op.node.domain:
        attrs["of_domain"] = op.node.domain
    inputs = [*ins, *(douts[k] or "" for k in seeds)]
    names = g.ops("CompositeGradient", inputs, len(wanted), domain=TRAINWEB, **attrs)
    gradients = dict(zip(wanted, names, strict=True))
    return [gradients.get(i) for i in range(len(ins))]


class CompositeGradient(Composite):
    """Gradients of a composite node whose parts depend on sizes: expanded when the sizes are known.

    Inputs are the inputs of the forward node and the gradients of its outputs `seeds`; outputs are the gradients of its
    inputs `wanted`.
    """

    domain = TRAINWEB
    attrs = {
        "of": Str(required=True),
        "of_domain": Str(""),
        "inputs": Int(required=True),
        "wanted": Ints(required=True),
        "seeds": Ints(required=True),
    }
    min_inputs, max_inputs = 2, MANY

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        sources = [inputs[i] if 0 <= i < self.inputs < len(inputs) else None for i in self.wanted]
        types = tuple(TensorType(t.dtype, t.shape) for t in sources if t is not None)
        if len(types) != len(self.wanted) or len(inputs) != self.inputs + len(self.seeds):
            raise self.error(
                f"{len(inputs)} inputs are not {self.inputs} of {self.of} and {len(self.seeds)} gradients."
            )
        return types

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        raise self.unsupported("differentiation of a gradient")

    def forward(self) -> Node:
        """The forward node: its inputs are called `in_0`, ..., its outputs, where they have a gradient, `out_0`, ..."""
        inputs = [f"in_{i}" if name else "" for i, name in enumerate(self.node.inputs[: self.inputs])]
        outputs = [f"out_{k}" if k in self.seeds else "" for k in range(max(self.seeds, default=-1) + 1)]
        attrs = {n.removeprefix(FORWARD): v for n, v in self.node.attrs.items() if n.startswith(FORWARD)}
        return Node(self.of, inputs, outputs, attrs, self.of_domain, self.node.name)


Types: TypeAlias = "ShapeInference | StaticTypes"
"""The types of a graph's tensors, to which nodes and constants are added."""
Differentiate = Callable[[CompositeGradient, Types, dict[str, int]], Graph]
"""A graph whose inputs have the types of `in_0`, ..., and `out_0_grad`, ...; its gradients are `in_0_grad`, ..."""


class StaticTypes(dict[str, TensorType]):
    """Types of the tensors of a graph or a body, node by node; `table` has the symbols of the graph around a body."""

    table: SymbolTable | None = None

    def __init__(self, types: Mapping[str, TensorType], opsets: dict[str, int]) -> None:
        super().__init__(types)
        self._opsets = opsets

    def add(self, node: Node) -> None:
        """Infer one more node, whose inputs are known."""
        results, _ = infer_outputs(bind(node, self._opsets), self)
        self.update((name, t) for name, t in zip(node.outputs, results, strict=False) if name)

    def constant(self, tensor: Tensor) -> None:
        """Add an initializer."""
        self[tensor.name] = initializer_type(tensor)

    def add_all(self, body: Graph) -> None:
        """Infer all nodes of a body, whose inputs are known."""
        for tensor in body.initializers.values():
            self.constant(tensor)
        for node in body.nodes:
            self.add(node)


def has_composites(graph: Graph) -> bool:
    """Return whether any node is a graph of others."""
    return any(issubclass(find(node.domain, node.op_type) or Op, Composite) for node in graph.nodes)


def expand_composites(
    graph: Graph,
    types: Types,
    *,
    differentiate: Differentiate | None = None,
    keep: bool = False,
) -> Graph:
    """`graph` with nodes of other operators in the place of composites; itself where there are none.

    `types` of the inputs and initializers are there; types of the other tensors are added where they are missing.
    `differentiate` makes the nodes of gradients that waited for sizes. `keep`: nodes stay that depend on an unknown
    size.
    """
    if not has_composites(graph):
        return graph
    result = graph.copy()
    result.nodes = []
    names = _Names(result, types)
    todo = list(reversed(graph.copy().nodes))
    while todo:
        node = todo.pop()
        op = bind(node, graph.opsets)
        if any(name and name not in types for name in node.outputs):
            types.add(node)
        if isinstance(op, CompositeGradient) and differentiate is not None:
            todo += reversed(_inlined(op, differentiate(op, types, graph.opsets), names))
            continue
        nodes = _expanded(op, names, keep=keep) if isinstance(op, Composite) else None
        if nodes is not None:
            todo += reversed(nodes)
            continue
        if node.domain:
            result.opsets.setdefault(node.domain, 1)
        result.nodes.append(node)
    read = {name for node in result.nodes for name in node.inputs}
    result.initializers = {n: t for n, t in result.initializers.items() if n in read or n not in names.added}
    return result


def _expanded(op: Composite, names: _Names, *, keep: bool) -> list[Node] | None:
    try:
        return _Expansion(names, op).run()
    except UndecidedError as e:
        if keep:
            return None
        raise op.unsupported(f"what depends on a size that is only known at run time ({e})") from e


def _inlined(op: CompositeGradient, graph: Graph, names: _Names) -> list[Node]:
    """Nodes of the gradient of a forward node, whose inputs and results have the names of `op`."""
    inputs = op.node.inputs
    renamed = {f"in_{i}": name for i, name in enumerate(inputs[: op.inputs])}
    renamed |= {f"out_{k}_grad": name for k, name in zip(op.seeds, inputs[op.inputs :], strict=True)}
    renamed |= {f"in_{i}_grad": name for i, name in zip(op.wanted, op.node.outputs, strict=True)}
    for name, tensor in graph.initializers.items():
        if name not in renamed:
            renamed[name] = names.constant(tensor, op.node.name or op.node.outputs[0])
    for node in graph.nodes:
        for name in node.outputs:
            if name and name not in renamed:
                renamed[name] = names.fresh(f"{op.node.name or op.node.outputs[0]}/{name}")
    for node in graph.nodes:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        node.outputs = [renamed.get(name, name) for name in node.outputs]
    return graph.nodes


class _Names:
    """The names and constants of a graph that grows."""

    def __init__(self, graph: Graph, types: Types) -> None:
        self.graph, self.types = graph, types
        self.added: set[str] = set()
        """Constants that were added."""
        self._used = set(graph.names())
        self._constants: dict[Hashable, str] = {}

    def fresh(self, name: str) -> str:
        """`name`, or a variation of it that is not in use."""
        return take_name(name, self._used)

    def constant(self, tensor: Tensor, prefix: str) -> str:
        """The name of the one initializer that equals `tensor`, so that equal subexpressions are found."""
        key = identity(tensor)
        if key not in self._constants:
            name = self.fresh(f"{prefix}/Constant_{len(self._constants)}")
            self.graph.initializers[name] = tensor.renamed(name)
            self.types.constant(self.graph.initializers[name])
            self.added.add(name)
            self._constants[key] = name
        return self._constants[key]


class _Expansion(Emission):
    """The expansion of one node."""

    def __init__(self, names: _Names, op: Composite) -> None:
        self._names, self._types, self._op = names, names.types, op
        first = next(name for name in op.node.outputs if name)
        super().__init__(op.node.name or f"{op.node.op_type}_{first}")

    def run(self) -> list[Node]:
        """The nodes, whose results have the names of the outputs."""
        node = self._op.node
        inputs = [Var(self, name, self.dtype(name)) if name else None for name in node.inputs]
        results = self._op.expand(self, *self._op.complete(inputs))
        makers = {name: n for n in self.nodes for name in n.outputs}
        for result, name in zip(results, node.outputs, strict=False):
            if not name:
                continue
            if result is None:
                raise self._op.unsupported(f"output {name!r}")
            source = makers.pop(result.name, None)
            if source is None:
                self.nodes.append(Node("Identity", [result.name], [name], {}, "", f"{self.prefix}/Identity_{name}"))
                continue
            for n in self.nodes:
                n.inputs = [name if i == result.name else i for i in n.inputs]
                n.outputs = [name if o == result.name else o for o in n.outputs]
        return self.nodes

    @property
    def opset(self) -> int:
        return self._op.opset if not self._op.domain else self._names.graph.opsets.get("", 1)

    def type(self, name: str) -> TensorType:
        return self._types[name]

    def fresh(self, base: str) -> str:
        return self._names.fresh(base)

    def add(self, node: Node) -> None:
        self._types.add(node)
        super().add(node)

    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        return self._names.constant(Tensor.of("", dtype, shape, tuple(values)), self.prefix)
