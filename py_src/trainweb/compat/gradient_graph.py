"""`GradientGraphBuilder`: the gradient graph of any model, as onnxruntime-training has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainweb import messages
from trainweb._names import public_names
from trainweb.arguments import texts
from trainweb.autodiff.gradient import GRADIENT_SUFFIX, build_gradients
from trainweb.checkpoint import write_file_atomically
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.errors import ModelError, UnsupportedError
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers, train_batch_norms
from trainweb.ops.frame.functions import write_interchangeable


class GradientGraphBuilder:
    """Extends a model by gradients.

    Parameters
    ----------
    model : bytes, path or onnx.ModelProto
        Forward model.
    y_node_arg_names : iterable of str
        Tensors to differentiate.
    x_node_arg_names : iterable of str
        Inputs or initializers to differentiate for; `<x>_grad` becomes an output for each.
    loss_node_arg_name : str, optional
        The one of `y_node_arg_names` whose gradient is 1. The gradients of the others are new
        inputs `<y>_grad`.
    options
        None: there is nothing to choose.
    external_data : dict of str to bytes, optional
        Contents of external data files for a model given as bytes, by location.
    limits : dict, optional
        arena_bytes, nodes, loop_iterations, file_bytes; see `SessionOptions`.

    Raises
    ------
    UnsupportedError
        Options are given.
    ModelError, LimitError
        The model is malformed or too large, has no tensor of a name, or data of it are not given.
    """

    def __init__(
        self,
        model: Any,
        y_node_arg_names: Iterable[str],
        x_node_arg_names: Iterable[str],
        loss_node_arg_name: str = "",
        options: Any = None,
        *,
        external_data: Mapping[str, bytes] | None = None,
        limits: Limits | Mapping[str, int] | None = None,
    ) -> None:
        if options is not None:
            raise UnsupportedError(f"GradientGraphBuilder takes no options here, got {type(options).__name__}.")
        self._graph = read_model(model, external_data=external_data, limits=Limits.of(limits))
        known = {*self._graph.names()}
        self._y = _ordered("y_node_arg_names", y_node_arg_names, known)
        self._x = _ordered("x_node_arg_names", x_node_arg_names, known)
        if not self._y:
            raise ModelError("Give at least one output to differentiate.")
        self._loss = loss_node_arg_name if loss_node_arg_name in self._y else None
        self._built: Graph | None = None

    def build(self) -> None:
        """Build the gradient graph.

        Raises
        ------
        GradientError
            An operator on the way has no gradient, or an x is unreachable.
        """
        graph = constants_to_initializers(self._graph)
        if has_control_flow(graph):
            graph = expand_control_flow(graph, differentiable=True)
        graph = train_batch_norms(graph, [], "as_exported")
        result = build_gradients(graph, self._loss, self._x, seeds=self._y)
        for name in self._x:
            gradient = name + GRADIENT_SUFFIX
            value = result.value_info.pop(gradient)
            result.outputs.append(Value(gradient, value.dtype, value.shape))
        self._built = result

    def get_model(self) -> bytes:
        """The model with gradients: the outputs of the forward model, then the gradients.

        Raises
        ------
        SessionError
            `build` was not called.
        """
        if self._built is None:
            raise messages.NOT_BUILT()
        return write_interchangeable(self._built)

    def save(self, path: Any) -> None:
        """Write the model with gradients.

        Parameters
        ----------
        path : path
            The file to write.
        """
        write_file_atomically(Path(path), self.get_model())


def _ordered(argument: str, names: Iterable[str], known: set[str]) -> list[str]:
    """Names without repetition; names of a set are sorted, so that results are reproducible."""
    listed = texts(argument, names)
    ordered = sorted(listed) if isinstance(names, (set, frozenset)) else list(dict.fromkeys(listed))
    for name in ordered:
        if name not in known:
            raise ModelError(f"Node arg {name} is not found.")
    return ordered


def __dir__() -> list[str]:
    return public_names(globals())
