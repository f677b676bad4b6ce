"""`TrainingSession.from_model`, `fit`, `evaluate` and `predict`, against onnx's reference and formulas in float64."""

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tests.conformance.models import make_model, mlp, normal

import trainweb
from trainweb.artifacts import build_artifacts, generate_artifacts
from trainweb.data import Dataset
from trainweb.errors import FeedError, ModelError, SessionError
from trainweb.fit.options import FIT, FitOptions

from .sessions import batch_norm_net, before_updates


def rows(n: int = 75, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] + x[:, 1] > 0).astype(np.int64)}


def opened(**settings: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(mlp(), **{"loss": "CrossEntropyLoss", **settings})


def forward(session: trainweb.TrainingSession, x: np.ndarray, *, ema: bool = False) -> np.ndarray:
    """The results of onnx's reference implementation for the exported model."""
    exported = onnx.load_from_string(session.export_model_for_inferencing(["logits"], ema=ema) or b"")
    (found,) = ReferenceEvaluator(exported).run(["logits"], {"x": x})
    return np.asarray(found)


def losses(logits: np.ndarray, labels: np.ndarray) -> float:
    z = logits.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]))


@pytest.mark.parametrize("batch_size", [None, 1, 7, 32, 75, 100])
def test_predicts_as_the_reference_with_the_exported_model(batch_size: int | None) -> None:
    data = rows()
    with opened(learning_rate=0.05) as s:
        s.fit(data, epochs=2, progress=False)
        before = s.get_contiguous_parameters(False).tobytes()
        found = s.predict({"x": data["x"]}, batch_size=batch_size)
        assert list(found) == ["logits"]
        np.testing.assert_allclose(found["logits"], forward(s, data["x"]), rtol=1e-4, atol=1e-6)
        assert s.get_contiguous_parameters(False).tobytes() == before
        for given in (data["x"], data["x"].tolist()):
            np.testing.assert_array_equal(s.predict(given, batch_size=batch_size)["logits"], found["logits"])
        plans = len(s._core.host.loaded)
        s.predict(data, batch_size=batch_size)
        assert len(s._core.host.loaded) == plans


def test_labels_beside_the_data_are_refused_with_the_way_to_give_them() -> None:
    x, labels = rows(8).values()
    with opened() as s:
        for call in (s.fit, s.evaluate, s.predict):
            with pytest.raises(TypeError, match=rf"^{call.__name__} takes the data as one argument.*\(x, y\)\.$"):
                call(x, labels)  # type: ignore[call-arg]
        s.fit((x, labels), progress=False)


def test_the_types_of_fit_name_all_options() -> None:
    assert set(FIT) <= FitOptions.__annotations__.keys()
    documented = re.findall(r"^(\w+(?:, \w+)*) : ", inspect.getdoc(trainweb.TrainingSession.fit) or "", re.MULTILINE)
    assert {name for names in documented for name in names.split(", ")} == {"data", *FitOptions.__annotations__}


def test_predicts_with_the_parameters_of_the_moment() -> None:
    data = rows(20)
    with opened() as s:
        first = s.predict(data)["logits"]
        s.fit(data, learning_rate=0.1, progress=False)
        again = s.predict(data)["logits"]
        assert np.abs(again - first).max() > 1e-2
        np.testing.assert_allclose(again, forward(s, data["x"]), rtol=1e-4, atol=1e-6)


def tokens() -> onnx.ModelProto:
    """ids[batch, length] -> logits[batch, length, 7]. Its cross entropy compares rows of all positions."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "embedding"),
        helper.make_node("MatMul", ["x", "w"], ["logits"], "head"),
    ]
    weights = {"table": normal(7, 4), "w": normal(4, 7, seed=1)}
    types = {"ids": TensorProto.INT64}
    return make_model(nodes, {"ids": ["batch", "n"]}, {"logits": ["batch", "n", 7]}, weights, types=types)


def test_predicts_the_output_of_the_model_before_the_loss_reshapes_it() -> None:
    ids = np.arange(15).reshape(3, 5) % 7
    with trainweb.TrainingSession.from_model(tokens(), loss="CrossEntropyLoss") as s:
        found = s.predict({"ids": ids})
        exported = onnx.load_from_string(s.export() or b"")
    assert [v.name for v in exported.graph.output] == list(found) == ["logits"]
    expected = normal(7, 4)[ids].astype(np.float64) @ normal(4, 7, seed=1)
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-5, atol=1e-6)


def test_a_text_longer_than_the_positions_of_the_file_is_named() -> None:
    model = tokens()
    constants = {"positions": normal(1, 6, 4), "zero": np.array([0]), "one": np.array([1])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    model.graph.node[1].input[0] = "placed"
    for node in (
        helper.make_node("Add", ["x", "first"], ["placed"], "place"),
        helper.make_node("Slice", ["positions", "zero", "length", "one"], ["first"]),
        helper.make_node("Shape", ["ids"], ["length"], start=1),
    ):
        model.graph.node.insert(1, node)
    said = r"node 'place'.*\[2, 9, 4\].*The inputs are ids \[2, 9\]; the file may have positions for fewer"
    with trainweb.TrainingSession.from_model(model, loss="CrossEntropyLoss") as s:
        assert s.predict({"ids": np.zeros((2, 6), np.int64)})["logits"].shape == (2, 6, 7)
        with pytest.raises(ModelError, match=said):
            s.predict({"ids": np.zeros((2, 9), np.int64)})


def test_one_plan_is_enough_for_the_last_rows() -> None:
    with opened() as s:
        s.predict(rows(75), batch_size=32)
        assert len(s._core.host.loaded) == 1


def test_streams_batches_and_outputs_by_name() -> None:
    data = rows(20)
    with opened() as s:
        expected = s.predict(data)["logits"]
        stream = Dataset(lambda: ({"x": row} for row in data["x"]))
        np.testing.assert_array_equal(s.predict(stream, batch_size=8)["logits"], expected)
        np.testing.assert_array_equal(s.predict(stream.batch(6), outputs="logits")["logits"], expected)
        with pytest.raises(ModelError, match="leave out 'batch_size'"):
            s.predict(stream.batch(6), batch_size=3)


def test_averages_predict_and_are_evaluated_on_request() -> None:
    data = rows(40)
    with opened(ema={"decay": 0.9}, learning_rate=0.1) as s:
        s.fit(data, epochs=2, progress=False)
        found = s.predict(data, ema=True)["logits"]
        np.testing.assert_allclose(found, forward(s, data["x"], ema=True), rtol=1e-4, atol=1e-6)
        assert np.abs(found - s.predict(data)["logits"]).max() > 1e-3
        values = s.evaluate(data, ema=True)
        np.testing.assert_allclose(float(values["loss"]), losses(found, data["labels"]), rtol=1e-5)  # type: ignore[arg-type]
    with opened() as s, pytest.raises(SessionError, match="averages"):
        s.predict(data, ema=True)


def test_batch_normalization_predicts_with_running_statistics() -> None:
    x = np.random.default_rng(1).standard_normal((9, 3, 4, 4)).astype(np.float32)
    model = batch_norm_net()
    name, out = model.graph.input[0].name, model.graph.output[0].name
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal((9, *dims[1:])).astype(np.float32)
    with trainweb.TrainingSession.from_model(model, loss={"type": "MSELoss"}) as s:
        whole = s.predict({name: x}, outputs=[out])[out]
        single = np.concatenate([s.predict({name: row[None]}, outputs=[out])[out] for row in x])
        np.testing.assert_allclose(whole, single, rtol=1e-5, atol=1e-6)


def test_outputs_that_are_not_by_rows_are_named() -> None:
    node = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        helper.make_node("ReduceSum", ["y"], ["total"], "sum", keepdims=0),
    ]
    model = make_model(node, {"x": ["n", 5]}, {"y": ["n", 2]}, {"w": normal(5, 2)})
    x = rows(10)["x"]
    with trainweb.TrainingSession.from_model(model, loss="MSELoss") as s:
        total = s.predict({"x": x}, outputs=["total"])["total"]
        np.testing.assert_allclose(total, (x.astype(np.float64) @ normal(5, 2)).sum(), rtol=1e-5)
        with pytest.raises(SessionError, match=re.escape("Output 'total' has shape []")):
            s.predict({"x": x}, outputs=["total"], batch_size=4)


@pytest.mark.parametrize("batch_size", [1, 8, 32, 100])
def test_evaluates_as_numpy_does(batch_size: int) -> None:
    data = rows(45)
    with opened(learning_rate=0.05) as s:
        s.fit(data, epochs=3, progress=False)
        logits = forward(s, data["x"])
        found = s.evaluate(data, metrics=["accuracy", "confusionMatrix"], batch_size=batch_size)
        assert list(found) == ["loss", "accuracy", "confusionMatrix"]
        np.testing.assert_allclose(float(found["loss"]), losses(logits, data["labels"]), rtol=1e-5)  # type: ignore[arg-type]
        assert found["accuracy"] == np.mean(logits.argmax(1) == data["labels"])


def test_fit_is_that_of_the_trainer() -> None:
    data = rows(30)
    with opened() as a, opened() as b:
        assert (
            a.fit(data, epochs=2, progress=False).losses
            == trainweb.Trainer(b).fit(data, epochs=2, progress=False).losses
        )
        assert a.get_contiguous_parameters(False).tobytes() == b.get_contiguous_parameters(False).tobytes()


def test_from_model_is_build_artifacts_and_a_session() -> None:
    data = rows(30)
    artifacts = trainweb.artifacts.build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer="SGD")
    with opened(optimizer="SGD", learning_rate=0.3) as a, trainweb.TrainingSession(**artifacts) as b:
        assert b.get_learning_rate() == np.float32(0.001)
        b.set_learning_rate(0.3)
        assert a.fit(data, progress=False).losses == trainweb.Trainer(b).fit(data, progress=False).losses


def test_from_model_trains_adapters() -> None:
    with opened(lora={"rank": 2}) as s:
        names = s.parameter_names(trainable_only=True)
        assert names
        assert all("lora" in name for name in names)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 0.001),
        ({"learning_rate": 0.5}, 0.5),
        ({"optimizer": {"type": "AdamW", "learning_rate": 0.25}}, 0.25),
        ({"optimizer": {"type": "AdamW", "learning_rate": 0.25}, "learning_rate": 0.25}, 0.25),
    ],
)
def test_the_rate_may_stand_in_two_places(settings: dict[str, Any], rate: float) -> None:
    with opened(**settings) as s:
        assert s.get_learning_rate() == np.float32(rate)
    built = build_artifacts(mlp(), **{"loss": "CrossEntropyLoss", "optimizer": "AdamW", **settings})
    with trainweb.TrainingSession(**built) as s:
        assert s.get_learning_rate() == np.float32(rate)


def test_files_of_artifacts_keep_the_rate(tmp_path: Path) -> None:
    """A step of SGD moves each parameter by its gradient times the rate."""
    optimizer = {"type": "SGD", "learning_rate": 0.3}
    generate_artifacts(mlp(), loss="CrossEntropyLoss", optimizer=optimizer, artifact_directory=tmp_path)
    files = [str(tmp_path / f"{name}_model.onnx") for name in ("training", "eval", "optimizer")]
    state = trainweb.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    with trainweb.TrainingSession(state, *files) as s:
        s.train_step(rows(8))
        before = s.get_parameter("fc1.weight")
        gradient = s.get_gradient("fc1.weight")
        s.optimizer_step()
        np.testing.assert_allclose(s.get_parameter("fc1.weight"), before - 0.3 * gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        (
            {"optimizer": {"type": "SGD", "learning_rate": 0.1}, "learning_rate": 0.2},
            ModelError,
            "The learning rate is 0.2 and, in 'optimizer', 0.1. Give it once.",
        ),
        ({"optimizer": None, "learning_rate": 0.2}, ModelError, "learning_rate needs an 'optimizer'"),
        ({"learning_rate": -1}, ModelError, "learning_rate is -1; it must be a number at least 0"),
        ({"learning_rat": 1}, TypeError, "learning_rat"),
        ({"lora": 3}, ModelError, "lora is 3"),
    ],
)
def test_wrong_settings_of_a_model(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        opened(**settings)


class HubRows:
    """The rows of a split as Hugging Face's library has them: no mapping, but with names of columns."""

    column_names = ("x", "labels")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, name: str) -> Any:
        return rows(8)[name]


def test_a_split_of_hugging_face_is_data() -> None:
    with opened() as s:
        np.testing.assert_array_equal(s.predict(HubRows())["logits"], s.predict(rows(8))["logits"])


@pytest.mark.parametrize("batches", [False, True])
def test_a_notice_comes_once_in_a_session(batches: bool) -> None:
    """Of fits, predictions and evaluations, at whatever line they stand; another session says it anew."""
    data: Any = {**rows(8), "id": np.arange(8)}
    data, options = ([data] * 2, {}) if batches else (data, {"batch_size": 4})
    for _ in range(2):
        with opened() as s, warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            s.fit(data, epochs=2, progress=False, **options)
            s.fit(data, progress=False, **options)
            s.evaluate(data)
            s.predict(data)
        assert [str(one.message) for one in notices] == ["These columns of the data are not read: id."]


@pytest.mark.parametrize(
    ("data", "options", "error", "text"),
    [
        ({"x": np.zeros((0, 5), np.float32)}, {}, FeedError, "no rows"),
        (np.zeros(5, np.float32), {}, FeedError, "'x' has the shape [5] of one row in the data: reshape it to [1, 5]."),
        (np.zeros(4, np.float32), {}, FeedError, "'x' has shape [4] in the data. The model takes [batch, 5]"),
        (
            {"train": rows(8), "test": rows(4)},
            {},
            FeedError,
            "'train' is a data set of its own: give only one of them, as ",
        ),
        ({"train": Dataset(rows(8))}, {}, FeedError, "as data['train']."),
        ({"train": HubRows()}, {}, FeedError, "as data['train']."),
        ({"x": np.zeros((2, 4), np.float32)}, {}, FeedError, "takes [batch, 5] for a batch, so [5] for a row. If th"),
        ({"x": np.zeros((2, 5), np.float32)}, {"outputs": ["nothing"]}, ModelError, "nothing"),
        ({"x": np.zeros((2, 5), np.float32)}, {"outputs": []}, ModelError, "outputs"),
        ({"x": np.zeros((2, 5), np.float32)}, {"batch_size": 0}, ModelError, "batch_size is 0"),
        (3, {}, FeedError, "int"),
    ],
)
def test_wrong_predictions(data: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with opened() as s, pytest.raises(error, match=re.escape(text)):
        s.predict(data, **options)


def rates(**options: Any) -> list[float]:
    """The rate of each optimizer step of a fit of 20 rows in batches of 4, and the last of the session."""
    found: list[float] = []
    with opened() as s:
        before_updates(s, lambda _: found.append(s.get_learning_rate()))
        s.fit(rows(20), batch_size=4, progress=False, **options)
        return [*found, s.get_learning_rate()]


def test_fit_takes_a_rate() -> None:
    assert rates() == [np.float32(0.001)] * 6
    assert rates(learning_rate=0.25, epochs=2) == [0.25] * 11


def test_the_total_of_a_schedule_is_the_fit_with_its_warm_up() -> None:
    line = rates(epochs=2, accumulate=2, learning_rate=1.0, schedule={"type": "Linear", "warmup": 2})
    # Three optimizer steps an epoch; two to warm up, then four down to zero.
    np.testing.assert_allclose(line, [0, 0.5, 1, 0.75, 0.5, 0.25, 0.25], rtol=1e-6)
    assert rates(learning_rate=0.5, schedule="Cosine") == rates(
        schedule={"type": "Cosine", "learning_rate": 0.5, "total": 5}
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"learning_rate": 0.5, "schedule": {"type": "Constant", "learning_rate": 0.25}},
            "The learning rate is 0.5 and, in 'schedule', 0.25. Give it once.",
        ),
        ({"learning_rate": 0.5, "schedule": lambda step: 0.1}, "Leave out 'learning_rate', or the schedule"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; it must be a number at least 0"),
        ({"schedule": "Cosine"}, "Cosine needs the setting 'learning_rate'"),
        (
            {"learning_rate": 1, "schedule": {"type": "Cosine", "warmup": 5}},
            "total is 5; it must be an integer above the warm-up, which takes 5 steps",
        ),
    ],
)
def test_rates_that_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=re.escape(text)):
        rates(**options)


def test_a_session_takes_artifacts_as_they_are() -> None:
    files = build_artifacts(mlp(), loss="CrossEntropyLoss", optimizer="SGD")
    load = trainweb.CheckpointState.load_checkpoint
    state = load(files.checkpoint)
    models = files.training_model, files.eval_model, files.optimizer_model
    found = []
    for made in (
        trainweb.TrainingSession(**files),
        trainweb.TrainingSession(state, *models),
        trainweb.TrainingSession(None, models[0], checkpoint=load(files.checkpoint), optimizer_model=models[2]),
    ):
        with made as session:
            session.train_step(rows(8))
            session.optimizer_step()
            found.append(session.get_contiguous_parameters().tobytes())
    assert found[0] == found[1] == found[2]
    with pytest.raises(TypeError, match="needs 'state' or 'checkpoint': give one of them"):
        trainweb.TrainingSession(state, **files)
    with pytest.raises(TypeError, match="A session needs 'train_model' or 'training_model': from_model makes"):
        trainweb.TrainingSession(state)
    with pytest.raises(KeyError, match="did you mean 'optimizer_model'"):
        files["optimzer_model"]
