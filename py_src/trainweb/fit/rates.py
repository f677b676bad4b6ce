"""The learning rates of a fit; in a page `web/src/page/fit/rates.ts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb import messages
from trainweb.schedules import SCHEDULES, Constant, Schedule, make_schedule
from trainweb.settings import fields_of


def schedule_of(given: Any, learning_rate: float | None, steps: int | None) -> Schedule | None:
    """The schedule of a fit; None: the rate stays as it is.

    Parameters
    ----------
    given
        The option `schedule`.
    learning_rate
        The option of that name.
    steps
        Optimizer steps of the fit; None: nobody knows.

    Raises
    ------
    ModelError
        A setting is wrong or missing, or there are two rates.
    """
    if given is None:
        return None if learning_rate is None else Constant(learning_rate)
    if isinstance(given, Schedule) or callable(given):
        if learning_rate is not None:
            raise messages.RATE_AND_SCHEDULE()
        return given if isinstance(given, Schedule) else make_schedule(given)
    settings = {"type": given} if isinstance(given, str) else given
    if isinstance(settings, Mapping):
        settings = dict(settings)
        own = settings.get("learning_rate")
        if learning_rate is not None and own is not None and own != learning_rate:
            raise messages.TWO_RATES(first=learning_rate, where="schedule", second=own)
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        kind = SCHEDULES.get(settings.get("type", ""))
        if steps is not None and kind is not None and "total" in fields_of(kind):
            settings.setdefault("total", steps)
    return make_schedule(settings)
