"""Rows made ahead by a thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar, cast

T = TypeVar("T")
POLL_S = 0.05
"""How often a producer that waits looks whether anybody still wants its rows."""


def prefetched(rows: Iterator[T], count: int) -> Iterator[T]:
    """Rows of which up to `count` are made ahead; an error of the producer comes where its row would."""
    if sys.platform == "emscripten":
        yield from rows
        return
    queue: Queue[tuple[str, T | BaseException | None]] = Queue(count)
    unwanted = Event()

    def put(item: tuple[str, T | BaseException | None]) -> None:
        while not unwanted.is_set():
            try:
                queue.put(item, timeout=POLL_S)
            except Full:
                continue
            return

    def produce() -> None:
        try:
            for row in rows:
                put(("row", row))
                if unwanted.is_set():
                    return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = Thread(target=produce, name="trainweb-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = queue.get()
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            if kind == "end":
                return
            yield cast(T, value)
    finally:
        unwanted.set()
        thread.join()
