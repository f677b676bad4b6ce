"""`OrtValue` and `IOBinding`: tensors and what a run reads and writes, as onnxruntime's Python has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from trainweb.arguments import instance_of
from trainweb.data.rows import numpy_dtype
from trainweb.errors import FeedError, LimitError, UnsupportedError
from trainweb.model.checks import DTYPE_CODES, ONNX_DTYPES
from trainweb.training.arrays import SUPPORTED, array_of

MOST_ELEMENTS = 2**40
"""More than any memory that this runs in."""

TYPE_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types that numpy calls otherwise."""


def type_name(dtype: str) -> str:
    """`tensor(float)` of "float32"."""
    return f"tensor({TYPE_NAMES.get(dtype, dtype)})"


def check_device(name: str, number: int = 0) -> None:
    """Raise UnsupportedError unless it is the one device there is."""
    if not isinstance(name, str) or name.lower() != "cpu" or number != 0:
        raise UnsupportedError(f"Device {name!r} {number} is not supported; there is only 'cpu' 0.")


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """The dtype of a numpy type, a name, or a TensorProto.DataType."""
    try:
        name = ONNX_DTYPES.get(element_type, "") if isinstance(element_type, int) else np.dtype(element_type).name
    except (TypeError, ValueError):
        name = ""
    if name not in SUPPORTED:
        raise UnsupportedError(f"Element type {element_type!r} is not supported; there are {', '.join(SUPPORTED)}.")
    return numpy_dtype(name)


class OrtValue:
    """A tensor on the CPU. Made by `ortvalue_from_numpy` or `ortvalue_from_shape_and_type`.

    Parameters
    ----------
    array : ndarray
        Its memory.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor on the memory of an array, where that is contiguous; on a copy else.

        Parameters
        ----------
        numpy_obj : ndarray
            Of any dtype that tensors have.
        device_type, device_id : str and int
            "cpu" and 0.
        """
        check_device(device_type, device_id)
        array = np.ascontiguousarray(array_of("numpy_obj", numpy_obj))
        dtype_of(array.dtype)
        return OrtValue(array.reshape(np.shape(numpy_obj)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of zeros.

        Parameters
        ----------
        shape : sequence of int
            Its dims.
        element_type : dtype, str or int
            A numpy dtype, its name, or a TensorProto.DataType.
        device_type, device_id : str and int
            "cpu" and 0.
        """
        check_device(device_type, device_id)
        return OrtValue(np.zeros(_dims(shape), dtype_of(element_type)))

    def numpy(self) -> np.ndarray:
        """The tensor as an array on the same memory."""
        return self._array

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Overwrite the elements.

        Parameters
        ----------
        np_arr : ndarray
            Of the same shape and dtype.

        Raises
        ------
        FeedError
            Another shape or dtype.
        """
        array = array_of("np_arr", np_arr)
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            mine = f"{self._array.dtype}{list(self._array.shape)}"
            raise FeedError(f"An OrtValue of {mine} cannot hold {array.dtype}{list(array.shape)}.")
        self._array[...] = array

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """Return the name of its device: "cpu"."""
        return "cpu"

    def shape(self) -> list[int]:
        """Its dims."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """For example `tensor(float)`."""
        return type_name(self._array.dtype.name)

    def element_type(self) -> int:
        """The TensorProto.DataType of its elements."""
        return DTYPE_CODES[self._array.dtype.name]

    def has_value(self) -> bool:
        """True: there is a tensor."""
        return True

    def is_tensor(self) -> bool:
        """True."""
        return True

    def is_sparse_tensor(self) -> bool:
        """False: there are none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """False: there are none."""
        return False

    def as_sparse_tensor(self) -> Any:
        """Refuse: it is dense."""
        raise UnsupportedError("Sparse tensors are not supported: this OrtValue is dense.")

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: Any) -> OrtValue:
        """Refuse: there are none.

        Parameters
        ----------
        sparse_tensor : object
            What is refused.
        """
        raise UnsupportedError("Sparse tensors are not supported: give a dense array.")

    def __repr__(self) -> str:
        return f"OrtValue({self._array.dtype}{list(self._array.shape)})"


def as_array(value: Any) -> Any:
    """An array of what may be an OrtValue, ours or another package's."""
    return value.numpy() if not isinstance(value, np.ndarray) and hasattr(value, "numpy") else value


@dataclass(slots=True)
class _Output:
    target: np.ndarray | None
    value: OrtValue | None = None


class IOBinding:
    """Inputs and outputs of a run: `session.io_binding()`, then `session.run_with_iobinding(binding)`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.feeds: dict[str, np.ndarray] = {}
        self.outputs: dict[str, _Output] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Read an input from an array.

        Parameters
        ----------
        name : str
            The input.
        arr_on_cpu : array_like
            Its value.
        """
        self._check(name, self._session.input_names)
        self.feeds[name] = array_of(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from an OrtValue.

        Parameters
        ----------
        name : str
            The input.
        ortvalue : OrtValue
            Its value.
        """
        self.bind_cpu_input(name, as_array(ortvalue))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read an input from memory, which must stay until the run.

        Parameters
        ----------
        name : str
            The input.
        device_type, device_id : str and int
            "cpu" and 0.
        element_type : dtype, str or int
            A numpy dtype, its name, or a TensorProto.DataType.
        shape : sequence of int
            Its dims.
        buffer_ptr : int
            Address of the first element.
        """
        check_device(device_type, device_id)
        self.bind_cpu_input(name, _at(buffer_ptr, dtype_of(element_type), shape))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output: to new memory, or to the memory at `buffer_ptr`, of this type and shape.

        Parameters
        ----------
        name : str
            The output.
        device_type, device_id : str and int
            "cpu" and 0.
        element_type : dtype, str or int
            A numpy dtype, its name, or a TensorProto.DataType.
        shape : sequence of int
            Its dims.
        buffer_ptr : int
            Address of the first element.
        """
        check_device(device_type, device_id)
        self._check(name, self._session.output_names)
        target = None if buffer_ptr is None else _at(buffer_ptr, dtype_of(element_type), shape or ())
        self.outputs[name] = _Output(target)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Want an output, written into an OrtValue.

        Parameters
        ----------
        name : str
            The output.
        ortvalue : OrtValue
            Where it goes.
        """
        self._check(name, self._session.output_names)
        self.outputs[name] = _Output(instance_of(OrtValue, "ortvalue", ortvalue).numpy())

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self.feeds.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: the CPU's memory is always up to date."""

    def synchronize_outputs(self) -> None:
        """Do nothing: the CPU's memory is always up to date."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return [output.value for output in self.outputs.values() if output.value is not None]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """As `get_outputs`."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of what the last run gave."""
        return [value.numpy().copy() for value in self.get_outputs()]

    def take(self, results: Sequence[np.ndarray]) -> None:
        """Keep the results of a run, or write them where they are wanted."""
        for output, result in zip(self.outputs.values(), results, strict=True):
            if output.target is not None:
                OrtValue(output.target).update_inplace(result)
            output.value = OrtValue(result if output.target is None else output.target)

    def _check(self, name: str, names: list[str]) -> None:
        if name not in names:
            raise FeedError(f"The session has no {name!r}; there are {', '.join(names)}.")


def _at(address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """An array on memory that somebody else holds."""
    import ctypes

    if not isinstance(address, int) or not 0 <= address < 2**64:
        raise TypeError(f"'buffer_ptr' must be an address, got {address!r:.80}.")
    shape = _dims(shape)
    size = prod(shape) * dtype.itemsize
    memory = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
    return np.frombuffer(memory, dtype).reshape(shape)


def _dims(shape: Any) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, Iterable) else None
    if dims is None or not all(isinstance(dim, Integral) for dim in dims):
        raise TypeError(f"'shape' must be a list of int, got {shape!r:.80}.")
    if any(dim < 0 for dim in dims) or prod(dims) >= MOST_ELEMENTS:
        raise LimitError(f"'shape' is {dims!r:.80}; an array has no such dims.")
    return dims
