"""Reads of parameters give copies, and no write into a copy is lost in silence."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import session, unchanged, warm

WRITES: dict[str, Callable[[Any], Any]] = {
    "an element": lambda a: a.__setitem__((0, 0), 1),
    "a slice": lambda a: a.__setitem__(slice(None), 1),
    "a view": lambda a: a[0].__setitem__(0, 1),
    "a transposed view": lambda a: a.T.__setitem__(0, 1),
    "a reshaped view": lambda a: a.reshape(-1).__setitem__(0, 1),
    "in place": lambda a: a.__isub__(1),
    "out=": lambda a: np.add(a, 1, out=a),
    "fill": lambda a: a.fill(1),
    "at": lambda a: np.add.at(a, (0, 0), 1),
    "sort": lambda a: a.sort(),
    "copyto": lambda a: np.copyto(a, 1),
    "flat": lambda a: a.flat.__setitem__(0, 1),
    "a plain view": lambda a: np.asarray(a).__setitem__(0, 1),
}
NAMED = ["an element", "a slice", "a view", "a transposed view", "a reshaped view", "in place", "out=", "fill", "at"]


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("of", ["data", "grad"])
def test_writing_into_a_parameter_is_refused(kind: str, of: str) -> None:
    with session() as s:
        warm(s)
        parameter = s._core.state.parameters["fc1.weight"]
        array = getattr(parameter, of)
        with unchanged(s), pytest.raises(ValueError, match="update_parameter" if kind in NAMED else "read-only|only"):
            WRITES[kind](array)
        np.testing.assert_array_equal(getattr(parameter, of), array)


def test_in_place_operators_on_the_attribute_are_refused() -> None:
    with session() as s:
        parameter = s._core.state.parameters["fc1.weight"]
        with unchanged(s), pytest.raises(ValueError, match="update_parameter"):
            parameter.data -= 1
        before = parameter.data
        parameter.data = parameter.data - 1
        np.testing.assert_array_equal(parameter.data, before - 1)


def test_what_is_computed_of_a_parameter_is_an_array_like_any_other() -> None:
    with session() as s:
        array = s._core.state.parameters["fc1.weight"].data
        for made in (array + 1, 2 * array, np.exp(array), array.copy(), np.array(array), array.astype(np.float64)):
            made[0] = 7
            assert (made[0] == 7).all()
        assert type(array + 1) is np.ndarray and type(array @ array.T) is np.ndarray
        assert float(array.sum()) == float(np.asarray(array).sum())
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), array)
        s.get_parameter("fc1.weight")[0] = 3  # the session's own copies are for its caller to write into
