"""Cases of trainweb.ops.metrics."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i64

from trainweb.errors import FeedError
from trainweb.ops import metrics

SCORES, CLASSES = f32([[0.5, 2, -1], [1, 1, 0], [3, 0, 4], [0, 0, 0]]), i64([1, 1, 2, 0])
WEIGHTS, MISSING = f32([0.5, 0, 2, 1]), float("nan")
NAN = f32([[1, float("nan"), 3], [float("nan"), 0, 1]])
IMAGE, PIXELS = (2, 3, 2, 2), i64([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])

CASES[metrics.ClassCounts] = Cases(
    samples=(
        Sample([SCORES, CLASSES], outputs=2),
        Sample([SCORES, CLASSES], {"count": "parts"}, outputs=2),
        Sample([SCORES, CLASSES, WEIGHTS], {"count": "parts"}, outputs=2),
        Sample([SCORES, CLASSES, WEIGHTS], outputs=2),
        Sample([SCORES, i64([1, -7, 2, 0]), WEIGHTS], {"count": "matrix"}, outputs=2),
        Sample([SCORES, CLASSES], {"count": "matrix"}, outputs=2),
        Sample([IMAGE, PIXELS], {"count": "matrix", "ignores": 1, "ignored": 2}, outputs=2),
        Sample([SCORES, i64([1, -100, 3, 0])], {"ignores": 1, "ignored": -100}, outputs=2),
        Sample([NAN, i64([1, 0])], outputs=2),
        Sample([f32([0.5, 0, -1]), f32([1, 1, 0])], {"count": "matrix"}, outputs=2),
    ),
    bad=(Bad([(4, 3), i64([0, 1])], error=FeedError), Bad([SCORES, CLASSES], {"count": "all"})),
)

CASES[metrics.TopCounts] = Cases(
    samples=(
        Sample([SCORES, CLASSES], outputs=2),
        Sample([SCORES, CLASSES], {"k": 2}, outputs=2),
        Sample([SCORES, i64([1, -7, 2, 0]), WEIGHTS], {"k": 2}, outputs=2),
        Sample([IMAGE, PIXELS], {"k": 2, "ignores": 1, "ignored": 1}, outputs=2),
        Sample([NAN, i64([0, 0])], {"k": 1}, outputs=2),
        Sample([f32([0.5, 0, -1]), f32([1, 1, 0])], outputs=2),
        Sample([SCORES, i64([0, 7, -1, 1])], outputs=2),
    ),
    bad=(Bad([(4, 3), i64([0, 1])], error=FeedError), Bad([SCORES, CLASSES], {"k": 0})),
)

CASES[metrics.ErrorSums] = Cases(
    samples=(
        Sample([(5, 2), (5, 2)], {"columns": 1}),
        Sample([(5, 2), (5, 2)]),
        Sample([(4, 1), f32([[MISSING], [1], [2], [MISSING]]), f32([0, 0.5, 2, 0])], {"columns": 1}),
        Sample([(2, 2), f32([[3, MISSING], [1, 4]]), f32([[1, 0], [3, 2]])]),
        Sample([(5, 1), f32([1e6, 1e6 + 1, 1e6 + 2, 1e6, 1e6])], {"columns": 1}),
        Sample([(2, 3, 2), (2, 3, 2)], {"columns": 1}),
        Sample([i64([1, 2, 4]), i64([1, 0, 9])]),
    ),
    bad=(Bad([(4, 3), (4, 2)], error=FeedError), Bad([(3,), (2,)], {"columns": 1}, FeedError)),
)


def places(op: metrics._Counts, predicted: Any, target: Any, weights: Any = None) -> tuple[Any, Any, Any, Any]:
    """Of numpy arrays: scores [places, classes], targets and weights [places] that count, and the faults."""
    outer, classes, inner, is_binary = op.scores(predicted.shape, target.shape)
    if is_binary:
        scores = np.stack([np.zeros(outer), predicted.reshape(-1)], 1)
        labels = (~(target.reshape(-1) <= 0.5)).astype(np.int64)
    else:
        scores = np.moveaxis(predicted.reshape(outer, classes, inner), 1, 2).reshape(-1, classes)
        labels = target.reshape(-1).astype(np.int64)
    each = np.ones(len(labels)) if weights is None else weights.reshape(-1).astype(np.float64)
    counts = (labels != op.ignored) & (each != 0) if op.ignores else each != 0
    wrong = counts & ((labels < 0) | (labels >= classes))
    faults = np.array([wrong.sum(), labels[wrong][0] if wrong.any() else 0, classes], np.float64)
    return scores[counts & ~wrong], labels[counts & ~wrong], each[counts & ~wrong], faults


@reference(metrics.ClassCounts)
def class_counts(op: metrics.ClassCounts, predicted: Any, target: Any, weights: Any = None) -> tuple[Any, Any]:
    scores, labels, each, faults = places(op, predicted, target, weights)
    n, guesses = scores.shape[1], scores.argmax(1)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (labels, guesses), each)
    right = np.diag(matrix)
    sums = {
        "right": np.array([[right.sum()], [matrix.sum()]]),
        "parts": np.stack([right, matrix.sum(1), matrix.sum(0)]),
        "matrix": matrix,
    }
    return sums[op.count], faults


@reference(metrics.TopCounts)
def top_counts(op: metrics.TopCounts, predicted: Any, target: Any, weights: Any = None) -> tuple[Any, Any]:
    scores, labels, each, faults = places(op, predicted, target, weights)
    own = np.take_along_axis(scores, labels[:, None], 1)
    higher = np.where(np.isnan(own[:, 0]), 0, (~(scores <= own)).sum(1))
    return np.array([[each[higher < op.k].sum()], [each.sum()]], np.float64), faults


@reference(metrics.ErrorSums)
def error_sums(op: metrics.ErrorSums, predicted: Any, target: Any, weights: Any = None) -> Any:
    rows, columns = op.shape(target.shape)
    p, t = (np.asarray(x, np.float64).reshape(rows, columns) for x in (predicted, target))
    w = np.ones((rows, columns)) if weights is None else np.asarray(weights, np.float64).reshape(rows, columns)
    p, t = np.where(w == 0, 0, p), np.where(w == 0, 0, t)
    first = t[(w != 0).argmax(0), np.arange(columns)]
    mean = (w * t).sum(0) / w.sum(0)
    squares, errors = (w * (t - mean) ** 2).sum(0), (w * (p - t) ** 2).sum(0)
    count = (w != 0).sum(0)
    return np.stack([w.sum(0), first, mean - first, squares, errors, (w * np.abs(p - t)).sum(0), count])
