"""Columns of CSV files."""

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
from trainweb.arguments import mapping, path_of, texts
from trainweb.errors import FeedError

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "string")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
"""As a page reads them: no "nan", no "1_000", no digits of other scripts."""
WITH_UNIT = re.compile(r"[+-]?[0-9][0-9.,]{0,20} ?[^\s0-9.,:/\"'-]+")
QUOTE_FAULTS = ("unexpected end of data", "expected after")
"""Errors of `csv` about misplaced quotes."""
SWAPPED = str.maketrans(".,", ",.")
"""For files with a decimal comma, where a point is none."""
TRUE, FALSE = ("1", "true"), ("0", "false")
MISSING_NUMBERS = ("", "na", "n/a", "nan", "null", "?")
"""Marks of a missing number, in any case. Text and classes lack only an empty value: "NA" may be a name."""
TREATMENTS = ("error", "drop", "keep")
OTHERS = "*"
"""The name of the columns that have no value for the missing ones."""


def read_csv(
    source: str | Path | io.TextIOBase,
    columns: Mapping[str, str | Sequence[str]],
    dtypes: Mapping[str, str],
    delimiter: str,
    classes: Mapping[str, Sequence[str]],
    missing: str | Mapping[str, object],
    decimal: str,
) -> dict[str, np.ndarray]:
    """Columns of a CSV file: `Dataset.from_csv`."""
    mapping("columns", columns)
    mapping("dtypes", dtypes)
    names = {name: texts(f"classes[{name!r:.80}]", of) for name, of in mapping("classes", classes).items()}
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        expected = "one character, and neither a quote nor the end of a line"
        raise messages.BAD_SETTING(name="delimiter", value=delimiter, expected=expected)
    if decimal not in (".", ","):
        raise messages.BAD_SETTING(name="decimal", value=decimal, expected="a point or a comma")
    kinds = {name: "int64" if name in names else "float32" for name in columns} | dict(dtypes)
    for name in (*kinds, *names):
        if name not in columns:
            raise messages.CSV_INPUT(name=name, names=", ".join(columns))
    for name, dtype in kinds.items():
        if dtype not in DTYPES:
            raise messages.CSV_DTYPE(name=name, dtype=dtype, names=", ".join(DTYPES))
    table = _Table(columns, kinds, names, *_treatment(missing), decimal)
    try:
        if isinstance(source, (str, os.PathLike)):
            with path_of("source", source).open(newline="", encoding="utf-8-sig") as file:
                return table.read(file, delimiter)
        if not isinstance(source, Iterable):
            raise TypeError(f"'source' must be a path or a file, got {source!r:.80}.")
        return table.read(source, delimiter)
    except UnicodeDecodeError as error:
        raise FeedError("the file is not a text in UTF-8: save it as such.") from error
    except csv.Error as error:
        raise FeedError(f"'source', {source!r:.80}, cannot be read as CSV: {error}") from error


def _treatment(missing: str | Mapping[str, object]) -> tuple[str, Mapping[str, str]]:
    """The treatment of missing values in most columns, and the texts that replace them in others.

    Raise ModelError for another `missing`.
    """
    if isinstance(missing, str) and missing in TREATMENTS:
        return missing, {}
    if not isinstance(missing, Mapping):
        expected = '"error", "drop", "keep", or a value for each column'
        raise messages.BAD_SETTING(name="missing", value=missing, expected=expected)
    rest = missing.get(OTHERS, "error")
    if not isinstance(rest, str) or rest not in TREATMENTS:
        raise messages.BAD_SETTING(name="missing['*']", value=rest, expected='"error", "drop" or "keep"')
    return rest, {column: _as_text(value) for column, value in missing.items() if column != OTHERS}


def _as_text(value: object) -> str:
    """A value as a file has it; 1.0 is also an integer."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class _Table:
    """Inputs that a file makes: their columns, types (`kinds`) and classes by name.

    `fills` has texts that replace missing values, by column; `rest` says what happens in the other columns.
    """

    def __init__(
        self,
        columns: Mapping[str, str | Sequence[str]],
        kinds: Mapping[str, str],
        classes: Mapping[str, Sequence[str]],
        rest: str,
        fills: Mapping[str, str],
        decimal: str,
    ) -> None:
        self.kinds, self.rest, self.fills, self.decimal = kinds, rest, fills, decimal
        self.is_vector = {name: not isinstance(source, str) for name, source in columns.items()}
        self.wanted = {
            name: [source] if isinstance(source, str) else texts(f"columns[{name!r:.80}]", source)
            for name, source in columns.items()
        }
        for name, wanted in self.wanted.items():
            if not wanted:
                raise messages.BAD_SETTING(name=f"columns[{name!r:.80}]", value=[], expected="a column, or several")
        self.places = {name: {label: k for k, label in reversed(list(enumerate(of)))} for name, of in classes.items()}
        taken = [column for wanted in self.wanted.values() for column in wanted]
        for column in set(fills).difference(taken):
            raise messages.CSV_FILL(column=column, names=", ".join(taken))

    def read(self, file: io.TextIOBase | io.TextIOWrapper, delimiter: str) -> dict[str, np.ndarray]:
        """The columns of a file."""
        lines = _lines(csv.reader(file, delimiter=delimiter, strict=True))
        _, header = next(lines, (0, []))
        if not header:
            raise messages.EMPTY_DATASET()
        # Of a text file that was opened without "utf-8-sig".
        header[0] = header[0].removeprefix("\ufeff")
        places = self._find(header, delimiter)
        values: dict[str, list[object]] = {name: [] for name in places}
        for line, row in lines:
            if not row:
                continue
            if len(row) != len(header):
                raise messages.CSV_RAGGED(line=line, actual=len(row), expected=len(header))
            drops = self.rest == "drop"
            if drops and any(self._is_unfilled(n, row[k].strip(), header[k]) for n, of in places.items() for k in of):
                continue
            for name, columns in places.items():
                parsed = [self._value(name, row[k].strip(), line, header[k]) for k in columns]
                values[name].append(parsed if self.is_vector[name] else parsed[0])
        return {n: np.array(of, str if self.kinds[n] == "string" else self.kinds[n]) for n, of in values.items()}

    def _find(self, header: list[str], delimiter: str) -> dict[str, list[int]]:
        """Places of the columns of each input."""
        known = {column: k for k, column in enumerate(header)}
        twice = {column for k, column in enumerate(header) if known[column] != k}
        for wanted in self.wanted.values():
            for column in wanted:
                if column not in known and len(header) == 1:
                    raise messages.CSV_DELIMITER(column=column, names=header[0], delimiter=delimiter)
                if column not in known:
                    raise messages.CSV_COLUMN(column=column, names=", ".join(header))
                if column in twice:
                    raise messages.CSV_COLUMN_TWICE(column=column)
        return {name: [known[column] for column in wanted] for name, wanted in self.wanted.items()}

    def _is_missing(self, name: str, value: str) -> bool:
        labels = self.places.get(name)
        if labels is not None or self.kinds[name] == "string":
            return value == "" and "" not in (labels or {})
        return value.lower() in MISSING_NUMBERS

    def _is_unfilled(self, name: str, value: str, column: str) -> bool:
        return self._is_missing(name, value) and column not in self.fills

    def _value(self, name: str, value: str, line: int, column: str) -> object:
        if self._is_unfilled(name, value, column):
            if self.rest == "keep" and name not in self.places and self.kinds[name].startswith("float"):
                return float("nan")
            if self.rest == "keep" and (name in self.places or self.kinds[name] == "string"):
                raise messages.CSV_MISSING_TEXT(line=line, column=column)
            raise messages.CSV_MISSING(line=line, column=column, value=value)
        decimal = self.decimal
        if self._is_missing(name, value):
            value, decimal = self.fills[column], "."
        if self.kinds[name] == "string" and name not in self.places:
            return value
        return parse(value, self.kinds[name], self.places.get(name), line, column, name, decimal)


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


def parse(
    value: str, dtype: str, labels: Mapping[str, int] | None, line: int, column: str, name: str, decimal: str
) -> object:
    """A value of a CSV file for an input; `labels` are names of classes, in reverse, and their places."""
    if labels is not None:
        if value not in labels:
            raise messages.CSV_CLASS(line=line, column=column, value=value, names=", ".join(reversed(list(labels))))
        return labels[value]
    digits = value.translate(SWAPPED) if decimal == "," else value
    try:
        if dtype == "bool":
            if value.lower() not in TRUE + FALSE:
                raise ValueError
            return value.lower() in TRUE
        if not NUMBER.fullmatch(digits):
            message = messages.CSV_UNIT if WITH_UNIT.fullmatch(value) else messages.CSV_TEXT
            raise message(line=line, column=column, value=value, name=name)
        if dtype.startswith("float"):
            with np.errstate(over="ignore"):
                if not np.isfinite(np.dtype(dtype).type(digits)):
                    raise ValueError
            return float(digits)
        number = int(digits)
        np.array(number, dtype)
    except (ValueError, OverflowError):
        raise messages.CSV_VALUE(line=line, column=column, value=value, dtype=dtype) from None
    return number
