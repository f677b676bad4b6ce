"""Hashes that files must have: an example of the specification, and digests of hashlib."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

import trainweb.model.integrity
from trainweb.artifacts import build_artifacts
from trainweb.errors import CheckpointError, ModelError
from trainweb.model import read_model

MLP = Path(__file__).resolve().parents[1] / "golden" / "mlp"
TRAIN, EVAL, OPTIMIZER, CHECKPOINT = (
    MLP / name for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
)


def hash_of(path: Path, algorithm: str = "sha256") -> str:
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).decode()}"


def open_session(integrity: Any) -> None:
    state = trainweb.CheckpointState.load_checkpoint(CHECKPOINT)
    trainweb.TrainingSession(state, TRAIN, EVAL, OPTIMIZER, {"integrity": integrity}).release()


def test_a_known_hash() -> None:
    data = b"alert('Hello, world.');"  # the example of the specification (SRI, section 3.2)
    text = "sha384-H8BRh8j48O9oYatfu5AZzq6A9RINhZO5H16dQZngK7T62em8MUt1FLm52t+eX6xO"
    trainweb.model.integrity.check_integrity(data, text, "the script")
    with pytest.raises(ModelError, match="the script: its hash is sha384-"):
        trainweb.model.integrity.check_integrity(data + b" ", text, "the script")


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_right_hashes(algorithm: str) -> None:
    files = {"train_model": TRAIN, "eval_model": EVAL, "optimizer_model": OPTIMIZER}
    open_session({name: hash_of(path, algorithm) for name, path in files.items()})
    trainweb.CheckpointState.load_checkpoint(CHECKPOINT, integrity=hash_of(CHECKPOINT, algorithm))
    trainweb.CheckpointState.load_checkpoint(CHECKPOINT.read_bytes(), integrity=hash_of(CHECKPOINT, algorithm))
    assert read_model(EVAL, integrity=hash_of(EVAL, algorithm)).nodes
    trainweb.InferenceSession(MLP / "base.onnx", integrity=hash_of(MLP / "base.onnx", algorithm)).release()


@pytest.mark.parametrize("name", ["train_model", "eval_model", "optimizer_model"])
def test_other_hashes(name: str) -> None:
    with pytest.raises(ModelError, match=r"its hash is sha256-.* and integrity wants sha256-"):
        open_session({name: hash_of(CHECKPOINT)})


def test_other_hashes_of_checkpoints_and_models() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint: its hash is sha512-"):
        trainweb.CheckpointState.load_checkpoint(CHECKPOINT, integrity=hash_of(TRAIN, "sha512"))
    with pytest.raises(ModelError, match="the model: its hash is sha256-"):
        trainweb.InferenceSession(MLP / "base.onnx", integrity=hash_of(TRAIN))


def test_hashes_of_forward_models() -> None:
    base = MLP / "base.onnx"
    for given in (base, base.read_bytes()):
        assert build_artifacts(given, loss="CrossEntropyLoss", integrity=hash_of(base)).training_model
        with pytest.raises(ModelError, match="the model: its hash is sha256-"):
            build_artifacts(given, loss="CrossEntropyLoss", integrity=hash_of(TRAIN))


def test_of_several_hashes_the_strongest_kind_counts() -> None:
    right, wrong = hash_of(EVAL), hash_of(TRAIN)
    assert read_model(EVAL, integrity=f"{wrong}  {right}\n").nodes
    assert read_model(EVAL, integrity=f"{wrong} {hash_of(EVAL, 'sha512')}").nodes
    with pytest.raises(ModelError):
        read_model(EVAL, integrity=f"{right} {hash_of(TRAIN, 'sha384')}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "sha256-",
        "sha256-abc",
        "md5-1B2M2Y8AsgTpgAmY7PhCfg==",
        "abc",
        5,
        f"{hash_of(EVAL)} x",
        "sha256-" + "=" * 44,
    ],
)
def test_texts_that_protect_nothing(text: Any) -> None:
    for call in (
        lambda: read_model(EVAL, integrity=text),
        lambda: open_session({"eval_model": text}),
        lambda: trainweb.CheckpointState.load_checkpoint(CHECKPOINT, integrity=text),
    ):
        with pytest.raises(TypeError, match="integrity"):
            call()


@pytest.mark.parametrize("given", [hash_of(EVAL), 5, {"model": hash_of(EVAL)}, {"checkpoint": hash_of(CHECKPOINT)}])
def test_names_that_are_no_files(given: Any) -> None:
    with pytest.raises(TypeError, match="train_model, eval_model, optimizer_model"):
        open_session(given)


def test_a_hash_of_a_file_that_is_not_given() -> None:
    state = trainweb.CheckpointState.load_checkpoint(CHECKPOINT)
    with pytest.raises(TypeError, match="'eval_model', which is not given"):
        trainweb.TrainingSession(state, TRAIN, options={"integrity": {"eval_model": hash_of(EVAL)}})
