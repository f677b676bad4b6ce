"""Formulas against NumPy, and early stopping against the rule of Keras."""

import math
from typing import Any

import numpy as np
import pytest

from trainweb.fit.options import EarlyStopping
from trainweb.formulas import OPERATIONS, Course, Rule, evaluated, number

PAIRS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "over": lambda a, b: np.where(b == 0, 0, a / b),
    "=": np.equal,
    ">": np.greater,
    "min": lambda a, b: np.where(b < a, b, a),
    "max": lambda a, b: np.where(b > a, b, a),
    "pow": np.power,
}
SINGLE: dict[str, Any] = {"exp": np.exp, "floor": np.floor, "cos": np.cos}
VALUES = [0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e308, -1e308, 710.0, math.inf, -math.inf, math.nan]


def test_operations_are_those_of_float64() -> None:
    assert {*PAIRS, *SINGLE, "if"} == set(OPERATIONS)
    a, b = (grid.ravel() for grid in np.meshgrid(VALUES, VALUES))
    with np.errstate(all="ignore"):
        for name, expected in PAIRS.items():
            found = evaluated([name, "a", "b"], {"a": a.tolist(), "b": b.tolist()})
            np.testing.assert_allclose(found, expected(a, b), rtol=1e-15, err_msg=name)
        for name, expected in SINGLE.items():
            found = evaluated([name, "a"], {"a": VALUES})
            np.testing.assert_allclose(found, expected(np.array(VALUES)), rtol=1e-15, err_msg=name)


def test_numbers_and_rows_of_one_go_with_any_row() -> None:
    names = {"row": [1.0, 2.0, 4.0], "one": [3.0], "x": 2.0}
    assert evaluated(["+", "row", ["*", "one", "x"]], names) == [7.0, 8.0, 10.0]
    assert evaluated(["if", [">", "row", "x"], "one", 0], names) == [0.0, 0.0, 3.0]
    assert number(["/", ["sum", "row"], ["size", "row"]], names) == pytest.approx(7 / 3)
    assert number("one", names) == 3.0


def test_assignments_follow_each_other() -> None:
    rule = Rule(["*", "total", "factor"], {"total": ["+", "first", 1]}, [("half", ["/", "x", 2]), ("total", "half")])
    course = Course(rule, {"first": 4})
    assert course.value(factor=2) == 10
    course.observe(x=3)
    assert course.value(factor=2) == 3 and course["half"] == 1.5


def epochs_of_keras(losses: list[float], patience: int, min_delta: float) -> int:
    """Epochs until Keras' EarlyStopping ends, or all: `on_epoch_end` of keras/src/callbacks/early_stopping.py."""
    best, wait = math.inf, 0
    for epoch, loss in enumerate(losses):
        wait += 1
        if loss < best - min_delta:
            best, wait = loss, 0
        elif wait >= patience and epoch > 0:
            return epoch + 1
    return len(losses)


@pytest.mark.parametrize("patience", [0, 1, 2, 5])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_early_stopping_counts_as_keras_does(patience: int, mode: str) -> None:
    rng = np.random.default_rng(patience)
    ends = set()
    for _ in range(50):
        losses = (np.cumsum(rng.standard_normal(20) - 0.3)).tolist()
        early, done = EarlyStopping(patience, 0.25, mode=mode), 0
        while done < len(losses) and not early.is_over:
            early.observe(losses[done] if mode == "min" else -losses[done])
            done += 1
        assert done == epochs_of_keras(losses, patience, 0.25)
        ends.add(done)
    assert len(ends) > 2
