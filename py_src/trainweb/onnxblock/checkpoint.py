"""Checkpoints of parameters that a TrainingBlock returned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainweb.checkpoint import SessionContents, read_checkpoint, write_checkpoint, write_file_atomically
from trainweb.errors import CheckpointError
from trainweb.model.floats import as_declared, declared_type
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock.protos import from_tensor_protos, onnx_package


def generated_checkpoint(trainable: Iterable[Any], frozen: Iterable[Any], *, nominal: bool = False) -> SessionContents:
    """A checkpoint of these parameters, in graph order; `nominal` keeps the names only."""
    groups = [from_tensor_protos(trainable), from_tensor_protos(frozen)]
    if nominal:
        groups = [[Tensor(t.name, declared_type(t), (), b"") for t in tensors] for tensors in groups]
    else:
        groups = [[as_declared(t) for t in tensors] for tensors in groups]
    return SessionContents.of(*groups, is_nominal=nominal)


def save_checkpoint(
    parameters: tuple[Iterable[Any], Iterable[Any]], path: Any, nominal_checkpoint: bool = False
) -> None:
    """Write a checkpoint.

    Parameters
    ----------
    parameters : pair of lists
        (trainable, frozen) tensors, as `TrainingBlock.parameters` returns them.
    path : path
        File to write.
    nominal_checkpoint : bool
        Write the names only.
    """
    trainable, frozen = parameters
    checkpoint = generated_checkpoint(trainable, frozen, nominal=nominal_checkpoint)
    write_file_atomically(path, write_checkpoint(checkpoint, generated=True))


def load_checkpoint_to_model(path: Any, model: Any) -> Any:
    """Fill a model's initializers with the parameters of the same names.

    Parameters
    ----------
    path : path or bytes
        The checkpoint.
    model : onnx.ModelProto, bytes or path
        A ModelProto is changed in place.

    Returns
    -------
    onnx.ModelProto or bytes
        The model: the same object if it was a ModelProto, else the bytes of a new one.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint.is_nominal:
        raise CheckpointError("A nominal checkpoint has no parameters to load into a model.")
    parameters = checkpoint.parameters
    onnx = onnx_package()
    if onnx is not None and isinstance(model, onnx.ModelProto):
        for initializer in model.graph.initializer:
            if initializer.name in parameters:
                tensor = parameters[initializer.name]
                _check_shape(tensor, tuple(initializer.dims))
                del initializer.dims[:], initializer.float_data[:]
                initializer.dims.extend(tensor.shape)
                initializer.raw_data = bytes(tensor.data)
        return model
    graph = read_model(model)
    for name, tensor in graph.initializers.items():
        if name in parameters:
            _check_shape(parameters[name], tensor.shape)
            graph.initializers[name] = parameters[name]
    return write_model(graph)


def _check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"Parameter {tensor.name!r} has shape {list(tensor.shape)} in the checkpoint, {list(shape)} in the model."
        )
