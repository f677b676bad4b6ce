"""Files that fix the rows of a batch: all rows are evaluated once, against float64, and whole batches train."""

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.data import Dataset
from trainweb.errors import FeedError, ModelError

RNG = np.random.default_rng(2)
N = 31
W = normal(3, 3)
X, TARGET = (RNG.standard_normal((N, 3)).astype(np.float32) for _ in range(2))
LABELS = RNG.integers(0, 3, N)
SCORES = X.astype(np.float64) @ W
WEIGHTS = np.array([1.0, 2.0, 3.0])
CLASSES, NUMBERS = {"x": X, "labels": LABELS}, {"x": X, "target": TARGET}
SIZES = [1, 4, 6, 7, 64]


def net(rows: int | str) -> Any:
    """x[rows, 3] -> MatMul = y[rows, 3]."""
    return make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [rows, 3]}, {"y": [rows, 3]}, {"w": W})


def opened(rows: int | str, loss: Any = "CrossEntropyLoss") -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(net(rows), loss=loss, optimizer="SGD", options={"reproducible": True})


def entropies() -> np.ndarray:
    each: np.ndarray = np.log(np.exp(SCORES).sum(1)) - SCORES[np.arange(N), LABELS]
    return each


@pytest.mark.parametrize("rows", SIZES)
def test_classes_are_evaluated_once_each(rows: int) -> None:
    seen = []

    def own(predictions: np.ndarray, targets: np.ndarray) -> float:
        seen.append((predictions, targets))
        return 0.0

    with opened(rows) as s:
        found = s.evaluate(CLASSES, metrics=["accuracy", "auc", "confusionMatrix", "perplexity", {"own": own}])
    matrix = np.zeros((3, 3), int)
    np.add.at(matrix, (LABELS, SCORES.argmax(1)), 1)
    assert found["loss"] == pytest.approx(entropies().mean(), rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(entropies().mean()), rel=1e-6)
    assert found["confusionMatrix"] == matrix.tolist() and found["accuracy"] == np.trace(matrix) / N
    ((predictions, targets),) = seen
    np.testing.assert_allclose(predictions, SCORES, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(targets, LABELS)
    shares = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    pairs = [np.sign(shares[c == LABELS, c][:, None] - shares[c != LABELS, c]).mean() / 2 + 0.5 for c in range(3)]
    assert found["auc"] == pytest.approx(np.mean(pairs), rel=1e-12)


@pytest.mark.parametrize("rows", SIZES)
def test_weights_and_ignored_labels_count_once_each(rows: int) -> None:
    loss = {"type": "CrossEntropyLoss", "ignore_index": 1, "weight": WEIGHTS.tolist()}
    with opened(rows, loss) as s:
        found = s.evaluate(CLASSES, metrics={"type": "accuracy", "ignore_index": 1})
    counted = LABELS != 1
    each = np.where(counted, WEIGHTS[LABELS], 0)
    assert found["loss"] == pytest.approx((each * entropies()).sum() / each.sum(), rel=1e-6)
    assert found["accuracy"] == pytest.approx((SCORES.argmax(1) == LABELS)[counted].mean(), rel=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", SIZES)
def test_numbers_are_evaluated_once_each(rows: int, reduction: str) -> None:
    with opened(rows, {"type": "MSELoss", "reduction": reduction}) as s:
        found = s.evaluate(NUMBERS, metrics=["mae", "r2"])
    errors = SCORES - TARGET
    loss = (errors**2).mean() if reduction == "mean" else (errors**2).sum() / N
    explained = 1 - (errors**2).sum(0) / ((TARGET - TARGET.astype(np.float64).mean(0)) ** 2).sum(0)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-6)
    assert found["r2"] == pytest.approx(explained.mean(), rel=1e-5)


@pytest.mark.parametrize("rows", SIZES)
def test_all_rows_are_predicted(rows: int) -> None:
    with opened(rows) as s:
        for data in (X, X[:2], [X[:3]], Dataset({"x": X}).batch(rows), [{"x": row} for row in X]):
            (found,) = s.predict(data if not isinstance(data, list) or len(data) > 1 else data[0]).values()
            np.testing.assert_allclose(found, SCORES[: len(found)], rtol=1e-5, atol=1e-6)
        assert len(found) == N


@pytest.mark.parametrize("rows", [4, 7])
@pytest.mark.parametrize("form", ["arrays", "rows", "batches"])
def test_whole_batches_train(rows: int, form: str) -> None:
    """The same bytes as of a model of any size that drops the rest; validation data and metrics have all rows."""
    training, held = 25, {"x": X[25:], "labels": LABELS[25:]}
    columns = {"x": X[:training], "labels": LABELS[:training]}
    each = [{"x": x, "labels": label} for x, label in zip(X[:training], LABELS[:training], strict=True)]
    parts = [{n: v[k : k + rows] for n, v in columns.items()} for k in range(0, training, rows)]
    data = {"arrays": columns, "rows": lambda: each, "batches": lambda: parts}[form]
    options: dict[str, Any] = {"epochs": 2, "learning_rate": 0.1, "progress": False, "shuffle": form == "arrays"}
    with opened("n") as s:
        expected = s.fit(columns, batch_size=rows, remainder="drop", **options)
        weights = s.get_contiguous_parameters().tobytes()
        values = s.evaluate(held, metrics="accuracy")
    with opened(rows) as s, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        more = {"train_metrics": True} if form == "arrays" else {}
        history = s.fit(data, validation_data=held, metrics="accuracy", **options, **more)
        assert history.losses == expected.losses and history["loss"] == expected["loss"]
        assert s.get_contiguous_parameters().tobytes() == weights
    assert history["val_accuracy"][-1] == values["accuracy"]
    assert history["val_loss"][-1] == pytest.approx(values["loss"], rel=1e-6)
    (text,) = {str(w.message) for w in caught}
    assert f"batches of {rows} rows" in text and f"leaves out {training % rows} of its rows" in text


def test_a_remainder_that_was_asked_for_trains_without_a_word() -> None:
    with opened(4) as s, warnings.catch_warnings():
        warnings.simplefilter("error")
        for remainder, batches in (("drop", 7), ("pad", 8)):
            assert len(s.fit(CLASSES, remainder=remainder, progress=False).losses) == batches
        s.fit({n: v[:28] for n, v in CLASSES.items()}, progress=False)


def test_another_size_than_the_file_s_is_refused_by_name() -> None:
    text = r"it must be 4, which the first axis of the input 'x' fixes in the file: leave it out \('accumulate' of fit"
    with opened(4) as s:
        before = s.get_contiguous_parameters().tobytes()
        calls = (s.fit, s.evaluate, s.predict, s.find_learning_rate)
        for call in calls:
            with pytest.raises(ModelError, match=text):
                call(CLASSES, batch_size=8)
        assert s.get_contiguous_parameters().tobytes() == before
        assert len(s.find_learning_rate(CLASSES, steps=20).losses) > 1
        s.fit(CLASSES, batch_size=4, remainder="drop", progress=False)
        with pytest.raises(FeedError, match="4 rows"):
            s.fit({n: v[:3] for n, v in CLASSES.items()}, progress=False)
    with opened("n") as s:
        s.fit(CLASSES, batch_size=8, progress=False)


def test_a_bad_label_in_a_part_is_located() -> None:
    labels = LABELS.copy()
    labels[29] = 7
    with (
        opened(4) as s,
        pytest.raises(FeedError, match=r"'labels' of row 29 of the data is out of range \(batch 8\)\. ") as caught,
    ):
        s.evaluate({"x": X, "labels": labels})
    assert (caught.value.epoch, caught.value.batch) == (None, 8)


def test_pairs_of_texts_stay_together() -> None:
    """DPO compares rows by two: a part that is repeated has whole pairs."""
    ids, labels = RNG.integers(0, 5, (10, 6)), RNG.integers(0, 5, (10, 6))
    rows = {"ids": ids, "labels": labels, "reference": RNG.standard_normal(10).astype(np.float32)}
    found = []
    for size in (4, "n"):
        model = make_model(
            [helper.make_node("Gather", ["table", "ids"], ["logits"])],
            {"ids": [size, 6]},
            {"logits": [size, 6, 5]},
            {"table": normal(5, 5)},
            types={"ids": 7},
        )
        with trainweb.TrainingSession.from_model(model, loss="DPOLoss", optimizer="SGD") as s:
            found.append(s.evaluate(rows)["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
