"""`CheckpointStore`: named checkpoints of sessions in a folder; a page has the same in its private file system."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.arguments import checks_keywords, instance_of, path_of
from trainweb.checkpoint.store import NamedFiles, StoredCheckpoint
from trainweb.training.session_methods import SessionMethods
from trainweb.training.snapshot import open_snapshot, restore_snapshot, take_snapshot

if TYPE_CHECKING:
    from trainweb.training.core import SessionCore


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
        self.files = NamedFiles(path_of("folder", folder))

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.files.folder)!r})"

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
        with self.files.locked(name):
            self.files.write(name, contents)

    def load(self, session: SessionMethods, name: str) -> None:
        """Have a session go on from a checkpoint.

        Raises
        ------
        StorageError
            There is no checkpoint of this name.
        CheckpointError
            It is damaged, or of a session with other parameters or another optimizer; nothing was changed.
        """
        restore_snapshot(_core(session), open_snapshot(self.read(name)))

    def list(self) -> list[StoredCheckpoint]:
        """Return the checkpoints sorted by name: `name`, `nbytes` and `written` of each."""
        return self.files.list()

    def delete(self, name: str) -> None:
        """Remove a checkpoint, if there is one of this name.

        Raises
        ------
        StorageError
            A fit has it.
        """
        self.files.delete(name)

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
        self.files.rename(name, to)

    def read(self, name: str) -> bytes:
        """The contents of a checkpoint, for `write` of another store.

        Raises
        ------
        StorageError
            There is no checkpoint of this name.
        CheckpointError
            It is damaged.
        """
        contents = self.files.read(name)
        if contents is None:
            raise messages.NO_CHECKPOINT(name=name, folder=str(self.files.folder))
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
        with self.files.locked(name):
            self.files.write(name, contents)


def _core(session: SessionMethods) -> SessionCore:
    if not isinstance(session, SessionMethods):
        raise TypeError(f"'session' must be a TrainingSession, got {type(session).__name__}.")
    return session._core
