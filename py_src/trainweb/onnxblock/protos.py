"""Between `Graph` and the protobuf classes of the onnx package, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.ops.frame.functions import write_interchangeable


def onnx_package() -> Any:
    """The onnx package, or None."""
    try:
        import onnx
    except ImportError:
        return None
    return onnx


def to_model_proto(graph: Graph) -> Any:
    """The model as `onnx.ModelProto` if the onnx package is there, else as bytes."""
    data = write_interchangeable(graph)
    onnx = onnx_package()
    return data if onnx is None else onnx.load_model_from_string(data)


class ModelView:
    """A graph as `onnx.ModelProto`, for blocks that append to `base.graph`; changes go both ways."""

    def __init__(self, graph: Graph) -> None:
        self.proto = to_model_proto(graph)
        self._seen = self._bytes()

    def sync(self, graph: Graph) -> None:
        """Read changes of the ModelProto into `graph`, or else write changes of `graph` into it.

        The message and its lists stay the same objects, which users may hold.
        """
        data = self._bytes()
        if data != self._seen:
            changed = read_model(data)
            for field in fields(graph):
                setattr(graph, field.name, getattr(changed, field.name))
        new = to_model_proto(graph)
        for name in ("node", "initializer", "input", "output", "value_info"):
            _update(getattr(self.proto.graph, name), getattr(new.graph, name))
        _update(self.proto.opset_import, new.opset_import)
        self._seen = self._bytes()

    def _bytes(self) -> bytes:
        return bytes(self.proto.SerializeToString(deterministic=True))


def _update(held: Any, new: Any) -> None:
    """Make a list of messages equal to another, adding to it where that is enough."""
    start = len(held)
    if start > len(new) or any(a != b for a, b in zip(held, new, strict=False)):
        del held[:]
        start = 0
    held.extend(new[start:])


class NoModelProto:
    """Stands in the place of a ModelProto without the onnx package: it raises an error that says so."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"base.{name} is a part of an onnx.ModelProto, and the onnx package is not installed: append operators "
            "with self.add_node(op_type, inputs, n_outputs, domain=..., **attributes)."
        )


def to_tensor_protos(tensors: Iterable[Tensor]) -> list[Any]:
    """Tensors as `onnx.TensorProto` if the onnx package is there, else as they are."""
    onnx = onnx_package()
    if onnx is None:
        return list(tensors)
    from trainweb.model.checks import DTYPE_CODES

    return [
        onnx.TensorProto(name=t.name, dims=t.shape, data_type=DTYPE_CODES[t.dtype], raw_data=bytes(t.data))
        for t in tensors
    ]


def from_tensor_protos(tensors: Iterable[Any]) -> list[Tensor]:
    """Tensors from `onnx.TensorProto` or `Tensor`."""
    return [t if isinstance(t, Tensor) else _from_proto(t) for t in tensors]


def _from_proto(proto: Any) -> Tensor:
    from onnx import numpy_helper

    array = numpy_helper.to_array(proto)
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Tensor(proto.name, str(array.dtype), array.shape, little_endian.tobytes())
