"""The record of a fit: events while it runs, and the `History` that it returns; the result of a search for a rate."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainweb.arguments import OtherNames, unknown
from trainweb.errors import UnsupportedError
from trainweb.metrics import Value


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


WIDTH, HEIGHT, MARGIN = 420, 180, 34
COLOURS = ("#1f77b4", "#ff7f0e")


@dataclass(frozen=True, slots=True)
class Progress:
    """Within an epoch, after a step.

    Attributes
    ----------
    epoch : int
        From 1.
    step : int
        Finished batches of the epoch.
    steps : int or None
        Number of batches in the epoch; None for a stream.
    loss : float
        Mean over the rows of the epoch so far.
    """

    epoch: int
    step: int
    steps: int | None
    loss: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch; one that a stop ended has no values of validation data.

    Attributes
    ----------
    epoch : int
        From 1.
    steps : int
        Batches that were trained on.
    loss : float
        Mean over the rows, while they were trained on.
    learning_rate : float
        Learning rate of its last optimizer step.
    seconds : float
        Duration, evaluation included.
    validation : dict or None
        "loss" and the metrics of the validation data, by name.
    training : dict or None
        The same of the training data, after the epoch, where ``train_metrics`` asks for them.
    terms : dict
        Means of the terms of a loss that has several, as ``loss``; empty for others.
    """

    epoch: int
    steps: int
    loss: float
    learning_rate: float
    seconds: float
    validation: dict[str, Value] | None
    training: dict[str, Value] | None = None
    terms: dict[str, float] = field(default_factory=dict)

    def values(self, name: str) -> tuple[str, dict[str, Value] | None]:
        """The metric of a curve's name, and the values that have it."""
        for prefix, values in (("val_", self.validation), ("train_", self.training)):
            if name.startswith(prefix):
                return name.removeprefix(prefix), values
        return name, {name: self.terms[name] if name in self.terms else getattr(self, name)}


Event = Progress | Epoch


@dataclass(slots=True, repr=False)
class History(OtherNames):
    """The record of a fit.

    Attributes
    ----------
    epochs : list of Epoch
    losses : list of float
        The loss of each batch, in order; NaN for batches that `on_nan` undid.
    optimizer_steps : int
    best_epoch : int or None
        The best by early stopping.
    ended : {"done", "stopped", "early", "nan"}
        Whether all epochs were done, or `Run.stop`, early stopping or ``on_nan="stop"`` ended it.
    """

    epochs: list[Epoch] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    best_epoch: int | None = None
    ended: str = "done"
    _rows: int = field(default=0, init=False)
    """Rows that were trained on, each counted once."""

    def __repr__(self) -> str:
        last = [f"{name} {self[name][-1]:.4g}" for name in self.names() if self.epochs and self[name]]
        counts = f"{len(self.epochs)} epochs, {len(self.losses)} batches, {self.optimizer_steps} optimizer steps"
        return f"<History: {', '.join([counts, *last, self.ended])}>"

    def __getitem__(self, name: str) -> list[Any]:
        """A value of each epoch: "loss", a term, "learning_rate", or a metric with "val_" or "train_" before it.

        These are of the validation and of the training data. An epoch that was stopped before has none of them.
        """
        try:
            return [v[metric] for metric, v in (epoch.values(name) for epoch in self.epochs) if v is not None]
        except (AttributeError, KeyError):
            raise KeyError(unknown("The value", name, self.names())) from None

    def names(self) -> list[str]:
        """Return the names of the curves: `history[name]` takes them."""
        first = self.epochs[0] if self.epochs else None
        groups = {} if first is None else {"val_": first.validation or {}, "train_": first.training or {}}
        metrics = [p + n for p, values in groups.items() for n, v in values.items() if isinstance(v, float)]
        return ["loss", *(first.terms if first else ()), *metrics, "learning_rate"]

    def _points(self, name: str) -> tuple[list[int], list[float]]:
        """Epochs that have a value of this name, and the values: one that was stopped has none of metrics."""
        epochs = [e.epoch for e in self.epochs if e.values(name)[1] is not None]
        return epochs, self[name]

    def plot(self, axes: Any = None) -> Any:
        """Draw loss and metrics by epoch with matplotlib.

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
            axes = new_axes("History")
        for name in self.names():
            if name != "learning_rate":
                axes.plot(*self._points(name), label=name)
        axes.set_xlabel("epoch")
        axes.legend()
        return axes

    def _repr_html_(self) -> str:
        """Curves of the losses and a table of the epochs, in a notebook."""
        names = self.names()
        head = "".join(f"<th>{html.escape(n)}</th>" for n in ("epoch", *names))
        columns = [dict(zip(*self._points(name), strict=True)) for name in names]
        rows = "".join(
            f"<tr><td>{e.epoch}</td>"
            + "".join(f"<td>{_written(column.get(e.epoch))}</td>" for column in columns)
            + "</tr>"
            for e in self.epochs
        )
        curves = {
            name: np.array([column.get(e.epoch, math.nan) for e in self.epochs], float)
            for name, column in zip(names, columns, strict=True)
            if name in ("loss", "val_loss")
        }
        return f"{svg(curves)}<table><tr>{head}</tr>{rows}</table>"


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def svg(curves: dict[str, np.ndarray]) -> str:
    """Curves over the epochs, as a picture."""
    finite = np.concatenate([c[np.isfinite(c)] for c in curves.values()] or [np.zeros(0)])
    if not finite.size:
        return ""
    low, high = float(finite.min()), float(finite.max())
    lines = []
    for k, (name, curve) in enumerate(curves.items()):
        x = MARGIN + (WIDTH - 2 * MARGIN) * np.arange(len(curve)) / max(len(curve) - 1, 1)
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (curve - low) / ((high - low) or 1)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
        colour = COLOURS[k % len(COLOURS)]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines.append(f'<text x="{WIDTH - 90}" y="{16 + 14 * k}" fill="{colour}" font-size="11">{name}</text>')
    scale = "".join(
        f'<text x="2" y="{y}" font-size="10">{value:.3g}</text>'
        for y, value in ((MARGIN, high), (HEIGHT - MARGIN, low))
    )
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(lines)}{scale}</svg>'


class Run:
    """A running fit, which callbacks get.

    Attributes
    ----------
    history : History
        What was done so far.
    """

    def __init__(self) -> None:
        self.history = History()
        self.is_stopping = False

    def stop(self) -> None:
        """End after the steps that run now, without waiting for async rows; the history is that of what was done."""
        self.is_stopping = True


@dataclass(frozen=True)
class LearningRates:
    """The result of `find_learning_rate`.

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
