"""Names and values of tens of thousands of characters: an error shows the beginning and the length."""

import random
import warnings
from typing import Any

from trainweb import errors, messages

from .test_attacks_misuse_sweep import release

LONGEST = 6000
"""Characters of any message: room for one whose middle is left out."""
LENGTH = 20_000
"""Of a name, several times LONGEST, and of a list."""


NAME = "".join(random.Random(5).choices("ab\n'\"\\{}é\U0001f600", k=LENGTH))
BYTES = NAME.encode()
MANY = [str(k) for k in range(LENGTH)]


def long_values() -> dict[str, Any]:
    """Values of many characters, which no call takes."""
    values = {"name": NAME, "bytes": BYTES, "names": [NAME] * 3, "key": {NAME: 1}, "value": {"x": NAME}}
    return values | {"many": MANY[:]}


def test_no_message_is_longer_than_can_be_read(label: str, made: Any) -> None:
    call, valid = made
    for argument in valid:
        for name, value in long_values().items():
            where = f"{label}({argument}={name})"
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    release(call(**{**valid, argument: value}))
                assert all(len(str(w.message)) <= LONGEST for w in said), f"{where}: a warning"
            except OSError:
                pass  # of the file system, which names the path
            except AssertionError:
                raise
            except Exception as error:
                assert isinstance(error, (errors.TrainwebError, TypeError)), f"{where}: {type(error)}"
                assert len(str(error)) <= LONGEST, f"{where}: {len(str(error))} characters: {error!s:.300}"


def test_the_beginning_the_end_and_the_length_stay() -> None:
    error = messages.CSV_VALUE(line=7, column="c" * 40, value="1" * 5_000_000, dtype="int64")
    shown = "'" + "1" * 499 + "... (5000002 characters)"
    assert str(error) == f"Line 7, column '{'c' * 40}': {shown} is not a valid int64."
    text = str(errors.ModelError(f"node 'first' {'x' * 100_000} last."))
    assert text.startswith("node 'first' xxx") and text.endswith("x last.") and "... (100019 characters) ..." in text
    assert len(text) < 4600
    exact = "y" * (errors.LONGEST_HEAD + errors.LONGEST_TAIL)
    assert str(errors.ModelError(exact)) == exact


def test_integers_of_any_length_are_named() -> None:
    error = messages.BAD_SETTING(name="alpha", value=[10**5000], expected="a number")
    assert "alpha is <list with an integer of too many digits>" in str(error)
