"""Public calls for tests that put something wrong in the place of each argument."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import trainweb

from .calls import CALLS, OPENED


@pytest.fixture(params=CALLS)
def label(request: pytest.FixtureRequest) -> str:
    """The name of each public call in turn."""
    name: str = request.param
    return name


@pytest.fixture
def made(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Callable[..., Any], Mapping]]:
    """The call and its valid arguments, in an empty folder; what it is made of is released in the end."""
    monkeypatch.chdir(tmp_path)
    yield CALLS[label].make(tmp_path), CALLS[label].valid(tmp_path)
    trainweb.set_seed(0)
    while OPENED:
        OPENED.pop().release()
