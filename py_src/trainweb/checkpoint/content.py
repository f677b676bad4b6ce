"""The contents of a checkpoint."""

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
        "group0" for the only group in practice.
    step : int
        Completed optimizer steps.
    initial_lr : float
        Rate that the learning rate scheduler started from.
    states : dict of str to dict of str to Tensor
        By parameter, then by momentum ("momentum0", "momentum1"); shapes are the parameters' shapes.
    """

    name: str = "group0"
    step: int = 0
    initial_lr: float = 0.001
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)


@dataclass(slots=True)
class Resume:
    """More state that a session needs to go on with the same bytes as one that was never ended.

    ONNX Runtime has no place for it. It stands in a field of the root table that ONNX Runtime's readers do not know and
    its writers leave out. Training elsewhere makes nothing stale.

    Attributes
    ----------
    reset : bool
        The next train step overwrites the gradients.
    learning_rate : float
        The current rate.
    schedule : (int, int) or None
        Warm-up and total steps of a registered scheduler.
    random : (int, int) or None
        Seed and position of the random numbers; None: the numbers of a new session.
    gradients : dict of str to Tensor
        Accumulated gradients by parameter; empty where the next train step overwrites them.
    parameters : dict of str to Tensor
        Trained values, in float32, of tensors that the checkpoint has in half precision.
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
        The trainable parameters and the others. The order has no meaning: the order of the contiguous buffer comes from
        the training model.
    is_nominal : bool
        Only names are there: every shape is () and all data empty.
    groups : list of OptimizerGroup
        Empty where no optimizer state was saved.
    properties : dict of str to int, float or str
        Properties of the user.
    resume : Resume or None
        More state for exact resumption.
    """

    requires_grad: list[Tensor] = field(default_factory=list)
    frozen: list[Tensor] = field(default_factory=list)
    is_nominal: bool = False
    groups: list[OptimizerGroup] = field(default_factory=list)
    properties: dict[str, Property] = field(default_factory=dict)
    resume: Resume | None = None
