"""Settings of adapters, and PEFT's `adapter_config.json`, which says the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from trainweb.arguments import mapping
from trainweb.errors import LimitError, ModelError

T = TypeVar("T")
INITS = ("default", "gaussian")
MOST_RANK = 2**16
"""No layer is as wide; beyond it memory is the limit."""
LEAST_FLOAT32, MOST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Limits of normal float32 numbers: the scaling is one of them."""

WITHOUT_EFFECT = {
    "auto_mapping",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
}
"""Settings of PEFT that say where an adapter comes from, or that only others give a meaning."""
INITS_OF_PEFT = ("true", "false", "gaussian", "orthogonal", "eva")
"""Ways to start A and B that leave the base and what is trained as they are: peft/tuners/lora/layer.py."""
CHOOSING = ("exclude_modules", "layers_pattern", "layers_to_transform")
"""Settings of PEFT that narrow the choice of modules, and are not read."""
MERGE = " In PEFT, merge_and_unload() puts the adapter into the base. Export that model."
PEFT_TYPE = "LORA"
NOTES = ("base_model_name_or_path", "task_type")
"""Fields of a configuration by which PEFT's Auto classes open the base."""
OF_PEFT = {"targets": "target_modules", "rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
"""Settings that have other names in PEFT."""
PREFIX = "base_model.model."
"""PEFT's name of the base model in the keys of a file."""
ALL_LINEAR = "all-linear"
"""PEFT's word for all products but the head."""
MOST_SHOWN, MOST_LISTED = 80, 20
"""Characters of a value, and entries of a list, in messages."""


@dataclass(frozen=True)
class LoraConfig:
    """Settings of the adapters of a model.

    Attributes
    ----------
    targets : tuple of str, or str
        Modules that have an adapter: names or last parts of names, or an expression that matches whole names.
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
    fan_in_fan_out : bool
        The base stores weights as (in, out). It changes nothing here: the file of the model says it, too.
    rank_pattern, alpha_pattern : dict
        Other ranks and alphas of some modules, by expressions for their names or last parts of names.
    ensure_weight_tying : bool
        A tied table of `modules_to_save` stays tied. Otherwise each module has a copy of it, as in PEFT.
    base_model_name_or_path, task_type : str, optional
        PEFT's notes by which its Auto classes open the base. Nothing here depends on them.
    """

    targets: tuple[str, ...] | str
    rank: int = 8
    alpha: float = 8
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    fan_in_fan_out: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    ensure_weight_tying: bool = False
    base_model_name_or_path: str | None = None
    task_type: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ModelError(f"The rank of adapters is {shown(self.rank)}; it must be an integer of at least 1.")
        if self.rank > MOST_RANK:
            raise LimitError(f"The rank of adapters is {shown(self.rank)}; it must be at most {MOST_RANK}.")
        # A comparison with an integer of any length is exact; a division by one may overflow.
        if not _is_number(self.alpha) or not 0 < self.alpha <= MOST_FLOAT32 or self.scaling < LEAST_FLOAT32:
            raise ModelError(
                f"alpha is {shown(self.alpha)}; it must be a positive number, and float32 must hold alpha / rank."
            )
        for name in ("use_rslora", "use_dora", "fan_in_fan_out", "ensure_weight_tying"):
            if not isinstance(getattr(self, name), bool):
                raise ModelError(f"{name} is {shown(getattr(self, name))}; it must be true or false.")
        if not _is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ModelError(f"dropout is {shown(self.dropout)}; it must be at least 0 and less than 1.")
        for name in NOTES:
            if not isinstance(getattr(self, name), str | None):
                raise ModelError(f"{name} is {shown(getattr(self, name))}; it must be a text.")
        for name in ("rank_pattern", "alpha_pattern"):
            if not isinstance(getattr(self, name), Mapping):
                raise ModelError(f"{name} is {shown(getattr(self, name))}; it must be an object.")
            for pattern, value in getattr(self, name).items():
                try:
                    re.compile(pattern)
                except (re.error, RecursionError, OverflowError, TypeError) as error:
                    raise ModelError(f"{name}: {shown(pattern)} is not an expression: {error}.") from error
                replace(self, **{name.partition("_")[0]: value, "rank_pattern": {}, "alpha_pattern": {}})

    def of(self, module: str) -> LoraConfig:
        """The settings of one module: the first pattern counts that matches its name or the last parts of it.

        Parameters
        ----------
        module : str
            Its name.
        """
        rank = _matched(self.rank_pattern, module, self.rank)
        alpha = _matched(self.alpha_pattern, module, self.alpha)
        return replace(self, rank=rank, alpha=alpha, rank_pattern={}, alpha_pattern={})

    @property
    def scaling(self) -> float:
        """The factor of the product B A."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    def to_peft(self) -> dict[str, Any]:
        """The contents of PEFT's `adapter_config.json`."""
        settings = {OF_PEFT.get(name, name): value for name, value in vars(self).items()}
        if not self.ensure_weight_tying:
            del settings["ensure_weight_tying"]  # older PEFT does not know it
        settings |= {
            "alpha_pattern": dict(self.alpha_pattern),
            "bias": "none",
            "inference_mode": True,
            "init_lora_weights": True,
            "modules_to_save": list(self.modules_to_save) or None,
            "peft_type": PEFT_TYPE,
            "rank_pattern": dict(self.rank_pattern),
            "target_modules": self.targets if isinstance(self.targets, str) else list(self.targets),
        }
        return dict(sorted(settings.items()))

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
        _check_peft(values)
        if (values.get("bias") or "none") != "none":
            raise ModelError(f"adapter_config.json: bias = {shown(values['bias'])} is not supported.{MERGE}")
        start = values.get("init_lora_weights", True)
        if str(start).lower() not in INITS_OF_PEFT:
            raise ModelError(
                f"adapter_config.json: init_lora_weights = {shown(start)} is not supported: it changes the weights of "
                "the base, or which matrices are trained. PEFT makes a plain adapter of pissa, olora, corda and "
                "lora_ga by save_pretrained(folder, path_initial_model_for_weight_conversion=...)."
            )
        settings = {name: values[key] for name, key in KEYS.items() if values.get(key)}
        for name in ("rank", "alpha"):
            if KEYS[name] not in values:
                raise ModelError(f"adapter_config.json: {KEYS[name]!r} is missing.")
            settings[name] = values[KEYS[name]]
        targets, saved = settings.get("targets", ()), settings.get("modules_to_save", ())
        settings["targets"] = targets if isinstance(targets, str) else _names("target_modules", targets)
        settings["modules_to_save"] = _names("modules_to_save", saved)
        return cls(**settings)


KEYS = {field.name: OF_PEFT.get(field.name, field.name) for field in fields(LoraConfig)}
"""Settings by their names in PEFT."""
READ = {*KEYS.values(), "bias", "init_lora_weights", "peft_type"}
"""Settings of PEFT that count here."""


def _check_peft(values: Mapping[str, Any]) -> None:
    """Raise ModelError for an `adapter_config.json` of another type, or with a setting that is not known."""
    peft_type = mapping("values", values).get("peft_type")
    if peft_type != PEFT_TYPE:
        raise ModelError(
            f"adapter_config.json: 'peft_type' is {shown(peft_type)}; only {PEFT_TYPE} is supported. Train the adapter "
            "with PEFT's LoraConfig."
        )
    for name, value in values.items():
        # An empty list or dict, None and False all say that a setting is not used.
        if value and name not in READ | WITHOUT_EFFECT:
            way = MERGE
            if name in CHOOSING:
                way = " In PEFT, set it to None and 'target_modules' to model.targeted_module_names, and save again."
            raise ModelError(f"adapter_config.json: {shown(name)[1:-1]} = {shown(value)} is not supported.{way}")


def chosen(patterns: Sequence[str] | str, modules: Sequence[str], argument: str, *, of_peft: bool = False) -> list[str]:
    """The modules that names, ends of names or regular expressions stand for, as PEFT understands them.

    A list holds names or the last parts of names (`q_proj` is every `...q_proj`); a str is a name, such a part, or a
    regular expression that must match a whole name. Of `modules_to_save`, an end is enough: `classifier` is
    `pre_classifier`, too. With `of_peft`, a str is an expression, and names without a module are left out. Raise
    ModelError if one of them stands for no module, or with `of_peft` none stands for any.
    """
    from trainweb.settings import matching

    if not isinstance(patterns, Iterable):
        raise TypeError(f"'{argument}' must be names of modules, got {shown(patterns)}.")
    matched: set[str] = set()
    missing: list[str] = []
    is_expression, joint = of_peft and isinstance(patterns, str), "" if argument == "modules_to_save" else "."
    for pattern in [patterns] if isinstance(patterns, str) else list(patterns):
        if not isinstance(pattern, str):
            raise ModelError(f"{argument} must be names of modules, not {shown(pattern)}.")
        ends = [m for m in modules if m == pattern or (pattern and m.endswith(f"{joint}{pattern}"))]
        matches = matching(pattern, modules) if is_expression or not ends else ends
        if not matches:
            missing.append(pattern)
        matched.update(matches)
    if missing and not (of_peft and matched):
        raise ModelError(_no_module(missing[0], modules, argument))
    return [m for m in modules if m in matched]


def _no_module(pattern: str, modules: Sequence[str], argument: str) -> str:
    """The message about a name without a module. It lists modules that differ in numbers once."""
    tails = sorted({*modules, *(m.rpartition(".")[2] for m in modules)})
    near = get_close_matches(pattern[:MOST_SHOWN], tails, 1)
    hint = f" Did you mean {shown(near[0])}?" if near else ""
    kinds = {re.sub(r"\d+", "0", module): module for module in reversed(modules)}
    there = listed(list(reversed(kinds.values()))) or "none"
    use = "adapted" if argument == "targets" else "saved"
    return f"{argument}: {shown(pattern)} is not a module that can be {use}. The model has {there}.{hint}"


def listed(names: Sequence[str]) -> str:
    """Names in a message: as many as one can read."""
    more = len(names) - MOST_LISTED
    said = ", ".join(name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}..." for name in names[:MOST_LISTED])
    return f"{said} and {more} more" if more > 0 else said


def shown(value: object) -> str:
    """A value in a message: as much of it as one can read."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"an {type(value).__name__} of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _matched(pattern: Mapping[str, T], module: str, default: T) -> T:
    """The value of the first expression that matches a module: peft/utils/other.py, get_pattern_key."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _names(name: str, value: object) -> tuple[str, ...]:
    """Names of a setting, which is a list or one of them."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(one, str) for one in names):
        raise ModelError(f"adapter_config.json: {name} = {shown(value)} must be names of modules.")
    return names
