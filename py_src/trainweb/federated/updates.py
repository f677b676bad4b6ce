"""Updates of parameters as vectors: clipping, noise and averages. `web/src/federated/updates.ts` is the same."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.data.random import random_words
from trainweb.settings import SEED, Number, Whole

WEIGHTS = ("examples", "equal")
NORM = Number(above=0)
DEVIATION = Number(least=0)
COUNT = Whole(least=1)
WORDS = 4
"""Random words for two numbers of noise."""


@dataclass(frozen=True)
class ClientUpdate:
    """The result of a round that a client gives away.

    Attributes
    ----------
    delta : ndarray
        Parameters after the training less those before, float32, clipped and with noise where that was asked for.
    examples : int
        Rows that were trained on, each counted once. Those of weight 0 count, too.
    norm : float
        L2 norm before clipping; it is not noised: keep it on the client where privacy matters.
    is_noised : bool
        True if noise was added.
    history : History, optional
        Of the local training; it stays on the client, too.
    """

    delta: np.ndarray
    examples: int
    norm: float = math.nan
    is_noised: bool = False
    history: Any = None


def as_vector(name: str, values: Any, size: int | None = None) -> np.ndarray:
    """A float32 vector of finite numbers, of `size` elements.

    Raise ModelError for anything else, and BufferSizeError for another number of elements.
    """
    try:
        vector = np.asarray(values, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise messages.BAD_SETTING(name=name, value=values, expected="a vector of float32") from None
    if vector.ndim != 1 or not vector.size:
        raise messages.BAD_SETTING(name=name, value=list(vector.shape), expected="a vector of float32")
    if size is not None and vector.size != size:
        raise messages.UPDATE_SIZE(name=name, actual=vector.size, expected=size)
    if not np.isfinite(vector).all():
        raise messages.UPDATE_NOT_FINITE(name=name)
    return vector


def clip_update(delta: Any, norm: float) -> tuple[np.ndarray, float]:
    """An update of at most this L2 norm, and the norm that it had.

    Parameters
    ----------
    delta : array_like
        Float32 vector.
    norm : float
        The largest norm, in float64; a longer update is multiplied by ``norm / its norm``.

    Returns
    -------
    tuple of ndarray and float

    Raises
    ------
    ModelError
        `norm` is not above 0, or the update no vector of finite numbers.
    """
    NORM.check("norm", norm)
    vector = as_vector("delta", delta)
    length = float(np.sqrt(np.sum(np.square(vector, dtype=np.float64))))
    if length <= norm:
        return vector.copy(), length
    return (vector * np.float64(norm / length)).astype(np.float32), length


def add_noise(delta: Any, deviation: float, seed: int | None = None, stream: int = 0) -> np.ndarray:
    """An update with Gaussian noise.

    Parameters
    ----------
    delta : array_like
        Float32 vector.
    deviation : float
        Standard deviation of the noise of each element.
    seed : int, optional
        For tests, from 0 to 2^53 - 1; by default the numbers come from `os.urandom`.
    stream : int
        Which numbers of the seed: another one in each round.

    Returns
    -------
    ndarray
        Float32.

    Raises
    ------
    ModelError
        An argument is not what it must be.
    """
    DEVIATION.check("deviation", deviation)
    Whole(least=0, most=2**32 - 1).check("stream", stream)
    if seed is not None:
        SEED.check("seed", seed)
    vector = as_vector("delta", delta)
    if not deviation:
        return vector.copy()
    return (vector + deviation * gaussian(len(vector), seed, stream)).astype(np.float32)


def gaussian(count: int, seed: int | None, stream: int) -> np.ndarray:
    """Normal numbers of float64, two of four random words: https://en.wikipedia.org/wiki/Box-Muller_transform."""
    pairs = -(-count // 2)
    size = WORDS * pairs
    words = np.frombuffer(os.urandom(4 * size), "<u4") if seed is None else random_words(seed, stream, size)
    high, low, turn, fine = words.reshape(pairs, WORDS).T.astype(np.float64)
    # 53 bits each; above 0, whose logarithm there is.
    radius = np.sqrt(-2 * np.log((high * 2**21 + np.floor(low / 2**11) + 1) / 2**53))
    angle = 2 * math.pi * ((turn * 2**21 + np.floor(fine / 2**11)) / 2**53)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:count]


def average_updates(
    parameters: Any, updates: Sequence[ClientUpdate], weights: str | Sequence[float] = "examples"
) -> np.ndarray:
    """The parameters of the next round: those before and the mean of the updates, summed in float64 (FedAvg).

    Parameters
    ----------
    parameters : array_like
        Float32 vector that all clients started from.
    updates : sequence of ClientUpdate
        One a client.
    weights : {"examples", "equal"} or sequence of float
        By the number of examples, all alike, or numbers of your own. Updates with noise take "equal" alone: that is
        what `privacy_spent` counts with.

    Returns
    -------
    ndarray
        Float32.

    Raises
    ------
    ModelError
        There are no updates, weights are wrong, or an update has numbers that are not finite.
    BufferSizeError
        An update has another length than the parameters.
    """
    start = as_vector("parameters", parameters)
    if not isinstance(updates, Sequence) or not updates or not all(isinstance(u, ClientUpdate) for u in updates):
        raise messages.BAD_SETTING(name="updates", value=updates, expected="a list of updates, one a client")
    shares = _shares(updates, weights)
    total = math.fsum(shares)
    mean = np.zeros(len(start))
    for k, (update, share) in enumerate(zip(updates, shares, strict=True)):
        mean += as_vector(f"updates[{k}].delta", update.delta, len(start)) * np.float64(share / total)
    return (start + mean).astype(np.float32)


def _shares(updates: Sequence[ClientUpdate], weights: Any) -> list[float]:
    if not isinstance(weights, str) and isinstance(weights, (Sequence, np.ndarray)):
        shares = list(weights)
        if len(shares) != len(updates):
            raise messages.BAD_SETTING(name="weights", value=shares, expected=f"{len(updates)} numbers, one a client")
        for k, share in enumerate(shares):
            NORM.check(f"weights[{k}]", share)
    else:
        if weights not in WEIGHTS:
            expected = "'examples', 'equal' or a list of numbers, one a client"
            raise messages.BAD_SETTING(name="weights", value=weights, expected=expected)
        for k, update in enumerate(updates):
            COUNT.check(f"updates[{k}].examples", update.examples)
        shares = [update.examples if weights == "examples" else 1 for update in updates]
    if len(set(shares)) > 1 and any(update.is_noised for update in updates):
        raise messages.NOISE_AND_WEIGHTS()
    return [float(share) for share in shares]
