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
class Resume:
    """What a session goes on with besides, so that it gives the same bytes as one that was never ended.

    ONNX Runtime has no place for it: it stands in a field of the root table that its readers do not know, and that
    its writers leave out, so that training elsewhere makes nothing stale.

    Attributes
    ----------
    reset : bool
        The next train step overwrites the gradients.
    learning_rate : float
        The current rate.
    schedule : (int, int) or None
        Warm-up and total steps of a registered scheduler.
    random : (int, int) or None
        Seed and position of the random numbers; None: those of a new session.
    gradients : dict of str to Tensor
        Accumulated gradients by parameter; empty where the next train step overwrites them.
    parameters : dict of str to Tensor
        As they are trained, in float32, those that the checkpoint has in half precision.
    optimizer : str
        The name of the optimizer that the moments are of; "" where it is not known.
    """

    reset: bool = True
    learning_rate: float = 0.001
    schedule: tuple[int, int] | None = None
    random: tuple[int, int] | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    optimizer: str = ""


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
    resume : Resume or None
        What exact resumption takes besides.
    """

    requires_grad: list[Tensor] = field(default_factory=list)
    frozen: list[Tensor] = field(default_factory=list)
    is_nominal: bool = False
    groups: list[OptimizerGroup] = field(default_factory=list)
    properties: dict[str, Property] = field(default_factory=dict)
    resume: Resume | None = None
