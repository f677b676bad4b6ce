"""Metrics that are functions, against the built-in ones of the same formula and against numpy."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.errors import ModelError, SessionError

RNG = np.random.default_rng(11)
ROWS = 37
X = RNG.standard_normal((ROWS, 5)).astype(np.float32)
LABELS = RNG.integers(0, 3, ROWS)
DATA = {"x": X, "labels": LABELS}
MODEL = make_model(
    [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "head")],
    {"x": ["n", 5]},
    {"y": ["n", 3]},
    {"w": normal(5, 3), "b": normal(3, seed=1)},
)
SETTINGS: dict[str, Any] = {"batch_size": 8, "progress": False}


@pytest.fixture
def session() -> Iterator[trainweb.TrainingSession]:
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", learning_rate=0.05) as session:
        yield session


def share_right(predictions: np.ndarray, targets: np.ndarray) -> float:
    return float(np.mean(predictions.argmax(1) == targets))


def test_they_get_all_rows_and_equal_the_metric_of_the_same_formula(session: trainweb.TrainingSession) -> None:
    given: list[Any] = []

    def spread(predictions: np.ndarray, targets: np.ndarray) -> Any:
        given[:] = predictions, targets
        return np.float32(predictions.max() - predictions.min())

    metrics: list[Any] = ["accuracy", {"mine": share_right, "spread": spread}, "auc"]
    found = session.evaluate(DATA, metrics=metrics, batch_size=8)
    logits = X @ session.get_parameter("w") + session.get_parameter("b")
    predictions, targets = given
    np.testing.assert_allclose(predictions, logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(targets, LABELS)
    assert targets.dtype == np.int64 and list(found) == ["loss", "accuracy", "auc", "mine", "spread"]
    assert found["mine"] == found["accuracy"] == np.mean(logits.argmax(1) == LABELS)
    assert found["spread"] == pytest.approx(np.ptp(logits), rel=1e-5)
    # Whatever the batches are, and with or without other metrics.
    assert session.evaluate(DATA, metrics={"mine": share_right}, batch_size=ROWS)["mine"] == found["mine"]


def test_a_fit_reports_them_and_stops_by_them(session: trainweb.TrainingSession) -> None:
    values = iter([1.0, 3.0, 2.0, 2.0, 9.0])
    metrics = [{"mine": share_right}, {"other": lambda p, t: next(values)}, "accuracy"]
    early = {"patience": 2, "metric": "other", "mode": "max"}
    options = {**SETTINGS, "validation_data": DATA, "metrics": metrics, "early_stopping": early}
    history = session.fit(DATA, epochs=5, **options)
    assert history["val_mine"] == history["val_accuracy"] and history["val_other"] == [1.0, 3.0, 2.0, 2.0]
    assert (history.ended, history.best_epoch) == ("early", 2)
    values = iter([1.0, 3.0, 2.0, 2.0, 9.0])
    history = session.fit(DATA, epochs=5, **options | {"early_stopping": {**early, "mode": "min"}})
    assert (history.ended, history.best_epoch, len(history.epochs)) == ("early", 1, 3)


def test_mode_is_known_of_other_metrics_and_may_be_given(session: trainweb.TrainingSession) -> None:
    options = {**SETTINGS, "validation_data": DATA, "metrics": [{"mine": share_right}, "accuracy"], "learning_rate": 0}
    early = {"patience": 1, "metric": "mine"}
    with pytest.raises(ModelError, match="early_stopping needs the setting 'mode': min or max"):
        session.fit(DATA, early_stopping=early, **options)
    with pytest.raises(ModelError, match="mode is 'more'; it must be min or max"):
        session.fit(DATA, early_stopping={**early, "mode": "more"}, **options)
    for mode in (None, "max"):
        history = session.fit(
            DATA, early_stopping={"patience": 1, "metric": "accuracy", "mode": mode}, epochs=3, **options
        )
        assert (history.ended, history.best_epoch) == ("early", 1)


def failing(predictions: np.ndarray, targets: np.ndarray) -> float:
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (failing, "The metric 'mine' failed: KeyError: 'nothing'"),
        (lambda p, t: "much", "The metric 'mine' returned a value of type str; it must return one number"),
        (lambda p, t: None, "returned a value of type NoneType"),
        (lambda p, t: True, "returned a value of type bool"),
        (lambda p, t: p, "returned a value of type ndarray"),
        (lambda p, t: np.float32("nan"), "The metric 'mine' returned NaN; it must return one number that is not NaN."),
    ],
)
def test_a_function_that_gives_no_number_is_named(session: trainweb.TrainingSession, function: Any, text: str) -> None:
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        session.evaluate(DATA, metrics={"mine": function})
    assert function is not failing or isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ModelError, match=re.escape(text)):
        session.fit(DATA, validation_data=DATA, metrics={"mine": function}, **SETTINGS)
    assert np.isfinite(session.evaluate(DATA)["loss"])


def test_numbers_of_any_kind(session: trainweb.TrainingSession) -> None:
    numbers: dict[str, Any] = {"a": 3, "b": np.int64(4), "c": np.array(0.5), "d": float("inf")}
    found = session.evaluate(DATA, metrics={name: lambda p, t, x=x: x for name, x in numbers.items()})
    assert [found[name] for name in numbers] == [3.0, 4.0, 0.5, np.inf]


def test_names(session: trainweb.TrainingSession) -> None:
    with pytest.raises(ModelError, match="The metric 'accuracy' is given twice"):
        session.evaluate(DATA, metrics=["accuracy", {"accuracy": share_right}])
    with pytest.raises(ModelError, match="the name of a metric is 'loss'; it must be a text other than 'loss'"):
        session.evaluate(DATA, metrics={"loss": share_right})
    with pytest.raises(ModelError, match="metric needs the setting 'type'"):
        session.evaluate(DATA, metrics={"mine": 3})
    with pytest.raises(TypeError, match="There is no metric 'rows'"):
        session.evaluate(DATA, metrics="rows")
    with pytest.raises(ModelError, match="Metrics need validation data"):
        session.fit(DATA, metrics={"mine": share_right}, **SETTINGS)


def test_batches_that_cannot_be_joined_are_refused() -> None:
    node = helper.make_node("Identity", ["x"], ["y"], "same")
    scaled = helper.make_node("Mul", ["y", "w"], ["z"], "product")
    model = make_model([node, scaled], {"x": ["n", "t"]}, {"z": ["n", "t"]}, {"w": np.ones(1, np.float32)})
    batches = [{"x": np.ones((2, t), np.float32), "target": np.ones((2, t), np.float32)} for t in (3, 4)]
    with (
        trainweb.TrainingSession.from_model(model, loss="MSELoss") as session,
        pytest.raises(SessionError, match=r"has the shapes \[2, 3\], \[2, 4\] in different batches"),
    ):
        session.evaluate(batches, metrics={"mine": lambda p, t: 1.0}, batched=True)
