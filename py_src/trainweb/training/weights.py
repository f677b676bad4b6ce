"""Parameters as files that other programs read: safetensors, and npz, which is a zip of npy. No numpy."""

from __future__ import annotations

import ast
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.checkpoint.safetensors import read_safetensors, write_safetensors
from trainweb.errors import CheckpointError
from trainweb.model.graph import Tensor

if TYPE_CHECKING:
    from trainweb.training.parameters import ParameterStore

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
"""What `zipfile` raises of files that are damaged, encrypted, or compressed otherwise."""


def export_weights(store: ParameterStore, names: Iterable[str], form: str) -> bytes:
    """All parameters as a file.

    Raises
    ------
    ModelError
        There is no such format.
    """
    if form not in FORMATS:
        raise messages.BAD_SETTING(name="format", value=form, expected=" or ".join(FORMATS))
    tensors = [store.get(name) for name in names]
    return write_safetensors(tensors) if form == "safetensors" else write_npz(tensors)


def load_weights(store: ParameterStore, names: Iterable[str], data: bytes, *, strict: bool) -> None:
    """Overwrite parameters with those of a file.

    Raises
    ------
    CheckpointError
        It is neither format, lacks a parameter or has others though `strict`, or one of another type; nothing changed.
    """
    found = read_npz(data) if data[:4] == ZIP_MAGIC else read_safetensors(data)
    wanted = list(names)
    if strict and set(found) != set(wanted):
        missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        said = [f"{what} {some[0]!r}" for what, some in (("lacks", missing), ("has", more)) if some]
        raise messages.OTHER_WEIGHTS(said=" and ".join(said))
    used = [found[name] for name in wanted if name in found]
    for tensor in used:
        dtype, shape = store.type_of(tensor.name)
        if tensor.dtype != dtype:
            raise messages.PARAMETER_DTYPE(name=tensor.name, expected=dtype, actual=tensor.dtype)
        if tensor.shape != shape:
            raise messages.PARAMETER_SHAPE(name=tensor.name, expected=list(shape), actual=list(tensor.shape))
    for tensor in used:
        store.set(tensor)


def write_npz(tensors: Iterable[Tensor]) -> bytes:
    """What `numpy.load` reads; not compressed, as `numpy.savez`."""
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


def read_npz(data: bytes) -> dict[str, Tensor]:
    """The arrays of a file that `numpy.savez` or `numpy.savez_compressed` wrote.

    Raises
    ------
    CheckpointError
        It is none, or has arrays that this does not read.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    except NPZ_FAULTS as error:
        raise CheckpointError(f"The npz file cannot be read: {error}") from error
    return {name: _read_npy(name, npy) for name, npy in files.items()}


def _read_npy(name: str, data: bytes) -> Tensor:
    header, body = _npy_header(name, data)
    descr, shape = header.get("descr"), header.get("shape")
    if not isinstance(descr, str) or descr not in NPY_TYPES or header.get("fortran_order") is not False:
        order = ", column by column" if header.get("fortran_order") else ""
        raise CheckpointError(
            f"{name!r} of the npz file is {descr!r}{order}; there are {', '.join(NPY_TYPES)}, by rows."
        )
    size = int(descr[2:])
    if not isinstance(shape, tuple) or prod(shape) * size != len(body):
        raise CheckpointError(f"{name!r} of the npz file has {len(body)} bytes, and the shape {shape!r}.")
    return Tensor(name, NPY_TYPES[descr], shape, body)


def _npy_header(name: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    """What an npy file says of its array, and the array's bytes."""
    wide = data[6:7] != b"\x01"
    start = 12 if wide else 10
    if not data.startswith(NPY_MAGIC) or len(data) < start:
        raise CheckpointError(f"{name!r} of the npz file is no array.")
    (length,) = struct.unpack_from("<I" if wide else "<H", data, 8)
    try:
        if length > MAX_HEADER:
            raise ValueError(f"{length} bytes")
        header = ast.literal_eval(data[start : start + length].decode())
    except (ValueError, SyntaxError) as error:
        raise CheckpointError(f"The header of {name!r} in the npz file cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"The header of {name!r} in the npz file is no dict.")
    return header, data[start + length :]
