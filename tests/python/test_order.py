"""Files that take long come first, and their list names files that are there."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests import order

from .test_documents import ROOT


def test_the_list_of_times_names_files_that_are_there() -> None:
    missing = [file for file in order.read_times() if not (ROOT / file).is_file()]
    assert not missing, "./build.sh test --record-times writes the list anew"


def test_the_longest_comes_first_and_tests_of_a_file_stay_together(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "TIMES", tmp_path / "times.txt")
    recorder = order.Recorder()
    for nodeid, duration in (("b.py::one", 4.0), ("c.py::one", 30.0), ("b.py::two", 5.0), ("d.py::one", 1.0)):
        recorder.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=duration))  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    assert order.TIMES.read_text() == "30 c.py\n9 b.py\n"
    page = f"{order.PAGES}e.py::one"
    names = ["a.py::x", "b.py::two", page, "d.py::one", "c.py::one", "b.py::one"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    order.longest_first(items)
    assert [item.nodeid for item in items] == [*("c.py::one", "b.py::two", "b.py::one", page, "a.py::x", "d.py::one")]
