"""`SessionContents` -> file, as ONNX Runtime training reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .. import messages
from ..errors import CheckpointError
from ..model.checks import DTYPE_CODES, INT32_MAX, check_data
from ..model.graph import ITEM_SIZE, Tensor
from ..model.lazy import LazyTensor, Part, data_part, join_parts, nbytes_of
from .contents import Property, SessionContents
from .files import write_file_atomically
from .reader import GROUP, IDENTIFIER, VERSION

INT64_RANGE = range(-(2**63), 2**63)

BESIDE_FROM = 1800 * 2**20
"""Bytes above which a checkpoint has a second file, as in ONNX Runtime, which keeps away from what offsets can hold."""
SMALLEST_BESIDE = 64
"""Bytes from which on a tensor lies there."""

TENSOR_OVERHEAD = 256
"""Bytes beside name and data, generously."""


def write_checkpoint(contents: SessionContents, *, generated: bool = False) -> bytes:
    """The file as bytes; see `checkpoint_parts`."""
    return join_parts(checkpoint_parts(contents, generated=generated))


def write_checkpoint_file(path: str | Path, contents: SessionContents) -> None:
    """Write a checkpoint to a file, as a whole or not at all. Raise OSError, and as `checkpoint_parts`.

    A checkpoint larger than `BESIDE_FROM` has its tensors in a second file, `<path>.data`, as in ONNX Runtime. Two
    files cannot be replaced at once. The first of two old files is removed before the second is written, so that a
    crash leaves no checkpoint rather than a mixed one.
    """
    path = Path(path)
    data = path.with_name(path.name + ".data")
    if _size(contents) <= BESIDE_FROM:
        write_file_atomically(path, checkpoint_parts(contents))
        return
    beside: list[Part] = []
    parts = checkpoint_parts(contents, beside=beside)
    if data.exists():
        path.unlink(missing_ok=True)
    write_file_atomically(data, beside)
    write_file_atomically(path, parts)


def checkpoint_parts(
    contents: SessionContents, *, generated: bool = False, beside: list[Part] | None = None
) -> list[Part]:
    """Write a checkpoint; the same content gives the same bytes. No copy of the data is made.

    Return the file from start to end: bytes, and tensors whose data lies elsewhere. Nominal contents are written
    without shapes and data. `generated` is the form that artifact generation writes: parameters keep their order, and
    there is no list of optimizer groups unless there are some. Otherwise everything is sorted by name, and the list is
    always there. `beside` takes the data of tensors of 64 bytes and more, for the file `<path>.data`. Raise
    CheckpointError for two parameters of one name, data that does not fit a shape, or a property that the file cannot
    hold. Raise LimitError beyond 2 GiB.
    """
    size = _size(contents)
    if beside is None and size > INT32_MAX:
        raise messages.CHECKPOINT_TOO_LARGE(nbytes=size, limit=INT32_MAX)
    builder = _builder()
    writer = _Writer(builder, contents.is_nominal, not generated, beside)
    resume = writer.exact(contents) if contents.is_exact else None
    bag = writer.properties(contents.properties)
    groups = None
    if contents.has_optimizer or not generated:
        groups = writer.offsets([writer.optimizer(contents)] if contents.has_optimizer else [])
    module = writer.module(contents)
    texts = [builder.CreateString(text) if text else None for text in (contents.scaling, contents.constants)]
    offsets = [module, groups, bag, resume, *texts]
    while len(offsets) > 3 and offsets[-1] is None:
        offsets.pop()
    builder.StartObject(1 + len(offsets))
    builder.PrependInt32Slot(0, VERSION, 0)
    for field, offset in enumerate(offsets, 1):
        if offset is not None:
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    builder.Finish(builder.EndObject(), IDENTIFIER)
    parts: list[Part] = builder.parts()
    return parts


class _Bytes(bytearray):
    """The bytes that a builder has written.

    Data that is left out counts, for the builder takes offsets from the length.
    """

    left_out = 0

    def __len__(self) -> int:
        return super().__len__() + self.left_out


def _builder() -> Any:
    """A `flatbuffers.Builder` that can leave data out of its bytes."""
    # imported here, for it imports numpy where that is installed, and reading must not
    from flatbuffers import Builder  # type: ignore[import-untyped]

    class PartsBuilder(Builder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(0)
            self.Bytes = _Bytes(1024)
            self.head = 1024
            self._left_out: list[tuple[int, Part]] = []

        def vector_of(self, part: Part) -> int:
            """A vector of bytes, which are left out. StartVector would make room for them."""
            nbytes = nbytes_of(part)
            padding = -(self.Offset() + nbytes) % 4
            self.Prep(1, padding)
            self.Pad(padding)
            self._left_out.append((bytearray.__len__(self.Bytes) - self.head, part))
            self.Bytes.left_out += nbytes
            self.Prep(4, 0)
            self.nested, self.vectorNumElems = True, nbytes
            at: int = self.EndVector()
            return at

        def GrowByteBuffer(self) -> None:  # noqa: N802
            old = self.Bytes
            size = bytearray.__len__(old)
            self.Bytes = _Bytes(2 * size)
            self.Bytes[size:] = old
            self.Bytes.left_out = old.left_out

        growByteBuffer = GrowByteBuffer  # its name before version 25 # noqa: N815

        def parts(self) -> list[Part]:
            """The file."""
            pieces: list[Part] = []
            view, at = memoryview(self.Bytes), self.head
            for written_after, part in reversed(self._left_out):
                end = len(view) - written_after
                pieces += [view[at:end], part]
                at = end
            return [part for part in (*pieces, view[at:]) if nbytes_of(part)]

    return PartsBuilder()


def _tensors(contents: SessionContents) -> Iterable[Tensor]:
    yield from contents.parameters.values()
    for moments in contents.moments.values() if contents.has_optimizer else ():
        yield from moments.values()
    if contents.is_exact:
        yield from contents.gradients.values()
        yield from contents.exact.values()


def _size(contents: SessionContents) -> int:
    """Bytes of the file, at most."""
    size = 1024
    for tensor in _tensors(contents):
        nbytes = tensor.nbytes if isinstance(tensor, LazyTensor) else len(tensor.data)
        size += nbytes + 4 * len(tensor.name) + TENSOR_OVERHEAD
    return size


class _Writer:
    """Writes tables; a flatbuffer is built from its leaves to its root."""

    def __init__(self, builder: Any, nominal: bool, sort: bool, beside: list[Part] | None) -> None:
        self._builder, self._nominal, self._sort, self._beside = builder, nominal, sort, beside
        self._at = 0

    def table(
        self, n_fields: int, offsets: Iterable[tuple[int, int]], *scalars: tuple[str, int, Any], default: int = 0
    ) -> int:
        """A table of offsets (field, offset) and scalars (method, field, value), which are left out at the default."""
        builder = self._builder
        builder.StartObject(n_fields)
        for method, field, value in scalars:
            # what equals the default is left out, but -0.0 equals 0 and must not be
            getattr(builder, method)(field, value, None if isinstance(value, float) else default)
        for field, target in offsets:
            builder.PrependUOffsetTRelativeSlot(field, target, 0)
        offset: int = builder.EndObject()
        return offset

    def tables(self, items: Iterable[Any], key: Callable[[Any], str], write: Callable[[Any], int]) -> int:
        """A vector of tables, sorted by name if that is asked for."""
        items = sorted(items, key=key) if self._sort else list(items)
        return self.offsets([write(item) for item in items])

    def offsets(self, offsets: list[int]) -> int:
        """A vector of tables that are written."""
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for table in reversed(offsets):
            builder.PrependUOffsetTRelative(table)
        offset: int = builder.EndVector()
        return offset

    def module(self, contents: SessionContents) -> int:
        """ModuleState."""
        if "" in contents.parameters:
            raise CheckpointError("a parameter of the checkpoint has no name")
        write = self.nominal if self._nominal else self.tensor
        trainable = self.tables(contents.trained, lambda tensor: tensor.name, write)
        frozen = self.tables(contents.frozen, lambda tensor: tensor.name, write)
        flags = ("PrependBoolSlot", 2, self._nominal), ("PrependBoolSlot", 3, self._beside is not None)
        return self.table(4, ((0, trainable), (1, frozen)), *flags)

    def nominal(self, tensor: Tensor) -> int:
        """Add a Tensor with only its name and dtype."""
        return self._tensor(tensor.name, tensor.dtype, (), b"")

    def tensor(self, tensor: Tensor) -> int:
        """A Tensor."""
        if tensor.dtype not in ITEM_SIZE:
            raise CheckpointError(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}, which is not supported")
        data = data_part(tensor)
        if not isinstance(data, LazyTensor):
            check_data(tensor.dtype, tensor.shape, data, f"tensor {tensor.name!r}", CheckpointError)
        return self._tensor(tensor.name, tensor.dtype, tensor.shape, data)

    def _tensor(self, name: str, dtype: str, shape: tuple[int, ...], data: Part) -> int:
        builder = self._builder
        name_at = builder.CreateString(name)
        builder.StartVector(8, len(shape), 8)
        for size in reversed(shape):
            builder.PrependInt64(size)
        dims_at = builder.EndVector()
        code = ("PrependInt32Slot", 3, DTYPE_CODES[dtype])
        if self._beside is None or nbytes_of(data) < SMALLEST_BESIDE:
            return self.table(7, ((0, name_at), (2, dims_at), (4, builder.vector_of(data))), code)
        offset = ("PrependInt64Slot", 6, self._at)
        self._beside.append(data)
        self._at += nbytes_of(data)
        return self.table(7, ((0, name_at), (2, dims_at)), code, offset, default=-1)

    def optimizer(self, contents: SessionContents) -> int:
        """OptimizerGroup."""
        if contents.step not in INT64_RANGE:
            raise CheckpointError(f"step {contents.step} of optimizer group {GROUP!r} is no int64")
        states = self.tables(contents.moments.items(), lambda item: item[0], lambda item: self.state(*item))
        return self.table(
            4,
            ((0, self._builder.CreateString(GROUP)), (3, states)),
            ("PrependInt64Slot", 1, contents.step),
            ("PrependFloat32Slot", 2, _float32(contents.initial_lr, "the initial learning rate")),
        )

    def state(self, parameter: str, momentums: dict[str, Tensor]) -> int:
        """ParameterOptimizerState."""
        named = [tensor.renamed(name) for name, tensor in momentums.items()]
        tensors = self.tables(named, lambda tensor: tensor.name, self.tensor)
        return self.table(2, ((0, self._builder.CreateString(parameter)), (1, tensors)))

    def exact(self, contents: SessionContents) -> int:
        """Write what exact resumption takes, a table of ours; seed and position are kept as int64 of the same bits."""
        vectors = [
            (field, self.tables([t.renamed(name) for name, t in tensors.items()], lambda t: t.name, self.tensor))
            for field, tensors in ((7, contents.gradients), (8, contents.exact))
            if tensors or field == 7
        ]
        if contents.optimizer:
            vectors.append((9, self._builder.CreateString(contents.optimizer)))
        warmup, total = contents.schedule or (0, 0)
        seed, position = contents.random or (0, 0)
        return self.table(
            1 + max(field for field, _ in vectors),
            vectors,
            ("PrependBoolSlot", 0, contents.reset),
            ("PrependFloat32Slot", 1, float(contents.learning_rate)),
            ("PrependInt32Slot", 2, (contents.schedule is not None) + 2 * (contents.random is not None)),
            ("PrependInt64Slot", 3, warmup),
            ("PrependInt64Slot", 4, total),
            ("PrependInt64Slot", 5, _signed(seed)),
            ("PrependInt64Slot", 6, _signed(position)),
        )

    def properties(self, properties: dict[str, Property]) -> int | None:
        """PropertyBag, None where there is nothing in it."""
        if not properties:
            return None
        kinds: tuple[list[int], list[int], list[int]] = ([], [], [])
        for name in sorted(properties) if self._sort else properties:
            value = properties[name]
            what = f"property {name!r}"
            if not name:
                raise CheckpointError("a property has no name")
            name_at = self._builder.CreateString(name)
            if isinstance(value, str):
                text_at = self._builder.CreateString(value)
                kinds[2].append(self.table(2, ((0, name_at), (1, text_at))))
            elif isinstance(value, float):
                scalar: tuple[str, int, Any] = ("PrependFloat32Slot", 1, _float32(value, what))
                kinds[1].append(self.table(2, ((0, name_at),), scalar))
            elif isinstance(value, int) and value in INT64_RANGE:
                kinds[0].append(self.table(2, ((0, name_at),), ("PrependInt64Slot", 1, int(value))))
            else:
                raise CheckpointError(f"{what} is {value!r:.80}; an int64, a float or a str is expected")
        return self.table(3, [(field, self.offsets(kind)) for field, kind in enumerate(kinds) if kind])


def _signed(value: int) -> int:
    """The int64 of the same bits as a uint64."""
    return value - 2**64 if value >= 2**63 else value


def _float32(value: float, what: str) -> float:
    """Check that float32 can hold `value`."""
    try:
        struct.pack("<f", value)
    except OverflowError as error:
        raise CheckpointError(f"{what} is {value}, which float32 cannot hold") from error
    return float(value)
