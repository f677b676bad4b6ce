"""The end of a wait for rows: whoever reads them may end before they come, and they may never come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local

WAIT_S = 0.05
"""How often a wait for rows looks whether its reader has ended."""
CANCEL_S = 1.0
"""Largest time that rows may take to end once nobody wants them."""

_reader = local()  # no context variable: event loops would keep the reader and its stream


class ReaderEndedError(Exception):
    """The reader of the rows has ended while they were waited for."""


@contextmanager
def read_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Let rows that are waited for in this block end as soon as `is_over` is true."""
    before = reader_has_ended()
    _reader.has_ended = is_over
    try:
        yield
    finally:
        _reader.has_ended = before


def reader_has_ended() -> Callable[[], bool]:
    """The function that is true when this thread's rows are no longer wanted."""
    has_ended: Callable[[], bool] = getattr(_reader, "has_ended", bool)
    return has_ended
