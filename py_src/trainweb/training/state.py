"""Checkpoint state: parameters, moments and properties, on their own or inside a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainweb import messages
from trainweb.arguments import checks_keywords, flag
from trainweb.checkpoint import SessionContents, read_checkpoint, write_checkpoint, write_checkpoint_file
from trainweb.checkpoint.contents import ParameterHolder, Property
from trainweb.errors import CheckpointError, UnknownNameError
from trainweb.model.checks import Limits
from trainweb.model.graph import as_float32
from trainweb.model.integrity import check_integrity
from trainweb.model.reader import load_bytes
from trainweb.training.contents import ContentsInMemory, for_file, for_session

if TYPE_CHECKING:
    import numpy as np

    from trainweb.model.graph import Tensor

INT64_RANGE = range(-(2**63), 2**63)


@checks_keywords
class CheckpointState:
    """The contents of a checkpoint. While a session uses it, parameters and moments live in kernel memory.

    Several sessions on one state share its parameters, moments, step count and learning rate. A call to one of them
    first moves these to its memory, so alternating between two costs a copy each time. Each session has separate
    gradients, reset flag and random numbers.
    """

    def __init__(self, contents: SessionContents) -> None:
        # A session puts its memory here, until it is released or another session takes them.
        self._holder: ParameterHolder = for_session(contents)
        # The session that was made last has the gradients to be seen.
        self._latest: ContentsInMemory | None = None

    def _lent(self) -> SessionContents:
        """The contents as tensors, for a session to go on from; the session that has them loses them."""
        if isinstance(self._holder, ContentsInMemory):
            self._holder = self._holder.give_back()
        assert isinstance(self._holder, SessionContents)
        return self._holder

    def _gradient(self, name: str) -> Tensor | None:
        """The gradient of a parameter that the latest session accumulated; None without a session or gradient."""
        latest = self._latest
        return None if latest is None or latest.host.released else latest.gradient(name)

    @property
    def is_nominal(self) -> bool:
        """Only the names of the parameters are there: the values are yet to be loaded."""
        return self._holder.is_nominal

    @classmethod
    def load_checkpoint(cls, source: bytes | str | Path, *, integrity: str | None = None) -> Self:
        """Read a checkpoint.

        Parameters
        ----------
        source
            The bytes of a checkpoint file, or its path.
        integrity
            The hash that the file must have, as in HTML: "sha256-" and Base64; sha384 and sha512, too.

        Raises
        ------
        CheckpointError
            Not a checkpoint, corrupt, of an unknown version, or with another hash.
        """
        if integrity is not None:
            data, _ = load_bytes(source, Limits(), "checkpoint", CheckpointError)
            check_integrity(data[0 : len(data)], integrity, "the checkpoint", CheckpointError)
            source = bytes(data[0 : len(data)])
        return cls(read_checkpoint(source))

    @staticmethod
    def save_checkpoint(
        state: CheckpointState, path: str | Path | None = None, include_optimizer_state: bool = False
    ) -> bytes | None:
        """Write a checkpoint: to `path` (as a whole or not at all), or return its bytes.

        With `include_optimizer_state` a session that goes on from it gives the same bytes as one that was not ended.
        The file then has moments, step count, learning rate and schedule. It also has accumulated gradients and the
        reset flag, and the seed and position of random numbers. ONNX Runtime loads it, too; when it saves the
        checkpoint again, it drops the entries that it does not know.

        A checkpoint of more than 1.8 GiB is two files, `path` and `path`.data, as ONNX Runtime writes them.

        Raises
        ------
        CheckpointError
            The state is nominal.
        LimitError
            It has more than 2 GiB, and no path is given.
        """
        if not isinstance(state, CheckpointState):
            raise TypeError(f"'state' must be a CheckpointState, got {type(state).__name__}.")
        checkpoint = state._to_checkpoint(flag("include_optimizer_state", include_optimizer_state))
        if path is None:
            return write_checkpoint(checkpoint)
        write_checkpoint_file(path, checkpoint)
        return None

    def _to_checkpoint(self, include_optimizer_state: bool) -> SessionContents:
        """The contents now, with all that exact resumption takes if wanted; see `save_checkpoint`."""
        if self.is_nominal:
            raise messages.NOMINAL(action="save")
        return for_file(self._holder.contents(), include_optimizer_state=include_optimizer_state)

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
        """True if the parameter is trained."""
        return self._state._holder.trainable[self._name]

    @property
    def data(self) -> np.ndarray:
        """A copy of its value, which is read-only: assign to `data` to change it; shape and dtype must match.

        In ONNX Runtime writing into the array goes through. Here kernel memory may move: it is an error that says so.
        """
        from trainweb.training.arrays import read_only

        return read_only(self._state._holder.get(self._name))

    @data.setter
    def data(self, value: Any) -> None:
        from trainweb.training.arrays import from_numpy

        self._state._holder.set(from_numpy(self._name, value))

    @property
    def grad(self) -> np.ndarray | None:
        """A read-only copy of the gradient that the latest session accumulated: zeros before its first step.

        None for a frozen parameter, and where no session uses the state.
        """
        from trainweb.training.arrays import read_only

        gradient = self._state._gradient(self._name)
        return None if gradient is None else read_only(gradient)

    def __repr__(self) -> str:
        dtype, shape = self._state._holder.type_of(self._name)
        return f"Parameter({self._name!r}, {dtype}{list(shape)}, requires_grad={self.requires_grad})"


class Parameters(Mapping[str, Parameter]):
    """Parameters by name; assigning an array changes a parameter's value."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if not isinstance(name, str) or name not in self._state._holder.trainable:
            raise UnknownNameError(f"Parameter {name} not found.")
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._state._holder.trainable)

    def __len__(self) -> int:
        return len(self._state._holder.trainable)

    def __repr__(self) -> str:
        return f"Parameters({list(self._state._holder.trainable)})"


class Properties(MutableMapping[str, Property]):
    """A mapping of names to int, float (kept as float32) or str."""

    def __init__(self, state: CheckpointState) -> None:
        self._values = state._holder.properties

    def __getitem__(self, name: str) -> Property:
        if not isinstance(name, str) or name not in self._values:
            raise UnknownNameError(f"Property {name} not found.")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        if not isinstance(name, str):
            raise TypeError(f"A property's name must be a str, got {type(name).__name__}.")
        self._values[name] = property_value(value)

    def __delitem__(self, name: str) -> None:
        if not isinstance(name, str) or name not in self._values:
            raise UnknownNameError(f"Property {name} not found.")
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({self._values})"


def property_value(value: Any) -> Property:
    """`value` as a checkpoint keeps it: bool as int, float as float32; an int beyond 64 bits is refused."""
    if isinstance(value, str):
        return value
    # The abstract types: numpy's scalars are numbers too.
    if isinstance(value, Integral):
        number = int(value)
        if number not in INT64_RANGE:
            raise messages.PROPERTY_RANGE(bits=max(number, ~number).bit_length() + 1)  # one is the sign
        return number
    if isinstance(value, Real):
        return as_float32(float(value))
    raise TypeError(f"A property must be an int, float or str, got {type(value).__name__}.")
