"""Batches of loaders, tuples and plain lists: they train as the same arrays do."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainweb.data import Dataset
from trainweb.errors import FeedError, ModelError
from trainweb.fit import Trainer

from .sessions import session
from .test_fit import rows

DATA = rows(20)
SIZE = 8
BATCHES = [{n: a[k : k + SIZE] for n, a in DATA.items()} for k in range(0, 20, SIZE)]


class Loader:
    """Like a DataLoader of torch: it can be iterated over again, and its batches are lists of arrays."""

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return ([batch["x"], batch["labels"]] for batch in BATCHES)


async def later() -> AsyncIterator[dict[str, np.ndarray]]:
    for batch in BATCHES:
        yield batch


def trained(data: Any, **options: Any) -> tuple[list[float], bytes]:
    with session() as s:
        losses = Trainer(s).fit(data, epochs=2, progress=False, **{"batch_size": SIZE, **options}).losses
        return losses, s.get_contiguous_parameters().tobytes()


@pytest.mark.parametrize(
    "data",
    [
        BATCHES,
        lambda: iter(BATCHES),
        lambda: ((batch["x"], batch["labels"]) for batch in BATCHES),
        Loader(),
        later,
        Dataset(Loader()),
        Dataset(BATCHES).map(lambda batch: (batch["x"], batch["labels"])),
    ],
)
@pytest.mark.parametrize("batched", [None, True])
def test_whole_batches_train_as_arrays(data: Any, batched: bool | None) -> None:
    assert trained(data, batch_size=None, batched=batched) == trained(DATA, shuffle=False)


@pytest.mark.parametrize(
    "data",
    [
        (DATA["x"], DATA["labels"]),
        (DATA["x"].tolist(), DATA["labels"].tolist()),
        {"x": DATA["x"].astype(np.float64), "labels": DATA["labels"].astype(np.int32)},
        {"x": DATA["x"].tolist(), "labels": DATA["labels"].astype(np.float32)},
        {"x": DATA["x"], "labels": DATA["labels"][:, None]},
        [(x, y) for x, y in zip(DATA["x"], DATA["labels"], strict=True)],
        [(x.tolist(), int(y)) for x, y in zip(DATA["x"], DATA["labels"], strict=True)],
    ],
)
def test_tuples_and_lists_train_as_arrays(data: Any) -> None:
    assert trained(data, shuffle=False) == trained(DATA, shuffle=False) != trained(DATA)
    assert trained(data) == trained(data, shuffle=True) == trained(DATA)


class MapStyle:
    """Rows by number, as a dataset of PyTorch gives them to a DataLoader."""

    def __getitem__(self, k: int) -> tuple[Any, int]:
        return DATA["x"][k], int(DATA["labels"][k])

    def __len__(self) -> int:
        return len(DATA["x"])


@pytest.mark.parametrize("shuffle", [None, True, False])
def test_rows_by_number_train_as_arrays(shuffle: bool | None) -> None:
    assert trained(MapStyle(), shuffle=shuffle) == trained(DATA, shuffle=shuffle)
    with session() as s:
        assert s.evaluate(MapStyle()) == s.evaluate(DATA)


def test_predictions_and_values_of_batches() -> None:
    with session() as s:
        assert s.evaluate(Loader()) == s.evaluate(DATA, batch_size=SIZE)
        np.testing.assert_array_equal(s.predict(Loader())["logits"], s.predict(DATA, batch_size=SIZE)["logits"])
        np.testing.assert_array_equal(s.predict((DATA["x"],))["logits"], s.predict({"x": DATA["x"]})["logits"])


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (BATCHES[:2], {"batched": False}, FeedError, r"'x' has shape \[2, 8, 5\] in batch 0 of the data.*\[5\] for a row"),
    (DATA, {"batched": True}, ModelError, "this data is arrays"),
    (BATCHES, {"batch_size": 4}, ModelError, "already batched: leave out 'batch_size'"),
    ({"x": DATA["x"][:, :3], "labels": DATA["labels"]}, {}, FeedError, r"\[20, 3\] in the data.*\[batch, 5\] for a b"),
    ({"x": DATA["x"], "labels": np.full(20, 0.5)}, {}, FeedError, "'labels' has 0.5 in the data; the model t"),
    ((DATA["x"], DATA["labels"], DATA["x"]), {}, FeedError, "The data has 3 values, and the model has 2 inputs"),
    (MapStyle(), {"validation_split": 0.5}, FeedError, "two datasets, as torch.utils.data.random_split makes"),
    ([(1, 2, 3)], {}, FeedError, "Item 0 of the data has 3 values, and the model has 2 inputs: x, labels"),
]


@pytest.mark.parametrize(("data", "options", "error", "said"), WRONG)
def test_what_is_wrong_is_named(data: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    with session() as s, pytest.raises(error, match=said):
        Trainer(s).fit(data, progress=False, **options)


def test_validation_batches_keep_their_size() -> None:
    with session() as s:
        history = Trainer(s).fit(DATA, batch_size=4, validation_data=Loader(), progress=False)
        assert history.epochs[0].validation == s.evaluate(DATA, batch_size=SIZE)


def test_batches_of_any_size_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    whole = [{n: np.concatenate([a] * 4)[:size] for n, a in DATA.items()} for size in (64, 40)]
    place = {"store": tmp_path, "name": "fit", "every": 1}

    def broken() -> Iterator[dict[str, np.ndarray]]:
        yield whole[0]
        raise OSError("the file ends")

    with session() as s:
        Trainer(s).fit(whole, progress=False)
        expected = s.get_contiguous_parameters().tobytes()
    with session() as s, pytest.raises(OSError, match="the file ends"):
        Trainer(s).fit(broken, checkpoint=place, progress=False)
    with session() as s:
        Trainer(s).fit(lambda: iter(whole), checkpoint=place, progress=False)
        assert s.get_contiguous_parameters().tobytes() == expected


@pytest.mark.parametrize("form", ["columns", "objects", "dataset", "rows", "batches"])
def test_further_columns_are_not_read(form: str) -> None:
    """With one notice a session; where a column is missing, an error names it."""
    count = len(DATA["labels"])
    further = {"id": np.arange(count), "source": np.array(["a"] * count)}
    everything = {**further, **DATA}
    tags = [{"tag": "a"}] * count
    by_row = [{name: array[k] for name, array in DATA.items()} for k in range(count)]
    plain, data = {
        "columns": (DATA, everything),
        "objects": (DATA, {**everything, "source": tags}),
        "dataset": (DATA, Dataset(everything)),
        "rows": (by_row, [{"id": k, "source": tags[k], **row} for k, row in enumerate(by_row)]),
        "batches": (BATCHES, [{"id": 1, "source": "a", **batch} for batch in BATCHES]),
    }[form]
    options = {"batch_size": None} if form == "batches" else {}
    expected = trained(plain, **options)
    with pytest.warns(UserWarning, match=r"^These columns of the data are not read: id, source\.") as notices:
        assert trained(data, **options) == expected
    assert len(notices) == 1
    with session() as s, pytest.raises(FeedError, match="The data has no 'labels'; it has x, id"):
        Trainer(s).fit({"x": DATA["x"], "id": further["id"]}, progress=False)
