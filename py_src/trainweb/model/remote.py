"""Files that are read by ranges, so that large tensors are not in Python: in a page its worker holds them.

`detach` gives a part of a model without the data of its large tensors. In their place are references to external data,
in ONNX's own words, at a location that stands for the file itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, overload

from .checks import DTYPE_CODES, FUNCTION_NODE, GRAPH_NODE, TruncatedError, message_fields, varint
from .graph import ITEM_SIZE, NIBBLES, Tensor
from .lazy import LARGE, LazyTensor, Place
from .schema import messages

LOCATION = "trainweb:large"
"""The external file that a detached tensor names."""

WINDOW = 64 * 1024
"""Bytes that are read at once where a file is looked through."""

LONG_READ = 4 * 1024 * 1024
"""Bytes that are read at once where all of them are looked at."""

GRAPH_INITIALIZER = 5
TENSOR_DATA_TYPE, TENSOR_RAW_DATA, TENSOR_DATA_LOCATION = 2, 9, 14
IN_FILE = b"\0"
"""The location of data in the model itself: `onnx.load` writes it out where the data lay in another file before."""
PLAIN_FIELDS = {1, TENSOR_DATA_TYPE, 8, TENSOR_RAW_DATA, 12, 16}
"""Fields of a TensorProto that has its data in raw_data; one with others is left for the reader to refuse."""
DETACHED = {DTYPE_CODES[dtype] for dtype in (*ITEM_SIZE, *NIBBLES) if dtype != "bool"}
"""Data types of which nobody looks at every element."""
LENGTH_DELIMITED = 2

Form = dict[int, Any]
"""The fields of a message of ONNX in which there may be large tensors, and what they hold."""

TENSOR: Form = {}
NODE: Form = {}
GRAPH: Form = {GRAPH_NODE: NODE, GRAPH_INITIALIZER: TENSOR}
ATTRIBUTE: Form = {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH}
NODE[5] = ATTRIBUTE
FUNCTION: Form = {FUNCTION_NODE: NODE, 11: ATTRIBUTE}

MAX_DEPTH = 100
"""Messages within messages, as protobuf allows."""


class FileHost(Protocol):
    """The holder of the files."""

    def read(self, index: int, offset: int, nbytes: int) -> bytes:
        """Bytes of a file, which lie in it."""

    def is_transpose(self, a: Place, b: Place, rows: int, width: int, size: int) -> bool:
        """Return whether elements [rows, width] of `size` bytes are bit for bit the transpose of some [width, rows]."""


class RangedFile(ABC):
    """A file of so many bytes that is read by ranges."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._start, self._window = 0, b""

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the file, which lie in it."""

    @abstractmethod
    def place(self, offset: int, nbytes: int) -> Place | None:
        """The place of bytes of the file for others than Python; None if they cannot read it."""

    @abstractmethod
    def is_transpose(self, a: RemoteTensor, b: RemoteTensor) -> bool:
        """Return whether a matrix in files of this kind is the transpose of another of its type, bit for bit."""

    def __len__(self) -> int:
        return self._nbytes

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, int):
            at = key - self._start
            if not 0 <= at < len(self._window):
                self._look(key)
                at = 0
            return self._window[at]
        start, stop, _ = key.indices(self._nbytes)
        if not self._start <= start <= stop <= self._start + len(self._window):
            if stop - start > WINDOW:
                return self.read(start, stop - start)
            self._look(start)
        return self._window[start - self._start : stop - self._start]

    def _look(self, start: int) -> None:
        self._start = start
        self._window = self.read(start, min(WINDOW, self._nbytes - start))

    def range(self, start: int, stop: int) -> bytes | RemoteRange:
        """Bytes of the file; a large range stays in it."""
        return self[start:stop] if stop - start < LARGE else RemoteRange(self, start, stop - start)


class RemoteFile(RangedFile):
    """A file of so many bytes that `host` holds under the number `index`."""

    def __init__(self, index: int, nbytes: int, host: FileHost) -> None:
        super().__init__(nbytes)
        self.index, self.host = index, host

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.host.read(self.index, offset, nbytes)

    def place(self, offset: int, nbytes: int) -> Place:
        return Place("file", self.index, offset, nbytes)

    def is_transpose(self, a: RemoteTensor, b: RemoteTensor) -> bool:
        rows, width = a.shape
        assert a.place is not None and b.place is not None
        return self.host.is_transpose(a.place, b.place, rows, width, ITEM_SIZE[a.dtype])


class RemoteRange:
    """A range of a file."""

    def __init__(self, file: RangedFile, offset: int, nbytes: int) -> None:
        self.file, self.offset, self._nbytes = file, offset, nbytes

    def __len__(self) -> int:
        return self._nbytes

    def __bytes__(self) -> bytes:
        return self.file.read(self.offset, self._nbytes)

    def read_into(self, out: memoryview) -> None:
        """Fill a buffer of as many bytes."""
        out[:] = bytes(self)


class RemoteTensor(LazyTensor):
    """A tensor whose data lies in a file that is read by ranges."""

    __slots__ = ("file", "offset")

    def __init__(
        self, name: str, dtype: str, shape: tuple[int, ...], data: RemoteRange, notes: dict[str, str] | None = None
    ) -> None:
        place = data.file.place(data.offset, len(data))
        super().__init__(name, dtype, shape, data.read_into, place, notes)
        self.file, self.offset = data.file, data.offset

    def read(self, start: int, nbytes: int) -> bytes:
        """Bytes of its data."""
        return self.file.read(self.offset + start, nbytes)

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, self.nbytes, LONG_READ):
            yield self.read(start, min(LONG_READ, self.nbytes - start))

    def renamed(self, name: str) -> Tensor:
        data = RemoteRange(self.file, self.offset, self.nbytes)
        return RemoteTensor(name, self.dtype, self.shape, data, self.notes)

    def is_uniform(self) -> bool:
        """Return whether all elements are the same, bit for bit."""
        item = ITEM_SIZE[self.dtype]
        first, start, step = self.read(0, item), 0, WINDOW
        while start < self.nbytes:
            strip = self.read(start, min(step, self.nbytes - start))
            if strip != first * (len(strip) // item):
                return False
            # In most tensors the first elements differ already.
            start, step = start + len(strip), LONG_READ
        return True

    def is_transpose(self, other: RemoteTensor) -> bool:
        """Return whether this matrix is the transpose of another of its type, bit for bit."""
        return self.file.is_transpose(self, other)


def tensor_of(name: str, dtype: str, shape: tuple[int, ...], data: bytes | memoryview | RemoteRange) -> Tensor:
    """A tensor of these bytes, wherever they are."""
    if isinstance(data, RemoteRange):
        return RemoteTensor(name, dtype, shape, data)
    return Tensor(name, dtype, shape, data)


def detach(file: RangedFile, start: int, stop: int, form: Form) -> bytes:
    """A message with references instead of the data of its large tensors: initializers, and values of attributes."""
    if stop - start < LARGE:
        return file[start:stop]
    try:
        detached = _detached_tensor(file, start, stop) if form is TENSOR else _detached(file, start, stop, form, 0)
    except TruncatedError:
        detached = None
    return file[start:stop] if detached is None else detached


def _detached(file: RangedFile, start: int, stop: int, form: Form, depth: int) -> bytes:
    """A message without the data of the large tensors in it."""
    result, copied = bytearray(), start
    for field, kind, begin, at, end in message_fields(file, start, stop):
        inner = form.get(field)
        if inner is None or kind != LENGTH_DELIMITED or end - at < LARGE or depth == MAX_DEPTH:
            continue
        try:
            changed = _detached_tensor(file, at, end) if inner is TENSOR else _detached(file, at, end, inner, depth + 1)
        except TruncatedError:
            continue
        if changed is not None:
            result += file[copied:begin]
            result += varint(field << 3 | kind) + varint(len(changed)) + changed
            copied = end
    return bytes(result + file[copied:stop])


def _detached_tensor(file: RangedFile, start: int, stop: int) -> bytes | None:
    """A TensorProto without its data; None where there is too little of it, or anything unusual."""
    others, raw, dtype = bytearray(), None, 0
    try:
        for field, kind, begin, at, end in message_fields(file, start, stop):
            if field == TENSOR_DATA_LOCATION and file[at:end] == IN_FILE:
                continue
            if field not in PLAIN_FIELDS or (field == TENSOR_RAW_DATA and (raw or kind != LENGTH_DELIMITED)):
                return None
            if field == TENSOR_RAW_DATA:
                raw = at, end
                continue
            if field == TENSOR_DATA_TYPE:
                dtype = file[at] if end == at + 1 else 0
            others += file[begin:end]
    except TruncatedError:
        return None
    if raw is None or raw[1] - raw[0] < LARGE or dtype not in DETACHED:
        return None
    reference = messages().TensorProto()
    refer(reference, raw[0], raw[1] - raw[0])
    return bytes(others + reference.SerializeToString())


def refer(tensor: Any, offset: int, nbytes: int) -> None:
    """Make bytes of the file itself the data of a TensorProto, as external data at `LOCATION`."""
    for key, value in (("location", LOCATION), ("offset", offset), ("length", nbytes)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    tensor.data_location = tensor.EXTERNAL
