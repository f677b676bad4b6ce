"""Datasets: rows, batches, files, and the order in which they come."""

import asyncio
import csv
import datetime
import io
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.datasets import DATASETS, Chain, encoded, outcome
from tests.conformance.models import make_model

import trainweb
from trainweb.data import Dataset, from_csv
from trainweb.data.random import Draw, permutation, random_words
from trainweb.errors import FeedError, ModelError
from trainweb.training.arrays import as_feed, from_numpy

from .sessions import batch, session


def mixed(word: int) -> int:
    """The finalizer of MurmurHash3, on integers of Python."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) % 2**32
    return word ^ (word >> 16)


def test_random_words_are_split_mix() -> None:
    seed, stream = 2**40 + 7, 3
    key = seed % 2**32
    for word in (seed // 2**32, stream):
        key = mixed((mixed(key) + word) % 2**32)
    expected = [mixed((key + k * 0x9E3779B9) % 2**32) for k in range(1, 6)]
    assert random_words(seed, stream, 5).tolist() == expected


def test_a_permutation_is_one_and_is_fair() -> None:
    for count in (1, 2, 100):
        assert sorted(permutation(count, 1, 0)) == list(range(count))
    found = Counter(tuple(permutation(4, seed, 0)) for seed in range(2400))
    assert len(found) == 24
    # 23 degrees of freedom: 49.7 is passed once in a thousand.
    assert sum((n - 100) ** 2 / 100 for n in found.values()) < 49.7
    assert permutation(50, 1, 0).tolist() != permutation(50, 1, 1).tolist()


def numbers(n: int) -> Dataset:
    return Dataset(lambda: ({"x": np.float32(k)} for k in range(n)))


def values(data: Any) -> list[Any]:
    return [row["x"].tolist() for row in data]


def test_a_list_of_rows_has_a_length_and_a_stream_has_none() -> None:
    for rows in ([{"x": 1.5}] * 3, ({"x": 1.5}, {"x": 2.5}), []):
        assert len(Dataset(rows)) == len(rows)
    assert [len(part) for part in Dataset([{"x": 1.5}] * 10).split(0.3)] == [7, 3]
    for stream in (numbers(3), Dataset(iter([])), Dataset([{"x": 1.5}] * 3).map(lambda row: row), numbers(3).batch(2)):
        with pytest.raises(TypeError, match="A stream of rows has no length"):
            len(stream)


@pytest.mark.parametrize(("chain", "expected"), [row[1:] for row in DATASETS], ids=[row[0] for row in DATASETS])
def test_a_data_set_has_these_rows_or_this_error(chain: Chain, expected: Any) -> None:
    found = outcome(chain)
    if isinstance(expected, tuple):
        assert found.get("error") == expected[0] and expected[1] in found["message"], found
    else:
        np.testing.assert_equal(found["data"], found["data"] if expected is None else encoded(expected))


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", 3])
def test_what_is_no_delimiter(delimiter: Any) -> None:
    with pytest.raises(ModelError, match=r"delimiter is .*; it must be one character"):
        from_csv(io.StringIO("a\n1\n"), {"x": "a"}, delimiter=delimiter)


def test_what_is_no_list_of_padded_inputs() -> None:
    with pytest.raises(TypeError, match="'padded' must be a list of str"):
        Dataset({"x": np.arange(4)}).bucket(len, [5], 3, "ids")


def test_shuffle_keeps_all_rows() -> None:
    data = numbers(100).shuffle(10, seed=4)
    first, second = values(data), values(data)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert values(numbers(100).shuffle(10, seed=4)) == first
    # A row waits in the buffer of ten, and comes ten places earlier at most.
    assert all(place >= value - 10 for place, value in enumerate(first))


def test_cache_and_prefetch() -> None:
    made: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for k in range(5):
            made.append(threading.get_ident())
            yield {"x": np.float32(k)}

    kept = Dataset(rows).cache()
    assert values(kept) == values(kept) == [0, 1, 2, 3, 4] and len(made) == 5
    drawn = numbers(9).shuffle(9).cache()
    orders = [values(drawn._rows(Draw(0, 0, shuffles=shuffles))) for shuffles in (True, False, True)]
    assert orders[0] == orders[2] != orders[1] == [*range(9)]
    made.clear()
    assert values(Dataset(rows).prefetch(2)) == [0, 1, 2, 3, 4]
    assert set(made) != {threading.get_ident()}

    def fails() -> Iterator[dict[str, Any]]:
        yield {"x": np.float32(0)}
        raise ZeroDivisionError("of mine")

    with pytest.raises(ZeroDivisionError, match="of mine"):
        values(Dataset(fails).prefetch())
    before = threading.active_count()
    iterator = iter(numbers(10**9).prefetch(3))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


CSV = "\ufeffa,b,kind\n1,2.5,cat\n\n-3,4e1,dog\n5,6, cat \n"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(CSV, encoding="utf-8")
    data = from_csv(path, {"x": ["b", "a"], "label": "kind"}, classes={"label": ["dog", "cat"]})
    columns = data.columns
    assert columns is not None
    assert columns["x"].dtype == np.float32 and columns["x"].tolist() == [[2.5, 1], [40, -3], [6, 5]]
    assert columns["label"].dtype == np.int64 and columns["label"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_long_values_take_no_time(dtype: str) -> None:
    """A quadratic algorithm took hours here; `csv` itself ends at 131 072 characters by default."""
    before = csv.field_size_limit(10**7)
    try:
        for digits in ("1" * 2_000_000, "1" * 2_000_000 + "x", "x" * 2_000_000):
            with pytest.raises(FeedError) as caught:
                from_csv(io.StringIO(f"a\n{digits}\n"), {"x": "a"}, dtypes={"x": dtype})
            shown = f"'{digits[:499]}... ({len(digits) + 2} characters)"
            said = f"not a valid {dtype}." if digits.isdigit() else "no number. Give a column of text"
            assert str(caught.value).startswith(f"Line 2, column 'a': {shown} is {said}")
    finally:
        csv.field_size_limit(before)


def test_many_columns_and_classes_take_no_time() -> None:
    names = [f"c{k}" for k in range(400_000)]
    text = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    columns = from_csv(io.StringIO(text), {"x": names[-20_000:]}).columns
    assert columns is not None and columns["x"].shape == (1, 20_000)
    with pytest.raises(FeedError) as caught:
        from_csv(io.StringIO(text), {"x": "d"})
    assert str(caught.value).endswith("... (3488888 characters).") and len(str(caught.value)) < 700
    many = names[:100_000]
    columns = from_csv(io.StringIO("\n".join(["a", *many])), {"x": "a"}, classes={"x": many}).columns
    assert columns is not None and columns["x"].tolist() == list(range(100_000))


def test_take_takes_no_more() -> None:
    made: list[int] = []

    def rows() -> Iterator[dict[str, np.int64]]:
        for k in range(9):
            made.append(k)
            yield {"x": np.int64(k)}

    assert values(Dataset(rows).take(3)) == made == [0, 1, 2]


def test_a_text_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(CSV, encoding="utf-8")
    with path.open(newline="", encoding="utf-8") as file:
        columns = from_csv(file, {"x": "a"}).columns
    assert columns is not None and columns["x"].tolist() == [1, -3, 5]


class Table:
    """A table as pandas and polars have it: it iterates over the names of columns, not over rows."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self._values = list(columns), columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __len__(self) -> int:
        return min(map(len, self._values.values()))


class ArrowTable(Table):
    """One of pyarrow: `columns` are the values, and `column_names` the names."""

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        self.column_names, self.columns = list(columns), list(columns.values())


@pytest.mark.parametrize("kind", [Table, ArrowTable])
def test_columns_of_a_table(kind: type[Table]) -> None:
    floats, texts = np.array([1.5, 2], object), np.array(["red", "blue"], object)
    data = Dataset(kind(age=floats, colour=texts, size=np.array([3, 4])))
    assert {name: str(column.dtype) for name, column in data.columns.items()} == {
        "age": "float64", "colour": "<U4", "size": "int64",
    }  # fmt: skip
    assert [row["colour"] for row in data] == ["red", "blue"]


@pytest.mark.parametrize("make", [list, np.array])
def test_a_column_of_vectors(make: Callable[[list[float]], Any]) -> None:
    vectors = np.empty(2, object)
    vectors[:] = [make([1.5, 2, 3]), make([4.0, 5, 6])]
    np.testing.assert_equal(Dataset(Table(x=vectors)).columns, {"x": np.array([[1.5, 2, 3], [4, 5, 6]])})
    vectors[1] = make([4.0])
    with session() as s, pytest.raises(FeedError, match="'x' has Python objects of type"):
        s.fit(Dataset(Table(x=vectors, labels=np.arange(2))), progress=False)


class Rows:
    """A stream of rows that knows its columns, as `datasets.IterableDataset`."""

    column_names = ("x", "labels")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"x": [k, 2.0 * k], "labels": k % 2} for k in range(4))

    def __getitem__(self, name: str) -> Any:
        return (row[name] for row in self)


def test_a_stream_with_names_of_columns_is_no_table() -> None:
    assert [int(row["x"][1]) for row in Dataset(Rows())] == [0, 2, 4, 6]


def test_a_row_of_a_table_is_told_to_be_one() -> None:
    row = SimpleNamespace(iloc=[], __getitem__=None)
    with pytest.raises(FeedError, match=r"got a Series; a row of a table of pandas is df\.iloc\[\[5\]\]"):
        Dataset(row)


def test_a_tensor_may_need_its_gradient() -> None:
    class Tensor(list[float]):
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

        def detach(self) -> np.ndarray:
            return np.array(list(self))

    np.testing.assert_equal(Dataset({"x": Tensor([1, 2])}).columns, {"x": np.array([1.0, 2])})


@pytest.mark.parametrize(
    ("values", "kinds"),
    [([None, "a"], "NoneType and str"), (["a", float("nan")], "float and str"), ([True, 1.5], "bool and float")],
)
def test_a_column_of_objects_is_refused_where_it_is_read(values: list[Any], kinds: str) -> None:
    table = Dataset({"x": np.ones((2, 5), "f4"), "labels": np.arange(2), "age": np.array(values, object)})
    advice = r"dropna\(subset=\['age'\]\).*fill_null\('none'\) of polars"
    said = rf"'age' has Python objects of type {kinds}\. Row \d+ has .*{advice}"
    for step in (lambda: table.standardize("age"), lambda: table.concat("y", ["x", "age"])):
        with pytest.raises(FeedError, match=said):
            step()
    with pytest.raises(FeedError, match=said):
        table.preprocess(Dataset({"age": [1.0, 2.0]}).standardize("age").preprocessing)
    with session() as s:
        assert len(s.fit(table, progress=False).losses) == 1
        with pytest.raises(FeedError, match=said.replace("age", "x")):
            s.predict({"x": table.columns["age"][:, None].repeat(5, 1)})  # type: ignore[index]


def test_a_file_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(FeedError, match="the file is not a text in UTF-8: save it as such"):
        from_csv(tmp_path / "data.csv", {"x": "größe"})


def test_a_dataset_shows_the_types_of_tensors() -> None:
    assert (
        repr(Dataset({"x": np.zeros((2, 3), "f4"), "c": ["a", "red"]}))
        == "<Dataset: 2 rows of x float32[3], c string[]>"
    )


def test_missing_numbers_are_nan() -> None:
    """As tables with a column of nullable integers have them."""

    class NAType:
        pass

    table = Dataset({"x": np.array([[1, NAType()], [2.5, 3], [None, 5]], object), "b": [True, None, False]})
    assert table.columns is not None
    np.testing.assert_equal(table.columns["x"], [[1, np.nan], [2.5, 3], [np.nan, 5]])
    np.testing.assert_equal(table.columns["b"], [1, np.nan, 0])
    asked = Dataset([{"x": [None, None], "b": None}]).preprocess(table.fill_median("x", "b").preprocessing)
    assert {name: column.tolist() for name, column in (asked.columns or {}).items()} == {"x": [[1.75, 4]], "b": [0.5]}


def test_dates_are_days() -> None:
    """Counted by the calendar of Python, whatever their resolution; a missing one is NaN, also a masked one."""
    made = [datetime.date(2024, 2, 29), None, datetime.date(1969, 12, 31)]
    days = [one and one.toordinal() - datetime.date(1970, 1, 1).toordinal() for one in made]
    whole = np.array([np.nan if day is None else day for day in days])
    for unit in ("D", "s", "ns"):
        table = Dataset({"d": np.array(made, "M8[D]").astype(f"M8[{unit}]")})
        np.testing.assert_equal(table.columns, {"d": whole})
        np.testing.assert_equal(table.fill_mean("d").columns, {"d": [days[0], (days[0] - 1) / 2, -1]})
    noon = Dataset([{"d": np.datetime64("1970-01-02T12:00")}, {"d": np.datetime64("NaT", "m")}])
    np.testing.assert_equal(noon.concat("x", ["d"]).columns, {"x": [[1.5], [np.nan]]})
    np.testing.assert_equal(Dataset({"d": np.array([36, "NaT"], "m8[h]")}).columns, {"d": [1.5, np.nan]})
    masked = np.ma.masked_array(np.array(["1970-01-02", "1970-01-03"], "M8[D]"), [False, True])
    np.testing.assert_equal(Dataset({"d": masked}).columns, {"d": [1, np.nan]})


def test_dates_in_a_list_are_days() -> None:
    """A step converts a list to the type of its input; integers have no NaN."""
    noon, span = np.datetime64("1970-01-02T12:00"), np.timedelta64(36, "h")
    for dates in ([noon, np.datetime64("NaT")], [span, np.timedelta64("NaT")]):
        np.testing.assert_equal(as_feed("d", dates, "float32").data.cast("f").tolist(), [1.5, np.nan])
        with pytest.raises(FeedError, match=r"Feed 'd' cannot be made a int64 array: .*NaN"):
            as_feed("d", dates, "int64")
    assert as_feed("d", [np.datetime64("1969-12-31")], "int64").data.cast("q").tolist() == [-1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_missing_date_is_no_number(dtype: str) -> None:
    table = Dataset({"d": np.array(["2024-01-01", "NaT"], "M8[D]").astype(dtype)})
    for step in (table.fill_median, table.standardize, table.categories):
        with pytest.raises(FeedError, match=r"'d' has -9\.2\d*e\+18 in row 1, which numpy makes of a missing date"):
            step("d")
    with session() as s, pytest.raises(FeedError, match="'labels' has -9"):
        s.evaluate({"x": np.zeros((2, 5), np.float32), "labels": (table.columns or {})["d"]})


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2024, 1, 1),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        SimpleNamespace(year=2024),
        datetime.timedelta(days=1),
    ],
)
def test_objects_of_dates_are_named(value: Any) -> None:
    table = Dataset({"d": np.array([None, value], object)})
    advice = r"Give dates as datetime64.*tz_convert\(None\).*to_timestamp\(\).* of durations 'm8\[us\]'"
    with pytest.raises(FeedError, match=f"NoneType and .*{advice}"):
        table.fill_mean("d")


def test_decimals_are_numbers() -> None:
    np.testing.assert_equal(Dataset({"x": [Decimal("1.5"), None, 2]}).columns, {"x": [1.5, np.nan, 2]})


def test_what_a_masked_array_lacks_is_missing() -> None:
    whole, mask = np.array([1, 2, 3], np.float32), [False, True, False]
    missing = [1, np.nan, 3]
    for dtype, expected in (("float32", "float32"), ("int64", "float64")):
        column = np.ma.masked_array(whole.astype(dtype), mask)
        data = Dataset({"x": column})
        assert data.columns is not None and data.columns["x"].dtype == expected
        np.testing.assert_equal(data.columns["x"], missing)
        np.testing.assert_equal(next(iter(Dataset([{"x": column}]).batch(1)))["x"], [missing])
    np.testing.assert_equal(from_numpy("x", np.ma.masked_array(whole, mask)).data.cast("f").tolist(), missing)
    np.testing.assert_equal(Dataset({"x": np.ma.masked_array(whole)}).columns, {"x": whole})
    with pytest.raises(FeedError, match="Python objects of type NoneType and str"):
        Dataset({"x": np.ma.masked_array(["a", "b", "c"], mask)}).categories("x")
    with session() as s, pytest.raises(FeedError, match="'labels' has nan in the data; the model takes int64"):
        s.evaluate({"x": np.zeros((3, 5), np.float32), "labels": np.ma.masked_array([0, 1, 2], mask)})


def test_labels_may_be_true_or_false() -> None:
    feeds = batch()
    with session() as s:
        truth = feeds["labels"] > 0
        assert s.evaluate({**feeds, "labels": truth}) == s.evaluate({**feeds, "labels": truth.astype(np.int64)})


def test_async_rows_are_waited_for() -> None:
    ended: list[bool] = []

    async def rows() -> AsyncIterator[dict[str, Any]]:
        try:
            for k in range(4):
                await asyncio.sleep(0)
                yield {"x": np.float32(k)}
        finally:
            ended.append(True)

    data = Dataset(rows)
    assert values(data.batch(3)) == values(data.batch(3)) == [[0, 1, 2], [3]]

    async def beside_a_loop() -> list[Any]:
        return values(data.take(2))

    # Its own thread, so that a loop that runs here (Playwright's) is no concern.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, beside_a_loop()).result() == [0, 1]
    assert ended == [True] * 3 and values(Dataset(rows())) == [0, 1, 2, 3]

    async def fails() -> AsyncIterator[dict[str, Any]]:
        yield {"x": np.float32(0)}
        raise ZeroDivisionError("of mine")

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="of mine"):
        values(Dataset(fails))
    assert threading.active_count() == before


def test_the_end_of_a_shuffled_stream_is_shuffled_too() -> None:
    """Of four rows in a buffer that holds them all, each of the 24 orders comes about as often."""
    orders = Counter(tuple(values(numbers(4).shuffle(4, seed=seed))) for seed in range(1200))
    assert len(orders) == 24
    assert min(orders.values()) > 20 and max(orders.values()) < 85


def test_an_input_that_counts_time_by_its_first_axis_is_named() -> None:
    """A recurrent layer of PyTorch without batch_first; whole batches in that order are possible."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["y"]),
    ]
    weights = {"w": np.ones((3, 2), np.float32)}
    for time in ("time", 7):
        model = make_model(nodes, {"x": [time, "batch", 3]}, {"y": ["batch", 2]}, weights)
        with trainweb.TrainingSession.from_model(model.SerializeToString(), loss="CrossEntropyLoss") as session:
            x, labels = np.zeros((40, 7, 3), np.float32), np.arange(40) % 2
            said = r"'x' has the shape \[.*\] in the file, and 'labels' counts rows by 'batch': rows must be the first"
            for data in ({"x": x, "labels": labels}, [{"x": x[0], "labels": 1}] * 3):
                with pytest.raises(FeedError, match=said):
                    session.fit(data, progress=False)
            with pytest.raises(FeedError, match=said):
                session.predict({"x": x})
            batch = {"x": np.swapaxes(x, 0, 1), "labels": labels}
            session.fit(lambda batch=batch: iter([batch]), batched=True, progress=False)


def test_rows_of_a_graph_may_be_counted_by_both_axes() -> None:
    nodes = [
        helper.make_node("MatMul", ["adjacency", "features"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    inputs = {"adjacency": ["nodes", "nodes"], "features": ["nodes", 3]}
    model = make_model(nodes, inputs, {"y": ["nodes", 2]}, {"w": np.ones((3, 2), np.float32)})
    data = {"adjacency": np.eye(5), "features": np.ones((5, 3)), "labels": np.arange(5) % 2}
    with trainweb.TrainingSession.from_model(model.SerializeToString(), loss="CrossEntropyLoss") as session:
        session.fit(data, batch_size=5, shuffle=False, progress=False)
