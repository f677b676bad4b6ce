"""Formulas as data: declared in Python, and computed in float64 by Python and by pages (`web/src/wire/formulas.ts`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Formula: TypeAlias = "float | str | list[Formula]"
"""A number, a name, or an operation with its operands.

Operations are the keys of `OPERATIONS`, "sum" and "size". A condition is a number: 0 is false. Operations on rows of
numbers work element by element. A number, or a row of one element, goes with any row.
"""
Row = float | list[float]


@dataclass(frozen=True)
class Rule:
    """A value that follows from settings and observations.

    Names in `value` are settings, the state, and what the caller gives. `state` has first values by formulas of the
    settings. `observe` are assignments for each observation, in order.
    """

    value: Formula
    state: Mapping[str, Formula] = field(default_factory=dict)
    observe: Iterable[tuple[str, Formula]] = ()

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"value": self.value, "state": list(self.state.items()), "observe": list(self.observe)}


class Course:
    """A rule with its state; `settings` are numbers by name."""

    def __init__(self, rule: Rule, settings: Mapping[str, float]) -> None:
        self._rule, self._names = rule, dict(settings)
        self._assign(rule.state.items())

    def _assign(self, assignments: Iterable[tuple[str, Formula]]) -> None:
        for name, formula in assignments:
            self._names[name] = number(formula, self._names)

    def observe(self, **observed: float) -> None:
        """Change the state."""
        self._names.update(observed)
        self._assign(self._rule.observe)

    def value(self, **numbers: float) -> float:
        """The value of the rule."""
        return number(self._rule.value, self._names | numbers)

    def __getitem__(self, name: str) -> float:
        """A setting, or a part of the state."""
        return self._names[name]


def number(formula: Formula, names: Mapping[str, Row]) -> float:
    """The value of a formula that is one number."""
    result = evaluated(formula, names)
    (value,) = result if isinstance(result, list) else (result,)
    return value


def evaluated(formula: Formula, names: Mapping[str, Row]) -> Row:
    """The value of a formula."""
    if isinstance(formula, str):
        return names[formula]
    if not isinstance(formula, list):
        return float(formula)
    operation, *operands = formula
    if operation == "if":
        condition = evaluated(operands[0], names)
        if not isinstance(condition, list):
            return evaluated(operands[1 if condition else 2], names)
    values = [evaluated(operand, names) for operand in operands]
    rows = [row for row in values if isinstance(row, list)]
    if operation in ("sum", "size"):
        (row,) = rows
        return total(row) if operation == "sum" else float(len(row))
    compute = OPERATIONS[str(operation)]
    if not rows:
        return compute(*values)
    n = max(map(len, rows))
    columns = ([row] if isinstance(row, float | int) else row for row in values)
    return [compute(*column) for column in zip(*(c * n if len(c) == 1 else c for c in columns), strict=True)]


def total(row: list[float]) -> float:
    """The sum from left to right: `sum` of Python adds otherwise from 3.12 on."""
    result = 0.0
    for x in row:
        result += x
    return result


def divided(a: float, b: float) -> float:
    """a / b as float64 has it."""
    if b:
        return a / b
    return math.copysign(math.inf, a) * math.copysign(1, b) if a and not math.isnan(a) else math.nan


def raised(a: float, b: float) -> float:
    """a to the power of b as float64 has it."""
    try:
        return math.pow(a, b)
    except (OverflowError, ValueError):
        return math.nan if a < 0 and b % 1 else math.copysign(math.inf, a if b % 2 == 1 else 1)


def exponential(x: float) -> float:
    """e to the power of x; infinite where that is beyond float64."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


OPERATIONS: Mapping[str, Callable[..., float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": divided,
    "over": lambda a, b: a / b if b else 0.0,
    "=": lambda a, b: float(a == b),
    ">": lambda a, b: float(a > b),
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
    "if": lambda condition, a, b: a if condition else b,
    "exp": exponential,
    "pow": raised,
    "floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
    "cos": lambda x: math.cos(x) if math.isfinite(x) else math.nan,
}
""""over" is a division that gives 0 where the divisor is 0; "=" and ">" give 1 or 0; "if" selects by a condition."""
