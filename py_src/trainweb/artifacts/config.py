"""Arguments of `createFromModel` of a page besides the model: arguments of `build_artifacts`, and their values."""

from __future__ import annotations

from inspect import Parameter

from trainweb.artifacts.builder import BATCH_NORM
from trainweb.settings import Choice, Field, Flag, Kind, Names, Number, Sizes, Text, Whole


def _optional(kind: Kind) -> Field:
    return Field(kind, None, is_optional=True)


CONFIG = {
    "clip_grad_norm": _optional(Number(above=0)),
    "clip_grad_value": _optional(Number(above=0)),
    "requires_grad": _optional(Names()),
    "frozen_params": _optional(Names(may_be_empty=True)),
    "additional_output_names": _optional(Names(may_be_empty=True)),
    "loss_input_names": _optional(Names()),
    "batch_norm": _optional(Choice(BATCH_NORM)),
    "stop_gradient": _optional(Names()),
    "dims": _optional(Sizes()),
    "nominal_checkpoint": _optional(Flag()),
}
"""By argument; "loss" and "optimizer" come before."""

LORA = {
    "targets": _optional(Names()),
    "rank": Field(Whole(least=1), 8, is_optional=False),
    "alpha": _optional(Number(above=0)),
    "dropout": Field(Number(least=0, below=1), 0.0, is_optional=False),
    "init": Field(Choice(("default", "gaussian")), "default", is_optional=False),
    "use_rslora": Field(Flag(), default=False, is_optional=False),
    "use_dora": Field(Flag(), default=False, is_optional=False),
    "modules_to_save": _optional(Names()),
    "seed": Field(Whole(least=0, most=2**53 - 1), 0, is_optional=False),
}
"""Arguments of `trainweb.lora.inject`, which the page has as the setting "lora"."""

HEAD = {
    "classes": Field(Whole(least=1), Parameter.empty, is_optional=False),
    "layer": _optional(Text()),
    "seed": LORA["seed"],
}
"""Settings of a new last layer, the option "head"."""

HEAD_DOCS = {
    "classes": "Number of classes.",
    "layer": "Module that makes the scores; needed where several may do so.",
    "seed": "Seed of the weights, which are those that PyTorch draws after the same seed.",
}

LORA_DOCS = {
    "targets": 'Modules to adapt, by names or last parts of names, or ["all-linear"]; by default the choice of PEFT.',
    "rank": "Rank of the product B A.",
    "alpha": "The product is multiplied by alpha / rank; by default `rank`.",
    "dropout": "Probability with which an element of an adapter's input is zero in training steps.",
    "init": "Distribution of A: uniform, or normal with deviation 1 / rank. B starts as zero.",
    "use_rslora": "Multiply the product by alpha / sqrt(rank) instead.",
    "use_dora": "Also learn magnitudes of the columns of weights (DoRA).",
    "modules_to_save": "Modules to train whole and to save with the adapters, such as a new head.",
    "seed": "Seed of the random numbers.",
}
