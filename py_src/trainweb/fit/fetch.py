"""The next batch of a stream, which may never come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from trainweb.data.dataset import Batch
from trainweb.data.waiting import CANCEL_S, ReaderEndedError, read_until

NumberedBatch: TypeAlias = tuple[Batch, Sequence[int]]
"""A batch and the numbers of its rows."""


class Fetch:
    """A batch that a fit asks for.

    Parameters
    ----------
    batches : iterator of batches
        Its stream.
    is_over : function
        Whether the fit has ended: by `Run.stop` or the session's release in another thread.
    """

    def __init__(self, batches: Iterator[NumberedBatch], is_over: Callable[[], bool]) -> None:
        self._batches, self._is_over = batches, is_over
        self._is_dropped = False
        self._batch: NumberedBatch | None = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """Make the batch in this thread."""
        try:
            with read_until(lambda: self._is_dropped or self._is_over()):
                self._batch = next(self._batches, None)
        except ReaderEndedError:
            pass
        except BaseException as error:
            self._error = error

    def drop(self) -> None:
        """Nobody wants the batch any more."""
        self._is_dropped = True

    def result(self) -> NumberedBatch | None:
        """The batch; None where the stream or the fit has ended.

        Raises
        ------
        BaseException
            Of the stream.
        """
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # a circle through the traceback would keep the stream
        return self._batch


class BatchThread:
    """Makes batches in a thread while an event loop goes on; Pyodide, which has no threads, does without."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def make(self, fetch: Fetch) -> None:
        """Wait for a batch; a task that is cancelled meanwhile drops it."""
        if sys.platform == "emscripten":
            fetch.make()
            return
        if self._thread is None:
            self._thread = Thread(target=self._run, name="trainweb-batches", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def make() -> None:
            fetch.make()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        self._asked.put(make)
        try:
            await done.wait()
        except asyncio.CancelledError:
            fetch.drop()
            # A stream that blocks its thread is left alone.
            await asyncio.wait({asyncio.ensure_future(done.wait())}, timeout=2 * CANCEL_S)
            raise

    def close(self) -> None:
        """Let the thread end."""
        self._asked.put(None)

    def _run(self) -> None:
        while (make := self._asked.get()) is not None:
            make()
