"""The loss of an epoch does not depend on how its rows are batched: it is what the loss of all rows at once is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset
from trainweb.fit import History, Trainer

from .sessions import Ended

V, LENGTH, ROWS = 11, 12, 40
SIZES = [1, 8, 16, ROWS]
TORCH_PERPLEXITY = 37.245
"""exp(torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)) of `padded` (torch 2.15)."""


def padded() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table of logits by token; tokens, and labels of which the last ones of each row are ignored."""
    r = np.random.default_rng(0)
    table = (r.standard_normal((V, V)) * 2).astype(np.float32)
    tokens, labels = r.integers(0, V, (ROWS, LENGTH)), r.integers(0, V, (ROWS, LENGTH))
    for row in labels:
        row[r.integers(1, LENGTH) :] = -100
    return table, tokens, labels


TABLE, TOKENS, LABELS = padded()
WEIGHTS = np.linspace(0.2, 3, V).astype(np.float32)
COUNTED = LABELS != -100


def model(nodes: Any = (), loss: str | None = None, length: Any = LENGTH) -> Any:
    """Logits of tokens, or a loss that `nodes` make of them."""
    first = helper.make_node("Gather", ["table", "tokens"], ["logits"])
    shape = ["N", length, V] if loss is None else []
    outputs = [helper.make_tensor_value_info(loss or "logits", TensorProto.FLOAT, shape)]
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", length])]
    tensors = [numpy_helper.from_array(TABLE, "table")]
    return make_model([first, *nodes], inputs, outputs, tensors, opset=18)


def fitted(loss: Any, data: Any, made: Any = None, *, shuffle: bool | None = False, **options: Any) -> History:
    """An epoch at rate 0, with the same rows as validation data."""
    with trainweb.TrainingSession.from_model(made or model(), loss=loss, optimizer="SGD") as s:
        s.set_learning_rate(0.0)
        given = {"validation_data": data, "progress": False, "shuffle": shuffle}
        return Trainer(s).fit(data, **(given | options))


def entropies() -> np.ndarray:
    """Of each label that counts, in float64; 0 for others."""
    logits = TABLE.astype(np.float64)[TOKENS]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found: np.ndarray = -np.take_along_axis(log_p, np.where(COUNTED, LABELS, 0)[..., None], -1)[..., 0]
    return found * COUNTED


def smoothed(share: float) -> np.ndarray:
    logits = TABLE.astype(np.float64)[TOKENS]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found: np.ndarray = (1 - share) * entropies() - share * log_p.mean(-1) * COUNTED
    return found


def weighted() -> tuple[np.ndarray, np.ndarray]:
    weights = WEIGHTS.astype(np.float64)[np.where(COUNTED, LABELS, 0)] * COUNTED
    return entropies() * weights, weights


IGNORING = {"type": "CrossEntropyLoss", "ignore_index": -100}
LOSSES: dict[str, tuple[dict[str, Any], Callable[[], float]]] = {
    "ignored": (IGNORING, lambda: entropies().sum() / COUNTED.sum()),
    "weighted": (IGNORING | {"weight": WEIGHTS.tolist()}, lambda: weighted()[0].sum() / weighted()[1].sum()),
    "smoothed": (IGNORING | {"label_smoothing": 0.1}, lambda: smoothed(0.1).sum() / COUNTED.sum()),
    "focal": (
        {"type": "FocalLoss", "gamma": 2.0, "ignore_index": -100},
        lambda: (entropies() * (1 - np.exp(-entropies())) ** 2).sum() / COUNTED.sum(),
    ),
    # A loss that is a sum is said of a row.
    "sum": (IGNORING | {"reduction": "sum"}, lambda: entropies().sum() / ROWS),
    "smoothed sum": (IGNORING | {"reduction": "sum", "label_smoothing": 0.1}, lambda: smoothed(0.1).sum() / ROWS),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_epochs_do_not_depend_on_the_batch_size(loss: str) -> None:
    settings, formula = LOSSES[loss]
    data = {"tokens": TOKENS, "labels": LABELS}
    for size in SIZES:
        (epoch,) = fitted(settings, data, batch_size=size).epochs
        assert epoch.validation is not None
        assert epoch.validation["loss"] == pytest.approx(formula(), rel=2e-6), size
        assert epoch.loss == pytest.approx(formula(), rel=2e-6), size
    streamed = fitted(settings, Dataset(data).map(dict), shuffle=None, batch_size=7)
    assert streamed.epochs[0].loss == pytest.approx(formula(), rel=2e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_fit_goes_on_within_an_epoch(loss: str, tmp_path: Path) -> None:
    """The checkpoint has the sum of what losses were divided by: labels, rows, or weights that are no integers."""
    built = build_artifacts(model(), loss=LOSSES[loss][0], optimizer="SGD")
    options = {"batch_size": 8, "epochs": 2, "seed": 4, "progress": False}

    def outcome(kept: dict[str, Any] | None, end: int | None = None) -> Any:
        def rate(step: int) -> float:
            if step == end:
                raise Ended
            return 1e-3

        with trainweb.TrainingSession(**built) as s:
            data = {"tokens": TOKENS, "labels": LABELS}
            history = Trainer(s).fit(data, checkpoint=kept, schedule=rate, **options)
            return s.get_contiguous_parameters(False).tobytes(), history.losses, [e.loss for e in history.epochs]

    whole = outcome(None)
    with pytest.raises(Ended):
        outcome({"store": tmp_path, "name": "fit", "every": 1}, 8)
    assert outcome({"store": tmp_path, "name": "fit"}) == whole


def test_perplexity_is_that_of_all_tokens() -> None:
    data = {"tokens": TOKENS, "labels": LABELS}
    found = [fitted(IGNORING, data, batch_size=size, metrics=["perplexity"])["val_perplexity"][0] for size in SIZES]
    assert [round(value, 3) for value in found] == [TORCH_PERPLEXITY] * len(SIZES)
    assert np.exp(entropies().sum() / COUNTED.sum()) == pytest.approx(TORCH_PERPLEXITY, abs=5e-4)


def test_batches_of_other_lengths_count_by_their_labels() -> None:
    """Without labels that are ignored, too."""
    lengths = [3, 12, 5, 12]
    labels = np.where(COUNTED, LABELS, 0)
    batches = [
        {"tokens": TOKENS[10 * k : 10 * k + 10, :n], "labels": labels[10 * k : 10 * k + 10, :n]}
        for k, n in enumerate(lengths)
    ]
    logits = TABLE.astype(np.float64)
    total, count = 0.0, 0
    for batch in batches:
        rows = logits[batch["tokens"].reshape(-1)]
        log_p = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        total -= log_p[np.arange(len(rows)), batch["labels"].reshape(-1)].sum()
        count += len(rows)
    data = Dataset(lambda: iter([row for b in batches for row in Dataset(b)])).batch(10)
    (epoch,) = fitted("CrossEntropyLoss", data, model(length="S"), shuffle=None).epochs
    assert epoch.validation is not None
    assert [epoch.loss, epoch.validation["loss"]] == pytest.approx([total / count] * 2, rel=2e-6)


def test_squares_of_batches_of_other_lengths_count_by_element() -> None:
    r = np.random.default_rng(1)
    parts = [(TOKENS[:10, :n], r.standard_normal((10, n, V)).astype(np.float32)) for n in (2, 12)]
    each = [((TABLE.astype(np.float64)[t] - y) ** 2).reshape(-1) for t, y in parts]
    rows = [{"tokens": t[k], "target": y[k]} for t, y in parts for k in range(10)]
    for reduction, expected in (("mean", np.concatenate(each).mean()), ("sum", np.concatenate(each).sum() / 20)):
        loss = {"type": "MSELoss", "reduction": reduction}
        (epoch,) = fitted(loss, Dataset(rows).batch(10), model(length="S"), shuffle=None).epochs
        assert epoch.loss == pytest.approx(expected, rel=2e-6), reduction


def test_a_sum_of_means_counts_by_rows() -> None:
    """`mse.mean(0).sum()`: a mean over rows, though a sum comes last."""
    nodes = [
        helper.make_node("Mul", ["logits", "logits"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "rows"], ["means"], keepdims=0),
        helper.make_node("ReduceSum", ["means"], ["cost"], keepdims=0),
    ]
    made = model(nodes, "cost")
    made.graph.initializer.append(numpy_helper.from_array(np.array([0]), "rows"))
    expected = (TABLE.astype(np.float64)[TOKENS] ** 2).mean(0).sum()
    for size in (1, 8, ROWS):
        (epoch,) = fitted(None, {"tokens": TOKENS}, made, batch_size=size).epochs
        assert epoch.loss == pytest.approx(expected, rel=2e-6), size


NONE = {"tokens": TOKENS, "labels": np.full_like(LABELS, -100)}
"""Rows whose labels are all ignored."""


def test_rows_whose_labels_are_all_ignored_have_no_loss(tmp_path: Path) -> None:
    """NaN, as in PyTorch: a loss of 0 would be the best for early stopping. Losses of batches are the model's, 0."""
    history = fitted(IGNORING, NONE, batch_size=8, metrics=["perplexity"])
    assert history.losses == [0.0] * -(-ROWS // 8)
    assert np.isnan([*history["loss"], *history["val_loss"], *history["val_perplexity"]]).all()
    data = {"tokens": TOKENS, "labels": LABELS}
    store = {"store": trainweb.CheckpointStore(tmp_path), "name": "ignored"}
    for options in ({}, {"checkpoint": store}, {"checkpoint": store}):
        stopped = fitted(IGNORING, data, epochs=9, validation_data=NONE, early_stopping={"patience": 3}, **options)
        assert (len(stopped.epochs), stopped.best_epoch, stopped.ended) == (3, None, "early")
        assert np.isnan(stopped["val_loss"]).all() and np.isfinite(stopped["loss"]).all()
    plateau = {"type": "Plateau", "learning_rate": 0.5, "patience": 1, "reduction": 0.5}
    found = fitted(IGNORING, data, epochs=5, validation_data=NONE, schedule=plateau)
    assert [epoch.learning_rate for epoch in found.epochs] == [0.5, 0.5, 0.25, 0.25, 0.125]  # as ReduceLROnPlateau


@pytest.mark.parametrize("loss", [IGNORING, {"type": "FocalLoss", "gamma": 0.0, "ignore_index": -100}])
def test_batches_whose_labels_are_all_ignored_do_not_count(loss: Any) -> None:
    """The focal loss of such a batch is 0 / 0."""
    labels = LABELS.copy()
    labels[:8] = -100
    history = fitted(loss, {"tokens": TOKENS[8:], "labels": LABELS[8:]}, batch_size=8)
    built = build_artifacts(model(), loss=loss, optimizer="SGD")
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, built.eval_model) as s:
        found = s.evaluate({"tokens": TOKENS, "labels": labels}, batch_size=8)["loss"]
    assert found == pytest.approx(history["val_loss"][0], rel=1e-6)
