"""The parameters of a checkpoint state, and where a session has them in its segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.checkpoint import Resume
from trainweb.errors import CheckpointError
from trainweb.ir.instructions import Buf, BufSequence, Storage, flat_runs
from trainweb.ir.layout import GRADIENTS, PARAMETERS
from trainweb.model.floats import HALVES, OTHER_FLOATS, ConvertedTensor, converted, stored_type
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.lazy import LazyTensor
from trainweb.ops.optim.operators import AVERAGES, GRADS, MOMENTS, PARAMS

if TYPE_CHECKING:
    from trainweb.checkpoint import Checkpoint

DEFAULT_LEARNING_RATE = 0.001
"""Of a fresh optimizer; a checkpoint does not keep the current rate."""
GROUP = "group0"
"""Name of the one optimizer group."""
MOMENT_OF = {m.saved: m for m in (*MOMENTS, AVERAGES)}
"""Moments, averages among them, by their names in checkpoints."""
Shape = tuple[int, ...]


@dataclass(slots=True)
class OptimizerState:
    """Moments by parameter name, and what else an optimizer keeps: sessions on one state share it.

    `schedule` are the warm-up and total steps of a registered scheduler; `kind` is the optimizer's name, "" where it is
    not known: files of onnxruntime-training do not have it.
    """

    step: int = 0
    initial_lr: float = DEFAULT_LEARNING_RATE
    moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    learning_rate: float = DEFAULT_LEARNING_RATE
    schedule: tuple[int, int] | None = None
    kind: str = ""


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


@dataclass(slots=True)
class Contents:
    """All that a store holds, for a checkpoint to be written from: what lies in kernel memory is read when it is.

    `declared` are the types of those parameters that a file has as another type of float than float32.
    """

    tensors: dict[str, Tensor]
    optimizer: OptimizerState
    has_optimizer_state: bool
    resume: Resume | None = None
    declared: dict[str, str] = field(default_factory=dict)

    def as_declared(self) -> dict[str, Tensor]:
        """The parameters as files have them."""
        return {name: converted(t, self.declared.get(name, t.dtype)) for name, t in self.tensors.items()}

    def exact(self) -> Resume | None:
        """Return the state for exact resumption, with exact values of parameters that a file rounds to 16 bits."""
        halves = {name: self.tensors[name] for name, dtype in self.declared.items() if dtype in HALVES}
        rounded = {name: t for name, t in halves.items() if stored_type(t) == "float32"}
        return self.resume and replace(self.resume, parameters=rounded)


class ParameterStore(ABC):
    """Parameters by name, with the state of their optimizer.

    Attributes
    ----------
    trainable : dict of str to bool
        The names, in the order of the checkpoint, and whether each is trained.
    is_nominal : bool
        Only the names are there: the values are yet to be loaded.
    """

    trainable: dict[str, bool]
    is_nominal: bool

    @abstractmethod
    def type_of(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype and shape of a parameter."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The value of a parameter."""

    @abstractmethod
    def write(self, tensor: Tensor) -> None:
        """Replace the value of the parameter of that name."""

    @abstractmethod
    def contents(self) -> Contents:
        """Everything; what lies in kernel memory as it is when its data is read."""

    def gradient(self, name: str) -> Tensor | None:
        """Return the accumulated gradient, or None if the store has no gradients."""
        return None

    def get(self, name: str) -> Tensor:
        """The value of a parameter.

        Raises
        ------
        CheckpointError
            The store is nominal, or has no such parameter.
        """
        if self.is_nominal:
            raise messages.NOMINAL_GET()
        self._check(name)
        return self.read(name)

    def set(self, tensor: Tensor) -> None:
        """Replace the value of a parameter; dtype and shape must be its own.

        Raises
        ------
        CheckpointError
            The store is nominal, or has no such parameter, or one of another type.
        """
        if self.is_nominal:
            raise messages.NOMINAL_SET()
        self._check(tensor.name)
        check_same_type(tensor, *self.type_of(tensor.name))
        self.write(tensor)

    def _check(self, name: str) -> None:
        if name not in self.trainable:
            raise messages.UNKNOWN_PARAMETER(name=name, names=", ".join(self.trainable))


class TensorStore(ParameterStore):
    """Parameters as tensors, each in its own memory; other types of float become float32 here.

    `declared` has their types in the checkpoint, which they get again when one is written. `halves` has those of
    parameters whose values have 16 bits.

    Raises
    ------
    CheckpointError
        A parameter is there twice, or a session cannot use the optimizer state.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.declared: dict[str, str] = {}
        self.halves: dict[str, str] = {}
        self.trainable = {}
        exact = {} if checkpoint.resume is None else checkpoint.resume.parameters
        for tensors, trainable in ((checkpoint.requires_grad, True), (checkpoint.frozen, False)):
            for tensor in tensors:
                if tensor.name in self.tensors:
                    raise CheckpointError(f"The checkpoint has the parameter {tensor.name!r} twice.")
                self.tensors[tensor.name] = self._float32(tensor, exact.get(tensor.name), checkpoint.is_nominal)
                self.trainable[tensor.name] = trainable
        self.is_nominal = checkpoint.is_nominal
        self.optimizer, self.has_optimizer_state = OptimizerState(), False
        if len(checkpoint.groups) > 1 or any(g.name != GROUP for g in checkpoint.groups):
            names = ", ".join(repr(g.name) for g in checkpoint.groups)
            raise CheckpointError(f"The checkpoint has the optimizer groups {names}; only {GROUP!r} is known.")
        for group in checkpoint.groups:
            self.optimizer = OptimizerState(group.step, group.initial_lr, dict(group.states))
            self.has_optimizer_state = bool(group.states)
        self.resume = checkpoint.resume
        if self.resume is not None:
            self.optimizer.learning_rate, self.optimizer.schedule = self.resume.learning_rate, self.resume.schedule
            self.optimizer.kind = self.resume.optimizer
            for name, gradient in self.resume.gradients.items():
                if not self.trainable.get(name, False):
                    raise CheckpointError(f"The checkpoint has a gradient of {name!r}, which is not trained.")
                check_same_type(gradient, *self.type_of(name))

    def _float32(self, tensor: Tensor, exact: Tensor | None, is_nominal: bool) -> Tensor:
        if exact is None and stored_type(tensor) in HALVES:
            self.halves[tensor.name] = stored_type(tensor)
        if tensor.dtype not in OTHER_FLOATS:
            return tensor
        self.declared[tensor.name] = tensor.dtype
        if is_nominal:
            return Tensor(tensor.name, "float32", (), b"")
        if exact is None:
            return converted(tensor, "float32")
        check_same_type(exact, "float32", tensor.shape)
        return exact

    def type_of(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self.tensors[name].dtype, self.tensors[name].shape

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def write(self, tensor: Tensor) -> None:
        self.tensors[tensor.name] = tensor

    def contents(self) -> Contents:
        resume, optimizer = self.resume, self.optimizer
        if resume is None and self.has_optimizer_state:
            # The session has ended: its gradients and the state of its random numbers are not kept.
            rate, schedule, kind = optimizer.learning_rate, optimizer.schedule, optimizer.kind
            resume = Resume(learning_rate=rate, schedule=schedule, optimizer=kind)
        return Contents(dict(self.tensors), optimizer, self.has_optimizer_state, resume, self.declared)

    def leave(self, layout: Layout) -> None:
        """Let go of the parameters that a session has in its memory from now on."""
        if not self.is_nominal:
            self.tensors = {name: tensor for name, tensor in self.tensors.items() if name not in layout.slots}

    def take(self, contents: Contents, *, is_nominal: bool) -> None:
        """Hold these from now on."""
        self.tensors, self.optimizer = contents.tensors, contents.optimizer
        self.has_optimizer_state, self.is_nominal = contents.has_optimizer_state, is_nominal
        self.resume = None


class Layout:
    """The places of parameters, gradients and moments in their segments: one after the other, without gaps.

    Parameters
    ----------
    slots
        In the order of the training model's inputs.
    moments
        The moments that the optimizer keeps, by their names in checkpoints: functions from a parameter's shape to the
        shape of its moment.
    optimizer
        Its name, "" where there is none.
    """

    def __init__(
        self, slots: Iterable[ParameterSlot], moments: Mapping[str, Callable[[Shape], Shape]], optimizer: str = ""
    ) -> None:
        self.slots = {s.name: s for s in slots}
        self.optimizer = optimizer
        self.moments = list(moments)
        self.size = sum(s.size for s in self.slots.values())
        self.trainable_size = sum(s.size for s in self.trained())
        self._sizes = {PARAMETERS: 4 * sum(s.words for s in self.slots.values()), GRADIENTS: 4 * self.trainable_size}
        self._places: dict[tuple[str, str], tuple[int, Shape]] = {}
        for name, shape_of in moments.items():
            segment = MOMENT_OF[name].segment
            for slot in self.trained():
                place, shape = self._sizes.setdefault(segment, 0), shape_of(slot.shape)
                self._places[name, slot.name] = place, shape
                self._sizes[segment] = place + 4 * prod(shape)

    def trained(self) -> Iterator[ParameterSlot]:
        """Slots of the trainable parameters."""
        return (s for s in self.slots.values() if s.trainable_offset >= 0)

    def segment_bytes(self) -> dict[int, int]:
        """Sizes of the segments."""
        return dict(self._sizes)

    def moment(self, name: str, slot: ParameterSlot) -> tuple[int, Shape]:
        """Place of a parameter's moment in its segment, in bytes, and its shape."""
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
        stores = {segment: Storage(segment, nbytes, 0) for segment, nbytes in sizes.items()}

        def items(segment: int, places: Iterable[tuple[int, Shape]]) -> BufSequence:
            return BufSequence([Buf(stores[segment], "float32", shape, shift=place) for place, shape in places])

        found = {
            PARAMS: items(PARAMETERS, ((4 * s.offset, s.shape) for s in self.trained())),
            GRADS: items(GRADIENTS, ((4 * s.trainable_offset, s.shape) for s in self.trained())),
        }
        for name in self.moments:
            moment = MOMENT_OF[name]
            found[moment.input] = items(moment.segment, (self.moment(name, s) for s in self.trained()))
        return found

    def trained_runs(self) -> list[tuple[int, int]]:
        """Offset and bytes of the runs of trainable parameters."""
        return [(run.shift, run.nbytes) for (run,) in flat_runs(self.sequences()[PARAMS])]

    def find(self, name: str) -> ParameterSlot:
        """The slot of a parameter.

        Raises
        ------
        CheckpointError
            There is no parameter of that name.
        """
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


def check_same_type(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise unless `tensor` has this dtype and shape."""
    if tensor.dtype != dtype:
        raise messages.PARAMETER_DTYPE(name=tensor.name, expected=dtype, actual=tensor.dtype)
    if tensor.shape != shape:
        raise messages.PARAMETER_SHAPE(name=tensor.name, expected=list(shape), actual=list(tensor.shape))
