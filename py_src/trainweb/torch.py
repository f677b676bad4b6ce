"""Export of PyTorch modules for training here, with a proof that they train as in PyTorch. Needs the extra `torch`.

import trainweb.torch

trainweb.torch.export(module, (x,), "model.onnx", dynamic={"x": {0: "batch"}}, loss="CrossEntropyLoss")
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.checkpoint import write_file_atomically
from trainweb.errors import ModelError
from trainweb.model.reader import read_model
from trainweb.session.training_session import TrainingSession
from trainweb.settings import OTHER_NAMES
from trainweb.training.state import CheckpointState

__all__ = ["Proof", "export"]
__dir__ = __all__.copy

STEPS = 5
RATE = 0.01
"""Learning rate of the steps of SGD that are compared."""
TOLERANCE = 1e-3
"""Largest difference of results, in parts of their largest element or update: float32, summed in another order."""
NOISE = 1e-6
"""Updates below this part of a parameter's largest element are rounding: gradients that are zero but for that."""
_SHOWN = 3
"""Operations that an error names."""
_REPORT = (
    "torch's exporter may have written a function down as another one, and where a function has a kink (equal numbers "
    "under a maximum, zero under an absolute value) each side may take another of its gradients. `trainweb check` of "
    "the file says what is trained; if none of that explains it, please report the module."
)
_KINDS = (nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss)
LOSSES: dict[str, Callable[..., nn.Module]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of the exported model with PyTorch.

    Attributes
    ----------
    forward : float
        Largest difference of the output, in parts of its largest element.
    losses, expected_losses : tuple of float
        Of the steps here and in PyTorch.
    parameters : dict of str to float
        Of every parameter, the largest difference after the steps, in parts of the largest update.
    frozen : tuple of str
        Parameters that the module does not train: pass them as `frozen_params` when artifacts are built.
    """

    forward: float
    losses: tuple[float, ...]
    expected_losses: tuple[float, ...]
    parameters: dict[str, float]
    frozen: tuple[str, ...]


def export(
    module: nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    path: str | Path,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    loss: LossType | str | Mapping[str, Any] | None = None,
    labels: torch.Tensor | None = None,
    opset: int | None = None,
) -> Proof:
    """Write `module` as an ONNX model that trains here as it does in PyTorch, and prove that.

    The model is exported in training mode by torch's dynamo exporter, without its optimizer, so that the file tells
    parameters from all else. Then it is run and trained: the output, the losses of five steps of SGD and every
    parameter after them must be PyTorch's. Dropout is switched off for the proof, in PyTorch and in the file of the
    proof. The module itself is not changed.

    Parameters
    ----------
    module : nn.Module
        Its first output is what the loss takes, or the loss.
    example_inputs : Tensor or sequence of Tensor
        Positional arguments of `module`.
    path : path
        The file to write; nothing is written unless the proof holds.
    dynamic : dict, optional
        Names of the sizes that may vary, by argument of `forward` and dimension: ``{"x": {0: "batch"}}``.
    loss : LossType, its name, or dict, optional
        None: the first output is a scalar loss already. A dict has the name as "type", and settings as
        `trainweb.artifacts.build_artifacts` takes them. Classes are on axis 1 of the output, as in PyTorch, unless
        the settings have another `class_axis`: build artifacts with the same one.
    labels : Tensor, optional
        Targets of the loss in the proof: classes (int64) of the output's shape without their axis, or numbers of its
        shape; random by default.
    opset : int, optional
        Of ai.onnx; the exporter's default.

    Returns
    -------
    Proof

    Raises
    ------
    ModelError
        The exported model does not train as the module does; the text names the difference, and facts that files do not
        have: operations under `torch.no_grad()` and an `autograd.Function` with its own backward.
    UnsupportedError, GradientError
        It has operators that are not there.
    """
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    kind = _loss(loss)
    still = _without_dropout(module)
    try:
        proof = _prove(still, _exported(still, inputs, dynamic, opset), inputs, kind, labels)
    except _DifferenceError as error:
        raise ModelError(f"{error} {' '.join(_untold(still, inputs)) or _REPORT}") from None
    write_file_atomically(Path(path), _exported(copy.deepcopy(module).train(), inputs, dynamic, opset))
    return proof


def _loss(loss: LossType | str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The loss as a mapping of its name and settings."""
    if loss is None:
        return None
    settings: dict[str, Any] = (
        dict(loss) if isinstance(loss, Mapping) else {"type": loss.name if isinstance(loss, LossType) else loss}
    )
    if settings.get("type") not in LOSSES:
        raise ModelError(
            f"loss {settings.get('type')!r} is not one of {', '.join(LOSSES)}: compute it in the module, with "
            "loss=None."
        )
    settings = {OTHER_NAMES.get(name, name): value for name, value in settings.items()}
    if settings["type"] == "CrossEntropyLoss":
        settings.setdefault("class_axis", 1)
    return settings


def _without_dropout(module: nn.Module) -> nn.Module:
    """A copy in training mode that computes the same whenever it is run."""
    still = copy.deepcopy(module).train()
    for part in still.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name in ("dropout", "attention_dropout"):
            # Recurrent and attention modules have numbers of their own.
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return still


def _exported(
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dynamic: Mapping[str, Mapping[int, str]] | None,
    opset: int | None,
) -> bytes:
    # The exporter runs batch normalization, which counts: on a copy.
    program: Any = torch.onnx.export(
        copy.deepcopy(module),
        inputs,
        dynamo=True,
        optimize=False,
        dynamic_shapes=_dynamic_shapes(module, inputs, dynamic),
        opset_version=opset,
        verbose=False,
    )
    file = io.BytesIO()
    program.save(file)
    return file.getvalue()


def _dynamic_shapes(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: Mapping[str, Mapping[int, str]] | None
) -> Any:
    if not dynamic:
        return None
    from inspect import signature

    names = list(signature(module.forward).parameters)[: len(inputs)]
    for name in dynamic:
        if name not in names:
            raise ModelError(
                f"dynamic: forward has no argument {name!r} among its first {len(inputs)}; it has {names}."
            )
    return {name: dict(dynamic.get(name, {})) for name in names}


def _prove(
    module: nn.Module,
    model: bytes,
    inputs: tuple[torch.Tensor, ...],
    kind: Mapping[str, Any] | None,
    labels: torch.Tensor | None,
) -> Proof:
    frozen = tuple(name for name, p in module.named_parameters() if not p.requires_grad)
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    first, again = (_first(copy.deepcopy(module)(*inputs)).detach() for _ in range(2))
    if not torch.equal(first, again):
        raise ModelError(
            f"{_random_part(module, inputs)} draws random numbers besides dropout: the module cannot be compared with "
            "its file. Switch it off for the export, as drop_path_rate=0 does in timm."
        )
    labels = labels if labels is not None or kind is None else _random_labels(kind, first)
    graph = read_model(model)
    feeds = {v.name: x.detach().numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
    output = graph.outputs[0].name
    outputs = None if kind is None else [output]
    built = build_artifacts(
        model,
        loss=kind,
        optimizer=OptimType.SGD,
        loss_input_names=outputs,
        additional_output_names=outputs,
        frozen_params=list(frozen) or None,
    )
    actual = {d.name for d in built.decisions if d.trained}
    if actual != set(trained):
        missing, extra = sorted(set(trained) - actual), sorted(actual - set(trained))
        reasons = [f"{d.name!r}: {d.reason}." for d in built.decisions if d.name in missing]
        text = f"The exported model does not train {missing or 'all'} and trains {extra or 'nothing else'}."
        raise ModelError(" ".join([text, *reasons]))
    expected_losses, after = _torch_steps(module, inputs, kind, labels)
    state = CheckpointState.load_checkpoint(built.checkpoint)
    with TrainingSession(state, built.training_model, built.eval_model, built.optimizer_model) as session:
        session.set_learning_rate(RATE)
        if labels is not None:
            (name,) = set(session.input_names()) - set(feeds)
            feeds[name] = labels.numpy()
        losses, results = _steps(session, feeds)
        forward = _difference(results[output if kind else next(iter(results))], first.numpy())
        _check_close("The output", forward)
        for ours, theirs in zip(losses, expected_losses, strict=True):
            _check_close("The loss", abs(ours - theirs) / max(abs(theirs), NOISE))
        before = dict(module.named_parameters())
        parameters = {
            name: _update_difference(session.get_parameter(name), after[name], before[name].detach().numpy())
            for name in trained
        }
    for name, difference in parameters.items():
        _check_close(f"Parameter {name!r}", difference)
    return Proof(forward, tuple(losses), tuple(expected_losses), parameters, frozen)


def _first(result: Any) -> torch.Tensor:
    """The first tensor that a module returns."""
    if isinstance(result, torch.Tensor):
        return result
    values = list(result.values()) if isinstance(result, Mapping) else list(result)
    return _first(values[0])


def _random_part(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> str:
    """The innermost module whose output is another one when it is run again."""
    one, other = (_outputs(module, inputs) for _ in range(2))
    for (name, part, first), (_, _, again) in zip(one, other, strict=False):
        if not torch.equal(first, again):
            return f"{type(part).__name__} {name!r}" if name else type(part).__name__
    return "The module"


def _outputs(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[tuple[str, nn.Module, torch.Tensor]]:
    """Results of all parts of a module, as they end."""
    still, ran = copy.deepcopy(module), list[tuple[str, nn.Module, torch.Tensor]]()
    names = {part: name for name, part in still.named_modules()}

    def note(part: nn.Module, _: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            ran.append((names[part], part, result.detach().clone()))

    for part in names:
        part.register_forward_hook(note)
    still(*inputs)
    return ran


def _random_labels(kind: Mapping[str, Any], output: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    if kind["type"] == "CrossEntropyLoss":
        scores = output.movedim(kind["class_axis"], 1)
        return torch.randint(0, scores.shape[1], (scores.shape[0], *scores.shape[2:]), generator=draw)
    numbers = torch.rand(output.shape, generator=draw)
    return numbers.round() if kind["type"] == "BCEWithLogitsLoss" else numbers


def _torch_loss(kind: Mapping[str, Any], output: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """PyTorch's loss of that name and settings."""
    settings = {name: value for name, value in kind.items() if value is not None}
    name, axis = settings.pop("type"), settings.pop("class_axis", 1)
    for factors in ("weight", "pos_weight"):
        if factors in settings:
            settings[factors] = torch.as_tensor(settings[factors], dtype=output.dtype)
    result: torch.Tensor = LOSSES[name](**settings)(output.movedim(axis, 1) if output.ndim > 1 else output, labels)
    return result


def _torch_steps(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], kind: Mapping[str, Any] | None, labels: torch.Tensor | None
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of PyTorch's steps, and its parameters after them."""
    trained = copy.deepcopy(module)
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for _ in range(STEPS):
        result = _first(trained(*inputs))
        loss = result if kind is None else _torch_loss(kind, result, labels)
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, {name: p.detach().numpy() for name, p in trained.named_parameters()}


def _steps(session: TrainingSession, feeds: Mapping[str, np.ndarray]) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of our steps, and what the first one gave."""
    losses: list[float] = []
    first: dict[str, np.ndarray] = {}
    for step in range(STEPS):
        results = session.train_step(feeds)
        losses.append(float(next(iter(results.values()))))
        first = results if step == 0 else first
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses, first


def _difference(values: np.ndarray, expected: np.ndarray) -> float:
    if values.shape != expected.shape:
        raise ModelError(f"The output has shape {list(values.shape)}; PyTorch's has {list(expected.shape)}.")
    return float(np.abs(values - expected).max(initial=0) / max(float(np.abs(expected).max(initial=0)), NOISE))


def _update_difference(values: np.ndarray, expected: np.ndarray, before: np.ndarray) -> float:
    """In parts of the largest update, or of what is rounding if that is more."""
    update = float(np.abs(expected - before).max(initial=0))
    floor = NOISE * max(float(np.abs(before).max(initial=0)), 1.0)
    return float(np.abs(values - expected).max(initial=0)) / max(update, floor / TOLERANCE)


def _check_close(what: str, difference: float) -> None:
    if not difference <= TOLERANCE:
        raise _DifferenceError(
            f"{what} differs from PyTorch's by {difference:.2g} of its size: the exported model does not train as the "
            "module does."
        )


class _DifferenceError(ModelError):
    """The steps differ from PyTorch's."""


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Which operations of a forward gradients do not go through, though the exporter writes them down as others."""

    def __init__(self) -> None:
        super().__init__()
        self.without: dict[str, None] = {}
        self.has_hook = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.has_hook |= func.__name__ == "register_hook"
        if isinstance(result, torch.Tensor) and result.is_floating_point() and not torch.is_grad_enabled():
            self.without[func.__name__] = None
        return result


def _untold(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    """Describe gradients of the module that no file has, each with a replacement."""
    with _Watch() as watch:
        result = _first(copy.deepcopy(module)(*inputs))
    backwards = _own_backwards(result)
    if backwards:  # their forward runs without gradients, too
        return [
            f"{', '.join(backwards)} is an autograd.Function with its own backward, and a file contains only the "
            "forward: write it with detach(), as x + (f(x) - x).detach() for gradients that go straight through."
        ]
    if watch.has_hook:
        return [
            "forward calls register_hook, which changes gradients and is not in the file: write it with detach(), as "
            "x.detach() * (1 + r) - x * r for a gradient times -r."
        ]
    if not watch.without:
        return []
    names = ", ".join(list(watch.without)[:_SHOWN])
    return [f"forward computes {names} under torch.no_grad(), which no file records: call detach() instead."]


def _own_backwards(result: torch.Tensor) -> list[str]:
    """Names of the autograd.Functions that a tensor was made by."""
    stack, seen, names = [result.grad_fn], set[Any](), dict[str, None]()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            names[type(node).__name__.removesuffix("Backward")] = None
        stack += [before for before, _ in node.next_functions]
    return list(names)
