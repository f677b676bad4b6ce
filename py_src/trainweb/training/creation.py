"""A session of a forward model."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from trainweb import messages
from trainweb.arguments import check_settings, unknown
from trainweb.model.reader import read_model
from trainweb.settings import Number
from trainweb.training.state import CheckpointState

RATE = Number(least=0)
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

    known = [*signature(build_artifacts).parameters, "learning_rate", "lora", "options"]
    for name in settings:
        if name not in known:
            raise TypeError(unknown("The argument of from_model", name, known))
    optimizer, rate = rate_of(optimizer, learning_rate)
    if lora is None:
        built = build_artifacts(model, loss=loss, optimizer=optimizer, **settings)
    else:
        if not isinstance(lora, Mapping):
            raise messages.BAD_SETTING(name="lora", value=lora, expected="a mapping of settings of adapters")
        adapters = dict(lora)
        peft = adapters.pop("adapter_config", None)
        config = None if peft is None else Adapter.parse_config(peft)
        check_settings("lora", adapters, [*signature(inject).parameters, "adapter_config"])
        files = {name: settings.pop(name) for name in FILES if name in settings}
        adapted = inject(read_model(model, **files) if files else model, config=config, **adapters)
        built = adapted.build_artifacts(loss=loss, optimizer=optimizer, **settings)
    state = CheckpointState(built.contents(nominal=settings.get("nominal_checkpoint", False)))
    session = cls(state, *built.graphs, options)
    if rate is not None:
        session.set_learning_rate(rate)
    return session


def rate_of(optimizer: Any, learning_rate: float | None) -> tuple[Any, float | None]:
    """The optimizer without its learning rate, and the rate of the session; None: the default.

    Raises
    ------
    ModelError
        There are two different rates, an invalid one, or one without an optimizer.
    """
    if isinstance(optimizer, Mapping) and "learning_rate" in optimizer:
        optimizer = dict(optimizer)
        own = optimizer.pop("learning_rate")
        RATE.check("optimizer.learning_rate", own)
        if learning_rate is not None and learning_rate != own:
            raise messages.TWO_RATES(first=learning_rate, where="optimizer", second=own)
        learning_rate = own
    if learning_rate is not None:
        RATE.check("learning_rate", learning_rate)
        if optimizer is None:
            raise messages.RATE_WITHOUT_OPTIMIZER()
    return optimizer, learning_rate
