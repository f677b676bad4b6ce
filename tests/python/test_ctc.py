"""CTCLoss: against the sum over all paths, and what is fed to it wrongly; recordings of torch are in test_losses.py."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import FeedError, ModelError

STEPS, ITEMS, CLASSES = 5, 2, 3


def session(scores: np.ndarray, **settings: Any) -> trainweb.TrainingSession:
    """y = x + w: the gradient by the parameter w is that by the scores."""
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"], "add")],
        {"x": ["t", "n", "c"]},
        {"y": ["t", "n", "c"]},
        {"w": scores},
    )
    return trainweb.TrainingSession.from_model(
        model, requires_grad=["w"], loss={"type": "CTCLoss", **settings}, optimizer="SGD"
    )


def feeds(
    targets: Any, input_lengths: Any, target_lengths: Any, shape: tuple[int, ...] = (STEPS, ITEMS, CLASSES)
) -> Any:
    return {
        "x": np.zeros(shape, np.float32),
        "targets": np.array(targets, np.int64),
        "input_lengths": np.array(input_lengths, np.int64),
        "target_lengths": np.array(target_lengths, np.int64),
    }


def collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    """Repetitions become one, blanks go."""
    return [c for k, c in enumerate(path) if c != blank and (k == 0 or path[k - 1] != c)]


def by_paths(scores: np.ndarray, targets: list[list[int]], lengths: list[int], blank: int) -> float:
    """-log of the probability of every path that collapses to the target, all of them counted out."""
    total = 0.0
    for n, (target, length) in enumerate(zip(targets, lengths, strict=True)):
        p = np.exp(scores[:length, n].astype(np.float64))
        p /= p.sum(-1, keepdims=True)
        ways = [path for path in product(range(CLASSES), repeat=length) if collapsed(path, blank) == target]
        total -= np.log(sum(np.prod([p[t, c] for t, c in enumerate(path)]) for path in ways))
    return float(total)


@pytest.mark.parametrize(
    ("targets", "lengths", "blank"),
    [
        ([[1, 2], [2, 2]], [5, 4], 0),
        ([[1], [1, 1]], [5, 3], 0),
        ([[0, 1, 0], []], [5, 2], 2),
        ([[2, 0], [0]], [2, 1], 1),
        ([[1], []], [5, 0], 0),
    ],
    ids=["differ", "repeat", "empty", "tight", "no steps"],
)
def test_the_loss_is_the_sum_over_all_paths_and_its_gradient_that_of_differences(
    targets: list[list[int]], lengths: list[int], blank: int
) -> None:
    scores = np.random.default_rng(blank).standard_normal((STEPS, ITEMS, CLASSES)).astype(np.float32)
    padded = [[*t, *[1] * (3 - len(t))] for t in targets]
    given = feeds(padded, lengths, [len(t) for t in targets])
    with session(scores, reduction="sum", blank=blank) as s:
        (loss,) = s.train_step(given).values()
        assert float(loss) == pytest.approx(by_paths(scores, targets, lengths, blank), rel=1e-5)
        (evaluated,) = s.eval_step(given, [s.output_names(False)[0]]).values()
        assert evaluated == loss
        gradient = s.get_gradient("w")
    step = 1e-4
    for place in np.ndindex(scores.shape):
        up, down = scores.astype(np.float64), scores.astype(np.float64)
        up[place] += step
        down[place] -= step
        slope = (by_paths(up, targets, lengths, blank) - by_paths(down, targets, lengths, blank)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, abs=2e-5)


def test_long_sequences_stay_finite() -> None:
    """All of 1,500 steps: probabilities are far below what a float holds."""
    steps, classes = 1500, 20
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((steps, 1, classes)).astype(np.float32)
    targets = rng.integers(1, classes, (1, 200))
    with session(scores, reduction="sum") as s:
        (loss,) = s.train_step(feeds(targets, [steps], [200], (steps, 1, classes))).values()
        gradient = s.get_gradient("w").astype(np.float64)
    assert float(loss) > 1000 and np.isfinite(gradient).all()
    # Shares of a step's paths are all of them; softmax less those sums to nothing.
    np.testing.assert_allclose(gradient.sum(-1), 0, atol=2e-4)


@pytest.mark.parametrize(
    ("targets", "input_lengths", "target_lengths", "text"),
    [
        ([[1, 3], [1, 1]], [5, 5], [2, 2], "the label 3 at position 1 is out of range: labels must be 0 to 2"),
        ([[1, 1], [-2, 1]], [5, 5], [2, 2], "the label -2 at position 2 is out of range 0 to 2"),
        ([[1, 2], [1, 3]], [5, 5], [2, 1], "the label 3 at position 3 is out of range"),
        ([[1, 1], [1, 1]], [5, 6], [2, 2], "the index 6 at position 1 is out of range"),
        ([[1, 1], [1, 1]], [5, 5], [3, 2], "the index 3 at position 0 is out of range"),
        ([[1, 1], [1, 1]], [5, -1], [2, 2], "the index -1 at position 1 is out of range"),
    ],
    ids=["large", "negative", "padding", "steps", "labels", "below"],
)
def test_labels_and_lengths_out_of_range_change_nothing(
    targets: Any, input_lengths: Any, target_lengths: Any, text: str
) -> None:
    scores = np.zeros((STEPS, ITEMS, CLASSES), np.float32)
    with session(scores, reduction="sum") as s:
        s.train_step(feeds([[1, 2], [2, 2]], [5, 5], [2, 2]))
        before = s.get_gradient("w")
        with pytest.raises(FeedError, match=text):
            s.train_step(feeds(targets, input_lengths, target_lengths))
        np.testing.assert_array_equal(s.get_gradient("w"), before)


def test_scores_of_another_rank_are_refused() -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"], "add")],
        {"x": [4, 3]},
        {"y": [4, 3]},
        {"w": np.zeros((4, 3), np.float32)},
    )
    with pytest.raises(ModelError, match="CTCLoss takes steps, items and classes"):
        build_artifacts(model, ["w"], loss="CTCLoss", optimizer="SGD")
