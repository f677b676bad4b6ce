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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated, Any, TypeVar, dataclass_transform

from trainweb import messages
from trainweb._names import public_names
from trainweb.settings import Choice, Kind, NotNegative, Number, Positive, Whole, checked, fields_of, make

Steps = Annotated[int, Whole(least=1)]
Warmup = Annotated[int, Whole(least=0)]
Share = Annotated[float, Number(least=0, most=1)]


@dataclass(eq=False, repr=False)
class Schedule:
    """Base class: a subclass has its settings as fields, and gives `factor`.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up, at its height.
    """

    learning_rate: NotNegative

    def __post_init__(self) -> None:
        for name, field in fields_of(type(self)).items():
            if isinstance(field.kind, Number | Whole):
                number = int if isinstance(field.kind, Whole) else float
                setattr(self, name, number(getattr(self, name)))

    def factor(self, t: int) -> float:
        """The rate `t` steps after the warm-up, in parts of the learning rate.

        Parameters
        ----------
        t : int
            Optimizer steps since the warm-up.
        """
        raise NotImplementedError

    def observe(self, metric: float) -> None:
        """Take note of a metric, such as the loss of an epoch in evaluation: `Plateau` goes by it, others do not.

        Parameters
        ----------
        metric : float
            The lower the better, unless the schedule says otherwise.
        """

    def rate(self, step: int) -> float:
        """The learning rate of an optimizer step.

        Parameters
        ----------
        step : int
            Number of optimizer steps that were done before.

        Raises
        ------
        ModelError
            `step` is no integer >= 0.
        """
        Whole(least=0).check("step", step)
        return self.learning_rate * self.factor(step)


@dataclass(eq=False, repr=False)
class WithWarmup(Schedule):
    """Base class of schedules that may start with a warm-up.

    Parameters
    ----------
    warmup : int
        Steps over which the rate rises to `learning_rate`.
    warmup_start : float
        Start of the rise, as a part of the learning rate.
    """

    warmup: Warmup = dataclasses.field(default=0, kw_only=True)
    warmup_start: Share = dataclasses.field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        total = getattr(self, "total", None)
        if total is not None and total <= self.warmup:
            expected = f"an integer above the warm-up, which takes {self.warmup} steps"
            raise messages.BAD_SETTING(name="total", value=total, expected=expected)

    @property
    def length(self) -> int:
        """Steps from the end of the warm-up to the end."""
        total: int = getattr(self, "total", 0)
        return total - self.warmup

    def rate(self, step: int) -> float:
        Whole(least=0).check("step", step)
        if step < self.warmup:
            return self.learning_rate * (self.warmup_start + (1 - self.warmup_start) * (step / self.warmup))
        return super().rate(step - self.warmup)


SCHEDULES: dict[str, type[Schedule]] = {}
"""By name."""
T = TypeVar("T", bound=Schedule)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def schedule(cls: type[T]) -> type[T]:
    """Class decorator that makes a schedule known by its name, and arguments of its fields, which are checked."""
    if cls.__doc__ and issubclass(cls, WithWarmup):  # a page has none
        cls.__doc__ = "\n".join([getdoc(cls) or "", *(getdoc(WithWarmup) or "").splitlines()[4:]])
    made = dataclass(eq=False, repr=False)(cls)
    made.__init__ = checked(made.__init__)  # type: ignore[method-assign]
    SCHEDULES[cls.__name__] = made
    return made


def make_schedule(given: Mapping[str, Any] | Callable[[int], float]) -> Schedule:
    """A schedule by a dict of its name as "type" and of its settings, or of a function of the step.

    Raises
    ------
    ModelError
        No schedule has that name, or a setting is wrong or missing.
    """
    return Function(given) if callable(given) else make("schedule", SCHEDULES, given)


class Function(Schedule):
    """A function of the user's.

    Parameters
    ----------
    function : callable
        The learning rate of a step.
    """

    def __init__(self, function: Callable[[int], float]) -> None:
        super().__init__(1.0)
        self._function = function

    def factor(self, t: int) -> float:
        value = self._function(t)
        RATE.check("the learning rate of the function", value)
        return float(value)


RATE: Kind = Number(least=0)


@schedule
class Constant(WithWarmup):
    """The same rate at every step.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    """

    def factor(self, t: int) -> float:
        return 1.0


@schedule
class Linear(WithWarmup):
    """A straight line from `start` to `end`, and `end` from then on.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps until the end, the warm-up among them; in a fit the default is all its steps.
    start : float
        The first rate after the warm-up, in parts of `learning_rate`.
    end : float
        The last rate, in parts of `learning_rate`.
    """

    total: Steps
    start: NotNegative = 1.0
    end: NotNegative = 0.0

    def factor(self, t: int) -> float:
        return self.start + (self.end - self.start) * (min(t, self.length) / self.length)


@schedule
class Cosine(WithWarmup):
    """Half a wave of the cosine down to `end`, and `end` from then on, https://arxiv.org/abs/1608.03983.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps until the end, the warm-up among them; in a fit the default is all its steps.
    end : float
        The last rate, in parts of `learning_rate`.
    """

    total: Steps
    end: NotNegative = 0.0

    def factor(self, t: int) -> float:
        return half_wave(1.0, self.end, min(t, self.length) / self.length)


def half_wave(start: float, end: float, share: float) -> float:
    """From `start` to `end` along a cosine; `share` of the way."""
    return end + (start - end) * ((1 + math.cos(math.pi * share)) / 2)


@schedule
class Step(WithWarmup):
    """Times `gamma` after every so many steps.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    every : int
        Steps between two changes.
    gamma : float
        Factor of the rate.
    """

    every: Steps
    gamma: Positive = 0.1

    def factor(self, t: int) -> float:
        return math.pow(self.gamma, t // self.every)


@schedule
class Exponential(WithWarmup):
    """Times `gamma` after every step.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    gamma : float
        Factor of the rate.
    """

    gamma: Positive

    def factor(self, t: int) -> float:
        return math.pow(self.gamma, t)


@schedule
class Polynomial(WithWarmup):
    """The remaining share of the steps to a power, down to `end`, and `end` from then on.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    total : int
        Optimizer steps until the end, the warm-up among them; in a fit the default is all its steps.
    power : float
        The exponent.
    end : float
        The last rate, in parts of `learning_rate`.
    """

    total: Steps
    power: Positive = 1.0
    end: NotNegative = 0.0

    def factor(self, t: int) -> float:
        return self.end + (1 - self.end) * math.pow(1 - min(t, self.length) / self.length, self.power)


@schedule
class OneCycle(WithWarmup):
    """Up to `learning_rate` along a cosine, and down to nearly nothing, https://arxiv.org/abs/1708.07120.

    Parameters
    ----------
    learning_rate : float
        The highest rate.
    total : int
        Optimizer steps until the end, the warm-up among them; in a fit the default is all its steps.
    rise : float
        Share of the steps in which the rate rises.
    start : float
        The first rate, in parts of `learning_rate`.
    end : float
        The last rate, in parts of `learning_rate`.
    """

    total: Steps
    rise: Annotated[float, Number(above=0, below=1)] = 0.3
    start: Share = 0.04
    end: Share = 4e-6

    def factor(self, t: int) -> float:
        top, last = self.rise * self.length - 1, self.length - 1
        if t <= top:
            return half_wave(self.start, 1.0, t / top) if top > 0 else 1.0
        return half_wave(1.0, self.end, min((t - top) / (last - top), 1.0))


@schedule
class Plateau(WithWarmup):
    """Times `reduction` when a metric has not become better for a while: tell it with `observe`.

    Parameters
    ----------
    learning_rate : float
        The rate after the warm-up.
    reduction : float
        Factor of the rate.
    patience : int
        Observations without a better one that are let pass.
    threshold : float
        By what share of the best metric another must be better.
    mode : {"min", "max"}
        "min" if less is better, "max" if more is.
    cooldown : int
        Observations after a change that do not count.
    least : float
        The rate is not lowered further than this, in parts of `learning_rate`.
    """

    reduction: Annotated[float, Number(above=0, below=1)] = 0.1
    patience: Warmup = 10
    threshold: Share = 1e-4
    mode: Annotated[str, Choice(("min", "max"))] = "min"
    cooldown: Warmup = 0
    least: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._best = math.inf if self.mode == "min" else -math.inf
        self._current, self._bad, self._pause = 1.0, 0, 0

    def observe(self, metric: float) -> None:
        if self.mode == "min":
            is_better = metric < self._best * (1 - self.threshold)
        else:
            is_better = metric > self._best * (1 + self.threshold)
        self._best, self._bad = (metric, 0) if is_better else (self._best, self._bad + 1)
        if self._pause > 0:
            self._pause, self._bad = self._pause - 1, 0
        if self._bad > self.patience:
            self._current = max(self._current * self.reduction, self.least)
            self._pause, self._bad = self.cooldown, 0

    def factor(self, t: int) -> float:
        return self._current


def __dir__() -> list[str]:
    return public_names(globals())
