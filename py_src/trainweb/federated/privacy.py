"""Bound the disclosure of a client by rounds with clipping and noise, (epsilon, delta), by dp-accounting."""

from __future__ import annotations

import importlib
import math
from typing import Any

from trainweb import messages
from trainweb.settings import Number, Whole

NOISE, RATE, DELTA = Number(above=0), Number(above=0, most=1), Number(above=0, below=1)
EPSILON, ROUNDS = Number(above=0), Whole(least=1, most=10**7)
COARSE = 50.0
"""An epsilon that protects nothing any more: distributions of such losses take memory without end."""
PRECISION = 0.01
"""Of a noise multiplier that is searched for."""
MOST_NOISE = 1e4
"""Largest noise multiplier of the search."""


def _library() -> Any:
    try:
        names = ("dp_accounting", "dp_accounting.rdp", "dp_accounting.pld")
        return tuple(importlib.import_module(name) for name in names)
    except ImportError:
        raise messages.NEEDS_EXTRA(what="dp-accounting", extra="federated") from None


def privacy_spent(noise_multiplier: float, rounds: int, delta: float, sampling_rate: float = 1.0) -> float:
    """The epsilon of (epsilon, delta)-differential privacy after some rounds.

    Whole clients are private if each client's update is clipped and the noise is added to the sum of all (DP-FedAvg:
    https://arxiv.org/abs/1710.06963); of rows, where each row's gradient is clipped by itself and rows are the clients
    (DP-SGD; docs/privacy.md has it). `clip_grad_norm` clips sums of rows: it gives no such privacy.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise of the sum over the clip norm.
    rounds : int
        Number of rounds, ten million at most.
    delta : float
        Probability with which the bound may fail: less than 1 over the number of clients.
    sampling_rate : float
        Probability with which each client takes part in a round, drawn anew and independently each time (Poisson
        sampling); 1: all of them do, always.

    Returns
    -------
    float
        An upper bound, by privacy loss distributions; one above 50 by Rényi divergences, which is looser. `math.inf`
        where there is none.

    Raises
    ------
    ModelError
        An argument is out of range.
    UnsupportedError
        dp-accounting is not installed.
    """
    for kind, name, value in (
        (NOISE, "noise_multiplier", noise_multiplier),
        (ROUNDS, "rounds", rounds),
        (DELTA, "delta", delta),
        (RATE, "sampling_rate", sampling_rate),
    ):
        kind.check(name, value)
    library, rdp, pld = _library()
    event = library.GaussianDpEvent(noise_multiplier)
    if sampling_rate < 1:
        event = library.PoissonSampledDpEvent(sampling_rate, event)
    else:
        # All rounds together are one with less noise, exactly: it takes no convolutions.
        event, rounds = library.GaussianDpEvent(noise_multiplier / math.sqrt(rounds)), 1
    bound = float(rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta))
    if bound > COARSE:
        return bound
    return min(bound, float(pld.PLDAccountant().compose(event, rounds).get_epsilon(delta)))


def noise_multiplier_for(epsilon: float, rounds: int, delta: float, sampling_rate: float = 1.0) -> float:
    """The least noise multiplier with which some rounds are (epsilon, delta)-differentially private.

    Parameters
    ----------
    epsilon : float
        The bound that is wanted.
    rounds, delta, sampling_rate
        As `privacy_spent`.

    Returns
    -------
    float
        Within one part in a hundred, on the safe side.

    Raises
    ------
    ModelError
        An argument is out of range, or no noise multiplier up to 10,000 is enough.
    UnsupportedError
        dp-accounting is not installed.
    """
    EPSILON.check("epsilon", epsilon)
    low, high = 0.0, 1.0
    while privacy_spent(high, rounds, delta, sampling_rate) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise messages.BAD_SETTING(name="epsilon", value=epsilon, expected="one that some noise gives")
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if privacy_spent(middle, rounds, delta, sampling_rate) > epsilon else (low, middle)
    return high
