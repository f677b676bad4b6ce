"""Equal parameters and statistics that an exporter made one tensor of train apart (`tests/golden/merged`)."""

import io
import re
import tarfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.artifacts.evidence import lost_parameters
from trainweb.artifacts.recover import recover_parameters
from trainweb.errors import GradientError, ModelError
from trainweb.model.reader import read_model

RECORDED = Path(__file__).parents[1] / "golden" / "merged"
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 2e-5}


@cache
def recorded() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in RECORDED.glob("*.tar.xz"):
        with tarfile.open(path, "r:xz") as archive:
            files |= {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    return files


CASES = sorted(name.removesuffix(".onnx") for name in recorded() if name.endswith(".onnx"))


def truth(case: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(recorded()[f"{case}.npz"])) as arrays:
        return dict(arrays)


def start(case: str, **settings: object) -> trainweb.TrainingSession:
    norm = "as_exported" if "statistics" in case and case.endswith("eval") else "train"
    settings = {"loss": "MSELoss", "optimizer": "SGD", "batch_norm": norm, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "batch_norm='(train|as_exported)' changes nothing")
        return trainweb.TrainingSession.from_model(recorded()[f"{case}.onnx"], **settings)  # type: ignore[arg-type]


def steps(session: trainweb.TrainingSession, arrays: dict[str, np.ndarray]) -> list[float]:
    session.set_learning_rate(0.05)
    feeds = dict(zip(session.input_names(), (arrays["x"], arrays["target"]), strict=True))
    losses = []
    for _ in arrays["losses"]:
        losses.append(float(next(iter(session.train_step(feeds).values()))))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


@pytest.mark.parametrize("case", CASES)
def test_a_module_that_was_never_trained_trains_as_in_pytorch(case: str) -> None:
    arrays = truth(case)
    with start(case) as session:
        np.testing.assert_allclose(steps(session, arrays), arrays["losses"], **CLOSE)
        names = session.parameter_names()
        other = {"b.weight": "a.weight"} if case.startswith("tied") else {}  # of two names of one parameter, the first
        expected = {key.removeprefix("after/"): value for key, value in arrays.items() if key.startswith("after/")}
        lacking = "running" if case.endswith("eval") and "statistics" in case else "mask"
        assert {other.get(name, name) for name in names} == {name for name in expected if lacking not in name}
        for name in names:
            value, right = session.get_parameter(name), expected[other.get(name, name)]
            turned = value.ndim == 2 and value.T.shape == right.shape and np.allclose(value.T, right, **CLOSE)
            np.testing.assert_allclose(value.T if turned else value, right, **CLOSE, err_msg=name)
        np.testing.assert_allclose(session.predict({"x": arrays["x"]})["y"], arrays["y"], **CLOSE)
        exported = session.export_model_for_inferencing(None, ["y"])
    (found,) = infer(exported, {"x": arrays["x"]})
    np.testing.assert_allclose(found, arrays["y"], **CLOSE)


def test_running_statistics_are_buffers_again(tmp_path: Path) -> None:
    report = trainweb.check(recorded()["dense/train.onnx"], loss="MSELoss")
    assert [d.name for d in report.left_out] == ["2.running_mean", "2.running_var", "5.running_mean", "5.running_var"]
    assert not report.doubtful
    with start("dense/train") as session:
        steps(session, truth("dense/train"))
        mean = session.get_parameter("2.running_mean").copy()
        trainweb.CheckpointState.save_checkpoint(session.state, tmp_path / "checkpoint")
    saved = trainweb.CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters
    np.testing.assert_array_equal(saved["2.running_mean"].data, mean)


def test_a_merged_scale_is_frozen_by_its_name() -> None:
    arrays = truth("dense/train")
    with start("dense/train", frozen_params=["2.weight", "2.bias"]) as session:
        steps(session, arrays)
        np.testing.assert_array_equal(session.get_parameter("2.weight"), np.ones(4, np.float32))
        assert not np.array_equal(session.get_parameter("2.running_var"), np.ones(4, np.float32))
        assert not np.array_equal(session.get_parameter("5.weight"), np.ones(4, np.float32))


def test_notes_on_calls_are_not_in_artifacts() -> None:
    artifacts = build_artifacts(recorded()["copied/train.onnx"], loss="MSELoss")
    assert b"%p_b_weight" in recorded()["copied/train.onnx"]
    assert b"%p_b_weight" not in artifacts.training_model + artifacts.eval_model


@pytest.mark.parametrize(
    ("argument", "other", "named"), [("%ones", "%clone", "clone"), ("%p_gamma_2", "%view", "gamma_2")]
)
def test_what_the_notes_do_not_tell_is_warned_of(argument: str, other: str, named: str) -> None:
    graph = read_model(recorded()["vectors/train.onnx"])
    for node in graph.nodes:
        node.notes = {key: re.sub(rf"{argument}\b", other, note) for key, note in node.notes.items()}
    (decision,) = lost_parameters(recover_parameters(graph))
    assert decision.name == named
    assert decision.doubtful and "optimize=False" in decision.reason


def test_errors_on_merged_tensors_say_how_to_export() -> None:
    with pytest.raises(GradientError, match="optimize=False"):
        start("dense/train", requires_grad=["2.running_mean"])
    lost = recorded()["vectors/train.onnx"].replace(b"%p_gamma_2", b"%p_gamma_3")
    with pytest.raises(ModelError, match=r"gamma_2 is not found.*optimize=False"):
        build_artifacts(lost, loss="MSELoss", requires_grad=["gamma_2"])
