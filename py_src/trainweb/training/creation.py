"""A session of a forward model."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from trainweb import messages
from trainweb.arguments import check_settings, unknown
from trainweb.model.reader import read_model
from trainweb.training.state import CheckpointState

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
    from trainweb.artifacts import build_artifacts
    from trainweb.lora import Adapter, inject

    known = [*signature(build_artifacts).parameters, "lora", "options"]
    for name in settings:
        if name not in known:
            raise TypeError(unknown("The argument of from_model", name, known))
    settings |= {"loss": loss, "optimizer": optimizer, "learning_rate": learning_rate}
    if lora is None:
        built = build_artifacts(model, **settings)
    else:
        if not isinstance(lora, Mapping):
            raise messages.BAD_SETTING(name="lora", value=lora, expected="a mapping of settings of adapters")
        adapters = dict(lora)
        peft = adapters.pop("adapter_config", None)
        config = None if peft is None else Adapter.parse_config(peft)
        check_settings("lora", adapters, [*signature(inject).parameters, "adapter_config"])
        files = {name: settings.pop(name) for name in FILES if name in settings}
        adapted = inject(read_model(model, **files) if files else model, config=config, **adapters)
        built = adapted.build_artifacts(**settings)
    state = CheckpointState(built.contents(nominal=settings.get("nominal_checkpoint", False)))
    return cls(state, *built.graphs, options)
