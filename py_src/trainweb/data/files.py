"""CSV files as datasets."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.arguments import checks_keywords, mapping, path_of, texts
from trainweb.data.dataset import Dataset
from trainweb.errors import FeedError

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
INTEGER = re.compile(r"[+-]?[0-9]+")
"""As a page reads them: no "nan", no "1_000", no digits of other scripts."""
QUOTE_FAULTS = ("unexpected end of data", "expected after")
"""Errors of `csv` about misplaced quotes."""
TRUE, FALSE = ("1", "true"), ("0", "false")


@checks_keywords
def from_csv(
    source: str | Path | io.TextIOBase,
    columns: Mapping[str, str | Sequence[str]],
    *,
    dtypes: Mapping[str, str] | None = None,
    delimiter: str = ",",
    classes: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """A dataset of a CSV file, whose first line has the names of the columns.

    Parameters
    ----------
    source : path or text file
    columns : dict
        For each input its column (one value a row), or several, which become a vector.
    dtypes : dict, optional
        Types of inputs: float32, unless given, and int64 for those with `classes`.
    delimiter : str
        Between values: one character.
    classes : dict, optional
        For inputs that are classes by name: the names; a value becomes the place of its name.

    Raises
    ------
    FeedError
        A column that the file does not have, or more than once; a value that does not have its type, is too large for
        it, or is missing, named by line and column.
    ModelError
        `delimiter` is no single character, or one that means something else.
    """
    mapping("columns", columns)
    mapping("dtypes", dtypes or {})
    names = {name: texts(f"classes[{name!r:.80}]", of) for name, of in mapping("classes", classes or {}).items()}
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        expected = "one character, and neither a quote nor the end of a line"
        raise messages.BAD_SETTING(name="delimiter", value=delimiter, expected=expected)
    kinds = {name: "int64" if name in names else "float32" for name in columns} | dict(dtypes or {})
    for name in (*kinds, *names):
        if name not in columns:
            raise messages.CSV_INPUT(name=name, names=", ".join(columns))
    for name, dtype in kinds.items():
        if dtype not in DTYPES:
            raise messages.CSV_DTYPE(name=name, dtype=dtype, names=", ".join(DTYPES))
    try:
        if isinstance(source, (str, os.PathLike)):
            with path_of("source", source).open(newline="", encoding="utf-8-sig") as file:
                return _read(file, columns, kinds, delimiter, names)
        if not isinstance(source, Iterable):
            raise TypeError(f"'source' must be a path or a file, got {source!r:.80}.")
        return _read(source, columns, kinds, delimiter, names)
    except (csv.Error, UnicodeDecodeError) as error:
        raise FeedError(f"'source', {source!r:.80}, cannot be read as CSV: {error}") from error


def _read(
    file: io.TextIOBase | io.TextIOWrapper,
    columns: Mapping[str, str | Sequence[str]],
    kinds: Mapping[str, str],
    delimiter: str,
    classes: Mapping[str, Sequence[str]],
) -> Dataset:
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    lines = _lines(reader)
    _, header = next(lines, (0, []))
    if not header:
        raise messages.EMPTY_DATASET()
    # Of a text file that was opened without "utf-8-sig".
    header[0] = header[0].removeprefix("\ufeff")
    known = {column: k for k, column in enumerate(header)}
    twice = {column for k, column in enumerate(header) if known[column] != k}
    places: dict[str, list[int]] = {}
    for name, given in columns.items():
        wanted = [given] if isinstance(given, str) else texts(f"columns[{name!r:.80}]", given)
        if not wanted:
            raise messages.BAD_SETTING(name=f"columns[{name!r:.80}]", value=[], expected="a column, or several")
        for column in wanted:
            if column not in known:
                raise messages.CSV_COLUMN(column=column, names=", ".join(header))
            if column in twice:
                raise messages.CSV_COLUMN_TWICE(column=column)
        places[name] = [known[column] for column in wanted]
    numbers = {name: {label: k for k, label in reversed(list(enumerate(of)))} for name, of in classes.items()}
    values: dict[str, list[object]] = {name: [] for name in columns}
    for line, row in lines:
        if not row:
            continue
        if len(row) != len(header):
            raise messages.CSV_RAGGED(line=line, given=len(row), expected=len(header))
        for name, found in places.items():
            labels = numbers.get(name)
            parsed = [parse(row[k], kinds[name], labels, line, header[k]) for k in found]
            values[name].append(parsed[0] if isinstance(columns[name], str) else parsed)
    return Dataset({name: np.array(column, kinds[name]) for name, column in values.items()})


def _lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows, and the lines that they begin in."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            if any(fault in str(error) for fault in QUOTE_FAULTS):
                raise messages.CSV_QUOTES(line=line) from error
            raise
        if row is None:
            return
        yield line, row


def parse(text: str, dtype: str, labels: Mapping[str, int] | None, line: int, column: str) -> object:
    """A value of a CSV file; `labels` are names of classes, in reverse, and their places."""
    value = text.strip()
    if labels is not None:
        if value not in labels:
            raise messages.CSV_CLASS(line=line, column=column, value=value, names=", ".join(reversed(list(labels))))
        return labels[value]
    try:
        if dtype == "bool":
            if value.lower() not in TRUE + FALSE:
                raise ValueError
            return value.lower() in TRUE
        if not (NUMBER if dtype.startswith("float") else INTEGER).fullmatch(value):
            raise ValueError
        if dtype.startswith("float"):
            with np.errstate(over="ignore"):
                if not np.isfinite(np.dtype(dtype).type(value)):
                    raise ValueError
            return float(value)
        number = int(value)
        np.array(number, dtype)
    except (ValueError, OverflowError):
        raise messages.CSV_VALUE(line=line, column=column, value=value, dtype=dtype) from None
    return number
