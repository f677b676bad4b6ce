"""`Checkpoint` -> file, as ONNX Runtime training reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import CheckpointError, LimitError
from ..model.checks import DTYPE_CODES, INT32_MAX, check_data
from ..model.graph import ITEM_SIZE, Tensor
from .content import Checkpoint, LazyTensor, OptimizerGroup, Property
from .reader import IDENTIFIER, VERSION

INT64_RANGE = range(-(2**63), 2**63)

TENSOR_OVERHEAD = 256
"""Bytes beside name and data, generously, to allocate the file at once."""


def write_checkpoint(checkpoint: Checkpoint, *, generated: bool = False) -> bytes:
    """The file as bytes; see `checkpoint_buffer`."""
    return bytes(checkpoint_buffer(checkpoint, generated=generated))


def checkpoint_buffer(checkpoint: Checkpoint, *, generated: bool = False) -> memoryview:
    """Write a checkpoint; the same content gives the same bytes. Besides the file no copy of the data is made.

    Parameters
    ----------
    checkpoint : Checkpoint
        A nominal one is written without shapes and data, whatever its tensors have.
    generated : bool
        The form that artifact generation writes: parameters keep their order, and there is no list
        of optimizer groups unless there are some. The default is the form of a saved training
        state: everything sorted by name, the list of groups always there.

    Returns
    -------
    memoryview
        The file.

    Raises
    ------
    CheckpointError
        Two parameters have one name, data does not fit a shape, or a property has a value that the
        file cannot hold.
    LimitError
        The file would exceed 2 GiB.
    """
    # imported here, for it imports numpy where that is installed, and reading must not
    from flatbuffers import Builder  # type: ignore[import-untyped]

    builder = Builder(_estimate(checkpoint))
    writer = _Writer(builder, checkpoint.is_nominal, sort=not generated)
    bag = writer.properties(checkpoint.properties)
    groups = None
    if checkpoint.groups or not generated:
        _check_unique(group.name for group in checkpoint.groups)
        groups = writer.tables(checkpoint.groups, lambda group: group.name, writer.group)
    module = writer.module(checkpoint)
    builder.StartObject(4)
    builder.PrependInt32Slot(0, VERSION, 0)
    for field, offset in ((1, module), (2, groups), (3, bag)):
        if offset is not None:
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    builder.Finish(builder.EndObject(), IDENTIFIER)
    # Output() would copy.
    return memoryview(builder.Bytes)[builder.Head() :]


def _tensors(checkpoint: Checkpoint) -> Iterable[Tensor]:
    yield from checkpoint.requires_grad
    yield from checkpoint.frozen
    for group in checkpoint.groups:
        for momentums in group.states.values():
            yield from momentums.values()


def _estimate(checkpoint: Checkpoint) -> int:
    size = 1024
    for tensor in _tensors(checkpoint):
        nbytes = tensor.nbytes if isinstance(tensor, LazyTensor) else len(tensor.data)
        size += nbytes + 4 * len(tensor.name) + TENSOR_OVERHEAD
    if size > INT32_MAX:
        raise LimitError(f"the checkpoint would have {size} bytes; a file holds at most {INT32_MAX}")
    return size


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen or not name:
            raise CheckpointError(f"the name {name!r} occurs twice in the checkpoint, or is empty")
        seen.add(name)


class _Writer:
    """Writes tables; a flatbuffer is built from its leaves to its root."""

    def __init__(self, builder: Any, nominal: bool, sort: bool) -> None:
        self._builder, self._nominal, self._sort = builder, nominal, sort

    def table(self, n_fields: int, offsets: Iterable[tuple[int, int]], *scalars: tuple[str, int, Any]) -> int:
        """A table of offsets (field, offset) and scalars (method, field, value) with default 0."""
        builder = self._builder
        builder.StartObject(n_fields)
        for method, field, value in scalars:
            # what equals the default is left out, but -0.0 equals 0 and must not be
            default = None if isinstance(value, float) else 0
            getattr(builder, method)(field, value, default)
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

    def module(self, checkpoint: Checkpoint) -> int:
        """ModuleState."""
        _check_unique(tensor.name for tensor in (*checkpoint.requires_grad, *checkpoint.frozen))
        write = self.nominal if self._nominal else self.tensor
        trainable = self.tables(checkpoint.requires_grad, lambda tensor: tensor.name, write)
        frozen = self.tables(checkpoint.frozen, lambda tensor: tensor.name, write)
        flag = ("PrependBoolSlot", 2, self._nominal)
        return self.table(4, ((0, trainable), (1, frozen)), flag)

    def nominal(self, tensor: Tensor) -> int:
        """A Tensor of which only name and dtype are told."""
        return self._tensor(tensor.name, tensor.dtype, (), 0, lambda _: None)

    def tensor(self, tensor: Tensor) -> int:
        """A Tensor."""
        if tensor.dtype not in ITEM_SIZE:
            raise CheckpointError(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}, which is not supported")
        if isinstance(tensor, LazyTensor):
            return self._tensor(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, tensor.read_into)
        data = memoryview(tensor.data).cast("B")
        check_data(tensor.dtype, tensor.shape, data, f"tensor {tensor.name!r}", CheckpointError)

        def fill(out: memoryview) -> None:
            out[:] = data

        return self._tensor(tensor.name, tensor.dtype, tensor.shape, data.nbytes, fill)

    def _tensor(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        fill: Callable[[memoryview], None],
    ) -> int:
        builder = self._builder
        name_at = builder.CreateString(name)
        builder.StartVector(8, len(shape), 8)
        for size in reversed(shape):
            builder.PrependInt64(size)
        dims_at = builder.EndVector()
        # CreateByteVector would need the data as bytes, and copy them once more on the way.
        builder.StartVector(1, nbytes, 1)
        builder.head -= nbytes
        if nbytes:
            with memoryview(builder.Bytes)[builder.head : builder.head + nbytes] as out:
                fill(out)
        data_at = builder.EndVector()
        code = ("PrependInt32Slot", 3, DTYPE_CODES[dtype])
        return self.table(7, ((0, name_at), (2, dims_at), (4, data_at)), code)

    def group(self, group: OptimizerGroup) -> int:
        """OptimizerGroup."""
        if group.step not in INT64_RANGE:
            raise CheckpointError(f"step {group.step} of optimizer group {group.name!r} is no int64")
        states = self.tables(group.states.items(), lambda item: item[0], lambda item: self.state(*item))
        return self.table(
            4,
            ((0, self._builder.CreateString(group.name)), (3, states)),
            ("PrependInt64Slot", 1, group.step),
            ("PrependFloat32Slot", 2, _float32(group.initial_lr, "the initial learning rate")),
        )

    def state(self, parameter: str, momentums: dict[str, Tensor]) -> int:
        """ParameterOptimizerState."""
        named = [_renamed(tensor, name) for name, tensor in momentums.items()]
        tensors = self.tables(named, lambda tensor: tensor.name, self.tensor)
        return self.table(2, ((0, self._builder.CreateString(parameter)), (1, tensors)))

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


def _renamed(tensor: Tensor, name: str) -> Tensor:
    if isinstance(tensor, LazyTensor):
        return LazyTensor(name, tensor.dtype, tensor.shape, tensor.read_into)
    return Tensor(name, tensor.dtype, tensor.shape, tensor.data)


def _float32(value: float, what: str) -> float:
    """Check that float32 can hold `value`."""
    try:
        struct.pack("<f", value)
    except OverflowError as error:
        raise CheckpointError(f"{what} is {value}, which float32 cannot hold") from error
    return float(value)
