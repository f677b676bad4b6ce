"""Every damaged ORT format model gives an error of ours, in bounded time."""

import random
import time
from pathlib import Path

import pytest
from tests.attacks.checkpoints import Raw

from trainweb.errors import LimitError, ModelError, TrainwebError
from trainweb.model import Limits, read_model
from trainweb.model.reader import read_metadata

DATA = (Path(__file__).parents[1] / "golden" / "ort_format" / "branches.plain.ort").read_bytes()
GRAPH = read_model(DATA)
SECONDS = 5
"""Of processor time for one file."""


def outcome(data: bytes) -> str:
    """The result of reading: a graph, or an error of ours."""
    start = time.process_time()
    try:
        read_model(data, limits=Limits(nodes=1000))
        read_metadata(data)
        found = "read"
    except TrainwebError as error:
        assert len(str(error)) < 1000
        found = type(error).__name__
    assert time.process_time() - start < SECONDS
    return found


def test_truncated_files() -> None:
    outcomes = [outcome(DATA[:size]) for size in range(0, len(DATA), 13)]
    # Behind the last of the graph come the kernels' names, which nobody reads.
    assert outcomes.count("ModelError") > 0.8 * len(outcomes)
    assert set(outcomes) <= {"read", "ModelError"}
    assert outcome(DATA) == outcome(DATA + b"trailing") == "read"


@pytest.mark.parametrize(("first", "change"), enumerate([0xFF, 0x01, 0x80, 0x04]))
def test_files_with_one_byte_changed(first: int, change: int) -> None:
    """Every eleventh, so that each byte of words comes about as often; together the changes meet every word."""
    outcomes = []
    for position in range(3 * first, len(DATA), 11):
        mutant = DATA[:position] + bytes([DATA[position] ^ change]) + DATA[position + 1 :]
        outcomes.append(outcome(mutant))
    assert set(outcomes) <= {"read", "ModelError", "LimitError", "UnsupportedError"}
    assert outcomes.count("ModelError") > len(outcomes) // 4


def test_files_with_words_changed() -> None:
    """Offsets and counts that point anywhere."""
    rng = random.Random(3)
    for _ in range(1000):
        mutant = bytearray(DATA)
        for _ in range(rng.randint(1, 3)):
            position = rng.randrange(8, len(DATA) - 4, 4)
            word = rng.choice([rng.randrange(2**32), rng.randrange(len(DATA)), 2**31, 2**32 - 4])
            mutant[position : position + 4] = word.to_bytes(4, "little")
        outcome(bytes(mutant))


def file(raw: Raw, *graph: tuple[int, str, object]) -> bytes:
    """A model with this graph."""
    table = raw.table(*graph)
    return raw.file((1, "table", [(7, "offset", table)]), identifier=b"ORTM")


def test_a_graph_that_is_its_own_subgraph() -> None:
    raw = Raw()
    inner = raw.table()
    for _ in range(40):
        attribute = raw.table((0, "string", "body"), (2, "Int32", 5), (7, "offset", inner))
        node = raw.table((5, "string", "Loop"), (10, "offset", raw.vector([attribute])))
        inner = raw.table((2, "offset", raw.vector([node])))
    with pytest.raises(LimitError, match="nested more than 30 deep"):
        read_model(raw.file((1, "table", [(7, "offset", inner)]), identifier=b"ORTM"))


def test_one_node_a_million_times() -> None:
    raw = Raw()
    node = raw.table((5, "string", "Relu"), (8, "strings", ["x" * 500]))
    with pytest.raises((ModelError, LimitError), match=r"overlap|nodes"):
        read_model(file(raw, (2, "offset", raw.vector([node] * 1_000_000))))
    with pytest.raises(LimitError, match="more than 10 nodes"):
        read_model(file(Raw(), (2, "tables", [[(5, "string", "Relu")]] * 11)), limits=Limits(nodes=10))


def test_parts_that_are_missing() -> None:
    for data, text in (
        (Raw().file((0, "string", "5"), identifier=b"ORTM"), "has no model in it"),
        (Raw().file((1, "table", []), identifier=b"ORTM"), "has no graph"),
        (file(Raw(), (2, "tables", [[(10, "tables", [[(0, "string", "a"), (2, "Int32", 4)]])]])), "'a' has no value"),
        (file(Raw(), (2, "tables", [[(10, "tables", [[(0, "string", "a"), (2, "Int32", 99)]])]])), "has type 99"),
    ):
        with pytest.raises(ModelError, match=text):
            read_model(data)
