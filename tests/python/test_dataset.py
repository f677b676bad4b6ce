"""Datasets: rows, batches, files, and the order in which they come."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainweb.data import Dataset, from_csv
from trainweb.data.random import permutation, random_words
from trainweb.errors import FeedError, ModelError


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


def test_what_is_done_with_rows() -> None:
    data = numbers(7)
    assert values(data.map(lambda row: {"x": row["x"] * 2}).filter(lambda row: bool(row["x"] > 4))) == [6, 8, 10, 12]
    assert values(data.batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(data.batch(3, "drop")) == [[0, 1, 2], [3, 4, 5]]
    assert values(data.batch(3, "pad")) == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert values(numbers(2).batch(5, "pad")) == [[0, 1, 0, 1, 0]]
    assert values(data.take(2)) == [0, 1] and values(Dataset({"x": np.arange(5)}).take(2)) == [0, 1]


def test_shuffle_keeps_all_rows() -> None:
    data = numbers(100).shuffle(10, seed=4)
    first, second = values(data), values(data)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert values(numbers(100).shuffle(10, seed=4)) == first
    # A row waits in the buffer of ten, and comes ten places earlier at most.
    assert all(place >= value - 10 for place, value in enumerate(first))


def test_split() -> None:
    first, second = Dataset({"x": np.arange(10)}).split(0.3)
    assert values(first) == [0, 1, 2, 3, 4, 5, 6] and values(second) == [7, 8, 9]
    first, second = Dataset({"x": np.arange(10)}).split(0.3, seed=1)
    assert sorted(values(first) + values(second)) == list(range(10)) and values(second) != [7, 8, 9]


def test_cache_and_prefetch() -> None:
    made: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for k in range(5):
            made.append(threading.get_ident())
            yield {"x": np.float32(k)}

    kept = Dataset(rows).cache()
    assert values(kept) == values(kept) == [0, 1, 2, 3, 4] and len(made) == 5
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


def test_buckets() -> None:
    lengths = [3, 8, 2, 5, 4]
    rows = [{"ids": np.arange(1, n + 1), "label": np.int64(n)} for n in lengths]
    batches = list(Dataset(rows).bucket(lambda row: len(row["ids"]), [4, 8], 2))
    assert [b["label"].tolist() for b in batches] == [[3, 2], [8, 5], [4]]
    assert batches[0]["ids"].tolist() == [[1, 2, 3, 0], [1, 2, 0, 0]]
    with pytest.raises(FeedError, match="A row has length 8, and the last bucket holds 4"):
        list(Dataset(rows).bucket(lambda row: len(row["ids"]), [4], 2))


def test_buckets_pad_what_they_are_told_to() -> None:
    rows = [{"ids": np.ones(n, np.int64), "side": np.float32([1, 2, 3])} for n in (2, 3, 4)]
    data = Dataset(rows)
    (made,) = data.bucket(lambda row: len(row["ids"]), [5], 3, padded=["ids"])
    assert made["ids"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    assert made["side"].tolist() == [[1, 2, 3]] * 3
    for names, said in (
        (["side"], r"'side' of a row of length 2 is float32\[3\]: the first axis"),
        (["ids", "id"], "'id' of a row of length 2 is missing"),
    ):
        with pytest.raises(FeedError, match=said):
            list(data.bucket(lambda row: len(row["ids"]), [5], 3, names))
    with pytest.raises(TypeError, match="'padded' must be a list of str"):
        data.bucket(len, [5], 3, "ids")


CSV = "\ufeffa,b,kind\n1,2.5,cat\n\n-3,4e1,dog\n5,6, cat \n"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(CSV, encoding="utf-8")
    data = from_csv(path, {"x": ["b", "a"], "label": "kind"}, classes={"label": ["dog", "cat"]})
    columns = data.columns
    assert columns is not None
    assert columns["x"].dtype == np.float32 and columns["x"].tolist() == [[2.5, 1], [40, -3], [6, 5]]
    assert columns["label"].dtype == np.int64 and columns["label"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("a\n1\nx\n", {"columns": {"x": "a"}}, "Line 3, column 'a': 'x' is not a valid float32"),
        ("a\n1\n\n\n\n", {"columns": {"x": "b"}}, "The file has no column 'b'; it has a"),
        ("a,b\n1,2\n3\n", {"columns": {"x": "a"}}, "Line 3 has 1 values; the header has 2"),
        ('a,b\n"1\n",2\n3,\n', {"columns": {"x": "b"}}, "Line 4, column 'b': the value is missing"),
        (
            "a\n1.5\n",
            {"columns": {"x": "a"}, "dtypes": {"x": "int64"}},
            "Line 2, column 'a': '1.5' is not a valid int64",
        ),
        ("a\n300\n", {"columns": {"x": "a"}, "dtypes": {"x": "uint8"}}, "'300' is not a valid uint8"),
        ("a\n2\n", {"columns": {"x": "a"}, "dtypes": {"x": "bool"}}, "'2' is not a valid bool"),
        ("a\ncow\n", {"columns": {"x": "a"}, "classes": {"x": ["cat"]}}, "'cow' is not one of cat"),
        ("a\n", {"columns": {"x": "a"}}, "The data has no rows"),
        ("", {"columns": {"x": "a"}}, "The data has no rows"),
        ("a\n1\n", {"columns": {"x": "a"}, "dtypes": {"y": "int64"}}, "'y' is not one of the inputs"),
        ("a\n1\n", {"columns": {"x": "a"}, "dtypes": {"x": "float16"}}, "'x' cannot be read as float16"),
        ("a\n1\n", {"columns": {"x": "a"}, "classes": {"y": ["cat"]}}, "'y' is not one of the inputs"),
        ("a\n1\nnan\n", {"columns": {"x": "a"}}, "Line 3, column 'a': the value is missing"),
        ("a\n1\n1_0\n", {"columns": {"x": "a"}}, "Line 3, column 'a': '1_0' is not a valid float32"),
        (
            "a\n1_0\n",
            {"columns": {"x": "a"}, "dtypes": {"x": "int64"}},
            "Line 2, column 'a': '1_0' is not a valid int64",
        ),
        ("a\n1e39\n", {"columns": {"x": "a"}}, "Line 2, column 'a': '1e39' is not a valid float32"),
        ("a\n1e309\n", {"columns": {"x": "a"}, "dtypes": {"x": "float64"}}, "'1e309' is not a valid float64"),
        ('a,b\n"1\n",2\n3,"x\n4,y\n', {"columns": {"x": "a"}}, "Line 4: a value between quotes does not end"),
        ('a,b\n"1\n2","3\n', {"columns": {"x": "a"}}, "Line 2: a value between quotes does not end"),
        ('a,b\n1,"2"3\n', {"columns": {"x": "a"}}, "Line 2: a value between quotes does not end"),
        ("a,b,a\n1,2,3\n", {"columns": {"x": "a"}}, "The file has more than one column 'a'"),
    ],
)
def test_a_bad_file_is_named_by_line_and_column(text: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(FeedError, match=said):
        from_csv(io.StringIO(text, newline=""), **arguments)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_long_values_take_no_time(dtype: str) -> None:
    """A quadratic algorithm took hours here; `csv` itself ends at 131 072 characters by default."""
    before = csv.field_size_limit(10**7)
    try:
        for digits in ("1" * 2_000_000 + "x", "x" * 2_000_000):
            with pytest.raises(FeedError) as caught:
                from_csv(io.StringIO(f"a\n{digits}\n"), {"x": "a"}, dtypes={"x": dtype})
            shown = f"'{digits[:499]}... ({len(digits) + 2} characters)"
            assert str(caught.value) == f"Line 2, column 'a': {shown} is not a valid {dtype}."
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


def test_what_is_no_setting() -> None:
    data = Dataset({"x": np.arange(4)})
    for call in (
        lambda: data.batch(0),
        lambda: data.batch(2, "cut"),  # type: ignore[arg-type]
        lambda: data.shuffle(0),
        lambda: data.split(1.5),
        lambda: data.prefetch(-1),
    ):
        with pytest.raises(ModelError):
            call()
    for twice in (lambda: data.batch(2).batch(2), lambda: data.batch(2).bucket(len, [4], 2)):
        with pytest.raises(FeedError, match="is already batched"):
            twice()
    for delimiter in ("", ";;", '"', "\n", 3):
        with pytest.raises(ModelError, match=r"delimiter is .*; it must be one character"):
            from_csv(io.StringIO("a\n1\n"), {"x": "a"}, delimiter=delimiter)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("values", "kinds"),
    [([1.0, None], "NoneType and float"), (["a", float("nan")], "float and str"), ([True, 1.5], "bool and float")],
)
def test_a_column_of_objects_is_named_with_their_types(values: list[Any], kinds: str) -> None:
    with pytest.raises(FeedError, match=f"'age' has Python objects of type {kinds}"):
        Dataset({"age": np.array(values, object)})


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
