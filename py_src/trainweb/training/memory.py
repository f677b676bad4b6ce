"""The contents of a session while it uses them: kernel memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.checkpoint import SessionContents
from trainweb.checkpoint.contents import ParameterHolder
from trainweb.ir.layout import GRADIENTS, PARAMETERS, STATE
from trainweb.model.floats import ConvertedTensor, converted
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.lazy import LazyTensor, Place
from trainweb.training.contents import STATE_KEPT, optimizer_words, read_contents, start_segments, write_segments
from trainweb.training.parameters import Layout, ParameterSlot, Shape, copied

if TYPE_CHECKING:
    from trainweb.backend.base import Segments


class ContentsInMemory(ParameterHolder):
    """The contents of a session in its segments.

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

    def __init__(self, layout: Layout, host: Segments, origin: SessionContents, *, has_optimizer: bool) -> None:
        self.layout, self.host, self.origin, self.has_optimizer = layout, host, origin, has_optimizer
        self.trainable, self.properties = origin.trainable, origin.properties
        self.is_nominal = origin.is_nominal

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

    def contents(self) -> SessionContents:
        origin = replace(self.origin, is_nominal=self.is_nominal)
        state = self.host.read_segment(STATE, 0, STATE_KEPT)
        return read_contents(origin, self.layout, self._lazy, state, has_optimizer=self.has_optimizer)

    def _lazy(self, name: str, segment: int, offset: int, shape: Shape, dtype: str) -> LazyTensor:
        read_into = partial(self.host.read_segment_into, segment, offset)
        place = Place("segment", segment, offset, ITEM_SIZE[dtype] * prod(shape))
        return LazyTensor(name, dtype, shape, read_into, place)

    def take(self, origin: SessionContents) -> None:
        """Go on with these parameters, moments and schedule; gradients and random numbers are the session's own."""
        segments = start_segments(self.layout, replace(origin, gradients={}))
        self.origin, self.trainable, self.is_nominal = origin, origin.trainable, origin.is_nominal
        write_segments(self.host, segments)
        for word, value in optimizer_words(origin).items():
            self.host.write_state(word, value)

    def give_back(self) -> SessionContents:
        """Return what the session started from with the current values; its gradients and random numbers are lost."""
        found = self.contents()
        return replace(
            found,
            parameters={name: copied(tensor) for name, tensor in found.parameters.items()},
            moments={p: {n: copied(t) for n, t in named.items()} for p, named in found.moments.items()},
            is_exact=found.has_optimizer,
            reset=True,
            random=None,
            gradients={},
        )

    # All parameters at once.

    def get_contiguous(self, trainable_only: bool) -> Tensor:
        """All (trainable) parameters, one after the other.

        Raises
        ------
        CheckpointError
            The contents are nominal.
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
            The contents are nominal, and the frozen parameters are not given.
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
