"""Shape inference over symbolic dimensions, by substitution.

Operators know how to infer concrete shapes only. So every symbolic dimension gets a placeholder,
the graph is inferred twice with other placeholders, and the two results are compared: a dimension
that is equal in both is static, one that is a symbol's placeholder in both is that symbol, any
other is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainweb.errors import LimitError, ModelError, UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Dim, Graph, Node, Tensor, Value
from trainweb.ops.infer import infer_outputs, initializer_type
from trainweb.ops.op import bind

Key = tuple[str, int]
"""A symbolic dimension: (symbol, -1), or (input name, axis) where it has no name."""

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)
LARGE_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131)
"""One small and one large set, so that min(size, constant) is not taken for a constant."""
GRAIN = 64
"""Spatial sizes that survive repeated halving, as U-Net shaped models demand."""
MAX_BAKED = 8
"""How many sizes found in the model's own constants are tried as the size it was exported for."""
USUAL_SIZES = (
    *range(2, 17),
    20,
    24,
    28,
    32,
    40,
    48,
    56,
    64,
    80,
    96,
    100,
    112,
    128,
    160,
    192,
    224,
    256,
    299,
    320,
    384,
    416,
    448,
    512,
    640,
)
"""Sizes tried last: the shape of a constant may demand one that no constant spells out."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Placeholders of the symbolic dims; `baked` marks a size that is only known to fit."""

    sizes: dict[Key, int]
    baked: int | None = None


def infer_shapes(graph: Graph) -> dict[str, Value]:
    """Type of every tensor of `graph`.

    Returns
    -------
    dict of str to Value
        By tensor name. A dim is an int, a symbol of an input, or None where neither is certain.

    Raises
    ------
    ModelError
        A node's inputs do not fit, whatever the symbolic dims are.
    UnsupportedError
        An operator is unknown.
    """
    inference = ShapeInference(graph)
    return {name: inference.value(name) for name in inference.names()}


class ShapeInference:
    """The types of a graph's tensors; nodes may be added afterwards.

    Parameters
    ----------
    graph : Graph
        Its inputs must have a rank.
    """

    def __init__(self, graph: Graph) -> None:
        self._opsets = graph.opsets
        self._keys = dict(_symbolic_dims(graph))
        first_error: LimitError | ModelError | None = None
        for pair in _strategies(graph, self._keys):
            runs = [_Run(graph, s) for s in pair]
            try:
                for run in runs:
                    run.infer()
                break
            except UnsupportedError:
                raise
            except (LimitError, ModelError) as error:
                first_error = first_error or _explain(error, pair[0])
        else:
            raise first_error or ModelError("The graph's shapes cannot be inferred.")
        self._runs = [run.types for run in runs]
        self._symbols = [run.symbols() for run in runs]
        self._baked = runs[0].baked
        self._values: dict[str, Value] = {}

    def names(self) -> Iterator[str]:
        """Names of all tensors whose type is known."""
        return iter(self._runs[0])

    def __contains__(self, name: str) -> bool:
        return name in self._runs[0]

    def value(self, name: str) -> Value:
        """Dtype and shape of a tensor."""
        if name not in self._values:
            types = [run[name] for run in self._runs]
            same_rank = len({t.rank for t in types}) == 1
            shape = tuple(map(self._dim, *(t.shape for t in types))) if same_rank else None
            self._values[name] = Value(name, types[0].dtype, shape)
        return self._values[name]

    def add(self, node: Node) -> None:
        """Infer one more node, whose inputs are known."""
        for name in node.outputs:
            self._values.pop(name, None)
        for run in self._runs:
            _infer_node(node, self._opsets, run)

    def same(self, name: str, as_tensor: str) -> None:
        """Tensor `name` has the type of `as_tensor`."""
        for run in self._runs:
            run[name] = TensorType(run[as_tensor].dtype, run[as_tensor].shape)

    def constant(self, tensor: Tensor) -> None:
        """Add an initializer."""
        for run in self._runs:
            run[tensor.name] = initializer_type(tensor)

    def _dim(self, *sizes: int) -> Dim:
        if (len(set(sizes)) == 1 and len(sizes) > 1) or not self._keys:
            return sizes[0]
        if len(sizes) == 1:
            # Only one assignment fits: whatever equals it may be static or symbolic.
            return None if sizes[0] == self._baked else sizes[0]
        found = {symbols.get(size) for symbols, size in zip(self._symbols, sizes, strict=True)}
        return found.pop() if len(found) == 1 else None


def _symbolic_dims(graph: Graph) -> Iterator[tuple[Key, int]]:
    """Key and axis of every symbolic dim of the graph's inputs."""
    for value in graph.inputs:
        if not isinstance(value, Value):
            continue
        if value.shape is None:
            raise ModelError(f"Input {value.name!r} has no declared shape; its rank must be known.")
        for axis, dim in enumerate(value.shape):
            if not isinstance(dim, int):
                yield ((dim, -1) if dim else (value.name, axis)), axis


def _strategies(graph: Graph, keys: dict[Key, int]) -> Iterator[tuple[Substitution, ...]]:
    """Assignments of placeholders to try, the most telling first."""
    if not keys:
        yield (Substitution({}),)
        return

    def spread(size: Callable[[int], int]) -> Substitution:
        return Substitution({key: size(k) for k, key in enumerate(keys)})

    n = len(keys)
    if n <= len(PRIMES):
        yield spread(lambda k: PRIMES[k]), spread(lambda k: LARGE_PRIMES[k])
    yield spread(lambda k: GRAIN * (k + 2)), spread(lambda k: GRAIN * (k + 2 + n))

    def by_axis(start: int, step: int) -> Substitution:
        return Substitution({key: start if axis == 0 else step * (axis + 2) for key, axis in keys.items()})

    # Dims of other names that must be equal all the same.
    yield by_axis(5, 8), by_axis(61, 32)
    yield by_axis(6, 2 * GRAIN), by_axis(62, 3 * GRAIN)
    for size in _baked_sizes(graph):
        yield (Substitution(dict.fromkeys(keys, size), baked=size),)


def _baked_sizes(graph: Graph) -> list[int]:
    """Sizes the model may have been exported for: 1, those in its constants, usual ones."""
    sizes = {1: 0}
    for tensor in graph.initializers.values():
        if tensor.dtype == "int64" and 0 < tensor.size <= MAX_BAKED:
            for size in tensor.values():
                if 1 < size < 4096:
                    sizes[size] = sizes.get(size, 0) + 1
    likely = sorted(sizes, key=lambda size: (size != 1, -sizes[size]))[:MAX_BAKED]
    return list(dict.fromkeys((*likely, *USUAL_SIZES)))


class _Run:
    """One inference of the whole graph under a substitution."""

    def __init__(self, graph: Graph, substitution: Substitution) -> None:
        self.graph, self.baked = graph, substitution.baked
        self.sizes = dict(substitution.sizes)
        self.fixed: set[Key] = set()
        self.types = {name: initializer_type(t) for name, t in graph.initializers.items()}
        self.inputs = {v.name: v for v in graph.inputs if isinstance(v, Value)}
        values = (*graph.value_info.values(), *graph.outputs)
        declared = [v for v in values if isinstance(v, Value) and v.shape]
        self.declared = {v.name: v for v in declared}

    def infer(self) -> None:
        for node in self.graph.nodes:
            for name in node.inputs:
                if name in self.inputs and name not in self.types:
                    self.types[name] = self._input(self.inputs[name])
            _infer_node(node, self.graph.opsets, self.types)
            for name in node.outputs:
                if name in self.declared:
                    self._bind_symbols(self.declared[name])
        for name, value in self.inputs.items():
            if name not in self.types:
                self.types[name] = self._input(value)

    def _input(self, value: Value) -> TensorType:
        shape = []
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                key = (dim, -1) if dim else (value.name, axis)
                self.fixed.add(key)
                dim = self.sizes[key]
            shape.append(dim)
        return TensorType(value.dtype, tuple(shape))

    def _bind_symbols(self, declared: Value) -> None:
        # A symbol may stand for a computed size, which later inputs share: labels[tokens].
        shape = self.types[declared.name].shape
        if len(shape) != len(declared.shape or ()):
            return
        for dim, size in zip(declared.shape or (), shape, strict=True):
            key = (str(dim), -1)
            if isinstance(dim, str) and key not in self.fixed:
                self.fixed.add(key)
                self.sizes[key] = size

    def symbols(self) -> dict[int, str | None]:
        """Symbol by placeholder."""
        found: dict[int, str | None] = {}
        for key, size in self.sizes.items():
            found.setdefault(size, key[0] if key[1] < 0 else None)
        return found


def _infer_node(node: Node, opsets: dict[str, int], types: dict[str, TensorType]) -> None:
    results, _ = infer_outputs(bind(node, opsets), types)
    types.update((name, t) for name, t in zip(node.outputs, results, strict=False) if name)


def _explain(error: LimitError | ModelError, substitution: Substitution) -> LimitError | ModelError:
    """The error with the sizes it happened at."""
    if not substitution.sizes:
        return error
    sizes = ", ".join(
        f"{key[0] if key[1] < 0 else f'{key[0]}[{key[1]}]'}={size}" for key, size in substitution.sizes.items()
    )
    return ModelError(f"{error} (Symbolic dimensions were tried as {sizes}.)")
