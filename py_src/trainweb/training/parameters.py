"""The places of parameters, gradients and moments in the segments of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from trainweb import messages
from trainweb.ir.instructions import Buf, BufSequence, Storage, flat_runs
from trainweb.ir.layout import GRADIENTS, PARAMETERS
from trainweb.model.floats import ConvertedTensor
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.lazy import LazyTensor
from trainweb.ops.optim.operators import AVERAGES, GRADS, MOMENTS, PARAMS

MOMENT_OF = {m.saved: m for m in (*MOMENTS, AVERAGES)}
"""Moments, averages among them, by their names in checkpoints."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """Place of a parameter: words of 4 bytes before it among all and among trainable parameters (-1: frozen)."""

    name: str
    shape: tuple[int, ...]
    offset: int
    trainable_offset: int
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * ITEM_SIZE[self.dtype]

    @property
    def words(self) -> int:
        """Words of 4 bytes that it takes."""
        return -(-self.nbytes // 4)


class Layout:
    """The places of parameters, gradients and moments in their segments: one after the other, without gaps.

    `slots` have the order of the training model's inputs. `moments` are functions from a parameter's shape to the shape
    of its moment, by names in checkpoints. `optimizer` is a name, "" without one. `scaling` is that of the adapters,
    `constants` the digest of the model's.
    """

    def __init__(
        self,
        slots: Iterable[ParameterSlot],
        moments: Mapping[str, Callable[[Shape], Shape]],
        optimizer: str = "",
        scaling: str = "",
        constants: str = "",
    ) -> None:
        self.slots = {s.name: s for s in slots}
        self.optimizer, self.scaling, self.constants = optimizer, scaling, constants
        self.moments = list(moments)
        self.size = sum(s.size for s in self.slots.values())
        self.trainable_size = sum(s.size for s in self.trained())
        self._sizes = {PARAMETERS: 4 * sum(s.words for s in self.slots.values()), GRADIENTS: 4 * self.trainable_size}
        self._places: dict[tuple[str, str], tuple[int, int, Shape]] = {}
        for name, shape_of in moments.items():
            segment = MOMENT_OF[name].segment
            for slot in self.trained():
                place, shape = self._sizes.setdefault(segment, 0), shape_of(slot.shape)
                self._places[name, slot.name] = segment, place, shape
                self._sizes[segment] = place + 4 * prod(shape)

    def trained(self) -> Iterator[ParameterSlot]:
        """Slots of the trainable parameters."""
        return (s for s in self.slots.values() if s.trainable_offset >= 0)

    def segment_bytes(self) -> dict[int, int]:
        """Sizes of the segments."""
        return dict(self._sizes)

    def moment(self, name: str, slot: ParameterSlot) -> tuple[int, int, Shape]:
        """Segment of a parameter's moment, its place there, in bytes, and its shape."""
        return self._places[name, slot.name]

    @property
    def has_averages(self) -> bool:
        """True if averages of the trainable parameters are kept: the last bytes of the segment of `AVERAGES`."""
        return AVERAGES.saved in self.moments

    def listed(self, trainable_only: bool) -> list[ParameterSlot]:
        """Slots of all (trainable) parameters."""
        return list(self.trained() if trainable_only else self.slots.values())

    def count(self, trainable_only: bool) -> int:
        """Elements of all (trainable) parameters."""
        return self.trainable_size if trainable_only else self.size

    def sequences(self) -> dict[str, BufSequence]:
        """The trainable parameters, their gradients and moments, by the names of inputs of optimizer models."""
        sizes = self.segment_bytes()
        storages = {segment: Storage(segment, nbytes, 0) for segment, nbytes in sizes.items()}

        def items(places: Iterable[tuple[int, int, Shape]]) -> BufSequence:
            return BufSequence([Buf(storages[segment], "float32", shape, shift=at) for segment, at, shape in places])

        result = {
            PARAMS: items((PARAMETERS, 4 * s.offset, s.shape) for s in self.trained()),
            GRADS: items((GRADIENTS, 4 * s.trainable_offset, s.shape) for s in self.trained()),
        }
        for name in self.moments:
            result[MOMENT_OF[name].input] = items(self.moment(name, s) for s in self.trained())
        return result

    def trained_runs(self) -> list[tuple[int, int]]:
        """Offset and bytes of the runs of trainable parameters."""
        return [(run.shift, run.nbytes) for (run,) in flat_runs(self.sequences()[PARAMS])]

    def find(self, name: str) -> ParameterSlot:
        """The slot of a parameter. Raise CheckpointError for another name."""
        if not isinstance(name, str) or name not in self.slots:
            raise messages.UNKNOWN_PARAMETER(name=name, names=", ".join(self.slots))
        return self.slots[name]


def copied(tensor: Tensor) -> Tensor:
    """Return `tensor` with a copy of its data, in the type in which it lies there."""
    if isinstance(tensor, ConvertedTensor):
        return ConvertedTensor(copied(tensor.source), tensor.dtype, tensor.notes)
    if not isinstance(tensor, LazyTensor):
        return tensor
    return Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.data)
