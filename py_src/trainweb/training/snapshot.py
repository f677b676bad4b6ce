"""All that a session goes on from, as one file: `CheckpointStore` keeps it, and `fit` resumes from it.

The file is in the safetensors format, the same in Python and in pages (web/src/worker/snapshot.ts). Its tensors are
segments of kernel memory. Its metadata are the places of the parameters, the properties and a fit's position.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.checkpoint import SessionContents, fields
from trainweb.checkpoint.safetensors import TensorFile
from trainweb.ir.layout import GRADIENTS, STATE, STATE_LAZY_RESET
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.training.contents import (
    SEGMENTS,
    STATE_KEPT,
    check_state,
    properties_json,
    read_contents,
    read_properties,
    write_contents,
)
from trainweb.training.parameters import Shape

if TYPE_CHECKING:
    from trainweb.training.core import SessionCore

ITEM = 4
FORMAT = "trainweb-session-1"
"""What the metadata calls it; another number is another layout."""
LONGEST_NAME = 40
"""Letters of an optimizer's name that a message shows."""


def open_snapshot(data: bytes) -> TensorFile:
    """Read a file.

    Raises
    ------
    CheckpointError
        It is none.
    """
    found = TensorFile.from_bytes(data)
    given = found.metadata.get("format", "none")
    if given != FORMAT:
        raise messages.NO_SNAPSHOT(given=given[:LONGEST_NAME], expected=FORMAT)
    return found


def take_snapshot(core: SessionCore) -> TensorFile:
    """Return the contents of a session. Gradients are included unless the next train step overwrites them."""
    core._check()
    if core.parameters.is_nominal:
        raise messages.NOMINAL_SAVE()
    host, tensors = core.host, dict[str, Tensor]()
    for name, segment in SEGMENTS.items():
        nbytes = host.sizes[segment]
        if nbytes and (segment != GRADIENTS or not host.read_state(STATE_LAZY_RESET)):
            data = host.read_segment(segment, 0, nbytes)
            tensors[name] = Tensor(name, "float32", (nbytes // ITEM,), data)
    tensors["state"] = Tensor("state", "uint8", (STATE_KEPT,), host.read_segment(STATE, 0, STATE_KEPT))
    properties = json.dumps(properties_json(core.parameters.properties), ensure_ascii=False)
    metadata = {"format": FORMAT, "parameters": places(core), "properties": properties}
    return TensorFile(tensors, metadata | {"optimizer": core.layout.optimizer})


def places(core: SessionCore) -> str:
    """Names, shapes, places and types of the parameters: a session takes back what has the same."""
    slots = core.layout.slots.values()
    listed = [[s.name, list(s.shape), s.offset, s.trainable_offset, s.dtype] for s in slots]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def restore_snapshot(core: SessionCore, snapshot: TensorFile) -> None:
    """Go on from a snapshot.

    Raises
    ------
    CheckpointError
        It is of a session with other parameters or another optimizer, or was changed; nothing was changed here.
    """
    go_on(core, read_snapshot(core, snapshot))


def read_snapshot(core: SessionCore, snapshot: TensorFile) -> SessionContents:
    """Check everything that a session takes of a snapshot.

    Parameters, gradients and moments may be NaN or infinity, as in the session that was saved.

    Raises
    ------
    CheckpointError
        As `restore_snapshot`.
    """
    core._check()
    if fields.parse(snapshot.metadata, "parameters") != json.loads(places(core)):
        raise messages.OTHER_SNAPSHOT(what="parameters")
    stored, own = snapshot.metadata.get("optimizer", ""), core.layout.optimizer
    if stored and own and stored != own:
        raise messages.OTHER_OPTIMIZER(stored=stored[:LONGEST_NAME], own=own)
    segments: dict[int, memoryview] = {}
    for name, segment in SEGMENTS.items():
        nbytes, tensor = core.host.sizes[segment], snapshot.tensors.get(name)
        if tensor is None and (name == "gradients" or not nbytes):
            tensor = Tensor(name, "float32", (nbytes // ITEM,), bytes(nbytes))
        if tensor is None or tensor.dtype != "float32" or tensor.nbytes != nbytes:
            raise messages.OTHER_SNAPSHOT(what="parameters" if name == "parameters" else "optimizer state")
        segments[segment] = memoryview(tensor.data)
    state = snapshot.tensors.get("state")
    if state is None or state.dtype != "uint8" or state.nbytes != STATE_KEPT:
        fields.refuse("" if state else fields.MISSING, "state", f"{STATE_KEPT} bytes")
    check_state(bytes(state.data))

    def read(name: str, segment: int, offset: int, shape: Shape, dtype: str) -> Tensor:
        return Tensor(name, dtype, shape, segments[segment][offset : offset + ITEM_SIZE[dtype] * prod(shape)])

    origin, layout = replace(core.parameters.origin, is_nominal=False), core.layout
    contents = read_contents(origin, layout, read, bytes(state.data), has_optimizer=True)
    # Where the next step overwrites them, they are zeros, as in a new session.
    contents.gradients = {
        s.name: read(s.name, GRADIENTS, 4 * s.trainable_offset, s.shape, "float32") for s in layout.trained()
    }
    contents.properties = read_properties(fields.parse(snapshot.metadata, "properties"))
    return contents


def go_on(core: SessionCore, contents: SessionContents) -> None:
    """Continue a session from contents with the session's layout."""
    write_contents(core.host, core.layout, contents)
    core.parameters.is_nominal = False
    properties = core.parameters.properties
    properties.clear()
    properties.update(contents.properties)
