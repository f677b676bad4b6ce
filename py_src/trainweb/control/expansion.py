"""Writes control flow out: known branches, both branches of unknown conditions, loops and scans iteration by iteration.

A value that decides (a condition, a trip count, a position in a sequence) is looked up in the types inferred so far.
Sequences exist in this module alone: each is a list of the tensors in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainweb.control.deciding import deciding_names
from trainweb.control.operators import all_nodes, is_control, read_names
from trainweb.errors import LimitError, ModelError, UnsupportedError
from trainweb.ir.dims import equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor
from trainweb.ops.frame.op import bind
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.ops.frame.since import domain_of

UNROLLED_NODES = 20_000
"""Nodes that all loops and scans of a model may become: a recurrent cell of 15 nodes, 1,000 steps with room.

Each takes about a millisecond to compile, and as much again with its gradient.
"""

Handler = Callable[["Expansion", Node, "Scope"], None]


class Scope:
    """Names of a body or a branch, and the tensors of the written graph that they stand for.

    Names that are not defined here are looked up in `parent`; without one they stay. `prefix` goes before names of
    nodes and tensors made here. `gate` is applied to tensors from outside when they are first read here. `chosen` is
    the condition, a scalar known only at run time, and the value that it must have for this to count.
    """

    def __init__(
        self,
        parent: Scope | None,
        prefix: str = "",
        gate: Callable[[str], str] | None = None,
        chosen: tuple[str, bool] | None = None,
    ) -> None:
        self.parent, self.prefix, self.gate, self.chosen = parent, prefix, gate, chosen
        self.names: dict[str, str] = {"": ""}

    def resolve(self, name: str) -> str:
        """The tensor in the written graph."""
        if self.parent is None:
            return name
        if name not in self.names:
            target = self.parent.resolve(name)
            self.names[name] = self.gate(target) if self.gate is not None else target
        return self.names[name]


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the writing of a graph: the numbers of nodes and of unrolled nodes, and the names in each scope."""

    n_nodes: int
    n_unrolled: int
    names: list[tuple[Scope, dict[str, str]]]


class Expansion:
    """The writing of a graph without control flow, and the types of its tensors so far.

    `decided` are inputs whose values each plan knows, though this graph does not.
    """

    def __init__(
        self,
        source: Graph,
        types: Mapping[str, TensorType],
        handlers: Mapping[str, Handler],
        *,
        differentiable: bool,
        decided: Collection[str] = (),
    ) -> None:
        self.source, self.handlers, self.differentiable = source, handlers, differentiable
        self.decided = decided
        self.graph = source.copy()
        self.graph.nodes = []
        self.inference = ShapeInference(self.graph)
        for name, t in types.items():
            self.inference.set_input(name, t)
        self.sequences: dict[str, list[str]] = {}
        """The tensors in each sequence. An optional, which `optionals` names, is a sequence of at most one."""
        self.optionals: set[str] = set()
        self.rows: dict[str, str] = {}
        """Sequences of one shape as the rows of a tensor; a loop makes them if its length is not known yet."""
        self.handed = deciding_names(source, moved_only=True)
        self.used = {*source.names(), *source.value_info}
        self._tried: dict[str, int] = {}
        """Number of variations of a name in use, so that thousands of one name take no time."""
        self.read = {*read_names(source)}
        self.node: Node | None = None
        """The node that is being written out, for errors."""
        self._constants: dict[tuple[Any, ...], str] = {}
        self._shared: dict[int, str] = {}
        self.n_unrolled = 0

    def run(self) -> Graph:
        """The graph without control flow."""
        scope = Scope(None)
        for node in self.source.nodes:
            self.visit(node, scope)
        for value in self.graph.outputs:
            if value.name in self.sequences or value.name in self.rows:
                raise UnsupportedError(f"Output {value.name!r} is a sequence; outputs must be tensors.")
        names = {*self.graph.names()}
        self.graph.value_info = {n: v for n, v in self.graph.value_info.items() if n in names}
        return self.graph

    def visit(self, node: Node, scope: Scope) -> None:
        """Write one node of a graph, body or branch."""
        if node.op_type == "Constant" and scope.parent is not None and isinstance(node.attrs.get("value"), Tensor):
            scope.names[node.outputs[0]] = self.share(id(node), node.attrs["value"], node.outputs[0])
            return
        inputs = [scope.resolve(name) for name in node.inputs]
        outputs = [self._defined(name, scope) for name in node.outputs]
        if node.op_type == "Loop":
            # The number of rows does not matter if nothing reads them.
            outputs = [target if name in self.read else "" for name, target in zip(node.outputs, outputs, strict=True)]
        name = scope.prefix + node.name if node.name else ""
        copied = Node(node.op_type, inputs, outputs, dict(node.attrs), node.domain, name, node.notes)
        if node.op_type == "Identity" and (inputs[0] in self.sequences or inputs[0] in self.rows):
            self.hand(inputs[0], outputs[0])
        elif not is_control(node):
            for source in inputs:
                if source in self.sequences or source in self.rows:
                    raise UnsupportedError(f"{copied} reads the sequence {source!r}, which only sequence operators do.")
            self.write(copied)
        else:
            outer, self.node = self.node, copied
            self.handlers[node.op_type](self, copied, scope)
            self.node = outer

    def _defined(self, name: str, scope: Scope) -> str:
        if not name or scope.parent is None:
            return name
        if name not in scope.names:
            scope.names[name] = self.fresh(scope.prefix + name)
        return scope.names[name]

    # Writing.

    def write(self, node: Node) -> None:
        """Add a node whose inputs are known."""
        self.graph.nodes.append(node)
        self.inference.add(node)

    def op(self, op_type: str, inputs: Sequence[str], output: str = "", **attrs: Any) -> str:
        """Add a node; the name of its output, a new one unless given."""
        (name,) = self.ops(op_type, inputs, [output or ""], **attrs)
        return name

    def ops(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> list[str]:
        """Add a node of several outputs; names are made for those without."""
        assert self.node is not None
        label = f"{self.node.name or self.node.op_type}/{op_type}"
        names = [name or self.fresh(f"{label}_out") for name in outputs]
        domain = domain_of(op_type, self.graph.opset(""))
        if domain:
            self.graph.opsets.setdefault(domain, 1)
        self.write(Node(op_type, list(inputs), names, attrs, domain, self.fresh(label)))
        return names

    def constant(self, dtype: str, shape: Sequence[int], values: Sequence[Any]) -> str:
        """An initializer, shared between equal ones."""
        key = (dtype, tuple(shape), tuple(map(repr, values)))
        if key not in self._constants:
            self._constants[key] = self.add_initializer(Tensor.of(self.fresh("constant"), dtype, shape, values))
        return self._constants[key]

    def add_initializer(self, tensor: Tensor) -> str:
        """A tensor of the written graph."""
        self.graph.initializers[tensor.name] = tensor
        self.inference.constant(tensor)
        return tensor.name

    def fresh(self, name: str) -> str:
        """`name`, or a variation that is not in use."""
        k = self._tried.get(name, 0)
        while (unique := f"{name}_{k}" if k else name) in self.used:
            k += 1
        self._tried[name] = k + 1
        self.used.add(unique)
        return unique

    def hand(self, source: str, target: str) -> None:
        """Make `source` the output `target` of the node that is written out."""
        if not target:
            return
        if source in self.rows:
            self.rows[target] = self.rows[source]
        elif source in self.sequences:
            self.sequences[target] = self.sequences[source]
            if source in self.optionals:
                self.optionals.add(target)
        else:
            self.op("Identity", [source], target)

    def hand_all(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Call `hand` for pairs of sources and targets, up to the shorter list."""
        for source, target in zip(sources, targets, strict=False):
            self.hand(source, target)

    def inline(self, body: Graph, actual: Sequence[str], scope: Scope) -> list[str]:
        """Write a body or branch for these inputs; the tensors of its outputs."""
        if len(body.inputs) != len(actual):
            raise ModelError(f"{self.node}: its body has {len(body.inputs)} inputs; it is given {len(actual)}.")
        for formal, name in zip(body.inputs, actual, strict=True):
            scope.names[formal.name] = name
        for tensor in body.initializers.values():
            scope.names[tensor.name] = self.share(id(tensor), tensor, tensor.name)
        for node in body.nodes:
            self.visit(node, scope)
        return [scope.resolve(value.name) for value in body.outputs]

    def share(self, key: int, tensor: Tensor, name: str) -> str:
        """A constant of a body, one for all iterations: a weight stays one parameter."""
        if key not in self._shared:
            shared = tensor.renamed(self.fresh(name))
            self._shared[key] = self.add_initializer(shared)
        return self._shared[key]

    def mark(self, scope: Scope) -> Mark:
        """The position of the writing, for `rewind`."""
        names: list[tuple[Scope, dict[str, str]]] = []
        each: Scope | None = scope
        while each is not None:
            names.append((each, dict(each.names)))
            each = each.parent
        return Mark(len(self.graph.nodes), self.n_unrolled, names)

    def rewind(self, mark: Mark) -> None:
        """Remove the nodes written since `mark`."""
        del self.graph.nodes[mark.n_nodes :]
        self.n_unrolled = mark.n_unrolled
        for scope, names in mark.names:
            scope.names = names

    def count_unrolled(self, since: int) -> None:
        """Count the nodes after the first `since` as unrolled, and check the limit."""
        self.n_unrolled += 1 + len(self.graph.nodes) - since
        self.check_unrolled()

    def check_unrolled(self, more: int = 0) -> None:
        """Raise if the unrolled nodes and `more` exceed the limit."""
        if self.n_unrolled + more > UNROLLED_NODES:
            raise LimitError(
                f"{self.node}: loops and scans are written out step by step, which makes more than {UNROLLED_NODES} "
                "nodes of this model. Feed shorter sequences, or export LSTM, GRU or RNN operators, which are not."
            )

    # Questions.

    def body(self, node: Node, name: str = "body") -> Graph:
        """A subgraph of a node."""
        graph = node.attrs.get(name)
        if not isinstance(graph, Graph):
            raise ModelError(f"{node} lacks the graph {name!r}.")
        return graph

    def attribute(self, node: Node, name: str) -> int:
        """An integer that a node must have."""
        number = node.attrs.get(name)
        if not isinstance(number, int):
            raise ModelError(f"{node} lacks the attribute {name!r}.")
        return number

    def type(self, name: str) -> TensorType:
        """Type of a tensor of the written graph."""
        return self.inference[name]

    def value(self, name: str) -> Any:
        """The one element of a tensor where it is known, else None."""
        elements = self.type(name).value
        return elements[0] if elements is not None and len(elements) == 1 and static(*elements) else None

    def unsupported(self, what: str) -> UnsupportedError:
        """The error that names the node which is being written out."""
        assert self.node is not None
        return UnsupportedError(
            f"{self.node}: {what}.", op=self.node.op_type, domain="", node=self.node.name, opset=self.graph.opset("")
        )

    # Choosing.

    def gate(self, condition: str, when: bool) -> Callable[[str], str] | None:
        """Return the gate for a branch's inputs from outside: zeros unless the branch is chosen.

        Both branches run. Without this, a NaN gradient of the branch that is not chosen would reach the sum of both:
        zero times NaN is NaN.
        """
        if not self.differentiable:
            return None
        return lambda name: self._gated(name, condition, when)

    def _gated(self, name: str, condition: str, when: bool) -> str:
        if name in self.sequences:
            gated = [self._gated(part, condition, when) for part in self.sequences[name]]
            target = self.fresh(f"{name}_gated")
            self.sequences[target] = gated
            return target
        t = self.type(name)
        if t.dtype != "float32" or name in self.handed:
            return name
        zero = self.constant("float32", (), [0.0])
        return self.op("Where", [condition, *((name, zero) if when else (zero, name))])

    def choose(self, condition: str, yes: str, no: str, output: str = "") -> str:
        """`yes` where the condition holds, else `no`: tensors of one type, or sequences of one length."""
        if yes in self.sequences or no in self.sequences:
            items, others = self.sequences.get(yes, []), self.sequences.get(no, [])
            if len(items) != len(others):
                raise self.unsupported("a condition that is only known at run time decides the length of a sequence")
            chosen = [self.choose(condition, x, y) for x, y in zip(items, others, strict=True)]
            output = output or self.fresh("chosen")
            self.sequences[output] = chosen
            return output
        a, b = self.type(yes), self.type(no)
        if a.dtype != b.dtype or a.rank != b.rank or not equal_shapes(a.shape, b.shape):
            shapes = f"{a.dtype}{list(a.shape)} or {b.dtype}{list(b.shape)}"
            raise self.unsupported(
                f"a condition computed from data decides whether a result is {shapes}. "
                "Export a model whose branches have results of one shape"
            )
        return self.op("Where", [condition, yes, no], output)

    def only_where_chosen(self, condition: str, scope: Scope) -> str:
        """A scalar condition that is false in branches that are not chosen."""
        each: Scope | None = scope
        while each is not None:
            if each.chosen is not None:
                chosen, when = each.chosen
                condition = self.op("And", [condition, chosen if when else self.op("Not", [chosen])])
            each = each.parent
        return condition

    def scalar(self, name: str) -> str:
        """A tensor of one element without dimensions: a condition, which then broadcasts to everything, or an index."""
        if self.type(name).rank == 0:
            return name
        return self.op("Reshape", [name, self.constant("int64", (0,), [])])

    def is_pure(self, since: int) -> bool:
        """Return whether the nodes written since there were `since` may run although they are not chosen."""
        nodes = self.graph.nodes[since:]
        return all(node.op_type != "RepeatWhile" and self._why_impure(node) is None for node in nodes)

    def check_pure(self, since: int) -> None:
        """Raise unless the nodes of a branch, written since there were `since`, may run although they are not chosen.

        Loops of the branch itself do not run then (`only_where_chosen`).
        """
        for node in self.graph.nodes[since:]:
            if (why := self._why_impure(node)) is not None:
                raise self.unsupported(
                    f"a condition that is only known at run time decides whether {node} runs, which {why}"
                )

    def _why_impure(self, node: Node) -> str | None:
        op = bind(node, self.graph.opsets)
        if op.draws or op.state_inputs:
            return "draws or updates"
        bodies = (n for inner in node.bodies() for n in all_nodes(inner))
        if any(n.op_type == "RepeatWhile" for n in bodies):
            return "holds a loop that ends when data say so, which those of the branch that is not chosen need not"
        return None
