"""Named files in a folder, each with a checksum, written so that a crash leaves the old or the new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from trainweb import messages
from trainweb.checkpoint.files import write_file_atomically

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC, VERSION = 0x53425754, 1
"""As web/src/storage/slots.ts has them."""
HEADER = struct.Struct("<IIIIQ32s")
HEADER_BYTES = 72
"""Magic, version, sequence number, 0, length, SHA-256 of the contents, and half of the SHA-256 of all this."""
SUFFIX, LOCK = ".checkpoint", ".lock"
MAX_NAME = 180
"""Bytes of a file name, which has suffixes besides."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """What `CheckpointStore.list` says.

    Attributes
    ----------
    name : str
    nbytes : int
        Of the checkpoint, without what the store adds.
    written : datetime
        In UTC.
    """

    name: str
    nbytes: int
    written: datetime


class NamedFiles:
    """Files by name in a folder, which is made when the first is written."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def read(self, name: str) -> bytes | None:
        """The contents; None where there is no such file.

        Raises
        ------
        CheckpointError
            It is not whole.
        """
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        contents = data[HEADER_BYTES:]
        if len(data) < HEADER_BYTES or data[:HEADER_BYTES] != make_header(contents):
            raise messages.CHECKPOINT_DAMAGED(name=name, folder=str(self.folder))
        return contents

    def write(self, name: str, contents: bytes) -> None:
        """Write a file.

        Raises
        ------
        StorageError
            There is no room; the file is as before.
        """
        path = self._path(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            write_file_atomically(path, [make_header(contents), contents])
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            fault = messages.NO_ROOM(
                name=name, needed=len(contents), folder=str(self.folder), reason=error.strerror or "full"
            )
            usage = shutil.disk_usage(self.folder)
            vars(fault).update(needed=len(contents), usage=usage.used, quota=usage.total)
            raise fault from error

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self.locked(name):
            self._path(name).unlink(missing_ok=True)

    def rename(self, name: str, to: str) -> None:
        """Call a file by another name, which none has."""
        with self.locked(name), self.locked(to) if to != name else contextlib.nullcontext():
            if not self._path(name).exists():
                raise messages.NO_CHECKPOINT(name=name, folder=str(self.folder))
            if self._path(to).exists():
                raise messages.CHECKPOINT_EXISTS(name=to, folder=str(self.folder))
            os.replace(self._path(name), self._path(to))

    def list(self) -> list[StoredCheckpoint]:
        """All files, by name."""
        found = []
        for path in self.folder.glob("*" + SUFFIX):
            if not path.name.startswith("."):
                status = path.stat()
                written = datetime.fromtimestamp(status.st_mtime, UTC)
                name = unquote(path.name.removesuffix(SUFFIX))
                found.append(StoredCheckpoint(name, max(status.st_size - HEADER_BYTES, 0), written))
        return sorted(found, key=lambda entry: entry.name)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes from a file.

        Raises
        ------
        StorageError
            One of them, or another fit of this one, has it.
        """
        path = self._path(name).with_suffix(LOCK)
        if fcntl is None:  # no locks: Windows refuses to replace what another has open
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise messages.CHECKPOINT_IN_USE(name=name) from error
            yield
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> Path:
        coded = quote(name, safe=" ") if isinstance(name, str) else ""
        if not 1 <= len(coded) <= MAX_NAME:
            raise messages.BAD_CHECKPOINT_NAME(most=MAX_NAME, given=name)
        # A name that starts with a dot is one of a file that is on its way.
        return self.folder / ((f"%2E{coded[1:]}" if coded.startswith(".") else coded) + SUFFIX)


def make_header(contents: bytes) -> bytes:
    """Return the header of a file's contents."""
    start = HEADER.pack(MAGIC, VERSION, 1, 0, len(contents), hashlib.sha256(contents).digest())
    return start + hashlib.sha256(start).digest()[: HEADER_BYTES - len(start)]
