"""Words (of 4 bytes) that a step of an optimizer must move for each element of a matrix: the one table of them.

Parameters, gradients and moments are read once and, but for gradients, written once: `least`. LAMB knows the length of
a step, and Adafactor the statistics and the length, only when it has seen the whole parameter. A parameter that does
not stay in the cache of a core until then is read again: `passes` counts these words, too.
"""

from __future__ import annotations

from dataclasses import dataclass

CACHE_BYTES = 1 << 20
"""What a core surely has for itself and keeps from one pass over a parameter to the next."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words an element.

    Attributes
    ----------
    least
        Of a parameter that stays in the cache.
    passes
        Of one that does not.
    """

    least: int
    passes: int

    def words(self, elements: int) -> int:
        """For a parameter of so many elements."""
        return self.least if 4 * self.least * elements <= CACHE_BYTES else self.passes


TRAFFIC = {
    "SGD": Traffic(3, 3),
    "Momentum": Traffic(5, 5),
    "Lion": Traffic(5, 5),
    "Adagrad": Traffic(5, 5),
    "RMSProp": Traffic(5, 5),
    "Adam": Traffic(7, 7),
    "AdamW": Traffic(7, 7),
    "Adadelta": Traffic(7, 7),
    # w, g, m, v for the direction, which writes m, v and itself; then both lengths; w and the direction; w again.
    "Lamb": Traffic(7, 12),
    # g by row, by column and for the length of the direction; w for its length; then both for the step, and w again.
    "Adafactor": Traffic(3, 7),
}
"""Muon's time is that of its products; what it moves beside them is next to nothing."""
