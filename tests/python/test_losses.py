"""Losses and their gradients against torch's in float64."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model
from tests.python.sessions import error_of

import trainweb
from trainweb.artifacts import LossType, build_artifacts
from trainweb.errors import ModelError
from trainweb.onnxblock.loss import LOSSES
from trainweb.settings import fields_of

GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
CASES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
ARRAYS = np.load(GOLDEN / "expected.npz")


def outputs_of(title: str) -> list[np.ndarray]:
    return [ARRAYS[name] for name in ARRAYS.files if name.startswith(f"{title}/output")]


def model(outputs: list[np.ndarray], opset: int) -> Any:
    """y<k> = x + w<k>: the gradient by the parameter w<k> is that by the output."""
    return make_model(
        [helper.make_node("Add", ["x", f"w{k}"], [f"y{k}"], f"add{k}") for k in range(len(outputs))],
        {"x": list(outputs[0].shape)},
        {f"y{k}": list(y.shape) for k, y in enumerate(outputs)},
        {f"w{k}": y for k, y in enumerate(outputs)},
        opset=opset,
    )


@pytest.mark.parametrize("title", CASES)
@pytest.mark.parametrize("opset", [12, 17, 20])
def test_a_loss_is_that_of_torch_and_so_is_its_gradient(title: str, opset: int) -> None:
    outputs = outputs_of(title)
    built = build_artifacts(
        model(outputs, opset), [f"w{k}" for k in range(len(outputs))], loss=CASES[title], optimizer="SGD"
    )
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, built.eval_model, built.optimizer_model) as s:
        feeds = {"x": np.zeros_like(outputs[0])}
        for name in set(s.input_names()) - {"x"}:
            feed = f"{title}/feed/{name}"
            names = feed, f"{title}/feed/targets", f"{title}/target"
            feeds[name] = next(ARRAYS[one] for one in names if one in ARRAYS)
        (loss,) = s.train_step(feeds).values()
        np.testing.assert_allclose(loss, ARRAYS[f"{title}/loss"], rtol=1e-5, atol=1e-6)
        assert loss.shape == ()
        for k in range(len(outputs)):
            gradient = state.parameters[f"w{k}"].grad
            np.testing.assert_allclose(gradient, ARRAYS[f"{title}/gradient{k}"], rtol=2e-5, atol=1e-6)


def focal(scores: np.ndarray, labels: np.ndarray, gamma: float, weight: list[float], ignored: int) -> float:
    """Lin et al., equation 5, row by row, over the counted rows."""
    each = []
    for row, label in zip(scores.reshape(-1, scores.shape[-1]), labels.ravel(), strict=True):
        if label != ignored:
            p = np.exp(row[label] - row.max()) / np.exp(row - row.max()).sum()
            each.append(-weight[label] * (1 - p) ** gamma * np.log(p))
    return float(np.mean(each))


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
def test_focal_loss_leaves_out_labels_and_rows_that_are_certain_have_no_gradient(gamma: float) -> None:
    """A probability that is 1 in float32, where (1 - p) ** gamma is infinitely steep, or 0 / 0."""
    rng, weight = np.random.default_rng(3), [0.5, 2.0, 1.0, 0.25]
    scores = rng.standard_normal((3, 2, 4)).astype(np.float32)
    labels = np.array([[1, -7], [3, 0], [2, 1]])
    scores[2, 0] = [0, 0, 90, 0]
    settings = {"type": "FocalLoss", "gamma": gamma, "weight": weight, "ignore_index": -7}
    built = build_artifacts(model([scores], 17), ["w0"], loss=settings, optimizer="SGD")
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, None, built.optimizer_model) as s:
        (loss,) = s.train_step({"x": np.zeros_like(scores), "labels": labels}).values()
        gradient = state.parameters["w0"].grad
    exact = scores.astype(np.float64)
    np.testing.assert_allclose(loss, focal(exact, labels, gamma, weight, -7), rtol=1e-5)
    slopes = np.zeros(exact.shape)
    for at in np.ndindex(*exact.shape):
        if at[:2] != (2, 0):
            moved = [exact.copy() for _ in range(2)]
            moved[0][at] += 1e-5
            moved[1][at] -= 1e-5
            slopes[at] = np.subtract(*(focal(x, labels, gamma, weight, -7) for x in moved)) / 2e-5
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"weight": [0.5, 2.0, 1.0, 0.25]}, {"label_smoothing": 0.2}])
@pytest.mark.parametrize(("shape", "axis"), [((6, 4), -1), ((6, 4, 3), 1)])
def test_metrics_compare_the_likeliest_classes(settings: dict[str, Any], shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(5)
    scores, labels = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    labels = np.exp(labels) / np.exp(labels).sum(axis, keepdims=True)
    kind = {"type": "CrossEntropyLoss", "probabilities": True, "class_axis": axis, **settings}
    with trainweb.TrainingSession.from_model(model([scores], 17), loss=kind, requires_grad=["w0"]) as session:
        results = session.evaluate({"x": np.zeros_like(scores), "labels": labels}, metrics=["accuracy"], batch_size=6)
    assert results["accuracy"] == np.mean(scores.argmax(axis) == labels.argmax(axis))


def test_probabilities_have_no_label_to_ignore() -> None:
    settings = {"type": "CrossEntropyLoss", "probabilities": True, "ignore_index": 0}
    with pytest.raises(trainweb.errors.ModelError, match="left out with probabilities"):
        build_artifacts(model([np.zeros((2, 3), np.float32)], 17), loss=settings)


def test_every_loss_was_recorded() -> None:
    assert {case["type"] for case in CASES.values()} == set(LOSSES)


def test_names_are_those_of_onnxruntime_and_then_our_own() -> None:
    first = ["MSELoss", "CrossEntropyLoss", "BCEWithLogitsLoss", "L1Loss"]
    assert [(kind.name, kind.value) for kind in LossType][:4] == list(zip(first, (1, 2, 3, 4), strict=True))
    assert [kind.name for kind in LossType] == list(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_all_arguments_are_settings(name: str) -> None:
    assert list(fields_of(LOSSES[name])) == list(signature(LOSSES[name]).parameters) and LOSSES[name].__doc__
    LOSSES[name]()


WRONG: list[tuple[Any, str]] = [
    ({"type": "CrossEntropyLoss", "label_smoothing": 1.5}, "label_smoothing is 1.5; it must be a number at least 0"),
    (
        {"type": "CrossEntropyLoss", "weight": "a"},
        "weight is 'a'; it must be an array of finite numbers, one for each class in their order",
    ),
    ({"type": "CrossEntropyLoss", "weight": {0: 1, 1: 2}}, "one for each class in their order"),
    ({"type": "CrossEntropyLoss", "weight": [1.0, float("nan"), 1.0, 1.0]}, "weight is"),
    ({"type": "CrossEntropyLoss", "ignore_index": 1.5}, "ignore_index is 1.5; it must be an integer"),
    ({"type": "HuberLoss", "delta": 0}, "delta is 0; it must be a number greater than 0"),
    ({"type": "SmoothL1Loss", "delta": 1}, "SmoothL1Loss has no setting 'delta'; did you mean 'beta'"),
    ({"type": "KLDivLoss", "log_target": 1}, "log_target is 1; it must be true or false"),
    ({"type": "TripletMarginLoss"}, "TripletMarginLoss takes 3 of the model's outputs, but these are given: y0"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_is_no_loss_is_refused(given: Any, said: str) -> None:
    with pytest.raises(error_of(said), match=said):
        build_artifacts(model(outputs_of("MSELoss"), 17), loss=given, optimizer="SGD")


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("kind", ["MSELoss", "HuberLoss", "Mine"])
def test_a_loss_of_another_library_is_named_and_a_function_has_a_gradient(kind: str, by_output: bool) -> None:
    """`torch.nn.HuberLoss()` is an object of a class of our name."""
    other = type(kind, (), {"__call__": print})()
    nearest = "MSELoss" if kind == "Mine" else kind
    said = f"such as '{nearest}', .* goes to 'OutputGradient'"
    with pytest.raises(ModelError, match=said):
        build_artifacts(model([np.ones((2, 1), np.float32)], 17), loss={"y0": other} if by_output else other)
