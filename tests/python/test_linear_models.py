"""Linear models of ai.onnx.ml, as skl2onnx writes LogisticRegression and Ridge: against onnx's reference evaluator."""

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError, UnsupportedError
from trainweb.session.inference_session import InferenceSession
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 4)).astype(np.float32)
ROWS = RNG.standard_normal((3, 4)).astype(np.float32)
INTERCEPTS = np.array([0.5, -1.0, 0.25], np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2])
INTS = [7, -1, 3]
TEXTS = ["a", "b", "c"]


def model(op_type: str = "LinearClassifier", *, normalized: bool = False, dtype: int = 1, **attrs: Any) -> ModelProto:
    """One linear model of 4 features; probabilities through a Normalizer if asked."""
    scores = "linear" if normalized else "y"
    is_classifier = op_type == "LinearClassifier"
    outputs = ["label", scores] if is_classifier else [scores]
    nodes = [helper.make_node(op_type, ["x"], outputs, "model", domain="ai.onnx.ml", **attrs)]
    if normalized:
        nodes.append(helper.make_node("Normalizer", ["linear"], ["y"], "norm", domain="ai.onnx.ml", norm="L1"))
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None])]
    if "classlabels_ints" in attrs:
        made.insert(0, helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]))
    return make_model(nodes, {"x": ["n", 4]}, made, {}, types={"x": dtype}, domains=["ai.onnx.ml"])


def numbers(rows: int) -> dict[str, list[float]]:
    return {"coefficients": ROWS[:rows].ravel().tolist(), "intercepts": INTERCEPTS[:rows].tolist()}


def computed(file: ModelProto, x: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(value) for value in infer(file, {"x": x})]


CLASSIFIERS = {
    "three classes": {"classlabels_ints": INTS, "post_transform": "SOFTMAX", "multi_class": 1, **numbers(3)},
    "each for itself": {"classlabels_ints": INTS, "post_transform": "LOGISTIC", **numbers(3)},
    "plain scores": {"classlabels_ints": INTS, "post_transform": "NONE", **numbers(3)},
    "two rows": {"classlabels_ints": [0, 1], "post_transform": "LOGISTIC", **numbers(2)},
    "one row": {"classlabels_ints": [4, 9], "post_transform": "LOGISTIC", **numbers(1)},
    "of text": {"classlabels_strings": TEXTS, "post_transform": "SOFTMAX", **numbers(3)},
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_computes_what_the_reference_does(name: str) -> None:
    file = model(**CLASSIFIERS[name])
    expected = ReferenceEvaluator(file).run(None, {"x": X})
    for found, right in zip(computed(file, X), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE])
def test_a_regressor_computes_its_formula(dtype: int) -> None:
    x = (10 * X).astype(helper.tensor_dtype_to_np_dtype(dtype))
    (found,) = computed(model("LinearRegressor", dtype=dtype, targets=3, **numbers(3)), x)
    np.testing.assert_allclose(found, x.astype(float) @ ROWS.T + INTERCEPTS, rtol=1e-5, atol=1e-5)
    (found,) = computed(model("LinearRegressor", dtype=dtype, coefficients=ROWS[0].tolist()), x)
    np.testing.assert_allclose(found, x.astype(float) @ ROWS[:1].T, rtol=1e-5, atol=1e-5)


def test_a_normalizer_computes_what_onnxruntime_1_27_does() -> None:
    x = np.array([[1, -5, 2], [0, 0, 0], [-1, -2, -3]], np.float32)
    recorded = {
        "MAX": [[0.5, -2.5, 1], [0, 0, 0], [1, 2, 3]],
        "L1": [[0.125, -0.625, 0.25], [0, 0, 0], [-1 / 6, -1 / 3, -0.5]],
        "L2": [[0.182574198, -0.912870944, 0.36514840], [0, 0, 0], [-0.267261237, -0.534522474, -0.80178374]],
    }
    for norm, right in recorded.items():
        node = helper.make_node("Normalizer", ["x"], ["y"], "norm", domain="ai.onnx.ml", norm=norm)
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy"]
        file = make_model([node], values[:1], values[1:], {}, domains=["ai.onnx.ml"])
        file.opset_import.append(helper.make_opsetid("", 17))
        np.testing.assert_allclose(computed(file, x)[0], right, rtol=1e-6)


def test_coefficients_and_intercepts_train() -> None:
    """One step of SGD on the scores of a LogisticRegression, against its formula."""
    file = model(normalized=True, **CLASSIFIERS["three classes"])
    report = trainweb.check(file, loss="CrossEntropyLoss", loss_input_names=["y"])
    (remark,) = report.remarks
    assert "Give it the scores: loss_input_names=['model/gemm']" in remark
    made = build_artifacts(file, loss="CrossEntropyLoss", optimizer="SGD", loss_input_names=["model/gemm"])
    state = CheckpointState.load_checkpoint(made.checkpoint)
    with TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model) as session:
        session.set_learning_rate(0.5)
        loss = float(next(iter(session.train_step({"x": X, "labels": LABELS}).values())))
        session.optimizer_step()
        found = {name: p.data for name, p in state.parameters.items()}
    scores = X.astype(float) @ ROWS.T + INTERCEPTS
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    slope = (p - np.eye(3)[LABELS]) / len(X)
    assert loss == pytest.approx(-np.log(p[np.arange(6), LABELS]).mean(), rel=1e-5)
    np.testing.assert_allclose(found["model.coefficients"], ROWS - 0.5 * slope.T @ X, rtol=1e-4)
    np.testing.assert_allclose(found["model.intercepts"], INTERCEPTS - 0.5 * slope.sum(0), rtol=1e-4)


def test_a_label_of_text_that_another_node_reads_is_refused() -> None:
    file = model(**CLASSIFIERS["of text"])
    file.graph.node.append(helper.make_node("Identity", ["label"], ["again"]))
    file.graph.output.append(helper.make_tensor_value_info("again", TensorProto.STRING, ["n"]))
    with pytest.raises(UnsupportedError, match="Its labels are text: fit the model with integers"):
        computed(file, X)


@pytest.mark.parametrize(("loss_input", "choice"), [("y", r"\['y'\]"), ("h", r"\['NAME'\]")])
def test_operators_behind_the_scores_name_the_option_that_does_without_them(loss_input: str, choice: str) -> None:
    """As skl2onnx writes MLPClassifier: ArrayFeatureExtractor takes the label, and ZipMap all probabilities."""
    ml = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["label"], "labels", **ml),
        helper.make_node("ZipMap", ["y"], ["maps"], "zip", classlabels_int64s=INTS, **ml),
    ]
    outputs = {"label": [1, 6], **({"y": ["n", 3]} if loss_input == "y" else {})}
    held = {"w": np.ones((4, 3), np.float32), "classes": np.array([[5, 6, 7]])}
    file = make_model(nodes, {"x": ["n", 4]}, outputs, held, opset=13)
    file.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    file.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    text = f"ArrayFeatureExtractor.* Not supported either: ZipMap. .*loss_input_names={choice}"
    with pytest.raises(UnsupportedError, match=text):
        TrainingSession.from_model(file, loss="MSELoss")
    problems = trainweb.check(file, loss="MSELoss").unsupported
    assert len(problems) == 2 and all(re.search(f"loss_input_names={choice}", one.message) for one in problems)
    TrainingSession.from_model(file, loss="MSELoss", loss_input_names=[loss_input]).release()
    with pytest.raises(UnsupportedError, match=r"ArrayFeatureExtractor(?!.*loss_input_names)"):
        TrainingSession.from_model(file, loss="MSELoss", loss_input_names=["label"])
    with pytest.raises(ModelError, match="did you mean 'h'" if loss_input == "h" else "did you mean 'y'"):
        TrainingSession.from_model(file, loss="MSELoss", loss_input_names=["hh" if loss_input == "h" else "yy"])


@pytest.mark.parametrize("labels", ["text", "maps"])
def test_outputs_that_are_no_numbers_refuse_nothing_that_does_not_read_them(labels: str) -> None:
    """As skl2onnx writes a classifier by default, and one that was fitted with texts as classes."""
    file = model(**CLASSIFIERS["of text" if labels == "text" else "three classes"])
    if labels == "text":
        file.graph.output.append(helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]))
    else:
        file.graph.node.append(
            helper.make_node("ZipMap", ["y"], ["maps"], "zip", domain="ai.onnx.ml", classlabels_int64s=INTS)
        )
        number = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, number))
        file.graph.output.append(helper.make_value_info("maps", maps))
    with TrainingSession.from_model(file, loss="MSELoss", optimizer="SGD", loss_input_names=["y"]) as session:
        loss = float(next(iter(session.train_step({"x": X, "target": np.zeros((6, 3), np.float32)}).values())))
    scores = np.exp(X.astype(float) @ ROWS.T + INTERCEPTS)
    assert loss == pytest.approx(((scores / scores.sum(1, keepdims=True)) ** 2).mean(), rel=1e-5)
    advice = {"text": "Its labels are text: fit the model with integers", "maps": "Choose 'y', which it reads"}
    with pytest.raises(UnsupportedError, match=advice[labels]):
        computed(file, X)
    outputs = [value.name for value in file.graph.output]
    near = f"did you mean '{outputs[-1]}'. The outputs are {', '.join(outputs)}"
    with pytest.raises(ModelError, match=near):
        TrainingSession.from_model(file, loss="MSELoss", loss_input_names=[f"{outputs[-1]}s"])


@pytest.mark.parametrize(
    ("attrs", "error", "text"),
    [
        ({**CLASSIFIERS["three classes"], "post_transform": "PROBIT"}, UnsupportedError, "post_transform 'PROBIT'"),
        (
            {**CLASSIFIERS["one row"], "post_transform": "NONE"},
            UnsupportedError,
            "1 rows of coefficients for 2 classes",
        ),
        ({"classlabels_ints": [1], **numbers(1)}, UnsupportedError, "a classifier with one class"),
        ({**CLASSIFIERS["three classes"], "coefficients": [1.0] * 11}, ModelError, "11 coefficients for 3 rows"),
        ({"coefficients": [1.0] * 4}, ModelError, "neither classlabels_ints nor classlabels_strings"),
        ({**CLASSIFIERS["plain scores"], "intercepts": "no"}, ModelError, "is b?'no', which is not a list of numbers"),
    ],
)
def test_other_classifiers_are_refused_by_name(attrs: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        InferenceSession(onnx.ModelProto.FromString(model(**attrs).SerializeToString()))
