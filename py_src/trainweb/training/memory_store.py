"""The parameters of a session: kernel memory, as long as the session uses them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.checkpoint import Resume
from trainweb.ir.layout import (
    GRADIENTS,
    PARAMETERS,
    STATE_INITIAL_LR,
    STATE_LAZY_RESET,
    STATE_LEARNING_RATE,
    STATE_RANDOM_OFFSET,
    STATE_SCHEDULER,
    STATE_SEED,
    STATE_STEP,
    STATE_TOTAL,
    STATE_WARMUP,
)
from trainweb.model.floats import ConvertedTensor, converted
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.lazy import LazyTensor, Place
from trainweb.training.parameters import (
    MOMENT_OF,
    Contents,
    Layout,
    OptimizerState,
    ParameterSlot,
    ParameterStore,
    Shape,
    TensorStore,
    copied,
)
from trainweb.training.record import optimizer_words, start_segments, write_segments

if TYPE_CHECKING:
    from trainweb.backend.base import Segments


class MemoryStore(ParameterStore):
    """Parameters in the segments of a session.

    Parameters
    ----------
    layout, host
        Where they lie.
    origin
        What the session started from. It keeps the parameters that the session has no slot for, and, without an
        optimizer model, the optimizer state.
    has_optimizer
        Whether the session has an optimizer model.
    """

    def __init__(self, layout: Layout, host: Segments, origin: TensorStore, *, has_optimizer: bool) -> None:
        self.layout, self.host, self.origin, self.has_optimizer = layout, host, origin, has_optimizer
        self.trainable, self.is_nominal = origin.trainable, origin.is_nominal

    def type_of(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name in self.layout.slots:
            return "float32", self.layout.slots[name].shape
        return self.origin.type_of(name)

    def read(self, name: str) -> Tensor:
        if name not in self.layout.slots and name in self.trainable:
            return self.origin.read(name)
        slot = self.layout.find(name)
        return copied(self._parameter(slot))

    def _parameter(self, slot: ParameterSlot) -> LazyTensor:
        """The value of a parameter, in float32, read when its data is."""
        stored = self._lazy(slot.name, PARAMETERS, 4 * slot.offset, slot.shape, slot.dtype)
        return stored if slot.dtype == "float32" else ConvertedTensor(stored, "float32")

    def write(self, tensor: Tensor) -> None:
        if tensor.name not in self.layout.slots:
            self.origin.write(tensor)
            return
        slot = self.layout.slots[tensor.name]
        self.host.write_segment(PARAMETERS, 4 * slot.offset, memoryview(converted(tensor, slot.dtype).data))

    def gradient(self, name: str) -> Tensor | None:
        slot = self.layout.slots.get(name)
        if slot is None or slot.trainable_offset < 0:
            return None
        data = self.host.read_segment(GRADIENTS, 4 * slot.trainable_offset, 4 * slot.size)
        return Tensor(name, "float32", slot.shape, data)

    def contents(self) -> Contents:
        found = self.origin.contents()
        if not self.is_nominal:
            found.tensors |= {s.name: self._parameter(s) for s in self.layout.slots.values()}
        if self.has_optimizer:
            moments: dict[str, dict[str, Tensor]] = {}
            for slot in self.layout.trained() if self.layout.moments else ():
                moments[slot.name] = {
                    name: self._lazy(name, MOMENT_OF[name].segment, *self.layout.moment(name, slot))
                    for name in self.layout.moments
                }
            found.optimizer, found.has_optimizer_state = self._optimizer_state(moments), True
        found.resume = self._resume(found.optimizer)
        return found

    def _resume(self, optimizer: OptimizerState) -> Resume:
        read = self.host.read_state
        reset = bool(read(STATE_LAZY_RESET))
        slots = () if reset else self.layout.trained()
        gradients: dict[str, Tensor] = {
            s.name: self._lazy(s.name, GRADIENTS, 4 * s.trainable_offset, s.shape) for s in slots
        }
        random = int(read(STATE_SEED)), int(read(STATE_RANDOM_OFFSET))
        return Resume(reset, optimizer.learning_rate, optimizer.schedule, random, gradients, optimizer=optimizer.kind)

    def _optimizer_state(self, moments: dict[str, dict[str, Tensor]]) -> OptimizerState:
        read = self.host.read_state
        schedule = (int(read(STATE_WARMUP)), int(read(STATE_TOTAL))) if read(STATE_SCHEDULER) else None
        step, initial_lr, rate = int(read(STATE_STEP)), read(STATE_INITIAL_LR), read(STATE_LEARNING_RATE)
        return OptimizerState(step, initial_lr, moments, rate, schedule, self.layout.optimizer)

    def _lazy(self, name: str, segment: int, offset: int, shape: Shape, dtype: str = "float32") -> LazyTensor:
        read_into = partial(self.host.read_segment_into, segment, offset)
        place = Place("segment", segment, offset, ITEM_SIZE[dtype] * prod(shape))
        return LazyTensor(name, dtype, shape, read_into, place)

    def take(self, origin: TensorStore) -> None:
        """Go on with these parameters, moments and schedule; gradients and random numbers are the session's own."""
        segments = start_segments(self.layout, origin)
        self.origin, self.trainable, self.is_nominal = origin, origin.trainable, origin.is_nominal
        write_segments(self.host, segments)
        for word, value in optimizer_words(origin.optimizer).items():
            self.host.write_state(word, value)

    def give_back(self) -> TensorStore:
        """Return the store that the session started from, with the current values as tensors."""
        found = self.contents()
        moments = found.optimizer.moments
        found.tensors = {name: copied(tensor) for name, tensor in found.tensors.items()}
        found.optimizer.moments = {p: {n: copied(t) for n, t in named.items()} for p, named in moments.items()}
        self.origin.take(found, is_nominal=self.is_nominal)
        return self.origin

    # All parameters at once.

    def get_contiguous(self, trainable_only: bool) -> Tensor:
        """All (trainable) parameters, one after the other.

        Raises
        ------
        CheckpointError
            The store is nominal.
        """
        self.host.check()
        if self.is_nominal:
            raise messages.NOMINAL_GET_ALL()
        data, start = bytearray(4 * self.layout.count(trainable_only)), 0
        for slot in self.layout.listed(trainable_only):
            self._parameter(slot).read_into(memoryview(data)[start : start + 4 * slot.size])
            start += 4 * slot.size
        return Tensor("parameters", "float32", (self.layout.count(trainable_only),), data)

    def load_contiguous(self, data: bytes | bytearray | memoryview, trainable_only: bool) -> None:
        """Overwrite all (trainable) parameters with little-endian float32 bytes.

        Raises
        ------
        CheckpointError
            The store is nominal, and the frozen parameters are not given.
        BufferSizeError
            Not as many bytes as the parameters have.
        """
        self.host.check()
        if self.is_nominal and trainable_only:
            raise messages.NOMINAL_LOAD()
        expected = 4 * self.layout.count(trainable_only)
        if len(data) != expected:
            raise messages.BUFFER_SIZE(expected=expected, actual=len(data))
        view, start = memoryview(data), 0
        for slot in self.layout.listed(trainable_only):
            end = start + 4 * slot.size
            self.write(Tensor(slot.name, "float32", slot.shape, view[start:end]))
            start = end
        self.is_nominal = False
