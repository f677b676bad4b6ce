"""Weights of rows and labels, as Keras computes them in training, validation and metrics."""

import warnings
from typing import Any

import numpy as np
import pytest
from tests.python.test_loss_terms import ARRAYS, FIT, HISTORIES, check_parameters, rows, session

import trainweb
from trainweb.errors import FeedError, ModelError

TASKS = {"name": "present", "of": "labels"}


def check(
    case: str, loss: Any, metrics: Any, columns: dict[str, str], names: dict[str, str], weight: Any = "w"
) -> None:
    """A fit is that of Keras; `names` are those of Keras by ours."""
    outputs = {"rows": ["kind", "age"], "one": ["kind"], "tasks": ["tasks"]}[case]
    with session(loss, *outputs, sample_weight=weight) as s:
        history = s.fit(
            rows("train", **columns), validation_data=rows("test", **columns), metrics=metrics, accumulate=1, **FIT
        )
        check_parameters(s, case, *outputs)
    keras = HISTORIES[case]
    np.testing.assert_allclose([e.loss for e in history.epochs], keras["loss"], rtol=1e-5)
    for name, of_keras in names.items():
        values = [e.validation[name] for e in history.epochs if e.validation]
        np.testing.assert_allclose(values, keras[f"val_{of_keras}"], rtol=2e-5, err_msg=name)


def test_rows_of_two_outputs() -> None:
    check(
        "rows",
        {"kind": "CrossEntropyLoss", "age": {"name": "MSELoss", "weight": 0.5}},
        {"kind": "accuracy", "age": ["mae", "r2"]},
        {"kind_labels": "kind", "age_labels": "age", "w": "w"},
        {
            **{name: name for name in ("loss", "kind_loss", "age_loss", "kind_accuracy", "age_mae")},
            "age_r2": "age_r2_score",
        },
    )


def test_rows_of_one_output() -> None:
    check(
        "one",
        "CrossEntropyLoss",
        ["accuracy", {"type": "topK", "k": 2}],
        {"labels": "kind", "w": "w"},
        {"loss": "loss", "accuracy": "accuracy", "topK": "top2"},
    )


def test_labels_that_some_tasks_lack() -> None:
    name = "target"
    check("tasks", "BCEWithLogitsLoss", [], {name: "tasks", "present": "present"}, {"loss": "loss"}, TASKS)


def evaluated(loss: Any, data: dict[str, Any], metrics: Any = (), weight: Any = "w", output: str = "age") -> Any:
    with session(loss, output, sample_weight=weight) as s:
        return s.evaluate(data, metrics=list(metrics), batch_size=7)


def test_labels_of_weight_0_may_be_missing() -> None:
    data = rows("train", target="age", w="w")
    data["target"] = np.where(data["w"][:, None] == 0, np.nan, data["target"])
    with session("MSELoss", "age", sample_weight="w") as s:
        history = s.fit(data, **FIT)
        error = s.predict({"x": data["x"]})["age"][:, 0].astype(np.float64) - np.nan_to_num(data["target"][:, 0])
        result = s.evaluate(data, metrics=["mae"], batch_size=4)
    assert np.isfinite(history.losses).all()
    w = data["w"].astype(np.float64)
    assert result["loss"] == pytest.approx((w * error**2).sum() / len(w), rel=1e-5)
    assert result["mae"] == pytest.approx((w * np.abs(error)).sum() / w.sum(), rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        "CrossEntropyLoss",
        {"type": "CrossEntropyLoss", "reduction": "sum"},
        {"type": "CrossEntropyLoss", "weight": [1.0, 2.0, 3.0], "ignore_index": 1},
        {"type": "CrossEntropyLoss", "label_smoothing": 0.2, "weight": [1.0, 2.0, 3.0], "ignore_index": 1},
        {"type": "FocalLoss", "ignore_index": 1},
    ],
    ids=str,
)
def test_a_weight_multiplies_the_row_s_part_of_the_loss(loss: Any) -> None:
    """The gradient of the loss of all rows at once is linear in the weights: whole weights are rows that come again."""
    data = rows("train", labels="kind", w="w")
    scale = 2 * data["w"]
    with session(loss, "kind", sample_weight="w") as s, session(loss, "kind") as plain:
        whole = s.evaluate(data | {"w": scale}, batch_size=23)["loss"]
        each = [plain.evaluate({n: data[n][k : k + 1] for n in ("x", "labels")})["loss"] for k in range(23)]
    counts = np.ones(23) if not isinstance(loss, dict) or "ignore_index" not in loss else data["labels"] != 1
    classes = np.array(loss.get("weight", [1, 1, 1]) if isinstance(loss, dict) else [1, 1, 1])[data["labels"]] * counts
    parts = np.nan_to_num(np.array(each)) * classes * scale
    divisor = 23 if isinstance(loss, dict) and loss.get("reduction") == "sum" else classes.sum()
    assert whole == pytest.approx(parts.sum() / divisor, rel=1e-5)


@pytest.mark.parametrize("metric", ["f1", "precision", "recall", "mIoU"])
def test_metrics_of_whole_weights_are_those_of_rows_that_come_again(metric: str) -> None:
    data = rows("train", labels="kind", w="w")
    times = (2 * data["w"]).astype(int)
    again = {name: np.repeat(data[name], times, axis=0) for name in ("x", "labels")}
    for settings in (metric, {"type": metric, "average": "weighted"} if metric != "mIoU" else metric):
        weighted = evaluated("CrossEntropyLoss", data | {"w": times}, [settings], output="kind")[metric]
        with session("CrossEntropyLoss", "kind") as s:
            assert weighted == pytest.approx(s.evaluate(again, metrics=[settings])[metric], rel=1e-9)


def test_confusion_matrices_hold_weights() -> None:
    data = rows("train", labels="kind", w="w")
    matrix = evaluated("CrossEntropyLoss", data, ["confusionMatrix"], output="kind")["confusionMatrix"]
    assert np.sum(matrix) == pytest.approx(data["w"].sum())


def test_accumulated_batches_make_the_step_of_one() -> None:
    data, trained = rows("train", target="age", w="w"), []
    for size, steps in ((23, 1), (8, 3), (5, 5)):
        with session("MSELoss", "age", sample_weight="w") as s:
            s.fit(data, **(FIT | {"epochs": 1, "batch_size": size, "accumulate": steps}))
            trained.append(s.get_contiguous_parameters(False))
    np.testing.assert_allclose(trained[1], trained[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained[2], trained[0], rtol=1e-5, atol=1e-6)


def test_a_loss_of_the_model_itself_has_weights_too() -> None:
    from onnx import helper
    from tests.conformance.models import make_model

    nodes = [
        helper.make_node("MatMul", ["x", "hidden"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ]
    made = make_model(nodes, {"x": ["N", 6]}, {"loss": []}, {"hidden": ARRAYS["start.hidden"]})
    options = {"loss": None, "optimizer": "SGD", "sample_weight": "w"}
    with trainweb.TrainingSession.from_model(made.SerializeToString(), **options) as s:
        data = rows("train", w="w")
        result = s.evaluate(data, batch_size=23)["loss"]
    squares = (data["x"].astype(np.float64) @ ARRAYS["start.hidden"]) ** 2
    assert result == pytest.approx((squares.mean(1) * data["w"]).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "weight", "text"),
    [
        ("MSELoss", {"name": "w", "of": "tokens"}, "sample_weight.of is 'tokens'; it must be rows or labels"),
        ("MSELoss", 3, "sample_weight.name is 3; it must be a text"),
        ("MSELoss", np.ones(3), "sample_weight is <class 'numpy.ndarray'>; it must be the name of the column"),
        ("MSELoss", "h", "sample_weight is 'h'; it must be the name of a new input"),
        ("MSELoss", "x", "sample_weight is 'x'; it must be the name of a new input"),
        ("MSELoss", {"name": "labels", "of": "labels"}, "sample_weight is 'labels'; it must be"),
        ("MSELoss", "labels", "sample_weight is 'labels'; it must be the name of a new input"),
    ],
)
def test_wrong_weights_are_refused(loss: Any, weight: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        session(loss, "age", sample_weight=weight)


def test_each_output_has_a_mask_of_its_own() -> None:
    """Missing labels are NaN; the second term of an output leaves them out, too."""
    loss = {"tasks": ["BCEWithLogitsLoss", {"name": "MSELoss", "weight": 0.2}], "age": "MSELoss"}
    data = rows("train", tasks_labels="tasks", age_labels="age", present="present", w="w")
    data["tasks_labels"] = np.where(data["present"] == 0, np.nan, data["tasks_labels"])
    data["age_labels"] = np.where(data["w"][:, None] == 0, np.nan, data["age_labels"])
    metrics = {"age": "mae", "tasks": "mae"}
    with session(loss, "tasks", "age", sample_weight={"tasks": TASKS, "age": "w"}) as s:
        assert s.input_names() == ["x", "tasks_labels", "present", "age_labels", "w"]
        assert np.isfinite(s.fit(data, **FIT).losses).all()
        result = s.evaluate(data, metrics=metrics, batch_size=4)
        outputs = {name: values.astype(np.float64) for name, values in s.predict({"x": data["x"]}).items()}
    present, w = data["present"].astype(np.float64), data["w"].astype(np.float64)
    y = outputs["tasks"]
    labels = np.nan_to_num(data["tasks_labels"])
    entropies = present * (np.log1p(np.exp(y)) - y * labels)
    squares = present * (y - labels) ** 2
    errors = outputs["age"][:, 0] - np.nan_to_num(data["age_labels"][:, 0])
    assert result["tasks_BCEWithLogitsLoss"] == pytest.approx(entropies.mean(), rel=1e-5)
    assert result["tasks_MSELoss"] == pytest.approx(squares.mean(), rel=1e-5)
    assert result["age_loss"] == pytest.approx((w * errors**2).mean(), rel=1e-5)
    assert result["tasks_mae"] == pytest.approx((present * np.abs(y - labels)).sum() / present.sum(), rel=1e-5)
    assert result["age_mae"] == pytest.approx((w * np.abs(errors)).sum() / w.sum(), rel=1e-5)


def test_an_output_without_weights_counts_each_row() -> None:
    data = rows("test", kind_labels="kind", age_labels="age", w="w")
    loss = {"kind": "CrossEntropyLoss", "age": "MSELoss"}
    metrics = {"kind": "accuracy", "age": "mae"}
    with session(loss, "kind", "age") as plain, session(loss, "kind", "age", sample_weight={"age": "w"}) as s:
        expected = plain.evaluate({n: data[n] for n in ("x", "kind_labels", "age_labels")}, metrics=metrics)
        result = s.evaluate(data, metrics=metrics)
    assert result["kind_accuracy"] == expected["kind_accuracy"] and result["kind_loss"] == expected["kind_loss"]
    assert result["age_mae"] != pytest.approx(expected["age_mae"], rel=1e-3)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (TASKS, "sample_weight.of is 'labels'; it must be 'rows', or sample_weight has a mask for each"),
        ({"kinds": "w"}, "sample_weight.kinds is 'w'; it must be of an output with a loss: kind, age"),
        ({"age": {"name": "w", "of": "tokens"}}, "sample_weight.age.of is 'tokens'; it must be rows or labels"),
        ({"age": 3}, "sample_weight.age.name is 3; it must be a text"),
        ({"age": "age_labels"}, "sample_weight is 'age_labels'; it must be the name of a new input"),
        ({"age": "kind_labels"}, "sample_weight is 'kind_labels'; it must be the name of a new input"),
    ],
)
def test_wrong_weights_of_outputs_are_refused(weight: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        session({"kind": "CrossEntropyLoss", "age": "MSELoss"}, "kind", "age", sample_weight=weight)


def test_classes_and_rows_have_weights_together() -> None:
    """With equal weights of rows, all is as without them."""
    loss = {"kind": {"name": "CrossEntropyLoss", "weights": [1, 2, 1]}, "age": "MSELoss"}
    data = rows("test", kind_labels="kind", age_labels="age")
    with session(loss, "kind", "age") as plain, session(loss, "kind", "age", sample_weight="w") as s:
        expected = plain.evaluate(data, metrics={"kind": "accuracy"})
        result = s.evaluate({**data, "w": np.ones(len(data["x"]), "f4")}, metrics={"kind": "accuracy"})
    assert result == pytest.approx(expected, rel=1e-6)


def test_metrics_of_one_s_own_refuse_weights() -> None:
    own = {"mine": lambda a, b: 0.0, "yours": lambda a, b: 1.0}
    with pytest.raises(ModelError, match=r"A metric of your own \(mine, yours\) gets no weights"):
        evaluated("CrossEntropyLoss", rows("train", labels="kind", w="w"), [own], output="kind")
    loss = {"kind": "CrossEntropyLoss", "age": "MSELoss"}
    data = rows("train", kind_labels="kind", age_labels="age", w="w")
    pairs = {name: {"predictions": name, "targets": f"{name}_labels"} for name in loss}
    with session(loss, "kind", "age", sample_weight={"age": "w"}) as s:
        assert s.evaluate(data, metrics=[own], **pairs["kind"])["yours"] == 1
        with pytest.raises(ModelError, match="A metric of your own"):
            s.evaluate(data, metrics=[own], **pairs["age"])


@pytest.mark.parametrize(
    ("of", "weights", "text"),
    [
        (
            "rows",
            np.ones((23, 4), np.float32),
            "For weights of labels, make the session with 'of': 'labels' in sample_w",
        ),
        ("labels", np.ones(23, np.float32), "For weights of rows, make the session with 'of': 'rows' in sample_weight"),
        ("labels", np.ones((23, 3), np.float32), "export the model with dynamic axes"),
    ],
)
def test_weights_in_another_shape_say_what_they_are_of(of: str, weights: np.ndarray, text: str) -> None:
    data = rows("train", labels="tasks") | {"w": weights}
    stream = [{name: column[k] for name, column in data.items()} for k in range(23)]
    with session("MSELoss", "tasks", sample_weight={"name": "w", "of": of}) as s:
        calls = [s.evaluate, s.find_learning_rate, lambda one: s.fit(one, progress=False)]
        for call in calls:
            for given in (data, stream):
                with pytest.raises(FeedError, match=text):
                    call(given)


def test_evaluations_name_the_first_nan_once() -> None:
    """Of weights, and of an input where the weight is 0, which leaves out labels."""
    data = rows("train", labels="age", w="w")
    for name in ("w", "x"):
        given = {**data, name: data[name].copy()}
        given[name][[4, 9, 14]] = np.nan
        with session("MSELoss", "age", sample_weight="w") as s, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if name == "x":
                given["w"] = np.where(np.arange(23) % 5 == 4, np.float32(0), data["w"])
            for _ in range(2):
                assert np.isnan(s.evaluate(given, batch_size=3)["loss"])
            s.fit(data, validation_data=given, **FIT)
        said = [str(one.message) for one in caught]
        assert [one[: one.index(" Fill")] for one in said] == [
            f"The loss is nan. '{name}' has nan in row 4 of the {source}." for source in ("data", "validation data")
        ]
        assert "fill_median, even at weight 0" in said[0]


def area(scores: np.ndarray, is_right: np.ndarray, w: np.ndarray) -> float:
    """Of all pairs in float64: roc_auc_score(is_right, scores, sample_weight=w)."""
    pairs = w[is_right][:, None] * w[~is_right]
    apart = scores[is_right][:, None] - scores[~is_right]
    return float((pairs * ((apart > 0) + 0.5 * (apart == 0))).sum() / pairs.sum())


@pytest.mark.parametrize("average", ["macro", "none"])
def test_areas_under_curves_have_weights(average: str) -> None:
    data = rows("train", labels="kind", w="w")
    with session("CrossEntropyLoss", "kind", sample_weight="w") as s:
        result = s.evaluate(data, metrics={"type": "auc", "average": average}, batch_size=7)["auc"]
        history = s.fit(
            data, validation_data=data, metrics="auc", early_stopping={"metric": "auc", "patience": 1}, **FIT
        )
        scores = s.predict({"x": data["x"]})["kind"].astype(np.float64)
        after = s.evaluate(data, metrics="auc")["auc"]
    assert len(history["val_auc"]) >= 1 and isinstance(result, list) == (average == "none")
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    areas = [area(p[:, c], data["labels"] == c, data["w"].astype(np.float64)) for c in range(3)]
    assert after == pytest.approx(np.mean(areas), rel=1e-9)


def test_areas_of_yes_or_no_scores_have_weights_too() -> None:
    data = rows("train", labels="age", w="w")
    data["labels"] = (data["labels"] > 0).astype(np.float32)
    with session("BCEWithLogitsLoss", "age", sample_weight="w") as s:
        result = s.evaluate(data, metrics="auc", batch_size=7)["auc"]
        scores = s.predict({"x": data["x"]})["age"][:, 0].astype(np.float64)
    assert result == pytest.approx(area(scores, data["labels"][:, 0] > 0, data["w"].astype(np.float64)), rel=1e-9)


def test_the_share_for_validation_is_taken_of_the_labels_classes() -> None:
    data = rows("train", labels="kind", w="w")
    with session("CrossEntropyLoss", "kind", sample_weight="w") as s:
        s.fit(data, validation_split=0.3, stratify=True, **FIT)
        assert s.input_names() == ["x", "labels", "w"]
        assert s.predict({"x": data["x"]})["kind"].shape == (23, 3)


CLASSES = np.array([1.0, 2.0, 0.5, 3.0])
OF_LABELS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "classes": {"weight": CLASSES.tolist(), "ignore_index": 1},
    "smooth": {"label_smoothing": 0.2},
    "distributions": {"probabilities": True},
    "smooth distributions": {"probabilities": True, "weight": CLASSES.tolist(), "label_smoothing": 0.2},
}
LAYOUTS = {"NC": (5, 4), "NTC": (5, 3, 4), "NCT": (5, 4, 3), "NCHW": (2, 4, 3, 2)}


def of_labels(layout: str, loss: dict[str, Any]) -> tuple[trainweb.TrainingSession, dict[str, np.ndarray]]:
    """A session whose scores are its rows times a factor, with random data; weights have the shape of the labels."""
    from onnx import helper
    from tests.conformance.models import make_model

    shape, axis = LAYOUTS[layout], layout.index("C")
    names = [name if k != axis else 4 for k, name in enumerate(layout)]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["scores"])]
    made = make_model(nodes, {"x": names}, {"scores": names}, {"factor": np.array([1.5], np.float32)})
    settings = {"type": "CrossEntropyLoss", "class_axis": axis, **loss}
    options = {"loss": settings, "optimizer": "SGD", "sample_weight": {"name": "w", "of": "labels"}}
    rng, of_labels = np.random.default_rng(7), shape[:axis] + shape[axis + 1 :]
    labels = rng.integers(0, 4, of_labels)
    if loss.get("probabilities"):
        labels = np.moveaxis(rng.dirichlet(np.ones(4), of_labels), -1, axis).astype(np.float32)
    data = {"x": rng.standard_normal(shape).astype(np.float32), "labels": labels}
    data["w"] = rng.choice([0, 0.5, 1, 2], of_labels).astype(np.float32)
    return trainweb.TrainingSession.from_model(made.SerializeToString(), **options), data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_LABELS)
def test_each_label_of_a_cross_entropy_has_a_weight(name: str, layout: str) -> None:
    """PyTorch's formulas in float64: the loss of each label times its weight, over the divisor without weights."""
    loss, axis = OF_LABELS[name], layout.index("C")
    s, data = of_labels(layout, loss)
    with s:
        result = s.evaluate(data, metrics=["accuracy"], batch_size=2)
        if loss.get("probabilities"):
            missing = np.expand_dims(data["w"] == 0, axis)
            s.fit({**data, "labels": np.where(missing, np.nan, data["labels"])}, epochs=1, batch_size=2)
            assert np.isfinite(s.get_contiguous_parameters(False)).all()
    scores = np.moveaxis(data["x"] * 1.5, axis, -1).astype(np.float64)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    labels, w = data["labels"], data["w"].astype(np.float64)
    classes = np.array(loss.get("weight", np.ones(4)))
    counts = labels != loss.get("ignore_index", -1)
    target = np.eye(4)[labels] if not loss.get("probabilities") else np.moveaxis(labels, axis, -1)
    mean = 1.0 * w.size
    if "ignore_index" in loss:
        target = target * counts[..., None]
        mean = (target * classes).sum()
    smooth = loss.get("label_smoothing", 0)
    parts = -(1 - smooth) * (target * classes * log_p).sum(-1) - smooth * (classes * log_p).mean(-1)
    rows = len(w) if loss.get("reduction") == "sum" else mean
    assert result["loss"] == pytest.approx((parts * w).sum() / rows, rel=1e-5)
    right = scores.argmax(-1) == (target.argmax(-1) if loss.get("probabilities") else labels)
    share = w * counts if "ignore_index" in loss else w
    assert result["accuracy"] == pytest.approx((right * share).sum() / share.sum(), rel=1e-6)


def test_weights_of_labels_that_have_one_loss_are_refused() -> None:
    from onnx import helper
    from tests.conformance.models import make_model

    from trainweb import onnxblock
    from trainweb.onnxblock import blocks

    class OfRows(onnxblock.Block):
        """A loss of each row, not of each label."""

        def build(self, output: str) -> str:
            apart = blocks.Sub()(output, blocks.InputLike(output)("labels"))
            return str(blocks.ReduceMean(keepdims=False)(blocks.over_last_axis("ReduceSum", blocks.Abs()(apart))))

    with pytest.raises(ModelError, match=r"sample_weight.of is 'labels'; it must be 'rows', because the loss has no"):
        session(OfRows(), "kind", sample_weight={"name": "w", "of": "labels"})
    nodes = [helper.make_node("Mul", ["x", "factor"], ["scores"])]
    made = make_model(nodes, {"x": ["T", "N", 4]}, {"scores": ["T", "N", 4]}, {"factor": np.ones(1, np.float32)})
    options = {"loss": "CTCLoss", "sample_weight": {"name": "w", "of": "labels"}}
    with pytest.raises(ModelError, match=r"sample_weight.of is 'labels'; it must be 'rows', because the labels of a"):
        trainweb.TrainingSession.from_model(made.SerializeToString(), **options)
