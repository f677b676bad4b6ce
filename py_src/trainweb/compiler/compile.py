"""From a Graph and the types of its feeds to a Plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod

from trainweb.autodiff.deferred import differentiate
from trainweb.backend.base import Target
from trainweb.backend.chosen import DEFAULT_TARGET
from trainweb.backend.plan import InspectedNode, Plan
from trainweb.compiler.context import Cache, Context
from trainweb.compiler.explain import requested_dump
from trainweb.compiler.loops import LoopCompiler
from trainweb.compiler.passes.eliminate import computation
from trainweb.compiler.passes.hoist import hoist
from trainweb.compiler.pipeline import Observer, has_pass, run_passes
from trainweb.compiler.rows import rows_of_loss
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.control.deciding import deciding_names
from trainweb.errors import ModelError
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf, BufSequence, Rows, Storage
from trainweb.ir.layout import ARENA, SEGMENT_NAMES
from trainweb.ir.program import Program, Recomputation
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ITEM_SIZE, Graph, Node, Tensor
from trainweb.model.lazy import LARGE, stays_outside
from trainweb.ops.frame.composite import StaticTypes, expand_composites, has_composites
from trainweb.ops.frame.infer import infer_outputs, initializer_type
from trainweb.ops.frame.op import Op, bind

DEFAULT_ARENA_BYTES = 2 << 30
"""Workspace a plan may take unless the session's limits say otherwise."""

Run = Callable[[Graph, Sequence[str]], Mapping[str, Tensor]]
"""Computes tensors of a graph that has no inputs; nothing where that is not possible."""

FOLDED_BYTES = 256 << 10
"""A result of constants is kept if it has no more bytes than this, or than these constants."""
UNPACKED_BYTES = 4 << 10
"""Or than this if constants of fewer bits are unpacked for it, which products do themselves."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A graph input that is no feed: a tensor that lives in a segment of the session."""

    segment: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


def compile_model(
    graph: Graph,
    feeds: Mapping[str, TensorType],
    outputs: Sequence[str],
    *,
    bindings: Mapping[str, Binding] | None = None,
    sequences: Mapping[str, BufSequence] | None = None,
    known: Mapping[str, TensorType] | None = None,
    overwrite: bool = True,
    evaluate: Callable[[Plan], Mapping[str, Tensor]] | None = None,
    segment_bytes: Sequence[int] = (0,) * len(SEGMENT_NAMES),
    arena_limit: int = DEFAULT_ARENA_BYTES,
    memory_budget: int | None = None,
    cache: Cache | None = None,
    cache_trained: bool = False,
    saves_little: bool = False,
    observe: Observer | None = None,
    keep_all: bool = False,
    target: Target = DEFAULT_TARGET,
) -> Plan:
    """Compile `graph` for feeds of static shapes.

    `feeds` are the types of the inputs that the caller writes before a run, `outputs` the tensors that it reads after.
    `bindings` and `sequences` are inputs in the session's segments: parameters, gradient buffers; sequences of them.
    `known` inputs have fixed values in this plan. Gradient accumulation overwrites, or adds without `overwrite`.
    `evaluate` runs a plan without inputs: with it, results that depend only on constants are computed now, not in every
    run. `segment_bytes` are sizes of the segments, of which the arena and the constants are computed.

    `memory_budget` limits the bytes of workspace: beyond, values are computed again instead of kept. `saves_little`
    recomputes cheap results, too. `cache` keeps values that depend only on parameters from run to run, with
    `cache_trained` also values of parameters that steps change. With a memory budget, only values of large constants
    stay.

    `observe` sees the program as lowered (named "") and after every pass. `keep_all` keeps every float tensor of nodes
    until the end, as outputs: `Plan.inspected_nodes`. `target` is the back end that the plan is for.

    Raise UnsupportedError or ModelError for an operator that cannot run, or whose inputs do not fit. Raise LimitError
    for a workspace above `arena_limit`, and for a budget that is not enough.
    """
    if has_control_flow(graph):
        graph = expand_control_flow(graph, {**feeds, **(known or {})})
    context = Context(target, memory_budget, cache, cache_trained, saves_little)
    observe = observe or requested_dump(graph.name)
    compilation = _Compilation(graph, bindings or {}, sequences or {}, overwrite, target, has_pass(hoist, context))
    program = compilation.program(feeds, outputs, known or {}, evaluate, keep_all=keep_all)
    inspected_nodes = compilation.inspected_nodes
    del compilation, graph  # a copy of the model with all types, which takes megabytes
    run_passes(program, context, observe)
    plan = target.compile_program(program, segment_bytes, arena_limit)
    plan.inspected_nodes = inspected_nodes
    plan.recomputation = context.recomputation or Recomputation(plan.arena_bytes)
    if cache is not None and cache.places:
        plan.prepared_bytes, plan.kept = cache.nbytes, cache.places
    return plan


def _body_program(target: Target, body: Graph, types: Mapping[str, TensorType], outputs: Sequence[str]) -> Program:
    """The finished program of a loop's body."""
    for node in body.nodes:
        if (op := bind(node, body.opsets)).draws or op.state_inputs:
            raise op.unsupported("an operator that draws or updates, in a loop that is not written out,")
    program = _Compilation(body, {}, {}, True, target, hoists=False).program(types, outputs, {}, None)
    run_passes(program, Context(target))
    return program


class _Compilation:
    def __init__(
        self,
        graph: Graph,
        bindings: Mapping[str, Binding],
        sequences: Mapping[str, BufSequence],
        overwrite: bool,
        target: Target,
        hoists: bool,
    ) -> None:
        self.graph, self.bindings, self.sequences = graph.copy(), bindings, dict(sequences)
        self.hoists = hoists
        self.builder = Builder(overwrite=overwrite)
        self.builder.loops = LoopCompiler(partial(_body_program, target), target)
        self.types: dict[str, TensorType] = {}
        self.ops: dict[int, Op] = {}
        self.folded: set[int] = set()
        self.evaluated: set[str] = set()
        self.needed: set[int] = set()
        self.uses: dict[str, int] = {}
        self.bufs: dict[str, Buf | BufSequence] = {}
        self.preplaced: dict[str, Storage] = {}
        self.bound: dict[tuple[int, int], Storage] = {}
        self.producers: dict[str, int] = {}
        self.fed: set[str] = set()
        self.deciding: set[str] | None = None
        self.same: dict[str, str] = {}
        """By name of a tensor, the one that was computed before from the same."""
        self.inspected_nodes: list[InspectedNode] = []
        self.rows: dict[str, Rows] = {}
        self.whole: dict[str, str] = {}
        """Why the rows of other tensors are read together."""
        self.slopes = set[str]()
        """Gradients of the loss that `rows` are of."""

    def program(
        self,
        feeds: Mapping[str, TensorType],
        outputs: Sequence[str],
        known: Mapping[str, TensorType],
        evaluate: Callable[[Plan], Mapping[str, Tensor]] | None,
        *,
        keep_all: bool = False,
    ) -> Program:
        """The graph as instructions, before any pass."""

        def run(part: Graph, names: Sequence[str]) -> Mapping[str, Tensor]:
            return {} if evaluate is None else evaluate(compile_model(part, {}, names))

        try:
            self.infer(feeds, known, run)
        except ModelError as error:
            shapes = ", ".join(f"{name} {list(fed.shape)}" for name, fed in feeds.items())
            error.args = (f"{error} The inputs are {shapes}; the file may have positions for fewer.",)
            raise
        self.mark_needed(outputs)
        if evaluate is not None:
            self.fold(outputs, run)
        if self.builder.overwrite:
            self.place_gradients()
        if not keep_all:  # which reads all tensors
            ops = [self.ops[k] for k in sorted(self.needed)]
            last = [self.same.get(name, name) for name in outputs]
            self.rows, self.whole, self.slopes = rows_of_loss(ops, self.types, last)
        self.lower(feeds)
        # A feed whose value is known is a constant of the plan, which no instruction writes.
        bufs = [b for b in map(self.bufs.get, feeds) if isinstance(b, Buf) and b.storage.is_feed]
        outs = [self.output(name) for name in [*outputs, *(self.keep_floats(outputs) if keep_all else ())]]
        return Program(self.builder, bufs, outs, self.builder.instructions)

    def keep_floats(self, outputs: Sequence[str]) -> list[str]:
        """Note what each node reads and makes; the names of the tensors, without the outputs."""

        def floats(names: Sequence[str]) -> list[str]:
            return [n for n in names if n in self.bufs and n in self.types and self.types[n].dtype == "float32"]

        edges: dict[str, None] = {}
        for k in sorted(self.needed):
            op, node = self.ops[k], self.graph.nodes[k]
            ins, outs = map(floats, op.looked_at())
            is_chosen = any(isinstance(v, float) and not isfinite(v) for v in node.attrs.values())
            inspected_node = InspectedNode(
                str(node),
                node.op_type,
                ins,
                outs,
                is_chosen=is_chosen,
                is_state=self._updates_state(op),
                chooses=op.chooses,
                is_rectifier=op.is_rectifier(),
                unit_axis=op.unit_axis,
            )
            self.inspected_nodes.append(inspected_node)
            edges.update(dict.fromkeys([*ins, *outs]))
        return [name for name in edges if name not in outputs]

    # Types and shape arithmetic.

    def infer(self, feeds: Mapping[str, TensorType], known: Mapping[str, TensorType], run: Run) -> None:
        """Bind every node and find the type (and, for shape arithmetic, the value) of every tensor.

        `run` computes the shape-determining values that Python does not evaluate.
        """
        types = self.types
        self.fed = {*feeds, *self.bindings}
        types.update(feeds)
        types.update(known)
        for name, binding in self.bindings.items():
            types[name] = TensorType(binding.dtype, binding.shape)
        for name, tensor in self.graph.initializers.items():
            types.setdefault(name, initializer_type(tensor))
        if has_composites(self.graph):
            static = StaticTypes(types, self.graph.opsets)
            self.graph = expand_composites(self.graph, static, differentiate=differentiate)
            for name, tensor in self.graph.initializers.items():
                types.setdefault(name, initializer_type(tensor))
        consumers = self.graph.consumers()
        computations: dict[Hashable, Node] = {}
        for k, node in enumerate(self.graph.nodes):
            self.ops[k] = op = bind(node, self.graph.opsets)
            node.inputs = [self.same.get(name, name) for name in op.rewire(consumers, types)]
            for name in node.outputs:
                if name:
                    self.producers[name] = k
            if self.sequences and any(name in self.sequences for name in node.inputs):
                lengths = self.sequences.get(node.inputs[0])
                if lengths is not None and (derived := op.derive_sequence(lengths)) is not None:
                    self.sequences[node.outputs[0]] = derived
                continue
            results, folded = infer_outputs(op, types)
            if not folded and op.is_pure and self._decides(op):
                results, folded = self._computed(node, results, run)
            if folded:
                self.folded.add(k)
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    types[name] = result
            if op.is_pure:
                first = computations.setdefault(computation(op, results), node)
                if first is not node:
                    self.same.update((name, former) for name, former in zip(node.outputs, first.outputs, strict=True))

    def _decides(self, op: Op) -> bool:
        """Return whether the inputs of `op` are known and the rest of the compilation needs its results."""
        for name in op.node.inputs:
            if name and self.types[name].value is None:
                return False
        if self.deciding is None:
            self.deciding = deciding_names(self.graph)
        return not self.deciding.isdisjoint(op.node.outputs)

    def _computed(self, node: Node, results: list[TensorType], run: Run) -> tuple[list[TensorType], bool]:
        """Types of a node's outputs with the values that the engine computes."""
        part = Graph("deciding", [node], opsets=self.graph.opsets)
        for name in filter(None, node.inputs):
            t = self.types[name]
            part.initializers[name] = Tensor.of(name, t.dtype, t.shape, t.value or ())
        values = run(part, [name for name in node.outputs if name])
        named = zip(node.outputs, results, strict=False)
        computed = [initializer_type(values[name]) if name in values else t for name, t in named]
        return computed, all(t.value is not None for n, t in zip(node.outputs, computed, strict=True) if n)

    # What is needed.

    def mark_needed(self, outputs: Sequence[str]) -> None:
        """Find the nodes that outputs or state depend on; known values need no node."""
        nodes, sequences, types, uses, producers = (
            self.graph.nodes,
            self.sequences,
            self.types,
            self.uses,
            self.producers,
        )
        wanted = [k for k, op in self.ops.items() if op.state_inputs and self._updates_state(op)]
        for name in outputs:
            if name not in self.types:
                raise ModelError(f"The graph has no tensor {name!r} to output.")
            name = self.same.get(name, name)
            self.uses[name] = self.uses.get(name, 0) + 1
            if name in self.producers:
                wanted.append(self.producers[name])
        while wanted:
            k = wanted.pop()
            if k in self.needed or k in self.folded:
                continue
            self.needed.add(k)
            for name in nodes[k].inputs:
                if name and (name in sequences or types[name].value is None):
                    uses[name] = uses.get(name, 0) + 1
                    if name in producers:
                        wanted.append(producers[name])

    def _updates_state(self, op: Op) -> bool:
        if not op.state_inputs:
            return False
        names = [op.node.inputs[i] for i in op.state_inputs if i < len(op.node.inputs)]
        return any(name in self.bindings or name in self.sequences for name in names)

    # Nodes that depend only on constants.

    def fold(self, outputs: Sequence[str], evaluate: Callable[[Graph, list[str]], Mapping[str, Tensor]]) -> None:
        """Let `evaluate` compute the constant results that needed nodes read."""
        members, sizes, outside, unpacked = self._constant_nodes()
        stays = {self.producers.get(self.same.get(name, name), -1) for name in outputs}
        wanted: list[str] = []
        for k in sorted(self.needed, reverse=True):
            if k in members and k not in stays:
                continue
            for name in self.graph.nodes[k].inputs:
                j = self.producers.get(name, -1)
                if j not in members or j in stays or name in wanted or self.types[name].value is not None:
                    continue
                most = LARGE if name in outside else None
                most = UNPACKED_BYTES if name in unpacked else most
                if self._worth_folding(name, sizes[name]) and (most is None or self._nbytes(name) < most):
                    wanted.append(name)
                else:
                    stays.add(j)
        if not wanted:
            return
        part = self._part(wanted)
        self.evaluated.update(wanted)
        for name, tensor in evaluate(part, wanted).items():
            self.graph.initializers[name] = tensor
            self.types[name] = initializer_type(tensor)
            del self.producers[name]
        self.needed.clear()
        self.uses.clear()
        self.mark_needed(outputs)

    def _constant_nodes(self) -> tuple[set[int], dict[str, int], set[str], set[str]]:
        """Return the nodes that read only constants, and of each tensor the bytes of constants that it is made of.

        Then the names of hoisted constants, and the names of results for which numbers of fewer bits are unpacked.

        A folded result is in Python. A result of constants outside of Python stays outside, too, if the `hoist` pass
        takes its instructions out of the step. It is then computed once in the kernels' memory and kept there.
        """
        constants = {n: t for n, t in self.graph.initializers.items() if n not in self.fed}
        sizes = {n: t.nbytes for n, t in constants.items()}
        outside = {n for n, t in constants.items() if self.hoists and stays_outside(t)}
        members: set[int] = set()
        unpacked: set[str] = set()
        for k in sorted(self.needed):
            inputs = [name for name in self.graph.nodes[k].inputs if name]
            known = [sizes.get(n, 0 if n in self.types and self.types[n].value is not None else None) for n in inputs]
            if self.ops[k].is_pure and None not in known:
                members.add(k)
                sizes.update((name, sum(n or 0 for n in known)) for name in self.graph.nodes[k].outputs if name)
                if not outside.isdisjoint(inputs):
                    outside.update(self.graph.nodes[k].outputs)
                if self.ops[k].unpacks or not unpacked.isdisjoint(inputs):
                    unpacked.update(self.graph.nodes[k].outputs)
        return members, sizes, outside, unpacked

    def _nbytes(self, name: str) -> int:
        t = self.types[name]
        return t.size * ITEM_SIZE[t.dtype]

    def _worth_folding(self, name: str, made_of: int) -> bool:
        root = self._root(name)
        if root is None:
            return False  # a view of a constant
        if all(self.types[n].value is not None for n in self.graph.nodes[self.producers[root]].inputs if n):
            return False  # made of a few numbers: cheaper than reading it
        return self._nbytes(name) <= max(made_of, FOLDED_BYTES)

    def _part(self, wanted: Sequence[str]) -> Graph:
        """The graph of the nodes and constants that `wanted` are made of."""
        part = Graph("constants", opsets=self.graph.opsets)
        names, nodes = list(wanted), set()
        while names:
            name = names.pop()
            k = self.producers.get(name)
            value = self.types[name].value if name else None
            if value is not None:
                part.initializers[name] = Tensor.of(name, self.types[name].dtype, self.types[name].shape, value)
            elif k is not None and k not in nodes:
                nodes.add(k)
                names += self.graph.nodes[k].inputs
            elif name in self.graph.initializers:
                part.initializers[name] = self.graph.initializers[name]
        part.nodes = [self.graph.nodes[k] for k in sorted(nodes)]
        return part

    # Gradients go straight to their buffers.

    def place_gradients(self) -> None:
        """Let the node that makes a gradient write it into the accumulation buffer."""
        for k in sorted(self.needed):
            op = self.ops[k]
            if not op.accumulates:
                continue
            buffer, value = op.node.inputs[0], op.node.inputs[1]
            binding = self.bindings.get(buffer)
            root = self._root(value)
            if binding is None or root is None or root in self.preplaced:
                continue
            if self.types[root].size == self.types[buffer].size:
                self.preplaced[root] = self._bound_storage(binding)

    def _bound_storage(self, binding: Binding) -> Storage:
        """One storage for each place in a segment: hazards are found by identity."""
        nbytes = prod(binding.shape) * ITEM_SIZE[binding.dtype]
        key = (binding.segment, binding.offset)
        return self.bound.setdefault(key, Storage(binding.segment, nbytes, binding.offset))

    def _root(self, name: str) -> str | None:
        """The tensor that is computed where `name` is only a view of it."""
        while True:
            k = self.producers.get(name)
            if k is None or k in self.folded:
                return None
            if not self.ops[k].is_view:
                return name
            name = self.graph.nodes[k].inputs[0]

    # Instructions.

    def lower(self, feeds: Mapping[str, TensorType]) -> None:
        """Lower every needed node."""
        for name, t in feeds.items():
            if name in self.uses:
                storage = Storage(ARENA, t.size * ITEM_SIZE[t.dtype], is_feed=True)
                self.bufs[name] = Buf(storage, t.dtype, t.shape, name=name)
        for k in sorted(self.needed):
            op, node = self.ops[k], self.graph.nodes[k]
            self.builder.node = str(node)
            ins = op.complete([self._buf(name) if name else None for name in node.inputs])
            if op.is_view and isinstance(ins[0], Buf):
                self._view(node.outputs[0], ins[0])
            else:
                op.lower(self.builder, self._outputs(op), *ins)
        self.builder.advance()

    def _view(self, name: str, source: Buf) -> None:
        view = source.view(self.types[name].shape)
        view.name, view.value = name, self.types[name].value
        self.bufs[name] = view

    def _buf(self, name: str) -> Buf | BufSequence:
        if name in self.bufs:
            return self.bufs[name]
        if name in self.sequences:
            return self.sequences[name]
        t = self.types[name]
        if name in self.bindings:
            binding = self.bindings[name]
            buf = Buf(self._bound_storage(binding), t.dtype, t.shape, name=name)
        elif name in self.graph.initializers and self.producers.get(name) is None:
            buf = self.builder.constant_tensor(self.graph.initializers[name], t.value)
            if name in self.evaluated:
                buf.storage.name = ""
        elif t.value is not None:
            buf = self.builder.constant(t.dtype, t.shape, t.value)
            buf.name = name
        else:
            raise ModelError(f"Nothing makes {name!r} before it is read.")
        self.bufs[name] = buf
        return buf

    def _outputs(self, op: Op) -> list[Buf | None]:
        outs: list[Buf | None] = []
        for name in op.node.outputs:
            if not name or name not in self.uses or name in self.sequences:
                outs.append(None)
                continue
            t = self.types[name]
            rows, whole, size = self.rows.get(name), self.whole.get(name, ""), t.size * ITEM_SIZE[t.dtype]
            storage = self.preplaced.get(name) or Storage(
                ARENA, size, rows=rows, whole=whole, is_slope=name in self.slopes
            )
            buf = Buf(storage, t.dtype, t.shape, name=name)
            self.bufs[name] = buf
            outs.append(buf)
        return outs + [None] * (op.n_outputs - len(outs))

    def output(self, name: str) -> Buf:
        """The buffer to read `name` from."""
        buf = self._buf(self.same.get(name, name))
        if not isinstance(buf, Buf):
            raise ModelError(f"Output {name!r} is a sequence.")
        return Buf(buf.storage, buf.dtype, self.types[name].shape, buf.value, buf.shift, name)
