"""Checkpoints against the recordings and against ONNX Runtime training itself."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest

from trainweb.checkpoint import (
    SessionContents,
    read_checkpoint,
    write_checkpoint,
    write_checkpoint_file,
    write_file_atomically,
    writer,
)
from trainweb.errors import CheckpointError, LimitError
from trainweb.model import Tensor, read_model
from trainweb.model.lazy import LazyTensor
from trainweb.spelling import ARGUMENT

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/trace.json"))
ALL_FILES = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*checkpoint*"))


def array(tensor: Tensor) -> np.ndarray:
    assert tensor.dtype == "float32"
    return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)


def by_name(checkpoint: SessionContents) -> dict[str, Tensor]:
    return dict(checkpoint.parameters)


def optimizer_of(checkpoint: SessionContents) -> Any:
    return checkpoint.has_optimizer, checkpoint.step, checkpoint.initial_lr, checkpoint.moments


def test_there_are_recordings() -> None:
    assert len(CASES) == 10
    assert len(ALL_FILES) == 29


@pytest.mark.parametrize("case", CASES)
def test_generated_checkpoint_has_the_parameters_of_the_model(case: str) -> None:
    checkpoint = read_checkpoint(GOLDEN / case / "checkpoint")
    base = read_model(GOLDEN / case / "base.onnx").initializers
    trace = json.loads((GOLDEN / case / "trace.json").read_text())
    assert not checkpoint.is_nominal and not checkpoint.has_optimizer and not checkpoint.properties
    found = by_name(checkpoint)
    for parameter in trace["parameters"]:
        tensor = found.pop(parameter["name"])
        assert list(tensor.shape) == parameter["shape"]
        assert tensor.data == base[tensor.name].data
        assert (tensor in checkpoint.trained) == parameter["requires_grad"]
    assert not found


@pytest.mark.parametrize("case", CASES)
def test_saved_checkpoint_has_the_recorded_parameters(case: str) -> None:
    trace = json.loads((GOLDEN / case / "trace.json").read_text())
    expected = np.load(GOLDEN / case / "expected.npz")
    trainable = [p for p in trace["parameters"] if p["requires_grad"]]
    buffer, steps, saves = None, 0, 0
    for call in trace["trace"]:
        if call["op"] == "optimizer_step":
            buffer, steps = expected[call["results"]["params_trainable"]], steps + 1
        if call["op"] == "load_checkpoint":
            break
        if call["op"] != "save_checkpoint":
            continue
        saves += 1
        checkpoint = read_checkpoint(GOLDEN / case / call["file"])
        found = by_name(checkpoint)
        assert buffer is not None
        for parameter in trainable:
            flat = array(found[parameter["name"]]).ravel()
            start = parameter["offset_trainable"]
            np.testing.assert_array_equal(flat, buffer[start : start + flat.size])
        assert checkpoint.has_optimizer == call["include_optimizer_state"]
        if checkpoint.has_optimizer:
            assert checkpoint.step == steps and list(checkpoint.moments) == sorted(p["name"] for p in trainable)
    assert saves


def test_optimizer_state() -> None:
    adam = read_checkpoint(GOLDEN / "mlp" / "checkpoint_after")
    assert (adam.has_optimizer, adam.step, adam.initial_lr) == (True, 8, np.float32(0.001))
    state = adam.moments["fc1.weight"]
    assert list(state) == ["momentum0", "momentum1"]
    assert state["momentum0"].shape == (16, 10)
    assert np.abs(array(state["momentum0"])).max() > 0
    assert array(state["momentum1"]).min() >= 0
    sgd = read_checkpoint(GOLDEN / "mlp_sgd_mse" / "checkpoint_after")
    assert list(sgd.moments) == ["b1", "b2", "w1", "w2"]
    for state in sgd.moments.values():
        assert list(state) == ["momentum0"]
        assert not np.any(array(state["momentum0"]))


def test_properties() -> None:
    checkpoint = read_checkpoint(GOLDEN / "scheduler_accumulation" / "checkpoint_after")
    assert checkpoint.properties == {"epoch": 4, "best": 0.625, "tag": "run-é1"}
    assert checkpoint.initial_lr == np.float32(0.04)


def test_nominal_checkpoint() -> None:
    checkpoint = read_checkpoint(GOLDEN / "nominal" / "nominal_checkpoint")
    full = read_checkpoint(GOLDEN / "nominal" / "checkpoint")
    assert checkpoint.is_nominal
    assert [t.name for t in checkpoint.trained] == [t.name for t in full.trained]
    assert [t.name for t in checkpoint.frozen] == [t.name for t in full.frozen]
    assert all(t.shape == () and not t.data for t in by_name(checkpoint).values())
    full.is_nominal = True
    assert read_checkpoint(write_checkpoint(full, generated=True)) == checkpoint


@pytest.mark.parametrize("name", ALL_FILES)
def test_round_trip(name: str) -> None:
    checkpoint = read_checkpoint(GOLDEN / name)
    data = write_checkpoint(checkpoint, generated=True)
    assert read_checkpoint(data) == checkpoint
    assert data == write_checkpoint(read_checkpoint(data), generated=True)
    saved = read_checkpoint(write_checkpoint(checkpoint))
    assert [t.name for t in saved.trained] == sorted(t.name for t in checkpoint.trained)
    assert by_name(saved) == by_name(checkpoint)
    assert optimizer_of(saved) == optimizer_of(checkpoint) and saved.properties == checkpoint.properties


def test_source_may_be_any_buffer() -> None:
    path = GOLDEN / "mlp" / "checkpoint"
    data = path.read_bytes()
    for source in (
        path,
        str(path),
        data,
        bytearray(data),
        memoryview(data),
        np.frombuffer(data, "u1"),
    ):
        assert read_checkpoint(source) == read_checkpoint(data)
    with pytest.raises(LimitError, match="limit is 100"):
        read_checkpoint(data, limits={"file_bytes": 100})


def sample() -> SessionContents:
    def tensor(name: str, *shape: int, dtype: str = "float32") -> Tensor:
        values = np.arange(np.prod(shape), dtype=dtype) + 1
        return Tensor(name, dtype, shape, values.tobytes())

    def state(*shape: int) -> dict[str, Tensor]:
        return {name: tensor(name, *shape) for name in ("momentum0", "momentum1")}

    return SessionContents.of(
        [tensor("z.weight", 2, 3), tensor("a.bias", 3), tensor("scalar")],
        [tensor("frozen", 4, dtype="int64"), tensor("empty", 0, 5)],
        has_optimizer=True,
        step=7,
        initial_lr=0.25,
        moments={"z.weight": state(2, 3), "a.bias": state(3), "scalar": state()},
        properties={
            "best": -0.0,
            "count": -(2**63),
            "name": "naïve ☃",
            "zero": 0,
            "none": "",
            "high": 2**63 - 1,
        },
    )


def test_every_kind_of_content_survives() -> None:
    checkpoint = sample()
    assert read_checkpoint(write_checkpoint(checkpoint, generated=True)) == checkpoint
    saved = read_checkpoint(write_checkpoint(checkpoint))
    assert [t.name for t in saved.trained] == ["a.bias", "scalar", "z.weight"]
    assert str(saved.properties["best"]) == "-0.0"
    assert [type(saved.properties[name]) for name in ("best", "count", "name")] == [float, int, str]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.parameters.update({"": c.trained[0]}) or c.trainable.update({"": True}), "no name"),
        (lambda c: setattr(c.trained[0], "data", bytes(23)), "'z.weight'.*23 bytes"),
        (lambda c: setattr(c.trained[0], "dtype", "string"), "'string'"),
        (lambda c: c.properties.update(p=2**63), "property 'p'"),
        (lambda c: c.properties.update(p=1e39), "float32 cannot hold"),
        (lambda c: c.properties.update(p=[1]), "property 'p'"),
        (lambda c: c.properties.update({"": 1}), "no name"),
        (lambda c: setattr(c, "step", 2**63), "no int64"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(change, message: str) -> None:
    checkpoint = sample()
    change(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(checkpoint)


ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")

ORT_SCRIPT = """
import json, sys
from onnxruntime.training.api import CheckpointState, Module, Optimizer
found = []
for folder, source, target in zip(*[iter(sys.argv[1:])] * 3):
    state = CheckpointState.load_checkpoint(source)
    module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
    values = {name: parameter.data.ravel().tolist() for name, parameter in state.parameters}
    properties = {name: value for name, value in state.properties}
    CheckpointState.save_checkpoint(state, target, include_optimizer_state=True)
    found.append([values, properties])
print(json.dumps(found))
"""


def through_onnx_runtime(*files: tuple[Path, Path, Path]) -> Any:
    """The values and properties of checkpoints there, each given as a folder of models, the file, and its copy."""
    command = [ORT_PYTHON, "-c", ORT_SCRIPT, *(str(path) for three in files for path in three)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.skipif(not ORT_PYTHON, reason="TRAINWEB_ORT_PYTHON names no Python with onnxruntime-training")
def test_onnx_runtime_training_loads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, moments, step and properties go through the real library and come back."""
    checkpoints, files = [], []
    for case in ("mlp", "cnn", "scheduler_accumulation"):
        checkpoint = read_checkpoint(GOLDEN / case / "checkpoint_after")
        checkpoint.properties = {"n": -7, "big": 2**40, "rate": 0.1, "zero": 0.0, "text": "naïve ☃"}
        for way in ("as read", "generated", "two files"):
            source = tmp_path / f"{case} {way}"
            if way == "two files":
                write_beside(source, checkpoint, monkeypatch)
            else:
                source.write_bytes(write_checkpoint(checkpoint, generated=way == "generated"))
            checkpoints.append(checkpoint)
            files.append((GOLDEN / case, source, tmp_path / f"{source.name} again"))
    for checkpoint, (_, _, target), found in zip(checkpoints, files, through_onnx_runtime(*files), strict=True):
        assert_came_back(checkpoint, target, *found)


def assert_came_back(
    checkpoint: SessionContents, target: Path, values: dict[str, list[float]], properties: dict[str, Any]
) -> None:
    """What is in the file that the library wrote, and what it told of the one that it read."""
    assert properties == {**checkpoint.properties, "rate": float(np.float32(0.1))}
    for name, tensor in by_name(checkpoint).items():
        np.testing.assert_array_equal(np.float32(values[name]), array(tensor).ravel())
    again = read_checkpoint(target)
    assert by_name(again) == by_name(checkpoint)
    assert optimizer_of(again) == optimizer_of(checkpoint)
    assert again.properties == properties


def write_beside(path: Path, checkpoint: SessionContents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint as if it was too large for one file."""
    with monkeypatch.context() as patch:
        patch.setattr(writer, "BESIDE_FROM", 0)
        write_checkpoint_file(path, checkpoint)


def test_a_large_checkpoint_has_its_tensors_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint(GOLDEN / "mlp" / "checkpoint_after")
    path = tmp_path / "c"
    write_beside(path, checkpoint, monkeypatch)
    tensors = [*checkpoint.parameters.values(), *(t for n in checkpoint.moments.values() for t in n.values())]
    large = [t for t in tensors if t.nbytes >= 64]
    assert len(large) < len(tensors), "a small one stays in the first file"
    assert (tmp_path / "c.data").stat().st_size == sum(t.nbytes for t in large)
    again = read_checkpoint(path)
    assert by_name(again) == by_name(checkpoint) and optimizer_of(again) == optimizer_of(checkpoint)
    with pytest.raises(CheckpointError, match="lies in a file beside"):
        read_checkpoint(path.read_bytes())
    # Parts that fit in one file again become one.
    write_checkpoint_file(path, checkpoint)
    assert path.read_bytes() == write_checkpoint(checkpoint)
    assert optimizer_of(read_checkpoint(path)) == optimizer_of(checkpoint)


def test_a_crash_between_the_two_files_leaves_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint(GOLDEN / "mlp" / "checkpoint_after")
    path = tmp_path / "c"
    write_beside(path, checkpoint, monkeypatch)
    write = writer.write_file_atomically

    def crash(target: Path, data: object) -> None:
        if target == path:
            raise OSError("no power")
        write(target, data)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "write_file_atomically", crash)
    with pytest.raises(OSError, match="no power"):
        write_beside(path, checkpoint, monkeypatch)
    assert not path.exists()


def test_what_is_too_large_for_bytes_says_to_give_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "INT32_MAX", 100)
    with pytest.raises(LimitError, match="Save it to a path"):
        write_checkpoint(sample())
    advice = r"at most 100\. Get the parameters with getContiguousParameters\(\) or exportWeights\(\)\."
    with ARGUMENT.spelled_for_a_page(), pytest.raises(LimitError, match=advice):
        write_checkpoint(sample())


class TestWriteFileAtomically:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        write_file_atomically(path, b"one")
        assert path.read_bytes() == b"one"
        path.chmod(0o640)
        write_file_atomically(str(path), memoryview(b"two"))
        assert path.read_bytes() == b"two"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.listdir(tmp_path) == ["file"]

    def test_new_file_has_the_usual_mode(self, tmp_path: Path) -> None:
        (tmp_path / "usual").touch()
        write_file_atomically(tmp_path / "new", b"")
        assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode

    def test_follows_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("real")
        write_file_atomically(tmp_path / "link", b"data")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_bytes() == b"data"

    @pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
    def test_failure_leaves_the_old_file(self, tmp_path: Path, monkeypatch, step: str) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")

        def fail(*args: object, **kwargs: object) -> None:
            raise OSError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(OSError, match="disk full"):
                write_file_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    WRITER = """
import os, sys, time
from trainweb.checkpoint import write_file_atomically
replace = os.replace
def slowly(*paths):
    print("ready", flush=True)
    sys.stdin.readline()
    replace(*paths)
os.replace = slowly
write_file_atomically(sys.argv[1], b"of another process")
"""

    def test_a_folder_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/no/such'$"):
            write_file_atomically(tmp_path / "no" / "such" / "model.onnx", b"")

    def test_temporary_files_of_killed_processes_are_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        others = [tmp_path / name for name in (".file.short.tmp", ".other.abcdefgh.tmp", "file.abcdefgh.tmp")]
        for other in others:
            other.write_bytes(b"not ours")
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", self.WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        for process in writers:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in writers[:2]:
            process.kill()
            process.wait()
        temporary = re.compile(r"\.file\.[a-z0-9_]{8}\.tmp")
        assert sum(bool(temporary.fullmatch(p.name)) for p in tmp_path.iterdir()) == 3
        write_file_atomically(path, b"new")
        assert path.read_bytes() == b"new"
        # The file of the living process is still there, and takes its place.
        assert sum(bool(temporary.fullmatch(p.name)) for p in tmp_path.iterdir()) == 1
        writers[2].communicate("\n")
        assert writers[2].returncode == 0 and path.read_bytes() == b"of another process"
        assert {*tmp_path.iterdir()} == {path, *others}

    def test_missing_directory(self, tmp_path: Path) -> None:
        with pytest.raises(OSError):
            write_file_atomically(tmp_path / "missing" / "file", b"data")


@pytest.mark.parametrize("size", range(10))
def test_data_of_any_length_is_aligned(size: int) -> None:
    """As the library's own builder writes a vector."""
    data = bytes(range(1, size + 1))
    held = Tensor("a", "uint8", (size,), data)
    elsewhere = LazyTensor("a", "uint8", (size,), lambda out: out.__setitem__(slice(None), data))
    other = Tensor("b", "uint8", (3,), b"xyz")
    (file,) = {write_checkpoint(SessionContents.of([], [tensor, other])) for tensor in (held, elsewhere)}
    found, other = read_checkpoint(file).frozen
    assert (bytes(found.data), bytes(other.data)) == (data, b"xyz")
    builder = flatbuffers.Builder(0)
    builder.CreateByteVector(data)
    at = file.index(bytes(builder.Bytes[builder.Head() :]))
    assert at % 4 == 0
