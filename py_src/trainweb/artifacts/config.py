"""What `createFromModel` of a page is given besides the model: arguments of `build_artifacts`, and what each may be."""

from __future__ import annotations

from trainweb.artifacts.builder import BATCH_NORM
from trainweb.settings import Choice, Field, Flag, Kind, Names, Number


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
    "nominal_checkpoint": _optional(Flag()),
}
"""By argument; "loss" and "optimizer" come before."""
