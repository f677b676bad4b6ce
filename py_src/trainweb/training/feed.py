"""An input in the report of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Feed:
    """An input of a train step, and the shape that the report is about."""

    name: str
    dtype: str
    shape: list[int]
