"""The choice of the next token from logits; `web/src/worker/sampling.ts` makes the same one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainweb import messages
from trainweb.data.random import WORD, random_words


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of the choice, in the order in which they apply, as in transformers.

    Attributes
    ----------
    temperature : float
        Divisor of the logits; 0 takes the most likely token, the first of equal ones.
    top_k : int, optional
        Take one of so many tokens with the highest logits; equal ones of the last count, too.
    top_p : float, optional
        Take one of the most likely tokens whose probabilities together are at least this.
    seed : int
        The random number of a place of the text depends only on the seed and the place.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def choose(self, logits: np.ndarray, place: int, position: int) -> int:
        """The next token.

        Parameters
        ----------
        logits
            float32, one a token of the vocabulary.
        place
            Number of tokens that were chosen before.
        position
            Of the token that the logits belong to, for errors.

        Raises
        ------
        SessionError
            A logit is NaN or plus infinity, or all are minus infinity.
        """
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise messages.LOGITS_NOT_FINITE(position=position)
        if self.temperature == 0:
            return int(logits.argmax())
        with np.errstate(over="ignore"):  # the largest stays 0 at the smallest temperature
            scores = (logits.astype(np.float64) - logits.max()) / self.temperature
        tokens = np.arange(len(scores))
        if self.top_k is not None and self.top_k < len(scores):
            tokens = tokens[scores >= np.partition(scores, -self.top_k)[-self.top_k]]
        weights = np.exp(scores[tokens])
        if self.top_p is not None:
            order = np.argsort(-weights, kind="stable")
            tokens, weights = tokens[order], weights[order]
            sums = np.cumsum(weights)
            count = 1 + int(np.count_nonzero(sums[:-1] < self.top_p * sums[-1]))
            tokens, weights = tokens[:count], weights[:count]
        sums = np.cumsum(weights)
        point = random_words(self.seed, place, 1)[0] / WORD * sums[-1]
        return int(tokens[np.searchsorted(sums, point, side="right")])
