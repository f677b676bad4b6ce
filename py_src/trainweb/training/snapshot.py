"""All that a session goes on from, as one file: `CheckpointStore` keeps it, and `fit` resumes from it.

The file is in the safetensors format, the same in Python and in pages (web/src/worker/snapshot.ts). Its tensors are
segments of kernel memory. Its metadata are the places of the parameters, the properties and a fit's position.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.checkpoint import fields
from trainweb.checkpoint.safetensors import read_metadata, read_safetensors, write_safetensors
from trainweb.ir.layout import (
    GRADIENTS,
    MOMENTUM0,
    MOMENTUM1,
    PARAMETERS,
    STATE,
    STATE_INITIAL_LR,
    STATE_LAZY_RESET,
    STATE_LEARNING_RATE,
    STATE_LOADS,
    STATE_SCHEDULER,
    STATE_STEP,
    STATE_TOTAL,
    STATE_TYPES,
    STATE_WARMUP,
)
from trainweb.model.graph import Tensor
from trainweb.training.bundle import properties_json

if TYPE_CHECKING:
    from trainweb.training.parts import SessionParts
    from trainweb.training.state import PropertyValue

FORMAT = "trainweb-session-1"
"""What the metadata calls it; another number is another layout."""
SEGMENTS = {"parameters": PARAMETERS, "gradients": GRADIENTS, "momentum0": MOMENTUM0, "momentum1": MOMENTUM1}
STATE_KEPT = 4 * STATE_LOADS
"""Bytes of the state that a session goes on from; behind them are counts of its own memory."""
ITEM = 4
TYPES = {
    "int": (re.compile(r"-?[0-9]{1,19}"), int),
    "float": (re.compile(r"-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|Infinity)|NaN"), float),
    "str": (re.compile(r"(?s).*"), str),
}
"""Texts of properties by their type, and what makes values of them."""
PARTS = 3
"""Of a property: name, type and text."""
INT64 = (-(2**63), 2**63 - 1)
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


def take_snapshot(core: SessionParts) -> Snapshot:
    """Return the contents of a session. Gradients are included unless the next train step overwrites them."""
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


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The contents of a snapshot after all checks.

    Attributes
    ----------
    segments : dict of int to bytes or memoryview
        The whole of each segment that the session has.
    state : memoryview
        The words of the state that a session goes on from.
    properties : dict
        By name.
    """

    segments: dict[int, bytes | memoryview]
    state: memoryview
    properties: dict[str, PropertyValue]


def restore_snapshot(core: SessionParts, snapshot: Snapshot) -> None:
    """Go on from a snapshot.

    Raises
    ------
    CheckpointError
        It is of a session with other parameters or another optimizer, or was changed; nothing was changed here.
    """
    write_session(core, read_session(core, snapshot))


def read_session(core: SessionParts, snapshot: Snapshot) -> SessionRecord:
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
    segments: dict[int, bytes | memoryview] = {}
    for name, segment in SEGMENTS.items():
        nbytes, tensor = core.host.sizes[segment], snapshot.tensors.get(name)
        if tensor is None and (name == "gradients" or not nbytes):
            segments[segment] = bytes(nbytes)
        elif tensor is None or tensor.dtype != "float32" or tensor.nbytes != nbytes:
            raise messages.OTHER_SNAPSHOT(what="parameters" if name == "parameters" else "optimizer state")
        else:
            segments[segment] = memoryview(tensor.data)
    state = snapshot.tensors.get("state")
    if state is None or state.dtype != "uint8" or state.nbytes != STATE_KEPT:
        fields.refuse("" if state else fields.MISSING, "state", f"{STATE_KEPT} bytes")
    check_state(bytes(state.data))
    return SessionRecord(segments, memoryview(state.data), checked_properties(snapshot))


def check_state(state: bytes) -> None:
    """Raise CheckpointError for words of the state that no session has; any seed and offset will do."""

    def word(at: int) -> float:
        (value,) = struct.unpack_from("<" + STATE_TYPES[at], state, 4 * at)
        return value  # type: ignore[no-any-return]

    for at, name in ((STATE_LEARNING_RATE, "learningRate"), (STATE_INITIAL_LR, "initialLr")):
        fields.rate(word(at), f"state.{name}")
    for at, name in ((STATE_LAZY_RESET, "lazyReset"), (STATE_SCHEDULER, "scheduler")):
        fields.count(word(at), f"state.{name}", most=1)
    fields.count(word(STATE_STEP), "state.step")
    total = fields.count(word(STATE_TOTAL), "state.totalStepCount")
    fields.count(word(STATE_WARMUP), "state.warmupStepCount", most=total)


def checked_properties(snapshot: Snapshot) -> dict[str, PropertyValue]:
    """Check the properties of a snapshot: name, type and text of each."""
    found: dict[str, PropertyValue] = {}
    for k, entry in enumerate(fields.array(fields.parse(snapshot.metadata, "properties"), "properties")):
        field = f"properties[{k}]"
        parts: list[str] = [part for part in entry if is_text(part)] if isinstance(entry, list) else []
        name, kind, text = parts if len(parts) == PARTS == len(entry) else ("", "", "")
        if kind not in TYPES or name in found:
            fields.refuse(entry, field, "a new name, a type and a value, as texts")
        pattern, make = TYPES[kind]
        if pattern.fullmatch(text) is None or (kind == "int" and not INT64[0] <= int(text) <= INT64[1]):
            fields.refuse(text, field, f"the digits of {kind}")
        found[name] = make(text)
    return found


def is_text(value: Any) -> bool:
    """Return True if UTF-8 can encode it: halves of a surrogate pair cannot be written again."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def write_session(core: SessionParts, record: SessionRecord) -> None:
    """Have a session go on from what was checked."""
    host = core.host
    for segment, data in record.segments.items():
        host.write_segment(segment, 0, data)
    host.write_segment(STATE, 0, record.state)
    core.parameters.is_nominal = False
    core.state.property_values.clear()
    core.state.property_values.update(record.properties)
