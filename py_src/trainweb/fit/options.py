"""The options of fit: what each may be, once, for Python and for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.formulas import Course, Rule
from trainweb.settings import (
    SEED,
    Choice,
    Field,
    Flag,
    FlagOrName,
    NotNegative,
    Number,
    Whole,
    YesNo,
    checked,
    checked_values,
    fields_of,
)

FIT = {
    "epochs": Field(Whole(least=1), 1, is_optional=False),
    "steps_per_epoch": Field(Whole(least=1), None, is_optional=True),
    "batch_size": Field(Whole(least=1), None, is_optional=True),
    "batched": Field(Flag(), None, is_optional=True),
    "remainder": Field(Choice(("keep", "drop", "pad")), "keep", is_optional=False),
    "shuffle": Field(Flag(), None, is_optional=True),
    "seed": Field(SEED, 0, is_optional=False),
    "validation_split": Field(Number(above=0, below=1), None, is_optional=True),
    "stratify": Field(FlagOrName(), False, is_optional=False),
    "train_metrics": Field(Flag(), False, is_optional=False),
    "learning_rate": Field(Number(least=0), None, is_optional=True),
    "clip_grad_norm": Field(Number(above=0), None, is_optional=True),
    "clip_grad_value": Field(Number(above=0), None, is_optional=True),
    "ema": Field(Flag(), False, is_optional=False),
    "proximal": Field(Number(least=0), 0.0, is_optional=False),
    "on_nan": Field(Choice(("stop", "skip", "restore")), None, is_optional=True),
}
"""The plain ones; data, schedule, metrics, early stopping and callbacks come besides."""


BATCHES = {name: FIT[name] for name in ("batch_size", "batched", "ema")}
"""Options of `predict` and `evaluate`: their batches and parameters."""


class FitOptions(TypedDict, total=False):
    """The options of `TrainingSession.fit`, which explains them, for type checkers and editors."""

    epochs: int
    steps_per_epoch: int | None
    batch_size: int | None
    batched: bool | None
    remainder: Literal["keep", "drop", "pad"]
    shuffle: bool | None
    seed: int
    validation_data: Any
    validation_split: float | None
    stratify: bool | str
    learning_rate: float | None
    schedule: Any
    accumulate: int | Mapping[str, Any]
    clip_grad_norm: float | None
    clip_grad_value: float | None
    ema: bool
    proximal: float
    on_nan: Literal["stop", "skip", "restore"] | None
    metrics: Any
    train_metrics: bool
    predictions: str | None
    targets: str | None
    checkpoint: Mapping[str, Any] | None
    early_stopping: Mapping[str, Any] | None
    callbacks: Any
    progress: bool


OTHERS = tuple(name for name in FitOptions.__annotations__ if name not in FIT)
"""Options that `FIT` does not check."""

ACCUMULATE = {
    "steps": Field(Whole(least=1, most=2**31 - 1), 1, is_optional=False),
    "reduction": Field(Choice(("mean", "sum")), "mean", is_optional=False),
}
"""Batches for an optimizer step, and how their gradients become one: that of all their rows, or the sum."""

CHECKPOINT = {"every": Field(Whole(least=1), None, is_optional=True)}
"""Optional settings of a checkpoint."""


class EarlyStopping:
    """Ends training if a metric stops improving.

    Parameters
    ----------
    patience : int
        The fit ends after this many epochs in a row without a better value; 0 means 1.
    min_delta : float
        A value is better if it improves by more than this.
    restore_best : bool
        True: the session ends with the parameters of the best epoch. The optimizer's state stays as the last epoch
        left it.
    mode : {"min", "max"}, optional
        Whether lower ("min") or higher ("max") values are better. Only a metric that is a function needs it.
    """

    rule = Rule(
        [">", "bad", ["max", ["-", "patience", 1], 0]],
        {"best": ["/", ["-", 0, "sign"], 0], "bad": 0},
        (
            ("is_better", [">", ["*", "sign", ["-", "value", "best"]], "min_delta"]),
            ("best", ["if", "is_better", "value", "best"]),
            ("bad", ["if", "is_better", 0, ["+", "bad", 1]]),
        ),
    )
    """True when the fit is to end; the "sign" is 1 where more is better, else -1."""

    @checked
    def __init__(
        self,
        patience: Annotated[int, Whole(least=0)],
        min_delta: NotNegative = 0.0,
        restore_best: YesNo = True,
        mode: Annotated[str, Choice(("min", "max"))] | None = None,
        *,
        metric: str = "loss",
    ) -> None:
        self.metric, self.restore_best = metric, restore_best
        sign = 1 if mode == "max" else -1
        self._course = Course(self.rule, {"patience": patience, "min_delta": min_delta, "sign": sign})

    def observe(self, value: float) -> bool:
        """Take note of an epoch; whether it is the best. Raise FeedError for a metric that is NaN."""
        if self.metric != "loss" and math.isnan(value):
            raise messages.NAN_METRIC(name=self.metric, source="validation data")
        self._course.observe(value=value)
        return bool(self._course["is_better"])

    @property
    def is_over(self) -> bool:
        """True if the fit is to end."""
        return bool(self._course.value())


EARLY_STOPPING = fields_of(EarlyStopping)


def checked_accumulate(accumulate: Any) -> dict[str, Any]:
    """Return the settings of `accumulate`, which may be only the number of steps."""
    if isinstance(accumulate, Mapping):
        return checked_values("accumulate", accumulate, ACCUMULATE, "accumulate.")
    ACCUMULATE["steps"].check("accumulate", accumulate)
    return {"steps": accumulate, "reduction": "mean"}


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all plain options: the given values, and defaults. Raise ModelError for a value that is not allowed."""
    for name, value in options.items():
        FIT[name].check(name, value)
    return {name: options.get(name, field.default) for name, field in FIT.items()}


def make_early_stopping(stopping: Any, better: Mapping[str, str | None]) -> EarlyStopping:
    """Make early stopping of its settings; `better` says of metrics which values are better, None if settings must."""
    if not isinstance(stopping, Mapping):
        raise messages.BAD_SETTING(name="early_stopping", value=stopping, expected="a mapping with 'patience'")
    settings = dict(stopping)
    metric = settings.pop("metric", "loss")
    if metric not in better:
        expected = " or ".join([*better, "one of 'metrics'"]) + ", without 'val_'"
        raise messages.BAD_SETTING(name="early_stopping.metric", value=metric, expected=expected)
    check_settings("early_stopping", settings, [*EARLY_STOPPING, "metric"])
    if "patience" not in settings:
        expected = EARLY_STOPPING["patience"].kind.expected
        raise messages.MISSING_SETTING(what="early_stopping", name="patience", expected=expected)
    if settings.get("mode") is None:
        settings["mode"] = better[metric]
    if settings["mode"] is None:
        expected = EARLY_STOPPING["mode"].kind.expected
        raise messages.MISSING_SETTING(what="early_stopping", name="mode", expected=expected)
    return EarlyStopping(**settings, metric=metric)
