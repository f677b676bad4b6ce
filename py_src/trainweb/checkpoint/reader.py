"""Checkpoint file -> `SessionContents`. The file is untrusted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from .. import messages
from ..errors import CheckpointError, LimitError, TrainwebError
from ..model.checks import MAX_RANK, ONNX_DTYPES, Limits, check_data, check_shape, describe_bytes
from ..model.external_data import check_range, open_beneath, read_at
from ..model.flatbuffer import Buffer, Table
from ..model.graph import ITEM_SIZE, Tensor
from ..model.reader import load_bytes
from ..model.remote import RangedFile, RemoteRange, tensor_of
from .contents import Property, SessionContents

IDENTIFIER = b"ODTC"
ONNX_START = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x32\x3a\x42]")
"""Version of the IR, and the next field of ModelProto that has a text or a message."""
VERSION = 2
"""Written by ONNX Runtime training 1.17 to 1.19, and here."""

GROUP = "group0"
"""Name of the one optimizer group."""

T = TypeVar("T")


def read_checkpoint(source: Any, *, limits: Limits | Mapping[str, int] | None = None) -> SessionContents:
    """Read a checkpoint from bytes, a path or a RangedFile.

    Only a checkpoint from a path may have tensors in a file beside it, `<path>.data`. Tensors are views of the bytes of
    the file; large ones of a RangedFile stay there. Of `limits`, `file_bytes` and, for tensors in a file beside it,
    `arena_bytes` count. Raise CheckpointError for another format or version and for a corrupt file, and LimitError
    beyond the limits.
    """
    limits = Limits.of(limits)
    data, directory = load_bytes(source, limits, "checkpoint", CheckpointError)
    beside = None
    if directory is not None:
        beside = _FileBeside(directory, Path(source).name + ".data", limits)
    try:
        return _read(data, beside)
    finally:
        if beside:
            beside.close()


class _FileBeside:
    """The file `<path>.data`, opened when the first tensor lies there."""

    def __init__(self, directory: Path, name: str, limits: Limits) -> None:
        self._directory, self._name, self._left = directory, name, limits.arena_bytes
        self._descriptor = -1
        self._size = 0

    def read(self, offset: int, nbytes: int, what: str) -> bytes:
        """`nbytes` bytes at an offset."""
        self._left -= nbytes
        if self._left < 0:
            raise LimitError(f"{what} makes the tensors in {self._name!r} exceed the limit on arena bytes")
        if self._descriptor < 0:
            self._descriptor, self._size = open_beneath(self._directory, self._name, what)
        check_range(offset + nbytes, self._size, self._name, what)
        return read_at(self._descriptor, offset, nbytes, what)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _read(data: bytes | memoryview | RangedFile, beside: _FileBeside | None) -> SessionContents:
    if ONNX_START.match(bytes(data[:3])):
        raise messages.MODEL_AS_CHECKPOINT()
    try:
        buffer = Buffer(data, "checkpoint", CheckpointError)
        if buffer.identifier != IDENTIFIER:
            raise CheckpointError(f"the file identifier is {buffer.identifier!r}, not {IDENTIFIER!r}")
    except CheckpointError as error:
        raise CheckpointError(f"not a checkpoint: {error}; {describe_bytes(data)}") from error
    root = buffer.root()
    version = root.scalar(0, "i", 0, "the version")
    if version != VERSION:
        raise CheckpointError(
            f"Checkpoint is invalid. Checkpoint version {version} is not supported; version {VERSION} is."
        )
    module = root.table(1, "the module state")
    if module is None:
        raise CheckpointError("the checkpoint has no module state, so no parameters")
    nominal = module.scalar(2, "?", False, "the nominal flag")
    if not module.scalar(3, "?", False, "the external data flag"):
        beside = None
    contents = SessionContents.of(
        _parameters(module, 0, "trainable parameter", nominal, beside),
        _parameters(module, 1, "frozen parameter", nominal, beside),
        is_nominal=nominal,
    )
    groups = list(root.tables(2, "optimizer group") or ())
    names = [_name(table) for table in groups]
    if names not in ([], [GROUP]):
        raise CheckpointError(
            f"the checkpoint has the optimizer groups {', '.join(map(repr, names)):.200}; only {GROUP!r} is known"
        )
    for table in groups:
        _read_optimizer(contents, table, beside)
    bag = root.table(3, "the property bag")
    contents.properties = _properties(bag) if bag else {}
    contents.scaling = root.string(5, "the scaling of the adapters") or ""
    contents.constants = root.string(6, "the digest of the constants") or ""
    if (exact := root.table(4, "the state to resume from")) is not None:
        _read_exact(contents, exact, beside)
    return contents


def _named(tables: Iterable[Table] | None, what: str, beside: _FileBeside | None) -> dict[str, Tensor]:
    """The tensors of a list by name. Raise CheckpointError if two have one name."""
    tensors: dict[str, Tensor] = {}
    for tensor in (_tensor(table, beside) for table in tables or ()):
        if tensor.name in tensors:
            raise CheckpointError(f"the checkpoint has two {what} named {tensor.name!r}")
        tensors[tensor.name] = tensor
    return tensors


def _name(table: Table, field: int = 0) -> str:
    name = table.string(field, f"the name of {table.what}")
    if not name:
        raise CheckpointError(f"the checkpoint is corrupt: {table.what} has no name")
    return name


def _parameters(module: Table, field: int, what: str, nominal: bool, beside: _FileBeside | None) -> Iterable[Tensor]:
    tables = module.tables(field, what)
    if tables is None:
        raise CheckpointError(f"the checkpoint is invalid: the list of {what}s is missing")
    return (_nominal(table) if nominal else _tensor(table, beside) for table in tables)


def _nominal(table: Table) -> Tensor:
    name = _name(table)
    dtype = _dtype(table, name)
    if table.numbers(2, "q", MAX_RANK, f"dims of {name!r}") or table.blob(4, f"data of {name!r}"):
        raise CheckpointError(f"the checkpoint is nominal, but parameter {name!r} has a shape or data")
    return Tensor(name, dtype, (), b"")


def _dtype(table: Table, name: str) -> str:
    code = table.scalar(3, "i", 0, f"data type of {name!r}")
    dtype = ONNX_DTYPES.get(code, f"{code}")
    if dtype not in ITEM_SIZE:
        raise CheckpointError(f"tensor {name!r} has data type {dtype}, which is not supported")
    return dtype


def _tensor(table: Table, beside: _FileBeside | None) -> Tensor:
    name = _name(table)
    what = f"tensor {name!r}"
    dtype = _dtype(table, name)
    dims = table.numbers(2, "q", MAX_RANK, f"dims of {what}")
    raw = table.blob(4, f"data of {what}")
    offset = table.scalar(6, "q", -1, f"external offset of {what}")
    try:
        shape = check_shape(dims, what)
        if offset < 0:
            data: bytes | memoryview | RemoteRange = b"" if raw is None else raw
        elif raw:
            raise CheckpointError(f"{what} has both data and an offset in a file beside the checkpoint")
        elif beside is None:
            raise CheckpointError(
                f"{what} lies in a file beside the checkpoint, which is only read for a "
                "checkpoint given as "
                "a path that says it has external data"
            )
        else:
            data = beside.read(offset, prod(shape) * ITEM_SIZE[dtype], what)
        check_data(dtype, shape, data, what)
    except (CheckpointError, LimitError):
        raise
    except TrainwebError as error:
        raise CheckpointError(f"the checkpoint is corrupt: {error}") from error
    return tensor_of(name, dtype, shape, data)


def _read_optimizer(contents: SessionContents, table: Table, beside: _FileBeside | None) -> None:
    contents.has_optimizer = True
    contents.step = table.scalar(1, "q", 0, f"step of {table.what}")
    contents.initial_lr = table.scalar(2, "f", 0.0, f"initial learning rate of {table.what}")
    if contents.step < 0:
        raise CheckpointError(f"optimizer group {GROUP!r} has step {contents.step}, which is negative")
    if not math.isfinite(contents.initial_lr):
        raise CheckpointError(f"optimizer group {GROUP!r} has initial learning rate {contents.initial_lr}")
    for entry in table.tables(3, f"state of group {GROUP!r}: parameter") or ():
        parameter = _name(entry)
        if parameter in contents.moments:
            raise CheckpointError(f"optimizer group {GROUP!r} has two states for parameter {parameter!r}")
        tables = entry.tables(1, f"momentum of {parameter!r}:")
        contents.moments[parameter] = _named(tables, f"momentums of {parameter!r}", beside)


def _read_exact(contents: SessionContents, table: Table, beside: _FileBeside | None) -> None:
    contents.is_exact = True
    present = table.scalar(2, "i", 0, "what is to be resumed")
    warmup, total, seed, position = (table.scalar(field, "q", 0, table.what) for field in range(3, 7))
    if min(warmup, total) < 0:
        raise CheckpointError(f"the checkpoint has a schedule of {warmup} and {total} steps")
    contents.reset = table.scalar(0, "?", False, "the reset flag")
    contents.learning_rate = table.scalar(1, "f", 0.0, "the learning rate")
    contents.schedule = (warmup, total) if present & 1 else None
    contents.random = (seed % 2**64, position % 2**64) if present & 2 else None
    contents.gradients = _named(table.tables(7, "gradient"), "gradients", beside)
    contents.exact = _named(table.tables(8, "parameter in float32"), "parameters in float32", beside)
    contents.optimizer = table.string(9, "the optimizer's name") or ""


def _properties(bag: Table) -> dict[str, Property]:
    kinds: tuple[tuple[str, Callable[[Table, str], Property]], ...] = (
        ("int property", lambda table, what: table.scalar(1, "q", 0, what)),
        ("float property", lambda table, what: table.scalar(1, "f", 0.0, what)),
        ("string property", lambda table, what: table.string(1, what) or ""),
    )
    properties: dict[str, Property] = {}
    for field, (what, value) in enumerate(kinds):
        for table in bag.tables(field, what) or ():
            name = _name(table)
            if name in properties:
                raise CheckpointError(f"the checkpoint has two properties named {name!r}")
            properties[name] = value(table, f"the value of property {name!r}")
    return properties
