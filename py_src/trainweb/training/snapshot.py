"""All that a session goes on from, as one file: `CheckpointStore` keeps it, and `fit` resumes from it.

The file is in the safetensors format, the same in Python and in pages (web/src/worker/snapshot.ts). Its tensors are
segments of kernel memory. Its metadata are the places of the parameters, the properties and a fit's position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.checkpoint import fields
from trainweb.checkpoint.safetensors import read_metadata, read_safetensors, write_safetensors
from trainweb.ir.layout import GRADIENTS, STATE, STATE_LAZY_RESET
from trainweb.model.graph import Tensor
from trainweb.training.record import (
    ITEM,
    SEGMENTS,
    STATE_KEPT,
    Pieces,
    SessionRecord,
    check_state,
    properties_json,
    read_properties,
    write_start,
)

if TYPE_CHECKING:
    from trainweb.training.core import SessionCore

FORMAT = "trainweb-session-1"
"""What the metadata calls it; another number is another layout."""
LONGEST_NAME = 40
"""Letters of an optimizer's name that a message shows."""


@dataclass(slots=True)
class Snapshot:
    """The contents of a file.

    Attributes
    ----------
    tensors : dict of str to Tensor
        Segments by name, "state", and what a fit keeps besides.
    metadata : dict of str to str
        Texts by name.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file."""
        return write_safetensors(self.tensors.values(), self.metadata)

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Read a file.

        Raises
        ------
        CheckpointError
            It is none.
        """
        metadata = read_metadata(data)
        given = metadata.get("format", "none")
        if given != FORMAT:
            raise messages.NO_SNAPSHOT(given=given[:LONGEST_NAME], expected=FORMAT)
        return cls(read_safetensors(data), metadata)


def take_snapshot(core: SessionCore) -> Snapshot:
    """Return the contents of a session. Gradients are included unless the next train step overwrites them."""
    record = record_of(core)
    found = {tensor.name: tensor for pieces in record.segments.values() for _, tensor in pieces}
    found["state"] = Tensor("state", "uint8", (len(record.state),), record.state)
    properties = json.dumps(properties_json(record.properties), ensure_ascii=False)
    metadata = {"format": FORMAT, "parameters": places(core), "properties": properties}
    return Snapshot(found, metadata | {"optimizer": core.layout.optimizer})


def places(core: SessionCore) -> str:
    """Names, shapes, places and types of the parameters: a session takes back what has the same."""
    slots = core.layout.slots.values()
    listed = [[s.name, list(s.shape), s.offset, s.trainable_offset, s.dtype] for s in slots]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def restore_snapshot(core: SessionCore, snapshot: Snapshot) -> None:
    """Go on from a snapshot.

    Raises
    ------
    CheckpointError
        It is of a session with other parameters or another optimizer, or was changed; nothing was changed here.
    """
    write_record(core, read_session(core, snapshot))


def read_session(core: SessionCore, snapshot: Snapshot) -> SessionRecord:
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
    segments: dict[int, Pieces] = {}
    for name, segment in SEGMENTS.items():
        nbytes, tensor = core.host.sizes[segment], snapshot.tensors.get(name)
        if tensor is None and (name == "gradients" or not nbytes):
            tensor = Tensor(name, "float32", (nbytes // ITEM,), bytes(nbytes))
        if tensor is None or tensor.dtype != "float32" or tensor.nbytes != nbytes:
            raise messages.OTHER_SNAPSHOT(what="parameters" if name == "parameters" else "optimizer state")
        segments[segment] = [(0, tensor)]
    state = snapshot.tensors.get("state")
    if state is None or state.dtype != "uint8" or state.nbytes != STATE_KEPT:
        fields.refuse("" if state else fields.MISSING, "state", f"{STATE_KEPT} bytes")
    check_state(bytes(state.data))
    properties = read_properties(fields.parse(snapshot.metadata, "properties"))
    return SessionRecord(segments, bytes(state.data), properties)


def record_of(core: SessionCore) -> SessionRecord:
    """Return the contents of a session. Gradients are included unless the next train step overwrites them."""
    core._check()
    if core.parameters.is_nominal:
        raise messages.NOMINAL_SAVE()
    host, segments = core.host, dict[int, Pieces]()
    for name, segment in SEGMENTS.items():
        nbytes = host.sizes[segment]
        if nbytes and (segment != GRADIENTS or not host.read_state(STATE_LAZY_RESET)):
            data = host.read_segment(segment, 0, nbytes)
            segments[segment] = [(0, Tensor(name, "float32", (nbytes // ITEM,), data))]
    return SessionRecord(segments, host.read_segment(STATE, 0, STATE_KEPT), dict(core.state.property_values))


def write_record(core: SessionCore, record: SessionRecord) -> None:
    """Continue a session from a record with the session's layout."""
    write_start(core.host, record)
    core.parameters.is_nominal = False
    core.state.property_values.clear()
    core.state.property_values.update(record.properties)
