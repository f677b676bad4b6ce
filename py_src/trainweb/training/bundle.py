"""Bundles: a compiled session in one file, which a page trains from without starting Python.

    bytes 0-7   "TWBUNDLE"
    8-11        version (1), u32
    12-15       length of the JSON header, u32
    then        the header, UTF-8 JSON, padded with spaces to a multiple of 64
    then        blobs, each 64-byte aligned; the header gives their offsets from the first

The header has what `SessionCore` knows: names, declared inputs, parameters, segment sizes and contents, and per plan
its signature, words, constants, generated code, inputs, outputs and node names. `web/src/worker/bundle.ts` reads it.
A bundle is code: load it from where you load scripts from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainweb.backend.wasm.plan import Plan, Slot
from trainweb.checkpoint import Checkpoint, OptimizerGroup, write_checkpoint
from trainweb.ir.layout import PARAMETERS, STATE
from trainweb.ir.shapes import TensorType
from trainweb.training.parameters import GROUP

if TYPE_CHECKING:
    from trainweb.training.core import SessionCore

MAGIC, VERSION, ALIGNMENT = b"TWBUNDLE", 1, 64
Feeds = Mapping[str, TensorType]


class _Blobs:
    """Byte strings one after the other, equal ones once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.places: dict[bytes, tuple[int, int]] = {}

    def add(self, data: bytes) -> list[int]:
        """[offset, length] of `data`."""
        if data not in self.places:
            self.data += bytes(-len(self.data) % ALIGNMENT)
            self.places[data] = (len(self.data), len(data))
            self.data += data
        return list(self.places[data])


@dataclass(frozen=True, slots=True)
class Start:
    """What a session starts from: taken before its first step, it outlives training.

    Attributes
    ----------
    contents
        By segment; those that are all zeros are left out.
    checkpoint
        A checkpoint file of what the segments do not hold: properties, parameters that the model does not use.
    nominal
        The parameters are yet to be loaded.
    """

    contents: dict[int, bytes]
    checkpoint: bytes
    nominal: bool

    @staticmethod
    def of(core: SessionCore) -> Start:
        """The session as it is now."""
        contents = {}
        for segment in range(PARAMETERS, STATE + 1):
            data = core.host.read_segment(segment, 0, core.host.sizes[segment])
            if data.strip(b"\0"):
                contents[segment] = data
        return Start(contents, _remainder(core), core.state.is_nominal)


def read_start(bundle: bytes) -> tuple[Start, dict[str, bytes], list[dict[str, TensorType]]]:
    """What `make_bundle` was given: start, models and signatures. The bundle is one that this page wrote itself."""
    (length,) = struct.unpack_from("<I", bundle, len(MAGIC) + 4)
    prefix = len(MAGIC) + 8
    header = json.loads(bundle[prefix : prefix + length])

    def blob(place: list[int]) -> bytes:
        at = prefix + length + place[0]
        return bundle[at : at + place[1]]

    contents = {k: blob(s["data"]) for k, s in enumerate(header["segments"]) if s["data"]}
    models = {name: blob(place) for name, place in header["models"].items()}
    start = Start(contents, models.pop("checkpoint"), header["nominal"])
    signatures = []
    for plan in header["plans"]:
        feeds = {f["name"]: TensorType(f["dtype"], tuple(f["dims"])) for f in plan["signature"]}
        if feeds and feeds not in signatures:
            signatures.append(feeds)
    return start, models, signatures


def _remainder(core: SessionCore) -> bytes:
    state, origin = core.state, core.parameters.origin
    optimizer, trainable = origin.optimizer, origin.trainable
    rest = [t for name, t in origin.tensors.items() if name not in core.layout.slots]
    groups = []
    if core.models.graphs["optimizer"] is None and (origin.has_optimizer_state or optimizer.step):
        groups = [OptimizerGroup(GROUP, optimizer.step, optimizer.initial_lr, optimizer.moments)]
    return write_checkpoint(
        Checkpoint(
            [t for t in rest if trainable[t.name]],
            [t for t in rest if not trainable[t.name]],
            state.is_nominal,
            groups,
            dict(state.property_values),
        )
    )


def make_bundle(
    core: SessionCore,
    signatures: Iterable[Feeds],
    models: Mapping[str, bytes] | None = None,
    start: Start | None = None,
) -> bytes:
    """Bytes of a bundle of `core` for feeds of these types.

    Parameters
    ----------
    core
        The session.
    signatures
        Feeds of the steps to compile: train steps (overwriting and accumulating) and, where the names fit and
        there is an eval model, eval steps.
    models
        Artifacts to carry along ("train_model", "eval_model", "optimizer_model"): with them the page can start
        Python later for what the plans cannot do (other shapes, checkpoints, export).
    start
        What the page starts from: parameters, moments, learning rate, seed. None: the session as it is now.
    """
    start = start or Start.of(core)
    blobs = _Blobs()
    plans: list[dict[str, Any]] = []
    in_use = core.plans.in_use()
    for feeds in signatures:
        for kind in ("train", "eval"):
            if core.models.graphs[kind] is not None and set(feeds) == set(core.inputs[kind]):
                plans += _step_plans(blobs, core, kind, feeds, in_use)
    if core.models.graphs["optimizer"] is not None:
        for kind, compiled in (
            ("optimizer", core.models.compile_optimizer),
            ("scheduler", core.models.compile_scheduler),
        ):
            plan = core.plans.find(kind) or compiled()
            plans.append({"kind": kind, "overwrite": True, "signature": [], **_encode(blobs, plan)})
    places = {k: blobs.add(data) for k, data in start.contents.items()}
    carried = {**models, "checkpoint": start.checkpoint} if models else {}
    header = {
        "fingerprint": core.engine.description.fingerprint,
        "inputs": {kind: _inputs_json(core, kind) for kind in ("train", "eval")},
        "outputs": core.outputs,
        "hasEval": core.models.graphs["eval"] is not None,
        "hasOptimizer": core.models.graphs["optimizer"] is not None,
        "nominal": start.nominal,
        "parameters": slots_json(core),
        "size": core.layout.size,
        "trainableSize": core.layout.trainable_size,
        "segments": [
            {"bytes": size if PARAMETERS <= k <= STATE else 0, "data": places.get(k)}
            for k, size in enumerate(core.host.sizes)
        ],
        "models": {name: blobs.add(data) for name, data in carried.items()},
        "plans": plans,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 16) % ALIGNMENT)
    return MAGIC + struct.pack("<II", VERSION, len(text)) + text + bytes(blobs.data)


def slots_json(core: SessionCore) -> list[dict[str, Any]]:
    """The parameters and their places."""
    return [
        {"name": s.name, "dims": list(s.shape), "offset": s.offset, "trainableOffset": s.trainable_offset}
        for s in core.layout.slots.values()
    ]


def _inputs_json(core: SessionCore, kind: str) -> list[dict[str, Any]]:
    """Inputs as the model declares them: a dim is a number, a symbol or null; no dims at all is null."""
    return [
        {"name": v.name, "dtype": v.dtype, "dims": None if v.shape is None else list(v.shape)}
        for v in core.inputs[kind].values()
    ]


def signature_json(core: SessionCore, kind: str, feeds: Feeds) -> list[dict[str, Any]]:
    """A signature in the order of the inputs."""
    return [{"name": n, "dtype": feeds[n].dtype, "dims": list(feeds[n].shape)} for n in core.inputs[kind]]


def _step_plans(
    blobs: _Blobs, core: SessionCore, kind: str, feeds: Feeds, in_use: dict[str, tuple[int, int]]
) -> list[dict[str, Any]]:
    key = core.models.key(kind, feeds)
    plans = []
    for overwrite in (True, False) if kind == "train" else (True,):
        plan = core.plans.find((*key, overwrite)) or core.models.compile_step(kind, feeds, overwrite, in_use)
        in_use.update(plan.kept)
        entry = {"kind": kind, "overwrite": overwrite, "signature": signature_json(core, kind, feeds)}
        plans.append({**entry, **_encode(blobs, plan)})
    return plans


def _encode(blobs: _Blobs, plan: Plan) -> dict[str, Any]:
    def slots(named: dict[str, Slot]) -> list[dict[str, Any]]:
        return [
            {
                "name": s.name,
                "segment": s.segment,
                "offset": s.offset,
                "nbytes": s.nbytes,
                "dtype": s.dtype,
                "dims": list(s.shape),
            }
            for s in named.values()
        ]

    return {
        "words": blobs.add(plan.words),
        "constants": blobs.add(plan.constants),
        "code": blobs.add(plan.code),
        "arenaBytes": plan.arena_bytes,
        "preparedBytes": plan.prepared_bytes,
        "inputs": slots(plan.inputs),
        "outputs": slots(plan.outputs),
        "nodes": plan.nodes,
        "recomputation": asdict(plan.recomputation),
    }
