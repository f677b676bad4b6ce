"""Memory of the process that a page runs in, in a Chromium that nothing watches.

Playwright has Chromium keep every file that a page loads, encoded, in the page's process: 20 MB that no user has.
"""

import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .conftest import CHROMIUM_FLAGS

PROC = Path("/proc")
SAMPLES_S = 0.02


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process.

    Attributes
    ----------
    private : int
        Its own: anonymous and shared memory (RssAnon, RssShmem).
    program : int
        Pages of files (RssFile): the browser's program and resources, which all its processes share.
    """

    private: int
    program: int


@dataclass
class Renderer:
    """The process of the page: what it has, and the most that it has had."""

    browser: int
    peak: int = 0
    """Of private bytes, looked at every 20 ms."""

    def memory(self) -> Memory:
        """Of the largest of the browser's processes of pages."""
        found = [_memory_of(pid) for pid in _renderers(self.browser)]
        return max(found, key=lambda memory: memory.private)


def _memory_of(pid: int) -> Memory:
    try:
        status = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return Memory(0, 0)
    sizes = {name: 1024 * int(kib) for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return Memory(sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("RssFile", 0))


def _renderers(browser: int) -> list[int]:
    parents, found = {}, []
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
            if b"--type=renderer" in command:
                found.append(int(folder.name))
    return [pid for pid in found if browser in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


@contextmanager
def unwatched_page(chromium: str, url: str) -> Iterator[Renderer]:
    """Open a page in a separate Chromium."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, "--headless", *CHROMIUM_FLAGS, f"--user-data-dir={profile}", url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        renderer, stop = Renderer(process.pid), threading.Event()

        def sample() -> None:
            while not stop.wait(SAMPLES_S):
                renderer.peak = max([renderer.peak, *(_memory_of(p).private for p in _renderers(process.pid))])

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield renderer
        finally:
            stop.set()
            thread.join()
            process.terminate()
            process.wait(30)
            time.sleep(0.2)  # its children still write into the profile
