"""Checkpoint state: parameters, moments and properties, on their own or inside a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainweb.checkpoint import (
    Checkpoint,
    OptimizerGroup,
    read_checkpoint,
    write_checkpoint,
    write_file_atomically,
)
from trainweb.errors import CheckpointError, SessionError
from trainweb.model.graph import Tensor, as_float32

if TYPE_CHECKING:
    import numpy as np

    from trainweb.training.core import SessionCore

DEFAULT_LEARNING_RATE = 0.001
"""Of a fresh optimizer; a checkpoint does not keep the current rate."""
GROUP = "group0"
"""Name of the one optimizer group."""
INT64_RANGE = range(-(2**63), 2**63)

PropertyValue = int | float | str


@dataclass(slots=True)
class OptimizerState:
    """Moments by parameter name, and what else an optimizer group keeps."""

    step: int = 0
    initial_lr: float = DEFAULT_LEARNING_RATE
    moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)


class CheckpointState:
    """What a checkpoint holds. While a session uses it, parameters and moments live in kernel memory."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.trainable: dict[str, bool] = {}
        for tensors, trainable in ((checkpoint.requires_grad, True), (checkpoint.frozen, False)):
            for tensor in tensors:
                if tensor.name in self.tensors:
                    raise CheckpointError(f"The checkpoint has the parameter {tensor.name!r} twice.")
                self.tensors[tensor.name] = tensor
                self.trainable[tensor.name] = trainable
        self.is_nominal = checkpoint.is_nominal
        self.optimizer = OptimizerState()
        self.has_optimizer_state = False
        self._read_groups(checkpoint.groups)
        self.property_values: dict[str, PropertyValue] = dict(checkpoint.properties)
        self.core: SessionCore | None = None

    def _read_groups(self, groups: list[OptimizerGroup]) -> None:
        if len(groups) > 1 or any(g.name != GROUP for g in groups):
            names = ", ".join(repr(g.name) for g in groups)
            raise CheckpointError(f"The checkpoint has the optimizer groups {names}; only {GROUP!r} is known.")
        for group in groups:
            if group.step < 0:
                raise CheckpointError(f"Step {group.step} of optimizer group {group.name!r} is negative.")
            self.optimizer = OptimizerState(group.step, group.initial_lr, dict(group.states))
            self.has_optimizer_state = bool(group.states)

    @staticmethod
    def load_checkpoint(source: bytes | str | Path) -> CheckpointState:
        """Read a checkpoint.

        Parameters
        ----------
        source
            The bytes of a checkpoint file, or its path.

        Raises
        ------
        CheckpointError
            Not a checkpoint, corrupt, or of an unknown version.
        """
        return CheckpointState(read_checkpoint(source))

    @staticmethod
    def save_checkpoint(
        state: CheckpointState, path: str | Path | None = None, include_optimizer_state: bool = False
    ) -> bytes | None:
        """Write a checkpoint: to `path` (as a whole or not at all), or return its bytes.

        Gradients and the current learning rate are not stored.
        """
        data = write_checkpoint(state.to_checkpoint(include_optimizer_state))
        if path is None:
            return data
        write_file_atomically(Path(path), data)
        return None

    def to_checkpoint(self, include_optimizer_state: bool) -> Checkpoint:
        """The contents, those in kernel memory as they are when they are read."""
        if self.is_nominal:
            raise CheckpointError("Cannot save a nominal state. Please load the model parameters first.")
        tensors, o, has_optimizer_state = self.tensors, self.optimizer, self.has_optimizer_state
        if self.core is not None:
            parameters, o = self.core.contents()
            tensors = {**tensors, **parameters}
            has_optimizer_state |= self.core.graphs["optimizer"] is not None
        names = sorted(tensors)
        groups = []
        if include_optimizer_state and (has_optimizer_state or o.step):
            groups = [OptimizerGroup(GROUP, o.step, o.initial_lr, o.moments)]
        return Checkpoint(
            requires_grad=[tensors[n] for n in names if self.trainable[n]],
            frozen=[tensors[n] for n in names if not self.trainable[n]],
            is_nominal=False,
            groups=groups,
            properties=dict(self.property_values),
        )

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return Parameters(self)

    @property
    def properties(self) -> Properties:
        """The properties by name: int, float or str."""
        return Properties(self)


class Parameter:
    """One parameter of a checkpoint state."""

    def __init__(self, state: CheckpointState, name: str) -> None:
        self._state, self._name = state, name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self._state.trainable[self._name]

    @property
    def data(self) -> np.ndarray:
        """A copy of its value. Assign to change it: shape and dtype must match."""
        from trainweb.training.arrays import to_numpy

        state = self._state
        if state.is_nominal:
            raise CheckpointError("Cannot get parameter from a nominal state. Please load the parameter states first")
        if state.core is not None:
            return to_numpy(state.core.get_parameter(self._name))
        return to_numpy(state.tensors[self._name])

    @data.setter
    def data(self, value: Any) -> None:
        from trainweb.training.arrays import from_numpy

        state = self._state
        tensor = from_numpy(self._name, value)
        if state.core is not None:
            state.core.update_parameter(tensor)
            return
        if state.is_nominal:
            raise CheckpointError(
                "Cannot copy parameter to a nominal state. Please load all the parameter states first"
            )
        check_same_type(tensor, state.tensors[self._name].dtype, state.tensors[self._name].shape)
        state.tensors[self._name] = tensor

    @property
    def grad(self) -> np.ndarray | None:
        """A copy of the accumulated gradient: zeros before the first step.

        None for a frozen parameter, and where no session uses the state.
        """
        from trainweb.training.arrays import to_numpy

        core = self._state.core
        if core is None or not self.requires_grad:
            return None
        return to_numpy(core.get_gradient(self._name))

    def __repr__(self) -> str:
        tensor = self._state.tensors[self._name]
        return f"Parameter({self._name!r}, {tensor.dtype}{list(tensor.shape)}, requires_grad={self.requires_grad})"


class Parameters(Mapping[str, Parameter]):
    """Parameters by name; assigning an array changes a parameter's value."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._state.tensors:
            raise KeyError(f"Parameter {name} not found.")
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.tensors)

    def __len__(self) -> int:
        return len(self._state.tensors)

    def __repr__(self) -> str:
        return f"Parameters({list(self._state.tensors)})"


class Properties:
    """A mapping of names to int, float (kept as float32) or str."""

    def __init__(self, state: CheckpointState) -> None:
        self._values = state.property_values

    def __getitem__(self, name: str) -> PropertyValue:
        if name not in self._values:
            raise KeyError(f"Property {name} not found.")
        return self._values[name]

    def __setitem__(self, name: str, value: PropertyValue) -> None:
        if not isinstance(name, str):
            raise TypeError(f"A property's name must be a str, got {type(name).__name__}.")
        self._values[name] = property_value(value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> Iterator[tuple[str, PropertyValue]]:
        """Pairs of name and value."""
        return iter(list(self._values.items()))

    def __repr__(self) -> str:
        return f"Properties({self._values})"


def property_value(value: Any) -> PropertyValue:
    """`value` as a checkpoint keeps it: bool as int, int beyond 64 bits as float, float as float32."""
    if isinstance(value, str):
        return value
    # The abstract types: numpy's scalars are numbers too.
    if isinstance(value, Integral) and int(value) in INT64_RANGE:
        return int(value)
    if isinstance(value, Real):
        return as_float32(float(value))
    raise TypeError(f"A property must be an int, float or str, got {type(value).__name__}.")


def check_same_type(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise unless `tensor` has this dtype and shape."""
    if tensor.dtype != dtype:
        raise CheckpointError(f"Parameter {tensor.name!r} data type mismatch. Expected: {dtype}, Got: {tensor.dtype}")
    if tensor.shape != shape:
        raise CheckpointError(
            f"Parameter {tensor.name!r} data shape mismatch. Expected: {list(shape)}, Got: {list(tensor.shape)}"
        )


def in_use() -> SessionError:
    """The error of a second session on one state."""
    return SessionError("This checkpoint state is in use by another session; release that session first.")
