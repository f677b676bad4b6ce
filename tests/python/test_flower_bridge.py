"""The bridge to Flower, between a fleet of the test and WebSocket clients: what it passes on, and what it refuses."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.flower_fleet import FakeFleet, FakeNode
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from trainweb.flower.frames import Task

SECONDS = 30
PARAMETERS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([7.5], np.float32)}
SHAPES = [{"name": name, "shape": list(array.shape)} for name, array in PARAMETERS.items()]
NUMBERS = np.concatenate([array.reshape(-1) for array in PARAMETERS.values()])


def frame(header: dict[str, Any], numbers: np.ndarray | None = None) -> bytes:
    """A message, put together by hand."""
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + (b"" if numbers is None else numbers.astype("<f4").tobytes())


def parse(message: bytes | str) -> tuple[dict[str, Any], np.ndarray]:
    assert isinstance(message, bytes)
    (length,) = struct.unpack_from("<I", message)
    return json.loads(message[4 : 4 + length]), np.frombuffer(message, "<f4", offset=4 + length)


JOIN = {"type": "join", "version": 1, "parameters": SHAPES}


def task(kind: str = "train", **config: Any) -> Task:
    return Task("t1", kind, config, PARAMETERS)


def result(**other: Any) -> dict[str, Any]:
    return {"type": "result", "id": "t1", "metrics": {"num-examples": 9, "loss": 1}, "arrays": SHAPES} | other


def joined(fleet: FakeFleet) -> tuple[ClientConnection, FakeNode]:
    page = connect(fleet.url, compression=None).__enter__()
    page.send(frame(JOIN))
    header, _ = parse(page.recv(SECONDS))
    assert header == {"type": "joined", "version": 1, "node": header["node"], "arrays": []}
    node = fleet.nodes.get(timeout=SECONDS)
    assert node.node == header["node"]
    return page, node


def closed(page: ClientConnection) -> tuple[int, str]:
    """Code and reason with which the bridge ends a connection."""
    with pytest.raises(ConnectionClosed) as caught:
        page.recv(SECONDS)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_tasks_and_answers_pass_unchanged() -> None:
    with FakeFleet() as fleet:
        pages = [joined(fleet) for _ in range(3)]
        for k, (_, node) in enumerate(pages):
            node.tasks.put(task(lr=0.1, number=k, names=["a", "b"], flag=True))
        for k, (page, node) in enumerate(pages):
            header, numbers = parse(page.recv(SECONDS))
            config = {"lr": 0.1, "number": k, "names": ["a", "b"], "flag": True}
            assert header == {"type": "task", "id": "t1", "kind": "train", "config": config, "arrays": SHAPES}
            np.testing.assert_array_equal(numbers, NUMBERS)
            page.send(frame(result(), NUMBERS + k))
            name, (arrays, metrics) = node.answers.get(timeout=SECONDS)
            assert name == "t1" and metrics == {"num-examples": 9, "loss": 1.0} and type(metrics["loss"]) is float
            np.testing.assert_array_equal(arrays["w"], PARAMETERS["w"] + k)
            np.testing.assert_array_equal(arrays["b"], PARAMETERS["b"] + k)
            node.tasks.put(task("evaluate"))
            assert parse(page.recv(SECONDS))[0]["kind"] == "evaluate"
            page.send(frame(result(arrays=[])))
            assert node.answers.get(timeout=SECONDS) == ("t1", ({}, {"num-examples": 9, "loss": 1.0}))
            page.close()
            assert node.left.wait(SECONDS)


def test_a_page_that_disappears_is_reported() -> None:
    with FakeFleet() as fleet:
        page, node = joined(fleet)
        other, other_node = joined(fleet)
        node.tasks.put(task())
        page.recv(SECONDS)
        page.socket.close()  # no closing frame: the renderer is gone
        name, reason = node.answers.get(timeout=SECONDS)
        assert name == "t1" and reason.startswith("the page went away")
        assert node.left.wait(SECONDS) and not other_node.left.is_set()
        other_node.tasks.put(task())
        other.recv(SECONDS)
        other.send(frame(result(), NUMBERS))
        assert other_node.answers.get(timeout=SECONDS)[1][1]["num-examples"] == 9
        other.close()


def test_a_page_that_cannot_says_why_and_stays() -> None:
    with FakeFleet() as fleet:
        page, node = joined(fleet)
        for kind, words in (("query", "cannot do 'query'"), ("train.other", "cannot do 'train.other'")):
            node.tasks.put(task(kind))
            assert words in node.answers.get(timeout=SECONDS)[1]
        node.tasks.put(Task("t2", "train", {}, {"w": PARAMETERS["w"]}))
        assert "'b' is missing" in node.answers.get(timeout=SECONDS)[1]
        node.tasks.put(Task("t3", "train", {}, {**PARAMETERS, "1.running_mean": PARAMETERS["b"]}))
        reason = node.answers.get(timeout=SECONDS)[1]
        assert "'1.running_mean' is not among the parameters. " in reason
        assert "without running statistics" in reason and 'statistics: "average" to federated and joinFlower' in reason
        node.tasks.put(task())
        page.recv(SECONDS)
        page.send(frame({"type": "failure", "id": "t1", "reason": "\ud800" * 600}))
        assert node.answers.get(timeout=SECONDS) == ("t1", "the page could not do it: " + "?" * 500)
        node.tasks.put(task())
        page.recv(SECONDS)
        page.send(frame({"type": "failure", "id": "t1", "reason": "no data"}))
        assert node.answers.get(timeout=SECONDS) == ("t1", "the page could not do it: no data")
        assert not node.left.is_set()
        page.close()


BAD_JOINS: dict[str, tuple[bytes | str, str]] = {
    "text": ("hello", "a text message"),
    "short": (b"\0", "a message of 1 bytes"),
    "length": (b"\xff\xff\xff\xff{}", "a header of 4294967295 bytes"),
    "json": (struct.pack("<I", 3) + b"{no", "not JSON"),
    "utf8": (struct.pack("<I", 2) + b"\xff\xfe", "not JSON"),
    "deep": (struct.pack("<I", 200_000) + b"[" * 200_000, "not JSON"),
    "list": (struct.pack("<I", 2) + b"[]", "not an object"),
    "type": (frame(JOIN | {"type": "task"}), "must be 'join'"),
    "version": (frame(JOIN | {"version": 2}), "version 2"),
    "none": (frame(JOIN | {"parameters": []}), "without parameters"),
    "no-list": (frame(JOIN | {"parameters": 3}), "no list"),
    "shape": (frame(JOIN | {"parameters": [{"name": "w", "shape": [-1]}]}), "the shape"),
    "twice": (frame(JOIN | {"parameters": [*SHAPES, SHAPES[0]]}), "two arrays"),
    "numbers": (frame(JOIN, NUMBERS), "bytes of numbers"),
    "empty-and-large": (frame(JOIN | {"arrays": [{"name": "w", "shape": [0, *[2**31 - 1] * 3]}]}), "too large even"),
    "name": (frame(JOIN | {"parameters": [{"name": "w\ud800", "shape": [1]}]}), "'w\\ud800', which is not text"),
    "surrogate": (frame(JOIN | {"type": "\ud800"}), "must be 'join', got '\\ud800'"),
}


@pytest.mark.parametrize("name", BAD_JOINS)
def test_what_is_no_first_message_is_refused(name: str) -> None:
    message, words = BAD_JOINS[name]
    with FakeFleet() as fleet, connect(fleet.url) as page:
        page.send(message)
        code, reason = closed(page)
        assert code == 1008 and words in reason
        assert fleet.nodes.empty(), "it never became a node"


BAD_ANSWERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "id": (lambda: frame(result(id="t9"), NUMBERS), "expected the result of task t1"),
    "missing": (lambda: frame(result(arrays=SHAPES[:1]), NUMBERS[:6]), "'b' is missing"),
    "shape": (
        lambda: frame(result(arrays=[{"name": "w", "shape": [3, 2]}, SHAPES[1]]), NUMBERS),
        "'w' has the shape [3, 2], expected [2, 3]",
    ),
    "more": (lambda: frame(result(arrays=[*SHAPES, {"name": "x", "shape": []}]), np.append(NUMBERS, 0)), "'x' is not"),
    "few": (lambda: frame(result(), NUMBERS[:-1]), "24 bytes of numbers for arrays of 28"),
    "nan": (lambda: frame(result(), NUMBERS * np.nan), "not finite"),
    "count": (lambda: frame(result(metrics={"num-examples": 0}), NUMBERS), "expected a positive integer"),
    "metric": (lambda: frame(result(metrics={"num-examples": 1, "loss": "low"}), NUMBERS), "expected a number"),
    "truth": (lambda: frame(result(metrics={"num-examples": True}), NUMBERS), "expected a number"),
    "digits": (lambda: frame(result(metrics={"num-examples": 1, "loss": 10**400}), NUMBERS), "expected a number"),
    "count-digits": (lambda: frame(result(metrics={"num-examples": 10**400}), NUMBERS), "expected a number"),
    "more-digits": (lambda: struct.pack("<I", 5007) + b'{"x": ' + b"1" * 5000 + b"}", "not JSON"),
    "surrogate": (
        lambda: frame(result(metrics={"num-examples": 1, "\ud800": 1}), NUMBERS),
        "the metric '\\ud800' has a name that is not text",
    ),
    "name": (lambda: frame(result(metrics={"num-examples": 1, "x" * 501: 1}), NUMBERS), "has a name that is not text"),
    "empty-and-large": (
        lambda: frame(result(arrays=[{"name": "w", "shape": [0, *[2**31 - 1] * 3]}])),
        "too large even where a size is 0",
    ),
    "infinite": (lambda: frame(result(metrics={"num-examples": 1, "loss": float("inf")}), NUMBERS), "not JSON"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_refused_by_name(name: str) -> None:
    make, words = BAD_ANSWERS[name]
    with FakeFleet() as fleet:
        page, node = joined(fleet)
        node.tasks.put(task())
        page.recv(SECONDS)
        page.send(make())
        assert words in node.answers.get(timeout=SECONDS)[1]
        code, reason = closed(page)
        assert code == 1008 and words[:60] in reason
        assert node.left.wait(SECONDS)


def test_limits_hold() -> None:
    with FakeFleet(message_bytes=1000, pages=1, answer_seconds=0.2) as fleet:
        with connect(fleet.url, compression=None) as page:
            page.send(bytes(1001))
            assert closed(page)[0] == 1009
        page, node = joined_when_free(fleet)
        with connect(fleet.url) as second:
            assert closed(second) == (1013, "there are 1 pages already")
        page.send(b"nobody asked")
        assert closed(page)[1] == "refused: an unexpected message"
        assert node.left.wait(SECONDS)
        page, node = joined_when_free(fleet)
        node.tasks.put(task(text="x" * 1000))
        assert "bytes; at most it has 1000" in node.answers.get(timeout=SECONDS)[1]
        node.tasks.put(task())
        page.recv(SECONDS)
        assert node.answers.get(timeout=SECONDS)[1] == "the page gave no answer in 0.2 s"
        assert closed(page) == (1008, "refused: no answer in 0.2 s")


@pytest.mark.parametrize("reads", [0, 1 << 20])
def test_a_page_that_does_not_read_its_task_is_reported(reads: int) -> None:
    """It joins, is given more than the buffers between both hold, and reads nothing or a part of it."""
    big = {"w": np.zeros((4 << 20,), np.float32)}
    join = JOIN | {"parameters": [{"name": "w", "shape": [4 << 20]}]}
    with FakeFleet(answer_seconds=1, pages=2) as fleet:
        page, node = raw_page(fleet, frame(join))
        other, other_node = joined(fleet)
        node.tasks.put(Task("t1", "train", {}, big))
        for _ in range(reads >> 16):
            page.recv(1 << 16)
        assert node.answers.get(timeout=SECONDS) == ("t1", "the page gave no answer in 1 s")
        assert node.left.wait(SECONDS)
        other_node.tasks.put(task())
        other.recv(SECONDS)
        other.send(frame(result(), NUMBERS))
        assert other_node.answers.get(timeout=SECONDS)[1][1]["num-examples"] == 9
        other.close()
        page.close()
        joined_when_free(fleet)[0].close()


def test_the_time_that_a_page_takes_to_read_counts() -> None:
    asked: list[float] = []

    class Slow:
        """A connection that takes a second to send."""

        def __init__(self, page: Any) -> None:
            self.page, self.socket = page, page.socket

        def send(self, message: bytes) -> None:
            time.sleep(1)
            self.page.send(message)

        def recv(self, seconds: float) -> bytes:
            asked.append(seconds)
            return self.page.recv(seconds)

    with FakeFleet(answer_seconds=20) as fleet, connect(fleet.url, compression=None) as page:
        ask = fleet.bridge._ask
        fleet.bridge._ask = lambda slow, message: ask(Slow(slow), message)
        page.send(frame(JOIN))
        page.recv(SECONDS)
        fleet.nodes.get(timeout=SECONDS).tasks.put(task())
        page.recv(SECONDS)
        page.send(frame({"type": "failure", "id": "t1", "reason": "slow"}))
        page.close()
    assert len(asked) == 1 and 0 <= asked[0] <= 19


def test_the_bridge_stops_though_a_page_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.flower.bridge.CLOSE_SECONDS", 3.0)
    big = {"w": np.zeros((4 << 20,), np.float32)}
    join = JOIN | {"parameters": [{"name": "w", "shape": [4 << 20]}]}
    with FakeFleet() as fleet:
        page, node = raw_page(fleet, frame(join))
        other, _ = joined(fleet)
        node.tasks.put(Task("t1", "train", {}, big))
        page.recv(1 << 10)  # the task is on its way
    assert closed(other) == (1001, "the bridge is stopped")
    assert node.answers.get(timeout=SECONDS)[1].startswith("the page went away")
    page.close()


def raw_page(fleet: FakeFleet, join: bytes) -> tuple[socket.socket, FakeNode]:
    """A page of the test's own, which reads only as far as the bridge's "joined"."""
    host, port = fleet.url.removeprefix("ws://").split(":")
    page = socket.socket()
    page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    page.connect((host, int(port)))
    page.sendall(
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    # A final binary frame with a length of 16 bits, and a mask of zeros.
    page.sendall(struct.pack(">BBH", 0x82, 0x80 | 126, len(join)) + bytes(4) + join)
    seen = b""
    while b'"joined"' not in seen:
        seen += page.recv(1 << 10)
    return page, fleet.nodes.get(timeout=SECONDS)


def joined_when_free(fleet: FakeFleet) -> tuple[ClientConnection, FakeNode]:
    """The place of a page that went away is free once its thread has ended."""
    while True:
        try:
            return joined(fleet)
        except ConnectionClosed as error:
            assert error.rcvd is not None and error.rcvd.code == 1013


def test_pages_are_told_when_the_bridge_stops() -> None:
    with FakeFleet() as fleet:
        page, node = joined(fleet)
    assert closed(page) == (1001, "the bridge is stopped")
    assert node.left.wait(SECONDS)


def test_the_command_names_what_is_not_installed() -> None:
    """flwr is not among what the tests install; its own test is `./build.sh test-federated`."""
    command = [sys.executable, "-m", "trainweb.flower", "--superlink", "127.0.0.1:1", "--insecure"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "flwr missing: pip install 'trainweb[flower]'")


def test_the_command_names_a_flwr_that_it_was_not_made_for(tmp_path: Path) -> None:
    """Of the version that `trainweb[flower]` pins it says nothing. There is no port 99999, so that it ends."""
    command = [sys.executable, "-m", "trainweb.flower", "--superlink", "127.0.0.1:1", "--insecure", "--port", "99999"]
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    pinned = re.findall(r"flwr>=([\d.]+)", " ".join(project["optional-dependencies"]["flower"]))
    said = {}
    for version in (f"{pinned[0]}.3", "1.42.0", "1.410.0"):
        folder = tmp_path / version
        (folder / f"flwr-{version}.dist-info").mkdir(parents=True)
        (folder / f"flwr-{version}.dist-info" / "METADATA").write_text(f"Name: flwr\nVersion: {version}\n")
        (folder / "flwr.py").touch()
        path = os.pathsep.join([str(folder), *sys.path])
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
        assert "port" in done.stderr.splitlines()[-1]
        said[version] = done.stderr.startswith(f"flwr {version}: the bridge was made for {pinned[0]}: pip install")
    assert list(said.values()) == [False, True, True], said
