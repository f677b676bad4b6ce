"""The order of files. The longest files come first, so that the workers end together.

`./build.sh test --record-times` writes how long files take to `times.txt`; it needs all tests to run.
"""

from collections import Counter
from pathlib import Path

import pytest

TIMES = Path(__file__).parent / "times.txt"
LEAST_S = 5
"""Files that take less are in no list."""
PAGES, IN_PAGE_S, NATIVE_S = "tests/browser/", 1.0, 0.02
"""How long a test of a file in no list may take, in a page and elsewhere."""


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def read_times() -> dict[str, int]:
    """Seconds by file."""
    lines = (line.split(" ", 1) for line in TIMES.read_text().splitlines())
    return {file: int(seconds) for seconds, file in lines}


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time that their files take; those of a file keep their order and stay together."""
    counts = Counter(file_of(item.nodeid) for item in items)
    times = {file: count * (IN_PAGE_S if file.startswith(PAGES) else NATIVE_S) for file, count in counts.items()}
    times |= read_times()
    items.sort(key=lambda item: -times[file_of(item.nodeid)])


class Recorder:
    """A plugin that writes the times of a run."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        slow = {file: round(seconds) for file, seconds in self.times.most_common() if seconds >= LEAST_S}
        TIMES.write_text("".join(f"{seconds} {file}\n" for file, seconds in slow.items()))
