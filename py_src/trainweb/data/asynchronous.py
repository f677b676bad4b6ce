"""Rows of an async iterable where rows are iterated over plainly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from trainweb.data.waiting import CANCEL_S, WAIT_S, ReaderEndedError, reader_has_ended
from trainweb.errors import FeedError

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def plainly(rows: AsyncIterable[Any]) -> Iterator[Any]:
    """The rows, each waited for: by an event loop in a thread; in Pyodide by the browser, which must be able to (JSPI).

    Raises
    ------
    FeedError
        In Pyodide, where nobody can wait: in a browser without JSPI, or outside of a coroutine.
    ReaderEndedError
        The reader has ended; the row that it waited for is cancelled.
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


async def _in_time(made: Coroutine[Any, Any, Any]) -> None:
    """Wait for what ends rows, which may not end themselves."""
    done, _ = await asyncio.wait({asyncio.ensure_future(made)}, timeout=CANCEL_S)
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

    def run(made: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(made, loop).result()
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
