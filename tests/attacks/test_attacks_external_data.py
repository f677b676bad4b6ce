"""External tensor data never comes from outside the model's directory."""

import os
from pathlib import Path

import onnx
import pytest
from tests.attacks.models import good_model

from trainweb.errors import LimitError, ModelError
from trainweb.model import Graph, read_model

SECRET = bytes(range(100, 108))


def model_with(location: str, **entries: str) -> onnx.ModelProto:
    model = good_model()
    tensor = model.graph.initializer.add(name="bad", data_type=1, dims=[2], data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model


def read_from(directory: Path, location: str, **entries: str) -> Graph:
    path = directory / "model.onnx"
    path.write_bytes(model_with(location, **entries).SerializeToString())
    return read_model(path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A model's directory with a file to read, and a secret beside the directory."""
    (tmp_path / "secret").write_bytes(SECRET)
    directory = tmp_path / "home"
    (directory / "inner").mkdir(parents=True)
    (directory / "w.bin").write_bytes(bytes(range(16)))
    (directory / "inner" / "w.bin").write_bytes(bytes(range(16, 32)))
    return directory


@pytest.mark.parametrize(
    ("location", "entries", "expected"),
    [
        ("w.bin", {}, bytes(range(8))),
        ("w.bin", {"offset": "8", "length": "8"}, bytes(range(8, 16))),
        ("inner/w.bin", {"offset": "4", "checksum": "ignored"}, bytes(range(20, 28))),
        ("./w.bin", {}, bytes(range(8))),
    ],
)
def test_data_below_the_model_is_read(home: Path, location, entries, expected) -> None:
    assert read_from(home, location, **entries).initializers["bad"].data == expected


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "inner/../../secret",
        "/etc/hostname",
        "..",
        ".",
        "inner",
        "C:\\secret",
        "C:secret",
        "..\\secret",
        "w.bin\0",
        "data:,x",
        "http://localhost/w.bin",
        "file:///etc/hostname",
        "missing.bin",
        "w.bin/x",
        "x" * 5000,
        "//etc/hostname",
        "inner/./../../secret",
        "~/secret",
        "/dev/zero",
        "é/..",
    ],
)
def test_location_outside_is_refused(home: Path, location: str) -> None:
    with pytest.raises(ModelError, match="'bad'"):
        read_from(home, location)


def test_absolute_path_of_the_secret_is_refused(home: Path) -> None:
    with pytest.raises(ModelError, match="relative path"):
        read_from(home, str(home.parent / "secret"))


def test_links_out_of_the_directory_are_refused(home: Path) -> None:
    (home / "link").symlink_to(home.parent / "secret")
    (home / "relative").symlink_to("../secret")
    (home / "folder").symlink_to(home.parent)
    (home / "chain").symlink_to("link")
    for location in ("link", "relative", "folder/secret", "chain"):
        with pytest.raises(ModelError, match="leads out"):
            read_from(home, location)
    os.link(home.parent / "secret", home / "hard")
    with pytest.raises(ModelError, match="hard links"):
        read_from(home, "hard")


def test_links_inside_the_directory_are_followed(home: Path) -> None:
    (home / "link").symlink_to("inner/w.bin")
    assert read_from(home, "link").initializers["bad"].data == bytes(range(16, 24))


def test_special_files_are_refused(home: Path) -> None:
    os.mkfifo(home / "pipe")
    with pytest.raises(ModelError, match="regular file"):
        read_from(home, "pipe")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "9"}, "reaches to byte 17"),
        ({"offset": str(2**63 - 1)}, "reaches to byte"),
        ({"length": "7"}, "7 bytes of external data, but needs 8"),
        ({"length": str(2**63)}, "needs 8"),
        ({"offset": "-8"}, "not a number"),
    ],
)
def test_range_outside_the_file_is_refused(home: Path, entries, message) -> None:
    with pytest.raises(ModelError, match=message):
        read_from(home, "w.bin", **entries)


def test_model_from_bytes_reads_only_what_is_given(home: Path, monkeypatch) -> None:
    monkeypatch.chdir(home)
    data = model_with("w.bin").SerializeToString()
    with pytest.raises(ModelError, match="external_data="):
        read_model(data)
    graph = read_model(data, external_data={"w.bin": bytearray(SECRET)})
    assert graph.initializers["bad"].data == SECRET
    with pytest.raises(ModelError, match="4 bytes"):
        read_model(data, external_data={"w.bin": b"1234"})
    with pytest.raises(ModelError, match="is not bytes"):
        read_model(data, external_data={"w.bin": "text"})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="external_data="):
        read_model(model_with("./w.bin").SerializeToString(), external_data={"w.bin": SECRET})


def test_given_data_goes_before_files(home: Path) -> None:
    path = home / "model.onnx"
    path.write_bytes(model_with("../secret").SerializeToString())
    graph = read_model(path, external_data={"../secret": SECRET})
    assert graph.initializers["bad"].data == SECRET


def test_overlapping_data_counts_each_time() -> None:
    model = model_with("w.bin")
    for index in range(100):
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(model.graph.initializer[2])
        tensor.name = f"copy{index}"
    data = model.SerializeToString()
    with pytest.raises(LimitError, match="'copy2'"):
        read_model(data, external_data={"w.bin": bytes(8)}, limits={"arena_bytes": 24 + 12 + 24 + 7})


def test_many_files(home: Path) -> None:
    """More files than a process may have open at once, as old exporters wrote them."""
    model = good_model()
    for index in range(40):
        (home / f"w{index}").write_bytes(bytes([index] * 4))
        tensor = model.graph.initializer.add(name=f"t{index}", data_type=1, dims=[1], data_location=1)
        tensor.external_data.add(key="location", value=f"w{index}")
    (home / "model.onnx").write_bytes(model.SerializeToString())
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    graph = read_model(home / "model.onnx")
    assert [graph.initializers[f"t{i}"].data[0] for i in range(40)] == list(range(40))
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)
