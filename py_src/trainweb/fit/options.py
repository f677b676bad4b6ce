"""The options of fit: what each may be, once, for Python and for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.settings import Choice, Field, Flag, NotNegative, Number, Whole, YesNo, checked, fields_of

MAX_SEED = 2**53 - 1
"""What a number in JavaScript counts to."""
DEFAULT_BATCH = 32

FIT = {
    "epochs": Field(Whole(least=1), 1, is_optional=False),
    "batch_size": Field(Whole(least=1), None, is_optional=True),
    "batched": Field(Flag(), None, is_optional=True),
    "remainder": Field(Choice(("keep", "drop", "pad")), "keep", is_optional=False),
    "shuffle": Field(Flag(), None, is_optional=True),
    "seed": Field(Whole(least=0, most=MAX_SEED), 0, is_optional=False),
    "validation_split": Field(Number(above=0, below=1), None, is_optional=True),
    "stratify": Field(Flag(), False, is_optional=False),
    "learning_rate": Field(Number(least=0), None, is_optional=True),
    "accumulate": Field(Whole(least=1), 1, is_optional=False),
    "clip_grad_norm": Field(Number(above=0), None, is_optional=True),
    "clip_grad_value": Field(Number(above=0), None, is_optional=True),
    "ema": Field(Flag(), False, is_optional=False),
    "proximal": Field(Number(least=0), 0.0, is_optional=False),
    "on_nan": Field(Choice(("stop", "skip", "restore")), None, is_optional=True),
}
"""The plain ones; data, schedule, metrics, early stopping and callbacks come besides."""

CHECKPOINT = {"every": Field(Whole(least=1), None, is_optional=True)}
"""What may be given of a checkpoint besides its store and name."""

DOCS = {
    "every": "Optimizer steps between two checkpoints within an epoch; one is written after each epoch anyway.",
    "epochs": "How often all rows are trained on.",
    "batch_size": f"Rows of a batch; {DEFAULT_BATCH} unless the data comes in batches.",
    "batched": "Whether the items of a stream are whole batches; by default the shape of the first one tells.",
    "remainder": "What becomes of the last rows where they do not fill a batch: a smaller batch, for which a plan of "
    "its own is compiled; nothing; or a batch filled up with the first rows of the epoch.",
    "shuffle": "Whether rows come in another order in each epoch: the default for arrays; streams shuffle themselves.",
    "seed": "Of the order of rows.",
    "validation_split": "Share of the rows, the last ones, that are evaluated after each epoch instead of trained on.",
    "stratify": "Whether the split takes its share of the rows of each class, by the last input of the model.",
    "on_nan": "What follows where loss, gradients, parameters or moments become no finite numbers: the fit ends with "
    "the session as before the batch; it goes on with the next batch as if there had been none; or it goes on with the "
    "next batch from the state at the begin of the epoch, or of its last checkpoint in it, up to 3 times. By default "
    "the fit fails where the loss is none.",
    "learning_rate": "Learning rate of each optimizer step of this fit, which the session keeps; by default it stays "
    "as it is. Of a schedule it is the setting of the same name.",
    "accumulate": "Batches whose gradients are added up for one optimizer step.",
    "clip_grad_norm": "Joint L2 norm that the gradients have at most in an optimizer step of this fit.",
    "clip_grad_value": "Magnitude that each element of the gradients has at most in an optimizer step of this fit; "
    "before the norm.",
    "ema": "Whether the validation data is evaluated with the averages of the parameters, where the session keeps "
    "some; early stopping restores those of the best epoch then.",
    "proximal": "mu of FedProx: mu times the way from the parameters that the fit starts with is added to the "
    "gradients before each optimizer step.",
}


class EarlyStopping:
    """Ends the training when a metric has not become better for a while.

    Parameters
    ----------
    patience : int
        Epochs without a better one that are let pass.
    min_delta : float
        By how much a metric must be better.
    restore_best : bool
        True: the session ends with the parameters of the best epoch. The optimizer's state stays as the last epoch
        left it.
    """

    @checked
    def __init__(
        self,
        patience: Annotated[int, Whole(least=0)],
        min_delta: NotNegative = 0.0,
        restore_best: YesNo = False,
        *,
        metric: str = "loss",
        mode: str = "min",
    ) -> None:
        self.patience, self.min_delta, self.restore_best = patience, float(min_delta), restore_best
        self.metric, self.mode = metric, mode
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = 0

    def observe(self, value: float) -> bool:
        """Take note of an epoch; whether it is the best."""
        gain = self.best - value if self.mode == "min" else value - self.best
        is_better = gain > self.min_delta
        self.best, self.bad = (value, 0) if is_better else (self.best, self.bad + 1)
        return is_better

    @property
    def is_over(self) -> bool:
        """True if more epochs than the patience allows were not better."""
        return self.bad > self.patience


EARLY_STOPPING = fields_of(EarlyStopping)


def checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all plain options: the given values, and defaults for the rest.

    Raises
    ------
    ModelError
        A value is not allowed for its option.
    """
    for name, value in given.items():
        FIT[name].check(name, value)
    return {name: given.get(name, field.default) for name, field in FIT.items()}


def make_early_stopping(given: Any, better: Mapping[str, str]) -> EarlyStopping:
    """Early stopping of its settings.

    Parameters
    ----------
    better : mapping
        Metrics that are numbers, and which of them is better.
    """
    if not isinstance(given, Mapping):
        raise messages.BAD_SETTING(name="early_stopping", value=given, expected="a mapping with 'patience'")
    settings = dict(given)
    metric = settings.pop("metric", "loss")
    if metric not in better:
        raise messages.BAD_SETTING(name="early_stopping.metric", value=metric, expected=" or ".join(better))
    check_settings("early_stopping", settings, [*EARLY_STOPPING, "metric"])
    if "patience" not in settings:
        expected = EARLY_STOPPING["patience"].kind.expected
        raise messages.MISSING_SETTING(what="early_stopping", name="patience", expected=expected)
    return EarlyStopping(**settings, metric=metric, mode=better[metric])
