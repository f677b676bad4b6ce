"""Label smoothing that torch's dynamo exporter notes and leaves out of the file, against its formula in float64."""

import itertools

import numpy as np
import pytest
from onnx import ModelProto, helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.artifacts import OptimType
from trainweb.errors import UnsupportedError
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.session.inference_session import InferenceSession
from trainweb.session.training_session import TrainingSession

SCORES = {"rows": normal(5, 3, seed=1), "images": normal(2, 3, 2, 2, seed=2)}
LABELS = {"rows": np.array([0, 2, 1, 2, 0]), "images": np.array([[[0, 2], [1, 1]], [[2, 0], [0, 1]]])}
WEIGHT = np.array([0.5, 0.0, 2.0], np.float32)
NOTE = "%loss = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = ({}), kwargs = {{{}}})"
REDUCTIONS = ("none", "mean", "sum")


def model(shape: str, note: str, *, weighted: bool = False, ignored: int = -100, reduction: str = "mean") -> ModelProto:
    """The cross entropy of scores that are trained, noted as the exporter does; summed up where it has a row each."""
    scores, labels = SCORES[shape], LABELS[shape]
    inputs = ["scores", "labels", *(["weight"] if weighted else [])]
    out = "loss" if reduction != "none" else "rows"
    attrs = {"reduction": reduction, "ignore_index": ignored}
    nodes = [
        helper.make_node("Mul", ["values", "x"], ["scores"], "scores"),
        helper.make_node("SoftmaxCrossEntropyLoss", inputs, [out], "node_loss", **attrs),
    ]
    if reduction == "none":
        nodes.append(helper.make_node("ReduceSum", ["rows"], ["loss"], "sum", keepdims=0))
    held = {"values": scores} | ({"weight": WEIGHT} if weighted else {})
    file = make_model(nodes, {"x": [1], "labels": list(labels.shape)}, {"loss": []}, held, opset=20)
    file.graph.input[1].type.tensor_type.elem_type = 7
    entry = file.graph.node[1].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.fx_node", note
    return file


def note(share: float, ignored: int = -100, reduction: str = "mean") -> str:
    return NOTE.format(f"%scores, %labels, None, {REDUCTIONS.index(reduction)}, {ignored}, {share}", "")


def expected(shape: str, share: float, weight: np.ndarray, ignored: int, reduction: str) -> tuple[float, np.ndarray]:
    """The loss of a soft target, summed up over what is not ignored, and its gradient."""
    scores = np.moveaxis(SCORES[shape].astype(float), 1, -1).reshape(-1, 3)
    labels = LABELS[shape].ravel()
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    target = ((1 - share) * np.eye(3)[labels] + share / 3) * weight * (labels != ignored)[:, None]
    count = weight[labels][labels != ignored].sum() if reduction == "mean" else 1
    gradient = (target.sum(1, keepdims=True) * p - target) / count
    full = np.moveaxis(SCORES[shape], 1, -1).shape
    return -(target * np.log(p)).sum() / count, np.moveaxis(gradient.reshape(full), -1, 1)


def trained(file: ModelProto, shape: str) -> tuple[float, np.ndarray]:
    """The loss, and the gradient of the scores."""
    with TrainingSession.from_model(file, loss=None, requires_grad=["values"], optimizer=OptimType.SGD) as session:
        feeds = {"x": np.ones(1, np.float32), "labels": LABELS[shape]}
        loss = float(session.train_step(feeds)["loss"])
        assert float(session.eval_step(feeds)["loss"]) == pytest.approx(loss, rel=1e-6)
        return loss, np.asarray(session.get_gradient("values"))


@pytest.mark.parametrize(
    ("shape", "share", "weighted", "ignored", "reduction"),
    itertools.product(SCORES, (0.1, 1.0), (False, True), (-100, 2), REDUCTIONS),
)
def test_the_smoothing_is_in_the_loss_and_its_gradient(
    shape: str, share: float, weighted: bool, ignored: int, reduction: str
) -> None:
    file = model(shape, note(share, ignored, reduction), weighted=weighted, ignored=ignored, reduction=reduction)
    loss, gradient = trained(file, shape)
    right, slope = expected(shape, share, WEIGHT if weighted else np.ones(3), ignored, reduction)
    assert loss == pytest.approx(right, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)


def test_inference_has_it_once_also_of_a_file_that_was_written_here() -> None:
    right, _ = expected("rows", 0.1, np.ones(3), -100, "mean")
    read = write_model(read_model(model("rows", note(0.1)).SerializeToString()))
    for file in (model("rows", note(0.1)), read):
        session = InferenceSession(file)
        try:
            (loss,) = session.run(["loss"], {"x": np.ones(1, np.float32), "labels": LABELS["rows"]})
        finally:
            session.release()
        assert float(loss) == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (NOTE.format("%scores, %labels", "label_smoothing: 0.25"), 0.25),
        (NOTE.format("%scores, %labels, None, 1, -100", ""), 0.0),
        (note(0.0), 0.0),
        ("", 0.0),
    ],
)
def test_the_share_is_read_from_the_call(text: str, share: float) -> None:
    right, _ = expected("rows", share, np.ones(3), -100, "mean")
    assert trained(model("rows", text), "rows")[0] == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize(
    ("share", "remarks"),
    [
        (0.1, ["Label smoothing of 0.1, which torch's exporter leaves out, was put back from the file's notes."]),
        (0.0, []),
    ],
)
def test_check_tells_that_it_was_put_back(share: float, remarks: list[str]) -> None:
    report = trainweb.check(model("rows", note(share)), requires_grad=["values"])
    assert report.ok
    assert report.remarks == remarks
    assert all(remark in str(report) for remark in remarks)


def test_a_share_that_is_no_number_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"label_smoothing of the cross entropy .* is '%share', which is not a number"
    ):
        read_model(model("rows", NOTE.format("%scores, %labels, None, 1, -100, %share", "")).SerializeToString())
