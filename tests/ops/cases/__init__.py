"""Cases of operators: samples to run each on, inputs that it must refuse, and a reference in numpy.

There is a module for each of trainweb.ops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trainweb.errors import ModelError, TrainwebError
from trainweb.ops.frame.op import Op


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs and attributes to test an operator on.

    `inputs` are tensors, shapes (a float32 normal array is made, seeded) or None (absent optional).
    `grad` limits the inputs whose gradient is checked; None means all of `differentiable`.
    """

    inputs: Sequence[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int | None = None
    grad: Sequence[int] | None = None
    outputs: int | None = None
    away_from: Sequence[float] = ()
    """Float inputs keep a distance from these kinks, where the derivative jumps."""
    positive: bool = False
    """Float inputs are made positive (logarithms, roots)."""
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """Inputs or attributes an operator must refuse with `error`."""

    inputs: Sequence[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    error: type[TrainwebError] = ModelError
    opset: int | None = None


INHERITED: Any = None
"""A member of `Cases` that comes from the base class."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of an operator class, and of the classes derived from it that give none."""

    samples: Sequence[Sample] = INHERITED
    bad: Sequence[Bad] = INHERITED
    tested_through: str = INHERITED
    """An operator whose samples test this one, too; it has no samples then."""


CASES: dict[type[Op], Cases] = {Op: Cases(samples=(), bad=(), tested_through="")}


Reference = Callable[..., Any]
"""Computes results of a bound operator, its first argument, from numpy arrays in float64; a tuple where it has several.

Operators on sequences and on state compute the final values of their `state_inputs`.
"""

REFERENCES: dict[type[Op], Reference] = {}


def reference(cls: type[Op]) -> Callable[[Reference], Reference]:
    """Decorator: the reference of an operator class and of the classes derived from it that have none."""

    def enter(function: Reference) -> Reference:
        REFERENCES[cls] = function
        return function

    return enter


def reference_of(cls: type[Op]) -> Reference | None:
    """The reference of an operator class; None for one that only ONNX's reference evaluator computes."""
    _load(cls)
    return next((REFERENCES[base] for base in cls.__mro__ if base in REFERENCES), None)


def cases_of(cls: type[Op]) -> Cases:
    """The cases of an operator class. It inherits members that it does not give from the next base class."""
    _load(cls)
    entries = [CASES[base] for base in cls.__mro__ if base in CASES]

    def member(name: str) -> Any:
        return next(value for entry in entries if (value := getattr(entry, name)) is not INHERITED)

    return Cases(member("samples"), member("bad"), member("tested_through"))


def _load(cls: type[Op]) -> None:
    """Import the modules that have cases of the class and of its bases."""
    for base in cls.__mro__:
        module = base.__module__.replace("trainweb.ops", __name__)
        if module.startswith(__name__) and find_spec(module):
            import_module(module)
