"""Schedules of the learning rate: functions of the number of optimizer steps; `Plateau` gets a metric besides.

    schedule = Cosine(0.01, total=1000, warmup=100)
    for step in range(1000):
        session.set_learning_rate(schedule.rate(step))
        ...

A page has the same, by the same settings: `schedule({ type: "Cosine", learningRate: 0.01, total: 1000, warmup: 100 })`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from trainweb import messages
from trainweb._names import public_names
from trainweb.formulas import Course, Formula, Rule
from trainweb.settings import Choice, Count, Kind, NotNegative, Number, Positive, Whole, checked, fields_of, make

Warmup = Annotated[int, Whole(least=0)]
Share = Annotated[float, Number(least=0, most=1)]

AFTER: Formula = ["-", "step", "warmup"]
"""Optimizer steps after the warm-up."""
LENGTH: Formula = ["-", "total", "warmup"]
"""Steps from the end of the warm-up to the end."""
WAY: Formula = ["/", ["min", AFTER, LENGTH], LENGTH]
"""Share of `LENGTH` that is done."""


def half_wave(start: Formula, end: Formula, share: Formula) -> Formula:
    """From `start` to `end` along a cosine; `share` of the way."""
    return ["+", end, ["*", ["-", start, end], ["/", ["+", 1, ["cos", ["*", math.pi, share]]], 2]]]


class Schedule:
    """Base class: learning rates of optimizer steps."""

    def rate(self, step: int) -> float:
        """The learning rate of an optimizer step.

        Parameters
        ----------
        step : int
            Number of optimizer steps that were done before.

        Raises
        ------
        ModelError
            `step` is not an integer >= 0.
        """
        raise NotImplementedError

    def observe(self, metric: float) -> None:
        """Take note of a metric, such as the loss of an epoch in evaluation: `Plateau` goes by it, others do not.

        Parameters
        ----------
        metric : float
            The lower the better, unless the schedule says otherwise.
        """


@dataclass(eq=False, repr=False)
class ByFormula(Schedule):
    """Base class: a subclass has its settings as fields, and formulas of them, which pages compute, too.

    Names in formulas are settings, the state, and "step", the optimizer steps that were done before. A setting that is
    a choice counts as the position of its value among the options.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    warmup : int
        Steps over which the rate rises to `learning_rate`.
    warmup_start : float
        Start of the rise, as a share of `learning_rate`.
    """

    _factor: ClassVar[Formula]
    """The rate after the warm-up, in parts of the learning rate."""
    _state: ClassVar[Mapping[str, Formula]] = {}
    """First values of what changes with each "metric" that is observed."""
    _changes: ClassVar[Sequence[tuple[str, Formula]]] = ()
    """Assignments for each."""

    learning_rate: NotNegative
    warmup: Warmup = dataclasses.field(default=0, kw_only=True)
    warmup_start: Share = dataclasses.field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        settings: dict[str, float] = {}
        for name, field in fields_of(type(self)).items():
            value = getattr(self, name)
            settings[name] = field.kind.options.index(value) if isinstance(field.kind, Choice) else float(value)
        total = getattr(self, "total", None)
        if total is not None and total <= self.warmup:
            expected = f"an integer above the warm-up, which takes {self.warmup} steps"
            raise messages.BAD_SETTING(name="total", value=total, expected=expected)
        self._course = Course(self._rule(), settings)

    @classmethod
    def _rule(cls) -> Rule:
        """The rates of all steps."""
        rise: Formula = ["+", "warmup_start", ["*", ["-", 1, "warmup_start"], ["/", "step", "warmup"]]]
        factor: Formula = ["if", [">", "warmup", "step"], rise, cls._factor]
        return Rule(["*", "learning_rate", factor], cls._state, cls._changes)

    def rate(self, step: int) -> float:
        Whole(least=0).check("step", step)
        return self._course.value(step=step)

    def observe(self, metric: float) -> None:
        self._course.observe(metric=metric)


SCHEDULES: dict[str, type[ByFormula]] = {}
"""By name."""
T = TypeVar("T", bound=ByFormula)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def schedule(cls: type[T]) -> type[T]:
    """Class decorator that makes a schedule known by its name, and arguments of its fields, which are checked."""
    if cls.__doc__:  # a page has none
        cls.__doc__ = "".join([getdoc(cls) or "", "\n", *(getdoc(ByFormula) or "").partition("warmup : int")[1:]])
    kind = dataclass(eq=False, repr=False)(cls)
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    SCHEDULES[cls.__name__] = kind
    return kind


def make_schedule(schedule: Mapping[str, Any] | Callable[[int], float]) -> Schedule:
    """A schedule by a dict with its "type" and settings, or of a function of the step. Raise ModelError for others."""
    return Function(schedule) if callable(schedule) else make("schedule", SCHEDULES, schedule)


class Function(Schedule):
    """A function of the user's.

    Parameters
    ----------
    function : callable
        The learning rate of a step.
    """

    def __init__(self, function: Callable[[int], float]) -> None:
        self._function = function

    def rate(self, step: int) -> float:
        Whole(least=0).check("step", step)
        value = self._function(step)
        RATE.check("the learning rate of the function", value)
        return float(value)


RATE: Kind = Number(least=0)


@schedule
class Constant(ByFormula):
    """The same rate at every step.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    """

    _factor = 1


@schedule
class Linear(ByFormula):
    """A straight line from the share `start` of `learning_rate` to the share `end`, then constant.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps.
    start : float
        The first rate after the warm-up, as a share of `learning_rate`.
    end : float
        The last rate, as a share of `learning_rate`.
    """

    total: Count
    start: NotNegative = 1.0
    end: NotNegative = 0.0

    _factor = ["+", "start", ["*", ["-", "end", "start"], WAY]]


@schedule
class Cosine(ByFormula):
    """Half a cosine wave down to the share `end` of `learning_rate`, then constant, https://arxiv.org/abs/1608.03983.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps.
    end : float
        The last rate, as a share of `learning_rate`.
    """

    total: Count
    end: NotNegative = 0.0

    _factor = half_wave(1, "end", WAY)


@schedule
class Step(ByFormula):
    """Multiply the rate by `gamma` after every `every` steps.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    every : int
        Steps between two changes.
    gamma : float
        Factor of the rate.
    """

    every: Count
    gamma: Positive = 0.1

    _factor = ["pow", "gamma", ["floor", ["/", AFTER, "every"]]]


@schedule
class Exponential(ByFormula):
    """Multiply the rate by `gamma` after every step.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    gamma : float
        Factor of the rate.
    """

    gamma: Positive

    _factor = ["pow", "gamma", AFTER]


@schedule
class Polynomial(ByFormula):
    """Fall to the share `end` of `learning_rate` as a power of the remaining share of the steps, then constant.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps.
    power : float
        The exponent.
    end : float
        The last rate, as a share of `learning_rate`.
    """

    total: Count
    power: Positive = 1.0
    end: NotNegative = 0.0

    _factor = ["+", "end", ["*", ["-", 1, "end"], ["pow", ["-", 1, WAY], "power"]]]


@schedule
class OneCycle(ByFormula):
    """Rise along a cosine from the share `start` of `learning_rate` to all of it, then fall to the share `end`, https://arxiv.org/abs/1708.07120.

    Parameters
    ----------
    learning_rate : float
        The highest rate.
    total : int
        Optimizer steps of the whole schedule, with the warm-up. In a fit the default is all its steps.
    rise : float
        Share of the steps in which the rate rises.
    start : float
        The first rate, as a share of `learning_rate`.
    end : float
        The last rate, as a share of `learning_rate`.
    """

    total: Count
    rise: Annotated[float, Number(above=0, below=1)] = 0.3
    start: Share = 0.04
    end: Share = 4e-6

    _top: ClassVar[Formula] = ["-", ["*", "rise", LENGTH], 1]
    _fall: ClassVar[Formula] = ["/", ["-", AFTER, _top], ["-", ["-", LENGTH, 1], _top]]
    _factor = [
        "if",
        [">", AFTER, _top],
        half_wave(1, "end", ["min", _fall, 1]),
        ["if", [">", _top, 0], half_wave("start", 1, ["/", AFTER, _top]), 1],
    ]


@schedule
class Plateau(ByFormula):
    """Multiply the rate by `reduction`, down to the share `least`, if a metric stops improving: `observe` reports it.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    reduction : float
        Factor of the rate.
    patience : int
        Observations without improvement before the rate falls.
    threshold : float
        Share of the best metric by which a better one must differ.
    mode : {"min", "max"}
        "min" if lower metrics are better, "max" if higher ones are.
    cooldown : int
        Observations to ignore after a change.
    least : float
        Lowest rate, as a share of `learning_rate`.
    """

    reduction: Annotated[float, Number(above=0, below=1)] = 0.1
    patience: Warmup = 10
    threshold: Share = 1e-4
    mode: Annotated[str, Choice(("min", "max"))] = "min"
    cooldown: Warmup = 0
    least: Share = 0.0

    _factor = "factor"
    _state = {"best": ["/", ["if", "mode", -1, 1], 0], "factor": 1, "bad": 0, "pause": 0}
    _changes = (
        ("more", [">", "metric", ["*", "best", ["+", 1, "threshold"]]]),
        ("less", [">", ["*", "best", ["-", 1, "threshold"]], "metric"]),
        ("is_better", ["if", "mode", "more", "less"]),
        ("best", ["if", "is_better", "metric", "best"]),
        ("bad", ["if", ["max", "is_better", "pause"], 0, ["+", "bad", 1]]),
        ("pause", ["max", ["-", "pause", 1], 0]),
        ("is_late", [">", "bad", "patience"]),
        ("factor", ["if", "is_late", ["max", ["*", "factor", "reduction"], "least"], "factor"]),
        ("pause", ["if", "is_late", "cooldown", "pause"]),
        ("bad", ["if", "is_late", 0, "bad"]),
    )


def __dir__() -> list[str]:
    return public_names(globals())
