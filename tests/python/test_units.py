"""Predictions and errors in the units of standardized targets. The oracles are formulas of numpy in float64."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset
from trainweb.data.table import in_units
from trainweb.errors import FeedError

ROWS = 50
DRAW = np.random.default_rng(9)
X = DRAW.standard_normal((ROWS, 3)).astype(np.float32)
PRICES = (DRAW.standard_normal((ROWS, 3)) * [9, 4e4, 1e-3] + [-7, 3e5, 0.1]).astype(np.float32)
STD, MEAN = PRICES.astype(float).std(0), PRICES.astype(float).mean(0)


def model(outputs: int = 3) -> Any:
    """x w = y."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], "product")]
    w = np.random.default_rng(outputs).standard_normal((3, outputs)).astype(np.float32)
    return make_model(nodes, {"x": ["n", 3]}, {"y": ["n", outputs]}, {"w": w})


def session(outputs: int = 3, **options: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(model(outputs), loss="MSELoss", optimizer="SGD", **options)


def worst(predictions: np.ndarray, targets: np.ndarray) -> float:
    return float(np.abs(predictions - targets).max())


def rmse(predictions: np.ndarray, targets: np.ndarray) -> float:
    return float(np.sqrt(((predictions.astype(float) - targets) ** 2).mean()))


METRICS: list[Any] = ["mae", "rmse", "r2", {"worst": worst, "own": rmse}]


@pytest.mark.parametrize("columns", [1, 3])
def test_predictions_and_errors_are_in_units(columns: int) -> None:
    prices = PRICES[:, :columns]
    rows = Dataset({"x": X, "target": prices}).standardize("x", "target")
    steps = json.loads(json.dumps(rows.preprocessing))
    assert rows.columns is not None
    with session(columns) as s:
        plain = s.predict(rows.columns)["y"]
        loss = s.evaluate(rows.columns)["loss"]
        units = plain.astype(float) * STD[:columns] + MEAN[:columns]
        for data in (rows, rows.batch(7), Dataset({"x": X}).preprocess(steps)):
            predicted = s.predict(data)["y"]
            assert predicted.dtype == np.float32
            np.testing.assert_allclose(predicted, units, rtol=1e-6, atol=1e-4)
        values = s.evaluate(rows, metrics=METRICS, batch_size=8)
        history = s.fit(
            rows, batch_size=8, learning_rate=0.0, validation_data=rows, metrics=METRICS, train_metrics=True
        )
    scores = 1 - ((units - prices) ** 2).sum(0) / ((prices - MEAN[:columns]) ** 2).sum(0)
    expected = {
        "loss": loss,
        "mae": np.abs(units - prices).mean(),
        "r2": scores.mean(),
        "worst": np.abs(units - prices).max(),
        "rmse": np.sqrt(((units - prices) ** 2).mean()),
        "own": np.sqrt(((units - prices) ** 2).mean()),
    }
    for found in (values, history.epochs[0].validation, history.epochs[0].training):
        assert found == pytest.approx(expected, rel=1e-5)


def test_batches_of_a_loader_may_have_one_value_a_row() -> None:
    with session(1) as s:
        found = s.evaluate([{"x": X[:8], "target": PRICES[:8, 0]}])
        assert found == s.evaluate({"x": X[:8], "target": PRICES[:8, :1]})


CASES: dict[str, tuple[Dataset, Any, Any]] = {
    "joined": (
        Dataset({"x": X, "labels": PRICES[:, :1], "b": PRICES[:, 1:]})
        .standardize("b", "labels")
        .concat("labels", ["labels", "b"]),
        STD,
        MEAN,
    ),
    "joined with another": (
        Dataset({"x": X, "labels": PRICES[:, :1], "b": PRICES[:, 1:]})
        .standardize("labels")
        .concat("labels", ["labels", "b"]),
        1,
        0,
    ),
    "twice, of another type": (
        Dataset({"x": X, "target": PRICES.astype(np.float64)})
        .standardize("target")
        .rows(np.arange(9))
        .standardize("target"),
        PRICES[:9].astype(float).std(0),
        PRICES[:9].astype(float).mean(0),
    ),
    "inputs only": (Dataset({"x": X, "target": PRICES}).standardize("x"), 1, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_units_follow_from_the_steps(case: str) -> None:
    rows, std, mean = CASES[case]
    assert rows.columns is not None
    with session() as s:
        plain = s.predict({"x": rows.columns["x"]})["y"].astype(float)
        np.testing.assert_allclose(s.predict(rows)["y"], plain * std + mean, rtol=1e-5, atol=1e-4)


def test_a_row_of_another_width_is_an_error() -> None:
    rows = Dataset({"x": X, "target": PRICES}).standardize("target")
    first = rows.map(lambda row: {"x": row["x"], "target": row["target"][:1]})
    with session(1) as s:
        for call in (lambda: s.predict(first), lambda: s.evaluate(first, metrics="mae")):
            with pytest.raises(FeedError, match="has 1 values in a row; the preprocessing was fitted on 3"):
                call()


def test_outputs_have_the_units_of_their_own_labels() -> None:
    nodes = [helper.make_node("MatMul", ["x", name], [name + "_out"], name) for name in ("a", "b")]
    weights = {name: DRAW.standard_normal((3, 1)).astype(np.float32) for name in ("a", "b")}
    both = make_model(nodes, {"x": ["n", 3]}, {"a_out": ["n", 1], "b_out": ["n", 1]}, weights)
    rows = Dataset({"x": X, "a_out_labels": PRICES[:, :1], "b_out_labels": PRICES[:, 1:2]}).standardize("b_out_labels")
    assert rows.columns is not None
    loss = {"a_out": "MSELoss", "b_out": "L1Loss"}
    with trainweb.TrainingSession.from_model(both, loss=loss, optimizer="SGD") as s:
        plain, found = s.predict({"x": X}), s.predict(rows)
        values = s.evaluate(rows, metrics={"a_out": "mae", "b_out": "mae"})
        losses = s.evaluate(rows.columns)
    np.testing.assert_array_equal(found["a_out"], plain["a_out"])
    units = plain["b_out"].astype(float) * STD[1] + MEAN[1]
    np.testing.assert_allclose(found["b_out"], units, rtol=1e-6)
    assert values == pytest.approx(
        {
            **losses,
            "a_out_mae": np.abs(plain["a_out"] - PRICES[:, :1]).mean(),
            "b_out_mae": np.abs(units - PRICES[:, 1:2]).mean(),
        },
        rel=1e-5,
    )


def test_artifacts_without_notes_know_what_their_loss_compares() -> None:
    files = build_artifacts(model(1), loss="MSELoss", optimizer="SGD")
    evaluation = onnx.load_from_string(files.eval_model)
    del evaluation.metadata_props[:]
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    rows = Dataset({"x": X, "labels": PRICES[:, :1]}).standardize("labels")
    with trainweb.TrainingSession(
        state, files.training_model, evaluation.SerializeToString(), files.optimizer_model
    ) as s:
        plain = s.predict({"x": X})["y"].astype(float)
        np.testing.assert_allclose(s.predict(rows)["y"], plain * STD[0] + MEAN[0], rtol=1e-6)
        mae = s.evaluate(rows, metrics="mae")["mae"]
    assert mae == pytest.approx(np.abs(plain * STD[0] + MEAN[0] - PRICES[:, :1]).mean(), rel=1e-5)


def test_labels_of_half_precision_are_refused_by_name() -> None:
    unit = np.ones(1), np.zeros(1)
    with pytest.raises(FeedError, match="'y' is float16; the step 'standardize' takes"):
        in_units("y", np.zeros((2, 1), np.float16), unit)
