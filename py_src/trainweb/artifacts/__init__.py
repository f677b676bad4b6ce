"""Training artifacts: the models and the checkpoint that a training session starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainweb.arguments import checks_keywords, path_of
from trainweb.artifacts.builder import Artifacts, LossLike, LossType, OptimizerLike, OptimType, build_artifacts


@checks_keywords
def generate_artifacts(
    model: Any,
    requires_grad: Iterable[str] | str | None = None,
    frozen_params: Iterable[str] | str | None = None,
    loss: LossLike = None,
    optimizer: OptimizerLike = None,
    artifact_directory: Any = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: Any = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    *,
    batch_norm: str | None = None,
    dims: Mapping[str, int] | None = None,
    external_data: Mapping[str, bytes] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    ema: Mapping[str, Any] | None = None,
    learning_rate: float | None = None,
) -> None:
    """Write training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint.

    Parameters
    ----------
    artifact_directory : path, optional
        An existing directory; the working directory by default.
    prefix : str
        Put before every file name.
    nominal_checkpoint : bool
        Also write nominal_checkpoint.
    model, requires_grad, frozen_params, loss, optimizer, ort_format, custom_op_library, \
additional_output_names, loss_input_names, batch_norm, dims, external_data, clip_grad_norm, clip_grad_value, ema, \
learning_rate
        See `build_artifacts`, also for the errors.

    Raises
    ------
    FileNotFoundError
        The directory does not exist.
    """
    directory = Path.cwd() if artifact_directory is None else path_of("artifact_directory", artifact_directory)
    path_of("prefix", prefix)
    if not directory.is_dir():
        raise FileNotFoundError(f"The artifact directory {str(directory)!r} does not exist.")
    built = build_artifacts(
        model,
        requires_grad,
        frozen_params,
        loss,
        optimizer,
        additional_output_names=additional_output_names,
        loss_input_names=loss_input_names,
        batch_norm=batch_norm,
        dims=dims,
        external_data=external_data,
        ort_format=ort_format,
        nominal_checkpoint=nominal_checkpoint,
        custom_op_library=custom_op_library,
        clip_grad_norm=clip_grad_norm,
        clip_grad_value=clip_grad_value,
        ema=ema,
        learning_rate=learning_rate,
    )
    built.write(directory, prefix, nominal=nominal_checkpoint)


__all__ = ["Artifacts", "LossType", "OptimType", "build_artifacts", "generate_artifacts"]
__dir__ = __all__.copy
