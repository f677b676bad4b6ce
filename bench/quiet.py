"""Waiting until other processes leave the cores alone."""

from __future__ import annotations

import time
from pathlib import Path

STAT = Path("/proc/stat")
SAMPLE_S = 0.1
BUSY_SHARE = 0.1
"""Of all cores: one that is a fifth busy on a machine of two."""


def _jiffies() -> tuple[int, int]:
    """Busy and all."""
    fields = [int(word) for word in STAT.read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return sum(fields[:8]) - idle, sum(fields[:8])


def busy_share() -> float:
    """Share of all cores that is in use while this process sleeps; 0 where nobody can tell."""
    if not STAT.is_file():
        time.sleep(SAMPLE_S)
        return 0.0
    busy, total = _jiffies()
    time.sleep(SAMPLE_S)
    busy_after, total_after = _jiffies()
    return (busy_after - busy) / max(1, total_after - total)


def wait(patience_s: float) -> bool:
    """Wait until the machine is quiet, at most `patience_s`; whether it is."""
    end = time.monotonic() + patience_s
    while True:
        if busy_share() <= BUSY_SHARE:
            return True
        if time.monotonic() >= end:
            return False
