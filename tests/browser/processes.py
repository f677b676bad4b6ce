"""Memory of the processes that show pages, as Linux counts it."""

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def processes(kind: str = "renderer") -> list[int]:
    """The processes of this kind that this process or a child has started."""
    parents = {pid: parent for pid in map(int, filter(str.isdigit, os.listdir(PROC))) if (parent := _parent(pid))}

    def is_ours(pid: int | None) -> bool:
        return pid is not None and (pid == os.getpid() or is_ours(parents.get(pid)))

    return [pid for pid in parents if is_ours(pid) and f"--type={kind}" in _read(pid, "cmdline")]


def resident_bytes(pids: Iterable[int]) -> int:
    """Anonymous and shared memory; not the program itself, which comes and goes with the files' cache."""
    total = 0
    for pid in pids:
        lines = dict(line.split(":", 1) for line in _read(pid, "status").splitlines() if ":" in line)
        total += sum(1024 * int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem") if name in lines)
    return total


def _read(pid: int, name: str) -> str:
    """A file of a process; nothing when it has ended."""
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int | None:
    # The name, in brackets, may have any character.
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else None
