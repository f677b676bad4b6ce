"""All that a session holds: parameters, moments, the words of its state, and properties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

from .. import messages
from ..errors import CheckpointError
from ..model.floats import as_declared
from ..model.graph import Graph, Tensor, data_bytes
from ..model.remote import RemoteTensor
from ..model.uses import PATHS, WEIGHT, role_at, weight_uses

Property = int | float | str
"""int64, float32 or text."""
DEFAULT_LEARNING_RATE = 0.001
"""Learning rate of a fresh optimizer."""
SCALING = ".lora_scaling"
"""End of the names of constants by which a graph multiplies the adapter of a module."""


class ParameterHolder(ABC):
    """Parameters by name: `trainable` says of each whether it is trained, in the order of the checkpoint.

    If `is_nominal`, only the names are there, and values are yet to be loaded. `properties` are the user's.
    """

    trainable: dict[str, bool]
    is_nominal: bool
    properties: dict[str, Property]

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
    def contents(self) -> SessionContents:
        """Return everything; kernel memory is read lazily."""

    def gradient(self, name: str) -> Tensor | None:
        """Return the accumulated gradient of a session that runs; None for a frozen parameter."""
        return None

    def get(self, name: str) -> Tensor:
        """The value of a parameter. Raise CheckpointError for another name, or if nominal."""
        if self.is_nominal:
            raise messages.NOMINAL(action="get parameter from")
        self._check(name)
        return self.read(name)

    def set(self, tensor: Tensor) -> None:
        """Replace the value of a parameter. Raise CheckpointError for another name or type, or if nominal."""
        if self.is_nominal:
            raise messages.NOMINAL(action="copy parameter to")
        self._check(tensor.name)
        check_same_type(tensor, *self.type_of(tensor.name))
        self.write(tensor)

    def _check(self, name: str) -> None:
        if name not in self.trainable:
            raise messages.UNKNOWN_PARAMETER(name=name, names=", ".join(self.trainable))


@dataclass
class SessionContents(ParameterHolder):
    """All that a session holds, by names: files, stores, bundles and kernel memory are forms of it.

    ONNX Runtime has no place for the fields from `reset` on. They stand in a field of the root table of a checkpoint,
    which ONNX Runtime's readers do not know and its writers leave out. Training elsewhere makes nothing stale.
    """

    parameters: dict[str, Tensor] = field(default_factory=dict)
    """In the order of the file, which has no other meaning: that of the contiguous buffer comes from the model."""
    trainable: dict[str, bool] = field(default_factory=dict)
    """Of each parameter."""
    is_nominal: bool = False
    """Only names are there: every shape is () and all data empty."""
    properties: dict[str, Property] = field(default_factory=dict)
    """Properties of the user."""
    has_optimizer: bool = False
    """The state of an optimizer is there: `step`, `initial_lr` and `moments`."""
    step: int = 0
    """Completed optimizer steps."""
    initial_lr: float = DEFAULT_LEARNING_RATE
    """Rate that the learning rate scheduler started from."""
    moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By parameter, then by moment ("momentum0", "momentum1")."""
    is_exact: bool = False
    """What a session takes to go on with the same bytes as one that never ended is there: all that follows."""
    reset: bool = True
    """The next train step overwrites the gradients."""
    learning_rate: float = DEFAULT_LEARNING_RATE
    """The current rate."""
    schedule: tuple[int, int] | None = None
    """Warm-up and total steps of a registered scheduler."""
    random: tuple[int, int] | None = None
    """Seed and position of the random numbers; None: the numbers of a new session."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Accumulated gradients by parameter; empty where the next train step overwrites them."""
    exact: dict[str, Tensor] = field(default_factory=dict)
    """Trained values, in float32, of parameters that the file has in half precision."""
    optimizer: str = ""
    """The name of the optimizer that the moments are of; "" where it is not known."""
    declared: dict[str, str] = field(default_factory=dict)
    """Types of the parameters that the file has as another type of float, and a session in float32."""
    halves: dict[str, str] = field(default_factory=dict)
    """Types of the parameters whose values have 16 bits."""
    scaling: str = ""
    """The scaling of the adapters, as `scaling_of` returns it; "" where it is not known."""
    constants: str = ""
    """The digest of the model's constants, as `digest_of` returns it; "" where it is not known."""

    @classmethod
    def of(cls, trained: Iterable[Tensor], frozen: Iterable[Tensor] = (), **others: Any) -> Self:
        """Contents with these parameters. Raise CheckpointError if two of them have one name."""
        contents = cls(**others)
        for tensors, is_trainable in ((trained, True), (frozen, False)):
            for tensor in tensors:
                if tensor.name in contents.parameters:
                    raise CheckpointError(f"the checkpoint has two parameters named {tensor.name!r:.80}")
                contents.parameters[tensor.name], contents.trainable[tensor.name] = tensor, is_trainable
        return contents

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that are trained."""
        return [tensor for name, tensor in self.parameters.items() if self.trainable[name]]

    @property
    def frozen(self) -> list[Tensor]:
        """The parameters that are not."""
        return [tensor for name, tensor in self.parameters.items() if not self.trainable[name]]

    def type_of(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self.parameters[name].dtype, self.parameters[name].shape

    def read(self, name: str) -> Tensor:
        return self.parameters[name]

    def write(self, tensor: Tensor) -> None:
        self.parameters[tensor.name] = tensor

    def contents(self) -> SessionContents:
        return self


def check_same_type(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise unless `tensor` has this dtype and shape."""
    if tensor.dtype != dtype:
        raise messages.PARAMETER_DTYPE(name=tensor.name, expected=dtype, actual=tensor.dtype)
    if tensor.shape != shape:
        raise messages.PARAMETER_SHAPE(name=tensor.name, expected=list(shape), actual=list(tensor.shape))


def scaling_of(graph: Graph) -> str:
    """Return the scaling of a graph's adapters: of most modules, then "module=scaling" of the others; "" without any.

    Parameters have the same names and shapes with any scaling, and compute something else.
    """
    scalings = {
        name.removesuffix(SCALING): f"{tensor.values()[0]:.9g}"
        for name, tensor in sorted(graph.initializers.items())
        if name.endswith(SCALING) and (tensor.dtype, tensor.shape) == ("float32", ())
    }
    most = [text for text, _ in Counter(scalings.values()).most_common(1)]
    return "; ".join([*most, *(f"{module}={text}" for module, text in scalings.items() if text not in most)])


def digest_of(graph: Graph) -> str:
    """Return a digest of a graph's weights of products that are constants, such as quantized ones; "" without any.

    No checkpoint has them. Of each it takes the type, the shape and 64 elements from the middle. Masks and tables
    of positions may differ between two files of one model.
    """
    uses = weight_uses(graph, through={*PATHS, "Cast", "DequantizeBlocks"})
    weights = {use.tensor.name: use.tensor for use in uses if role_at(use.node, use.position) == WEIGHT}
    read = [(t.dtype, t.shape, _middle(t)) for t in map(as_declared, weights.values())]
    return sha256(repr(sorted(read)).encode()).hexdigest()[:16] if read else ""


def _middle(tensor: Tensor) -> bytes:
    """The data of elements in the middle."""
    start = tensor.size // 4 * 2  # 4-bit elements are in pairs
    first, end = (data_bytes(tensor.dtype, count) for count in (start, min(start + 64, tensor.size)))
    if isinstance(tensor, RemoteTensor):
        return tensor.read(first, end - first)
    return bytes(memoryview(tensor.data).cast("B")[first:end])
