"""A fleet in the place of a SuperLink's: tasks from a list, answers into another; nothing of flwr."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any, Self

from trainweb.flower.bridge import Bridge, Limits
from trainweb.flower.frames import Arrays, Task


class FakeNode:
    """The task of one page and its answer."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.tasks: Queue[Task] = Queue()
        self.answers: Queue[tuple[str, Any]] = Queue()
        self.left = threading.Event()

    def receive(self) -> Task | None:
        try:
            return self.tasks.get_nowait()
        except Empty:
            return None

    def reply(self, task: Task, arrays: Arrays, metrics: Mapping[str, float | int]) -> None:
        self.answers.put((task.id, (arrays, dict(metrics))))

    def fail(self, task: Task, reason: str) -> None:
        self.answers.put((task.id, reason))


class FakeFleet:
    """Nodes that come as pages do, and a bridge to them, while the context is open."""

    def __init__(self, origins: Sequence[str] | None = None, **limits: Any) -> None:
        self.origins = origins
        self.nodes: Queue[FakeNode] = Queue()
        self._count = 0
        self.bridge = Bridge(self.connect, Limits(**{"poll_seconds": 0.01, **limits}))

    @contextmanager
    def connect(self) -> Iterator[FakeNode]:
        self._count += 1
        node = FakeNode(str(self._count))
        self.nodes.put(node)
        try:
            yield node
        finally:
            node.left.set()

    def __enter__(self) -> Self:
        self._server = self.bridge.serve("127.0.0.1", 0, self.origins)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bridge.close()
        self._server.shutdown()
        self._thread.join()
