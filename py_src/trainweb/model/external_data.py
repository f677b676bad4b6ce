"""Tensor data outside the model file: below the model's own directory, or given by the caller.

A location is untrusted. It is resolved first and then compared. It is opened one directory at a time without following
links, so that no `..`, link or race leads out (ONNX: CVE-2022-25882, CVE-2024-27318, CVE-2026-27489).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..errors import ModelError
from ..spelling import ARGUMENT
from .checks import check_name
from .local import HELD, STAYS_OPEN, OpenFile, of_descriptor
from .remote import RangedFile, RemoteRange
from .weights import SUFFIX, Weights

KEYS = ("location", "offset", "length", "checksum")
"""Keys that ONNX defines. The checksum, of a whole file that need not be read, is not verified."""

MAX_DIGITS = 19
"""Digits of 2^63; longer numbers are no file offsets."""

MAX_OPEN_FILES = 16
"""Some exporters write one file per tensor, more than a process may hold open."""


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a tensor's bytes."""

    name: str
    offset: int
    length: int | None


def parse_location(entries: Iterable[Any], what: str) -> Location:
    """The `external_data` entries of a TensorProto; keys are only compared, never used as names."""
    entries_by_key: dict[str, str] = {}
    for entry in entries:
        key = check_name(entry.key, f"a key of the external data of {what}")
        if key not in KEYS:
            raise ModelError(f"{what} has external data with key {key[:40]!r}; ONNX defines {', '.join(KEYS)}")
        if key in entries_by_key:
            raise ModelError(f"{what} has external data with two entries {key!r}")
        entries_by_key[key] = check_name(entry.value, f"{key} of the external data of {what}")
    if not entries_by_key.get("location"):
        raise ModelError(f"{what} has external data without a location")
    length = entries_by_key.get("length")
    return Location(
        entries_by_key["location"],
        _number(entries_by_key.get("offset") or "0", f"offset of {what}"),
        _number(length, f"length of {what}") if length else None,
    )


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ModelError(f"the external data {what} is {text[:40]!r}, not a number of bytes")
    return int(text)


class ExternalData:
    """Reads tensor data by location, and notes the locations in `names`, in the order of their first use.

    `data` by location goes before files in `directory`, which is None for a model without a file. `safetensors` are
    safetensors files for the weights of the model.
    """

    def __init__(
        self, directory: Path | None, data: Mapping[str, Any] | None = None, safetensors: Weights | None = None
    ) -> None:
        self._directory = directory
        self._data = data or {}
        self.safetensors = safetensors
        self._weights: dict[str, Weights] = {}
        self._open: dict[str, tuple[int, int]] = {}
        self._large: dict[str, OpenFile] = {}
        self.names: dict[str, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, but for large ones, which tensors stay in."""
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def weights(self, name: str, what: str) -> Weights | None:
        """The weights at a location without offset and length; None if it is not a safetensors file."""
        if not name.endswith(SUFFIX):
            return None
        if self.safetensors is not None:
            return self.safetensors
        self.names[name] = None
        if name not in self._weights:
            source = self._data.get(name)
            if source is None and self._directory is not None:
                descriptor, _ = open_beneath(self._directory, name, what)
                source = of_descriptor(descriptor, name)
            if source is None:
                raise ModelError(
                    f"{what} lies in {name[:200]!r}: pass weights=, the file's path or bytes (in a page the option "
                    "weights), for a model given as bytes reads no files"
                )
            self._weights[name] = Weights([(name, source if isinstance(source, RangedFile) else byte_view(source))])
        return self._weights[name]

    def read(self, location: Location, nbytes: int, what: str) -> bytes | memoryview | RemoteRange:
        """Exactly `nbytes` bytes at a location."""
        if location.length not in (None, nbytes):
            raise ModelError(f"{what} has {location.length} bytes of external data, but needs {nbytes}")
        end = location.offset + nbytes
        self.names[location.name] = None
        if location.name in self._data:
            source = self._data[location.name]
            if isinstance(source, RangedFile):
                check_range(end, len(source), location.name, what)
                return source.range(location.offset, end)
            try:
                view = byte_view(source)
            except TypeError as error:
                raise ModelError(f"external_data[{location.name!r}] is not bytes") from error
            check_range(end, len(view), location.name, what)
            return memoryview(view)[location.offset : end]
        if self._directory is None:
            name = repr(location.name[:200])
            way = f"external_data={{{name}: data}}, where data is its bytes. Or give the path of the model"
            if ARGUMENT.in_page:
                way = f"externalData: [{{ path: {name}, data: file }}], where file is a File, a URL or bytes"
            raise ModelError(f"{what} lies in the file {name} beside the model. Pass it, too: {way}.")
        if location.name not in self._large:
            if location.name not in self._open:
                if len(self._open) == MAX_OPEN_FILES:
                    self.close()
                self._open[location.name] = open_beneath(self._directory, location.name, what)
            descriptor, size = self._open[location.name]
            check_range(end, size, location.name, what)
            if not STAYS_OPEN or size < HELD or len(self._large) == MAX_OPEN_FILES:
                return read_at(descriptor, location.offset, nbytes, what)
            self._large[location.name] = OpenFile(descriptor, location.name)
            del self._open[location.name]
        file = self._large[location.name]
        check_range(end, len(file), location.name, what)
        return file.range(location.offset, end)


def byte_view(source: Any) -> bytes | memoryview:
    """Any buffer as flat bytes, copied only where it is not contiguous."""
    if isinstance(source, bytes):
        return source
    view = memoryview(source)
    # an empty view cannot be cast
    return view.cast("B") if view.nbytes and view.c_contiguous else view.tobytes()


def check_range(end: int, size: int, name: str, what: str) -> None:
    """Raise ModelError if data up to byte `end` exceeds a file of `size` bytes."""
    if end > size:
        raise ModelError(f"{what} reaches to byte {end} of external file {name!r}, which has {size} bytes")


def read_at(descriptor: int, offset: int, nbytes: int, what: str) -> bytes:
    """`nbytes` bytes of an open file; an error where it ends before."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    parts = []
    left = nbytes
    while left:
        part = os.read(descriptor, min(left, 1 << 30))
        if not part:
            raise ModelError(f"the file that holds {what} became shorter while it was read")
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_beneath(directory: Path, name: str, what: str) -> tuple[int, int]:
    """Open a file below a directory for reading; return its descriptor, which the caller closes, and its bytes."""
    shown = name[:200]
    parts = name.split("/")
    if "\0" in name or "\\" in name or ":" in name or name.startswith("/") or ".." in parts:
        raise ModelError(
            f"{what} has external file {shown!r}: only a relative path below the model's directory is allowed"
        )
    base = os.path.realpath(directory)
    try:
        target = os.path.realpath(os.path.join(base, *parts))
        if os.path.commonpath([base, target]) != base or target == base:
            raise ModelError(f"{what} has external file {shown!r}, which leads out of the model's directory")
        descriptor = _open_parts(base, os.path.relpath(target, base).split(os.sep))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{what} has external file {shown!r}, which cannot be opened: {reason}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        kind = "has other hard links" if stat.S_ISREG(status.st_mode) else "is not a regular file"
        raise ModelError(f"{what} has external file {shown!r}, which {kind}")
    return descriptor, status.st_size


def _open_parts(base: str, parts: list[str]) -> int:
    """Open base/parts...; links were resolved, so one that is met now was put there meanwhile."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if os.open not in os.supports_dir_fd:
        return os.open(os.path.join(base, *parts), flags)
    here = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags, dir_fd=here)
    finally:
        os.close(here)
