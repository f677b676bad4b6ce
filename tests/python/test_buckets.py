"""Batches of buckets: predictions in the order of the rows, and the numbers that fill up shorter rows."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model, normal
from tests.python.test_session_tasks import tokens

import trainweb
from trainweb.data import Dataset
from trainweb.errors import ModelError

TABLE = np.concatenate([np.zeros((1, 4), np.float32), normal(8, 4)])
"""Token 0 is padding, and adds nothing to the sum."""
W = normal(4, 3, seed=1)
SUMS = make_model(
    [
        helper.make_node("Gather", ["table", "ids"], ["x"], "embedding"),
        helper.make_node("ReduceSum", ["x", "axes"], ["sums"], "sum", keepdims=0),
        helper.make_node("MatMul", ["sums", "w"], ["logits"], "head"),
    ],
    {"ids": ["n", "t"]},
    {"logits": ["n", 3]},
    {"table": TABLE, "w": W, "axes": np.array([1])},
    types={"ids": TensorProto.INT64},
)
LENGTHS = (5, 2, 5, 2, 2, 8, 1, 7, 6, 3, 2)
ROWS: list[dict[str, Any]] = [
    {"ids": (np.arange(n) * (k + 3)) % 8 + 1, "labels": np.int64(k % 3)} for k, n in enumerate(LENGTHS)
]
SCORES = np.stack([TABLE[row["ids"]].sum(0).astype(np.float64) @ W for row in ROWS])


def length(row: Any) -> int:
    return len(row["ids"])


def bucketed(source: Any) -> Dataset:
    return Dataset(source).bucket(length, [3, 5, 8], 2)


PREDICTED: list[tuple[str, Callable[[], Any], list[int]]] = [
    ("rows", lambda: bucketed(ROWS), [*range(11)]),
    ("a generator", lambda: bucketed(iter(ROWS)), [*range(11)]),
    ("shuffled rows", lambda: Dataset(ROWS).shuffle(8).bucket(length, [3, 5, 8], 2), [*range(11)]),
    ("changed batches", lambda: bucketed(ROWS).map(lambda one: {"ids": one["ids"]}), [*range(11)]),
    ("batches made ahead", lambda: bucketed(ROWS).prefetch(2), [*range(11)]),
    ("some batches", lambda: bucketed(ROWS).take(3), [0, 1, 2, 3, 4, 6]),
    ("long batches", lambda: bucketed(ROWS).filter(lambda one: one["ids"].shape[1] == 8), [5, 7, 8]),
]


@pytest.mark.parametrize(("data", "rows"), [case[1:] for case in PREDICTED], ids=[case[0] for case in PREDICTED])
def test_predictions_are_in_the_order_of_the_rows(data: Callable[[], Any], rows: list[int]) -> None:
    with trainweb.TrainingSession.from_model(SUMS, loss="CrossEntropyLoss") as s:
        found = s.predict(data(), outputs=["logits", "sums"])
    np.testing.assert_allclose(found["logits"], SCORES[rows], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["sums"], [TABLE[ROWS[k]["ids"]].sum(0) for k in rows], rtol=1e-5, atol=1e-6)


def test_each_token_of_several_buckets_gets_its_prediction() -> None:
    """Against numpy, row by row."""
    rows = [{"ids": row["ids"] % 7} for row in ROWS]
    with trainweb.TrainingSession.from_model(tokens(), loss="CrossEntropyLoss") as s:
        found = s.predict(bucketed(rows))["logits"]
    assert found.shape == (11, 8, 7)
    bounds = [min(bound for bound in (3, 5, 8) if bound >= n) for n in LENGTHS]
    for scores, row, bound in zip(found, rows, bounds, strict=True):
        expected = normal(7, 4)[row["ids"]].astype(np.float64) @ normal(4, 7, seed=1)
        np.testing.assert_allclose(scores[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert not scores[bound:].any()


def test_a_cache_keeps_the_order() -> None:
    data = bucketed(ROWS).cache()
    with trainweb.TrainingSession.from_model(SUMS, loss="CrossEntropyLoss") as s:
        for _ in range(2):
            np.testing.assert_allclose(s.predict(data)["logits"], SCORES, rtol=1e-5, atol=1e-6)
        found = s.evaluate(data, metrics="accuracy")["accuracy"]
    assert found == pytest.approx((SCORES.argmax(1) == np.arange(11) % 3).mean())


def test_the_row_of_an_error_is_the_row_of_the_data() -> None:
    rows = [*ROWS[:3], {"ids": np.array([1, 99]), "labels": np.int64(0)}, *ROWS[4:]]
    with trainweb.TrainingSession.from_model(SUMS, loss="CrossEntropyLoss", optimizer="SGD") as s:
        for call in (s.predict, s.evaluate, lambda data: s.fit(data, progress=False)):
            with pytest.raises(trainweb.errors.FeedError, match="'ids' of row 3 of the data"):
                call(bucketed(rows))


TAGGED = [{"ids": row["ids"] % 7, "labels": row["ids"] % 7} for row in ROWS]


def test_padded_labels_do_not_count() -> None:
    loss = {"type": "CrossEntropyLoss", "ignore_index": -100}
    with trainweb.TrainingSession.from_model(tokens(), loss=loss) as s:
        counts = {}
        for padded in (None, ["ids", "labels"], {"ids": 0, "labels": 0}, {"ids": 0, "labels": -100}):
            s._core.notices.clear()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                data = Dataset(TAGGED).bucket(length, [3, 5, 8], 2, padded)
                counts[str(padded)] = int(np.sum(s.evaluate(data, metrics="confusionMatrix")["confusionMatrix"]))
            told = ["'bucket' pads 'labels' with 0, which counts as a class" in str(one.message) for one in caught]
            assert told == ([True] if not isinstance(padded, dict) else []), padded
    places = sum(3 if n <= 3 else 5 if n <= 5 else 8 for n in LENGTHS)
    assert list(counts.values()) == [places, places, places, sum(LENGTHS)]


def test_padded_labels_are_named_beside_their_weights() -> None:
    """The weights are the last input then, not the labels."""
    rows = [row | {"weights": np.ones(len(row["ids"]), np.float32)} for row in TAGGED]
    weights = {"name": "weights", "of": "labels"}
    with trainweb.TrainingSession.from_model(tokens(), loss="CrossEntropyLoss", sample_weight=weights) as s:
        for call in (s.evaluate, lambda data: s.fit(data, progress=False)):
            s._core.notices.clear()
            with pytest.warns(UserWarning, match="'bucket' pads 'labels' with 0, which counts as a class"):
                call(Dataset(rows).bucket(length, [3, 5, 8], 2))


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        (
            ROWS[9:],
            2,
            r"float32\[2\] as 'weights'; .* name 'weights' in its 'padded', with the number to add .0 of weights",
        ),
        (
            ROWS[1::3],
            1,
            r"3 in 'ids', 2 in 'weights'\. If 'bucket' pads the rows, name both in its 'padded', with .* 0",
        ),
    ],
)
def test_weights_that_are_not_padded_say_how(rows: list[Any], size: int, said: str) -> None:
    rows = [{"ids": row["ids"] % 7, "labels": row["ids"] % 7, "weights": np.float32(row["ids"])} for row in rows]
    weights = {"name": "weights", "of": "labels"}
    with trainweb.TrainingSession.from_model(tokens(), loss="CrossEntropyLoss", sample_weight=weights) as s:
        with pytest.raises(trainweb.errors.FeedError, match=said):
            s.evaluate(Dataset(rows).bucket(length, [3, 5, 8], size, {"ids": 0, "labels": 0}))
        s.evaluate(Dataset(rows).bucket(length, [3, 5, 8], size, {"ids": 0, "labels": 0, "weights": 0}))


@pytest.mark.parametrize("padded", [None, ["ids", "labels"]])
def test_texts_of_bucketed_rows_are_left_out(padded: Any) -> None:
    rows = [row | {"name": "a" * (k % 3), "words": ["a"] * (len(row["ids"]) if padded is None else 1)}
            for k, row in enumerate(TAGGED)]  # fmt: skip
    with trainweb.TrainingSession.from_model(tokens(), loss="CrossEntropyLoss", optimizer="SGD") as s:
        plain = s.evaluate(Dataset(TAGGED).bucket(length, [3, 5, 8], 2))
        with pytest.warns(UserWarning, match="These columns of the data are not read: name, words"):
            assert s.evaluate(Dataset(rows).bucket(length, [3, 5, 8], 2, padded)) == plain


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (0.5, r"padded\['labels'\] is 0.5; it must be int64, as the row has"),
        ("a", r"padded\['labels'\] is 'a'; it must be a number"),
        (np.nan, r"padded\['labels'\] is nan; it must be a number"),
    ],
)
def test_what_does_not_fit_the_labels(fill: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        next(iter(Dataset(TAGGED).bucket(length, [9], 2, {"ids": 0, "labels": fill})))
