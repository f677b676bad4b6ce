"""Settings of adapters, and PEFT's `adapter_config.json`, which says the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trainweb.arguments import mapping
from trainweb.errors import LimitError, ModelError

INITS = ("default", "gaussian")
MOST_RANK = 2**16
"""No layer is as wide; beyond it memory is the limit."""

PEFT_ONLY: dict[str, object] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "bias": "none",
    "fan_in_fan_out": False,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "lora_bias": False,
    "rank_pattern": {},
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_qalora": False,
}
"""Settings of PEFT that change what an adapter computes, and the values of those without effect."""


@dataclass(frozen=True)
class LoraConfig:
    """How the adapters of a model are made.

    Attributes
    ----------
    targets : tuple of str
        Modules that have an adapter.
    rank : int
        Rows of A and columns of B.
    alpha : float
        The product B A is multiplied by alpha / rank; with `use_rslora` by alpha / sqrt(rank).
    dropout : float
        Probability with which an element of an adapter's input is zero in training.
    use_rslora, use_dora : bool
        Rank-stabilised scaling (https://arxiv.org/abs/2312.03732); learned magnitudes of the columns of weights
        (https://arxiv.org/abs/2402.09353).
    modules_to_save : tuple of str
        Modules whose own parameters are trained whole and saved with the adapters, such as a new head.
    """

    targets: tuple[str, ...]
    rank: int = 8
    alpha: float = 8
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    modules_to_save: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ModelError(f"The rank of adapters is {self.rank!r}; it must be an integer of at least 1.")
        if self.rank > MOST_RANK:
            raise LimitError(f"The rank of adapters is {self.rank}; it must be at most {MOST_RANK}.")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < math.inf:
            raise ModelError(f"alpha is {self.alpha!r}; it must be a positive number.")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ModelError(f"dropout is {self.dropout!r}; it must be at least 0 and less than 1.")

    @property
    def scaling(self) -> float:
        """What the product of an adapter is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    def to_peft(self) -> dict[str, Any]:
        """What PEFT's `adapter_config.json` holds."""
        return {
            "base_model_name_or_path": None,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "modules_to_save": list(self.modules_to_save) or None,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": list(self.targets),
            "task_type": None,
            "use_dora": self.use_dora,
            "use_rslora": self.use_rslora,
        }

    @classmethod
    def from_peft(cls, values: Mapping[str, Any]) -> LoraConfig:
        """The settings that an `adapter_config.json` holds.

        Parameters
        ----------
        values : dict
            The settings.

        Raises
        ------
        ModelError
            It is not of LoRA, or has a setting that is not supported; the text names it.
        """
        if mapping("values", values).get("peft_type") != "LORA":
            raise ModelError(
                f"adapter_config.json: 'peft_type' is {values.get('peft_type')!r}; only LORA is supported."
            )
        for name, default in PEFT_ONLY.items():
            # An empty list or dict, None and False all say that the setting is not used.
            if (values.get(name) or default) != default:
                raise ModelError(f"adapter_config.json: {name} = {values[name]!r} is not supported.")
        targets = values.get("target_modules") or ()
        try:
            return cls(
                (targets,) if isinstance(targets, str) else tuple(targets),
                values["r"],
                values["lora_alpha"],
                values.get("lora_dropout", 0.0),
                bool(values.get("use_rslora", False)),
                bool(values.get("use_dora", False)),
                tuple(values.get("modules_to_save") or ()),
            )
        except KeyError as error:
            raise ModelError(f"adapter_config.json: {error.args[0]!r} is missing.") from error


def chosen(patterns: Sequence[str] | str, modules: Sequence[str], argument: str) -> list[str]:
    """The modules that names, ends of dotted names or regular expressions stand for, as PEFT understands them.

    A list holds names or the last parts of names (`q_proj` is every `...q_proj`); a str is a name, such a part, or a
    regular expression that must match a whole name.

    Raises
    ------
    ModelError
        One of them stands for no module.
    """
    from trainweb.settings import matching

    if not isinstance(patterns, Iterable):
        raise TypeError(f"'{argument}' must be names of modules, got {patterns!r:.80}.")
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else list(patterns):
        if not isinstance(pattern, str):
            raise ModelError(f"{argument} must be names of modules, not {pattern!r:.80}.")
        ends = [m for m in modules if m == pattern or m.endswith(f".{pattern}")]
        matches = ends or matching(pattern, modules)
        if not matches:
            tails = sorted({*modules, *(m.rpartition(".")[2] for m in modules)})
            near = get_close_matches(pattern, tails, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            some = ", ".join(modules[:12]) + (f" and {len(modules) - 12} more" if len(modules) > 12 else "")
            raise ModelError(f"{argument}: {pattern!r} is no module that can be adapted; there are {some}.{hint}")
        found.update(matches)
    return [m for m in modules if m in found]
