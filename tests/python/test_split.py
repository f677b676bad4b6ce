"""Splits by class: counted by hand; a warning where a split lacks a class."""

import warnings
from typing import Any

import numpy as np
import pytest
from tests.conformance.fits import outputs

import trainweb
from trainweb.data import Dataset, example, from_images
from trainweb.data.for_model import ModelInputs
from trainweb.errors import FeedError, ModelError
from trainweb.fit.plan import split_data

from .sessions import session
from .test_fit import X

# Three classes, in order, as a table that is sorted by class.
SORTED = {"x": np.tile(X, (5, 1))[:20], "labels": np.repeat([0, 1, 2], [12, 6, 2])}


def split(data: Any, share: float | None, *, stratify: bool) -> list[np.ndarray]:
    with session() as s:
        inputs = ModelInputs(s._core.models.inputs["train"])
        parts = split_data(inputs, data, None, share, ["labels"], stratify=stratify)
        return [part.columns["labels"] for part in parts if part is not None and part.columns is not None]


def test_each_class_gives_its_share() -> None:
    train, validation = split(SORTED, 0.25, stratify=True)
    # 3 of 12, 1.5 of 6 rounded up, 0.5 of 2 rounded up.
    assert np.bincount(validation).tolist() == [3, 2, 1] and np.bincount(train).tolist() == [9, 4, 1]


def test_the_last_rows_of_each_class_are_taken() -> None:
    data = SORTED | {"x": np.arange(100, dtype=np.float32).reshape(20, 5)}
    order = np.random.default_rng(0).permutation(20)
    with session() as s:
        inputs = ModelInputs(s._core.models.inputs["train"])
        shuffled = {name: array[order] for name, array in data.items()}
        train, validation = split_data(inputs, shuffled, None, 0.25, ["labels"], stratify=True)
    assert validation is not None and train.columns is not None and validation.columns is not None
    rows = [np.flatnonzero((shuffled["x"] == x).all(1))[0] for x in validation.columns["x"]]
    assert rows == sorted(rows)
    for label, count in enumerate((3, 2, 1)):
        expected = np.flatnonzero(shuffled["labels"] == label)[-count:]
        assert [k for k in rows if shuffled["labels"][k] == label] == expected.tolist()


def test_a_split_that_lacks_a_class_warns() -> None:
    with pytest.warns(UserWarning, match=r"validation data has no row with 0 as 'labels'.*Give the option 'stratify'"):
        split(SORTED, 0.25, stratify=False)
    given = {name: array[:16] for name, array in SORTED.items()}
    with session() as s, pytest.warns(UserWarning, match=r"no row with 2 as 'labels'\. Number classes alike,"):
        split_data(ModelInputs(s._core.models.inputs["train"]), SORTED, given, None, ["labels"], stratify=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split(SORTED, 0.25, stratify=True)
        split({"x": X, "labels": np.arange(len(X)) % 2}, 0.5, stratify=False)


def test_a_list_of_rows_is_split_as_arrays_are() -> None:
    """With the same warning, also for parts that a Dataset has split."""
    rows = [{name: array[k] for name, array in SORTED.items()} for k in range(20)]
    options: dict[str, Any] = {"metrics": "confusionMatrix", "progress": False, "batch_size": 4}
    found = []
    parts = Dataset(rows).split(0.25)
    split_before = {"data": parts[0], "validation_data": parts[1]}
    ways: list[dict[str, Any]] = [{"data": rows, "validation_split": 0.25}, split_before]
    for way in [*ways, {"data": SORTED, "validation_split": 0.25}]:
        with session() as s, pytest.warns(UserWarning, match="validation data has no row with 0 as 'labels'"):
            found.append(trainweb.Trainer(s).fit(**way, **options).epochs[0].validation)
    assert found[0] == found[1] == found[2]


def test_images_are_split_by_class() -> None:
    sources = [np.zeros((1, 5, 3), np.uint8)] * 20
    data = from_images(sources, "x", columns={"labels": SORTED["labels"]}, width=5, height=1)
    with session() as s:
        inputs = ModelInputs(s._core.models.inputs["train"])
        train, validation = split_data(inputs, data, None, 0.25, ["labels"], stratify=True)
        with pytest.warns(UserWarning, match=r"validation data has no row with 0 as 'labels'"):
            split_data(inputs, data, None, 0.25, ["labels"], stratify=False)
    assert validation is not None and (len(train), len(validation)) == (14, 6)
    assert [int(row["labels"]) for row in validation] == [0, 0, 0, 1, 1, 2]


def test_fit_takes_it() -> None:
    with session() as s:
        found = trainweb.Trainer(s).fit(
            SORTED, validation_split=0.25, stratify=True, metrics="confusionMatrix", progress=False
        )
        matrix = (found.epochs[0].validation or {})["confusionMatrix"]
        assert np.sum(matrix, 1)[:3].tolist() == [3, 2, 1]


def test_validation_rows_are_given_or_split_off() -> None:
    with session() as s, pytest.raises(ModelError, match="validation data, or a share to split off, but not both"):
        s.fit(SORTED, validation_data=SORTED, validation_split=0.25, progress=False)


def test_fit_takes_the_classes_of_another_output() -> None:
    """The last input has no classes; 2.5 of each ten rounded up."""
    loss = {"kind": "CrossEntropyLoss", "age": "HuberLoss"}
    data = {
        "x": np.ones((30, 10), np.float32),
        "kind_labels": np.repeat([0, 1, 2], 10),
        "age": np.full(30, 0.5, np.float32),
    }
    model = outputs().SerializeToString()
    with trainweb.TrainingSession.from_model(model, loss=loss) as s:
        metrics = {"kind": "confusionMatrix"}
        options: Any = {"validation_split": 0.25, "metrics": metrics, "progress": False}
        for name in ("kind", "kind_labels"):
            (epoch,) = s.fit(data, stratify=name, **options).epochs
            assert epoch.validation is not None
            assert np.sum(epoch.validation["kind_confusionMatrix"], 1)[:3].tolist() == [3, 3, 3]
        with pytest.raises(FeedError, match="needs one whole number a row in 'age_labels'"):
            s.fit(data, stratify=True, **options)


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        (SORTED, {"stratify": True}, ModelError, "'stratify' needs 'validation_split'"),
        (iter([]), {"stratify": True, "validation_split": 0.5}, FeedError, "cannot be split"),
        (
            {n: a[:2] for n, a in SORTED.items()},
            {"stratify": True, "validation_split": 0.1},
            FeedError,
            "less than one",
        ),
    ],
)
def test_what_is_wrong_is_named(data: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    with session() as s, pytest.raises(error, match=said):
        s.fit(data, progress=False, **options)


def test_a_wrong_output_lists_the_outputs() -> None:
    with trainweb.TrainingSession.from_model(trainweb.data.example("first.onnx"), loss="CrossEntropyLoss") as s:
        for call in (lambda: s.export_model_for_inferencing(["output"]), lambda: s.export(outputs="output")):
            with pytest.raises(ModelError, match=r"gives logits; other tensors of it are .*onnx::loss::\d"):
                call()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_nan_among_rows_that_are_evaluated_is_named_once(value: float) -> None:
    points, labels = np.ones((8, 2), np.float32), np.zeros(8, np.int64)
    holed = points.copy()
    holed[5, 1] = value
    model = example("first.onnx")
    with (
        warnings.catch_warnings(record=True) as found,
        trainweb.TrainingSession.from_model(model, loss="CrossEntropyLoss") as session,
    ):
        warnings.simplefilter("always")
        session.fit((points, labels), epochs=2, validation_data=(holed, labels), batch_size=2, progress=False)
        session.evaluate((points, labels), batch_size=2)
        for _ in range(2):
            assert np.isnan(session.evaluate((holed, labels), batch_size=2)["loss"])
    texts = [str(warning.message) for warning in found if "Fill NaN" in str(warning.message)]
    assert [text.partition("'points' has ")[2].partition(". Fill")[0] for text in texts] == [
        f"{value} in row 5 of the validation data",
        f"{value} in row 5 of the data",
    ]
    assert texts[0].startswith("The loss is nan. ")


def test_labels_that_are_all_ignored_give_no_notice(recwarn: pytest.WarningsRecorder) -> None:
    loss = {"type": "CrossEntropyLoss", "ignore_index": -100}
    with trainweb.TrainingSession.from_model(example("first.onnx"), loss=loss) as session:
        values = session.evaluate((np.ones((4, 2), np.float32), np.full(4, -100)))
    assert np.isnan(values["loss"]) and not list(recwarn)
