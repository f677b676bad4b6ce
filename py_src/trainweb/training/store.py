"""`CheckpointStore`: named checkpoints of sessions in a folder; a page has the same in its private file system.

A checkpoint is all that a session goes on from, as one file in the safetensors format, the same in Python and in pages
(web/src/worker/snapshot.ts). Its tensors are segments of kernel memory. Its metadata are the places of the parameters,
the properties and a fit's position. A header with a checksum stands before it, as web/src/storage/slots.ts has it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from trainweb import messages
from trainweb.arguments import checks_keywords, instance_of, path_of
from trainweb.checkpoint import SessionContents, fields, write_file_atomically
from trainweb.errors import CheckpointError
from trainweb.ir.layout import GRADIENTS, STATE, STATE_LAZY_RESET
from trainweb.model.checks import Limits
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.reader import load_bytes
from trainweb.model.safetensors import TensorFile
from trainweb.training.contents import (
    SEGMENTS,
    STATE_KEPT,
    check_places,
    check_state,
    go_on,
    properties_json,
    read_contents,
    read_properties,
)
from trainweb.training.parameters import Shape
from trainweb.training.session_methods import SessionMethods

if TYPE_CHECKING:
    from trainweb.training.core import SessionCore

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC, VERSION = 0x53425754, 1
HEADER = struct.Struct("<IIIIQ32s")
HEADER_BYTES = 72
"""Magic, version, sequence number, 0, length, SHA-256 of the contents, and half of the SHA-256 of all this."""
SUFFIX, LOCK = ".checkpoint", ".lock"
MAX_NAME = 180
"""Bytes of a file name, which has suffixes besides."""
ITEM = 4
FORMAT = "trainweb-session-1"
"""Name of the format in the metadata; another number is another layout."""
LONGEST_NAME = 40
"""Letters of an optimizer's name that a message shows."""


def open_snapshot(data: bytes) -> TensorFile:
    """Read a file. Raise CheckpointError if it is none."""
    snapshot = TensorFile.from_bytes(data)
    form = snapshot.metadata.get("format", "none")
    if form != FORMAT:
        raise messages.NO_SNAPSHOT(actual=form[:LONGEST_NAME], expected=FORMAT)
    return snapshot


def take_snapshot(core: SessionCore) -> TensorFile:
    """Return the contents of a session. Gradients are included unless the next train step overwrites them."""
    core._check()
    if core.parameters.is_nominal:
        raise messages.NOMINAL(action="save")
    host, tensors = core.host, dict[str, Tensor]()
    for name, segment in SEGMENTS.items():
        nbytes = host.sizes[segment]
        if nbytes and (segment != GRADIENTS or not host.read_state(STATE_LAZY_RESET)):
            data = host.read_segment(segment, 0, nbytes)
            tensors[name] = Tensor(name, "float32", (nbytes // ITEM,), data)
    tensors["state"] = Tensor("state", "uint8", (STATE_KEPT,), host.read_segment(STATE, 0, STATE_KEPT))
    properties = json.dumps(properties_json(core.parameters.properties), ensure_ascii=False)
    metadata = {"format": FORMAT, "parameters": places(core), "properties": properties}
    metadata |= {name: getattr(core.layout, name) for name in ("optimizer", "scaling", "constants")}
    return TensorFile(tensors, metadata)


def places(core: SessionCore) -> str:
    """Names, shapes, places and types of the parameters: a session takes back what has the same."""
    slots = core.layout.slots.values()
    listed = [[s.name, list(s.shape), s.offset, s.trainable_offset, s.dtype] for s in slots]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def read_snapshot(core: SessionCore, snapshot: TensorFile) -> SessionContents:
    """Check everything that a session takes of a snapshot; nothing is changed.

    Parameters, gradients and moments may be NaN or infinity, as in the session that was saved. Raise CheckpointError if
    it is of a session with other parameters or another optimizer, or was changed.
    """
    core._check()
    check_places(fields.parse(snapshot.metadata, "parameters"), json.loads(places(core)))
    stored, mine = snapshot.metadata.get("optimizer", ""), core.layout.optimizer
    if stored and mine and stored != mine:
        raise messages.OTHER_OPTIMIZER(stored=stored, own=mine)
    segments: dict[int, memoryview] = {}
    for name, segment in SEGMENTS.items():
        nbytes, tensor = core.host.sizes[segment], snapshot.tensors.get(name)
        if tensor is None and (name == "gradients" or not nbytes):
            tensor = Tensor(name, "float32", (nbytes // ITEM,), bytes(nbytes))
        if tensor is None or tensor.dtype != "float32" or tensor.nbytes != nbytes:
            raise messages.OTHER_SNAPSHOT(what="parameters" if name == "parameters" else "optimizer state")
        segments[segment] = memoryview(tensor.data)
    state = snapshot.tensors.get("state")
    if state is None or state.dtype != "uint8" or state.nbytes != STATE_KEPT:
        fields.refuse("" if state else fields.MISSING, "state", f"{STATE_KEPT} bytes")
    check_state(bytes(state.data))

    def read(name: str, segment: int, offset: int, shape: Shape, dtype: str) -> Tensor:
        return Tensor(name, dtype, shape, segments[segment][offset : offset + ITEM_SIZE[dtype] * prod(shape)])

    origin, layout = replace(core.parameters.origin, is_nominal=False), core.layout
    contents = read_contents(origin, layout, read, bytes(state.data), has_optimizer=True)
    # Gradients that the next step overwrites are zeros, as in a new session.
    contents.gradients = {
        s.name: read(s.name, GRADIENTS, 4 * s.trainable_offset, s.shape, "float32") for s in layout.trained()
    }
    contents.properties = read_properties(fields.parse(snapshot.metadata, "properties"))
    contents.scaling, contents.constants = (snapshot.metadata.get(name, "") for name in ("scaling", "constants"))
    return contents


def load_checkpoint(core: SessionCore, file: bytes | str | Path) -> None:
    """Continue a session from a file of `save`, or from the contents of a store's checkpoint."""
    data, _ = load_bytes(file, Limits(), "checkpoint", CheckpointError)
    if data[7:9] == b"\0{":  # safetensors
        go_on(core.parameters, read_snapshot(core, open_snapshot(bytes(data[0 : len(data)]))))
    else:
        core.load_checkpoint(file)


def make_header(contents: bytes) -> bytes:
    """Return the header of a file's contents."""
    start = HEADER.pack(MAGIC, VERSION, 1, 0, len(contents), hashlib.sha256(contents).digest())
    return start + hashlib.sha256(start).digest()[: HEADER_BYTES - len(start)]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """An entry of `CheckpointStore.list`.

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


@checks_keywords
class CheckpointStore:
    """Named checkpoints, each with all that exact resumption takes.

    A checkpoint is written so that a crash at any moment leaves the old or the new one, and has a checksum. Its
    contents are the same file in Python and in pages: `read` of one and `write` of the other move a training.

    Parameters
    ----------
    folder : str or path
        Where they are; made when the first is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = path_of("folder", folder)

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.folder)!r})"

    def save(self, session: SessionMethods, name: str) -> None:
        """Keep what a session is made of now: parameters, moments, rate, random numbers, accumulated gradients.

        Parameters
        ----------
        session : TrainingSession
            What is kept.
        name : str
            The checkpoint.

        Raises
        ------
        StorageError
            There is no room, or a fit has the checkpoint; the one before is intact.
        CheckpointError
            The session is of a nominal checkpoint, which has no values yet.
        """
        contents = take_snapshot(_core(session)).to_bytes()
        with self._locked(name):
            self._write(name, contents)

    def load(self, session: SessionMethods, name: str) -> None:
        """Have a session go on from a checkpoint.

        Raises
        ------
        StorageError
            There is no checkpoint of this name.
        CheckpointError
            It is damaged, or of a session with other parameters, optimizer, constants or scaling; nothing was changed.
        """
        core = _core(session)
        go_on(core.parameters, read_snapshot(core, open_snapshot(self.read(name))))

    def list(self) -> list[StoredCheckpoint]:
        """Return the checkpoints sorted by name: `name`, `nbytes` and `written` of each."""
        entries = []
        for path in self.folder.glob("*" + SUFFIX):
            if not path.name.startswith("."):
                status = path.stat()
                written = datetime.fromtimestamp(status.st_mtime, UTC)
                name = unquote(path.name.removesuffix(SUFFIX))
                entries.append(StoredCheckpoint(name, max(status.st_size - HEADER_BYTES, 0), written))
        return sorted(entries, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        """Remove a checkpoint, if there is one of this name.

        Raises
        ------
        StorageError
            A fit has it.
        """
        with self._locked(name):
            self._path(name).unlink(missing_ok=True)

    def rename(self, name: str, to: str) -> None:
        """Call a checkpoint by another name.

        Parameters
        ----------
        name : str
            As it is called.
        to : str
            As it is to be called.

        Raises
        ------
        StorageError
            There is none, there is one of the other name already, or a fit has one of them.
        """
        with self._locked(name), self._locked(to) if to != name else contextlib.nullcontext():
            if not self._path(name).exists():
                raise messages.NO_CHECKPOINT(name=name, folder=str(self.folder))
            if self._path(to).exists():
                raise messages.CHECKPOINT_EXISTS(name=to, folder=str(self.folder))
            os.replace(self._path(name), self._path(to))

    def read(self, name: str) -> bytes:
        """The contents of a checkpoint, for `write` of another store.

        Raises
        ------
        StorageError
            There is no checkpoint of this name.
        CheckpointError
            It is damaged.
        """
        contents = self._find(name)
        if contents is None:
            raise messages.NO_CHECKPOINT(name=name, folder=str(self.folder))
        return contents

    def write(self, name: str, contents: bytes) -> None:
        """Keep contents that `read` of a store gave.

        Parameters
        ----------
        name : str
            The checkpoint.
        contents : bytes
            What `read` gave.

        Raises
        ------
        CheckpointError
            They are none.
        StorageError
            There is no room, or a fit has the checkpoint.
        """
        open_snapshot(instance_of(bytes, "contents", contents))
        with self._locked(name):
            self._write(name, contents)

    # The files, which a fit keeps others from while it runs.

    def _find(self, name: str) -> bytes | None:
        """The contents of a checkpoint; None if there is none. Raise CheckpointError if it is damaged."""
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        contents = data[HEADER_BYTES:]
        if len(data) < HEADER_BYTES or data[:HEADER_BYTES] != make_header(contents):
            raise messages.CHECKPOINT_DAMAGED(name=name, folder=str(self.folder))
        return contents

    def _write(self, name: str, contents: bytes) -> None:
        """Write contents behind their header. Raise StorageError without room; the checkpoint is then as before."""
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

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Keep other processes from a checkpoint. Raise StorageError if one of them, or another fit, has it."""
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
            raise messages.BAD_CHECKPOINT_NAME(most=MAX_NAME, actual=name)
        # A name that starts with a dot is one of a file that is on its way.
        return self.folder / ((f"%2E{coded[1:]}" if coded.startswith(".") else coded) + SUFFIX)


def _core(session: SessionMethods) -> SessionCore:
    if not isinstance(session, SessionMethods):
        raise TypeError(f"'session' must be a TrainingSession, got {type(session).__name__}.")
    return session._core
