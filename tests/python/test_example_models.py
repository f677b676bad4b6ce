"""Models that come with the Python package."""

import re
import zipfile
from pathlib import Path

import pytest

import trainweb

ROOT = Path(__file__).parents[2]
FIRST = (ROOT / "docs" / "first.onnx").read_bytes()


def test_the_example_is_the_model_of_the_documents() -> None:
    assert trainweb.data.example("first.onnx") == FIRST


def test_an_example_that_is_not_there_lists_those_that_are() -> None:
    wanted = "There is no example named 'last.onnx'. The package has: first.onnx."
    with pytest.raises(trainweb.errors.UnknownNameError) as caught:
        trainweb.data.example("last.onnx")
    assert str(caught.value) == wanted


def test_the_wheel_has_the_example_and_no_extra_for_developers() -> None:
    (wheel,) = (ROOT / "dist").glob("trainweb-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("trainweb/data/first.onnx") == FIRST
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        extras = set(re.findall(r"^Provides-Extra: (.*)$", archive.read(metadata).decode(), re.MULTILINE))
    assert extras == {"images", "native", "federated", "flower", "torch"}
