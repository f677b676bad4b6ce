"""Preprocessing of tables: steps that are fitted on rows, and applied to others.

A step is plain JSON, the same in a page (web/src/data/table.ts). It has `type`, `input`, the fitted numbers, and
`dtype`, the type of the fitted rows (steps of older files lack it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.data.rows import dtype_of, refuse_objects

Step = dict[str, Any]
Columns = dict[str, np.ndarray]

FLOATS = ("float32", "float64")
NUMBERS = ("float32", "float64", "int64", "int32", "uint8")
INTEGERS = ("int64", "int32", "uint8")


def _is_list_of(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(one, kind) for one in value) and len(value) > 0


FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "fill": {"values": _is_list_of((int, float))},
    "standardize": {"mean": _is_list_of((int, float)), "std": _is_list_of((int, float))},
    "one_hot": {"categories": _is_list_of(list)},
    "categories": {"categories": _is_list_of(list)},
    "concat": {"parts": _is_list_of(str)},
}
"""Fields of each type of step besides `type`, `input` and `dtype`, and what they hold."""
UNKNOWN = ("error", "zeros")
"""Treatments of a category that the fitted rows lack. A step of `one_hot` has the field `unknown` for the second."""
EPSILON = 2.0**-52


def column_of(name: str, columns: Columns) -> np.ndarray:
    """A column by its name, with true and false as 1 and 0. Raise FeedError if there is none."""
    if name not in columns:
        raise messages.TABLE_INPUT(name=name, names=", ".join(columns))
    array = columns[name]
    refuse_objects(name, array)
    return array.view(np.uint8) if array.dtype == bool else array


def fitted(kind: str, name: str, columns: Columns, declared: list[Any] | None = None) -> Step:
    """Fit a step on columns, of which one may have `declared` its categories.

    Raise FeedError for another input or type, or a mean or deviation that is not finite.
    """
    array = column_of(name, columns)
    array = _whole(name, array) if kind == "one_hot" and dtype_of(array) in FLOATS else array
    step = "fill" if kind in CENTRES else kind
    _check_type(step, name, array)
    rows, head = _flat(array), {"type": step, "input": name, "dtype": dtype_of(array)}
    if step == "fill":
        return {**head, "values": _fills(kind, name, rows.astype(np.float64))}
    if kind != "standardize":
        return {**head, "categories": [declared or np.unique(column).tolist() for column in rows.T]}
    mean, std = moments(rows.astype(np.float64))
    if not np.isfinite(mean + std).all():
        raise messages.TABLE_MOMENTS(name=name)
    return {**head, "mean": mean.tolist(), "std": std.tolist()}


def _whole(name: str, array: np.ndarray) -> np.ndarray:
    """The whole numbers of a column of floats. Raise FeedError for the first row with another number."""
    rows = _flat(array)
    for row, column in np.argwhere((rows != np.floor(rows)) | ~(np.abs(rows) < 2**53)).tolist()[:1]:
        raise messages.TABLE_WHOLE(row=row, value=float(rows[row, column]), name=name)
    return array.astype(np.int64)


def _fills(kind: str, name: str, rows: np.ndarray) -> list[float]:
    """The mean or median of the numbers that each column of `(N, C)` has."""
    present = [column[~np.isnan(column)] for column in rows.T]
    for k, column in enumerate(present):
        if not column.size:
            raise messages.TABLE_EMPTY(name=name, column=k)
    with np.errstate(over="ignore", invalid="ignore"):
        centres = [float(CENTRES[kind](column)) for column in present]
    for k, value in enumerate(centres):
        if not math.isfinite(value):
            raise messages.TABLE_CENTRE(name=name, column=k)
    return centres


CENTRES: Mapping[str, Callable[[np.ndarray], Any]] = {
    "fill_mean": lambda column: np.cumsum(column)[-1] / len(column),
    "fill_median": np.median,
}
"""The value that stands for missing ones, by name. A page adds up in the same order."""


def moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population deviation of each column of `(N, C)`, added up in the order of the rows as in a page.

    The deviation of a constant column is 1. Rounding makes a tiny variance of it; the bound is scikit-learn's
    (`_is_constant_feature` in sklearn/preprocessing/_data.py).
    """
    count = len(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.cumsum(rows, axis=0)[-1] / count
        variance = np.cumsum((rows - mean) ** 2, axis=0)[-1] / count
        bound = count * EPSILON * variance + (count * EPSILON * mean) ** 2
    return mean, np.where((variance <= bound) & np.isfinite(variance), 1.0, np.sqrt(variance))


def applied(steps: Iterable[Mapping[str, Any]], columns: Columns) -> Columns:
    """Columns after steps. A step whose inputs are not there changes nothing: rows to predict on have no labels."""
    result = dict(columns)
    for step in steps:
        for name in step.get("parts", [step["input"]]):
            if name in result:
                result[name] = _as_fitted(step, column_of(name, result))
        if step["type"] == "concat":
            if not result.keys().isdisjoint(step["parts"]):
                _concat(step, result)
        elif step["input"] in result:
            result[step["input"]] = APPLY[step["type"]](step, result[step["input"]])
    return result


Unit = tuple[np.ndarray, np.ndarray]
"""Deviation and mean of each value in a row of a standardized input."""


def units_of(steps: Iterable[Mapping[str, Any]]) -> dict[str, Unit]:
    """The units of standardized inputs; one that `concat` makes has units if all its parts do."""
    units: dict[str, Unit] = {}
    for step in steps:
        name, parts = step["input"], [units.pop(part, None) for part in step.get("parts", [])]
        if step["type"] == "standardize":
            std, mean = units.get(name, (np.ones(1), np.zeros(1)))
            units[name] = std * np.array(step["std"]), mean + std * np.array(step["mean"])
        elif parts and all(parts):
            std, mean = (np.concatenate(numbers) for numbers in zip(*filter(None, parts), strict=True))
            units[name] = std, mean
    return units


def in_units(name: str, array: np.ndarray, unit: Unit | None) -> np.ndarray:
    """Return standardized values in the units of their column. Raise FeedError for another type or width."""
    if unit is None:
        return array
    std, mean = unit
    _check_type("standardize", name, array)
    _check_width(name, 1 if len(std) == 1 else math.prod(array.shape[1:]), len(std))
    rows: np.ndarray = array.reshape(-1, len(std)).astype(np.float64) * std + mean
    return rows.astype(array.dtype).reshape(array.shape)


def _as_fitted(step: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    """Numbers in the type of the fitted rows; integers and text stay, as a step takes them by their values."""
    is_number = array.dtype.kind in "iuf" and step.get("dtype") in FLOATS
    return array.astype(step["dtype"]) if is_number else array


def checked_steps(steps: Any) -> list[Step]:
    """Check steps, which may come from a file. Raise ModelError for what are no steps."""
    listed = list(steps) if isinstance(steps, (list, tuple)) else [steps]
    for step in listed:
        kind = step.get("type") if isinstance(step, Mapping) else None
        fields = FIELDS.get(kind) if isinstance(kind, str) else None
        zeros = kind == "one_hot" and step.get("unknown") == "zeros"
        if (
            fields is None
            or set(step) | {"dtype"} != {"type", "input", "dtype", *fields, *(["unknown"] if zeros else [])}
            or not all(isinstance(step.get(name, ""), str) for name in ("input", "dtype"))
            or not all(check(step[name]) for name, check in fields.items())
        ):
            raise messages.BAD_SETTING(name="steps", value=step, expected="the 'preprocessing' of a dataset")
    return [dict(step) for step in listed]


def _check_type(kind: str, name: str, array: np.ndarray, fitted_on: str | None = None) -> None:
    dtype = dtype_of(array)
    if fitted_on in INTEGERS and array.dtype.kind in "iuf":
        return  # such as whole numbers that a table has as floats
    if fitted_on == "string" != dtype:
        raise messages.TABLE_TEXT(name=name, actual=dtype, step=kind)
    takes = {"fill": NUMBERS, "standardize": NUMBERS, "one_hot": ("string", *INTEGERS), "categories": ("string",)}[kind]
    if dtype not in takes:
        raise messages.TABLE_TYPE(name=name, actual=dtype, step=kind, expected=", ".join(takes))


def _flat(array: np.ndarray) -> np.ndarray:
    """Values of each row, `(N, C)`."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _check_width(name: str, width: int, expected: int) -> None:
    if width != expected:
        raise messages.TABLE_WIDTH(name=name, actual=width, expected=expected)


def _standardize(step: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    _check_type("standardize", step["input"], array, step.get("dtype"))
    dtype = step.get("dtype") or dtype_of(array)
    rows = _flat(array).astype(np.float64)
    _check_width(step["input"], rows.shape[1], len(step["mean"]))
    scores: np.ndarray = (rows - np.array(step["mean"])) / np.array(step["std"])
    return scores.astype(np.float64 if dtype == "float64" else np.float32).reshape(array.shape)


def _fill(step: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    _check_type("fill", step["input"], array)
    rows = _flat(array)
    _check_width(step["input"], rows.shape[1], len(step["values"]))
    result: np.ndarray = np.where(np.isnan(rows), np.array(step["values"], array.dtype), rows).reshape(array.shape)
    return result


def _places(step: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    """Places of values in their columns' categories, `(N, C)`, or -1."""
    name, categories = step["input"], step["categories"]
    _check_type(step["type"], name, array, step.get("dtype"))
    rows = _flat(array)
    _check_width(name, rows.shape[1], len(categories))
    places = np.empty(rows.shape, np.int64)
    for k, known in enumerate(categories):
        place = {value: at for at, value in enumerate(known)}
        for row, value in enumerate(rows[:, k].tolist()):
            if value not in place and "unknown" not in step:
                raise messages.TABLE_CATEGORY(row=row, name=name, value=value, names=", ".join(map(repr, known)))
            places[row, k] = place.get(value, -1)
    return places


def _one_hot(step: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    places = _places(step, array)
    # The row behind those of the categories has only zeros, and -1 is its place.
    sizes = [len(known) for known in step["categories"]]
    parts = [np.eye(size + 1, size, dtype=np.float32)[places[:, k]] for k, size in enumerate(sizes)]
    return np.concatenate(parts, axis=1)


APPLY: Mapping[str, Callable[[Mapping[str, Any], np.ndarray], np.ndarray]] = {
    "fill": _fill,
    "standardize": _standardize,
    "one_hot": _one_hot,
    "categories": lambda step, array: _places(step, array).reshape(array.shape),
}


def _concat(step: Mapping[str, Any], columns: Columns) -> None:
    first, *_ = parts = step["parts"]
    for name in parts:
        actual, expected = (dtype_of(column_of(part, columns)) for part in (name, first))
        if actual != expected:
            raise messages.TABLE_CONCAT(name=name, actual=actual, first=first, expected=expected)
    if step["input"] in set(columns).difference(parts):
        raise messages.BAD_SETTING(name="name", value=step["input"], expected="a name that no other input has")
    joined = np.concatenate([_flat(columns[name]) for name in parts], axis=1)
    for name in set(parts):
        del columns[name]
    columns[step["input"]] = joined
