"""Files that somebody else holds, for tests: what the page's worker does, in Python."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainweb.backend.wasm.engine import get_engine
from trainweb.model.lazy import Place
from trainweb.model.remote import RemoteFile
from trainweb.page import bridge


class Host:
    """Holds files, and counts what is read of them. If `places` are set, nothing else can be read."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.places: list[list[int]] | None = None

    def add(self, data: bytes) -> SimpleNamespace:
        """Python's view of a file."""
        index = len(self.files) + 1
        self.files[index] = data
        return SimpleNamespace(index=index, nbytes=len(data))

    def open(self, data: bytes) -> RemoteFile:
        given = self.add(data)
        return RemoteFile(given.index, given.nbytes, self)

    def read(self, index: int, offset: int, nbytes: int) -> bytes:
        assert offset >= 0 and nbytes >= 0 and offset + nbytes <= len(self.files[index])
        assert self.places is None or any(
            index == file and start <= offset and offset + nbytes <= start + size for file, start, size in self.places
        ), "it was left"
        self.reads.append((index, offset, nbytes))
        return self.files[index][offset : offset + nbytes]

    def is_transpose(self, a: Place, b: Place, rows: int, width: int, size: int) -> bool:
        word = np.dtype(f"u{size}")
        left, right = (np.frombuffer(self.files[p.index], np.uint8, p.nbytes, p.offset).view(word) for p in (a, b))
        return bool((left.reshape(rows, width) == right.reshape(width, rows).T).all())

    def seen(self, index: int) -> Any:
        """Which bytes of a file were read."""
        found = np.zeros(len(self.files[index]), bool)
        for file, offset, nbytes in self.reads:
            if file == index:
                found[offset : offset + nbytes] = True
        return found


def fill_segments(handle: int, bases: list[int]) -> Any:
    """The answer of `fill`, with the bytes that came with it in their segments, as the worker writes them."""
    text, data = bridge.fill(handle, json.dumps(bases))
    done, rest = json.loads(text)["ok"], memoryview(data)
    for segment, at, nbytes in done["rest"]:
        get_engine().write(bases[segment] + at, rest[:nbytes])
        rest = rest[nbytes:]
    assert not rest
    return done
