"""The server that pages connect to: each is a node of a fleet, and does its tasks one after the other."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb.flower import frames
from trainweb.flower.frames import KINDS, Arrays, BadMessageError, Shapes, Task

if TYPE_CHECKING:
    from websockets.sync.server import Server, ServerConnection

    from trainweb.flower.superlink import Node

log = logging.getLogger("trainweb.flower")

GOING_AWAY, REFUSED, TOO_MANY, FAILED = 1001, 1008, 1013, 1011
"""Why a connection is closed: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1"""
MAX_REASON = 120
"""Bytes of text that a closing frame has room for."""
MAX_TEXT = 500
"""Characters of a reason or a name from a page that go to the fleet."""
JOIN_SECONDS = 30.0
"""For a page to say who it is."""
CLOSE_SECONDS = 10.0
"""For a page to take the reason why it is sent away."""
START = (
    "The server's start must have only the trained parameters, without running statistics. Or it has all, and the "
    'page gives statistics: "average" to federated and joinFlower'
)
COUNT = "num-examples"
"""The metric that Flower weighs by."""


class TaskError(Exception):
    """The task failed; the page may have the next one."""


@dataclass(frozen=True)
class Limits:
    """Limits of pages: bytes of a message, connections at a time, seconds to answer a task, and between two polls."""

    message_bytes: int = 256 << 20
    pages: int = 100
    answer_seconds: float = 600.0
    poll_seconds: float = 1.0


class Bridge:
    """Gives tasks of a fleet to pages. In `connect()` it has one more node, within the limits."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Node]], limits: Limits) -> None:
        self.connect, self.limits = connect, limits
        self._free = threading.BoundedSemaphore(limits.pages)
        self._pages: set[ServerConnection] = set()

    def serve(self, host: str, port: int, origins: Sequence[str] | None = None) -> Server:
        """A server that listens; `serve_forever` and `shutdown` are its methods. Port 0 is any free one.

        Only pages of the sites `origins` may connect, if there are some. Programs outside of browsers name no site.
        """
        from websockets.sync.server import serve
        from websockets.typing import Origin

        allowed = None if origins is None else [None, *map(Origin, origins)]
        # Parameters do not become smaller when they are packed, and unpacking could take all memory.
        return serve(self.handle, host, port, max_size=self.limits.message_bytes, origins=allowed, compression=None)

    def close(self) -> None:
        """Send all pages away; their nodes leave the fleet."""
        reason = (GOING_AWAY, "the bridge is stopped")
        # At the same time: a page that reads nothing holds up no other one.
        closing = [threading.Thread(target=close, args=(page, *reason)) for page in list(self._pages)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def handle(self, page: ServerConnection) -> None:
        """All of a page's connection; returns when it is over."""
        from websockets.exceptions import ConnectionClosed

        if not self._free.acquire(blocking=False):
            close(page, TOO_MANY, f"there are {self.limits.pages} pages already")
            return
        self._pages.add(page)
        try:
            shapes = self._greet(page)
            with self.connect() as fleet:
                log.info("node %s: a page came", fleet.node)
                try:
                    page.send(frames.pack({"type": "joined", "version": frames.VERSION, "node": fleet.node}))
                    while True:
                        self._next(page, fleet, shapes)
                finally:
                    log.info("node %s: the page left", fleet.node)
        except ConnectionClosed:
            pass
        except BadMessageError as error:
            close(page, REFUSED, f"refused: {error}")
        except Exception as error:
            # On any error of the fleet's library this page's connection ends, the others stay.
            log.error("a page's connection ended: %s: %s", type(error).__name__, error)
            close(page, FAILED, f"the connection to the fleet ended: {type(error).__name__}")
        finally:
            self._pages.discard(page)
            self._free.release()

    def _greet(self, page: ServerConnection) -> Shapes:
        """Names and shapes of the page's parameters."""
        try:
            header, arrays = frames.unpack(page.recv(JOIN_SECONDS))
        except TimeoutError:
            raise BadMessageError(f"no word in {JOIN_SECONDS:g} s") from None
        if header.get("type") != "join" or arrays:
            raise BadMessageError(f"the first message must be 'join', got {header.get('type')!r:.40}")
        if header.get("version") != frames.VERSION:
            raise BadMessageError(f"version {header.get('version')!r:.40} of the protocol; here it is {frames.VERSION}")
        shapes = frames.read_shapes(header.get("parameters"))
        if not shapes:
            raise BadMessageError("a page without parameters")
        return shapes

    def _next(self, page: ServerConnection, fleet: Node, shapes: Shapes) -> None:
        task = fleet.receive()
        if task is None:
            try:
                page.recv(self.limits.poll_seconds)
            except TimeoutError:
                return
            raise BadMessageError("an unexpected message")
        fault = self._unfit(task, shapes)
        if fault is not None:
            log.warning("node %s: task refused: %s", fleet.node, fault)
            fleet.fail(task, fault)
            return
        self._run(page, fleet, task, shapes)

    def _unfit(self, task: Task, shapes: Shapes) -> str | None:
        """Why a page cannot do a task."""
        if task.kind not in KINDS:
            return f"a page cannot do {task.kind!r:.40}; it can {' and '.join(KINDS)}"
        fault = frames.difference(shapes, ((name, array.shape) for name, array in task.arrays.items()))
        if fault is not None:
            return f"these are not the parameters of the page's model: {fault}. {START}"
        return None

    def _run(self, page: ServerConnection, fleet: Node, task: Task, shapes: Shapes) -> None:
        """Have a page do a task; every outcome is sent to the fleet."""
        from websockets.exceptions import ConnectionClosed

        try:
            arrays, metrics = self._answer(page, task, shapes)
        except TaskError as error:
            fleet.fail(task, str(error))
            return
        except ConnectionClosed as error:
            fleet.fail(task, f"the page went away: {error}")
            raise
        except TimeoutError:
            reason = f"no answer in {self.limits.answer_seconds:g} s"
            fleet.fail(task, f"the page gave {reason}")
            raise BadMessageError(reason) from None
        except Exception as error:
            # Any error at all: the fleet waits for this task.
            fleet.fail(task, f"the page's answer was refused: {error}")
            raise BadMessageError(str(error)) from None
        fleet.reply(task, arrays, metrics)

    def _answer(self, page: ServerConnection, task: Task, shapes: Shapes) -> tuple[Arrays, dict[str, float | int]]:
        asked = frames.pack({"type": "task", "id": task.id, "kind": task.kind, "config": task.config}, task.arrays)
        if len(asked) > self.limits.message_bytes:
            raise TaskError(f"a message of {len(asked)} bytes; at most it has {self.limits.message_bytes}")
        header, arrays = frames.unpack(self._ask(page, asked))
        if header.get("type") == "failure" and header.get("id") == task.id:
            raise TaskError(f"the page could not do it: {readable(header.get('reason'))}")
        return arrays, checked_answer(task, header, arrays, shapes)

    def _ask(self, page: ServerConnection, asked: bytes) -> bytes | str:
        """The answer to a message. Raise TimeoutError if the page does not read it, or does not answer in time."""
        from websockets.exceptions import ConnectionClosed

        end = time.monotonic() + self.limits.answer_seconds
        try:
            with cut_off(page, self.limits.answer_seconds):
                page.send(asked)
        except ConnectionClosed:
            if time.monotonic() >= end:
                raise TimeoutError from None
            raise
        return page.recv(max(0.0, end - time.monotonic()))


def checked_answer(task: Task, header: Mapping[str, Any], arrays: Arrays, shapes: Shapes) -> dict[str, float | int]:
    """The metrics of a correct answer. Raise BadMessageError for any other."""
    if header.get("type") != "result" or header.get("id") != task.id:
        raise BadMessageError(f"expected the result of task {task.id:.16}, got {header.get('type')!r:.40}")
    wanted: Shapes = shapes if task.kind == "train" else {}
    fault = frames.difference(wanted, ((name, array.shape) for name, array in arrays.items()))
    if fault is not None:
        raise BadMessageError(fault)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise BadMessageError(f"{name!r:.80} has numbers that are not finite")
    metrics = header.get("metrics")
    if not isinstance(metrics, dict):
        raise BadMessageError("no metrics")
    for name, value in metrics.items():
        if name != readable(name):
            raise BadMessageError(f"the metric {name!r:.40} has a name that is not text, or too long")
        # Integers of JSON have any number of digits; these become float64.
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise BadMessageError(f"the metric {name!r:.40} is {value!r:.40}, expected a number")
    count = metrics.get(COUNT)
    if type(count) is not int or not 0 < count < 2**53:
        raise BadMessageError(f"{COUNT!r} is {count!r:.40}, expected a positive integer")
    return {name: value if name == COUNT else float(value) for name, value in metrics.items()}


def readable(text: object) -> str:
    """Text of a page as the fleet can take it: of some length, and without halves of surrogate pairs."""
    return str(text)[:MAX_TEXT].encode(errors="replace").decode()


@contextmanager
def cut_off(page: ServerConnection, seconds: float) -> Iterator[None]:
    """End the connection if the block takes longer: a page that reads nothing lets `send` wait for ever."""

    def end() -> None:
        with suppress(OSError):  # it has ended already
            page.socket.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def close(page: ServerConnection, code: int, reason: str) -> None:
    """Close a connection; the page gets the reason."""
    with cut_off(page, CLOSE_SECONDS):
        page.close(code, reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore"))
