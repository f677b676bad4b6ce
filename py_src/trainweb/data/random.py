"""Random numbers of the data: a function of seed, epoch and place, the same in Python and in a page.

The finalizer of MurmurHash3 over a Weyl sequence (SplitMix32): any number can be had without those before it.
`web/src/data/random.ts` is the same; the page and Python shuffle alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

STRIDE = 0x9E3779B9
"""2^32 over the golden ratio: successive counters fall far apart."""
WORD = 2**32
SEEDS = 2**53


class Draw(NamedTuple):
    """The epoch and the seed that decide the random numbers of an iteration over rows."""

    epoch: int
    seed: int
    """The fit's seed."""
    shuffles: bool = True
    """False keeps the order of the rows; their values are drawn."""

    def seed_with(self, seed: int) -> int:
        """The sum of the fit's seed and of the data's."""
        return (self.seed + seed) % SEEDS


def order_of(count: int, draw: Draw | None, seed: int = 0) -> np.ndarray:
    """The numbers below `count` in the order of an iteration."""
    if draw is None or not draw.shuffles:
        return np.arange(count)
    return permutation(count, draw.seed_with(seed), draw.epoch)


def mix(words: np.ndarray) -> np.ndarray:
    """The finalizer of MurmurHash3 on uint32 words."""
    x = words.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def random_words(seed: int, stream: int, count: int) -> np.ndarray:
    """The first `count` uint32 of a stream (an epoch, say) of a seed from 0 to 2^53 - 1."""
    key = np.array([seed % WORD], np.uint32)
    for word in (seed // WORD, stream):
        key = mix(mix(key) + np.array([word % WORD], np.uint32))
    counters = np.arange(1, count + 1, dtype=np.uint32)
    return mix(counters * np.uint32(STRIDE) + key)


def permutation(count: int, seed: int, stream: int) -> np.ndarray:
    """The numbers below `count` in a random order (Fisher and Yates), as int64."""
    order = list(range(count))
    words = random_words(seed, stream, count).tolist()
    for k in range(count - 1, 0, -1):
        # In floating point, as the page has it.
        other = int(float(words[k]) * float(k + 1) / WORD)
        order[k], order[other] = order[other], order[k]
    return np.array(order, np.int64)
