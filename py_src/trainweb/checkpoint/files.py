"""Files that are either the old or the new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from ..arguments import path_of
from ..model.lazy import LazyTensor, Part

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]


def write_file_atomically(path: str | os.PathLike[str], data: bytes | bytearray | memoryview | list[Part]) -> None:
    """Write a file so that a crash at any moment leaves the old content or the new, never a mix.

    The data goes to a temporary file in the same directory, which then takes the place of `path`. A link at `path` is
    followed, and the mode of a file that is there is kept. Temporary files that killed processes left behind for the
    same `path` are removed. Raise OSError without the directory or without room; `path` is then as it was.
    """
    target = Path(os.path.realpath(path_of("path", path)))
    if not target.parent.exists():  # else the temporary file would be named
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    prefix = f".{target.name[:100]}."
    _sweep(target.parent, prefix)
    descriptor, temporary = _open_temporary(target.parent, prefix)
    # Keeps the lock until the file has its name.
    lock = os.dup(descriptor) if fcntl is not None else None
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in data if isinstance(data, list) else [data]:
                file.write(part.data if isinstance(part, LazyTensor) else part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    _sync_directory(target.parent)


def written(name: str, path: Any, data: bytes) -> bytes | None:
    """Write data to the argument `name`, a path; without a path return the data."""
    if path is None:
        return data
    write_file_atomically(path_of(name, path), data)
    return None


def _open_temporary(directory: Path, prefix: str) -> tuple[int, str]:
    """A temporary file that others see is in use for as long as it is open: it is locked."""
    while True:
        descriptor, temporary = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=directory)
        with contextlib.suppress(OSError):  # a file system without locks, where temporary files are never removed
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(temporary):
            return descriptor, temporary
        os.close(descriptor)  # removed by another process before it was locked


def _sweep(directory: Path, prefix: str) -> None:
    """Remove temporary files whose writers are no more."""
    name = re.compile(re.escape(prefix) + r"[a-z0-9_]{8}\.tmp")
    with contextlib.suppress(OSError):
        for path in [entry.path for entry in os.scandir(directory) if name.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_unlocked(path)


def _remove_unlocked(path: str) -> None:
    if fcntl is None:
        os.unlink(path)
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


def _mode(target: Path) -> int:
    """Permissions of the file that is there, or what a new file gets."""
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_directory(directory: Path) -> None:
    """Make the renaming durable, where directories can be opened (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
