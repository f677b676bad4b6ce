"""The model that blocks currently add to, and the names they make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainweb.errors import ModelError, SessionError, UnsupportedError
from trainweb.model.graph import Dim, Graph, Node, Sequence, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock.protos import ModelView, onnx_package
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.ops.frame.since import domain_of

EMPTY_BASE_OPSET = 17
"""ai.onnx version of a model that starts empty, unless another one is asked for."""


class ModelAccessor:
    """The model under construction.

    Attributes
    ----------
    graph : Graph
        The model that blocks add to.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._types: tuple[tuple[int, int], ShapeInference] | None = None
        self._view: ModelView | None = None

    @property
    def model(self) -> Any:
        """The model so far, to be read and added to: an `onnx.ModelProto`; without the onnx package its bytes."""
        if onnx_package() is None:
            return write_model(self.graph)
        if self._view is None:
            self._view = ModelView(self.graph)
        self.sync()
        return self._view.proto

    def sync(self) -> None:
        """Make `graph` and the ModelProto of the user equal; called before and after changes of `graph`."""
        if self._view is not None:
            self._view.sync(self.graph)

    def value(self, name: str) -> Value | Sequence:
        """Type of a tensor; a declared one goes before an inferred one. Raise ModelError for an unknown tensor."""
        declared = {v.name: v for v in (*self.graph.value_info.values(), *self.graph.outputs, *self.graph.inputs)}
        value = declared.get(name)
        if value is not None and (isinstance(value, Sequence) or value.shape is not None):
            return value
        if name in self.graph.initializers:
            tensor = self.graph.initializers[name]
            return Value(name, tensor.dtype, tensor.shape)
        inference = self.inference()
        if name not in inference:
            raise ModelError(f"The provided name {name} is not a graph value info or a graph output.")
        return inference.value(name)

    def correct_outputs(self) -> None:
        """Correct the declared shapes of outputs whose operators have another rank or size."""
        inference = self.inference()
        for k, declared in enumerate(self.graph.outputs):
            if isinstance(declared, Value) and declared.shape is not None and declared.name in inference:
                actual = inference.value(declared.name)
                if _contradicts(declared.shape, actual.shape or ()):
                    self.graph.outputs[k] = actual

    def inference(self) -> ShapeInference:
        """The types of the tensors as the model stands now."""
        known = self.inferred()
        if known is None:
            known = ShapeInference(self.graph)
            self._types = self._version(), known
        return known

    def inferred(self) -> ShapeInference | None:
        """The types if they were inferred before and the model has not grown since."""
        return self._types[1] if self._types is not None and self._types[0] == self._version() else None

    def _version(self) -> tuple[int, int]:
        return len(self.graph.nodes), len(self.graph.inputs)

    def tensor_value(self, name: str) -> Value:
        """Type of a tensor whose rank must be known."""
        value = self.value(name)
        if not isinstance(value, Value) or value.shape is None:
            raise ModelError(f"The rank of {name!r} is not known.")
        return value

    def add_input(self, value: Value | Sequence) -> str:
        """Add a graph input unless it exists."""
        if all(value.name != existing.name for existing in self.graph.inputs):
            self.graph.inputs.append(value)
        return value.name

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of that name."""
        return name in set(self.graph.names())


def _contradicts(declared: tuple[Dim, ...], actual: tuple[Dim, ...]) -> bool:
    """Return whether two shapes of one tensor differ in rank or in a size that both say."""
    if len(declared) != len(actual):
        return True
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(declared, actual, strict=True))


class _State:
    accessor: ModelAccessor | None = None
    counter = 0


def current() -> ModelAccessor:
    """The accessor of the model under construction. Raise SessionError if no context manager is active."""
    if _State.accessor is None:
        raise SessionError("A block adds to a model: call it inside `with onnxblock.base(model):`.")
    return _State.accessor


def generate_name(token: str) -> str:
    """`onnx::<token>::<n>`; n grows with every name made."""
    _State.counter += 1
    return f"onnx::{token}::{_State.counter}"


def skip_names(count: int) -> None:
    """Leave out names, so that those after them are the ones ONNX Runtime's blocks would make."""
    _State.counter += count


@contextmanager
def restarted_names() -> Iterator[None]:
    """Count names from 1 inside, as in a fresh process."""
    before, _State.counter = _State.counter, 0
    try:
        yield
    finally:
        _State.counter = before


@contextmanager
def accessing(graph: Graph) -> Iterator[ModelAccessor]:
    """Let blocks add to `graph`."""
    if _State.accessor is not None:
        raise SessionError("Base onnx model already exists. Cannot create multiple ModelAccessors.")
    _State.accessor = ModelAccessor(graph)
    try:
        yield _State.accessor
    finally:
        _State.accessor = None


@contextmanager
def base(model: Any, model_path: Any = None) -> Iterator[ModelAccessor]:
    """Let blocks add to a model.

    Parameters
    ----------
    model : bytes, path or onnx.ModelProto
        The model to extend; it is copied.
    model_path : path, optional
        Path of the model; its external data is read from there.

    Raises
    ------
    SessionError
        `model` is None, or a context is active already.
    """
    if model is None and model_path is None:
        raise SessionError("Model cannot be None. Please pass in a model to extend.")
    with accessing(read_model(model if model_path is None else model_path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks build a model from nothing, as optimizers do.

    Parameters
    ----------
    opset_version : int, optional
        Of ai.onnx.
    """
    opsets = {"com.microsoft": 1, "": opset_version or EMPTY_BASE_OPSET}
    with accessing(Graph("graph", opsets=opsets)) as accessor:
        yield accessor


def custom_op_library(path: Any) -> Any:
    """Refuse: custom operator libraries are native code, which a page cannot run.

    Raises
    ------
    UnsupportedError
        Always.

    Parameters
    ----------
    path : path
        The library.
    """
    raise UnsupportedError(f"Custom operator libraries are not supported: {path}.")


def add_node(
    op_type: str,
    inputs: list[str],
    outputs: list[str],
    *,
    domain: str = "",
    **attrs: Any,
) -> None:
    """Append a node with a new name to the current model.

    An operator of ai.onnx that the model's opset does not have yet is one of ai.trainweb.
    """
    accessor = current()
    accessor.sync()
    domain = domain or domain_of(op_type, accessor.graph.opsets.get("", 1))
    if domain:
        accessor.graph.opsets.setdefault(domain, 1)
    accessor.graph.nodes.append(Node(op_type, inputs, outputs, attrs, domain, generate_name(op_type)))
    accessor.sync()


def add_initializer(tensor: Tensor) -> str:
    """Add a constant to the current model."""
    accessor = current()
    accessor.sync()
    accessor.graph.initializers[tensor.name] = tensor
    accessor.sync()
    return tensor.name
