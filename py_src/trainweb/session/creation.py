"""A session of a forward model."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.arguments import unknown
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.heads import ALL_BUT_HEAD, take_head
from trainweb.model.graph import Graph
from trainweb.model.reader import read_model
from trainweb.training.state import CheckpointState

if TYPE_CHECKING:
    from trainweb.lora import LoraModel

FILES = ("external_data", "weights", "limits", "integrity")
"""Arguments about the files of a model."""


def session_of_model(
    cls: Any,
    model: Any,
    loss: Any,
    optimizer: Any,
    learning_rate: float | None,
    lora: Mapping[str, Any] | None,
    options: Any,
    settings: dict[str, Any],
) -> Any:
    """See `TrainingSession.from_model`."""
    known = [*signature(build_artifacts).parameters, "head", "lora", "options"]
    for name in settings:
        if name not in known:
            raise TypeError(unknown("The argument of from_model", name, known))
    settings |= {"loss": loss, "optimizer": optimizer, "learning_rate": learning_rate}
    built, adapted = artifacts_of(model, lora, settings)
    state = CheckpointState(built.contents(nominal=settings.get("nominal_checkpoint", False)))
    session = cls(state, *built.graphs, options)
    session._adapted = adapted
    return session


def artifacts_of(
    model: Any, lora: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> tuple[Artifacts, LoraModel | None]:
    """Artifacts of a forward model, or of the `LoraModel` that settings of adapters ask for."""
    if settings.get("head") is None and settings.get("frozen_params") == ALL_BUT_HEAD:
        raise messages.BAD_SETTING(name="frozen_params", value=ALL_BUT_HEAD, expected="used with 'head'")
    model, arguments, adapted = prepared(model, lora, settings)
    return build_artifacts(model, **arguments), adapted


def prepared(
    model: Any, lora: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], LoraModel | None]:
    """The model with the `head` and the adapters of the settings, the arguments of `build_artifacts`, the adapters."""
    arguments = {name: value for name, value in settings.items() if name != "head" or value is not None}
    files = {name: arguments.pop(name) for name in FILES if name in arguments}
    if "head" in arguments:
        graph = model if isinstance(model, Graph) else read_model(model, **files)
        model, lora = take_head(graph, arguments, lora)
        files = {}
    if lora is None:
        return model, arguments | files, None
    from trainweb.lora.adapted import arguments_of
    from trainweb.lora.model import adapted_by

    base = model
    adapted = adapted_by(lora, lambda: read_model(base, **files) if files else base)
    arguments = arguments_of(adapted, arguments)
    return arguments.pop("model"), arguments, adapted
