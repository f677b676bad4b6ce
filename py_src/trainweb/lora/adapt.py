"""The adapters that the options of a session ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.lora.adapted import LoraModel
from trainweb.lora.adapter import Adapter
from trainweb.lora.model import inject


def adapted_by(lora: Mapping[str, Any], model: Callable[[], Any]) -> LoraModel:
    """The model with the adapters that these settings ask for.

    Raises
    ------
    TypeError
        A setting has an unknown name.
    ModelError
        A setting has a wrong value.
    """
    if not isinstance(lora, Mapping):
        raise messages.BAD_SETTING(name="lora", value=lora, expected="a mapping of settings of adapters")
    settings = dict(lora)
    peft = settings.pop("adapter_config", None)
    config = None if peft is None else Adapter.parse_config(peft)
    check_settings("lora", settings, [*signature(inject).parameters, "adapter_config"])
    return inject(model(), config=config, **settings)
