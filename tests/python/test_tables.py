"""Missing values, standardisation and categories of tables."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.data import Dataset, example
from trainweb.errors import FeedError, ModelError


def test_columns_are_standardized_by_the_rows_of_training() -> None:
    """The oracle is numpy's mean and deviation (of the population, as scikit-learn's StandardScaler)."""
    draw = np.random.default_rng(5)
    x = draw.normal([3, -200, 0], [2, 50, 1e-3], (101, 3)).astype(np.float32)
    y = draw.normal(4, 7, 101)
    training, test = Dataset({"x": x, "y": y}).split(0.3, seed=1)
    fitted = training.standardize("x", "y")
    later = test.preprocess(json.loads(json.dumps(fitted.preprocessing)))
    for data in (training, test):
        assert data.columns is not None and data.preprocessing == []
    for before, after in ((training.columns, fitted.columns), (test.columns, later.columns)):
        assert training.columns is not None and before is not None and after is not None
        for name, dtype in (("x", np.float32), ("y", np.float64)):
            of = training.columns[name].astype(np.float64)
            expected = ((before[name] - of.mean(0)) / of.std(0)).astype(dtype)
            assert after[name].dtype == dtype
            np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "expected"), [("fill_mean", np.nanmean), ("fill_median", np.nanmedian)])
def test_missing_numbers_are_filled_by_the_rows_of_training(name: str, expected: Callable[..., np.ndarray]) -> None:
    """The oracle is numpy's mean and median without NaN."""
    draw = np.random.default_rng(8)
    x = draw.normal([3, -200], [2, 50], (61, 2)).astype(np.float32)
    x[draw.random(x.shape) < 0.3] = np.nan
    training, test = Dataset({"x": x, "y": x[:, 0].astype(np.float64)}).split(0.3, seed=2)
    fitted = getattr(training, name)("x", "y")
    later = test.preprocess(json.loads(json.dumps(fitted.preprocessing)))
    assert training.columns is not None and test.columns is not None
    for before, after in ((training.columns, fitted.columns), (test.columns, later.columns)):
        for key, dtype in (("x", np.float32), ("y", np.float64)):
            value = expected(training.columns[key].astype(np.float64), axis=0)
            assert after[key].dtype == dtype and np.isnan(before[key]).any()
            np.testing.assert_allclose(after[key], np.where(np.isnan(before[key]), value, before[key]), rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.full((3, 1), np.nan), "'x' has no number in column 0, only NaN"),
        (np.array([[1.0, np.inf]]), "'x' has infinity or numbers too large to add up in column 1"),
        (np.array([["a"]]), "'x' is string; the step 'fill' takes float32, float64, int64"),
    ],
)
def test_what_cannot_be_filled(x: np.ndarray, said: str) -> None:
    with pytest.raises(FeedError, match=said):
        Dataset({"x": x}).fill_mean("x")


@pytest.mark.parametrize("x", [["1", "2"], [1.0, 2.0], np.array([1, 2], np.float16)])
def test_what_a_step_does_not_take_can_be_made_what_it_takes(x: Any) -> None:
    """The error says how, and that works."""
    digits, numbers = isinstance(x, list) and isinstance(x[0], str), np.asarray(x).dtype == np.float16
    table, step = Dataset({"x": x}), "standardize" if digits or numbers else "categories"
    with pytest.raises(FeedError) as raised:
        getattr(table, step)("x")
    made = {"float, Number": [float(one) for one in x], "float32": np.array(x, np.float32), "labels already": [1, 2]}
    said = "float, Number" if digits else "float32" if numbers else "labels already"
    assert said in str(raised.value) and "'one_hot'" in str(raised.value)
    assert Dataset({"x": made[said]}).standardize("x").columns is not None


def test_categories_that_a_table_declares() -> None:
    """In their order, also after a split that leaves one out."""

    class Column(list[str]):
        """A column of pandas: its type has an Index of categories."""

        dtype = SimpleNamespace(categories=np.array(["small", "large", "huge"], object))

    table = Dataset({"size": Column(["large", "small", "small", "huge"]), "x": [1, 2, 3, 4]})
    first, _ = table.split(0.25)
    sizes = first.standardize("x").categories("size")
    assert sizes.columns is not None and sizes.columns["size"].tolist() == [1, 0, 0]
    hot = table.take(2).one_hot("size").columns
    assert hot is not None and hot["size"].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_a_constant_column_becomes_zeros() -> None:
    """0.1 does not add up exactly: the deviation is tiny, and the quotient would be large."""
    columns = Dataset({"x": np.full((1000, 1), 0.1)}).standardize("x").columns
    assert columns is not None and np.abs(columns["x"]).max() < 1e-12


def test_categories_become_columns_in_ascending_order() -> None:
    """The oracle is a comparison with each category, as scikit-learn's OneHotEncoder has it."""
    colours, sizes = np.array(["red", "blue", "red", "green"]), np.array([30, 7, 7, 100])
    rows = Dataset({"colour": colours, "size": sizes, "label": np.array(["z", "a", "a", "z"]), "n": np.zeros(4, "f4")})
    made = rows.one_hot("colour", "size").categories("label").concat("x", ["n", "colour", "size"])
    assert made.columns is not None and list(made.columns) == ["label", "x"]
    expected = [colours == name for name in ("blue", "green", "red")] + [sizes == size for size in (7, 30, 100)]
    np.testing.assert_array_equal(made.columns["x"], np.stack([np.zeros(4), *expected], axis=1))
    assert made.columns["x"].dtype == np.float32 and made.columns["label"].tolist() == [1, 0, 0, 1]
    asked = Dataset({"colour": ["green"], "size": [7], "n": np.ones(1, "f4")}).preprocess(made.preprocessing).columns
    assert asked is not None and asked["x"].tolist() == [[1, 0, 1, 0, 1, 0, 0]]
    with pytest.raises(FeedError, match=r"Row 1 has 'pink' as 'colour', .* have only 'blue', 'green', 'red'"):
        Dataset({"colour": ["red", "pink"]}).preprocess(rows.one_hot("colour").preprocessing)


def test_steps_before_the_split_are_not_applied_again() -> None:
    rows = Dataset({"c": ["a", "b", "b", "a"], "x": np.arange(4.0, dtype=np.float32)}).one_hot("c")
    training, test = rows.split(0.5)
    training = training.standardize("x").concat("y", ["x", "c"])
    for steps in (training.preprocessing, json.loads(json.dumps(training.preprocessing, sort_keys=True))):
        made = test.preprocess(steps)
        assert made.columns is not None and made.columns["y"].tolist() == [[3, 0, 1], [5, 1, 0]]
        assert made.preprocessing == training.preprocessing
    with pytest.raises(FeedError, match=r"is float32; 'one_hot' takes texts. For a missing one, give its fill value"):
        Dataset(rows.columns).preprocess(training.preprocessing)


ASKED = (
    {"n": [[31.0, 2500.0]], "size": [7], "colour": ["red"]},
    {"n": [[31, 2500]], "size": [7.0], "colour": np.array(["red"], object)},
    {"n": np.array([[31, 2500]], np.int16), "size": np.array([7], np.uint16), "colour": np.array(["red"])},
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_rows_that_are_asked_later_take_the_types_of_the_fitted_rows(dtype: str) -> None:
    """Lists, integers, and columns of pandas (float64, objects) give the bytes of rows of those types."""
    rows = Dataset(
        {
            "n": np.array([[20, 100], [31, 900], [40, 2500]], dtype),
            "size": np.array([7, 30, 7]),
            "colour": np.array(["red", "blue", "red"]),
        }
    )
    filled = rows if dtype == "int64" else rows.fill_mean("n")
    made = filled.standardize("n").one_hot("size", "colour")
    made = made.concat("x", ["size", "colour"] if dtype == "float64" else ["n", "size", "colour"])
    same = {"n": np.array([[31, 2500]], dtype), "size": np.array([7]), "colour": np.array(["red"])}
    expected = Dataset(same).preprocess(made.preprocessing).columns
    assert expected is not None and expected["x"].dtype == np.float32
    for asked in ASKED:
        found = Dataset(asked).preprocess(json.loads(json.dumps(made.preprocessing))).columns
        assert found is not None
        assert {n: (a.dtype, a.tobytes()) for n, a in found.items()} == {
            n: (a.dtype, a.tobytes()) for n, a in expected.items()
        }
    with pytest.raises(FeedError, match=r"Row 0 has 7\.5 as 'size', and the fitted rows have only 7, 30"):
        Dataset({**ASKED[0], "size": [7.5]}).preprocess(made.preprocessing)
    with pytest.raises(FeedError, match="'n' is string"):
        Dataset({**ASKED[0], "n": [["31", "2500"]]}).preprocess(made.preprocessing)


def test_steps_of_older_files_have_no_types() -> None:
    rows = Dataset({"x": np.arange(4.0, dtype=np.float32)})
    steps = [{n: v for n, v in step.items() if n != "dtype"} for step in rows.standardize("x").preprocessing]
    for given in (np.arange(4.0), np.arange(4.0, dtype=np.float32)):
        found = Dataset({"x": given}).preprocess(steps).columns
        assert found is not None and found["x"].dtype == given.dtype


def test_steps_are_kept_with_a_checkpoint(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(5, 3, (16, 2)).astype(np.float32)
    session = trainweb.TrainingSession.from_model(example("first.onnx"), loss="CrossEntropyLoss", optimizer="AdamW")
    data = Dataset({"points": points, "labels": np.arange(16) % 2}).standardize("points")
    session.fit(data, epochs=1)
    assert data.columns is not None
    expected = session.predict({"points": data.columns["points"]})
    session.state.properties["preprocessing"] = json.dumps(data.preprocessing)
    session.save(tmp_path / "kept.ckpt")
    kept = trainweb.CheckpointState.load_checkpoint(tmp_path / "kept.ckpt").properties["preprocessing"]
    found = session.predict(Dataset({"points": points}).preprocess(json.loads(str(kept))))
    session.release()
    assert list(found) == list(expected) and len(found) == 1
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])


def test_steps_are_kept_with_the_rows() -> None:
    rows = Dataset({"x": np.arange(8.0)}).standardize("x")
    for derived in (*rows.split(0.5), rows.shuffle(), rows.map(lambda row: row).batch(2), rows.take(2)):
        assert derived.preprocessing == rows.preprocessing


def test_what_are_no_steps() -> None:
    with pytest.raises(ModelError, match="it must be the 'preprocessing' of a dataset"):
        Dataset({"x": np.arange(4.0)}).preprocess(3)  # type: ignore[arg-type]


def test_numbers_that_cannot_be_standardized() -> None:
    for value in (np.nan, np.inf, 1e200):
        with pytest.raises(FeedError, match="'x' has NaN, infinity, or a number too large to square"):
            Dataset({"x": np.array([1.0, value])}).standardize("x")
    with pytest.raises(TypeError, match="'standardize' needs the names of inputs; there are x"):
        Dataset({"x": np.arange(4.0)}).standardize()


def test_numbers_and_texts_cannot_be_joined() -> None:
    with pytest.raises(FeedError, match="'c' is string and 'x' is float32: numbers and text cannot be concatenated"):
        Dataset({"x": np.zeros(2, np.float32), "c": np.array(["a", "b"])}).concat("y", ["x", "c"])


def test_validation_rows_need_the_steps_of_the_training_rows() -> None:
    """Numbers that are not standardized are accepted, but with a notice."""
    x = np.random.default_rng(0).normal(5, 3, (12, 2)).astype(np.float32)
    raw = {"features": x, "labels": np.arange(12) % 2}
    training, validation = Dataset({"points": x, "labels": np.arange(12) % 2}).split(0.5)
    training = training.standardize("points")
    with trainweb.TrainingSession.from_model(example("first.onnx"), loss="CrossEntropyLoss") as session:
        for other in (validation, validation.standardize("points")):
            session._core.notices.clear()
            with pytest.warns(UserWarning, match=r"validation rows lack: standardize of 'points'\. Give 'preprocess'"):
                session.fit(training, validation_data=other, progress=False)
        for call in (session.evaluate, session.predict):
            session._core.notices.clear()
            with pytest.warns(UserWarning, match=r"the given rows lack: standardize of 'points'\. Give 'preprocess'"):
                call(validation)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            prepared = validation.preprocess(training.preprocessing)
            session.fit(training, validation_data=prepared, progress=False)
            session.evaluate(prepared)
            session.predict(validation)  # the notice comes once
            session.fit(training.map(dict), validation_data=validation.map(dict), progress=False)
        with pytest.raises(FeedError, match="The validation data has no 'points'; it has features, labels, and the"):
            session.fit(training, validation_data=raw, progress=False)
