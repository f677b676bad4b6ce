"""Settings of trained prompts, and PEFT's `adapter_config.json`, which says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trainweb.errors import LimitError, ModelError
from trainweb.lora.config import WITHOUT_EFFECT, check_peft, shown

MOST_TOKENS = 2**16
"""No model takes as many; beyond it memory is the limit."""
READ = {"num_transformer_submodules", "num_virtual_tokens", "peft_type", "task_type", "token_dim"}
"""Settings of PEFT that count here."""
OF_START = {
    "num_attention_heads",
    "num_layers",
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "tokenizer_kwargs",
    "tokenizer_name_or_path",
}
"""Settings of PEFT that say how vectors started, or what the model says, too."""
TASK = "CAUSAL_LM"


@dataclass(frozen=True)
class PromptConfig:
    """The settings of a trained prompt: vectors in front of the embeddings of each text.

    Attributes
    ----------
    tokens : int
        Number of vectors.
    width : int, optional
        Numbers of a vector; the width of the model's embeddings.
    """

    peft_type: ClassVar[str] = "PROMPT_TUNING"
    prefix: ClassVar[str] = ""
    """Of the key in a file."""

    tokens: int = 20
    width: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("width", 1 if self.width is None else self.width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{name!r} of a prompt is {shown(value)}; it must be an integer of at least 1.")
        if self.tokens > MOST_TOKENS:
            raise LimitError(f"'tokens' of a prompt is {shown(self.tokens)}; it must be at most {MOST_TOKENS}.")

    def to_peft(self) -> dict[str, Any]:
        """The contents of PEFT's `adapter_config.json`."""
        return {
            "base_model_name_or_path": None,
            "inference_mode": True,
            "num_transformer_submodules": 1,
            "num_virtual_tokens": self.tokens,
            "peft_type": self.peft_type,
            "prompt_tuning_init": "RANDOM",
            "task_type": TASK,
            "token_dim": self.width,
        }

    @classmethod
    def from_peft(cls, values: Mapping[str, Any]) -> PromptConfig:
        """The settings that an `adapter_config.json` holds.

        Parameters
        ----------
        values : dict
            The settings.

        Raises
        ------
        ModelError
            It is not of prompt tuning, or has a setting that is not supported; the text names it.
        """
        check_peft(cls.peft_type, values, READ | OF_START | WITHOUT_EFFECT)
        for name, supported in (("task_type", TASK), ("num_transformer_submodules", 1)):
            if values.get(name) not in (None, supported):
                raise ModelError(
                    f"adapter_config.json: {name} = {shown(values[name])} is not supported; it must be {supported}."
                )
        if "num_virtual_tokens" not in values:
            raise ModelError("adapter_config.json: 'num_virtual_tokens' is missing.")
        return cls(values["num_virtual_tokens"], values.get("token_dim"))
