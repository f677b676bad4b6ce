"""The forms of a session's contents: as files have them, as sessions take them, and in the segments of kernel memory.

In a page `web/src/worker/session-contents.ts` has the same.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.checkpoint import SessionContents, fields, read_checkpoint
from trainweb.checkpoint.contents import ParameterHolder, Property, check_same_type
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
from trainweb.model.floats import HALVES, OTHER_FLOATS, ConvertedTensor, converted, stored_type
from trainweb.model.graph import ITEM_SIZE, Tensor
from trainweb.model.lazy import LazyTensor, Place, pieces_of
from trainweb.ops.optim.operators import AVERAGES
from trainweb.training.parameters import Layout, ParameterSlot, Shape, copied

if TYPE_CHECKING:
    from pathlib import Path

    from trainweb.backend.base import Segments

NEW_SEED = [0]
"""The seed of new sessions: 0 however Python started, so that a training can be repeated."""
SEGMENTS = {"parameters": PARAMETERS, "gradients": GRADIENTS, "momentum0": MOMENTUM0, "momentum1": MOMENTUM1}
STATE_KEPT = 4 * STATE_LOADS
"""Bytes of the state that a session goes on from; behind them are counts of its own memory."""
TYPES = {
    "int": (re.compile(r"-?[0-9]{1,19}"), int),
    "float": (re.compile(r"-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|Infinity)|NaN"), float),
    "str": (re.compile(r"(?s).*"), str),
}
"""Texts of properties by their type, and what makes values of them."""
PARTS = 3
"""Parts of a property: name, type and text."""
INT64 = (-(2**63), 2**63 - 1)
Pieces = list[tuple[int, Tensor]]
"""Places in a segment, in bytes, and the tensors that lie there."""
ReadTensor = Callable[[str, int, int, Shape, str], Tensor]
"""Gives the tensor of a name in a segment, at an offset in bytes, of a shape and type."""


def for_session(contents: SessionContents) -> SessionContents:
    """Convert the contents of a file for sessions: other types of float become float32.

    Raise CheckpointError for contents that no session can use.
    """
    parameters, properties = dict(contents.parameters), dict(contents.properties)
    result = replace(contents, parameters=parameters, properties=properties, declared={}, halves={})
    for name, tensor in contents.parameters.items():
        exact = contents.exact.get(name)
        if exact is None and stored_type(tensor) in HALVES:
            result.halves[name] = stored_type(tensor)
        if tensor.dtype in OTHER_FLOATS:
            result.declared[name] = tensor.dtype
            result.parameters[name] = _float32(tensor, exact, is_nominal=contents.is_nominal)
    for name, gradient in contents.gradients.items():
        if not contents.trainable.get(name, False):
            raise CheckpointError(f"The checkpoint has a gradient of {name!r}, which is not trained.")
        check_same_type(gradient, *result.type_of(name))
    return result


def _float32(tensor: Tensor, exact: Tensor | None, *, is_nominal: bool) -> Tensor:
    if is_nominal:
        return Tensor(tensor.name, "float32", (), b"")
    if exact is None:
        return converted(tensor, "float32")
    check_same_type(exact, "float32", tensor.shape)
    return exact


def for_file(contents: SessionContents, *, include_optimizer_state: bool) -> SessionContents:
    """The contents as a checkpoint file has them, with exact values of parameters that it rounds to 16 bits."""
    parameters = {n: converted(t, contents.declared.get(n, t.dtype)) for n, t in contents.parameters.items()}
    halves = {n: contents.parameters[n] for n, dtype in contents.declared.items() if dtype in HALVES}
    return replace(
        contents,
        parameters=parameters,
        has_optimizer=include_optimizer_state and (contents.has_optimizer or contents.step > 0),
        is_exact=include_optimizer_state and (contents.is_exact or bool(contents.moments)),
        exact={n: t for n, t in halves.items() if stored_type(t) == "float32"},
    )


def leave(contents: SessionContents, layout: Layout) -> None:
    """Let go of the parameters that a session has in its memory from now on."""
    if not contents.is_nominal:
        contents.parameters = {name: t for name, t in contents.parameters.items() if name not in layout.slots}


def write_contents(host: Segments, layout: Layout, contents: SessionContents) -> None:
    """Write the start of a session into its memory. Raise CheckpointError, before any write, if it does not fit."""
    segments, state = start_segments(layout, contents), start_state(contents)
    write_segments(host, segments)
    host.write_segment(STATE, 0, state)


def write_segments(host: Segments, segments: Mapping[int, Pieces]) -> None:
    """Write the contents of segments."""
    for segment, pieces in segments.items():
        for offset, tensor in pieces:
            for start, piece in pieces_of(tensor):
                host.write_segment(segment, offset + start, piece)


def read_contents(
    origin: SessionContents, layout: Layout, read: ReadTensor, state: bytes, *, has_optimizer: bool
) -> SessionContents:
    """The contents of a session's memory, or of a copy of it, by `read` and the first `STATE_KEPT` bytes of the state.

    `origin` has parameters without slots, and without an optimizer model the optimizer's state.
    """
    parameters = dict(origin.parameters)
    result = replace(origin, is_exact=True, parameters=parameters, gradients={})
    result.scaling, result.constants = layout.scaling, layout.constants
    if not origin.is_nominal:
        for slot in layout.slots.values():
            stored = read(slot.name, PARAMETERS, 4 * slot.offset, slot.shape, slot.dtype)
            result.parameters[slot.name] = converted(stored, "float32")
    words = read_words(state)
    result.reset, result.random = bool(words[STATE_LAZY_RESET]), (words[STATE_SEED], words[STATE_RANDOM_OFFSET])
    for slot in () if result.reset else layout.trained():
        result.gradients[slot.name] = read(slot.name, GRADIENTS, 4 * slot.trainable_offset, slot.shape, "float32")
    if has_optimizer:
        result.moments = {
            slot.name: {n: read(n, *layout.moment(n, slot), "float32") for n in layout.moments}
            for slot in (layout.trained() if layout.moments else ())
        }
        result.has_optimizer, result.optimizer = True, layout.optimizer
        result.step, result.initial_lr = words[STATE_STEP], words[STATE_INITIAL_LR]
        result.learning_rate = words[STATE_LEARNING_RATE]
        result.schedule = (words[STATE_WARMUP], words[STATE_TOTAL]) if words[STATE_SCHEDULER] else None
    return result


def read_words(state: bytes | bytearray) -> dict[int, Any]:
    """The numbers of a state, by their words."""
    types = {word: kind for word, kind in STATE_TYPES.items() if 4 * word < STATE_KEPT}
    return {word: struct.unpack_from("<" + kind, state, 4 * word)[0] for word, kind in types.items()}


def start_segments(layout: Layout, contents: SessionContents) -> dict[int, Pieces]:
    """Return the initial contents of the segments. Raise CheckpointError for a tensor that does not fit the model."""
    if contents.scaling and layout.scaling and contents.scaling != layout.scaling:
        raise messages.OTHER_SCALING(stored=contents.scaling, own=layout.scaling)
    if contents.constants and layout.constants and contents.constants != layout.constants:
        raise messages.OTHER_CONSTANTS(stored=contents.constants, own=layout.constants)
    segments: dict[int, Pieces] = {}
    if not contents.is_nominal:
        for slot in layout.slots.values():
            tensor = contents.parameters[slot.name]
            check_same_type(tensor, "float32", slot.shape)
            segments.setdefault(PARAMETERS, []).append((4 * slot.offset, converted(tensor, slot.dtype)))
    gradients, moments = contents.gradients, contents.moments
    for slot in layout.trained() if gradients else ():
        if slot.name not in gradients:
            raise CheckpointError(f"The checkpoint has gradients, but none of {slot.name!r}, which the model trains.")
        check_same_type(gradients[slot.name], "float32", slot.shape)
        segments.setdefault(GRADIENTS, []).append((4 * slot.trainable_offset, gradients[slot.name]))
    if moments and contents.optimizer and layout.optimizer and contents.optimizer != layout.optimizer:
        raise messages.OTHER_OPTIMIZER(stored=contents.optimizer, own=layout.optimizer)
    for name in layout.moments:
        if name == AVERAGES.saved:
            _start_averages(layout, contents, segments)
            continue
        for slot in layout.trained() if moments else ():
            saved = moments.get(slot.name, {})
            if name not in saved:
                raise CheckpointError(
                    f"The checkpoint's optimizer state has no {name} for {slot.name!r}, which this optimizer needs."
                )
            segment, offset, shape = layout.moment(name, slot)
            check_same_type(saved[name], "float32", shape)
            segments.setdefault(segment, []).append((offset, saved[name]))
    return segments


def _start_averages(layout: Layout, contents: SessionContents, segments: dict[int, Pieces]) -> None:
    """Averages as they were kept, or where a run that kept none goes on, the parameters as they are."""
    for slot in () if contents.is_nominal else layout.trained():
        segment, offset, shape = layout.moment(AVERAGES.saved, slot)
        tensor = contents.moments.get(slot.name, {}).get(AVERAGES.saved)
        if tensor is None and not contents.step:
            continue  # the first step makes them
        tensor = tensor or contents.parameters[slot.name]
        check_same_type(tensor, "float32", shape)
        segments.setdefault(segment, []).append((offset, tensor))


def start_state(contents: SessionContents) -> bytes:
    """Return the state words at the start; without an exact resumption the first step overwrites gradients.

    Raise CheckpointError for words that no session has.
    """
    state = bytearray(STATE_KEPT)
    start, position = contents.random or (NEW_SEED[0], 0)
    words = {
        STATE_LAZY_RESET: int(contents.reset),
        STATE_SEED: start,
        STATE_RANDOM_OFFSET: position,
        **optimizer_words(contents),
    }
    for word, value in words.items():
        struct.pack_into("<" + STATE_TYPES[word], state, 4 * word, value)
    check_state(state)
    return bytes(state)


def optimizer_words(contents: SessionContents) -> dict[int, float]:
    """The state words of an optimizer."""
    warmup, total = contents.schedule or (0, 0)
    return {
        STATE_LEARNING_RATE: contents.learning_rate,
        STATE_STEP: contents.step,
        STATE_INITIAL_LR: contents.initial_lr,
        STATE_SCHEDULER: int(contents.schedule is not None),
        STATE_WARMUP: warmup,
        STATE_TOTAL: total,
    }


def check_state(state: bytes | bytearray) -> None:
    """Raise CheckpointError for words of the state that no session has; any seed and offset will do."""
    words = read_words(state)
    for at, name in ((STATE_LEARNING_RATE, "learningRate"), (STATE_INITIAL_LR, "initialLr")):
        fields.rate(words[at], f"state.{name}")
    for at, name in ((STATE_LAZY_RESET, "lazyReset"), (STATE_SCHEDULER, "scheduler")):
        fields.count(words[at], f"state.{name}", most=1)
    fields.count(words[STATE_STEP], "state.step")
    total = fields.count(words[STATE_TOTAL], "state.totalStepCount")
    fields.count(words[STATE_WARMUP], "state.warmupStepCount", most=total)


def properties_json(properties: Mapping[str, Property]) -> list[list[str]]:
    """Name, type and text of each; 64-bit integers would not survive as JSON numbers."""
    return [
        [name, type(value).__name__, value if isinstance(value, str) else json.dumps(value)]
        for name, value in properties.items()
    ]


def read_properties(values: Any) -> dict[str, Property]:
    """The reverse of `properties_json`; checks name, type and text of each."""
    properties: dict[str, Property] = {}
    for k, entry in enumerate(fields.array(values, "properties")):
        field = f"properties[{k}]"
        parts: list[str] = [part for part in entry if is_text(part)] if isinstance(entry, list) else []
        name, kind, text = parts if len(parts) == PARTS == len(entry) else ("", "", "")
        if kind not in TYPES or name in properties:
            fields.refuse(entry, field, "a new name, a type and a value, as texts")
        pattern, make = TYPES[kind]
        if pattern.fullmatch(text) is None or (kind == "int" and not INT64[0] <= int(text) <= INT64[1]):
            fields.refuse(text, field, f"the digits of {kind}")
        properties[name] = make(text)
    return properties


def is_text(value: Any) -> bool:
    """Return True if UTF-8 can encode it: halves of a surrogate pair cannot be written again."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


class ContentsInMemory(ParameterHolder):
    """The contents of a session in its segments.

    `origin`, which the session started from, keeps parameters without slots, and without an optimizer model the
    optimizer's state.
    """

    def __init__(self, layout: Layout, host: Segments, origin: SessionContents, *, has_optimizer: bool) -> None:
        self.layout, self.host, self.origin, self.has_optimizer = layout, host, origin, has_optimizer
        self.trainable, self.properties = origin.trainable, origin.properties
        self.is_nominal = origin.is_nominal

    def type_of(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name in self.layout.slots:
            return "float32", self.layout.slots[name].shape
        return self.origin.type_of(name)

    def read(self, name: str) -> Tensor:
        if name not in self.layout.slots and name in self.trainable:
            return self.origin.read(name)
        slot = self.layout.find(name)
        return copied(self._parameter(slot))

    def _parameter(self, slot: ParameterSlot) -> LazyTensor:
        """The value of a parameter, in float32, read when its data is."""
        stored = self._lazy(slot.name, PARAMETERS, 4 * slot.offset, slot.shape, slot.dtype)
        return stored if slot.dtype == "float32" else ConvertedTensor(stored, "float32")

    def write(self, tensor: Tensor) -> None:
        if tensor.name not in self.layout.slots:
            self.origin.write(tensor)
            return
        slot = self.layout.slots[tensor.name]
        self.host.write_segment(PARAMETERS, 4 * slot.offset, memoryview(converted(tensor, slot.dtype).data))

    def gradient(self, name: str) -> Tensor | None:
        slot = self.layout.slots.get(name)
        if slot is None or slot.trainable_offset < 0:
            return None
        data = self.host.read_segment(GRADIENTS, 4 * slot.trainable_offset, 4 * slot.size)
        return Tensor(name, "float32", slot.shape, data)

    def contents(self) -> SessionContents:
        origin = replace(self.origin, is_nominal=self.is_nominal)
        state = self.host.read_segment(STATE, 0, STATE_KEPT)
        return read_contents(origin, self.layout, self._lazy, state, has_optimizer=self.has_optimizer)

    def _lazy(self, name: str, segment: int, offset: int, shape: Shape, dtype: str) -> LazyTensor:
        read_into = partial(self.host.read_segment_into, segment, offset)
        place = Place("segment", segment, offset, ITEM_SIZE[dtype] * prod(shape))
        return LazyTensor(name, dtype, shape, read_into, place)

    def take(self, origin: SessionContents) -> None:
        """Go on with these parameters, moments and schedule; gradients and random numbers are the session's own."""
        segments = start_segments(self.layout, replace(origin, gradients={}))
        self.origin, self.trainable, self.is_nominal = origin, origin.trainable, origin.is_nominal
        write_segments(self.host, segments)
        for word, value in optimizer_words(origin).items():
            self.host.write_state(word, value)

    def give_back(self) -> SessionContents:
        """Return what the session started from with the current values; its gradients and random numbers are lost."""
        contents = self.contents()
        return replace(
            contents,
            parameters={name: copied(tensor) for name, tensor in contents.parameters.items()},
            moments={p: {n: copied(t) for n, t in named.items()} for p, named in contents.moments.items()},
            is_exact=contents.has_optimizer,
            reset=True,
            random=None,
            gradients={},
        )

    # All parameters at once.

    def get_contiguous(self, trainable_only: bool) -> Tensor:
        """All (trainable) parameters, one after the other. Raise CheckpointError if the contents are nominal."""
        self.host.check()
        if self.is_nominal:
            raise messages.NOMINAL(action="copy parameters from")
        data, start = bytearray(4 * self.layout.count(trainable_only)), 0
        for slot in self.layout.listed(trainable_only):
            self._parameter(slot).read_into(memoryview(data)[start : start + 4 * slot.size])
            start += 4 * slot.size
        return Tensor("parameters", "float32", (self.layout.count(trainable_only),), data)

    def load_contiguous(self, data: bytes | bytearray | memoryview, trainable_only: bool) -> None:
        """Overwrite all (trainable) parameters with little-endian float32 bytes.

        Raise BufferSizeError for another number of bytes, and CheckpointError if nominal contents lack the frozen ones.
        """
        self.host.check()
        if self.is_nominal and trainable_only:
            raise messages.NOMINAL_LOAD()
        expected = 4 * self.layout.count(trainable_only)
        if len(data) != expected:
            raise messages.BUFFER_SIZE(expected=expected, actual=len(data))
        view, start = memoryview(data), 0
        for slot in self.layout.listed(trainable_only):
            end = start + 4 * slot.size
            self.write(Tensor(slot.name, "float32", slot.shape, view[start:end]))
            start = end
        self.is_nominal = False


def check_places(stored: Any, own: list[Any]) -> None:
    """Raise for the first parameter that only one of two lists of `places` has, or that differs."""
    if stored == own:
        return
    theirs, mine = _described(stored), _described(own)
    for name in (*mine, *theirs):
        there, here = theirs.get(name, "missing"), mine.get(name, "missing")
        if there != here:
            raise messages.OTHER_PARAMETER(name=name, stored=there, own=here)
    raise messages.OTHER_SNAPSHOT(what="parameters")


def _described(listed: Any) -> dict[str, str]:
    """The parameters of `places` by name; a file may hold anything in their place."""
    rows = [row for row in listed if isinstance(row, list)] if isinstance(listed, list) else []
    return {
        name: f"{'frozen' if place[1:2] == [-1] else 'trained'} {shape}"
        for name, shape, *place in (row for row in rows if len(row) > 1)
        if isinstance(name, str) and isinstance(shape, list) and all(type(size) is int for size in shape)
    }


def go_on(parameters: ContentsInMemory, contents: SessionContents) -> None:
    """Continue a session from contents with the session's layout."""
    write_contents(parameters.host, parameters.layout, contents)
    parameters.is_nominal = False
    properties = parameters.properties
    properties.clear()
    properties.update(contents.properties)


def go_on_from_file(parameters: ContentsInMemory, file: bytes | str | Path) -> None:
    """Continue a session from a file of `save_checkpoint`. Raise CheckpointError, before any change, for another's."""
    stored, layout = for_session(read_checkpoint(file)), parameters.layout
    if stored.is_nominal:
        raise messages.NOMINAL(action="copy parameters from")
    check_places(_listed(stored), _listed(parameters))
    # A file may lack gradients and moments: they are zeros, as in a new session.
    if not stored.gradients:
        stored.gradients = {slot.name: _zeros(slot.name, slot.shape) for slot in layout.trained()}
    if not stored.moments:
        names = [name for name in layout.moments if name != AVERAGES.saved]
        stored.moments = {s.name: {n: _zeros(n, layout.moment(n, s)[2]) for n in names} for s in layout.trained()}
    go_on(parameters, stored)


def _zeros(name: str, shape: Shape) -> Tensor:
    return Tensor(name, "float32", shape, bytes(ITEM_SIZE["float32"] * prod(shape)))


def _listed(holder: ParameterHolder) -> list[Any]:
    """As `places`, but without the places: a file has none."""
    trainable = sorted(holder.trainable.items())
    return [[name, [*holder.type_of(name)[1]], 0, int(is_trained) - 1] for name, is_trained in trainable]
