"""Weights as safetensors and npz: numpy and the description of the format read them, and files of numpy are read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from trainweb.errors import CheckpointError, ModelError

from .sessions import session
from .test_store import by_format


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def damaged(data: bytes) -> bytes:
    """The first array's compressed bytes are rubbish: their first is a block of a type that there is not."""
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
        ]
        for data, text in faults:
            with pytest.raises(CheckpointError, match=text):
                s.load_weights(data)
        with pytest.raises(ModelError, match="format is 'h5'; it must be safetensors or npz"):
            s.export_weights("h5")
        assert (s.get_contiguous_parameters(False) == before).all()
