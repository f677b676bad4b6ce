"""What a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..model.graph import Tensor

Property = int | float | str
"""int64, float32 or text."""


@dataclass(slots=True)
class OptimizerGroup:
    """State of one optimizer group.

    Attributes
    ----------
    name : str
        "group0" for the one group that there is in practice.
    step : int
        Completed optimizer steps.
    initial_lr : float
        Rate that the learning rate scheduler started from.
    states : dict of str to dict of str to Tensor
        By parameter, then by momentum ("momentum0", "momentum1"); shapes are those of the
        parameters.
    """

    name: str = "group0"
    step: int = 0
    initial_lr: float = 0.001
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)


@dataclass(slots=True)
class Checkpoint:
    """Parameters, optimizer state and properties.

    Attributes
    ----------
    requires_grad, frozen : list of Tensor
        The trainable parameters and the others. The order says nothing: that of the contiguous
        buffer comes from the training model.
    is_nominal : bool
        Only names are there: every shape is () and all data empty.
    groups : list of OptimizerGroup
        Empty where no optimizer state was saved.
    properties : dict of str to int, float or str
        What the user put in.
    """

    requires_grad: list[Tensor] = field(default_factory=list)
    frozen: list[Tensor] = field(default_factory=list)
    is_nominal: bool = False
    groups: list[OptimizerGroup] = field(default_factory=list)
    properties: dict[str, Property] = field(default_factory=dict)
