"""Weights as safetensors and npz: numpy and the description of the format read them, and files of numpy are read."""

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from trainweb.errors import CheckpointError, ModelError
from trainweb.model.safetensors import TENSOR_LIMIT, read_safetensors

from .sessions import session
from .test_store import by_format


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def damaged(data: bytes) -> bytes:
    """The first array's compressed bytes are garbage: their first is a block of an unknown type."""
    start = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    return data[:start] + b"\xff" * 8 + data[start + 8 :]


def test_what_is_exported_is_read_elsewhere_and_here() -> None:
    with session() as s, session() as other:
        values = {n: s.get_parameter(n) for n in s.parameter_names()}
        with np.load(io.BytesIO(s.export_weights("npz"))) as found:
            assert set(found) == set(values)
            for name, value in values.items():
                assert found[name].dtype == np.float32 and (found[name] == value).all()
                assert found[name].shape == value.shape
        flat = by_format(s.export_weights())
        assert {n: a.tobytes() for n, a in flat.items()} == {n: a.tobytes() for n, a in values.items()}
        assert s.export_weights("npz") == s.export_weights("npz")
        for form in ("safetensors", "npz"):
            other.load_parameters_buffer(np.zeros(other.get_parameters_size(False), np.float32), False)
            other.load_weights(s.export_weights(form))
            assert (other.get_contiguous_parameters(False) == s.get_contiguous_parameters(False)).all()


def test_files_of_numpy_and_parts() -> None:
    with session() as s:
        values = {n: s.get_parameter(n) for n in s.parameter_names()}
        first, *_ = values
        changed = {n: v + 1 for n, v in values.items()}
        s.load_weights(npz(**changed))
        assert all((s.get_parameter(n) == v).all() for n, v in changed.items())
        s.load_weights(npz(**{first: values[first]}, others=np.zeros(3)), strict=False)
        assert (s.get_parameter(first) == values[first]).all()
        before = s.get_contiguous_parameters(False)
        faults: list[tuple[bytes, Any]] = [
            (npz(**{first: values[first]}), "The file lacks '.*'. With strict false"),
            (npz(**values, more=np.zeros(3)), "The file has 'more'"),
            (npz(**{**values, first: values[first].astype(np.float64)}), "data type mismatch"),
            (npz(**{**values, first: values[first].reshape(-1)}), "data shape mismatch"),
            (npz(**{**values, first: np.array(["a"])}), "of the npz file is '<U1'"),
            (npz(**{**values, first: np.asfortranarray(values[first])}), "column by column"),
            (npz(**values)[:-40], "The npz file cannot be read"),
            (damaged(npz(**values)), "The npz file cannot be read"),
            (npz(**values, more=np.zeros(3, [("a", "<f4")])), r"of the npz file is \[\('a', '<f4'\)\]"),
            (s.export_weights()[:-4], "safetensors file"),
            (b"", "safetensors file"),
            (s.save(), "The file is a checkpoint, not weights: open a session with it"),
        ]
        for data, text in faults:
            with pytest.raises(CheckpointError, match=text):
                s.load_weights(data)
        with pytest.raises(ModelError, match="format is 'h5'; it must be safetensors or npz"):
            s.export_weights("h5")
        assert (s.get_contiguous_parameters(False) == before).all()


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """The block takes no more memory than this at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


def test_an_array_of_another_shape_is_not_unpacked() -> None:
    """64 MiB of zeros are 64 KiB of a file: as a parameter of another shape, as one that nobody wants, as a header."""
    with session() as s:
        values = {n: s.get_parameter(n) for n in s.parameter_names()}
        first, *_ = values
        large = np.zeros(16 << 20, np.float32)
        files = [npz(**{**values, first: large}), npz(**values, more=large)]
        header = io.BytesIO()
        with zipfile.ZipFile(header, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{first}.npy", bytes(64 << 20))
        for data, text in zip(
            [*files, header.getvalue()], ("data shape mismatch", "has 'more'", "is not an array"), strict=True
        ):
            with at_most(8 << 20), pytest.raises(CheckpointError, match=text):
                s.load_weights(data)
        with at_most(8 << 20):
            s.load_weights(files[1], strict=False)


def stored(shape: str, body: bytes, name: str, compression: int = zipfile.ZIP_STORED) -> bytes:
    """An npz file whose entry has this shape, as a text, and these bytes."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)
    return file.getvalue()


def with_size(data: bytes, nbytes: int) -> bytes:
    """The directory of a zip says that its last entry has so many bytes more, unpacked."""
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<I", struct.unpack_from("<I", data, at)[0] + nbytes) + data[at + 4 :]


def test_files_that_lie_are_refused() -> None:
    with session() as s:
        first = s.parameter_names()[0]
        shape = s.get_parameter(first).shape
        body = s.get_parameter(first).tobytes()
        good = stored(repr(shape), body, first)
        s.load_weights(good, strict=False)
        flipped = good.replace(body, body[:-1] + bytes([body[-1] ^ 1]))
        shorter, packed = (
            stored(repr(shape), body[:-4], first, how) for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        )
        long = "n" * 60_000
        for data in (
            flipped,
            with_size(shorter, 4),
            with_size(packed, 4),
            with_size(good, -4),
            stored("(None,)", body, first),
            stored("(-1, -4)", bytes(16), first),
            stored("(1.0, 4)", bytes(16), first),
            stored("(" * 5000 + ")" * 5000, body, first),
            stored(f"({'9' * 4000}, {'9' * 4000})", body, first),
            stored("(1,)", body, long),
        ):
            with pytest.raises(CheckpointError) as caught:
                s.load_weights(data, strict=False)
            assert len(str(caught.value)) < 400
        assert s.get_parameter(first).tobytes() == body


def safetensors(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": ["F32"]},
        {"dtype": {"F32": 1}},
        {"dtype": None},
        {"dtype": "F" * 100_000},
        {"shape": [10**4000] * 60},
        {"shape": [10**4000], "data_offsets": [0, 4 * 10**4000]},
        {"shape": [1] * 100_000},
        {"shape": "4"},
        {"data_offsets": [0, 10**4000]},
        {"data_offsets": [10**4000, 10**4000 + 16]},
        {"data_offsets": [0.0, 16.0]},
    ],
    ids=lambda v: f"{v!r:.40}",
)
def test_headers_that_are_wrong(entry: dict[str, Any]) -> None:
    """A text of bounded length, also with a name of 100,000 characters."""
    good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    read_safetensors(safetensors(a=good))
    for name in ("a", "n" * 100_000):
        with pytest.raises(CheckpointError) as caught:
            read_safetensors(safetensors(**{name: good | entry}))
        assert len(str(caught.value)) < 400


def test_a_header_of_too_many_tensors_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    text = ("{" + ",".join(f'"t{k}":{empty}' for k in range(TENSOR_LIMIT + 1)) + "}").encode()
    monkeypatch.setattr(json, "loads", None)  # it takes seconds for a million
    with pytest.raises(CheckpointError, match="more than 200000 tensors, the limit"):
        read_safetensors(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("how", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_arrays_in_a_form_that_is_unpacked_whole_are_refused(how: int) -> None:
    """Of 64 MiB of zeros, 10 to 50 KiB in the file: `zipfile` would unpack them to read the header."""
    with session() as s:
        data = stored("(16777216,)", bytes(1 << 26), "w", how)
        assert len(data) < 1 << 16
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=rf"'w' of the npz file is compressed by method {how}"):
            s.load_weights(data, strict=False)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
