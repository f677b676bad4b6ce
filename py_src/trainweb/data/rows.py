"""Rows as batches, in order, drawn from a buffer, or by their lengths. In a page `web/src/data/rows.ts`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trainweb import messages
from trainweb.data.random import random_words
from trainweb.errors import UnsupportedError

Row = Mapping[str, Any]
Batch = dict[str, np.ndarray]
Remainder = Literal["keep", "drop", "pad"]
"""Use of the rows that do not fill a batch: a smaller one, nothing, or a batch filled up from the start."""


NAT = -(2.0**63)
"""A missing date (NaT) that numpy converted to a number."""


class Bucketed(dict[str, Any]):
    """A batch of rows that are not in order, such as a bucket's, and their numbers in the data."""

    def __init__(self, batch: Mapping[str, Any], numbers: Sequence[int]) -> None:
        super().__init__(batch)
        self.numbers = numbers


def numbered(source: Any, made: Any) -> Any:
    """The result of a step on a batch, whose rows keep their numbers."""
    has_numbers = isinstance(source, Bucketed) and isinstance(made, Mapping)
    return Bucketed(made, source.numbers) if has_numbers else made


def numbers_of(batch: Any, rows: range) -> Sequence[int]:
    """The numbers of the rows of a batch: those of a bucket, else `rows`."""
    numbers = batch.numbers if isinstance(batch, Bucketed) else rows
    return numbers if len(numbers) == len(rows) else rows


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of that name. Raise UnsupportedError for bfloat16 without the package ml_dtypes."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        from ml_dtypes import bfloat16
    except ImportError as e:
        raise UnsupportedError("numpy has no bfloat16 by itself: install the package ml_dtypes.") from e
    result: np.dtype[Any] = np.dtype(bfloat16)
    return result


def plain_array(value: Any, dtype: Any = None) -> np.ndarray:
    """`np.asarray`, where what a masked array lacks is NaN, or None among texts. A tensor may need its gradient.

    Dates become days since 1970-01-01, and durations days, float64 with NaN for NaT; those in a list then get `dtype`.
    """
    value = value.detach() if hasattr(value, "detach") else value
    if dtype is not None and np.asarray(value).dtype.kind in "mM":
        value = plain_array(value).tolist()
    array = np.asarray(value, dtype)
    array = array - np.datetime64(0, "D") if array.dtype.kind == "M" else array
    array = array / np.timedelta64(1, "D") if array.dtype.kind == "m" else array
    if isinstance(value, np.ndarray) and np.any(mask := getattr(value, "mask", False)):
        missing, array = (np.nan, array) if array.dtype.kind in "biuf" else (np.array(None), array.astype(object))
        array = np.where(mask, missing, array)
    return array


def stack(rows: list[Row], numbers: Iterable[int]) -> Batch:
    """Rows as a batch; errors name them by their numbers.

    Raise FeedError for a row that is no mapping, has other names than the first, or an array of another shape.
    """
    first = rows[0]
    batch: Batch = {}
    positions = list(numbers)
    for position, row in zip(positions, rows, strict=True):
        if isinstance(row, str):
            raise messages.TEXT_VALUES(what=f"Row {position} of the data")
        if not isinstance(row, Mapping):
            raise messages.NOT_A_ROW(position=position, actual=type(row).__name__)
        check_names(position, row, first)
    for name in first:
        arrays = [_value(name, row[name], position) for position, row in zip(positions, rows, strict=True)]
        for position, array in zip(positions, arrays, strict=True):
            if (actual := type_of(array)) != (expected := type_of(arrays[0])):
                refuse_texts(name, array)
                raise messages.ROW_TYPE(position=position, name=name, actual=actual, expected=expected)
        batch[name] = np.stack(arrays)
    return batch


def check_names(position: int, row: Row, first: Row) -> None:
    """Raise FeedError for a row of other names."""
    if row.keys() != first.keys():
        raise messages.ROW_NAMES(position=position, names=", ".join(row), expected=", ".join(first))


def dtype_of(array: np.ndarray) -> str:
    """The name of a type, as a tensor has it in a page."""
    return "string" if array.dtype.kind == "U" else str(array.dtype)


def type_of(array: np.ndarray) -> str:
    """The type and the shape of a row's value."""
    return f"{dtype_of(array)}{list(array.shape)}"


def refuse_objects(name: str, array: np.ndarray) -> None:
    """Raise FeedError for a mixture of numbers, texts and other objects, and for a missing date as a number."""
    if array.dtype.kind in "fi" and array.itemsize >= 4 and len(dates := np.argwhere(array == NAT)):
        raise messages.MISSING_DATE(name=name, row=int(dates[0][0]), value=NAT)
    if array.dtype == object:
        kinds = [type(one).__name__ for one in array.flat]
        rarest = kinds.index(min(sorted(set(kinds)), key=kinds.count))
        row, value = rarest * len(array) // len(kinds), array.reshape(-1)[rarest]
        found = " and ".join(sorted(set(kinds)))
        if any(hasattr(one, "year") or hasattr(one, "days") for one in array.flat):
            raise messages.DATE_OBJECTS(name=name, kinds=found, row=row, value=value)
        raise messages.OBJECTS_IN_COLUMN(name=name, kinds=found, row=row, value=value)


def refuse_texts(name: str, array: np.ndarray) -> None:
    """Raise FeedError for texts and objects, which no model takes."""
    refuse_objects(name, array)
    if array.dtype.kind == "U":
        raise messages.TEXT_VALUES(what=repr(name))


def _value(name: str, value: Any, position: int) -> np.ndarray:
    try:
        return plain_array(value)
    except ValueError as error:
        raise messages.RAGGED_VALUE(position=position, name=name, reason=str(error)) from error


def batched(
    rows: Iterator[Row], size: int, remainder: Remainder, order: np.ndarray | None = None
) -> Iterator[Batch | Bucketed]:
    """Rows as batches. `order` has the numbers of rows that are not in order."""
    made = _stacked if order is None else _bucketed
    start: list[tuple[int, Row]] = []
    pending: list[tuple[int, Row]] = []
    for numbered in enumerate(rows) if order is None else zip(order.tolist(), rows, strict=True):
        if remainder == "pad" and len(start) < size:
            start.append(numbered)
        pending.append(numbered)
        if len(pending) == size:
            yield made(pending)
            pending = []
    if pending and remainder == "pad":
        while len(pending) < size:
            pending = (pending + start)[:size]
    if pending and remainder != "drop":
        yield made(pending)


def _stacked(numbered: list[tuple[int, Row]]) -> Batch:
    return stack([row for _, row in numbered], (number for number, _ in numbered))


def drawn(rows: Iterator[Any], buffer: int, seed: int, stream: int) -> Iterator[Any]:
    """Rows drawn from a buffer that is filled up in order."""
    held: list[Any] = []
    block = 256
    words: list[int] = []
    used = 0

    def below(count: int) -> int:
        nonlocal words, used, block
        if used == len(words):
            block *= 2
            words = random_words(seed, stream, block).tolist()
        used += 1
        return int(float(words[used - 1]) * float(count) / 2**32)

    for row in rows:
        if len(held) < buffer:
            held.append(row)
            continue
        k = below(buffer)
        yield held[k]
        held[k] = row
    while held:
        k = below(len(held))
        held[k], held[-1] = held[-1], held[k]
        yield held.pop()


def bucketed(
    rows: Iterator[Row],
    length: Callable[[Any], int],
    limits: list[int],
    size: int,
    fills: Mapping[str, float] | None,
) -> Iterator[Bucketed]:
    """Batches by the least of the limits that holds their rows, padded with the numbers of `fills`."""
    buckets: dict[int, list[tuple[int, Row]]] = {limit: [] for limit in limits}
    for number, row in enumerate(rows):
        n = length(row)
        limit = next((bound for bound in limits if n <= bound), None)
        if limit is None:
            raise messages.BEYOND_BUCKETS(position=number, length=n, most=limits[-1] if limits else 0)
        values = {name: plain_array(value) for name, value in row.items()}
        for name in values if fills is None else fills:
            if name in values and values[name].shape[:1] == (n,):
                values[name] = padded(name, values[name], limit, 0 if fills is None else fills[name])
            elif fills is not None:
                actual = type_of(values[name]) if name in values else "missing"
                raise messages.NOT_PADDED(name=name, length=n, actual=actual)
        buckets[limit].append((number, values))
        if len(buckets[limit]) == size:
            yield _bucketed(buckets[limit])
            buckets[limit] = []
    for pending in buckets.values():
        if pending:
            yield _bucketed(pending)


def _bucketed(rows: list[tuple[int, Row]]) -> Bucketed:
    return Bucketed(_stacked(rows), [number for number, _ in rows])


def padded(name: str, array: np.ndarray, length: int, fill: float) -> np.ndarray:
    """An array that is so long along its first axis, with a number behind.

    Raise ModelError for a number that the array's integers cannot hold.
    """
    behind = np.zeros((length - len(array), *array.shape[1:]), array.dtype)
    if fill:
        with np.errstate(invalid="ignore"):
            behind[...] = np.float64(fill)
    if fill and array.dtype.kind in "iub" and (behind != fill).any():
        raise messages.BAD_SETTING(name=f"padded[{name!r}]", value=fill, expected=f"{dtype_of(array)}, as the row has")
    return np.concatenate([array, behind])
