"""Metrics against the formulae of scikit-learn's documentation, written out with sets and loops over numpy in float64.

They run as in a session: nodes sum up each of three batches in the kernels, and formulas give the value of all.
"""

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal
from tests.ops.op_runner import run

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import FeedError, ModelError
from trainweb.fit import Trainer
from trainweb.metrics import METRICS, Asked, Totals, compared_with, make_metric, read_request, request_of, with_metrics
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model

RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((97, 6)).astype(np.float32)
CLASSES = RNG.integers(0, 5, 97)  # the last class is no target
GUESSES = [max(range(6), key=lambda c: row[c]) for row in SCORES.tolist()]
PARTS = (slice(0, 40), slice(40, 41), slice(41, 97))


def counted(given: Any, predicted: np.ndarray, target: np.ndarray, loss: float = 0.0, parts: Any = PARTS) -> Any:
    """The metric of three batches."""
    metric = make_metric(given)
    asked = Asked(metric.name, metric, "predicted", "target")
    request = request_of([asked])
    arrays = {"predicted": predicted, "target": target}
    inputs = [Value(name, str(array.dtype), None) for name, array in arrays.items()]
    plain = Graph("metrics", inputs=[*inputs], opsets={"": 18})
    graph, described = with_metrics(plain, request, inputs)
    totals = Totals(described)
    for part in parts:
        names = [name for d in described for name in (d.sums, d.faults) if name]
        graph.outputs = [Value(name, "float64", None) for name in names]
        totals.add(run(graph, {name: array[part] for name, array in arrays.items()}))
    return totals.values([asked], loss)[metric.name]


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
    for k in (1, 2, 5):
        among = [t in np.argsort(-row)[:k] for row, t in zip(SCORES, CLASSES, strict=True)]
        assert counted({"type": "topK", "k": k}, SCORES, CLASSES) == pytest.approx(np.mean(among))
    with pytest.raises(FeedError, match="'topK' with k = 6 is always 1 for 6 classes: give it a 'k' less than 6"):
        counted({"type": "topK", "k": 6}, SCORES, CLASSES)
    for five in (SCORES[:, :5], SCORES[:, :5, None]):
        with pytest.raises(FeedError, match="'topK' with k = 5 is always 1 for 5 classes"):
            counted("topK", five, CLASSES.reshape(97, *five.shape[2:]))
    with pytest.raises(FeedError, match="'topK' with k = 2 is always 1 for 2 classes"):
        counted({"type": "topK", "k": 2}, SCORES[:, :1], CLASSES)


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
    target = (RNG.standard_normal((97, 2)) * 3 + 1e4).astype(np.float32)
    predicted = (target + RNG.standard_normal((97, 2))).astype(np.float32)
    t, p = target.astype(np.float64), predicted.astype(np.float64)
    assert counted("mae", predicted, target) == pytest.approx(fmean(abs(p - t).ravel().tolist()), rel=1e-14)
    assert counted("rmse", predicted, target) == pytest.approx(
        math.sqrt(fmean(((p - t) ** 2).ravel().tolist())), rel=1e-12
    )
    expected = np.mean(1 - ((t - p) ** 2).sum(0) / ((t - t.mean(0)) ** 2).sum(0))
    assert counted("r2", predicted, target) == pytest.approx(expected, rel=1e-12)
    constant = np.full((97, 1), 7.1, np.float32)
    assert counted("r2", constant, constant) == 1.0 and counted("r2", constant + 1, constant) == 0.0
    # Of one row there is no variance.
    assert math.isnan(counted("r2", constant[:1], constant[:1], parts=[slice(0, 1)]))
    assert counted("mae", CLASSES, np.zeros_like(CLASSES)) == pytest.approx(fmean(CLASSES.tolist()))


def test_large_numbers_that_lie_close_together() -> None:
    # Float32 holds whole numbers here: sums of their squares would lose all digits of the variance, even in float64.
    target = (RNG.integers(0, 3, (97, 1)) + 2.0**23).astype(np.float32)
    predicted = target + RNG.integers(-1, 2, (97, 1)).astype(np.float32)
    t, p = (x.astype(np.float64) - 2.0**23 for x in (target, predicted))
    expected = 1 - ((t - p) ** 2).sum() / ((t - t.mean()) ** 2).sum()
    assert counted("r2", predicted, target) == pytest.approx(expected, rel=1e-12)


def test_perplexity_goes_by_the_loss() -> None:
    asked = Asked("perplexity", make_metric("perplexity"))
    assert Totals([]).values([asked], 1.25)["perplexity"] == pytest.approx(np.exp(1.25))
    assert Totals([]).values([asked], 1e4)["perplexity"] == math.inf


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
    with pytest.raises(FeedError, match="accuracy: the target -100 is not one of the 6 classes; 'ignore_index'"):
        counted("accuracy", SCORES, ignored)


def test_ties_and_numbers_that_are_none() -> None:
    # The first of the highest; numpy's argmax takes a NaN for the highest, too.
    scores = np.array([[1, 1, 0], [0, 2, 2], [np.nan, 9, 0], [1, np.nan, 2], [0, 0, 0]], np.float32)
    for target in ([0, 1, 0, 1, 0], [1, 2, 1, 0, 2]):
        classes = np.array(target)
        expected = np.mean(scores.argmax(1) == classes)
        assert counted("accuracy", scores, classes, parts=[slice(None)]) == pytest.approx(expected)
        # Of a tie both are among the first, because neither is higher.
        places = np.where(np.isnan(scores), np.inf, scores)
        own = np.take_along_axis(places, classes[:, None], 1)
        among = np.mean((places > own).sum(1) < 1)
        assert counted({"type": "topK", "k": 1}, scores, classes, parts=[slice(None)]) == pytest.approx(among)


@pytest.mark.parametrize("name", [n for n in METRICS if n not in ("perplexity", "auc")])
def test_shapes_that_do_not_fit(name: str) -> None:
    with pytest.raises(FeedError, match=rf"'{name}' cannot compare predictions of shape \[4, 3\]"):
        counted(name, np.zeros((4, 3), np.float32), np.zeros(5, np.float32), parts=[slice(None)])


def test_settings() -> None:
    with pytest.raises(TypeError, match="topK has no setting 'n'"):
        make_metric({"type": "topK", "n": 3})
    with pytest.raises(ModelError, match="k is 0; it must be an integer >= 1"):
        make_metric({"type": "topK", "k": 0})
    with pytest.raises(ModelError, match="ignore_index is 4294967296"):
        make_metric({"type": "accuracy", "ignore_index": 2**32})


@pytest.mark.parametrize("name", ["accuracy", "topK", "f1", "mIoU"])
def test_of_nothing_it_is_no_number(name: str) -> None:
    ignored = {"type": name, "ignore_index": 1} | ({"k": 1} if name == "topK" else {})
    assert np.isnan(counted(ignored, np.zeros((3, 2), np.float32), np.ones(3, np.int64), parts=[slice(None)]))


def test_a_request_names_the_metrics() -> None:
    metrics = [make_metric({"type": "topK", "k": 3}), make_metric("perplexity"), make_metric("accuracy")]
    request = request_of([Asked(f"é_{one.name}", one, "é", "labels") for one in metrics])
    assert request == [
        ["é_accuracy", "accuracy", [None], "é", "labels"],
        ["é_topK", "topK", [3, None], "é", "labels"],
    ]
    assert request_of(read_request(request)) == request


def test_names_of_the_model_are_left_alone() -> None:
    graph = Graph("", inputs=[Value("metrics.mae", "float32", (3,)), Value("t", "float32", (3,))], opsets={"": 18})
    request = request_of([Asked("mae", make_metric("mae"), "metrics.mae", "t")])
    extended, (described,) = with_metrics(graph, request, [])
    assert described.sums == "metrics.mae_1" and not graph.nodes and len(extended.nodes) == 1


def linear(outputs: int) -> Any:
    """x[batch, 3] -> MatMul = y[batch, outputs]."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    return make_model([node], {"x": ["batch", 3]}, {"y": ["batch", outputs]}, {"w": normal(3, outputs)})


@pytest.mark.parametrize(
    ("loss", "found"),
    [("CrossEntropyLoss", "y"), ("MSELoss", "y"), ("BCEWithLogitsLoss", "y"), ("HuberLoss", "y"), ("KLDivLoss", "y")],
)
def test_what_the_loss_compares_is_found(loss: str, found: str) -> None:
    graph = read_model(build_artifacts(linear(2), loss=loss, optimizer="AdamW").eval_model)
    assert compared_with(graph, [v.name for v in graph.inputs if v.name != "w"]) == found


def test_an_eval_model_needs_no_output_for_metrics() -> None:
    files = build_artifacts(linear(4), loss="CrossEntropyLoss", optimizer="AdamW")
    data = {"x": RNG.standard_normal((50, 3)).astype(np.float32), "labels": RNG.integers(0, 3, 50)}
    metrics = ["accuracy", "confusionMatrix", "perplexity", {"type": "topK", "k": 2}]
    with trainweb.TrainingSession(**files) as session:
        assert len(session.output_names(False)) == 1  # the loss
        history = Trainer(session).fit(data, validation_data=data, batch_size=16, metrics=metrics, progress=False)
        weights = session.get_contiguous_parameters(False).reshape(3, 4).astype(np.float64)
        found = history.epochs[0].validation
        assert found is not None
    logits = data["x"].astype(np.float64) @ weights
    matrix = np.zeros((4, 4), int)
    np.add.at(matrix, (data["labels"], logits.argmax(1)), 1)
    assert found["confusionMatrix"] == matrix.tolist()
    assert found["accuracy"] == pytest.approx(np.trace(matrix) / 50, rel=1e-15)
    own = np.take_along_axis(logits, data["labels"][:, None], 1)
    assert found["topK"] == pytest.approx(((logits > own).sum(1) < 2).mean(), rel=1e-15)
    loss = np.mean(np.log(np.exp(logits).sum(1)) - own[:, 0])
    assert found["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "metrics" / "sklearn.json").read_text())["cases"]


@pytest.mark.parametrize(
    ("case", "metric"), [(case, metric) for case, recorded in GOLDEN.items() for metric in recorded["values"]]
)
def test_as_scikit_learn(case: str, metric: str) -> None:
    recorded = GOLDEN[case]
    scores, targets = np.array(recorded["scores"], np.float32), np.array(recorded["targets"])
    name, average = metric.split()
    found = counted({"type": name, "average": average}, scores, targets)
    assert found == pytest.approx(recorded["values"][metric], rel=1e-12)


def perceptron(loss: Any) -> trainweb.TrainingSession:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["logits"]), helper.make_node("Softmax", ["logits"], ["shares"])]
    weights = {"w": np.eye(3, dtype=np.float32)}
    outputs = {name: ["N", 3] for name in ("logits", "shares")[: 2 if isinstance(loss, dict) else 1]}
    made = make_model(nodes, {"x": ["N", 3]}, outputs, weights).SerializeToString()
    more = {"additional_output_names": ["shares"]} if isinstance(loss, dict) else {}
    return trainweb.TrainingSession.from_model(made, loss=loss, optimizer="SGD", **more)


def test_a_metric_that_is_no_number_is_told_or_refused() -> None:
    """Once where it is only shown; where early stopping waits for it, it never improves."""
    x, labels = RNG.standard_normal((8, 3)).astype(np.float32), np.arange(8) % 3
    one_class = {"x": x, "labels": np.zeros(8, np.int64)}
    said = "The metric 'auc' of the {} is NaN. .* of two classes for 'auc'"
    with perceptron("CrossEntropyLoss") as s:
        options: dict[str, Any] = {"validation_data": one_class, "metrics": ["auc", "accuracy"], "progress": False}
        with pytest.warns(UserWarning) as notices:
            history = s.fit({"x": x, "labels": labels}, epochs=3, **options)
        assert math.isnan(history.epochs[2].validation["auc"]) and history.epochs[2].validation["accuracy"] <= 1
        assert len([n for n in notices if re.match(said.format("validation data"), str(n.message))]) == 1
        with pytest.warns(UserWarning, match=said.format("data")):
            s.evaluate(one_class, metrics="auc")
        with pytest.raises(FeedError, match=said.format("validation data")):
            s.fit({"x": x, "labels": labels}, epochs=3, early_stopping={"metric": "auc", "patience": 1}, **options)


def test_errors_of_scores_whose_targets_are_probabilities_are_refused() -> None:
    """A softmax makes probabilities of the scores; classes are compared, and so is an output of probabilities."""
    x, shares = RNG.standard_normal((8, 3)).astype(np.float32), RNG.dirichlet(np.ones(3), 8).astype(np.float32)
    data = {"x": x, "logits_labels": shares}
    with perceptron({"logits": {"type": "CrossEntropyLoss", "probabilities": True}}) as s:
        for name in ("mae", "rmse", "r2"):
            with pytest.raises(ModelError, match=f"metrics is '{name}'; it must be a metric of classes, or a function"):
                s.evaluate(data, metrics={"logits": name})
        names = {"predictions": "shares", "targets": "logits_labels"}
        found = s.evaluate(data, metrics="mae", **names)["mae"]
        expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        assert found == pytest.approx(np.abs(expected - shares).mean(), rel=1e-5)
        found = s.evaluate(data, metrics={"logits": "accuracy"})["logits_accuracy"]
        assert found == pytest.approx(np.mean(x.argmax(1) == shares.argmax(1)))
    with perceptron("MSELoss") as s:
        error = s.evaluate({"x": x, "labels": shares}, metrics="mae")["mae"]
        assert error == pytest.approx(np.abs(x - shares).mean(), rel=1e-5)


def test_auc_of_what_has_no_pairs() -> None:
    assert math.isnan(counted("auc", SCORES[:, :1], np.zeros(97, np.int64)))
    each = counted({"type": "auc", "average": "none"}, SCORES, CLASSES)
    assert math.isnan(each[5]) and counted("auc", SCORES, CLASSES) == pytest.approx(np.mean(each[:5]))
    assert counted({"type": "recall", "average": "none"}, SCORES, CLASSES)[5] == 0
    with pytest.raises(FeedError, match=r"auc compares predictions \[rows, classes\]"):
        counted("auc", RNG.standard_normal((97, 3, 2)).astype(np.float32), CLASSES)
    with pytest.raises(FeedError, match="auc: the target 7 is not one of the 6 classes"):
        counted("auc", SCORES, np.full(97, 7))


SMOOTHED = {"name": "CrossEntropyLoss", "label_smoothing": 0.1}
DISTRIBUTIONS = {"name": "CrossEntropyLoss", "probabilities": True}


@pytest.mark.parametrize("layout", ["NTC", "NCT"])
@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (DISTRIBUTIONS, None),
        ({**DISTRIBUTIONS, "weights": [1.0, 2.0, 0.5, 3.0]}, None),
        ({**DISTRIBUTIONS, "label_smoothing": 0.1}, "w"),
        ([DISTRIBUTIONS, {**DISTRIBUTIONS, "label_smoothing": 0.1}], None),
        (SMOOTHED, None),
        (["CrossEntropyLoss", SMOOTHED], "w"),
    ],
    ids=str,
)
def test_outputs_with_losses_have_metrics_whatever_the_loss_makes_of_them(loss: Any, weight: Any, layout: str) -> None:
    """As many steps as classes: only the loss tells which axis holds the classes."""
    axis, rng = layout.index("C"), np.random.default_rng(3)
    nodes = [helper.make_node("Mul", ["x", "f"], ["kind"]), helper.make_node("Mul", ["z", "f"], ["age"])]
    shapes = {"kind": ["N", 4, 4], "age": ["N", 1]}
    made = make_model(nodes, {"x": ["N", 4, 4], "z": ["N", 1]}, shapes, {"f": np.array([1.5], np.float32)})
    terms = [{"name": one} if isinstance(one, str) else one for one in (loss if isinstance(loss, list) else [loss])]
    by_output = {"kind": [{**one, "class_axis": axis} for one in terms], "age": "MSELoss"}
    x, z = (rng.standard_normal((6, *dims)).astype(np.float32) for dims in ((4, 4), (1,)))
    of_classes = labels = rng.integers(0, 4, (6, 4))
    if DISTRIBUTIONS.items() <= terms[0].items():
        shares = rng.dirichlet(np.ones(4), (6, 4)).astype(np.float32)
        labels, of_classes = np.moveaxis(shares, -1, axis), shares.argmax(-1)
    data = {"x": x, "z": z, "kind_labels": labels, "age_labels": 0 * z}
    w = rng.random(6).astype(np.float32) if weight else np.ones(6)
    options = {"loss": by_output, "optimizer": "SGD", "sample_weight": weight}
    with trainweb.TrainingSession.from_model(made.SerializeToString(), **options) as s:
        fed = data | ({"w": w} if weight else {})
        result = s.evaluate(fed, metrics={"kind": "accuracy", "age": "mae"}, batch_size=4)
    right = x.argmax(axis) == of_classes
    assert result["kind_accuracy"] == pytest.approx((right.mean(1) * w).sum() / w.sum(), rel=1e-6)
    assert result["age_mae"] == pytest.approx((np.abs(1.5 * z[:, 0]) * w).sum() / w.sum(), rel=1e-6)
