"""The results of looking for a learning rate, and of training on one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainweb.errors import UnsupportedError


def new_axes(of: str) -> Any:
    """Return axes of matplotlib for the method `plot` of a class.

    Raises
    ------
    UnsupportedError
        matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UnsupportedError(
            f"{of}.plot needs matplotlib: pip install matplotlib, in a notebook %pip install matplotlib."
        ) from error
    return pyplot.subplots()[1]


@dataclass(frozen=True)
class LearningRates:
    """What `find_learning_rate` found.

    Attributes
    ----------
    rates, losses : list of float
        The learning rate of each step, and the smoothed loss with it, until that diverged.
    suggestion : float or None
        A rate at which the loss falls; None: it falls nowhere.
    """

    rates: list[float]
    losses: list[float]
    suggestion: float | None

    def plot(self, axes: Any = None) -> Any:
        """The losses by rate, drawn with matplotlib, with a line at the suggestion.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where to draw; new ones by default, which are returned.

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        """
        if axes is None:
            axes = new_axes("LearningRates")
        axes.plot(self.rates, self.losses)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--")
        return axes
