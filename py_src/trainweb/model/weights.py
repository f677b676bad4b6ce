"""Weights of a graph without weights: tensors of safetensors files, by the names of its initializers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from trainweb import messages
from trainweb.errors import CheckpointError, ModelError
from trainweb.model.floats import converted
from trainweb.model.graph import Tensor
from trainweb.model.remote import RangedFile, tensor_of
from trainweb.model.safetensors import Entry, entries_of

GIVEN = "trainweb:weights"
"""Prefix of the locations of weights that a page gives among external data."""
SPARE = f"{GIVEN}/spare"
"""Prefix where a graph may have data of its own, so that the weights are not needed."""
SUFFIX = ".safetensors"
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types that a file may have instead of each other."""

Absent = Callable[[], list[str]]


class Weights:
    """Tensors of files, which have names for errors; no file is read before a tensor of it is needed."""

    def __init__(self, files: Iterable[tuple[str, bytes | memoryview | RangedFile]]) -> None:
        self._files = list(files)
        self.names = [name for name, _ in self._files]
        self.is_read = False

    @cached_property
    def _found(self) -> dict[str, tuple[Entry, bytes | memoryview | RangedFile]]:
        """Tensors by name, and the file of each."""
        tensors: dict[str, tuple[Entry, bytes | memoryview | RangedFile]] = {}
        for name, data in self._files:
            try:
                entries = entries_of(data)
            except CheckpointError as error:
                raise ModelError(f"The weights {name!r:.200} cannot be used: {error}") from error
            for tensor, entry in entries.items():
                if tensor in tensors:
                    raise ModelError(f"Two files of weights have a tensor {tensor!r:.200}: give each tensor once.")
                tensors[tensor] = entry, data
        return tensors

    def tensor(self, name: str, dtype: str, shape: tuple[int, ...], absent: Absent = list) -> Tensor:
        """The tensor of an initializer, in the type that the graph declares.

        `absent` returns parameters that the graph was made of and has no initializers of. A tensor that the files lack
        is tied to the one of its shape. Raise ModelError for a name or shape that the files lack, a file of another
        format, or two files with the same tensor.
        """
        files, source = ", ".join(self.names), name
        if name not in self._found:
            tied = [other for other in absent() if other in self._found and self._found[other][0].shape == shape]
            source = tied[0] if len(tied) == 1 else name
        if source not in self._found:
            near = get_close_matches(name, self._found, 1)
            like = f" The nearest is {near[0]!r:.200}." if near else ""
            raise ModelError(
                f"Initializer {name!r:.200} has no data in the model, and the weights ({files:.200}) have no tensor of "
                f"that name.{like} Export the graph so that its initializers keep the names of the module's parameters."
            )
        entry, data = self._found[source]
        if entry.shape != shape:
            raise ModelError(
                f"Tensor {name!r:.200} of the weights ({files:.200}) has shape {list(entry.shape)}; the model declares "
                f"{list(shape)}. The weights must be those of this model."
            )
        if entry.dtype != dtype and not {entry.dtype, dtype} <= set(FLOATS):
            raise ModelError(
                f"Tensor {name!r:.200} of the weights ({files:.200}) is {entry.dtype}; the model declares {dtype}."
            )
        self.is_read = True
        start, stop = entry.start, entry.stop
        source_bytes = data.range(start, stop) if isinstance(data, RangedFile) else memoryview(data)[start:stop]
        return converted(tensor_of(name, entry.dtype, shape, source_bytes), dtype)


SHARD = re.compile(r"(?!\.*$)[^/\\:\0]+")


def shards(index: Path) -> list[str]:
    """Names of the files that an index of weights lists; they lie beside it."""
    weight_map = read_object(index).get("weight_map", {})
    names: list[Any] = [*weight_map.values()] if isinstance(weight_map, dict) else [None]
    if not all(isinstance(name, str) and SHARD.fullmatch(name) for name in names):
        raise messages.BAD_SHARDS(name=index.name)
    files = sorted({*names})
    missing = next((name for name in files if not (index.parent / name).is_file()), None)
    if missing is not None:
        raise messages.NO_SHARD(name=index.name, file=missing)
    return files


def read_object(path: Path) -> dict[str, Any]:
    """The contents of a file, which need not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise messages.NOT_JSON(name=path.name, fault=str(error)) from error
    if not isinstance(content, dict):
        raise messages.NOT_JSON(name=path.name, fault=f"it has {type(content).__name__}, not an object")
    return content
