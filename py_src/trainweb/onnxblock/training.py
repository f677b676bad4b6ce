"""Blocks that are whole models: a forward model, or a training model with its eval model."""

from __future__ import annotations

from typing import Any

from trainweb.errors import ModelError, SessionError
from trainweb.model.graph import Graph, Tensor
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.models import TrainingModels, build_training_models, note_own_outputs, with_outputs
from trainweb.onnxblock.protos import to_model_proto, to_tensor_protos


def _built(block: Block, *args: Any, **kwargs: Any) -> tuple[Any, Graph]:
    """The results of `build`, and the current model with them as its outputs."""
    results = Block.__call__(block, *args, **kwargs)
    names = [results] if isinstance(results, str) else list(results or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ModelError(f"build() must return the name of an output, or several; it returned {results!r}.")
    return results, with_outputs(context.current(), names)


class ForwardBlock(Block):
    """A block whose results become the outputs of a model."""

    def __init__(self) -> None:
        self._graph: Graph | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build; the results become the model's outputs."""
        results, self._graph = _built(self, *args, **kwargs)
        context.current().graph.outputs = list(self._graph.outputs)
        return results

    @property
    def graph(self) -> Graph:
        """The model that was built.

        Raises
        ------
        SessionError
            The block was not called yet.
        """
        if self._graph is None:
            raise SessionError("Please build the forward model first before trying to retrieve it.")
        return self._graph

    def to_model_proto(self) -> Any:
        """The model: an `onnx.ModelProto` if the onnx package is there, else its bytes."""
        return to_model_proto(self.graph)


class TrainingBlock(Block):
    """A block whose first result is a loss; calling it makes the training and the eval model.

    `requires_grad` says what to train; `parameters` and `to_model_proto` return the results.
    """

    def __init__(self) -> None:
        self._requires_grad: dict[str, bool] = {}
        self._models: TrainingModels | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Train a parameter (or a graph input), or keep it as frozen if `value` is False.

        Parameters
        ----------
        argument_name : str
            The parameter or input.
        value : bool
            True if it is trained.
        """
        self._requires_grad[argument_name] = bool(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the models from the current one, to which the loss and its inputs are added."""
        context.current().sync()
        base = context.current().graph
        before, outputs = set(base.names()), [v.name for v in base.outputs]
        results, graph = _built(self, *args, **kwargs)
        self._models = self._make(graph)
        note_own_outputs(self._models, before, [a for a in args if isinstance(a, str)] or outputs)
        context.current().graph.outputs = list(graph.outputs)
        return results

    def _make(self, graph: Graph) -> TrainingModels:
        for name in self._requires_grad:
            if name not in graph.initializers and all(name != v.name for v in graph.inputs):
                raise ModelError(f"Node arg {name} is not found.")
        trainable = [name for name, value in self._requires_grad.items() if value]
        frozen = [name for name, value in self._requires_grad.items() if not value]
        return build_training_models(graph, trainable, frozen)

    @property
    def models(self) -> TrainingModels:
        """The models as graphs, and the parameters.

        Raises
        ------
        SessionError
            The block was not called yet.
        """
        if self._models is None:
            raise SessionError(
                "Please build the training model first before trying to retrieve the parameters or the models."
            )
        return self._models

    def parameters(self) -> tuple[list[Any], list[Any]]:
        """(trainable, frozen): lists of `onnx.TensorProto`; without the onnx package of `Tensor`."""
        models = self.models
        return to_tensor_protos(models.trainable), to_tensor_protos(models.frozen)

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """(trainable, frozen) as trainweb's own tensors."""
        return self.models.trainable, self.models.frozen

    def to_model_proto(self) -> tuple[Any, Any]:
        """(training, eval) models: `onnx.ModelProto`, or bytes without the onnx package."""
        return to_model_proto(self.models.training), to_model_proto(self.models.evaluation)
