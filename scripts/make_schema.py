"""Write the ONNX protobuf schema of the installed `onnx` package for `trainweb.model.schema`.

Run by build.sh: `python scripts/make_schema.py [target]`. The file is a serialized
`FileDescriptorSet`; it spares the runtime the `onnx` package, which needs numpy and a compiled
extension.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import descriptor_pb2

LEFT_ENCODED = {"metadata_props", "value_info"}
"""Fields that the reader decodes itself, in part: exporters write thousands of such messages."""

TARGET = Path(__file__).parents[1] / "py_src" / "trainweb" / "model" / "onnx_schema.bin"


def make_schema() -> bytes:
    """The schema and whatever it imports, imports first."""
    files = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(descriptor: Any) -> None:
        if descriptor.name in seen:
            return
        seen.add(descriptor.name)
        for dependency in descriptor.dependencies:
            add(dependency)
        descriptor.CopyToProto(files.file.add())

    add(onnx.ModelProto.DESCRIPTOR.file)
    for message in files.file[-1].message_type:
        for field in message.field:
            if field.name in LEFT_ENCODED:
                # Length-delimited either way: what is written is the same.
                field.type = field.TYPE_BYTES
                field.ClearField("type_name")
    return files.SerializeToString(deterministic=True)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    data = make_schema()
    target.write_bytes(data)
    print(f"{target.name}: {len(data)} bytes, from onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
