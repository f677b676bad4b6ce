"""`Dataset`: rows of named arrays, and their preparation for training.

A dataset of arrays stays arrays until a function of the user runs on its rows: `Trainer` shuffles and batches it
itself. Other datasets are streams of rows or, after `batch`, of batches.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from trainweb import messages
from trainweb.arguments import OtherNames, checks_keywords, texts
from trainweb.data import table
from trainweb.data.files import read_csv
from trainweb.data.random import Draw, order_of, permutation
from trainweb.data.rows import Batch, Remainder, batched, bucketed, check_names, drawn, dtype_of, numbered, plain_array
from trainweb.data.waiting import plainly, prefetched
from trainweb.errors import FeedError
from trainweb.settings import SEED, Number, Whole

COUNT = Whole(least=1)
FILL = Number()
LENGTH = Whole(least=0)
MISSING = ("NoneType", "NAType")
"""Types of the objects that stand for a missing number in tables."""
SHARE = Number(above=0, below=1)
SPLIT_STREAM = 2**32 - 1
"""Stream of random numbers of `split`, which no epoch has."""


@checks_keywords
class Dataset(OtherNames):
    """Rows, each a mapping of input names to arrays without the axis of the batch.

    Parameters
    ----------
    source : mapping, table, iterable, async iterable or map-style dataset of mappings, or function that returns one
        A mapping of names to arrays (first axis: rows), where dates become days; a table of pandas, polars or pyarrow,
        whose columns are such arrays; or rows. ``fit`` shuffles the rows of lists and of map-style datasets of PyTorch.
        A source that can be iterated over only once, such as a generator, lasts for one epoch: pass the function that
        creates it. Async rows get an event loop of their own.

    Raises
    ------
    FeedError
        There are no rows, or the arrays have different numbers of rows.
    """

    def __init__(self, source: Any) -> None:
        self.columns: Batch | None = None
        """The arrays, unless the rows are a stream."""
        self.is_batched = False
        """True if the items are batches."""
        self.is_padded = False
        """True if earlier rows may have filled up the last batch."""
        self.generator = source if isinstance(source, (Iterator, AsyncIterator)) else None
        """The generator object or iterator that the rows come from, which can be read only once."""
        self.preprocessing: list[table.Step] = []
        """Fitted steps of tables so far, such as `standardize` and `one_hot`: JSON, for `preprocess`."""
        self._listed = source if isinstance(source, (list, tuple)) else None
        """The rows, if they are a list."""
        self._declared: Mapping[str, list[Any]] = {}
        """Categories that the columns of a table declare."""
        self._known: Batch | None = None
        """The arrays, or the known arrays beside images."""
        self._pick: Callable[[np.ndarray, bool], Dataset] | None = None
        """Makes a dataset of some of the images."""
        self._zeros: list[str] | None = []
        """The inputs that buckets pad with 0 unless they are told another number; None: all."""
        self._count: int | None = None
        """Batches of each iteration, if they are known."""
        self._is_drawn = False
        """True if the order of the rows is drawn."""
        self._iterations = 0
        self._rows: Callable[[Draw | None], Iterator[Any]]
        source = columns_of_table(source)
        if isinstance(source, Mapping):
            columns = checked_columns(source)
            self.columns = self._known = columns
            self._declared = declared_categories(source)
            self._rows = lambda draw: ({n: a[k] for n, a in columns.items()} for k in range(len(self)))
        elif callable(source):
            self._rows = lambda draw: _iterated(source())
        elif isinstance(source, (list, tuple)):
            self._rows = lambda draw: iter(source)
        elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, (str, bytes)):
            self._rows, self._is_drawn = lambda draw: (source[int(k)] for k in order_of(len(source), draw)), True
        elif isinstance(source, (Iterable, AsyncIterable)) and not isinstance(source, (str, bytes)):
            self._rows = lambda draw: _iterated(source)
        else:
            raise messages.NOT_A_DATASET(actual=type(source).__name__)

    @classmethod
    def of(cls, source: Any) -> Dataset:
        """`source` itself if it is one, else one made of it."""
        return source if isinstance(source, Dataset) else cls(source)

    def _stream(self, rows: Callable[[Draw | None], Iterator[Any]], *, is_batched: bool = False) -> Dataset:
        stream = stream_of(rows, is_drawn=self._is_drawn)
        stream.is_batched, stream.is_padded = is_batched, self.is_padded
        stream.generator, stream._zeros = self.generator, self._zeros
        stream.preprocessing = self.preprocessing
        return stream

    def __repr__(self) -> str:
        if self.columns is None:
            kind = "stream" if self._listed is None else "list"
            return f"<Dataset: {kind} of {'batches' if self.is_batched else 'rows'}>"
        inputs = ", ".join(f"{name} {dtype_of(array)}{list(array.shape[1:])}" for name, array in self.columns.items())
        return f"<Dataset: {len(self):,} rows of {inputs}>"

    def __len__(self) -> int:
        """Rows of arrays, images or a list; TypeError where they are a stream."""
        if self._known is None and self._listed is None:
            raise TypeError("A stream of rows has no length.")
        return len(next(iter(self._known.values())) if self._known else self._listed or ())

    def __iter__(self) -> Iterator[Any]:
        self._iterations += 1
        return self._rows(Draw(self._iterations - 1, 0))

    def map(self, function: Callable[[Any], Any]) -> Dataset:
        """Return the results of a function of each row (or batch)."""

        def rows(draw: Draw | None) -> Iterator[Any]:
            return (numbered(row, function(row)) for row in self._rows(draw))

        return self._stream(rows, is_batched=self.is_batched)

    def filter(self, predicate: Callable[[Any], bool]) -> Dataset:
        """The rows (or batches) for which a function is true.

        Parameters
        ----------
        predicate : function
            Called with a row (or batch).
        """
        return self._stream(lambda draw: filter(predicate, self._rows(draw)), is_batched=self.is_batched)

    def shuffle(self, buffer: int = 1024, seed: int = 0) -> Dataset:
        """Draw rows from a buffer that is filled in order; each iteration and each epoch of a fit has a new order.

        Evaluations and predictions have the rows in order.

        Parameters
        ----------
        buffer : int
            Number of rows in the buffer.
        seed : int
            Seed from 0 to 2^53 - 1; the seed of a fit is added.
        """
        COUNT.check("buffer", buffer)
        SEED.check("seed", seed)

        def rows(draw: Draw | None) -> Iterator[Any]:
            items = self._rows(draw)
            if draw is None or not draw.shuffles:
                return items
            return drawn(items, buffer, draw.seed_with(seed), draw.epoch)

        shuffled = self._stream(rows, is_batched=self.is_batched)
        shuffled._is_drawn = True
        return shuffled

    def batch(self, size: int, remainder: Remainder = "keep") -> Dataset:
        """Stack rows into batches.

        Parameters
        ----------
        size : int
            Rows of a batch.
        remainder : {"keep", "drop", "pad"}
            The last rows: make a smaller batch, drop them, or fill the batch with the first rows.
        """
        COUNT.check("size", size)
        check_remainder(remainder)
        if self.is_batched:
            raise messages.BATCHED_TWICE()
        batches = self._stream(lambda draw: batched(self._rows(draw), size, remainder), is_batched=True)
        batches.is_padded = remainder == "pad"
        return batches

    def bucket(
        self,
        length: Callable[[Any], int],
        bounds: Iterable[int],
        size: int,
        padded: Iterable[str] | Mapping[str, float] | None = None,
    ) -> Dataset:
        """Make batches of rows of similar lengths, so that little is padded and few shapes are compiled.

        Parameters
        ----------
        length : function
            The length of a row.
        bounds : iterable of int
            Ascending lengths, to which rows are padded along their first axis. Longer rows are an error.
        size : int
            Rows of a batch; the last rows make smaller ones.
        padded : iterable of str or dict, optional
            The inputs to pad with zeros, or with a number for each: ``{"ids": 0, "labels": -100}``. By default all
            whose first axis is as long as the row; name them if another input may have that size by chance.
        """
        if not isinstance(bounds, Iterable):
            raise TypeError(f"'bounds' must be a list of int, got {bounds!r:.80}.")
        limits = list(bounds)
        for k, limit in enumerate(limits):
            LENGTH.check(f"bounds[{k}]", limit)
        limits.sort()
        COUNT.check("size", size)
        if self.is_batched:
            raise messages.BATCHED_TWICE()
        fills = None if padded is None else dict.fromkeys(texts("padded", padded), 0.0)
        if fills is not None and isinstance(padded, Mapping):
            for name, fill in padded.items():
                FILL.check(f"padded[{name!r}]", fill)
            fills |= padded
        stream = self._stream(lambda draw: bucketed(self._rows(draw), length, limits, size, fills), is_batched=True)
        stream._zeros = None if fills is None else [name for name in fills if not isinstance(padded, Mapping)]
        return stream

    def split(self, share: float, seed: int | None = None, *, stratify: str | None = None) -> tuple[Dataset, Dataset]:
        """Split arrays, images or a list of rows. The second dataset has this share: the last rows, or drawn by `seed`.

        Images of the second dataset are in order and without the changes of ``augment``.

        Parameters
        ----------
        share : float
            Share of the second dataset.
        seed : int, optional
            Of the rows that are drawn.
        stratify : str, optional
            The input that holds the classes, each of which gives its share.

        Raises
        ------
        FeedError
            A part would have no rows, the rows are a stream, or `stratify` has no whole number for each row.
        """
        SHARE.check("share", share)
        if self._known is None and not self._listed:
            raise messages.STREAM_SPLIT()
        count = len(self)
        if seed is None:
            order = np.arange(count)
        else:
            SEED.check("seed", seed)
            order = permutation(count, seed, SPLIT_STREAM)
        if stratify is None:
            is_second = np.arange(count) >= count - math.floor(count * share)
        else:
            labels = labels_of(self._column(stratify)) if isinstance(stratify, str) else None
            if labels is None:
                raise messages.NO_CLASSES(name=stratify)
            is_second = last_of_each(labels[order], share)
        if is_second.all() or not is_second.any():
            raise messages.EMPTY_SPLIT(rows=count, share=share)
        return self._part(order[~is_second]), self._part(order[is_second], is_held_out=True)

    def rows(self, indices: np.ndarray) -> Dataset:
        """The dataset with these rows, of arrays or images.

        Parameters
        ----------
        indices : ndarray of int
            The rows, in this order.
        """
        return self._part(indices)

    def _part(self, indices: np.ndarray, *, is_held_out: bool = False) -> Dataset:
        if self._known is None and not self._listed:
            raise messages.STREAM_SPLIT()
        try:
            if self._known is None:
                selection = Dataset([(self._listed or ())[k] for k in indices])
            elif self._pick is None:
                selection = Dataset({name: array[indices] for name, array in self._known.items()})
            else:
                selection = self._pick(indices, is_held_out)
        except (IndexError, ValueError, TypeError) as error:
            raise FeedError(f"'indices' must be numbers of rows: {error}") from error
        selection.preprocessing, selection._declared = self.preprocessing, self._declared
        return selection

    def _column(self, name: str) -> np.ndarray | None:
        """The values of an input, where arrays have them, or each row of a list has one."""
        if self._listed and all(isinstance(row, Mapping) and np.isscalar(row.get(name)) for row in self._listed):
            return np.asarray([row[name] for row in self._listed])
        return (self._known or {}).get(name)

    @staticmethod
    @checks_keywords
    def from_csv(
        source: str | Path | io.TextIOBase,
        columns: Mapping[str, str | Sequence[str]],
        *,
        dtypes: Mapping[str, str] | None = None,
        delimiter: str = ",",
        classes: Mapping[str, Sequence[str]] | None = None,
        missing: str | Mapping[str, object] = "error",
        decimal: Literal[".", ","] = ".",
    ) -> Dataset:
        """Read a CSV file, whose first line has the names of the columns.

        Parameters
        ----------
        source : path or text file
        columns : dict
            For each input its column (one value a row), or several, which become a vector.
        dtypes : dict, optional
            Types of inputs; by default float32, and int64 for inputs with `classes`. `Dataset.one_hot` and
            `Dataset.categories` turn text ("string") into numbers.
        delimiter : str
            The character between values.
        classes : dict, optional
            Names of the classes of an input; a value becomes the index of its name.
        missing : {"error", "drop", "keep"} or dict
            Missing values: raise an error, drop their rows, use NaN, or use a value for each column.
            ``{"*": "keep", "colour": "none"}`` uses NaN in all other columns. A value is missing if it is empty; a
            number also if it is NA, N/A, NaN, null or ?, in any case. "keep" needs inputs of floats, which `fill_mean`
            and `fill_median` fill.
        decimal : {".", ","}
            The character before the decimals of a number.

        Raises
        ------
        FeedError
            A column that the file does not have, or has twice. A value that is missing, too large for its type, or of
            another type; the message names line and column.
        ModelError
            `delimiter` is not a single character, or has another meaning; `missing` has another value.
        """
        return Dataset(read_csv(source, columns, dtypes or {}, delimiter, classes or {}, missing, decimal))

    @staticmethod
    @checks_keywords
    def from_text(
        texts: Iterable[str | Mapping[str, Any]],
        tokenizer: Any,
        *,
        length: int | Sequence[int],
        pack: bool = True,
        mask_prompt: bool = False,
        end_token: int | None = None,
        inputs: Sequence[str] = ("input_ids", "labels"),
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Rows of `length` token ids for a language model, with the next token of each as its label.

        Tokens that are not learned have the label -100: give the loss ``ignore_index=-100``.

        Parameters
        ----------
        texts : iterable of str or dict
            Texts, or dicts with "text", with "prompt" and "completion" to join, or with the "messages" of a
            chat. The tokenizer's ``apply_chat_template`` turns a chat into text; everything before the last answer is
            the prompt.
        tokenizer
            An object whose ``encode`` turns a text into ids, as in `transformers` and `tokenizers`.
        length : int or list of int
            Tokens of a row, at least 2. With a list, each text is padded to the least length that holds it. Texts of
            one length make a batch, and each length compiles a plan. A list needs ``pack=False`` and `batch_size`.
        pack : bool
            True joins all texts and cuts them into full rows. It drops last tokens that fill no row, and rows without a
            token to learn. False makes one row of each text, padded with zeros.
        mask_prompt : bool
            True does not learn the tokens of prompts.
        end_token : int, optional
            Id after each text, by default the tokenizer's ``eos_token_id``. A single text needs none. The template
            ends a chat; if an id is given that its last answer lacks, it is added.
        inputs : list of str
            The model's inputs among input_ids, attention_mask, position_ids and labels, such as ``input_names()`` of a
            session.
        batch_size : int, optional
            With it, the dataset has batches of so many rows, in a new order each iteration.
        seed : int, optional
            Of the order of batches; 0 by default.

        Raises
        ------
        FeedError
            There is no text, or one is empty, too long for a row or too short to learn from.
        ModelError
            A setting is wrong, or the tokenizer has no ``encode`` or no end token.
        """
        from trainweb.data.text import columns_of, cutter, length_for, lengths_of

        lengths = lengths_of(length, pack=pack, batch_size=batch_size, seed=seed)
        columns = columns_of(
            texts, tokenizer, lengths[-1], pack=pack, mask_prompt=mask_prompt, end_token=end_token, inputs=inputs
        )
        dataset = Dataset(columns)
        if batch_size is None:
            return dataset
        rows = dataset.shuffle(len(dataset), seed or 0).map(cutter(lengths))
        batches = rows.bucket(lambda row: len(row["labels"]), lengths, batch_size, {})
        counts = Counter(length_for(labels, lengths) for labels in columns["labels"])
        batches._count = sum(-(-count // batch_size) for count in counts.values())
        return batches

    @staticmethod
    def from_preferences(
        pairs: Iterable[Mapping[str, str]],
        tokenizer: Any,
        *,
        length: int,
        reference: Any,
        batch_size: int = 4,
        end_token: int | None = None,
        seed: int = 0,
    ) -> Dataset:
        """Batches of preferred texts for a session with `DPOLoss`: chosen and rejected texts alternate in their rows.

        Each iteration has a new order. The log-probabilities of the reference are computed once, here.

        Parameters
        ----------
        pairs : iterable of dict
            Texts "prompt", "chosen" and "rejected", or lists of turns of a chat.
        tokenizer, length, end_token
            As in `from_text`; each text is a row, and tokens of prompts are not learned.
        reference : TrainingSession
            Its current parameters are the reference model; usually the session to train, before its first step.
        batch_size : int
            Pairs of a batch, which has twice as many rows.
        seed : int
            Of the order.

        Raises
        ------
        FeedError
            A pair is malformed, or a text does not fit into a row.
        ModelError
            The session has no `DPOLoss`, or an argument is wrong.
        """
        from trainweb.data.text import joined, preferences_of

        COUNT.check("batch_size", batch_size)
        columns = preferences_of(pairs, tokenizer, length, reference, end_token)
        rows = len(next(iter(columns.values())))
        batches = Dataset(columns).shuffle(rows, seed).batch(batch_size).map(joined)
        batches._count = -(-rows // batch_size)
        return batches

    def fill_mean(self, *names: str) -> Dataset:
        """Replace each NaN by the mean of the numbers in its column.

        Parameters
        ----------
        *names : str
            Inputs of numbers. Integers have no NaN, and stay; rows that `preprocess` gets later may have some.

        Raises
        ------
        FeedError
            As `standardize`; or a column has no number.
        """
        return self._fitted("fill_mean", names)

    def fill_median(self, *names: str) -> Dataset:
        """Replace each NaN by the median of the numbers in its column.

        Parameters
        ----------
        *names : str
            Inputs of numbers.

        Raises
        ------
        FeedError
            As `fill_mean`.
        """
        return self._fitted("fill_median", names)

    def standardize(self, *names: str) -> Dataset:
        """Bring each column of inputs to mean 0 and deviation 1, as `StandardScaler` of scikit-learn does.

        A column is one place of a row: rows of the shape [48, 2] have 96.

        Parameters
        ----------
        *names : str
            Inputs of numbers. float64 stays float64; other types become float32.

        Raises
        ------
        FeedError
            The rows are a stream, there is no such input, or it has another type.
        """
        return self._fitted("standardize", names)

    def one_hot(self, *names: str, unknown: Literal["error", "zeros"] = "error") -> Dataset:
        """Replace each column of inputs by float32 columns, one for each of its categories.

        They are in the order that a column of the type Categorical or Enum declares, else in ascending order.

        Parameters
        ----------
        *names : str
            Inputs of text or whole numbers.
        unknown : {"error", "zeros"}
            Categories that only later rows have: raise an error, or set all columns to 0.

        Raises
        ------
        FeedError
            As `standardize`.
        """
        if unknown not in table.UNKNOWN:
            raise messages.BAD_SETTING(name="unknown", value=unknown, expected='"error" or "zeros"')
        return self._fitted("one_hot", names, {"unknown": unknown} if unknown == "zeros" else {})

    def categories(self, *names: str) -> Dataset:
        """Replace text by the place of each value among the column's categories, in the order of `one_hot`.

        The results are int64 labels.

        Parameters
        ----------
        *names : str
            Inputs of text.

        Raises
        ------
        FeedError
            As `standardize`.
        """
        return self._fitted("categories", names)

    def concat(self, name: str, parts: Iterable[str]) -> Dataset:
        """Join inputs into one, which has their columns side by side. Numbers of several types become float32.

        Parameters
        ----------
        name : str
            The new input.
        parts : iterable of str
            Inputs that it replaces.

        Raises
        ------
        FeedError
            The rows are a stream, there is no such input, or some are text.
        """
        names, columns = texts("parts", parts), self._table()
        dtypes = {dtype_of(table.column_of(part, columns)) for part in names}
        dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
        return self._applied([{"type": "concat", "input": name, "dtype": dtype, "parts": names}])

    def preprocess(self, steps: list[table.Step]) -> Dataset:
        """Apply the steps that were fitted on other rows.

        Numbers get the type of the fitted rows. Steps of inputs that are not there change nothing, and the first steps
        are left out if these rows have had them.

        Parameters
        ----------
        steps : list
            `preprocessing` of the dataset of these rows.

        Raises
        ------
        FeedError
            The rows are a stream, or an input has another width or category than the fitted rows, or text for numbers.
        ModelError
            `steps` are no such steps.
        """
        checked, done = table.checked_steps(steps), self.preprocessing
        return self._applied(checked[len(done) :] if checked[: len(done)] == done else checked)

    def _table(self) -> Batch:
        """The arrays, or those of a list of rows. Raise FeedError for a stream."""
        if self.columns is not None:
            return self.columns
        if not self._listed or not all(isinstance(row, Mapping) for row in self._listed):
            raise messages.TABLE_STREAM()
        first = self._listed[0]
        for position, row in enumerate(self._listed):
            check_names(position, row, first)
        return checked_columns({name: [row[name] for row in self._listed] for name in first})

    def _applied(self, steps: list[table.Step]) -> Dataset:
        checked = table.checked_steps(steps)
        dataset = Dataset(table.applied(checked, self._table()))
        dataset.preprocessing, dataset._declared = self.preprocessing + checked, self._declared
        return dataset

    def _fitted(self, kind: str, names: tuple[str, ...], more: Mapping[str, str] | None = None) -> Dataset:
        columns = self._table()
        names = names[0] if len(names) == 1 and isinstance(names[0], (list, tuple)) else names
        if not names:
            raise TypeError(f"{kind!r} needs the names of inputs; there are {', '.join(columns)}.")
        steps = [table.fitted(kind, name, columns, self._declared.get(name)) for name in texts("names", names)]
        return self._applied([{**step, **(more or {})} for step in steps])

    def take(self, count: int) -> Dataset:
        """The first rows (or batches).

        Parameters
        ----------
        count : int
            Largest number of rows or batches.
        """
        COUNT.check("count", count)
        if self.columns is not None:
            return self.rows(np.arange(min(count, len(self))))
        return self._stream(lambda draw: itertools.islice(self._rows(draw), count), is_batched=self.is_batched)

    def cache(self) -> Dataset:
        """Return the data set, kept in memory once the first iteration has reached its end."""
        memories: dict[bool | None, list[Any]] = {}

        def rows(draw: Draw | None) -> Iterator[Any]:
            kind = draw.shuffles if self._is_drawn and draw is not None else None
            if kind in memories:
                yield from memories[kind]
                return
            items = []
            for row in self._rows(draw):
                items.append(row)
                yield row
            memories[kind] = items

        stream = self._stream(rows, is_batched=self.is_batched)
        stream.generator = None
        return stream

    def prefetch(self, count: int = 1) -> Dataset:
        """Let a thread make so many rows (or batches) ahead; in Pyodide, which has no threads, the same without.

        Parameters
        ----------
        count : int
            How many.
        """
        COUNT.check("count", count)
        return self._stream(lambda draw: prefetched(self._rows(draw), count), is_batched=self.is_batched)


def stream_of(rows: Callable[[Draw | None], Iterator[Any]], *, is_drawn: bool) -> Dataset:
    """A stream of rows: in order for None, else those that are drawn."""
    stream = Dataset(())
    stream._rows, stream._is_drawn, stream._listed = rows, is_drawn, None
    return stream


def _iterated(rows: Any) -> Iterator[Any]:
    if isinstance(rows, AsyncIterable):
        return plainly(rows)
    if not isinstance(rows, Iterable):
        raise messages.NOT_A_DATASET(actual=f"a function that returns {type(rows).__name__}")
    return iter(rows)


def columns_of_table(source: Any) -> Any:
    """The columns of a table by name; other data as it is."""
    names = getattr(source, "column_names", getattr(source, "columns", None))  # pyarrow's; pandas' and polars'
    # A stream of Hugging Face's library has names of columns, too, but no number of rows.
    is_table = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if names is None and hasattr(source, "iloc"):
        raise messages.NOT_A_DATASET(actual="a Series; a row of a table of pandas is df.iloc[[5]]")
    if names is None or isinstance(source, Mapping) or not is_table:
        return source
    return {name: source[name] for name in names}


def declared_categories(columns: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Categories of columns of the types Categorical of pandas and Enum of polars, in their order."""
    of_types = {name: getattr(column, "dtype", None) for name, column in columns.items()}
    arrays = {str(name): np.asarray(getattr(of, "categories", None)) for name, of in of_types.items()}
    return {name: array.tolist() for name, array in arrays.items() if array.ndim == 1}


def checked_columns(source: Mapping[Any, Any]) -> Batch:
    """Arrays by name, all with as many rows.

    Raises
    ------
    FeedError
        There are none, one has no axis of rows, or they have different numbers of rows.
    """
    columns: Batch = {}
    for name, value in source.items():
        if isinstance(value, (Mapping, Dataset)) or hasattr(value, "column_names"):
            raise messages.SEVERAL_SETS(name=name)
        array = array_of_rows(name, value)
        if array.dtype == object and array.ndim:
            array = _of_objects(array)
        if array.ndim == 0:
            raise messages.NOT_A_COLUMN(name=name, actual="one text" if array.dtype.kind == "U" else "one number")
        columns[str(name)] = array
    if not columns:
        raise messages.NO_COLUMNS()
    first, rows = next((n, len(a)) for n, a in columns.items())
    for name, array in columns.items():
        if len(array) != rows:
            raise messages.COLUMN_ROWS(name=name, rows=len(array), first=first, expected=rows)
    if rows == 0:
        raise messages.EMPTY_DATASET()
    return columns


def array_of_rows(name: Any, value: Any) -> np.ndarray:
    """Rows as an array. Raise FeedError for rows of different shapes."""
    try:
        return plain_array(value)
    except ValueError as error:
        raise messages.RAGGED_COLUMN(name=name, reason=str(error).rstrip(".")) from error


def _of_objects(array: np.ndarray) -> np.ndarray:
    """Objects as numbers, texts or vectors, and missing numbers as NaN.

    A mixture stays: perhaps nobody reads the column.
    """
    kinds = {type(one) for one in array.flat}
    missing = {kind for kind in kinds if kind.__name__ in MISSING}
    if kinds <= {str} or kinds <= {int, float}:
        return np.asarray(array.tolist())
    if kinds <= {list, np.ndarray} and array.ndim == 1 and len({np.shape(one) for one in array}) == 1:
        vectors = np.array(array.tolist())
        return _of_objects(vectors) if vectors.dtype == object else vectors
    if kinds - missing <= {int, float, Decimal} or (missing and kinds - missing == {bool}):
        return np.array([math.nan if type(one) in missing else float(one) for one in array.flat]).reshape(array.shape)
    return array


def labels_of(column: np.ndarray | None) -> np.ndarray | None:
    """The classes of rows, if there is one whole number a row."""
    if column is None or column.dtype.kind not in "iuf" or column.size != len(column):
        return None
    is_whole = np.isfinite(column).all() and (np.trunc(column) == column).all()
    return column.reshape(-1) if is_whole else None


def last_of_each(labels: np.ndarray, share: float) -> np.ndarray:
    """True for the last rows of each class, this share of them."""
    is_last = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        is_last[rows[len(rows) - math.floor(len(rows) * share + 0.5) :]] = True
    return is_last


def check_remainder(value: Any) -> None:
    """Raise ModelError for what is no way to treat a remainder."""
    if value not in get_args(Remainder):
        raise messages.BAD_SETTING(name="remainder", value=value, expected="keep, drop or pad")


def epoch_batches(count: int, size: int, remainder: Remainder, order: np.ndarray) -> list[np.ndarray]:
    """The rows of each batch of an epoch."""
    starts = range(0, count - count % size if remainder == "drop" else count, size)
    batches = [order[start : start + size] for start in starts]
    if not batches:
        raise messages.BATCH_BEYOND_DATA(size=size, rows=count)
    if remainder == "pad" and len(batches[-1]) < size:
        batches[-1] = np.resize(np.concatenate([batches[-1], order]), size)
    return batches
