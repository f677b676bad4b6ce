"""The message classes of ONNX, from the schema that the build took out of the `onnx` package.

`metadata_props` and `value_info` are bytes here, which `trainweb.model.encoded` decodes. The classes live in a private
descriptor pool, so that they never meet the classes of an installed `onnx`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from types import SimpleNamespace
from typing import Any

from ..errors import EngineError

SCHEMA_FILE = "onnx_schema.bin"

MESSAGES = (
    "ModelProto",
    "GraphProto",
    "NodeProto",
    "AttributeProto",
    "TensorProto",
    "SparseTensorProto",
    "ValueInfoProto",
    "TypeProto",
    "FunctionProto",
    "OperatorSetIdProto",
    "StringStringEntryProto",
)


@cache
def messages() -> Any:
    """The generated classes as attributes: `messages().ModelProto` and so on, and `IR_VERSION` of the schema.

    Raise EngineError in a source checkout whose schema was never built.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = resources.files(__package__) / SCHEMA_FILE
    try:
        data = file.read_bytes()
    except OSError as error:
        raise EngineError(
            f"trainweb/model/{SCHEMA_FILE} is missing: this is a source checkout that was not built; run ./build.sh"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    for descriptor in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(descriptor.SerializeToString())
    classes = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"onnx.{name}")) for name in MESSAGES}
    versions = pool.FindEnumTypeByName("onnx.Version").values_by_name
    return SimpleNamespace(**classes, IR_VERSION=versions["IR_VERSION"].number)
