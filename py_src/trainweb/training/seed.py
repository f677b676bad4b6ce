"""The seed that new sessions start from."""

from __future__ import annotations

DEFAULT = 0
"""Where nobody sets one: the same however Python started, so that a training can be repeated."""

_seed: list[int] = [DEFAULT]


def current() -> int:
    """The seed in force, 0 <= seed < 2**64."""
    return _seed[0]


def set_current(value: int) -> None:
    """Set it."""
    _seed[0] = value % 2**64
