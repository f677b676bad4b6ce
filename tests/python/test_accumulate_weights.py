"""Batches that are accumulated make the step of one large batch, by float64 formulas, or add up on request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model
from tests.python.test_loss_counts import COUNTED, LABELS, TABLE, TOKENS, WEIGHTS, V, model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.data import Dataset
from trainweb.errors import ModelError
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model

RATE = 0.5
IGNORING = {"type": "CrossEntropyLoss", "ignore_index": -100}
WEIGHTED = IGNORING | {"weight": WEIGHTS.tolist()}
FIT: Mapping[str, Any] = {"shuffle": False, "learning_rate": RATE, "progress": False}


def trained(data: Any, loss: Any = IGNORING, **options: Any) -> np.ndarray:
    """The table after an epoch at rate 1/2."""
    with trainweb.TrainingSession.from_model(
        model().SerializeToString(), requires_grad=["table"], loss=loss, optimizer="SGD"
    ) as s:
        s.fit(data, **(FIT | options))
        return s.state.parameters["table"].data


def columns(rows: slice = slice(None)) -> dict[str, np.ndarray]:
    return {"tokens": TOKENS[rows], "labels": LABELS[rows]}


def gradient(rows: slice, weights: np.ndarray | None = None, table: np.ndarray = TABLE) -> tuple[np.ndarray, float]:
    """The gradient of the sum of the weighted cross entropies of rows, and the sum of weights, in float64."""
    tokens, labels = TOKENS[rows][COUNTED[rows]], LABELS[rows][COUNTED[rows]]
    logits = table.astype(np.float64)[tokens]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    each = np.ones(len(labels)) if weights is None else weights.astype(np.float64)[labels]
    total = np.zeros((V, V))
    np.add.at(total, tokens, p * each[:, None])
    return total, float(each.sum())


OF_OUTPUT = {"logits": IGNORING | {"weights": WEIGHTS.tolist(), "weight": 1.0}}


@pytest.mark.parametrize(("loss", "weights"), [(IGNORING, None), (WEIGHTED, WEIGHTS), (OF_OUTPUT, WEIGHTS)])
@pytest.mark.parametrize(("size", "steps"), [(10, 4), (8, 5), (1, 40), (16, 4)])
def test_the_step_is_that_of_one_large_batch(loss: Any, weights: np.ndarray | None, size: int, steps: int) -> None:
    total, count = gradient(slice(None), weights)
    result = trained(columns(), loss, batch_size=size, accumulate=steps)
    np.testing.assert_allclose(result, TABLE - RATE * total / count, rtol=2e-6, atol=2e-6)


def test_what_is_left_of_an_epoch_makes_a_step_by_its_own_labels() -> None:
    table: np.ndarray = TABLE
    for rows in (slice(0, 32), slice(32, 40)):
        total, count = gradient(rows, table=table)
        table = table - RATE * total / count
    result = trained(columns(), batch_size=8, accumulate=4)
    np.testing.assert_allclose(result, table, rtol=2e-6, atol=2e-6)


def test_streams_of_batches_of_different_sizes_count_their_labels() -> None:
    batches = [columns(slice(0, 3)), columns(slice(3, 17)), columns(slice(17, 40))]
    total, count = gradient(slice(None))
    result = trained(Dataset(lambda: iter(batches)), batched=True, accumulate=3)
    np.testing.assert_allclose(result, TABLE - RATE * total / count, rtol=2e-6, atol=2e-6)


def test_batches_without_labels_change_nothing() -> None:
    data = columns(slice(0, 20))
    data["labels"] = np.concatenate([np.full_like(LABELS[:10], -100), LABELS[10:20]])
    total, count = gradient(slice(10, 20))
    for order in (slice(None), slice(None, None, -1)):
        result = trained({n: a[order] for n, a in data.items()}, batch_size=10, accumulate=2, on_nan="skip")
        np.testing.assert_allclose(result, TABLE - RATE * total / count, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("bad", [1, 3])
def test_a_batch_that_an_optimizer_step_spoils_leaves_no_divisor(bad: int) -> None:
    """Squares of its gradients are infinite. The fit without the batch has the same bytes."""

    def weights(batches: list[int]) -> bytes:
        points = np.arange(40, dtype=np.float32).reshape(20, 2) / 20 - 1
        points[4 * bad : 4 * bad + 4] = 1e22
        rows = np.concatenate([np.arange(4 * k, 4 * k + 4) for k in batches])
        data = {"points": points[rows], "labels": np.zeros((len(rows), 1), np.float32)}
        matmul = helper.make_node("MatMul", ["points", "w"], ["y"])
        typed = helper.make_tensor_value_info
        linear = make_model(
            [matmul],
            [typed("points", TensorProto.FLOAT, ["N", 2])],
            [typed("y", TensorProto.FLOAT, ["N", 1])],
            {"w": np.ones((2, 1), np.float32)},
            opset=18,
        ).SerializeToString()
        with trainweb.TrainingSession.from_model(linear, loss="L1Loss", optimizer="AdamW") as s:
            s.fit(data, batch_size=4, accumulate=2, on_nan="skip", **FIT)
            return s.state.parameters["w"].data.tobytes()

    assert weights([0, 1, 2, 3, 4]) == weights([k for k in range(5) if k != bad])


def test_sums_are_sums() -> None:
    parts = [gradient(slice(k, k + 10)) for k in range(0, 40, 10)]
    result = trained(columns(), batch_size=10, accumulate={"steps": 4, "reduction": "sum"})
    np.testing.assert_allclose(result, TABLE - RATE * sum(g / n for g, n in parts), rtol=2e-6, atol=2e-6)
    summed = trained(columns(), IGNORING | {"reduction": "sum"}, batch_size=10, accumulate=4, learning_rate=0.01)
    np.testing.assert_allclose(summed, TABLE - 0.01 * gradient(slice(None))[0], rtol=2e-6, atol=2e-6)


def test_a_loop_of_one_s_own_adds_gradients_before_and_after_a_fit() -> None:
    built = {"requires_grad": ["table"], "loss": IGNORING, "optimizer": "SGD"}
    expected = sum(g / n for g, n in (gradient(slice(k, k + 20)) for k in (0, 20)))
    for fits in (False, True):
        with trainweb.TrainingSession.from_model(model().SerializeToString(), **built) as s:
            if fits:
                s.fit(columns(), batch_size=10, accumulate=3, **(FIT | {"learning_rate": 0.0}))
            s.set_learning_rate(RATE)
            for k in (0, 20):
                s.train_step(columns(slice(k, k + 20)))
            s.optimizer_step()
            result = s.state.parameters["table"].data
        np.testing.assert_allclose(result, TABLE - RATE * expected, rtol=2e-6, atol=2e-6)


def test_a_model_that_hides_the_gradient_of_its_loss_only_adds(tmp_path: Path) -> None:
    built = build_artifacts(model().SerializeToString(), requires_grad=["table"], loss=IGNORING, optimizer="SGD")
    graph = read_model(built.training_model)
    loss = graph.outputs[0].name
    seed = graph.initializers.pop(f"{loss}_grad")
    graph.initializers["start"] = seed.renamed("start")
    for node in graph.nodes:
        node.inputs = ["start" if name == seed.name else name for name in node.inputs]
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, write_model(graph), built.eval_model, built.optimizer_model) as s:
        with pytest.raises(ModelError, match="Give 'accumulate' the reduction 'sum'"):
            s.fit(columns(), batch_size=10, accumulate=2, **FIT)
        s.fit(columns(), batch_size=10, **FIT)
        s.fit(columns(), batch_size=10, accumulate={"steps": 2, "reduction": "sum"}, **FIT)


@pytest.mark.parametrize(
    ("accumulate", "text"),
    [
        (0, "accumulate is 0; it must be an integer >= 1"),
        ({"steps": 0}, "accumulate.steps is 0; it must be an integer >= 1"),
        ({"steps": 2, "reduction": "none"}, "accumulate.reduction is 'none'; it must be mean or sum"),
    ],
)
def test_wrong_settings_are_refused(accumulate: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        trained(columns(), accumulate=accumulate)
    with pytest.raises(TypeError, match="did you mean 'steps'"):
        trained(columns(), accumulate={"step": 2})
