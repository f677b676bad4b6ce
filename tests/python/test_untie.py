"""Equal parameters that the dynamo exporter made one tensor of train apart, as in PyTorch (`tests/golden/merged`)."""

from __future__ import annotations

import io
import tarfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import trainweb

RECORDED = Path(__file__).parents[1] / "golden" / "merged" / "recorded.tar.xz"
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@cache
def recorded() -> dict[str, bytes]:
    with tarfile.open(RECORDED, "r:xz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]


CASES = sorted(name.removesuffix(".onnx") for name in recorded() if name.endswith(".onnx"))


def truth(case: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(recorded()[f"{case}.npz"])) as arrays:
        return dict(arrays)


def start(case: str, **settings: object) -> trainweb.TrainingSession:
    norm = "as_exported" if case.startswith("statistics") else "train"
    settings = {"loss": "MSELoss", "optimizer": "SGD", "batch_norm": norm, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
        constant = "running" if case.startswith("statistics") else "mask"
        assert {other.get(name, name) for name in names} == {name for name in expected if constant not in name}
        for name in names:
            value, right = session.get_parameter(name), expected[other.get(name, name)]
            turned = value.ndim == 2 and np.allclose(value.T, right, **CLOSE)
            np.testing.assert_allclose(value.T if turned else value, right, **CLOSE, err_msg=name)
        np.testing.assert_allclose(session.predict({"x": arrays["x"]})["y"], arrays["y"], **CLOSE)
        exported = session.export_model_for_inferencing(None, ["y"])
    (found,) = trainweb.InferenceSession(exported).run(None, {"x": arrays["x"]})
    np.testing.assert_allclose(found, arrays["y"], **CLOSE)
