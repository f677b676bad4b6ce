"""Every error trainweb raises. A message says what is wrong, where (node, tensor, byte) and what was expected."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = "https://github.com/trainweb/trainweb/blob/main/docs/errors.md"
"""The page that explains each class and what to do; the page's errors name it, too."""


LONGEST_HEAD, LONGEST_TAIL = 4000, 500
"""Characters that a message keeps of its beginning and its end: names and values of hostile files have millions."""


class TrainwebError(Exception):
    """Base class of all errors raised by trainweb. Tracebacks end with the address of `documentation`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))
        self.add_note(f"See {self.documentation}")

    @property
    def documentation(self) -> str:
        """The address that documents this error and its remedies."""
        return f"{DOCUMENTATION}#{type(self).__name__.lower()}"


def shortened(text: str, head: int = LONGEST_HEAD, tail: int = LONGEST_TAIL) -> str:
    """A text without its middle, where that is longer than what stands for it."""
    left_out = f"... ({len(text)} characters)"
    if len(text) <= head + tail + len(left_out):
        return text
    return text[:head] + left_out + (f" ...{text[-tail:]}" if tail > 0 else "")


class ModelError(TrainwebError):
    """A model is malformed: not ONNX, truncated, inconsistent shapes, a name that nothing defines, ..."""


class UnsupportedError(TrainwebError):
    """The model is valid but uses something trainweb does not do.

    Attributes
    ----------
    op : str or None
        Operator type, e.g. "Einsum".
    domain : str or None
        Operator domain; "" is ai.onnx.
    opset : int or None
        Version of the operator set that the model asks for.
    node : str or None
        Name of the node that uses it.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        domain: str | None = None,
        opset: int | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.op, self.domain, self.opset, self.node = op, domain, opset, node


class GradientError(TrainwebError):
    """An operator on the path from the loss to a parameter has no gradient.

    Attributes
    ----------
    op : str or None
        Operator type, e.g. "Einsum".
    node : str or None
        Name of the node.
    path : list of str
        Node names from the loss back to that node.
    others : tuple of GradientError
        What else lacks a gradient.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        path: list[str] | None = None,
    ) -> None:
        super().__init__(message)
        self.op, self.node, self.path = op, node, path or []
        self.others: tuple[GradientError, ...] = ()


class CheckpointError(TrainwebError):
    """A checkpoint is corrupt, of an unknown version, nominal, or does not fit the model."""


class FeedError(TrainwebError):
    """A feed is missing, unknown, or has the wrong type, dims or values.

    Attributes
    ----------
    value : int, optional
        A label or index that is out of range.
    position : int, optional
        Its position among the values of the batch, from 0.
    input : str, optional
        The input that it was fed as, where `fit` finds it.
    row : int, optional
        Its row in the data, or in the order in which a stream came, from 0.
    epoch : int, optional
        The epoch of `fit`, from 1.
    batch : int, optional
        The batch of that epoch, from 1.
    """

    value: int | None = None
    position: int | None = None
    input: str | None = None
    row: int | None = None
    epoch: int | None = None
    batch: int | None = None


class BufferSizeError(TrainwebError):
    """A parameter buffer has the wrong number of elements or bytes."""


class SessionError(TrainwebError):
    """The session lacks what a call needs (eval model, optimizer model, scheduler), or its state is in use."""


class ReleasedError(TrainwebError):
    """The session was released."""


class LimitError(TrainwebError):
    """The model or a request is larger than the configured limits."""


class StorageError(TrainwebError):
    """A checkpoint could not be stored: there is no room, no storage, or another tab or process has it.

    Attributes
    ----------
    needed : int or None
        Bytes of the checkpoint.
    usage : int or None
        Bytes that are in use, if the storage reports them.
    quota : int or None
        Bytes that may be in use, if the storage reports them.
    """

    def __init__(
        self, message: str, *, needed: int | None = None, usage: int | None = None, quota: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed, self.usage, self.quota = needed, usage, quota


class EngineError(TrainwebError):
    """The kernel engine failed: out of memory, a trap, a file that is missing, or a plan that does not verify."""


class DeviceError(TrainwebError):
    """A page's GPU is missing, lost, or too small for a session.

    Attributes
    ----------
    reason : str or None
        The browser's word for a loss or an error of the GPU.
    step : int or None
        Optimizer steps of the session when a call met the lost GPU.
    """

    reason: str | None = None
    step: int | None = None


class NumericsError(TrainwebError):
    """A step of a session that checks numerics made a NaN or an infinity, and was undone.

    Attributes
    ----------
    node : str
        The node that made the first, as other errors name it.
    op : str
        Its operator, e.g. "Log".
    tensor : str
        The result of it that has the NaN or infinity.
    step : int
        Optimizer steps that were completed before.
    made : dict
        That tensor: ``name``, ``shape``, ``min`` and ``max`` of its finite values (None without any), and the counts
        ``nan`` and ``infinite``.
    inputs : list of dict
        The same of the node's inputs that are float tensors.
    epoch : int or None
        The epoch of `fit`, from 1.
    batch : int or None
        The batch of that epoch, from 1.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.node = self.op = self.tensor = ""
        self.step = 0
        self.made: dict[str, Any] = {}
        self.inputs: list[dict[str, Any]] = []
        self.epoch: int | None = None
        self.batch: int | None = None


class UnknownNameError(TrainwebError, KeyError):
    """A name that nothing has: a KeyError too, as in onnxruntime."""

    # A KeyError shows its text in quotes.
    __str__ = Exception.__str__


class InvalidValueError(TrainwebError, ValueError):
    """A value of the right type that cannot be: a ValueError too, as in onnxruntime."""


__all__ = [
    "BufferSizeError",
    "CheckpointError",
    "DeviceError",
    "EngineError",
    "FeedError",
    "GradientError",
    "InvalidValueError",
    "LimitError",
    "ModelError",
    "NumericsError",
    "ReleasedError",
    "SessionError",
    "StorageError",
    "TrainwebError",
    "UnknownNameError",
    "UnsupportedError",
]
__dir__ = __all__.copy
