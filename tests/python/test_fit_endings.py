"""Fits whose data never comes, in Python: `stop`, `release` and the end of a task end them all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import trainweb.fit.trainer as trainer_module
from trainweb import CheckpointStore
from trainweb.data import Dataset
from trainweb.errors import ModelError, ReleasedError
from trainweb.fit import Run, Trainer
from trainweb.session.training_session import TrainingSession

from .test_fit import rows, session

HANG_S = 120.0
"""Beyond any load of a machine: a fit that has not ended by then never does."""


class Source:
    """Eight rows, and then nothing for ever; `is_waiting` says that a reader waits for the ninth."""

    def __init__(self) -> None:
        self.is_waiting, self.is_closed, self.closed = Event(), Event(), 0

    async def awaited(self) -> AsyncIterator[Any]:
        try:
            for row in Dataset(rows(8)):
                yield row
            self.is_waiting.set()
            await asyncio.Event().wait()
        finally:
            self.closed += 1
            self.is_closed.set()

    def check_closed(self, times: int) -> None:
        """Another thread may still be about to close it."""
        assert times == 0 or self.is_closed.wait(HANG_S)
        assert self.closed == times

    async def unwilling(self) -> AsyncIterator[Any]:
        """Rows that do not even end when they are closed."""
        for row in Dataset(rows(8)):
            yield row
        while True:
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    def blocked(self) -> Iterator[Any]:
        yield from Dataset(rows(8))
        self.is_waiting.set()
        Event().wait()


WAITS: dict[str, tuple[Callable[[Source], Any], int]] = {
    "rows": (lambda s: s.awaited, 1),
    "steps": (lambda s: Dataset(s.awaited).map(lambda row: row).shuffle(2), 1),
    "prefetch": (lambda s: Dataset(s.awaited).batch(2).prefetch(2), 1),
    "unwilling": (lambda s: s.unwilling, 0),
    "blocked behind prefetch": (lambda s: Dataset(s.blocked).prefetch(2), 0),
}
"""Data that never comes, and how often its source is closed: Python cannot end a generator that blocks."""


def options_of(data: Any, tmp_path: Path, callback: Callable[[Any, Run], object]) -> dict[str, Any]:
    size = {} if isinstance(data, Dataset) and data.is_batched else {"batch_size": 2}
    kept = {"store": tmp_path, "name": "fit"}
    return {**size, "checkpoint": kept, "callbacks": callback, "progress": False}


def settled(function: Callable[[], Any]) -> Any:
    """The result of a function in a separate thread; a failure where it never gives anything."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=run, daemon=True).start()
    return found.result(HANG_S)


def check_free(s: TrainingSession, tmp_path: Path) -> None:
    """The session can be fitted again, and the lock of the checkpoint is free."""
    CheckpointStore(tmp_path).delete("fit")
    checkpoint = {"store": tmp_path, "name": "fit"}
    assert Trainer(s).fit(rows(8), checkpoint=checkpoint, progress=False).ended == "done"


@pytest.mark.parametrize("end", ["stop", "release"])
@pytest.mark.parametrize("waits", WAITS)
def test_another_thread_ends_a_fit_whose_rows_never_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: str, end: str
) -> None:
    monkeypatch.setattr(trainer_module, "FRAME_S", 0.0)
    source, runs = Source(), list[Run]()
    make, closed = WAITS[waits]
    data = make(source)
    with session() as s, session() as other:

        def leave() -> None:
            assert source.is_waiting.wait(HANG_S)
            runs[0].stop() if end == "stop" else s.release()

        Thread(target=leave, daemon=True).start()
        options = options_of(data, tmp_path, lambda event, run: runs.append(run))
        fit = lambda: Trainer(s).fit(data, **options)  # noqa: E731
        if end == "stop":
            history = settled(fit)
            assert history.ended == "stopped" and len(history.losses) in range(1, 5)
        else:
            with pytest.raises(ReleasedError):
                settled(fit)
        source.check_closed(closed)
        check_free(s if end == "stop" else other, tmp_path)


@pytest.mark.parametrize("waits", [*WAITS, "blocked"])
def test_a_task_that_is_cancelled_ends_a_fit_whose_rows_never_come(tmp_path: Path, waits: str) -> None:
    source = Source()
    make, closed = (WAITS | {"blocked": (lambda s: s.blocked, 0)})[waits]
    data = make(source)

    async def main(s: TrainingSession) -> None:
        options = options_of(data, tmp_path, lambda event, run: None)
        task = asyncio.create_task(Trainer(s).fit_async(data, **options))
        # The loop goes on while the fit waits.
        while not source.is_waiting.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with session() as s:
        settled(lambda: asyncio.run(main(s)))
        source.check_closed(closed)
        check_free(s, tmp_path)


def test_a_source_that_never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "FRAME_S", 0.0)

    async def source() -> AsyncIterator[Any]:
        try:
            while True:
                for row in Dataset(rows(8)):
                    yield row
        finally:
            await asyncio.Event().wait()

    def fit() -> str:
        with session() as s:
            stop = lambda event, run: run.stop()  # noqa: E731
            return Trainer(s).fit(source, batch_size=2, callbacks=stop, progress=False).ended

    assert settled(fit) == "stopped"


def test_a_release_before_the_first_row() -> None:
    is_waiting = Event()

    async def source() -> AsyncIterator[Any]:
        is_waiting.set()
        await asyncio.Event().wait()
        yield

    with session() as s:

        def leave() -> None:
            assert is_waiting.wait(HANG_S)
            s.release()

        Thread(target=leave, daemon=True).start()
        with pytest.raises(ReleasedError):
            settled(lambda: Trainer(s).fit(source, batch_size=2, progress=False))


def test_validation_data_that_never_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer_module, "FRAME_S", 0.0)
    source, runs = Source(), list[Run]()
    with session() as s:
        options = options_of(None, tmp_path, lambda event, run: runs.append(run))

        def leave() -> None:
            assert source.is_waiting.wait(HANG_S)
            runs[0].stop()

        Thread(target=leave, daemon=True).start()
        history = settled(lambda: Trainer(s).fit(rows(8), validation_data=source.awaited, **options))
        assert history.ended == "stopped"
        assert [epoch.validation for epoch in history.epochs] == [None]
        source.check_closed(1)
        check_free(s, tmp_path)


def test_streams_of_fit_async_are_made_by_one_thread() -> None:
    """A database's cursor, say, may be used only by the thread that made it."""
    from threading import get_ident

    made = set()

    def source() -> Iterator[Any]:
        for row in Dataset(rows(8)):
            made.add(get_ident())
            yield row

    async def main() -> bytes:
        with session() as s:
            history = await Trainer(s).fit_async(source, validation_data=source, batch_size=2, epochs=2, progress=False)
            assert history.ended == "done" and len(history.losses) == 8
            return s.get_contiguous_parameters(False).tobytes()

    found = settled(lambda: asyncio.run(main()))
    assert len(made) == 1
    with session() as s:
        Trainer(s).fit(source, validation_data=source, batch_size=2, epochs=2, progress=False)
        assert s.get_contiguous_parameters(False).tobytes() == found


def test_errors_of_rows_come_out_of_fit_async() -> None:
    def source() -> Iterator[Any]:
        yield from Dataset(rows(4))
        raise ZeroDivisionError("of mine")

    async def main() -> None:
        with session() as s, pytest.raises(ZeroDivisionError, match="of mine"):
            await Trainer(s).fit_async(source, batch_size=2, progress=False)

    settled(lambda: asyncio.run(main()))


def test_async_callbacks_are_refused() -> None:
    async def callback(event: Any, run: Run) -> None:
        raise AssertionError

    with session() as s, pytest.raises(ModelError, match=r"callbacks is .* that is not async"):
        Trainer(s).fit(rows(8), callbacks=callback, progress=False)
