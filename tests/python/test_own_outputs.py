"""Predictions, exports and metrics read the outputs of the base model, whatever a loss of one's own does with them."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model
from tests.python.own_losses import (
    LABELS,
    SCORES,
    TARGET,
    WEIGHTS,
    Distilled,
    TwoHeads,
    W,
    Weighted,
    X,
    linear,
    two_heads,
    weighted_entropy,
)

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.errors import ModelError
from trainweb.model.graph import OWN_OUTPUTS
from trainweb.onnxblock import blocks, loss

ROWS = {"x": X, "labels": LABELS, "weights": WEIGHTS}
ACCURACY = float((SCORES.argmax(1) == LABELS).mean())


def opened(files: Artifacts, evaluation: bytes | None = None) -> trainweb.TrainingSession:
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    return trainweb.TrainingSession(state, files.training_model, evaluation or files.eval_model, files.optimizer_model)


def made(model: Any, own: Any, **settings: Any) -> Artifacts:
    return build_artifacts(model, loss=own, optimizer="SGD", **settings)


def test_a_loss_of_weighted_rows_leaves_the_scores_the_output() -> None:
    with opened(made(linear(), weighted_entropy())) as s:
        assert list(s.predict(ROWS)) == ["scores"]
        np.testing.assert_allclose(s.predict({"x": X})["scores"], SCORES, rtol=1e-5, atol=1e-6)
        graph = onnx.load_from_string(s.export()).graph
        assert ([v.name for v in graph.input], [v.name for v in graph.output]) == (["x"], ["scores"])
        for names in ({}, {"targets": "labels"}, {"predictions": "scores", "targets": "labels"}):
            assert s.evaluate(ROWS, metrics="accuracy", **names)["accuracy"] == ACCURACY
        history = s.fit(ROWS, validation_data=ROWS, metrics="accuracy", learning_rate=0.0, progress=False)
        assert history["val_accuracy"] == [ACCURACY]
        (scores,) = ReferenceEvaluator(s.export()).run(None, {"x": X})
        np.testing.assert_allclose(scores, SCORES, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("each", [loss.MSELoss, loss.BCEWithLogitsLoss, loss.L1Loss, loss.HuberLoss])
def test_a_loss_of_weighted_elements_leaves_the_scores_the_output(each: Any) -> None:
    rows = {"x": X, "target": TARGET, "weights": np.ones((20, 3), np.float32)}
    with opened(made(linear(), Weighted(each(reduction="none")))) as s:
        np.testing.assert_allclose(s.predict({"x": X})["scores"], SCORES, rtol=1e-5, atol=1e-6)
        assert s.evaluate(rows, metrics="mae", targets="target")["mae"] == pytest.approx(np.abs(SCORES - TARGET).mean())


def test_a_metric_that_cannot_know_its_pair_says_so() -> None:
    rows = {"x": X, "labels": LABELS, "target": TARGET[:, :1]}
    size = X.astype(np.float64) @ next(
        onnx.numpy_helper.to_array(t) for t in two_heads().graph.initializer if t.name == "v"
    )
    with opened(made(two_heads(), TwoHeads())) as s:
        assert list(s.predict({"x": X})) == ["scores", "size"]
        with pytest.raises(ModelError, match=r"'predictions' \(one of .*, scores, size\)"):
            s.evaluate(rows, metrics="accuracy")
        for names in ({"targets": "labels"}, {"predictions": "scores"}):
            assert s.evaluate(rows, metrics="accuracy", **names)["accuracy"] == ACCURACY
        error = s.evaluate(rows, metrics="mae", predictions="size")["mae"]
        assert error == pytest.approx(np.abs(size - rows["target"]).mean(), rel=1e-5)


def test_two_targets_of_one_output_must_be_told_apart() -> None:
    with opened(made(linear(), Distilled())) as s:
        rows = {"x": X, "labels": LABELS, "teacher": TARGET}
        with pytest.raises(ModelError, match="does not tell which"):
            s.evaluate(rows, metrics="accuracy")
        assert s.evaluate(rows, metrics="accuracy", targets="labels")["accuracy"] == ACCURACY
        error = s.evaluate(rows, metrics="mae", targets="teacher")["mae"]
        assert error == pytest.approx(np.abs(SCORES - TARGET).mean(), rel=1e-5)
        with pytest.raises(ModelError, match="predictions"):
            s.evaluate(rows, metrics="accuracy", predictions="nothing", targets="labels")


def test_another_output_is_not_taken_for_the_prediction() -> None:
    with opened(made(linear(), "CrossEntropyLoss", additional_output_names=["x", "h"])) as s:
        rows = {"x": X, "labels": LABELS}
        assert set(s.predict({"x": X})) == {"scores", "x", "h"}
        assert s.evaluate(rows, metrics="accuracy")["accuracy"] == ACCURACY


def test_a_loss_that_meets_its_target_twice_knows_its_output() -> None:
    with opened(made(linear(), "KLDivLoss")) as s:
        np.testing.assert_allclose(s.predict({"x": X})["scores"], SCORES, rtol=1e-5, atol=1e-6)
        error = s.evaluate({"x": X, "target": np.abs(TARGET)}, metrics="mae")["mae"]
        assert error == pytest.approx(np.abs(SCORES - np.abs(TARGET)).mean(), rel=1e-5)


def test_functions_get_rows_of_scores_that_the_loss_flattens() -> None:
    scores = np.random.default_rng(1).standard_normal((20, 5, 4)).astype(np.float32)
    model = make_model(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["scores"])],
        {"x": ["batch", 5, 4]},
        {"scores": ["batch", 5, 3]},
        {"w": W},
    )
    rows = {"x": scores, "labels": np.arange(100).reshape(20, 5) % 3}
    shapes = []
    with opened(made(model, "CrossEntropyLoss")) as s:
        own = {"own": lambda p, t: shapes.append((p.shape, t.shape)) or 0.0}
        found = s.evaluate(rows, metrics=[own, "accuracy"], batch_size=8)["accuracy"]
    assert shapes == [((20, 5, 3), (20, 5))]
    assert found == ((scores.astype(np.float64) @ W).argmax(-1) == rows["labels"]).mean()


def test_artifacts_without_the_note_keep_their_rule() -> None:
    """As of ONNX Runtime: the only output besides the loss, else the tensor that meets the last input."""
    files = made(linear(), weighted_entropy())
    model = onnx.load_from_string(files.eval_model)
    assert [p.key for p in model.metadata_props] == [OWN_OUTPUTS]
    del model.metadata_props[:]
    with opened(files, model.SerializeToString()) as s:
        assert list(s.predict(ROWS)) != ["scores"]
        accuracy = s.evaluate(ROWS, metrics="accuracy", predictions=next(iter(s.predict(ROWS))), targets="labels")
        assert set(accuracy) == {"loss", "accuracy"}
    model.metadata_props.add(key=OWN_OUTPUTS, value="[1]")
    with pytest.raises(ModelError, match="list of names of outputs"):
        opened(files, model.SerializeToString())


class Training(onnxblock.TrainingBlock):
    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def build(self, *outputs: str) -> Any:
        return self.own(*outputs)


def test_a_training_block_notes_its_outputs_too() -> None:
    block = Training(weighted_entropy())
    block.requires_grad("w")
    with onnxblock.base(linear()):
        block("scores")
        _, evaluation = block.to_model_proto()
    assert {p.key: p.value for p in evaluation.metadata_props}[OWN_OUTPUTS] == '["scores"]'


class Telling(onnxblock.TrainingBlock):
    """Gives the loss of each element besides the loss, and probabilities of the scores."""

    def build(self, scores: str) -> Any:
        each = loss.MSELoss(reduction="none")(scores)
        return blocks.ReduceMean(keepdims=False)(each), each, blocks.Sigmoid()(scores)


def test_outputs_of_a_training_block_that_need_a_target_are_none_of_the_model() -> None:
    block = Telling()
    block.requires_grad("w")
    with onnxblock.base(linear()):
        _, each, probabilities = block("scores")
        _, evaluation = block.to_model_proto()
    assert each not in (note := json.loads(evaluation.metadata_props[0].value))
    assert note == ["scores", probabilities]


class Headed(onnxblock.Block):
    """A loss with a layer of its own: it is a part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.entropy = loss.CrossEntropyLoss()

    def build(self, features: str) -> Any:
        head = blocks.array_initializer("head", np.eye(3, 2).tolist())
        return self.entropy(self.add_node("MatMul", [features, head]))


def test_a_training_block_that_trains_a_layer_is_a_part_of_the_model() -> None:
    block = Training(Headed())
    block.requires_grad("head")
    with onnxblock.base(linear()):
        block("scores")
        _, evaluation = block.to_model_proto()
    assert not evaluation.metadata_props


def test_an_export_has_no_note_of_a_loss() -> None:
    with opened(made(linear(), weighted_entropy())) as s:
        exported = s.export()
    assert not onnx.load_from_string(exported).metadata_props


def test_an_unknown_output_is_answered_with_the_outputs_of_the_model() -> None:
    with trainweb.TrainingSession.from_model(two_heads(), loss=TwoHeads()) as session:
        own = list(session.predict(ROWS))
        with pytest.raises(ModelError, match=f"The model gives {', '.join(own)}; other tensors of it are "):
            session.export_model_for_inferencing(["nope"])
