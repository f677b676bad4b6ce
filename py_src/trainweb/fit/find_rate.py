"""`find_learning_rate`: losses while the learning rate grows; in a page `web/src/page/fit/find-rate.ts`.

Smith, Cyclical learning rates for training neural networks (https://arxiv.org/abs/1506.01186), in the form of fastai's
`lr_find`, whose smoothing, ends and suggestion ("valley") these are.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from trainweb import messages
from trainweb.data.for_model import ModelInputs
from trainweb.fit.trainer import fit
from trainweb.settings import Count, Positive, Seed, Whole, YesNo, checks_values
from trainweb.training.core import SessionCore
from trainweb.training.history import LearningRates

BETA = 0.98
"""Weight of the smoothed loss before in the next one."""
DIVERGED = 4.0
"""The loss has diverged where it is this many times the least one."""
SKIPPED_START, SKIPPED_END = 10, 5
"""The share of the steps at the start that tell nothing (1 of 10), and how many steps at the end."""
BUFFER = 1024
MOST_STEPS = 100_000
"""More steps find no better rate."""


@checks_values
def find_learning_rate(
    core: SessionCore,
    data: Any,
    steps: Annotated[int, Whole(least=10, most=MOST_STEPS)] = 100,
    least: Positive = 1e-7,
    most: Positive = 10.0,
    batch_size: Count | None = None,
    batched: YesNo | None = None,
    seed: Seed = 0,
) -> LearningRates:
    """See `TrainingSession.find_learning_rate`."""
    least, most = float(least), float(most)
    if most <= least:
        raise messages.BAD_SETTING(name="most", value=most, expected=f"greater than 'least', which is {least}")
    core.get_learning_rate()  # there must be an optimizer
    inputs = ModelInputs(core.inputs["train"], notices=core.notices, weights=core.models.own.weights)
    dataset = inputs.dataset(data)
    if dataset.columns is not None:
        dataset = dataset.shuffle(BUFFER)
    batches = inputs.batches(dataset, batch_size, "keep", batched, drops=True)
    rates = [least * (most / least) ** (k / (steps - 1)) for k in range(steps)]
    core.keep_state()
    try:
        options = {"schedule": rates.__getitem__, "on_nan": "stop", "progress": False}
        history = fit(core, batches, options | {"batched": True, "steps_per_epoch": steps, "seed": seed})
    finally:
        core.go_back()
    losses = smoothed(history.losses)
    return LearningRates(rates[: len(losses)], losses, suggested(rates[: len(losses)], losses, steps))


def smoothed(losses: list[float]) -> list[float]:
    """Moving averages without their bias to 0, until one is many times the least or the loss is not a number."""
    averages: list[float] = []
    average = 0.0
    for k, loss in enumerate(losses):
        if not math.isfinite(loss):
            break
        average = BETA * average + (1 - BETA) * loss
        averages.append(average / (1 - BETA ** (k + 1)))
        if averages[-1] > DIVERGED * min(averages):
            break
    return averages


def suggested(rates: list[float], losses: list[float], steps: int) -> float | None:
    """The rate at two thirds of the longest valley: the longest sequence of steps that each have a lower loss."""
    start, end = steps // SKIPPED_START, len(losses) - SKIPPED_END
    losses, rates = losses[start:end], rates[start:end]
    lengths = [1] * len(losses)
    last = 0
    for i, loss in enumerate(losses):
        for j in range(i):
            if loss < losses[j] and lengths[i] < lengths[j] + 1:
                lengths[i] = lengths[j] + 1
            if lengths[last] < lengths[i]:
                last = i
    if not lengths or lengths[last] < 2:
        return None
    first = last - lengths[last]
    third = (last - first) / 3
    return rates[max(first, 0) + int(third) + int(third / 2)]
