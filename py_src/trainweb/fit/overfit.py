"""Can a session learn one batch by heart? If it cannot, it will not learn more. In a page: `page/fit/overfit.ts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.data.for_model import ModelInputs
from trainweb.errors import NumericsError
from trainweb.settings import Number, Whole
from trainweb.training.reports import OverfitReport

if TYPE_CHECKING:
    from trainweb.training.session import TrainingSession

FALLEN = 0.05
"""Share of the first loss that is nearly zero."""
EXPLODES = 100.0
"""By how much gradients grow when something is wrong."""
SLOW = 1e-5
"""Changes of a step, beside the parameter, that lead nowhere in a hundred steps."""
FIRST_NAMES = 5
"""How many parameters a suspicion names."""


def overfit_one_batch(
    session: TrainingSession, batch: Mapping[str, Any], steps: int, learning_rate: float | None
) -> OverfitReport:
    """Train on a batch, and look; the session is as before at the end."""
    batch = ModelInputs(session.core.models.inputs["train"]).batch(batch)
    Whole(least=1).check("steps", steps)
    if learning_rate is not None:
        Number(above=0).check("learning_rate", learning_rate)
    core = session.core
    session.get_learning_rate()  # there must be an optimizer
    core.keep_state()
    try:
        if learning_rate is not None:
            session.set_learning_rate(learning_rate)
        return _run(session, batch, steps)
    finally:
        core.go_back()


def _run(session: TrainingSession, batch: Mapping[str, Any], steps: int) -> OverfitReport:
    report, totals = OverfitReport(), []
    name = session.output_names()[0]
    for step in range(steps):
        session.lazy_reset_grad()
        try:
            loss = session.train_step(batch, [name])[name]
            if loss.size != 1:
                raise messages.SCALAR_LOSS(name=name, shape=list(loss.shape))
            norms = session.gradient_norms()
            totals.append(math.hypot(*norms.values()))
            report.losses.append(float(loss.reshape(())))
            if not math.isfinite(report.losses[-1] + totals[-1]):
                report.suspicions.append(_text("OVERFIT_NAN", step=step + 1))
                break
            if step == 0:
                report.gradient_norms = norms
                report.update_ratios = _updated(session)
            else:
                session.optimizer_step()
        except NumericsError as error:
            report.suspicions.append(str(error))
            break
        report.has_fallen = report.losses[-1] <= FALLEN * report.losses[0]
        if report.has_fallen:
            break
    report.suspicions += _suspicions(report, totals, _short(session.get_learning_rate()))
    return report


def _updated(session: TrainingSession) -> dict[str, float]:
    """Take an optimizer step; what it changes of each parameter."""
    names = session.parameter_names(trainable_only=True)
    before = {name: session.get_parameter(name).astype(np.float64) for name in names}
    session.optimizer_step()
    return {n: _norm(session.get_parameter(n) - before[n]) / (_norm(before[n]) or 1.0) for n in names}


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.reshape(-1)))


def _suspicions(report: OverfitReport, totals: list[float], rate: str) -> list[str]:
    found = []
    norms, ratios = report.gradient_norms, report.update_ratios
    without = [name for name, norm in norms.items() if not norm]
    unmoved = [name for name, ratio in ratios.items() if not ratio and norms[name]]
    if norms and len(without) == len(norms):
        found.append(_text("OVERFIT_NO_GRADIENT"))
    elif without:
        found.append(_text("OVERFIT_ZERO_GRADIENTS", names=_listed(without)))
    if unmoved:
        found.append(_text("OVERFIT_UNCHANGED", names=_listed(unmoved), rate=rate))
    if len(totals) > 1 and max(totals) > EXPLODES * totals[0] > 0:
        found.append(_text("OVERFIT_EXPLODES", first=_short(totals[0]), most=_short(max(totals))))
    if report.has_fallen or found or len(report.losses) < 2:
        return found
    if report.losses[-1] > report.losses[0]:
        found.append(_text("OVERFIT_RISES", rate=rate))
    elif max(ratios.values(), default=0.0) < SLOW:
        found.append(_text("OVERFIT_SLOW", rate=rate))
    else:
        found.append(_text("OVERFIT_STUCK", steps=len(report.losses)))
    return found


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - FIRST_NAMES} more" if len(names) > FIRST_NAMES else ""
    return ", ".join(names[:FIRST_NAMES]) + more


def _short(value: float) -> str:
    return f"{value:.3g}"


def _text(name: str, **values: Any) -> str:
    message: messages.Message = getattr(messages, name)
    return str(message(**values))
