"""Sizes for the symbolic dimensions of a graph's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainweb.arguments import unknown
from trainweb.errors import ModelError
from trainweb.model.graph import Dim, Graph, Value


def fix_dimensions(graphs: Iterable[Graph | None], sizes: Mapping[str, int]) -> None:
    """Give symbolic dimensions of the inputs their sizes, wherever these graphs name them.

    A dimension without a name is called by its input and axis, such as "x[0]". Raise ModelError for another name.
    """
    there = [graph for graph in graphs if graph is not None]
    names = {name for g in there for v in g.inputs if isinstance(v, Value) for name in _names(v) if name}
    for name in sizes:
        if name not in names:
            raise ModelError(unknown("The free dimension", name, names))
    for graph in there if sizes else ():
        graph.inputs = [_fixed(v, sizes) for v in graph.inputs]
        graph.outputs = [_fixed(v, sizes) for v in graph.outputs]
        graph.value_info = {name: _fixed(v, sizes) for name, v in graph.value_info.items()}


def _names(value: Value) -> list[str]:
    """By axis the name of the dimension, "" where it has a size."""
    named = enumerate(value.shape or ())
    return ["" if isinstance(dim, int) else dim or f"{value.name}[{axis}]" for axis, dim in named]


def _fixed(value: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(value, Value) or value.shape is None:
        return value
    dims: list[Dim] = [sizes.get(name, dim) for name, dim in zip(_names(value), value.shape, strict=True)]
    return Value(value.name, value.dtype, tuple(dims))
