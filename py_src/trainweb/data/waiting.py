"""Waits for rows: by an event loop, ahead in a thread, or in a fit. Rows may never come, or their reader may end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread, local
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from trainweb.errors import FeedError

WAIT_S = 0.05
"""Seconds after which a wait for rows checks if its reader has ended."""
CANCEL_S = 1.0
"""Largest time that rows may take to end once nobody wants them."""

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
NumberedBatch: TypeAlias = tuple[dict[str, np.ndarray], Sequence[int]]
"""A batch and the numbers of its rows."""

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


def prefetched(rows: Iterator[T], count: int) -> Iterator[T]:
    """Rows of which a thread makes up to `count` ahead; an error of the producer comes where its row would.

    Raise ReaderEndedError when the reader has ended; a producer that waits for something else is left alone.
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


def plainly(rows: AsyncIterable[Any]) -> Iterator[Any]:
    """The rows, each waited for: by an event loop in a thread; in Pyodide by the browser, with JSPI.

    Raise FeedError in Pyodide without JSPI or outside of a coroutine, and ReaderEndedError when the reader has ended.
    """
    iterator = rows.__aiter__()
    end = object()
    with _runner() as run:
        try:
            while (row := run(_next(iterator, end, reader_has_ended()))) is not end:
                yield row
        except ReaderEndedError:
            # Rows that do not obey are left alone.
            with suppress(Exception):
                run(_close(iterator))
            raise
        except BaseException:
            run(_close(iterator))
            raise
        run(_close(iterator))


async def _next(iterator: AsyncIterator[Any], end: object, has_ended: Callable[[], bool]) -> Any:
    row = asyncio.ensure_future(iterator.__anext__())
    while not (await asyncio.wait({row}, timeout=WAIT_S))[0]:
        if has_ended():
            row.cancel()
            await asyncio.wait({row}, timeout=CANCEL_S)
            raise ReaderEndedError
    try:
        return row.result()
    except StopAsyncIteration:
        return end


async def _close(iterator: AsyncIterator[Any]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await _in_time(close())


async def _in_time(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Wait for what ends rows, which may not end themselves."""
    done, _ = await asyncio.wait({asyncio.ensure_future(coroutine)}, timeout=CANCEL_S)
    for task in done:
        task.result()


async def _cancel_all() -> None:
    others = asyncio.all_tasks().difference({asyncio.current_task()})
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_S)


@contextmanager
def _runner() -> Iterator[Run]:
    if sys.platform == "emscripten":
        from pyodide.ffi import can_run_sync, run_sync

        if not can_run_sync():
            raise FeedError("async rows cannot be waited for here: read them first, [row async for row in rows].")
        yield run_sync
        return
    loop = asyncio.new_event_loop()
    # A loop may run in this thread already.
    thread = Thread(target=loop.run_forever, name="trainweb-rows", daemon=True)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        except KeyboardInterrupt:
            # The rows may never come.
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
            raise

    try:
        yield run
    finally:
        run(_in_time(loop.shutdown_asyncgens()))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Fetch:
    """A batch of a stream that a fit asks for; `is_over` is true once the fit has ended, maybe in another thread."""

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
        """The batch; None where the stream or the fit has ended. Raise the error of the stream."""
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
