"""Several outputs, each with losses of its own and weights: the numbers are Keras', and float64 formulas."""

import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, load_from_string
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError
from trainweb.page.bundle import metrics_kind
from trainweb.training.core import SessionCore
from trainweb.training.step_kind import TRAIN

RECORDED = Path(__file__).parents[1] / "golden" / "outputs"
ARRAYS = np.load(RECORDED / "expected.npz")
HISTORIES = json.loads((RECORDED / "expected.json").read_text())
SIZES = {"kind": 3, "age": 1, "tasks": 4}
LOSS = {"kind": "CrossEntropyLoss", "age": {"name": "HuberLoss", "weight": 0.3}}
FIT = {"epochs": 3, "batch_size": 5, "shuffle": False, "learning_rate": 0.1, "progress": False}


def model(*outputs: str) -> bytes:
    """relu(x hidden) times the weights of each output."""
    nodes = [helper.make_node("MatMul", ["x", "hidden"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    nodes += [helper.make_node("MatMul", ["r", f"{name}.w"], [name]) for name in outputs]
    weights = {"hidden": ARRAYS["start.hidden"], **{f"{name}.w": ARRAYS[f"start.{name}"] for name in outputs}}
    made = make_model(nodes, {"x": ["N", 6]}, {name: ["N", SIZES[name]] for name in outputs}, weights)
    return bytes(made.SerializeToString())


def session(loss: Any, *outputs: str, optimizer: Any = "SGD", **options: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(model(*outputs), loss=loss, optimizer=optimizer, **options)


def rows(part: str, **columns: str) -> dict[str, np.ndarray]:
    """Columns of the recorded data by the names of inputs."""
    return {"x": ARRAYS[f"{part}.x"], **{name: ARRAYS[f"{part}.{source}"] for name, source in columns.items()}}


def check_parameters(s: trainweb.TrainingSession, case: str, *outputs: str) -> None:
    trained = s.state.parameters
    for name, recorded in (("hidden", "hidden"), *((f"{output}.w", output) for output in outputs)):
        np.testing.assert_allclose(trained[name].data, ARRAYS[f"{case}.{recorded}"], rtol=2e-5, atol=2e-6)


def test_two_outputs_train_as_in_keras() -> None:
    labels = {"kind_labels": "kind", "age_labels": "age"}
    with session(LOSS, "kind", "age") as s:
        history = s.fit(
            rows("train", **labels),
            validation_data=rows("test", **labels),
            metrics={"kind": "accuracy", "age": ["mae"]},
            train_metrics=True,
            **FIT,
        )
        check_parameters(s, "terms", "kind", "age")
    keras = HISTORIES["terms"]
    for name in ("loss", "kind_loss", "age_loss"):
        np.testing.assert_allclose(history[name], keras[name], rtol=1e-5)
    for name in ("loss", "kind_loss", "age_loss", "kind_accuracy", "age_mae"):
        values = [e.validation[name] for e in history.epochs if e.validation]
        np.testing.assert_allclose(values, keras[f"val_{name}"], rtol=1e-5, err_msg=name)
    assert all(set(e.training or ()) == set(e.validation or ()) for e in history.epochs)


def test_a_fit_of_one_term_has_no_terms() -> None:
    data = rows("train", age_labels="age")
    with session({"age": {"name": "HuberLoss", "weight": 0.3}}, "age", "kind", additional_output_names=["kind"]) as s:
        history = s.fit(data, **FIT)
        assert history.names() == ["loss", "learning_rate"] and history.epochs[0].terms == {}
        assert s._core.models.counts_of(TRAIN) == []


def test_history_and_early_stopping_know_the_terms() -> None:
    labels = {"kind_labels": "kind", "age_labels": "age"}
    with session(LOSS, "kind", "age") as s:
        early = {"patience": 1, "metric": "age_loss"}
        history = s.fit(rows("train", **labels), validation_data=rows("test", **labels), early_stopping=early, **FIT)
        assert history.best_epoch is not None
        assert len(history["val_kind_loss"]) == len(history.epochs)
        result = s.evaluate(rows("test", **labels))
        assert result.keys() == {"loss", "kind_loss", "age_loss"}
        # The weighted sum of the terms is the loss, in evaluations of several batches, too.
        assert result["loss"] == pytest.approx(result["kind_loss"] + 0.3 * result["age_loss"], rel=1e-6)


def test_steps_return_the_terms() -> None:
    with session(LOSS, "kind", "age") as s:
        results = s.train_step(rows("train", kind_labels="kind", age_labels="age"))
        assert s.output_names()[:3] == [s.output_names()[0], "kind_loss", "age_loss"]
        kind, age = (float(results[name]) for name in ("kind_loss", "age_loss"))
        assert float(results[s.output_names()[0]]) == pytest.approx(kind + 0.3 * age, rel=1e-6)


def test_an_output_may_have_several_terms() -> None:
    loss = {"age": ["MSELoss", {"name": "L1Loss", "weight": 0.1}, {"type": "L1Loss", "reduction": "sum"}]}
    data = rows("train", age_labels="age")
    with session(loss, "age", "kind") as s:
        result = s.evaluate(data, batch_size=4)
        error = s.predict({"x": data["x"]}, outputs=["age"])["age"].astype(np.float64) - data["age_labels"]
    assert result["age_MSELoss"] == pytest.approx((error**2).mean(), rel=1e-5)
    assert result["age_L1Loss"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert result["age_L1Loss_1"] == pytest.approx(np.abs(error).sum() / len(error), rel=1e-5)


def test_a_term_of_labels_that_are_left_out_counts_the_others() -> None:
    loss = {
        "kind": {"name": "CrossEntropyLoss", "ignore_index": 2, "weights": [1.0, 3.0, 1.0], "weight": 2},
        "age": "MSELoss",
    }
    data = rows("train", kind_labels="kind", age_labels="age")
    with session(loss, "kind", "age") as s:
        results = [s.evaluate(data, batch_size=size)["kind_loss"] for size in (1, 4, 23)]
        scores = s.predict({"x": data["x"]}, outputs=["kind"])["kind"].astype(np.float64)
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    weights = np.array([1.0, 3.0, 0.0])[data["kind_labels"]]
    expected = -(weights * log_p[np.arange(23), data["kind_labels"]]).sum() / weights.sum()
    np.testing.assert_allclose(results, expected, rtol=1e-5)


def test_the_loss_of_evaluations_is_the_weighted_sum_of_its_terms() -> None:
    """Terms have divisors of their own, so the losses of batches do not combine by rows."""
    loss = {
        "kind": {"name": "CrossEntropyLoss", "ignore_index": 2, "weight": 0.7},
        "age": [{"name": "MSELoss", "weight": 2}, {"name": "L1Loss", "reduction": "sum"}],
    }
    data = rows("train", kind_labels="kind", age_labels="age")
    with session(loss, "kind", "age") as s:
        for size in (1, 4, 23):
            result = s.evaluate(data, batch_size=size)
            terms = 0.7 * result["kind_loss"] + 2 * result["age_MSELoss"] + result["age_L1Loss"]
            assert result["loss"] == pytest.approx(terms, rel=1e-7)


def test_metrics_ignore_the_label_that_the_loss_of_their_output_ignores() -> None:
    data = rows("train", kind_labels="kind", age_labels="age")
    data["kind_labels"] = np.where(data["kind_labels"] == 2, -1, data["kind_labels"])
    names = ("accuracy", "f1", "confusionMatrix")
    for name in ("CrossEntropyLoss", "FocalLoss"):
        loss = {"kind": {"name": name, "ignore_index": -1}, "age": "MSELoss"}
        with session(loss, "kind", "age") as s:
            asked = [[{"type": metric, "ignore_index": -1} for metric in names], list(names)]
            values = [s.evaluate(data, metrics={"kind": metrics}) for metrics in asked]
        assert values[0] == values[1] and sum(map(sum, values[1]["kind_confusionMatrix"])) < 23


def test_a_gradient_is_no_label() -> None:
    loss = {"kind": "OutputGradient", "age": "MSELoss"}
    data = rows("train", age_labels="age") | {"kind_gradient": np.ones((23, 3), np.float32)}
    text = "'kind_gradient' is the gradient of 'kind'"
    with session(loss, "kind", "age") as s, pytest.raises(ModelError, match=text):
        s.evaluate(data, metrics={"kind": "accuracy"})
    with session(loss, "kind", "age") as s:
        assert "age_mae" in s.evaluate(data, metrics={"age": "mae"})
    with session("OutputGradient", "kind") as s, pytest.raises(ModelError, match="is the gradient of 'kind'"):
        data = rows("train") | {"gradient": np.ones((23, 3), np.float32)}
        s.fit(data, metrics="accuracy", validation_split=0.2, **FIT)


def test_a_loss_may_have_its_name_as_name() -> None:
    with (
        session({"name": "HuberLoss", "delta": 2.0}, "age") as named,
        session({"type": "HuberLoss", "delta": 2.0}, "age") as s,
    ):
        assert named.input_names() == s.input_names()
        data = {"x": ARRAYS["train.x"], s.input_names()[-1]: ARRAYS["train.age"]}
        assert named.evaluate(data) == s.evaluate(data)


def test_bundles_sum_up_the_terms() -> None:
    with session(LOSS, "kind", "age") as s:
        core: SessionCore = s._core
        kind = metrics_kind(core.models, [{"kind": "accuracy"}])
    assert kind is not None
    assert kind.request == [
        ["age_loss", "term", [], "age_loss", ""],
        ["kind_accuracy", "accuracy", [None], "kind", "kind_labels"],
        ["kind_loss", "term", [], "kind_loss", ""],
    ]


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (
            {"kind": {"name": "CrossEntropyLoss", "weight": -1}},
            "loss.kind.weight is -1; it must be a number at least 0",
        ),
        ({"kind": {"name": "CrossEntropyLoss", "weight": [1, 2, 3]}}, "weights of classes are 'weights'"),
        ({"kinds": "CrossEntropyLoss"}, r"kinds is not .* output; did you mean 'kind'\? The outputs are kind, age"),
        ({"kind": "TripletMarginLoss"}, "TripletMarginLoss takes 3 of the model's outputs.*Give each output its loss"),
        ("MSELoss", r"kind, age. Give each output its loss, as \{'kind': 'MSELoss', \.\.\.\}, or choose with"),
        ({"reduction": "sum"}, "loss needs the setting 'type': one of MSELoss"),
        ({"label_smoothing": 0.1}, "loss needs the setting 'type': one of MSELoss"),
        ({"age": {"weight": 0.5}}, "loss.age needs the setting 'type': one of MSELoss"),
        ({"kind": "CrossEntropyLoss", "age": []}, r"loss.age is \[\]; it must be a loss, or a list of losses"),
        ({"kind": "CrossEntropyLoss", "age": None}, "loss.age is None; it must be the name of one, such as 'MSELoss'"),
        (
            {"kind": "CrossEntropyLoss", "age": ["MSELoss", 5]},
            "loss.age is 5; it must be the name of one, such as 'MSELoss'",
        ),
    ],
)
def test_terms_that_are_wrong_are_refused(loss: Any, text: str) -> None:
    with pytest.raises((ModelError, TypeError), match=text):
        session(loss, "kind", "age", sample_weight={"kind": "w"} if "kind" in loss else None)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (5, "loss is 5; it must be the name of one"),
        ({"name": "L1Loss", "weight": -1}, "loss.weight is -1; it must be a number"),
        ("L2Loss", "There is no loss 'L2Loss'"),
    ],
)
def test_a_wrong_term_of_a_list_has_the_name_of_the_option(term: Any, said: str) -> None:
    """As in a page, which does not know the name of the output yet."""
    with pytest.raises((ModelError, TypeError), match=f"^{said}"):
        session(["MSELoss", term], "age")


def test_a_function_is_refused_by_the_name_of_its_output() -> None:
    with pytest.raises(ModelError, match=r"loss\.age is .*goes to 'OutputGradient'"):
        session({"kind": "CrossEntropyLoss", "age": lambda *_: 1}, "kind", "age")


def test_an_output_behind_softmax_may_be_replaced_by_its_scores() -> None:
    softmax = helper.make_node("Softmax", ["kind"], ["shares"])
    made = load_from_string(model("kind", "age"))
    made.graph.node.append(softmax)
    made.graph.output[0].name = "shares"
    options = {"optimizer": "SGD"}
    with pytest.warns(UserWarning, match=r"Give it the scores: loss=\{'kind': \.\.\.\}"):
        build_artifacts(made.SerializeToString(), loss={"shares": "CrossEntropyLoss", "age": "MSELoss"}, **options)
    built = build_artifacts(made.SerializeToString(), loss={"kind": "CrossEntropyLoss", "age": "MSELoss"}, **options)
    inputs = [v.name for v in load_from_string(built.eval_model).graph.input]
    assert [name for name in inputs if name.endswith("_labels")] == ["kind_labels", "age_labels"]


def test_names_of_outputs_come_from_the_terms_alone() -> None:
    with pytest.raises(ModelError, match="left out with a loss for each output"):
        session(LOSS, "kind", "age", loss_input_names=["kind"])
    with pytest.raises(TypeError, match="did you mean 'HuberLoss'"):
        session({"age": "Huberloss"}, "age")


@pytest.mark.parametrize(
    ("metrics", "options", "text"),
    [
        ({"age": "perplexity"}, {}, "a mean cross entropy without weights of rows; age_loss is something else"),
        ("perplexity", {}, "the loss is something else. Ask for the perplexity of an output"),
        ({"kind": "accuracy"}, {"predictions": "age"}, "predictions is 'age'; it must be left out"),
        ({"kinds": "accuracy"}, {}, "predictions is 'kinds'"),
        ({"kind": {"own": lambda a, b: 0.0}}, {}, "cannot be one of an output's metrics"),
        ("accuracy", {}, "the loss does not tell which. Give metrics by output"),
    ],
)
def test_metrics_of_outputs_are_checked(metrics: Any, options: Any, text: str) -> None:
    with session(LOSS, "kind", "age") as s, pytest.raises(ModelError, match=text):
        s.evaluate(rows("test", kind_labels="kind", age_labels="age"), metrics=metrics, **options)


def test_check_and_its_code_know_losses_of_outputs() -> None:
    report = trainweb.check(model("kind", "age"), loss=LOSS, optimizer="SGD")
    assert report.ok and {f.name for f in report.feeds} == {"x", "kind_labels", "age_labels"}
    assert '{"kind": "CrossEntropyLoss", "age": {"name": "HuberLoss", "weight": 0.3}}' in report.code["python"]
    assert (
        'loss: { "kind": "CrossEntropyLoss", "age": { name: "HuberLoss", weight: 0.3 } }' in report.code["javascript"]
    )


def test_the_eval_model_notes_its_terms() -> None:
    built = build_artifacts(model("kind", "age"), loss=LOSS, optimizer="SGD")
    metadata = {p.key: p.value for p in load_from_string(built.eval_model).metadata_props}
    assert json.loads(metadata["trainweb.loss_terms"]) == ["kind_loss", "age_loss"]


def test_an_output_with_a_cross_entropy_has_a_perplexity() -> None:
    data = rows("test", kind_labels="kind", age_labels="age")
    with session(LOSS, "kind", "age") as s:
        result = s.evaluate(data, metrics={"kind": "perplexity", "age": "mae"}, batch_size=4)
        scores = s.predict({"x": data["x"]})["kind"].astype(np.float64)
        history = s.fit(data, validation_data=data, metrics={"kind": "perplexity"}, **FIT)
    entropies = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(scores)), data["kind_labels"]]
    assert result["kind_perplexity"] == pytest.approx(np.exp(entropies.mean()), rel=1e-5)
    assert history["val_kind_perplexity"] == pytest.approx(np.exp(history["val_kind_loss"]))


OF_CLASSES = {"type": "CrossEntropyLoss", "weight": [1.0, 2.0, 3.0], "ignore_index": 1, "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("loss", "has_one"),
    [
        ("CrossEntropyLoss", True),
        (OF_CLASSES, True),
        ({"type": "CrossEntropyLoss", "probabilities": True, "label_smoothing": 0.1, "weight": [1.0, 2.0, 3.0]}, True),
        ({"type": "CrossEntropyLoss", "reduction": "sum"}, False),
        *((name, False) for name in ("FocalLoss", "MSELoss", "BCEWithLogitsLoss", "KLDivLoss", "HuberLoss")),
        ({"type": "FocalLoss", "ignore_index": 1}, False),
    ],
    ids=str,
)
def test_only_mean_cross_entropies_have_a_perplexity(loss: Any, has_one: bool) -> None:
    name = loss if isinstance(loss, str) else loss["type"]
    labels = rows("test", labels="kind")
    if name not in ("CrossEntropyLoss", "FocalLoss") or "probabilities" in loss:
        labels["labels"] = np.eye(3, dtype=np.float32)[labels["labels"]]
    with session(loss, "kind") as s:
        if has_one:
            result = s.evaluate(labels, metrics="perplexity", batch_size=4)
            assert result["perplexity"] == pytest.approx(np.exp(result["loss"]))
        else:
            with pytest.raises(ModelError, match="the loss is something else"):
                s.evaluate(labels, metrics="perplexity")
    if name == "CrossEntropyLoss":
        with (
            session(loss, "kind", sample_weight="w") as s,
            pytest.raises(ModelError, match="the loss is something else"),
        ):
            s.evaluate({**labels, "w": np.ones(len(labels["x"]), np.float32)}, metrics="perplexity")


@pytest.mark.parametrize(
    "terms",
    [
        ["CrossEntropyLoss", {"name": "CrossEntropyLoss", "probabilities": True}],
        [{"name": "CrossEntropyLoss", "probabilities": True}, "FocalLoss"],
        ["KLDivLoss", "CrossEntropyLoss"],
    ],
    ids=str,
)
def test_terms_of_an_output_share_their_labels(terms: Any) -> None:
    with pytest.raises(ModelError, match=r"share the input 'kind_labels': (Cross|Focal).* takes classes here, .*mean"):
        session({"kind": terms}, "kind")
    with session({"kind": ["CrossEntropyLoss", "OutputGradient"]}, "kind") as s:
        assert s.input_names() == ["x", "kind_labels", "kind_gradient"]


def test_a_function_without_a_name_is_told_to_have_one() -> None:
    with (
        session(LOSS, "kind", "age") as s,
        pytest.raises(TypeError, match="a function needs a name"),
    ):
        s.evaluate(rows("test", kind_labels="kind", age_labels="age"), metrics=[lambda a, b: 0.0])


WEIGHED = {"kind": {"name": "CrossEntropyLoss", "weights": [1.0, 5.0, 0.2]}, "age": "MSELoss"}


@pytest.mark.parametrize(
    ("loss", "accumulate", "names"),
    [
        (WEIGHED, 4, "kind_loss"),
        (WEIGHED, 1, ""),
        (WEIGHED, {"steps": 4, "reduction": "sum"}, ""),
        (LOSS, 4, ""),
        ({**LOSS, "kind": {"name": "FocalLoss", "ignore_index": 2}}, 4, "kind_loss"),
        ({"kind": LOSS["kind"], "age": [{"name": "L1Loss", "reduction": "sum"}, "MSELoss"]}, 4, "age_L1Loss"),
        ({"kind": {"name": "CrossEntropyLoss", "ignore_index": 2}}, 4, ""),
    ],
)
def test_accumulate_refuses_terms_that_rows_do_not_divide(loss: Any, accumulate: Any, names: str) -> None:
    data = rows("train", **{f"{output}_labels": output for output in loss})
    said = pytest.raises(ModelError, match=f"do not divide these terms of the loss: {names}[.] Raise 'batch_size'")
    with session(loss, "kind", "age") as s, said if names else nullcontext():
        s.fit(data, accumulate=accumulate, **FIT)


def test_sums_of_terms_accumulate_to_the_step_of_one_large_batch() -> None:
    """As the error says; the gradient of the sum of the absolute errors at the only layer is in numpy."""
    nodes = [helper.make_node("MatMul", ["x", f"{name}.w"], [name]) for name in ("kind", "age")]
    weights = {f"{name}.w": ARRAYS[f"start.{name}"][:6].astype(np.float32) for name in ("kind", "age")}
    made = make_model(nodes, {"x": ["N", 6]}, {name: ["N", SIZES[name]] for name in ("kind", "age")}, weights)
    summed = {"name": "L1Loss", "reduction": "sum"}
    data = rows("train", age_labels="age") | {"kind_labels": np.zeros((23, 3), np.float32)}
    given = {"loss": {"kind": summed, "age": summed}, "optimizer": "SGD"}
    with trainweb.TrainingSession.from_model(made.SerializeToString(), **given) as s:
        s.fit(data, accumulate={"steps": 5, "reduction": "sum"}, **FIT | {"epochs": 1, "learning_rate": 0.01})
        for name in ("kind", "age"):
            x, w = data["x"].astype(np.float64), weights[f"{name}.w"]
            expected = w - 0.01 * x.T @ np.sign(x @ w - data[f"{name}_labels"])
            np.testing.assert_allclose(s.state.parameters[f"{name}.w"].data, expected, rtol=1e-5, atol=1e-6)


def test_a_list_of_losses_is_of_the_only_output() -> None:
    data = rows("train", labels="age")
    for names, options in ((("age",), {}), (("age", "kind"), {"loss_input_names": ["age"]})):
        with session(["MSELoss", {"name": "L1Loss", "weight": 0.1}], *names, **options) as s:
            result = s.evaluate(data, batch_size=4)
            error = s.predict({"x": data["x"]}, outputs=["age"])["age"].astype(np.float64) - data["labels"]
            s.fit(data, **FIT)
        assert result["loss"] == pytest.approx((error**2).mean() + 0.1 * np.abs(error).mean(), rel=1e-5)
    assert trainweb.check(model("age"), loss=["MSELoss", "L1Loss"]).ok
    for loss, names, text in (
        (["MSELoss"], ("age", "kind"), r"it must be losses by outputs, such as \{'age': \['MSELoss', \.\.\.\]\}"),
        ([], ("age",), r"loss is \[\]; it must be losses by outputs"),
    ):
        with pytest.raises(ModelError, match=text):
            session(loss, *names)


SHARES = np.random.default_rng(3).dirichlet(np.ones(3), 23).astype(np.float32)


@pytest.mark.parametrize(
    ("labels", "is_named"),
    [(SHARES, False), (2 * SHARES, True), (SHARES - 0.1, True), (SHARES + np.array([2, -2, 0]), True)],
)
@pytest.mark.parametrize("form", ["columns", "rows", "batches"])
@pytest.mark.parametrize("by_output", [False, True])
def test_a_notice_names_labels_that_are_no_probabilities(
    labels: np.ndarray, is_named: bool, by_output: bool, form: str
) -> None:
    loss = {"type": "CrossEntropyLoss", "probabilities": True}
    with session({"kind": loss, "age": "MSELoss"} if by_output else loss, *["kind", "age"][: 1 + by_output]) as s:
        data = rows("train", age_labels="age") if by_output else rows("train")
        name = "kind_labels" if by_output else "labels"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            columns = {**data, name: np.asarray(labels, np.float32)}
            rows_of_data = [{n: array[k] for n, array in columns.items()} for k in range(23)]
            fed = {"columns": columns, "rows": rows_of_data, "batches": [columns]}[form]
            options = {key: value for key, value in FIT.items() if form == "columns" or key == "progress"}
            for _ in range(2):
                s.fit(fed, **options | {"learning_rate": 1e-6})
    said = [str(one.message) for one in caught]
    assert len(said) == is_named and all(f"The first rows of '{name}' are no probabilities" in one for one in said)


def test_probabilities_may_lie_on_any_axis() -> None:
    nodes = [helper.make_node("Mul", ["x", "factor"], ["scores"])]
    made = make_model(nodes, {"x": ["N", 4, 3]}, {"scores": ["N", 4, 3]}, {"factor": np.array([1.5], np.float32)})
    loss = {"type": "CrossEntropyLoss", "class_axis": 1, "probabilities": True}
    labels = np.moveaxis(np.random.default_rng(7).dirichlet(np.ones(4), (5, 3)), -1, 1).astype(np.float32)
    session_of = trainweb.TrainingSession.from_model(made.SerializeToString(), loss=loss, optimizer="SGD")
    with session_of as s, warnings.catch_warnings():
        warnings.simplefilter("error")
        s.fit({"x": np.zeros((5, 4, 3), np.float32), "labels": labels}, **FIT)
