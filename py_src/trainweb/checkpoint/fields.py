"""Checked fields of JSON that a checkpoint holds and anybody may have changed; `web/src/worker/fields.ts` is the same.

Each function returns its value, or raises CheckpointError with the name of the field and the values that are allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from trainweb import messages

MOST = 2**53 - 1
"""The largest count: numbers of JavaScript have no larger integers without gaps."""
WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""Words of checkpoints for the numbers that JSON lacks."""

MISSING = ...


def refuse(value: Any, field: str, expected: str) -> NoReturn:
    """Raise for a value that is not allowed."""
    raise messages.BAD_FIELD(actual=describe(value), field=field, expected=expected)


def describe(value: Any) -> str:
    """A value in a few words, whatever its size."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return str(int(value)) if abs(value) <= MOST and value == int(value) else "a number"
    words = (str, "a text"), (list, "an array"), (dict, "an object")
    return next((word for kind, word in words if isinstance(value, kind)), "nothing")


def parse(texts: Mapping[str, str], field: str) -> Any:
    """Parse JSON as the standard has it, without Python's NaN and Infinity."""

    def constant(_: str) -> NoReturn:
        raise ValueError

    try:
        return json.loads(texts.get(field, ""), parse_constant=constant)
    except (ValueError, RecursionError):
        refuse(texts.get(field, MISSING), field, "JSON")


def mapping(value: Any, field: str) -> dict[str, Any]:
    """Return an object."""
    return value if isinstance(value, dict) else refuse(value, field, "an object")


def array(value: Any, field: str) -> list[Any]:
    """Return an array."""
    return value if isinstance(value, list) else refuse(value, field, "an array")


def count(value: Any, field: str, least: int = 0, most: int = MOST) -> int:
    """Return an integer from `least` to `most`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or value != int(value):
        expected = str(least) if least == most else f"an integer from {least} to {most}"
        refuse(value, field, expected)
    return int(value)


def number(value: Any, field: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        refuse(value, field, "a finite number")
    try:
        return float(value)
    except OverflowError:
        refuse(value, field, "a finite number")


def rate(value: Any, field: str) -> float:
    """Return a finite number that is not negative."""
    result = number(value, field)
    return result if result >= 0 else refuse(value, field, "a finite number of at least 0")


def any_number(value: Any, field: str) -> float:
    """Return a number, which may be written as one of `WORDS`."""
    return WORDS[value] if isinstance(value, str) and value in WORDS else number(value, field)
