"""Malformed checkpoints, from a writer that believes all its input."""

import struct
from typing import Any

import flatbuffers
from tests.attacks.models import Case, good_model

from trainweb.checkpoint import SessionContents, write_checkpoint
from trainweb.errors import CheckpointError, LimitError
from trainweb.model import Tensor

INT64, FLOAT32, INT32, BOOL, INT8, UINT8 = "Int64", "Float32", "Int32", "Bool", "Int8", "Uint8"


def good_checkpoint() -> SessionContents:
    """A small checkpoint that has everything."""

    def tensor(name: str, *values: float) -> Tensor:
        return Tensor.of(name, "float32", (len(values),), values)

    states = {"w": {"momentum0": tensor("momentum0", 3, 4), "momentum1": tensor("momentum1", 5, 6)}}
    optimizer = {"has_optimizer": True, "step": 3, "initial_lr": 0.5, "moments": states}
    properties = {"epoch": 4, "best": 0.5, "tag": "run"}
    return SessionContents.of([tensor("w", 1, 2)], [tensor("f", 7)], properties=properties, **optimizer)


class Raw:
    """Builds tables from (field, kind, value) with no questions asked."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)

    def table(self, *fields: tuple[int, str, Any]) -> int:
        built = [(field, kind, self.value(kind, value)) for field, kind, value in fields]
        self.builder.StartObject(1 + max([7, *(field for field, _, _ in fields)]))
        for field, kind, value in built:
            if kind in (INT64, FLOAT32, INT32, BOOL, INT8, UINT8):
                getattr(self.builder, f"Prepend{kind}")(value)
                self.builder.Slot(field)
            else:
                self.builder.PrependUOffsetTRelativeSlot(field, value, 0)
        return self.builder.EndObject()

    def value(self, kind: str, value: Any) -> Any:
        if kind == "string":
            return self.builder.CreateString(value)
        if kind == "blob":
            return self.builder.CreateByteVector(value)
        if kind == "table":
            return self.table(*value)
        if kind == "strings":
            return self.vector([self.builder.CreateString(text) for text in value])
        if kind == "tables":
            return self.vector([self.table(*fields) for fields in value])
        if kind == "int64s":
            self.builder.StartVector(8, len(value), 8)
            for item in reversed(value):
                self.builder.PrependInt64(item)
            return self.builder.EndVector()
        return value

    def vector(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def file(self, *fields: tuple[int, str, Any], identifier: bytes = b"ODTC") -> bytes:
        root = self.table(*fields)
        self.builder.Finish(root, identifier)
        return bytes(self.builder.Output())


def tensor(name: str = "w", dims=(2,), code: int = 1, raw: bytes | None = bytes(8), offset=None):
    fields = [(0, "string", name), (2, "int64s", dims), (3, INT32, code)]
    fields += [(4, "blob", raw)] if raw is not None else []
    return [*fields, (6, INT64, offset)] if offset is not None else fields


def module(trainable=(), frozen=(), *more):
    return (1, "table", [(0, "tables", trainable), (1, "tables", frozen), *more])


VERSION = (0, INT32, 2)


def file(*fields, identifier: bytes = b"ODTC") -> bytes:
    return Raw().file(VERSION, *fields, identifier=identifier)


def with_tensor(**fields) -> bytes:
    return file(module([tensor(**fields)]))


def with_group(*fields) -> bytes:
    return file(module([tensor()]), (2, "tables", [fields]))


def with_bag(*fields) -> bytes:
    return file(module(), (3, "table", fields))


def _shared(count: int, name: bytes) -> bytes:
    """A list whose entries are all one tensor with a long name: a short file that says much."""
    raw = Raw()
    one = raw.table((0, "string", name), (3, INT32, 1), (2, "int64s", [0]))
    both = raw.vector([one] * count)
    frozen = raw.vector([])
    state = raw.table((0, "offset", both), (1, "offset", frozen))
    return raw.file(VERSION, (1, "offset", state))


def patched(position: int, form: str, value: int) -> bytes:
    data = bytearray(write_checkpoint(good_checkpoint()))
    struct.pack_into(form, data, position, value)
    return bytes(data)


def vtable_position() -> tuple[int, int]:
    """Positions of the root table and its vtable in the good checkpoint."""
    data = write_checkpoint(good_checkpoint())
    (root,) = struct.unpack_from("<I", data)
    return root, root - struct.unpack_from("<i", data, root)[0]


def _field_at(field: int, offset: int) -> bytes:
    """A checkpoint whose root has a field that no version reads, and one of its fields lies at an offset."""
    data = bytearray(file(module([tensor()]), (7, INT32, 1)))
    (root,) = struct.unpack_from("<I", data)
    vtable = root - struct.unpack_from("<i", data, root)[0]
    struct.pack_into("<H", data, vtable + 4 + 2 * field, offset)
    return bytes(data)


def bytes_cases() -> dict[str, Case]:
    """Broken below the level of content."""
    root, vtable = vtable_position()
    size = len(write_checkpoint(good_checkpoint()))
    (table,) = struct.unpack_from("<H", write_checkpoint(good_checkpoint()), vtable + 2)
    return {
        "empty": (b"", CheckpointError, "at least 8 bytes"),
        "seven_bytes": (b"1234567", CheckpointError, "at least 8 bytes"),
        "model": (good_model().SerializeToString(), CheckpointError, "ONNX model"),
        "html": (b"<html><body>404</body></html>", CheckpointError, "HTML"),
        "git_lfs": (
            b"version https://git-lfs.github.com/spec/v1\n",
            CheckpointError,
            "git lfs pull",
        ),
        "ort_model": (file(identifier=b"ORTM"), CheckpointError, "ORT format"),
        "root_0": (patched(0, "<I", 0), CheckpointError, "offset of the root"),
        "root_beyond": (patched(0, "<I", size - 3), CheckpointError, "the root"),
        "root_huge": (patched(0, "<I", 2**32 - 1), CheckpointError, "the root"),
        "root_unaligned": (patched(0, "<I", root + 1), CheckpointError, "aligned"),
        "vtable_before_start": (
            patched(root, "<i", root + 2),
            CheckpointError,
            "vtable of the root",
        ),
        "vtable_beyond_end": (patched(root, "<i", -(2**31)), CheckpointError, "vtable of the root"),
        "vtable_of_2_bytes": (patched(vtable, "<H", 2), CheckpointError, "vtable of 2 bytes"),
        "vtable_odd": (patched(vtable, "<H", 5), CheckpointError, "vtable of 5 bytes"),
        "vtable_long": (patched(vtable, "<H", 0xFFFE), CheckpointError, "vtable of the root"),
        "table_of_0_bytes": (patched(vtable + 2, "<H", 0), CheckpointError, "table of 0"),
        "table_long": (patched(vtable + 2, "<H", 0xFFFF), CheckpointError, "the root lies"),
        "field_beyond_table": (
            patched(vtable + 4, "<H", 200),
            CheckpointError,
            "a field of the root lies at 200",
        ),
        "field_in_header": (patched(vtable + 4, "<H", 2), CheckpointError, "a field of the root lies at 2,"),
        "field_across_the_end": (patched(vtable + 4, "<H", table - 2), CheckpointError, "the version lies at"),
        "unread_field_beyond_table": (_field_at(7, 0xFFFF), CheckpointError, "a field of the root lies at 65535"),
        "unread_field_in_header": (_field_at(7, 3), CheckpointError, "a field of the root lies at 3,"),
        "field_unaligned": (patched(vtable + 4, "<H", 5), CheckpointError, "aligned"),
        "same_tensor_100000_times": (
            _shared(100_000, b"n" * 100_000),
            CheckpointError,
            "overlap|two parameters",
        ),
    }


def content_cases() -> dict[str, Case]:
    """Sound flatbuffers with content that makes no sense."""
    moment = tensor("momentum0")
    state = [(0, "string", "w"), (1, "tables", [moment])]
    name = (0, "string", "group0")
    return {
        "no_module": (file(), CheckpointError, "no module state"),
        "version_1": (
            Raw().file((0, INT32, 1), module()),
            CheckpointError,
            "version 1 is not supported",
        ),
        "version_missing": (Raw().file(module()), CheckpointError, "version 0 is not supported"),
        "no_trainable": (
            file((1, "table", [(1, "tables", [])])),
            CheckpointError,
            "trainable.*missing",
        ),
        "no_frozen": (file((1, "table", [(0, "tables", [])])), CheckpointError, "frozen.*missing"),
        "duplicate": (
            file(module([tensor()], [tensor()])),
            CheckpointError,
            "two parameters named 'w'",
        ),
        "nameless": (with_tensor(name=""), CheckpointError, "no name"),
        "name_not_utf8": (with_tensor(name=b"\xff\xfe"), CheckpointError, "UTF-8"),
        "data_too_short": (with_tensor(raw=bytes(7)), CheckpointError, "7 bytes.*needs 8"),
        "data_too_long": (with_tensor(raw=bytes(9)), CheckpointError, "9 bytes.*needs 8"),
        "data_missing": (with_tensor(raw=None), CheckpointError, "0 bytes.*needs 8"),
        "negative_size": (with_tensor(dims=(-1, -2)), CheckpointError, "negative size"),
        "size_overflow": (with_tensor(dims=(2**31 - 1,) * 3), CheckpointError, "needs 39"),
        "size_huge": (with_tensor(dims=(0, 2**63 - 1)), LimitError, "dimension 1"),
        "rank_huge": (with_tensor(dims=(1,) * 70), CheckpointError, "70 elements"),
        "dtype_string": (with_tensor(code=8), CheckpointError, "string"),
        "dtype_unknown": (with_tensor(code=77), CheckpointError, "data type 77"),
        "dtype_negative": (with_tensor(code=-1), CheckpointError, "data type -1"),
        "nominal_with_data": (
            file(module([tensor()], [], (2, BOOL, True))),
            CheckpointError,
            "nominal",
        ),
        "external_from_bytes": (
            file(module([tensor(raw=None, offset=0)], [], (3, BOOL, True))),
            CheckpointError,
            "given as a path",
        ),
        "external_and_data": (with_tensor(offset=0), CheckpointError, "both data and an offset"),
        "two_groups": (
            file(module(), (2, "tables", [[name], [name]])),
            CheckpointError,
            "the optimizer groups 'group0', 'group0'; only 'group0'",
        ),
        "group_without_name": (with_group((1, INT64, 1)), CheckpointError, "no name"),
        "step_negative": (with_group(name, (1, INT64, -1)), CheckpointError, "step -1"),
        "rate_nan": (with_group(name, (2, FLOAT32, float("nan"))), CheckpointError, "rate nan"),
        "two_states": (
            with_group(name, (3, "tables", [state, state])),
            CheckpointError,
            "two states",
        ),
        "two_moments": (
            with_group(name, (3, "tables", [[(0, "string", "w"), (1, "tables", [moment, moment])]])),
            CheckpointError,
            "two momentums of 'w'",
        ),
        "property_clash": (
            with_bag((0, "tables", [[(0, "string", "p")]]), (1, "tables", [[(0, "string", "p")]])),
            CheckpointError,
            "two properties named 'p'",
        ),
        "property_nameless": (
            with_bag((0, "tables", [[(1, INT64, 1)]])),
            CheckpointError,
            "no name",
        ),
    }


def corpus() -> dict[str, Case]:
    """All of them."""
    return bytes_cases() | content_cases()
