"""The end of a wait for rows: whoever reads them may end before they come, and they may never come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

WAIT_S = 0.05
"""How often a wait for rows looks whether its reader has ended."""
CANCEL_S = 1.0
"""Largest time that rows may take to end once nobody wants them."""

_is_over: ContextVar[Callable[[], bool]] = ContextVar("is_over")


class ReaderEndedError(Exception):
    """The reader of the rows has ended while they were waited for."""


@contextmanager
def read_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Let rows that are waited for in this block end as soon as `is_over` is true."""
    token = _is_over.set(is_over)
    try:
        yield
    finally:
        _is_over.reset(token)


def reader_has_ended() -> bool:
    """Return True if the rows of this wait are not wanted any more."""
    is_over = _is_over.get(None)
    return is_over is not None and is_over()
