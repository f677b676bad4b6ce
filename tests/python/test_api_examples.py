"""The examples of the API reference, which stand beside each other in both languages, run in Python."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python.test_documents import MOST_COLUMNS

import trainweb

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from api_examples import EXAMPLES  # noqa: E402


def test_the_examples_fit_on_a_phone() -> None:
    lines = [line for one in EXAMPLES for line in (one.python_code + one.page_code).splitlines()]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


def test_the_examples_of_python_run_one_after_the_other() -> None:
    scope: dict[str, Any] = {"io": io, "np": np, "trainweb": trainweb}
    for example in EXAMPLES:
        exec(compile(example.python_code, example.title, "exec"), scope)
    # What they compute: points inside of a circle, of which half the rows would be right by chance.
    assert scope["values"]["accuracy"] > 0.85
    assert scope["table"].columns["points"][1, 1] == pytest.approx(0.4)
    assert list(scope["logits"].argmax(axis=1)) == [1, 0]
    assert np.asarray(scope["scores"]).shape == (3, 2)
    for name in ("session", "again", "trained"):
        scope[name].release()
