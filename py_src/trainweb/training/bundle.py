"""Bundles: a compiled session in one file, which a page trains from without starting Python.

    bytes 0-7   "TWBUNDLE"
    8-11        version (1), u32
    12-15       length of the JSON header, u32
    then        the header, UTF-8 JSON, padded with spaces to a multiple of 64
    then        blobs, each 64-byte aligned; the header gives their offsets from the first

The header has what `SessionCore` knows: names, parameters, segment sizes and contents, and per plan its signature,
words, constants, generated code, inputs, outputs and node names.
A bundle is code: load it from where you load scripts from.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainweb.compiler.lower import PARAMETERS
from trainweb.compiler.plan import Plan, Slot
from trainweb.ops.op import TensorType

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


def make_bundle(core: SessionCore, signatures: Iterable[Feeds], models: Mapping[str, bytes] | None = None) -> bytes:
    """Bytes of a bundle of `core` for feeds of these types.

    Parameters
    ----------
    core
        The session; its parameters, moments and learning rate are those the page starts from.
    signatures
        Feeds of the steps to compile: train steps (overwriting and accumulating) and, where the names fit and
        there is an eval model, eval steps.
    models
        Artifacts to carry along ("train_model", "eval_model", "optimizer_model"): with them the page can start
        Python later for what the plans cannot do (other shapes, checkpoints, export).
    """
    blobs = _Blobs()
    plans = []
    for feeds in signatures:
        for kind in ("train", "eval"):
            if core.graphs[kind] is None or set(feeds) != set(core.inputs[kind]):
                continue
            core.signature(kind, feeds)
            for overwrite in (True, False) if kind == "train" else (True,):
                entry = {"kind": kind, "overwrite": overwrite, "signature": signature_json(core, kind, feeds)}
                plans.append({**entry, **_plan(blobs, core, kind, feeds, overwrite)})
    if core.graphs["optimizer"] is not None:
        plan = core.optimizer_plan().plan
        plans.append({"kind": "optimizer", "overwrite": True, "signature": [], **_encode(blobs, plan)})
        plan = core.compile_scheduler()
        plans.append({"kind": "scheduler", "overwrite": True, "signature": [], **_encode(blobs, plan)})
    header = {
        "fingerprint": core.engine.description.fingerprint,
        "trainingInputNames": list(core.inputs["train"]), "trainingOutputNames": core.outputs["train"],
        "evalInputNames": list(core.inputs["eval"]), "evalOutputNames": core.outputs["eval"],
        "hasEval": core.graphs["eval"] is not None, "hasOptimizer": core.graphs["optimizer"] is not None,
        "parameters": [
            {"name": s.name, "dims": list(s.shape), "offset": s.offset, "trainableOffset": s.trainable_offset}
            for s in core.slots.values()
        ],
        "size": core.size, "trainableSize": core.trainable_size,
        "segments": [
            {"bytes": size, "data": _contents(blobs, core, k)} for k, size in enumerate(core.host.sizes)
        ],
        "models": {name: blobs.add(data) for name, data in (models or {}).items()},
        "plans": plans,
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 16) % ALIGNMENT)
    return MAGIC + struct.pack("<II", VERSION, len(text)) + text + bytes(blobs.data)


def _contents(blobs: _Blobs, core: SessionCore, segment: int) -> list[int] | None:
    """What a segment of the session starts from; None for zeros."""
    size = core.host.sizes[segment]
    if segment < PARAMETERS or not size:
        return None
    data = core.host.read_segment(segment, 0, size)
    return blobs.add(data) if data.strip(b"\0") else None


def signature_json(core: SessionCore, kind: str, feeds: Feeds) -> list[dict[str, Any]]:
    """A signature in the order of the inputs."""
    return [{"name": n, "dtype": feeds[n].dtype, "dims": list(feeds[n].shape)} for n in core.inputs[kind]]


def _plan(blobs: _Blobs, core: SessionCore, kind: str, feeds: Feeds, overwrite: bool) -> dict[str, Any]:
    return _encode(blobs, core.compile_step(kind, feeds, overwrite))


def _encode(blobs: _Blobs, plan: Plan) -> dict[str, Any]:
    def slots(named: dict[str, Slot]) -> list[dict[str, Any]]:
        return [
            {"name": s.name, "segment": s.segment, "offset": s.offset, "nbytes": s.nbytes, "dtype": s.dtype,
             "dims": list(s.shape)}
            for s in named.values()
        ]  # fmt: skip

    return {
        "words": blobs.add(plan.words), "constants": blobs.add(plan.constants), "code": blobs.add(plan.code),
        "arenaBytes": plan.arena_bytes, "inputs": slots(plan.inputs),
        "outputs": slots(plan.outputs), "nodes": plan.nodes,
    }  # fmt: skip


def bundle_key(models: Iterable[bytes | None], fingerprint: int) -> str:
    """Name under which a page caches a bundle: a hash of the artifacts and of the kernels."""
    digest = hashlib.sha256(struct.pack("<II", VERSION, fingerprint))
    for model in models:
        digest.update(struct.pack("<Q", len(model or b"")))
        digest.update(model or b"")
    return digest.hexdigest()
