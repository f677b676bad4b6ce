"""Metrics of the training data after each epoch, against evaluations by hand and numpy."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.errors import ModelError
from trainweb.training.history import Epoch

from .test_own_metrics import DATA, LABELS, MODEL, SETTINGS, X, share_right

OTHERS = {"x": X[:9] * 2, "labels": LABELS[:9]}
METRICS: list[Any] = ["accuracy", {"mine": share_right}]


@pytest.fixture
def session() -> Iterator[trainweb.TrainingSession]:
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", learning_rate=0.05) as session:
        yield session


def written_out(session: trainweb.TrainingSession) -> dict[str, float]:
    logits = X.astype(np.float64) @ session.get_parameter("w") + session.get_parameter("b")
    right = float(np.mean(logits.argmax(1) == LABELS))
    loss = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(X)), LABELS])
    return {"loss": pytest.approx(loss, rel=1e-5), "accuracy": right, "mine": right}


def test_they_are_of_all_training_rows_after_each_epoch(session: trainweb.TrainingSession) -> None:
    by_hand: list[Any] = []

    def note(event: Any, run: Any) -> None:
        if isinstance(event, Epoch):
            by_hand.append(written_out(session))

    # 37 rows: of the last 5, "drop" trains on none, but they are evaluated.
    options = {**SETTINGS, "metrics": METRICS, "train_metrics": True, "remainder": "drop", "callbacks": note}
    history = session.fit(DATA, epochs=3, validation_data=OTHERS, **options)
    assert [epoch.training for epoch in history.epochs] == by_hand
    assert history["train_accuracy"] == [values["accuracy"] for values in by_hand]
    last = history.epochs[-1]
    assert last.validation == session.evaluate(OTHERS, metrics=METRICS, batch_size=8) != last.training
    expected = ["loss", *(f"{of}_{n}" for of in ("val", "train") for n in by_hand[0]), "learning_rate"]
    assert history.names() == expected and "<th>train_mine</th>" in history._repr_html_()


def test_they_change_nothing_and_need_no_validation_data(session: trainweb.TrainingSession) -> None:
    start = session.get_contiguous_parameters(False)
    history = session.fit(DATA, epochs=2, train_metrics=True, metrics=METRICS, **SETTINGS)
    assert history.epochs[-1].training == written_out(session) and history.epochs[-1].validation is None
    found = session.get_contiguous_parameters(False)
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", learning_rate=0.05) as other:
        np.testing.assert_array_equal(other.get_contiguous_parameters(False), start)
        other.fit(DATA, epochs=2, **SETTINGS)
        np.testing.assert_array_equal(other.get_contiguous_parameters(False), found)
    with pytest.raises(ModelError, match="'accuracy'; it must be loss"):
        early = {"patience": 1, "metric": "accuracy"}
        session.fit(DATA, train_metrics=True, metrics="accuracy", early_stopping=early, **SETTINGS)


def test_a_checkpoint_keeps_them(session: trainweb.TrainingSession, tmp_path: Path) -> None:
    checkpoint = {"store": str(tmp_path), "name": "run"}
    metrics = [{"mine": share_right, "endless": lambda p, t: math.inf}]
    options: dict[str, Any] = {**SETTINGS, "train_metrics": True, "metrics": metrics, "checkpoint": checkpoint}
    first = session.fit(DATA, epochs=2, **options)
    again = session.fit(DATA, epochs=3, **options)
    assert again.epochs[:2] == first.epochs and len(again["train_mine"]) == 3
    assert again["train_endless"] == [math.inf] * 3


def test_a_stream_cannot_be_evaluated_again(session: trainweb.TrainingSession) -> None:
    def rows() -> Iterator[tuple[np.ndarray, np.int64]]:
        return zip(X, LABELS, strict=True)

    with pytest.raises(ModelError, match="'train_metrics' evaluates the training data again"):
        session.fit(rows, train_metrics=True, **SETTINGS)
    with pytest.raises(ModelError, match="train_metrics is 1; it must be true or false"):
        session.fit(DATA, train_metrics=1, **SETTINGS)
