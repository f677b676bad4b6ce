"""Reverse-mode differentiation, Graph -> Graph.

The graph is walked once from the loss backwards. Each operator's `gradient` emits the nodes that compute the gradients
of its inputs from the gradients of its outputs. Operators and names follow ONNX Runtime
training: the gradient of tensor `t` is `t_grad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainweb.autodiff.fake_quantization import between, refuse_rounding, with_straight_gradients
from trainweb.errors import GradientError, ModelError, UnsupportedError
from trainweb.ir.dims import static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TORCH, Graph, Node, Tensor, Value, take_name
from trainweb.ops.elementwise import MOST_TERMS
from trainweb.ops.frame.composite import Composite, expand_composites, has_composites
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Op
from trainweb.ops.frame.shapes import ShapeInference

FLOATING = frozenset({"float32", "float64", "float16", "bfloat16"})
"""Only tensors of these dtypes carry gradients."""
GRADIENT_SUFFIX = "_grad"
VARIADIC = 64
"""Operators with so many inputs are variadic: what flows through one flows through all."""


def build_gradients(
    graph: Graph,
    loss: str | None,
    wanted: Sequence[str],
    *,
    seeds: Sequence[str] = (),
    stopped: Sequence[str] = (),
    former: ShapeInference | None = None,
) -> Graph:
    """Extend `graph` by the nodes that compute the gradient of `loss` for every tensor in `wanted`.

    The graph is not changed. The gradient of `x` becomes the tensor `<x>_grad`; the gradient of the loss is an
    initializer of ones. `seeds` are more tensors to differentiate: `<y>_grad` becomes a graph input. No gradient goes
    through tensors in `stopped`. `former` has the types of a graph with many of the same nodes. In the result,
    `value_info` has the types of the gradients, and the inputs declare the operators' demands on their dims.

    Raise GradientError if an operator on the way from the loss to a wanted tensor has no gradient, or there is no way.
    It is an UnsupportedError if activations are rounded on the way.
    """
    refuse_rounding(between(graph, wanted, [loss or "", *seeds], stopped))
    return _ReverseWalk(graph, loss, wanted, seeds, stopped, former).run()


def influences(
    graph: Graph, outputs: Sequence[str], stopped: Sequence[str] = (), inference: ShapeInference | None = None
) -> set[str]:
    """Names of the tensors from which a gradient path leads to one of `outputs`, not through one of `stopped`.

    `inference` has the types of the graph where somebody asked for them before.
    """
    written, stopped = _written_out(graph, stopped)
    if written is not graph:
        inference = None
    return _Paths(inference or ShapeInference(written), outputs, stopped).relevant()


def influenced(graph: Graph, sources: Sequence[str], stopped: Sequence[str] = ()) -> set[str]:
    """Names of the tensors from which a gradient path leads to one of `sources`, not through one of `stopped`."""
    graph, stopped = _written_out(graph, stopped)
    return _Paths(ShapeInference(graph), (), stopped).downstream(sources)


def _written_out(graph: Graph, stopped: Sequence[str]) -> tuple[Graph, Sequence[str]]:
    """The graph with composites and fake quantization expanded, and its `stopped` tensors."""
    graph, stopped = with_straight_gradients(graph, stopped)
    if has_composites(graph):
        graph = expand_composites(graph, ShapeInference(graph), keep=True)
    return graph, stopped


class _Paths:
    """The inputs of each node through which a gradient flows, on the way to the tensors `roots`."""

    def __init__(self, inference: ShapeInference, roots: Sequence[str], stopped: Sequence[str]) -> None:
        self.inference, self.ops, self.roots = inference, inference.ops, list(roots)
        constant = set(stopped)
        self.flows = [[i for i in self._flows(op) if op.node.inputs[i] not in constant] for op in self.ops]

    def relevant(self) -> set[str]:
        """Tensors from which a gradient path leads to the roots."""
        names = set(self.roots)
        for op, flows in zip(reversed(self.ops), reversed(self.flows), strict=True):
            if flows and not names.isdisjoint(op.node.outputs):
                names.update(op.node.inputs[i] for i in flows)
        return names

    def downstream(self, sources: Sequence[str]) -> set[str]:
        """The sources, and tensors computed from them that carry gradients."""
        names = set(sources)
        for op, flows in zip(self.ops, self.flows, strict=True):
            if not names.isdisjoint(op.node.inputs[i] for i in flows):
                names.update(name for name in op.node.outputs if name and self._carries(name))
        return names

    def _flows(self, op: Op) -> list[int]:
        """Inputs of a node through which a gradient flows."""
        indices: Iterable[int] = op.differentiable
        unwritten = not indices and type(op).gradient in (Op.gradient, Composite.gradient)
        if unwritten or (indices and op.max_inputs >= VARIADIC):
            # An operator whose gradient nobody wrote must be found out, not taken for a constant.
            indices = range(len(op.node.inputs))
        if not any(name and self._carries(name) for name in op.node.outputs):
            return []
        inputs = op.node.inputs
        return [i for i in indices if i < len(inputs) and inputs[i] and self._carries(inputs[i])]

    def _carries(self, name: str) -> bool:
        return name in self.inference and self.inference.dtype(name) in FLOATING


class _ReverseWalk(_Paths):
    def __init__(
        self,
        graph: Graph,
        loss: str | None,
        wanted: Sequence[str],
        seeds: Sequence[str],
        stopped: Sequence[str] = (),
        former: ShapeInference | None = None,
    ) -> None:
        graph, stopped = _written_out(graph, stopped)
        self.graph = graph.copy()
        self.loss, self.wanted = loss, list(wanted)
        roots = ([loss] if loss else []) + [y for y in seeds if y != loss]
        super().__init__(ShapeInference(self.graph, former), roots, stopped)
        self.makers = self.graph.producers()
        self.used = set(self.graph.names())
        for name in self.wanted:
            if name + GRADIENT_SUFFIX in self.used:
                raise ModelError(f"The model has a tensor {name + GRADIENT_SUFFIX!r}, the name of a gradient.")
        self.constants: dict[tuple[Any, ...], str] = {}
        self.shapes: dict[str, str] = {}
        self.partials: dict[str, list[tuple[_Builder, str]]] = {}
        self.emitted: list[_Builder | Node] = []
        self.gradient_types: dict[str, Value] = {}
        self.needed: set[str] = set()
        self.missing: list[GradientError] = []

    # The walk.

    def run(self) -> Graph:
        self.needed = self._needed()
        for root in self.roots:
            self._seed(root)
        for index in reversed(range(len(self.ops))):
            self._visit(index)
        if self.missing:
            first, *others = self.missing
            first.others = tuple(others)
            raise first
        for name in self.wanted:
            if name not in self.makers:
                self._total(name)
            if name not in self.roots and name + GRADIENT_SUFFIX not in self.gradient_types:
                raise self._unreachable(name)
        return self._finish()

    def _visit(self, index: int) -> None:
        op = self.ops[index]
        node = op.node
        if not any(name in self.needed for name in node.outputs):
            return
        douts = [self._total(name) if name in self.needed else None for name in node.outputs]
        flowing = [i for i in self.flows[index] if node.inputs[i] in self.needed]
        if not flowing or all(d is None for d in douts):
            return
        g = _Builder(self, node, index)
        self.emitted.append(g)
        try:
            results = op.gradient(g, list(node.inputs), list(node.outputs), douts)
        except UnsupportedError as error:
            # The walk goes on, so that the error lists all missing gradients.
            self.missing.append(self._no_gradient(op, index, str(error)))
            return
        claimed: dict[str, str] = {}
        for i in flowing:
            result = results[i] if i < len(results) else None
            if result is None:
                continue
            partial = self.fresh(f"{node.inputs[i]}{GRADIENT_SUFFIX}.partial")
            g.claim(result, partial, claimed)
            self.partials.setdefault(node.inputs[i], []).append((g, partial))

    def _total(self, name: str) -> str | None:
        """The gradient of `name`, all of whose consumers have been visited."""
        gradient = name + GRADIENT_SUFFIX
        partials = self.partials.pop(name, [])
        if not partials:
            return gradient if name in self.roots else None
        names, terms = [gradient], []
        if name in self.roots:
            # The tensor is differentiated itself and leads to another one that is.
            gradient, names, terms = self.fresh(f"{gradient}_total"), [], [gradient]
        if len(partials) + len(terms) > 1:
            names = [f"{gradient}_{k}" for k in range(len(partials))]
            terms, sums = terms + names, []
            while len(terms) > MOST_TERMS:
                sums.append(self.fresh(f"{gradient}_sum"))
                self.emitted.append(Node("Sum", terms[:MOST_TERMS], sums[-1:], {}, "", f"Accumulate_{sums[-1]}"))
                terms = [sums[-1], *terms[MOST_TERMS:]]
            self.emitted.append(Node("Sum", terms, [gradient], {}, "", f"AccumulateGrad_{gradient}"))
            names += sums
        for (g, partial), final in zip(partials, names, strict=False):
            g.rename(partial, final)
        self.used.update((gradient, *names))
        value = self.value(name)
        for final in dict.fromkeys((gradient, *names)):
            self.gradient_types[final] = Value(final, value.dtype, value.shape)
        return gradient

    def _seed(self, root: str) -> None:
        value, gradient = self.value(root), root + GRADIENT_SUFFIX
        if root != self.loss:
            self.graph.inputs.append(Value(gradient, value.dtype, value.shape))
        else:
            shape = tuple(dim if isinstance(dim, int) else 1 for dim in value.shape or ())
            self.graph.initializers[gradient] = Tensor.of(gradient, value.dtype, shape, [1.0])
        self.used.add(gradient)

    def _finish(self) -> Graph:
        """Return the graph with the emitted nodes, without unused ones."""
        nodes = [n for e in self.emitted for n in (e.nodes if isinstance(e, _Builder) else [e])]
        live = {name + GRADIENT_SUFFIX for name in self.wanted}
        backward = []
        for node in reversed(nodes):
            if any(name in live for name in node.outputs):
                live.update(node.inputs)
                backward.append(node)
        backward.reverse()
        self.graph.nodes += backward
        self.graph.inputs = [self.inference.refined(v) if isinstance(v, Value) else v for v in self.graph.inputs]
        for node in backward:
            if node.domain:
                self.graph.opsets.setdefault(node.domain, 1)
        read = {name for node in self.graph.nodes for name in node.inputs}
        for name in self.constants.values():
            if name not in read:
                del self.graph.initializers[name]
        results = {name for node in backward for name in node.outputs}
        # In an order that is the same in every process: files that are built twice are the same bytes.
        self.graph.value_info.update({name: value for name, value in self.gradient_types.items() if name in results})
        # The builders know this walk: without the cycle, the model's bytes are given back before the next collection.
        self.emitted.clear()
        self.partials.clear()
        return self.graph

    # Names on the way from the loss to a wanted tensor.

    def _needed(self) -> set[str]:
        relevant = self.relevant()
        for name in self.wanted:
            if name not in relevant:
                raise self._unreachable(name)
        return self.downstream(self.wanted) & relevant

    def _unreachable(self, name: str) -> GradientError:
        advice = (
            "; torch's exporter may have merged it: export with optimize=False" if self.graph.producer == TORCH else ""
        )
        return GradientError(
            f"Cannot compute the partial derivative for {name!r} as it's unreachable from the output node(s){advice}."
        )

    def _no_gradient(self, op: Op, index: int, reason: str) -> GradientError:
        path = [n.name or f"{n.op_type}_{k}" for k, n in self._path(index)]
        return GradientError(
            f"The gradient of {op.op_type()} is not supported: {op.node}. It lies on the way from "
            f"{', '.join(map(repr, self.roots))} over {' <- '.join(path)}. {reason}",
            op=op.op_type(),
            node=op.node.name,
            path=path,
        )

    def _path(self, index: int) -> list[tuple[int, Node]]:
        """Nodes from the loss back to node `index`, along needed tensors."""
        consumers: dict[str, int] = {}
        for k, op in enumerate(self.ops):
            if any(name in self.needed for name in op.node.outputs):
                for i in self.flows[k]:
                    consumers[op.node.inputs[i]] = k
        path, k = [], index
        while True:
            path.append((k, self.ops[k].node))
            outputs = self.ops[k].node.outputs
            following = [consumers[o] for o in outputs if o in consumers and o in self.needed]
            if any(o in self.roots for o in outputs) or not following:
                return path[::-1]
            k = following[0]

    # Services for the builders.

    def value(self, name: str) -> Value:
        """Dtype and shape of a forward tensor or a gradient, as a file declares them."""
        self.type(name)
        return self.inference.value(self._known_as(name))

    def type(self, name: str, pending: Sequence[Node] = ()) -> TensorType:
        """Type of a forward tensor, of a gradient, or of a tensor a node in `pending` makes."""
        name = self._known_as(name)
        if name not in self.inference:
            self._infer(name, pending)
        return self.inference[name]

    def dtype(self, name: str, pending: Sequence[Node] = ()) -> str:
        """Dtype of a tensor, as for `type`."""
        return self.inference.dtype(name) if name in self.inference else self.type(name, pending).dtype

    def _known_as(self, name: str) -> str:
        """The name whose type is known: an uninferred gradient has the type of its tensor."""
        gradient = name not in self.inference and name.endswith(GRADIENT_SUFFIX)
        return name[: -len(GRADIENT_SUFFIX)] if gradient else name

    def _infer(self, name: str, pending: Sequence[Node]) -> None:
        if self._adopt(name):
            return
        makers = {o: node for node in pending for o in node.outputs}
        if name not in makers:
            nodes = [n for e in self.emitted for n in (e.nodes if isinstance(e, _Builder) else [e])]
            makers |= {o: node for node in nodes for o in node.outputs}
        if name not in makers:
            raise ModelError(f"The type of {name!r} is asked for, which no node makes.")
        for i in makers[name].inputs:
            if i and i not in self.inference:
                self._infer(i, pending)
        self.inference.add(makers[name])

    def _adopt(self, name: str) -> bool:
        """Let inference know a gradient, which has its tensor's type, or a new constant."""
        if name.endswith(GRADIENT_SUFFIX) and name[: -len(GRADIENT_SUFFIX)] in self.inference:
            self.inference.same(name, name[: -len(GRADIENT_SUFFIX)])
            return True
        if name in self.graph.initializers:
            self.inference.constant(self.graph.initializers[name])
            return True
        return False

    def fresh(self, name: str) -> str:
        """`name`, or a variation of it that is not in use."""
        return take_name(name, self.used)

    def constant(self, dtype: str, shape: tuple[int, ...], values: tuple[Any, ...]) -> str:
        key = (dtype, shape, tuple(map(repr, values)))
        if key not in self.constants:
            name = self.fresh(_constant_name(dtype, shape, values))
            self.graph.initializers[name] = Tensor.of(name, dtype, shape, values)
            self.constants[key] = name
        return self.constants[key]

    def shape_of(self, g: GradientBuilder, name: str) -> str:
        if name not in self.shapes:
            self.shapes[name] = g.op("Shape", [name])
        return self.shapes[name]


def _constant_name(dtype: str, shape: tuple[int, ...], values: tuple[Any, ...]) -> str:
    scalars = {0.0: "Zero", 0.5: "Half", 1.0: "One"}
    if dtype == "float32" and shape == (1,) and values[0] in scalars:
        return f"{scalars[values[0]]}Constant_Type1"
    return f"GradientConstant_{dtype}"


class _Builder(GradientBuilder):
    """Emits the gradients of one forward node of a walk."""

    def __init__(self, walk: _ReverseWalk, node: Node, index: int) -> None:
        super().__init__(f"{node.name or f'{node.op_type}_{index}'}_Grad")
        self._walk, self._node = walk, node

    @property
    def opset(self) -> int:
        opsets = self._walk.graph.opsets
        return opsets.get("", opsets.get("ai.onnx", 1))

    def type(self, name: str) -> TensorType:
        return self._walk.type(name, self.nodes)

    def dtype(self, name: str) -> str:
        return self._walk.dtype(name, self.nodes)

    def known(self, name: str) -> TensorType | None:
        t = self.type(name)
        return t if t.value is not None and static(*t.value) else None

    def wants(self, name: str) -> bool:
        return name in self._walk.needed

    def producer(self, name: str) -> Node | None:
        return self._walk.makers.get(name)

    def fresh(self, base: str) -> str:
        return self._walk.fresh(base)

    def constant(self, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> str:
        return self._walk.constant(dtype, tuple(shape), tuple(values))

    def shape_of(self, name: str) -> str:
        return self._walk.shape_of(self, name)

    def extra_output(self, index: int, suffix: str) -> str:
        outputs = self._node.outputs
        outputs += [""] * (index + 1 - len(outputs))
        if not outputs[index]:
            outputs[index] = self.fresh(outputs[0] + suffix)
            self._walk.inference.add(self._node)
        return outputs[index]

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


__all__ = ["FLOATING", "GRADIENT_SUFFIX", "build_gradients", "influences"]
