"""All that a session goes on from, as one file: `CheckpointStore` keeps it, and `fit` resumes from it.

The file is in the safetensors format, the same in Python and in pages (web/src/worker/snapshot.ts): segments of kernel
memory as flat tensors, and as metadata the places of the parameters, the properties and, of a fit, how far it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.checkpoint.safetensors import read_metadata, read_safetensors, write_safetensors
from trainweb.errors import CheckpointError
from trainweb.ir.layout import GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS, STATE, STATE_LAZY_RESET, STATE_LOADS
from trainweb.model.graph import Tensor
from trainweb.training.bundle import properties_json, read_properties

if TYPE_CHECKING:
    from trainweb.training.parts import SessionParts

FORMAT = "trainweb-session-1"
"""What the metadata calls it; another number is another layout."""
SEGMENTS = {"parameters": PARAMETERS, "gradients": GRADIENTS, "momentum0": MOMENTUM0, "momentum1": MOMENTUM1}
STATE_KEPT = 4 * STATE_LOADS
"""Bytes of the state that a session goes on from; behind them are counts of its own memory."""
ITEM = 4


@dataclass(slots=True)
class Snapshot:
    """What a file holds.

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
        if metadata.get("format") != FORMAT:
            raise messages.NO_SNAPSHOT(given=metadata.get("format", "none"), expected=FORMAT)
        return cls(read_safetensors(data), metadata)


def take_snapshot(core: SessionParts) -> Snapshot:
    """What a session is made of now. Gradients are kept unless the next train step overwrites them."""
    core._check()
    if core.parameters.is_nominal:
        raise messages.NOMINAL_SAVE()
    host = core.host
    state = host.read_segment(STATE, 0, STATE_KEPT)
    found = {"state": Tensor("state", "uint8", (len(state),), state)}
    for name, segment in SEGMENTS.items():
        nbytes = host.sizes[segment]
        if nbytes and (segment != GRADIENTS or not host.read_state(STATE_LAZY_RESET)):
            data = host.read_segment(segment, 0, nbytes)
            found[name] = Tensor(name, "float32", (nbytes // ITEM,), data)
    properties = json.dumps(properties_json(core.state.property_values), ensure_ascii=False)
    metadata = {"format": FORMAT, "parameters": places(core), "properties": properties}
    return Snapshot(found, metadata | {"optimizer": core.layout.optimizer})


def places(core: SessionParts) -> str:
    """Names, shapes and places of the parameters: a session takes back what has the same."""
    slots = core.layout.slots.values()
    listed = [[s.name, list(s.shape), s.offset, s.trainable_offset] for s in slots]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def restore_snapshot(core: SessionParts, snapshot: Snapshot) -> None:
    """Go on from a snapshot.

    Raises
    ------
    CheckpointError
        It is of a session with other parameters or another optimizer; nothing was changed.
    """
    core._check()
    host = core.host
    check_fits(core, snapshot)
    for name, segment in SEGMENTS.items():
        nbytes = host.sizes[segment]
        if nbytes:
            tensor = snapshot.tensors.get(name)
            host.write_segment(segment, 0, bytes(nbytes) if tensor is None else memoryview(tensor.data))
    host.write_segment(STATE, 0, memoryview(snapshot.tensors["state"].data))
    core.parameters.is_nominal = False
    core.state.property_values.clear()
    core.state.property_values.update(read_properties(json.loads(snapshot.metadata["properties"])))


def check_fits(core: SessionParts, snapshot: Snapshot) -> None:
    """Raise CheckpointError for what is no snapshot of such a session."""
    if json.loads(snapshot.metadata.get("parameters", "null")) != json.loads(places(core)):
        raise messages.OTHER_SNAPSHOT(what="parameters")
    stored, own = snapshot.metadata.get("optimizer", ""), core.layout.optimizer
    if stored and own and stored != own:
        raise messages.OTHER_OPTIMIZER(stored=stored, own=own)
    for name, segment in SEGMENTS.items():
        nbytes, tensor = core.host.sizes[segment], snapshot.tensors.get(name)
        if tensor is None and (name == "gradients" or not nbytes):
            continue
        if tensor is None or tensor.dtype != "float32" or tensor.nbytes != nbytes:
            raise messages.OTHER_SNAPSHOT(what="parameters" if name == "parameters" else "optimizer state")
    state = snapshot.tensors.get("state")
    if state is None or state.nbytes != STATE_KEPT or "properties" not in snapshot.metadata:
        raise CheckpointError("The checkpoint lacks the state of its session.")


def parsed(snapshot: Snapshot, name: str) -> Mapping[str, Any]:
    """A text of the metadata, which is JSON."""
    found = json.loads(snapshot.metadata[name])
    assert isinstance(found, dict)
    return found
