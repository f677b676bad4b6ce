"""Every malformed checkpoint gives the one error that says what is wrong, in bounded time."""

import random
import struct
import time
from pathlib import Path

import pytest
from tests.attacks.checkpoints import (
    BOOL,
    corpus,
    file,
    good_checkpoint,
    module,
    tensor,
    vtable_position,
)

from trainweb.checkpoint import read_checkpoint, write_checkpoint
from trainweb.errors import CheckpointError, LimitError, ModelError, TrainwebError
from trainweb.model.flatbuffer import Buffer, Table

CORPUS = corpus()

SECONDS = 5
"""Of processor time for one file."""


@pytest.mark.parametrize("name", CORPUS)
def test_malformed_checkpoint_is_refused(name: str) -> None:
    data, error, message = CORPUS[name]
    start = time.process_time()
    with pytest.raises(error, match=message) as caught:
        read_checkpoint(data)
    assert type(caught.value) is error
    assert time.process_time() - start < SECONDS
    assert len(str(caught.value)) < 1000


def test_many_tables_of_one_long_vtable_are_refused() -> None:
    """Each is short, and its vtable of 64 KiB would be read 10,000 times."""
    count, vtable = 10_000, 0xFFFE
    tables = b"".join(struct.pack("<i", 8 + k * 4 + vtable + 2 - 8) for k in range(count))
    data = bytes(4) + b"ODTC" + struct.pack("<HH", vtable, 4) + bytes(vtable - 4 + 2) + tables
    buffer = Buffer(data, "checkpoint", CheckpointError)
    with pytest.raises(CheckpointError, match="parts overlap"):
        for k in range(count):
            Table(buffer, 8 + vtable + 2 + 4 * k, "a table")


def outcome(data: bytes) -> str:
    """What reading gives; a checkpoint that reads also writes, and reads as the same."""
    try:
        checkpoint = read_checkpoint(data)
    except TrainwebError as error:
        return type(error).__name__
    for entry in checkpoint.parameters.values():
        assert checkpoint.is_nominal or len(entry.data) == entry.nbytes
    again = read_checkpoint(write_checkpoint(checkpoint, generated=True))
    # compares as text, for a changed property may be nan
    assert repr_of(again) == repr_of(checkpoint)
    return "read"


def repr_of(checkpoint) -> str:
    moments = (tensor for named in checkpoint.moments.values() for tensor in named.values())
    for entry in (*checkpoint.parameters.values(), *moments):
        entry.data = bytes(entry.data)
    return repr(checkpoint)


def test_truncated_checkpoints() -> None:
    data = write_checkpoint(good_checkpoint())
    for size in range(len(data) - 4):
        assert outcome(data[:size]) == "CheckpointError", size
    assert outcome(data) == "read"
    assert outcome(data + b"trailing") == "read"


def test_checkpoints_with_one_byte_changed() -> None:
    data = write_checkpoint(good_checkpoint())
    outcomes = []
    for position in range(len(data)):
        for byte in {data[position] ^ 0xFF, data[position] ^ 1, data[position] ^ 0x80, 0, 0x7F}:
            mutant = data[:position] + bytes([byte]) + data[position + 1 :]
            outcomes += [outcome(mutant)]
    assert set(outcomes) <= {"read", "CheckpointError", "LimitError"}
    assert outcomes.count("CheckpointError") > len(data)


def test_checkpoints_with_words_changed() -> None:
    """Offsets and counts that point anywhere."""
    data = write_checkpoint(good_checkpoint())
    rng = random.Random(2)
    for _ in range(3000):
        mutant = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            position = rng.randrange(0, len(data) - 4, 4)
            word = rng.choice([rng.randrange(2**32), rng.randrange(len(data)), 2**31, 2**32 - 4])
            mutant[position : position + 4] = word.to_bytes(4, "little")
        outcome(bytes(mutant))


def test_positions_in_the_corpus_are_those_of_the_root() -> None:
    root, vtable = vtable_position()
    data = write_checkpoint(good_checkpoint())
    assert 8 <= vtable < root < len(data) or 8 <= root < vtable < len(data)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A checkpoint with a tensor in the file beside it, at offset 8."""
    path = tmp_path / "ckpt"
    path.write_bytes(file(module([tensor(raw=None, offset=8)], [], (3, BOOL, True))))
    (tmp_path / "ckpt.data").write_bytes(bytes(range(16)))
    return path


def test_data_beside_the_checkpoint(beside: Path) -> None:
    assert read_checkpoint(beside).trained[0].data == bytes(range(8, 16))
    assert read_checkpoint(str(beside)).trained[0].data == bytes(range(8, 16))
    with pytest.raises(CheckpointError, match="given as a path"):
        read_checkpoint(beside.read_bytes())
    with pytest.raises(LimitError, match="arena"):
        read_checkpoint(beside, limits={"arena_bytes": 7})


def test_bad_data_beside_the_checkpoint(beside: Path, tmp_path: Path) -> None:
    data = tmp_path / "ckpt.data"
    data.write_bytes(bytes(15))
    with pytest.raises(CheckpointError, match="reaches to byte 16"):
        read_checkpoint(beside)
    data.unlink()
    with pytest.raises(CheckpointError, match="cannot be opened"):
        read_checkpoint(beside)
    data.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="leads out"):
        read_checkpoint(beside)
    beside.write_bytes(file(module([tensor(raw=None, offset=8)], [])))
    with pytest.raises(CheckpointError, match="says it has external data"):
        read_checkpoint(beside)


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero"), tmp_path / "a\0b"):
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    with pytest.raises(CheckpointError, match="not int"):
        read_checkpoint(5)
    assert not issubclass(CheckpointError, ModelError)
