"""The adapter that the options of a session ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.errors import ModelError
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import LoraConfig
from trainweb.lora.model import LoraModel, inject
from trainweb.lora.prompt import PromptModel, inject_prompt
from trainweb.lora.prompt_config import PromptConfig

KINDS: Mapping[str, tuple[Callable[..., LoraModel | PromptModel], type[LoraConfig | PromptConfig]]] = {
    "lora": (inject, LoraConfig),
    "prompt_tuning": (inject_prompt, PromptConfig),
}
"""By the name of the option."""


def adapted_by(options: Mapping[str, Any], model: Callable[[], Any]) -> LoraModel | PromptModel | None:
    """The model with its adapter; None if none of `KINDS` is among the options.

    Raises
    ------
    TypeError
        A setting has an unknown name.
    ModelError
        A setting has a wrong value, or both options are given.
    """
    given = [name for name in KINDS if options.get(name) is not None]
    if not given:
        return None
    name, *others = given
    for other in others:
        raise messages.BAD_SETTING(name=other, value=options[other], expected=f"left out with {name!r}")
    if not isinstance(options[name], Mapping):
        raise messages.BAD_SETTING(name=name, value=options[name], expected="a mapping of settings of adapters")
    make, kind = KINDS[name]
    settings = dict(options[name])
    peft = settings.pop("adapter_config", None)
    config = None if peft is None else Adapter.parse_config(peft)
    if config is not None and not isinstance(config, kind):
        raise ModelError(f"adapter_config.json: 'peft_type' is {config.peft_type}; it must be {kind.peft_type} here.")
    check_settings(name, settings, [*signature(make).parameters, "adapter_config"])
    return make(model(), config=config, **settings)
