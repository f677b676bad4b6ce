"""Metrics against the formulae of scikit-learn's documentation, written out with sets and loops over numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainweb.errors import FeedError, ModelError
from trainweb.fit.metrics import METRICS, make_metric

RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((97, 6)).astype(np.float32)
CLASSES = RNG.integers(0, 5, 97)  # the last class is no target
GUESSES = [max(range(6), key=lambda c: row[c]) for row in SCORES.tolist()]
PARTS = (slice(0, 40), slice(40, 41), slice(41, 97))


def counted(given: Any, predicted: np.ndarray, target: np.ndarray, loss: float = 0.0) -> Any:
    """The metric of three batches."""
    metric = make_metric(given)
    for part in PARTS:
        metric.update(predicted[part], target[part])
    return metric.result(loss)


def sets(c: int) -> tuple[set[int], set[int]]:
    """Places whose target, and whose prediction, is a class."""
    return {k for k, t in enumerate(CLASSES) if t == c}, {k for k, g in enumerate(GUESSES) if g == c}


def f1_of(c: int) -> float:
    target, guessed = sets(c)
    if not target & guessed:
        return 0.0
    precision, recall = len(target & guessed) / len(guessed), len(target & guessed) / len(target)
    return 2 * precision * recall / (precision + recall)


def test_accuracy_and_top_k() -> None:
    right = [g == t for g, t in zip(GUESSES, CLASSES, strict=True)]
    assert counted("accuracy", SCORES, CLASSES) == pytest.approx(np.mean(right))
    for k in (1, 2, 5, 6):
        among = [t in np.argsort(-row)[:k] for row, t in zip(SCORES, CLASSES, strict=True)]
        assert counted({"type": "topK", "k": k}, SCORES, CLASSES) == pytest.approx(np.mean(among))


def test_f1() -> None:
    each = [f1_of(c) for c in range(6)]
    assert counted("f1", SCORES, CLASSES) == pytest.approx(np.mean(each))
    weights = np.bincount(CLASSES, minlength=6)
    weighted = counted({"type": "f1", "average": "weighted"}, SCORES, CLASSES)
    assert weighted == pytest.approx(np.average(each, weights=weights))
    # Micro-averaged over all classes, it is the accuracy.
    micro = counted({"type": "f1", "average": "micro"}, SCORES, CLASSES)
    assert micro == pytest.approx(counted("accuracy", SCORES, CLASSES))


def test_confusion_matrix_and_mean_iou() -> None:
    matrix = counted("confusionMatrix", SCORES, CLASSES)
    for t in range(6):
        for g in range(6):
            assert matrix[t][g] == len(sets(t)[0] & sets(g)[1])
    unions = [sets(c) for c in range(6)]
    expected = np.mean([len(a & b) / len(a | b) for a, b in unions if a | b])
    assert counted("mIoU", SCORES, CLASSES) == pytest.approx(expected)


def test_numbers() -> None:
    target = RNG.standard_normal((97, 2)) * 3 + 1e4
    predicted = target + RNG.standard_normal((97, 2))
    assert counted("mae", predicted, target) == pytest.approx(np.mean(np.abs(predicted - target)))
    residual = ((target - predicted) ** 2).sum(0)
    spread = ((target - target.mean(0)) ** 2).sum(0)
    assert counted("r2", predicted, target) == pytest.approx(np.mean(1 - residual / spread), rel=1e-9)
    constant = np.full((97, 1), 7.0)
    assert counted("r2", constant, constant) == 1.0 and counted("r2", constant + 1, constant) == 0.0
    assert make_metric("perplexity").result(1.25) == pytest.approx(np.exp(1.25))


def test_the_axis_of_classes_is_found() -> None:
    images = RNG.standard_normal((97, 3, 4, 5)).astype(np.float32)
    labels = RNG.integers(0, 3, (97, 4, 5))
    expected = np.mean(images.argmax(1) == labels)
    assert counted("accuracy", images, labels) == pytest.approx(expected)
    assert counted("accuracy", np.moveaxis(images, 1, -1), labels) == pytest.approx(expected)
    logits, bits = RNG.standard_normal((97, 1)), RNG.integers(0, 2, 97).astype(np.float32)
    assert counted("accuracy", logits, bits) == pytest.approx(np.mean((logits[:, 0] > 0) == (bits == 1)))


def test_targets_that_do_not_count() -> None:
    ignored = np.where(CLASSES == 2, -100, CLASSES)
    kept = CLASSES != 2
    right = (np.array(GUESSES) == CLASSES)[kept]
    assert counted({"type": "accuracy", "ignore_index": -100}, SCORES, ignored) == pytest.approx(right.mean())
    with pytest.raises(FeedError, match="accuracy: the target -100 is none of the 6 classes; 'ignore_index'"):
        counted("accuracy", SCORES, ignored)


def test_what_does_not_fit() -> None:
    for name in METRICS:
        if name != "perplexity":
            with pytest.raises(FeedError, match=rf"{name} cannot compare predictions of shape \[4, 3\]"):
                make_metric(name).update(np.zeros((4, 3)), np.zeros(5))
    with pytest.raises(ModelError, match="topK has no setting 'n'"):
        make_metric({"type": "topK", "n": 3})
    with pytest.raises(ModelError, match="k is 0; it must be an integer >= 1"):
        make_metric({"type": "topK", "k": 0})


def test_of_nothing_it_is_no_number() -> None:
    assert np.isnan([make_metric(n).result(0.0) for n in ("accuracy", "f1", "mIoU", "mae", "r2")]).all()
