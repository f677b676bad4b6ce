"""Files that are either the old or the new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ..model.lazy import LazyTensor, Part


def write_file_atomically(path: str | os.PathLike[str], data: bytes | bytearray | memoryview | list[Part]) -> None:
    """Write a file so that a crash at any moment leaves the old content or the new, never a mix.

    The data goes to a temporary file in the same directory, which then takes the place of `path`. A
    link at `path` is followed, and the mode of a file that is there is kept.

    Raises
    ------
    OSError
        The directory does not exist or the disk is full; `path` is as it was.
    """
    target = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
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
    _sync_directory(target.parent)


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
