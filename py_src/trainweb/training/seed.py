"""The seed that new sessions start from."""

from __future__ import annotations

import os

_seed: list[int] = [int.from_bytes(os.urandom(8), "little")]


def current() -> int:
    """The seed in force, 0 <= seed < 2**64."""
    return _seed[0]


def set_current(value: int) -> None:
    """Set it."""
    _seed[0] = value % 2**64
