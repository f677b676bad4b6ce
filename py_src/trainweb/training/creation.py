"""A session of a forward model."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from trainweb.arguments import unknown
from trainweb.model.graph import Graph
from trainweb.model.reader import read_model
from trainweb.training.state import CheckpointState

if TYPE_CHECKING:
    from trainweb.artifacts import Artifacts

FILES = ("external_data", "weights", "limits", "integrity")
"""Arguments about the files of a model."""


def session_of_model(
    cls: Any,
    model: Any,
    loss: Any,
    optimizer: Any,
    learning_rate: float | None,
    adapters: Mapping[str, Any],
    options: Any,
    settings: dict[str, Any],
) -> Any:
    """See `TrainingSession.from_model`."""
    from trainweb.artifacts import build_artifacts

    known = [*signature(build_artifacts).parameters, "head", *adapters, "options"]
    for name in settings:
        if name not in known:
            raise TypeError(unknown("The argument of from_model", name, known))
    settings |= {"loss": loss, "optimizer": optimizer, "learning_rate": learning_rate}
    built, adapted = artifacts_of(model, adapters, settings)
    state = CheckpointState(built.contents(nominal=settings.get("nominal_checkpoint", False)))
    session = cls(state, *built.graphs, options)
    session.adapted = adapted
    return session


def artifacts_of(model: Any, adapters: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Artifacts, Any]:
    """Artifacts of a forward model or, where asked for, of its adapter, and the `LoraModel` or `PromptModel`."""
    from trainweb.artifacts import build_artifacts
    from trainweb.heads import take_head
    from trainweb.lora.adapt import adapted_by

    files = {name: settings[name] for name in FILES if name in settings}
    settings, adapters = dict(settings), dict(adapters)
    headed = take_head(lambda: model if isinstance(model, Graph) else read_model(model, **files), settings, adapters)
    if headed is not None:
        model, files = headed, {}
        settings = {name: value for name, value in settings.items() if name not in FILES}
    adapted = adapted_by(adapters, lambda: read_model(model, **files) if files else model)
    if adapted is None:
        return build_artifacts(model, **settings), None
    return adapted.build_artifacts(**{name: value for name, value in settings.items() if name not in files}), adapted
