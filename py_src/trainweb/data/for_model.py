"""Data as a model takes it: by the names, types and shapes of its inputs. In a page `web/src/page/model-inputs.ts`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain
from operator import or_
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.arguments import warn
from trainweb.data.dataset import Dataset, array_of_rows, columns_of_table
from trainweb.data.random import Draw, order_of
from trainweb.data.rows import Batch, Remainder, batched, numbered, numpy_dtype, refuse_texts
from trainweb.data.table import Unit, units_of
from trainweb.model.graph import Value
from trainweb.spelling import by_inputs, input_name

Look = Callable[[Batch], None]

DEFAULT_BATCH = 32
"""Rows of a batch, where neither the user nor the file says how many."""
CONVERTED = {
    "bool",
    "bfloat16",
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)),
}
Names = Container[str]
KINDS = {"f": "biuf", "V": "biuf", "i": "biuf", "u": "biuf", "b": "b"}
"""Kinds of numpy's types that are converted to each kind; of integers only what is equal afterwards."""


class ModelInputs:
    """The inputs of a model, to which data is fitted; a tuple gives them in the order of `inputs`.

    Data may lack those in `unread`, such as labels of predictions, and they are left out; `weights` weigh rows.
    """

    def __init__(
        self, inputs: Mapping[str, Value], unread: Names = (), notices: set[str] | None = None, weights: Names = ()
    ) -> None:
        self.values, self.unread, self._weights = dict(inputs), unread, weights
        self._notices = set() if notices is None else notices
        first = {value.shape[0] for value in inputs.values() if value.shape}
        size = first.pop() if len(first) == 1 else None
        self.rows = size if isinstance(size, int) else None
        """Rows of a batch, where the file fixes them: the first axis of every input."""

    def warn(self, text: object | None) -> None:
        """Warn, once in a session, unless the text is None."""
        if text is not None and str(text) not in self._notices:
            self._notices.add(str(text))
            warn(str(text), again=True)

    def size(self, batch_size: int | None) -> int:
        """The rows of a batch: `batch_size`, or the default. Raise ModelError if the file fixes another number."""
        if self.rows is not None and batch_size not in (None, self.rows):
            expected = (
                f"{self.rows}, which the first axis of the input {next(iter(self.values))!r} fixes in the file: "
                "leave it out ('accumulate' of fit makes larger steps), or export the model with dynamic_shapes"
            )
            raise messages.BAD_SETTING(name="batch_size", value=batch_size, expected=expected)
        return batch_size or self.rows or DEFAULT_BATCH

    def parts(self, batch: Batch, rows: Sequence[int]) -> Iterator[tuple[Batch, Sequence[int], int]]:
        """Split a batch into parts that fill a batch of the model; the numbers of their rows, and how often they occur.

        A part that is smaller than the batch of the file is repeated, so that the mean stays the same.
        """
        start, size = 0, self.rows or len(rows)
        while start < len(rows):
            count = next(k for k in range(min(size, len(rows) - start), 0, -1) if size % k == 0)
            order = start + np.arange(size) % count
            part = batch if size == len(rows) else {n: np.asarray(v)[order] for n, v in batch.items()}
            yield part, [rows[k] for k in order.tolist()], size // count
            start += count

    def dataset(self, source: Any) -> Dataset:
        """Make a data set of `source`; a tuple of arrays has one for each input, in order, and an array is the first.

        A list of numbers with the rank of the first input is an array. Raise FeedError for what is no data, or does not
        fit.
        """
        if (isinstance(source, np.ndarray) and source.dtype.kind in "biuf") or self._is_first(source):
            source = (source,)
        if isinstance(source, tuple) and not any(isinstance(one, Mapping) for one in source):
            source = self.named(source, "The data")
        data = Dataset.of(self._read(columns_of_table(source)))
        if data.columns is not None:
            self._check_rows_first()
            fitted = {name: self.fitted(name, array, "the data") for name, array in self._read(data.columns).items()}
            if any(fitted.get(name) is not array for name, array in data.columns.items()):
                converted = Dataset(fitted)
                converted.preprocessing = data.preprocessing
                return converted
        return data

    def units(self, data: Dataset) -> dict[str, Unit]:
        """The units of the inputs that steps of the data standardized."""
        return {input_name(name, self.values): unit for name, unit in units_of(data.preprocessing).items()}

    def batches(
        self,
        data: Dataset,
        size: int | None,
        remainder: Remainder,
        is_batched: bool | None,
        *,
        ignores_size: bool = False,
        drops: bool = False,
        look: Look | None = None,
    ) -> Dataset:
        """A stream as batches of `size` rows that the model takes.

        Items are batches if `is_batched`; None lets the shape of the first decide. With `ignores_size` the size is only
        for rows, and batches come as they are. With `drops` a notice leaves out batches that are smaller than the
        file's. `look` sees the first batch of each iteration.
        """
        rows_of_batch, is_list = self.size(size), self.lists_rows(data, is_batched)

        def made(draw: Draw | None) -> Iterator[Batch]:
            order = order_of(len(data), draw) if is_list and draw is not None else None
            items = data._rows(draw) if order is None else data.rows(order)._rows(None)
            if (first := next(items, items)) is items:
                return
            items = chain([first], items)
            is_whole = False if is_list else is_batched
            has_batches = is_whole or data.is_batched or (is_whole is None and self._is_batch(first))
            if has_batches and size is not None and not ignores_size:
                raise messages.BATCH_OF_BATCHES(name="batch_size")
            if not has_batches:
                self._check_rows_first()
            numbers = enumerate(items) if order is None else zip(order.tolist(), items, strict=True)
            named = ((item, self.named(item, f"Item {k} of the data")) for k, item in numbers)
            rows = (numbered(item, self._read(values)) for item, values in named)
            batches_of_data = rows if has_batches else batched(rows, rows_of_batch, remainder, order)
            for k, one in enumerate(batches_of_data):
                batch = numbered(one, self.batch(one, k))
                if look is not None and k == 0:
                    look(batch)
                count = min((len(value) for value in batch.values() if value.ndim), default=0)
                if drops and self.rows is not None and count < self.rows:
                    self.warn(messages.DROPPED_ROWS(count=count, rows=self.rows))
                    continue
                yield batch

        stream = data._stream(made, is_batched=True)
        stream.is_padded = data.is_padded or (remainder == "pad" and not data.is_batched)
        return stream

    def lists_rows(self, data: Dataset, is_batched: bool | None) -> bool:
        """True for a list of rows, whose order `fit` draws; False for one of batches, and for other data."""
        has_batches = is_batched is None and bool(data._listed) and self._is_batch((data._listed or ())[0])
        return bool(data._listed) and not is_batched and not has_batches

    def require(self, data: Dataset, source: str) -> None:
        """Raise FeedError for arrays without an input that is read, and warn of labels that padding changes.

        The labels are the last input but weights.
        """
        for name in self.values if data.columns is not None else ():
            if name not in (data.columns or {}) and name not in self.unread:
                others = [str(column) for column in data.columns or {} if column not in self.values]
                missing = [n for n in self.values if n not in (data.columns or {}) and n not in self.unread]
                is_renamed = len(others) == len(missing) == 1 and source == "data"
                message = messages.OTHER_NAME if is_renamed else messages.NOT_PREPARED if others else messages.NO_INPUT
                found = {"names": ", ".join(data.columns or {}), "inputs": ", ".join(self.values)}
                raise message(source=source, name=name, **found, **({"other": others[0]} if is_renamed else {}))
        for name, labels in [(name, value) for name, value in self.values.items() if name not in self._weights][-1:]:
            is_sequence = labels.dtype == "int64" and not all(isinstance(dim, int) for dim in (labels.shape or ())[1:2])
            if is_sequence and name not in self.unread and (data._zeros is None or name in data._zeros):
                self.warn(messages.PADDED_CLASSES(name=name))

    def _check_rows_first(self) -> None:
        """Raise FeedError for an input that counts time by its first axis, and the rows of the labels by another."""
        *_, (labels, last) = self.values.items()
        symbol = last.shape[0] if last.shape else None
        for name, value in self.values.items():
            shape = value.shape or ()
            if isinstance(symbol, str) and symbol in shape[1:] and symbol != shape[0]:
                raise messages.TIME_FIRST(name=name, shape=list(shape), other=labels, symbol=symbol)

    def batch(self, item: Any, number: int = 0) -> Batch:
        """Convert a whole batch. Raise FeedError for what is no batch of the model."""
        named = self.named(item, f"Batch {number} of the data")
        if not isinstance(named, Mapping):
            raise messages.NOT_A_BATCH(position=number, actual=type(item).__name__)
        return {name: self.fitted(name, value, f"batch {number} of the data") for name, value in named.items()}

    def named(self, item: Any, where: str) -> Any:
        """A tuple of values as a mapping; other items as they are."""
        if not isinstance(item, (tuple, list)):
            return item
        if len(item) > len(self.values):
            names = ", ".join(self.values)
            raise messages.TOO_MANY_VALUES(where=where, count=len(item), inputs=len(self.values), names=names)
        return dict(zip(self.values, item, strict=False))

    def _read(self, columns: Any) -> Any:
        """Columns by the names of inputs that are read, without further ones, of which a notice tells.

        Return all columns, for the error, if one is missing.
        """
        if not isinstance(columns, Mapping) or not self.values:
            return columns
        columns = by_inputs(columns, self.values)
        needed = [name for name in self.values if name not in self.unread]
        if not needed or any(name not in columns for name in needed):
            return columns
        if further := [str(name) for name in columns if name not in self.values]:
            self.warn(messages.FURTHER_COLUMNS(source="data", names=", ".join(further)))
        return {name: columns[name] for name in needed}

    def fitted(self, name: str, value: Any, where: str) -> np.ndarray:
        """Convert rows of an input to its type; one value a row may stand for a vector of one, and the reverse.

        Raise FeedError for another shape, or a value that the type loses.
        """
        array = array_of_rows(name, value)
        declared = self.values.get(name)
        if declared is None:
            return array
        refuse_texts(name, array)
        shape = declared.shape
        if shape is not None and array.ndim == 1 and shape[1:] == (1,):
            array = array[:, None]
        if shape is not None and len(shape) == 1 and array.shape[1:] == (1,):
            array = array[:, 0]
        if shape is not None and len(shape) > 0 and not _fits(array.shape, shape):
            if _fits((1, *array.shape), shape) and any(isinstance(dim, int) for dim in shape[1:]):
                raise messages.ONE_ROW(name=name, actual=list(array.shape), where=where, batch=[1, *array.shape])
            are_shares = array.dtype.kind == "f" or (np.isin(array, (0, 1)).all() and array.sum() == array[..., 0].size)
            are_scores = declared.dtype == "int64" and array.ndim == len(shape) + 1 and are_shares
            message = messages.DATA_SIZE if array.ndim == len(shape) else messages.DATA_SHAPE
            message = messages.SHAPE_OF_SCORES if are_scores else message
            found = {"actual": list(array.shape), "where": where, "batch": _shown(shape), "row": _shown(shape[1:])}
            if name in self._weights and array.ndim != len(shape):
                raise messages.WEIGHT_SHAPE(name=name, of="labels" if array.ndim > len(shape) else "rows", **found)
            raise message(name=name, **found)
        return _converted(name, array, declared.dtype, where)

    def _is_first(self, source: Any) -> bool:
        rank = 0
        while isinstance(source, list) and source:
            source, rank = source[0], rank + 1
        shape = next(iter(self.values.values())).shape if self.values else None
        return rank > 0 and isinstance(source, (bool, int, float)) and shape is not None and rank == len(shape)

    def _is_batch(self, item: Any) -> bool:
        named = self.named(item, "Item 0 of the data")
        if not isinstance(named, Mapping):
            return False
        try:
            names = [name for name in self.values if name in named and name not in self.unread]
            known = [(np.ndim(named[name]), self.values[name].shape) for name in names]
        except ValueError:
            # Rows of different lengths; who stacks them names the first.
            return False
        are_whole = [shape is not None and rank == len(shape) > 0 for rank, shape in known]
        are_columns = [shape is not None and rank == 1 and shape[1:] == (1,) for rank, shape in known]
        return any(are_whole) and all(map(or_, are_whole, are_columns))


def _fits(shape: tuple[int, ...], declared: tuple[Any, ...]) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape[1:], declared[1:], strict=True)
    )


def _shown(shape: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]" if shape else "one number"


def _converted(name: str, array: np.ndarray, dtype: str, where: str) -> np.ndarray:
    """Convert values to another type; unsupported kinds pass through, and the step rejects them."""
    if str(array.dtype) == dtype or dtype not in CONVERTED:
        return array
    target = numpy_dtype(dtype)
    if array.dtype.kind not in KINDS[target.kind]:
        return array
    with np.errstate(invalid="ignore"):
        result = array.astype(target)
    if target.kind in "iu":
        lost = np.flatnonzero(result != array)
        if len(lost):
            value = array.reshape(-1)[lost[0]].item()
            raise messages.LOST_VALUE(name=name, where=where, value=value, dtype=dtype)
    return result
