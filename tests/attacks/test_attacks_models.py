"""Every malformed model gives the one error that says what is wrong, in bounded time."""

import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.attacks.models import corpus, good_model

from trainweb.errors import TrainwebError
from trainweb.model import Limits, read_model, write_model

CORPUS = corpus()

SECONDS = 10
"""Of processor time for one file; the slowest takes one or two."""

LIMITS = Limits(nodes=50_000)


@pytest.mark.parametrize("name", CORPUS)
def test_malformed_model_is_refused(name: str) -> None:
    data, error, message = CORPUS[name]
    start = time.process_time()
    with pytest.raises(error, match=message) as caught:
        read_model(data, limits=LIMITS)
    assert type(caught.value) is error
    assert time.process_time() - start < SECONDS
    assert len(str(caught.value)) < 1000


def outcome(data: bytes) -> str:
    """What reading gives; a model that reads must write and read as the same."""
    try:
        graph = read_model(data, limits=Limits(nodes=1000))
    except TrainwebError as error:
        return type(error).__name__
    graph.name = graph.name or "graph"  # as the writer names it
    assert read_model(write_model(graph)) == graph
    return "read"


def test_truncated_models() -> None:
    data = good_model().SerializeToString()
    outcomes = [outcome(data[:size]) for size in range(len(data))]
    assert outcomes.count("ModelError") > len(data) * 0.9
    assert outcome(data) == "read"


def test_models_with_one_byte_changed() -> None:
    data = good_model().SerializeToString()
    outcomes = set()
    for position in range(len(data)):
        for byte in {data[position] ^ 0xFF, data[position] ^ 0x01, data[position] ^ 0x80, 0, 0x7F}:
            outcomes.add(outcome(data[:position] + bytes([byte]) + data[position + 1 :]))
    assert outcomes >= {"read", "ModelError"}


def test_models_with_bytes_inserted_and_removed() -> None:
    data = good_model().SerializeToString()
    rng = random.Random(1)
    for _ in range(1500):
        mutant = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(mutant))
            mutant[position : position + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        outcome(bytes(mutant))


PURE_PYTHON = """
import pickle, re, sys
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "python"
from trainweb import errors
from trainweb.model import Limits, read_model
cases, mutants = pickle.loads(sys.stdin.buffer.read())
for name, (data, error, message) in cases.items():
    try:
        read_model(data, limits=Limits(nodes=50_000))
        sys.exit(f"{name} was read")
    except errors.TrainwebError as caught:
        if type(caught).__name__ != error or not re.search(message, str(caught)):
            sys.exit(f"{name}: {error} {message!r} expected, but {caught!r}")
for data in mutants:
    try:
        read_model(data)
    except errors.TrainwebError:
        pass
print(len(cases), len(mutants))
"""


def test_with_protobuf_in_pure_python() -> None:
    """The same errors where protobuf has no compiled part."""
    data = good_model().SerializeToString()
    mutants = [data[:size] for size in range(len(data))]
    for position in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            byte = bytes([data[position] ^ change])
            mutants.append(data[:position] + byte + data[position + 1 :])
    cases = {name: (data, error.__name__, message) for name, (data, error, message) in CORPUS.items()}
    root = Path(__file__).parents[2]
    env = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONPATH": str(root / "py_src")}
    result = subprocess.run(
        [sys.executable, "-c", PURE_PYTHON],
        input=pickle.dumps((cases, mutants)),
        env=os.environ | env,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.split() == [b"%d" % len(cases), b"%d" % len(mutants)]
