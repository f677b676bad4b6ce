"""From a causal language model to a graph that computes only new tokens, beside a cache of the earlier ones.

The model is inferred at two lengths, T and T - 1. Axes whose size differs are axes of the sequence. A tensor that
depends on the ids has one such axis of *rows*, one row a token. The decoding graph has only the n new rows of it.
Tensors that depend on shapes and constants, such as masks and rotations, stay whole, and the rows at the new positions
are picked. An operand that is needed at all positions, such as keys, is a cache of T rows, into which the new rows are
written. The causal mask hides the rows that are not written yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import prod

from trainweb import messages
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.errors import ModelError
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import ITEM_SIZE, TRAINWEB, Graph, Node, Tensor, Value, take_name
from trainweb.ops.axes import Axes, Labels, axes_of
from trainweb.ops.frame.composite import StaticTypes, expand_composites, has_composites
from trainweb.ops.frame.infer import infer_outputs, initializer_type
from trainweb.ops.frame.op import Op, bind

IDS = "trainweb.ids"
"""Input: the new tokens, (1, n), in the place of the model's input of ids."""
POSITIONS = "trainweb.positions"
"""Input: the positions of the new rows, int64 (n,)."""
LAST = "trainweb.last"
"""Input, where there are several new rows: the one that the output is of, int64 (1,)."""
LAST_POSITION = "trainweb.last_position"
"""Input, where there are several new rows: the position of that row, int64 (1,)."""
SHORTEST = 3
"""The least length: axes of both lengths are then longer than 1, which broadcasts."""
COMPANIONS = "mask", "position", "token_type"
"""Parts of the names of inputs beside the ids."""
COMPANION_TYPES = "int64", "int32", "bool"
"""Their types. Inputs of other types with static shapes are parameters."""
ADAPTER_B = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
"""The factor of an adapter that starts as zeros, by its name in PEFT."""
MAGNITUDE = ".lora_magnitude_vector"
CACHE = "trainweb.cache/"
"""Prefix of the names of cache inputs."""


@dataclass(slots=True)
class Decoding:
    """A decoding graph, whose inputs are parameters, `feeds` and `caches`.

    Feeds are the ids (1, n), then the positions. Caches are state that lasts from run to run. They depend on the model
    and T, not on n.
    """

    graph: Graph
    feeds: dict[str, Value]
    caches: dict[str, TensorType]


@dataclass(slots=True)
class _Inferred:
    """A model without composites and control flow, with all its types."""

    graph: Graph
    types: dict[str, TensorType]
    ops: list[Op] = field(default_factory=list)


def decoding_graph(graph: Graph, length: int, rows: int) -> Decoding:
    """The decoding graph of a model with one output, for `rows` new tokens of a run.

    Its inputs are the ids (1, T), other inputs that `_companion` knows, and parameters of static shapes. The cache
    holds T = `length` tokens, at least SHORTEST. Raise UnsupportedError for a model that mixes tokens otherwise than by
    products with all of them. Raise ModelError for a model that does not take so many.
    """
    ids = ids_of(graph)
    try:
        inferred = [_infer(graph, ids, size) for size in (length, length - 1)]
    except ModelError as error:
        shape = next(v.shape for v in graph.inputs if isinstance(v, Value) and v.name == ids) or ()
        if not any(isinstance(d, int) and d != size for d, size in zip(shape, (1, length), strict=False)):
            raise
        raise messages.FIXED_TEXT(name=ids, shape=list(shape)) from error
    walk = _Incremental(inferred[0], inferred[1], ids, length, rows)
    walk.run()
    if rows > 1:
        walk = _Incremental(inferred[0], inferred[1], ids, length, rows, walk.after_caches())
        walk.run()
    return walk.result()


def without_adapter(graph: Graph) -> Graph:
    """The model with adapters that add nothing. Raise UnsupportedError for DoRA: magnitudes replace norms."""
    result = graph.copy()
    switched = [v for v in graph.inputs if isinstance(v, Value) and ADAPTER_B.search(v.name)]
    magnitude = next((v.name for v in graph.inputs if v.name.endswith(MAGNITUDE)), None)
    if magnitude is not None:
        raise messages.NO_BASE_OF_DORA(name=magnitude)
    if not switched:
        raise messages.NO_ADAPTER()
    for value in switched:
        shape = tuple(d for d in value.shape or () if isinstance(d, int))
        zeros = bytes(prod(shape) * ITEM_SIZE[value.dtype])
        result.initializers[value.name] = Tensor(value.name, value.dtype, shape, zeros)
    result.inputs = [v for v in graph.inputs if v not in switched]
    return result


def ids_of(graph: Graph) -> str:
    """The input with the token ids: input_ids, or the only integers besides companions of the ids."""
    integers = [v.name for v in graph.inputs if isinstance(v, Value) and v.dtype in ("int64", "int32")]
    candidates = [name for name in integers if not any(kind in name.lower() for kind in COMPANIONS)]
    if "input_ids" in candidates:
        return "input_ids"
    if len(candidates) != 1:
        raise messages.NO_IDS(names=", ".join(v.name for v in graph.inputs if v.name in candidates) or "no such input")
    return candidates[0]


def _infer(graph: Graph, ids: str, length: int) -> _Inferred:
    graph = graph.copy()
    inputs: dict[str, TensorType] = {}
    for value in list(graph.inputs):
        assert isinstance(value, Value)
        shape = None if value.shape is None else tuple(d for d in value.shape if isinstance(d, int))
        if value.name == ids:
            inputs[ids] = TensorType(value.dtype, (1, length))
        elif value.dtype not in COMPANION_TYPES and shape is not None and shape == tuple(value.shape or ()):
            inputs[value.name] = TensorType(value.dtype, shape)
        else:
            graph.inputs.remove(value)
            graph.initializers[value.name] = _companion(value, length)
    if has_control_flow(graph):
        graph = expand_control_flow(graph, inputs)
    types = inputs | {name: initializer_type(t) for name, t in graph.initializers.items()}
    if has_composites(graph):
        graph = expand_composites(graph, StaticTypes(types, graph.opsets))
        types |= {name: initializer_type(t) for name, t in graph.initializers.items()}
    inferred = _Inferred(graph, types)
    for k, node in enumerate(graph.nodes):
        if node.op_type == "CastLike" and not node.domain:
            # The other input gives only its type.
            to = {"to": DTYPE_CODES[types[node.inputs[1]].dtype]}
            graph.nodes[k] = node = Node("Cast", node.inputs[:1], node.outputs, to, "", node.name)
        op = bind(node, graph.opsets)
        results, _ = infer_outputs(op, types)
        types.update((name, t) for name, t in zip(node.outputs, results, strict=False) if name)
        inferred.ops.append(op)
    return inferred


def _companion(value: Value, length: int) -> Tensor:
    """The constant that takes the place of an input beside the ids: no token is padding, and positions count up."""
    name = value.name
    numbers = dict(zip(COMPANIONS, ([1] * length, range(length), [0] * length), strict=True))
    kind = next((kind for kind in COMPANIONS if kind in name.lower()), None)
    rank = -1 if value.shape is None else len(value.shape)
    if kind is None or rank not in (1, 2):
        raise messages.UNKNOWN_COMPANION(name=name, dtype=value.dtype, shape=value.shape and list(value.shape))
    return Tensor.of(name, value.dtype, (length,) if rank == 1 else (1, length), numbers[kind])


class _Incremental:
    """The walk over the nodes.

    `axis` has the axis of the rows, of each tensor that depends on the ids. Nodes in `late`, which no cache depends on,
    compute only the last of the new rows.
    """

    def __init__(
        self, full: _Inferred, shorter: _Inferred, ids: str, length: int, rows: int, late: frozenset[int] = frozenset()
    ) -> None:
        self.full, self.shorter, self.ids, self.length, self.rows, self.late = full, shorter, ids, length, rows, late
        self.axis = {ids: 1}
        self.single: set[str] = set()
        """Tensors with only the last of the new rows."""
        self.caches: dict[str, TensorType] = {}
        self.sources: list[str] = []
        """Tensors whose rows are cached."""
        self.shared: dict[tuple[Hashable, ...], str] = {}
        self.producers = {name: k for k, node in enumerate(full.graph.nodes) for name in node.outputs if name}
        self.graph = full.graph.with_nodes([])
        self.used = set(full.graph.names())
        self.axes: dict[int, Axes] = {}

    def run(self) -> None:
        """Make the nodes of the decoding graph."""
        for k, (node, op) in enumerate(zip(self.full.graph.nodes, self.full.ops, strict=True)):
            if not any(name in self.axis for name in node.inputs):
                self.graph.nodes.append(node)
            elif all(self.full.types[name].value is not None for name in node.outputs if name):
                for name in filter(None, node.outputs):
                    self._constant(name, self.full.types[name])
            else:
                self._node(k, op)

    def after_caches(self) -> frozenset[int]:
        """Nodes that depend on the ids and that no cache depends on."""
        early, of_ids = self.full.graph.behind(self.sources), self.axis.keys()
        nodes = enumerate(self.full.graph.nodes)
        return frozenset(k for k, node in nodes if early.isdisjoint(node.outputs) and of_ids & {*node.outputs})

    def result(self) -> Decoding:
        """The decoding graph, whose output has one row."""
        graph = self.graph
        ids = next(v for v in graph.inputs if v.name == self.ids)
        (output,) = graph.outputs
        if output.name not in self.axis:
            raise messages.NO_ROWS_TO_DECODE(name=output.name, ids=self.ids)
        assert isinstance(ids, Value)
        feeds = [Value(IDS, ids.dtype, (1, self.rows)), Value(POSITIONS, "int64", (self.rows,))]
        if self.rows > 1:
            if output.name not in self.single:
                raise messages.NO_ROWS_TO_DECODE(name=output.name, ids=self.ids)
            feeds += [Value(LAST, "int64", (1,)), Value(LAST_POSITION, "int64", (1,))]
        graph.nodes.insert(0, Node("Identity", [IDS], [self.ids], {}, "", self.ids))
        caches = [Value(name, t.dtype, t.shape) for name, t in self.caches.items()]
        graph.inputs = [v for v in graph.inputs if v.name != self.ids] + [*feeds, *caches]
        graph.opsets.setdefault(TRAINWEB, 1)
        graph.value_info = {}
        return Decoding(graph, {v.name: v for v in feeds}, self.caches)

    # One node.

    def _node(self, k: int, op: Op) -> None:
        node = op.node
        is_late = k in self.late
        names = [self._last(name) if is_late and name in self.axis else name for name in node.inputs]
        axes = self._axes(k, op)
        followed = [*axes.inputs, *[None] * (len(names) - len(axes.inputs))]
        row_labels: set[Hashable] = set()
        for name, original, labels in zip(names, node.inputs, followed, strict=True):
            if name in self.axis:
                if labels is None:
                    raise self._refused(op, f"its input {original!r} depends on the tokens")
                row_labels.add(labels[self.axis[name]])
        chosen = next((label for label in axes.output if label in row_labels and label not in axes.mixed), None)
        if chosen is None:
            raise self._refused(op, "it mixes tokens")
        inputs = [
            name if labels is None or not name else self._aligned(name, original, labels, chosen, is_late)
            for name, original, labels in zip(names, node.inputs, followed, strict=True)
        ]
        axis = list(axes.output).index(chosen)
        for name in filter(None, node.outputs):
            if not self._grows(name, axis):
                raise self._refused(op, f"its output {name!r} does not have a row for each token")
            self.axis[name] = axis
            if is_late:
                self.single.add(name)
        if axes.shape_input is not None:
            self._resized(op, inputs[0], axis, is_late)
        else:
            self.graph.nodes.append(Node(node.op_type, inputs, node.outputs, node.attrs, node.domain, node.name))

    def _axes(self, k: int, op: Op) -> Axes:
        if k not in self.axes:
            types = self.full.types
            inputs = [types[name] if name else None for name in op.node.inputs]
            output = next(name for name in op.node.outputs if name)
            axes = axes_of(op, inputs, types[output])
            if axes is None:
                raise self._refused(op, "its effect on a sequence is not known")
            self.axes[k] = axes
        return self.axes[k]

    def _resized(self, op: Op, source: str, axis: int, is_late: bool) -> None:
        """A Reshape or Expand to the shape with fewer rows."""
        shape = list(self.full.types[op.node.outputs[0]].shape)
        shape[axis] = 1 if is_late else self.rows
        numbers = TensorType("int64", (len(shape),), tuple(shape))
        wanted = self._once(("shape", *shape), "trainweb.shape", lambda name: self._constant(name, numbers))
        kind = "Reshape" if op.is_view else op.op_type()
        self.graph.nodes.append(Node(kind, [source, wanted], op.node.outputs, {}, "", op.node.name))

    def _refused(self, op: Op, why: str) -> Exception:
        return messages.NOT_INCREMENTAL(node=str(op.node), why=why)

    # Operands.

    def _grows(self, name: str, axis: int) -> bool:
        """Return whether an axis of a tensor has an element for each token."""
        shapes = [inferred.types[name].shape for inferred in (self.full, self.shorter)]
        return [shape[axis] for shape in shapes] == [self.length, self.length - 1]

    def _aligned(self, name: str, original: str, labels: Labels, chosen: Hashable, is_late: bool) -> str:
        """The operand at the new rows: of the axis that is labelled so; other axes have all positions."""
        if name in self.axis:
            if labels[self.axis[name]] == chosen:
                return name
            name = self._everywhere(original)
        for axis, label in enumerate(labels):
            if label == chosen and self._grows(original, axis):
                places = LAST_POSITION if is_late else POSITIONS
                return self._picked(name, places, axis)
        return name

    def _last(self, name: str) -> str:
        """The last of the new rows."""
        if name in self.single:
            return name
        axis = self.axis[name]
        picked = self._picked(name, LAST, axis)
        self.axis[picked] = axis
        self.single.add(picked)
        return picked

    def _picked(self, name: str, places: str, axis: int) -> str:
        def pick(target: str) -> None:
            self.graph.nodes.append(Node("Gather", [name, places], [target], {"axis": axis}, "", target))

        return self._once((name, places, axis), f"{name}/{places}", pick)

    def _everywhere(self, name: str) -> str:
        """A tensor at all positions: a cache, or such moved elements of one."""
        k = self.producers.get(name)
        axes = None if k is None else self._axes(k, self.full.ops[k])
        if k is not None and axes is not None and axes.moves:
            node = self.full.graph.nodes[k]

            def move(target: str) -> None:
                inputs = [self._everywhere(node.inputs[0]), *node.inputs[1:]]
                self.graph.nodes.append(Node(node.op_type, inputs, [target], node.attrs, node.domain, target))

            return self._once((name, "everywhere"), f"{name}/everywhere", move)
        return self._once((name, "everywhere"), CACHE + name, lambda cache: self._cache(cache, name))

    def _cache(self, cache: str, name: str) -> None:
        t = self.full.types[name]
        self.caches[cache] = TensorType(t.dtype, t.shape)
        self.sources.append(name)
        inputs, axis = [cache, name, POSITIONS], {"axis": self.axis[name]}
        self.graph.nodes.append(
            Node("CacheRows", inputs, [take_name(f"{cache}/written", self.used)], axis, TRAINWEB, cache)
        )

    def _once(self, key: tuple[Hashable, ...], name: str, make: Callable[[str], None]) -> str:
        """The tensor of this key; made at first use."""
        if key not in self.shared:
            self.shared[key] = take_name(name, self.used)
            make(self.shared[key])
        return self.shared[key]

    def _constant(self, name: str, t: TensorType) -> None:
        assert t.value is not None
        self.graph.initializers[name] = Tensor.of(name, t.dtype, t.shape, t.value)
