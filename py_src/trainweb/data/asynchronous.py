"""Rows of an async iterable where rows are iterated over plainly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from trainweb.errors import FeedError

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def plainly(rows: AsyncIterable[Any]) -> Iterator[Any]:
    """The rows, each waited for: by an event loop in a thread; in Pyodide by the browser, which must be able to (JSPI).

    Raises
    ------
    FeedError
        In Pyodide, where nobody can wait: in a browser without JSPI, or outside of a coroutine.
    """
    iterator = rows.__aiter__()
    end = object()
    with _runner() as run:
        try:
            while (row := run(_next(iterator, end))) is not end:
                yield row
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                run(close())


async def _next(iterator: AsyncIterator[Any], end: object) -> Any:
    try:
        return await iterator.__anext__()
    except StopAsyncIteration:
        return end


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
    with ThreadPoolExecutor(1, "trainweb-rows") as thread:
        try:
            yield lambda made: thread.submit(loop.run_until_complete, made).result()
        finally:
            thread.submit(loop.run_until_complete, loop.shutdown_asyncgens()).result()
            loop.close()
