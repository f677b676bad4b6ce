"""Parameters as files that other programs read: safetensors, and npz, which is a zip of npy. No numpy."""

from __future__ import annotations

import ast
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

from trainweb import messages
from trainweb.checkpoint.contents import check_same_type
from trainweb.checkpoint.reader import IDENTIFIER
from trainweb.errors import CheckpointError
from trainweb.model.graph import Tensor
from trainweb.model.lazy import LazyTensor
from trainweb.model.safetensors import read_safetensors, write_safetensors

if TYPE_CHECKING:
    from trainweb.checkpoint.contents import ParameterHolder

FORMATS = ("safetensors", "npz")
ZIP_MAGIC, NPY_MAGIC = b"PK\x03\x04", b"\x93NUMPY"
NPY_TYPES = {"<f4": "float32", "<f8": "float64", "<f2": "float16", "<i8": "int64", "<i4": "int32"}
NPY_ALIGNMENT = 64
EPOCH = (1980, 1, 1, 0, 0, 0)
"""When files in a zip were made: the same weights are the same bytes."""
MAX_HEADER = 10_000
NPZ_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    struct.error,
)
"""Errors of `zipfile` for files that are damaged, encrypted, or compressed otherwise."""


def export_weights(holder: ParameterHolder, names: Iterable[str], form: str) -> bytes:
    """All parameters as a file. Raise ModelError for another format."""
    if form not in FORMATS:
        raise messages.BAD_SETTING(name="format", value=form, expected=" or ".join(FORMATS))
    tensors = [holder.get(name) for name in names]
    return write_safetensors(tensors) if form == "safetensors" else write_npz(tensors)


def load_weights(holder: ParameterHolder, names: Iterable[str], data: bytes, *, strict: bool) -> None:
    """Overwrite parameters with the contents of a file.

    Raise CheckpointError, and change nothing, for another format, another type, or with `strict` other names.
    """
    if data[4:8] == IDENTIFIER:
        raise messages.CHECKPOINT_AS_WEIGHTS()
    arrays = _npz(data) if data[:4] == ZIP_MAGIC else read_safetensors(data)
    wanted = list(names)
    if strict and set(arrays) != set(wanted):
        missing, more = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
        said = [f"{what} {some[0]!r:.80}" for what, some in (("lacks", missing), ("has", more)) if some]
        raise messages.OTHER_WEIGHTS(said=" and ".join(said))
    used = [arrays[name] for name in wanted if name in arrays]
    for tensor in used:
        check_same_type(tensor, *holder.type_of(tensor.name))
    for tensor in [Tensor(t.name, t.dtype, t.shape, bytes(t.data)) for t in used]:
        holder.set(tensor)


def write_npz(tensors: Iterable[Tensor]) -> bytes:
    """Write an archive that `numpy.load` reads; not compressed, as by `numpy.savez`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for tensor in tensors:
            descr = next(code for code, dtype in NPY_TYPES.items() if dtype == tensor.dtype)
            shape = ", ".join(map(str, tensor.shape)) + ("," if len(tensor.shape) == 1 else "")
            text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
            start = len(NPY_MAGIC) + 4
            text += b" " * (-(start + len(text) + 1) % NPY_ALIGNMENT) + b"\n"
            header = NPY_MAGIC + b"\x01\x00" + struct.pack("<H", len(text)) + text
            archive.writestr(zipfile.ZipInfo(f"{tensor.name}.npy", EPOCH), header + bytes(tensor.data))
    return file.getvalue()


def _npz(data: bytes) -> dict[str, Tensor]:
    """The arrays of a file of `numpy.savez` or `numpy.savez_compressed`. Raise CheckpointError for any other."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        return {tensor.name: tensor for tensor in (_npy(archive, info) for info in archive.infolist())}
    except NPZ_FAULTS as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> CheckpointError:
    return CheckpointError(f"The npz file cannot be read: {error!s:.200}")


def _npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Tensor:
    """The array of an entry, of which only the header is unpacked: the rest is when its data is read."""
    name = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # `zipfile` unpacks a block of the others whole, however much it holds.
        raise CheckpointError(
            f"{name!r:.80} of the npz file is compressed by method {info.compress_type}; numpy stores or deflates."
        )
    with archive.open(info) as file:
        header, start = _npy_header(name, file.read(12 + MAX_HEADER))
    descr, shape = header.get("descr"), header.get("shape")
    if not isinstance(descr, str) or descr not in NPY_TYPES or header.get("fortran_order") is not False:
        order = ", column by column" if header.get("fortran_order") else ""
        raise CheckpointError(
            f"{name!r:.80} of the npz file is {descr!r:.80}{order}; there are {', '.join(NPY_TYPES)}, by rows."
        )
    size = info.file_size - start
    if not _is_shape(shape) or prod(shape) * int(descr[2:]) != size:
        raise CheckpointError(f"{name!r:.80} of the npz file has {size} bytes, and the shape {shape!r:.80}.")

    def read_into(out: memoryview) -> None:
        try:
            with archive.open(info) as file:
                file.read(start)
                content = file.read(size)
        except NPZ_FAULTS as error:
            raise _unreadable(error) from error
        if len(content) != size:
            raise CheckpointError(f"{name!r:.80} of the npz file has {len(content)} of its {size} bytes.")
        out[:] = content

    return LazyTensor(name, NPY_TYPES[descr], shape, read_into)


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(dim) is int and dim >= 0 for dim in value)


def _npy_header(name: str, data: bytes) -> tuple[dict[str, Any], int]:
    """The header of an npy file as a dict, and the position of the array's bytes."""
    wide = data[6:7] != b"\x01"
    start = 12 if wide else 10
    if not data.startswith(NPY_MAGIC) or len(data) < start:
        raise CheckpointError(f"{name!r:.80} of the npz file is not an array.")
    (length,) = struct.unpack_from("<I" if wide else "<H", data, 8)
    try:
        if length > MAX_HEADER:
            raise ValueError(f"{length} bytes")
        header = ast.literal_eval(data[start : start + length].decode())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"The header of {name!r:.80} in the npz file cannot be read: {error!s:.200}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"The header of {name!r:.80} in the npz file is not a dict.")
    return header, start + length
