"""The contents of a session: checked, and moved to and from kernel memory.

Checkpoints, the files of `CheckpointStore`, a fit's checkpoints and bundles hold the same contents in their formats.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.checkpoint import Resume, fields
from trainweb.errors import CheckpointError
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
    STATE_RANDOM_OFFSET,
    STATE_SCHEDULER,
    STATE_SEED,
    STATE_STEP,
    STATE_TOTAL,
    STATE_TYPES,
    STATE_WARMUP,
)
from trainweb.model.floats import converted
from trainweb.model.graph import Tensor
from trainweb.model.lazy import pieces_of
from trainweb.ops.optim.operators import AVERAGES
from trainweb.training import seed
from trainweb.training.parameters import MOMENT_OF, Layout, OptimizerState, TensorStore, check_same_type

if TYPE_CHECKING:
    from trainweb.backend.base import Segments

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
PropertyValue = int | float | str
Pieces = list[tuple[int, Tensor]]
"""Places in a segment, in bytes, and the tensors that lie there."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """All that a session goes on from, after all checks.

    Attributes
    ----------
    segments : dict of int to list of (int, Tensor)
        Contents of segments by their places. A new session has zeros where a record has nothing.
    state : bytes
        The first `STATE_KEPT` bytes of the state.
    properties : dict
        By name.
    """

    segments: Mapping[int, Pieces]
    state: bytes
    properties: Mapping[str, PropertyValue]


def start_record(layout: Layout, store: TensorStore, properties: Mapping[str, PropertyValue]) -> SessionRecord:
    """Return the contents that a session starts from: the contents of a checkpoint.

    Raises
    ------
    CheckpointError
        They do not fit the model, or no session has such a state.
    """
    state = start_state(store)
    check_state(state)
    return SessionRecord(start_segments(layout, store), state, properties)


def write_start(host: Segments, record: SessionRecord) -> None:
    """Write the contents of segments and the state."""
    write_segments(host, record.segments)
    host.write_segment(STATE, 0, record.state)


def write_segments(host: Segments, segments: Mapping[int, Pieces]) -> None:
    """Write the contents of segments."""
    for segment, pieces in segments.items():
        for offset, tensor in pieces:
            for start, piece in pieces_of(tensor):
                host.write_segment(segment, offset + start, piece)


def start_segments(layout: Layout, store: TensorStore) -> dict[int, Pieces]:
    """Return the initial contents of the segments: by segment, offsets and tensors, or nothing.

    Raises
    ------
    CheckpointError
        A parameter or moment does not fit the model.
    """
    found: dict[int, Pieces] = {}
    if not store.is_nominal:
        for slot in layout.slots.values():
            tensor = store.tensors[slot.name]
            check_same_type(tensor, "float32", slot.shape)
            found.setdefault(PARAMETERS, []).append((4 * slot.offset, converted(tensor, slot.dtype)))
    gradients = store.resume.gradients if store.resume is not None else {}
    for slot in layout.trained() if gradients else ():
        if slot.name not in gradients:
            raise CheckpointError(f"The checkpoint has gradients, but none of {slot.name!r}, which the model trains.")
        check_same_type(gradients[slot.name], "float32", slot.shape)
        found.setdefault(GRADIENTS, []).append((4 * slot.trainable_offset, gradients[slot.name]))
    stored = store.optimizer
    if stored.moments and stored.kind and layout.optimizer and stored.kind != layout.optimizer:
        raise messages.OTHER_OPTIMIZER(stored=stored.kind, own=layout.optimizer)
    for name in layout.moments:
        if name == AVERAGES.saved:
            _start_averages(layout, store, found)
            continue
        for slot in layout.trained() if stored.moments else ():
            saved = stored.moments.get(slot.name, {})
            if name not in saved:
                raise CheckpointError(
                    f"The checkpoint's optimizer state has no {name} for {slot.name!r}, which this optimizer needs."
                )
            segment, (offset, shape) = MOMENT_OF[name].segment, layout.moment(name, slot)
            check_same_type(saved[name], "float32", shape)
            found.setdefault(segment, []).append((offset, saved[name]))
    return found


def _start_averages(layout: Layout, store: TensorStore, found: dict[int, Pieces]) -> None:
    """Averages as they were kept, or where a run that kept none goes on, the parameters as they are."""
    if store.is_nominal or not store.optimizer.step:
        return  # the first step makes them
    for slot in layout.trained():
        offset, shape = layout.moment(AVERAGES.saved, slot)
        tensor = store.optimizer.moments.get(slot.name, {}).get(AVERAGES.saved, store.tensors[slot.name])
        check_same_type(tensor, "float32", shape)
        found.setdefault(AVERAGES.segment, []).append((offset, tensor))


def start_state(store: TensorStore) -> bytes:
    """Return the state words at the start; without an exact resumption the first step overwrites gradients."""
    state = bytearray(STATE_KEPT)
    resume = store.resume or Resume()
    start, position = resume.random or (seed.current(), 0)
    words = {
        STATE_LAZY_RESET: int(resume.reset),
        STATE_SEED: start,
        STATE_RANDOM_OFFSET: position,
        **optimizer_words(store.optimizer),
    }
    for word, value in words.items():
        struct.pack_into("<" + STATE_TYPES[word], state, 4 * word, value)
    return bytes(state)


def optimizer_words(optimizer: OptimizerState) -> dict[int, float]:
    """The state words that an optimizer has."""
    warmup, total = optimizer.schedule or (0, 0)
    return {
        STATE_LEARNING_RATE: optimizer.learning_rate,
        STATE_STEP: optimizer.step,
        STATE_INITIAL_LR: optimizer.initial_lr,
        STATE_SCHEDULER: int(optimizer.schedule is not None),
        STATE_WARMUP: warmup,
        STATE_TOTAL: total,
    }


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


def properties_json(properties: Mapping[str, PropertyValue]) -> list[list[str]]:
    """Name, type and text of each; 64-bit integers would not survive as JSON numbers."""
    return [
        [name, type(value).__name__, value if isinstance(value, str) else json.dumps(value)]
        for name, value in properties.items()
    ]


def read_properties(values: Any) -> dict[str, PropertyValue]:
    """The reverse of `properties_json`; checks name, type and text of each."""
    found: dict[str, PropertyValue] = {}
    for k, entry in enumerate(fields.array(values, "properties")):
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
