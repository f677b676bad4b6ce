"""Rows made ahead by a thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar, cast

from trainweb.data.waiting import CANCEL_S, WAIT_S, ReaderEndedError, read_until, reader_has_ended

T = TypeVar("T")


def prefetched(rows: Iterator[T], count: int) -> Iterator[T]:
    """Rows of which up to `count` are made ahead; an error of the producer comes where its row would.

    Raises
    ------
    ReaderEndedError
        The reader has ended. A producer that waits for something else is left alone.
    """
    if sys.platform == "emscripten":
        yield from rows
        return
    queue: Queue[tuple[str, T | BaseException | None]] = Queue(count)
    unwanted = Event()

    def put(item: tuple[str, T | BaseException | None]) -> None:
        while not unwanted.is_set():
            try:
                queue.put(item, timeout=WAIT_S)
            except Full:
                continue
            return

    def produce() -> None:
        try:
            with read_until(unwanted.is_set):
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
            try:
                kind, value = queue.get(timeout=WAIT_S)
            except Empty:
                if reader_has_ended()():
                    raise ReaderEndedError from None
                continue
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            if kind == "end":
                return
            yield cast(T, value)
    finally:
        unwanted.set()
        thread.join(CANCEL_S)
