"""Between `Graph` and the protobuf classes of the onnx package, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainweb.model.graph import Graph, Tensor
from trainweb.model.writer import write_model


def onnx_package() -> Any:
    """The onnx package, or None."""
    try:
        import onnx
    except ImportError:
        return None
    return onnx


def to_model_proto(graph: Graph) -> Any:
    """The model as `onnx.ModelProto` if the onnx package is there, else as bytes."""
    data = write_model(graph)
    onnx = onnx_package()
    return data if onnx is None else onnx.load_model_from_string(data)


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
