"""Bundles: a compiled session in one file, which a page trains from without starting Python.

    bytes 0-7   "TWBUNDLE"
    8-11        version (4), u32
    12-15       length of the JSON header, u32
    16-47       SHA-256 of the bytes from 64 on; above 16 MiB, SHA-256 of the SHA-256s of chunks of 16 MiB
    48-63       zeros
    64-         the header, UTF-8 JSON, padded with spaces to a multiple of 64
    then        blobs, each 64-byte aligned; the header gives their offsets from the first

The header has the facts of `SessionModels` (names, declared inputs, parameters), the segments and the properties.
For each plan it has signature, words, constants, generated code, inputs, outputs and node names.
Each carried artifact is a list of blobs, cut at its large tensors. Equal blobs are stored once, so artifacts and plans
share these tensors. In version 3 each artifact is one blob.
The page makes every session from such data, be it from a file or from Python. `worker/bundle/bundle.ts` reads it.
A bundle is code: load it from where you load scripts from.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise, product
from typing import Any

from trainweb import messages
from trainweb.backend.chosen import WASM
from trainweb.backend.plan import GpuBody, LargeConstants, Plan, TensorPlace
from trainweb.checkpoint import SessionContents, write_checkpoint
from trainweb.errors import UnsupportedError
from trainweb.ir.layout import PARAMETERS, STATE, STATE_WORDS
from trainweb.ir.shapes import TensorType
from trainweb.metrics import Described, metrics_of, request_of
from trainweb.model.graph import Tensor, Value
from trainweb.model.lazy import LazyTensor, form_at_place
from trainweb.model.local import HeldFile
from trainweb.model.reader import read_model
from trainweb.model.remote import RemoteRange
from trainweb.ops.frame.infer import folded_elements
from trainweb.ops.optim.operators import LIMITS
from trainweb.spelling import camel_case
from trainweb.training.contents import properties_json, start_segments, start_state
from trainweb.training.inference import InferenceModel
from trainweb.training.models import CLIP_LIMITS, Feeds, SessionModels, check_feed_names
from trainweb.training.step_kind import EVAL, TRAIN, StepKind

MAGIC, VERSION, ALIGNMENT = b"TWBUNDLE", 4, 64
PREFIX_BYTES = 64
HASH = slice(16, 48)
HASHED_BYTES = 2**24
Header = dict[str, Any]


class Blobs:
    """Byte strings one after the other, equal ones once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._places: dict[bytes, list[int]] = {}

    def add(self, data: bytes) -> list[int]:
        """[offset, length] of `data`."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._places:
            self._places[digest] = self.add_pieces([(0, data)], len(data))
        return self._places[digest]

    def add_pieces(self, pieces: Iterable[tuple[int, bytes | bytearray | memoryview]], nbytes: int) -> list[int]:
        """[offset, length] of pieces with their offsets in so many bytes, zeros elsewhere."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        start = len(self.data)
        for offset, piece in pieces:
            self.data += bytes(start + offset - len(self.data))
            self.data += piece
        self.data += bytes(start + nbytes - len(self.data))
        return [start, nbytes]


class _CutModel(HeldFile):
    """A model that notes where its large tensors start and end."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self._ends = {0, len(model)}
        read_model(self)

    def range(self, start: int, stop: int) -> bytes | RemoteRange:
        content = super().range(start, stop)
        if isinstance(content, RemoteRange):
            self._ends |= {start, stop}
        return content

    def cut(self) -> list[bytes]:
        """All bytes of the model, each large tensor apart."""
        return [self.read(start, end - start) for start, end in pairwise(sorted(self._ends))]


def session_header(
    models: SessionModels,
    start: SessionContents,
    blobs: Blobs,
    *,
    with_weights: bool,
) -> Header:
    """Return the header from which a page makes a session, without plans; contents of segments go to `blobs`.

    Without weights, the segments of parameters and moments are zeros, to be filled later.
    """
    segments, state = start_segments(models.layout, start), start_state(start)
    pieces = segments if with_weights else {}
    contents = {
        segment: blobs.add_pieces(((at, tensor.data) for at, tensor in parts), models.segment_bytes[segment])
        for segment, parts in pieces.items()
    }
    contents[STATE] = blobs.add_pieces([(0, state)], 4 * STATE_WORDS)
    return {
        "fingerprint": models.engine.description.fingerprint,
        "inputs": {k: declarations(models.inputs[k].values(), models.deciding[k]) for k in ("train", "eval")},
        "outputs": models.outputs,
        "hasEval": models.graphs["eval"] is not None,
        "hasOptimizer": models.graphs["optimizer"] is not None,
        "optimizer": models.layout.optimizer,
        "scaling": models.layout.scaling,
        "constants": models.layout.constants,
        "hasAverages": models.layout.has_averages,
        "compared": models.own.compared,
        "ownOutputs": models.own.own,
        "moving": models.moving,
        "pairs": models.own.pairs,
        "defaultPair": models.own.default,
        "entropies": list(models.own.entropies.items()),
        "terms": models.own.terms,
        "unevenTerms": models.uneven if models.weighs_batches else None,
        "sampleWeights": models.own.weights,
        "weighedLabels": models.own.weighed,
        "lossCounts": {k: {camel_case(n): v for n, v in asdict(c).items()} for k, c in models.counts.items()},
        "nominal": start.is_nominal,
        "parameters": [
            {
                "name": s.name,
                "dims": list(s.shape),
                "offset": s.offset,
                "trainableOffset": s.trainable_offset,
                "dtype": s.dtype,
            }
            for s in models.layout.slots.values()
        ],
        "size": models.layout.size,
        "trainableSize": models.layout.trainable_size,
        "segments": [
            {"bytes": size if PARAMETERS <= k <= STATE else 0, "data": contents.get(k)}
            for k, size in enumerate(models.segment_bytes)
        ],
        "properties": properties_json(start.properties),
        "models": {},
        "plans": [],
    }


def inference_header(model: InferenceModel) -> Header:
    """Return the header from which a page makes an inference session, without plans and weights."""
    return {
        "fingerprint": model.engine.description.fingerprint,
        "inputs": declarations(model.inputs.values(), model.deciding),
        "outputs": model.outputs,
        "segments": [{"bytes": size, "data": None} for size in model.segment_bytes],
    }


def declarations(inputs: Iterable[Value], deciding: Container[str]) -> list[Header]:
    """Inputs as a model declares them: a dim is a number, a symbol or null; no dims at all is null.

    `decides` is the number of elements up to which the value of a deciding input belongs to the signature.
    """
    return [
        {
            "name": v.name,
            "dtype": v.dtype,
            "dims": None if v.shape is None else list(v.shape),
            "decides": folded_elements(v.dtype) if v.name in deciding else 0,
        }
        for v in inputs
    ]


def plan_json(
    plan: Plan, kind: StepKind, overwrite: bool, feeds: Feeds, blobs: Blobs, metrics: Iterable[Described] = ()
) -> Header:
    """A plan for feeds of these types, in the order of the inputs; words, constants and code go to `blobs`.

    A plan that names no target is for the kernels, as all plans of older bundles.
    """
    large = _constants_json(plan.large, blobs)
    return {
        "kind": kind.key,
        "overwrite": overwrite,
        **({} if plan.body is None else {"target": plan.target, "body": _body_json(plan.body, blobs)}),
        "signature": [_feed_json(n, t) for n, t in feeds.items()],
        "words": blobs.add(plan.words),
        "constants": blobs.add(plan.constants),
        "large": large,
        "code": blobs.add(plan.code),
        "arenaBytes": plan.arena_bytes,
        "preparedBytes": plan.prepared_bytes,
        "kept": [[name, *place] for name, place in plan.kept.items()],
        "inputs": _places_json(plan.inputs),
        "outputs": _places_json(plan.outputs),
        "nodes": plan.nodes,
        "metrics": [described.as_data() for described in metrics],
        "recomputation": {camel_case(name): value for name, value in asdict(plan.recomputation).items()},
    }


def _body_json(body: GpuBody, blobs: Blobs) -> Header:
    """The part of a plan that runs on a GPU; each text is a blob, which plans share."""
    return {
        "texts": [blobs.add(text.encode()) for text in body.texts],
        "uniforms": blobs.add(body.uniforms),
        "windows": [[list(window) for window in windows] for windows in body.windows],
        "dispatches": blobs.add(body.dispatches),
        "tiled": blobs.add(body.tiled),
        "few": blobs.add(body.few),
        "arenaBytes": body.arena_bytes,
        "constants": blobs.add(body.constants),
        "large": _constants_json(body.large, blobs),
        "inputs": _places_json(body.inputs),
        "outputs": _places_json(body.outputs),
        "uploads": [list(upload) for upload in body.uploads],
        "downloads": [list(download) for download in body.downloads],
        "turns": body.turns,
        "nodes": body.nodes,
        "work": body.work,
    }


def _places_json(named: Mapping[str, TensorPlace]) -> list[Header]:
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


def _constants_json(large: LargeConstants, blobs: Blobs) -> list[list[int]]:
    return [[offset, *_large_json(part, blobs)] for offset, part in large.parts]


def _large_json(part: bytes | memoryview | LazyTensor, blobs: Blobs) -> list[int]:
    """File, offset and bytes of a large constant.

    Plans for the page may name files of the session. In all others, and where the file has another type of float or
    the transpose, the file is -1, and the bytes are in `blobs`.
    """
    if isinstance(part, LazyTensor):
        assert part.place is not None
        if not form_at_place(part):
            return [part.place.index, part.place.offset, part.place.nbytes]
        part = memoryview(part.data)
    return [-1, *blobs.add(bytes(part))]


def _feed_json(name: str, t: TensorType) -> Header:
    """The type of a feed; the value of one that decides is the bytes of its elements in hexadecimal."""
    value = None if t.value is None else Tensor.of(name, t.dtype, t.shape, t.value).data.hex()
    return {"name": name, "dtype": t.dtype, "dims": list(t.shape), "value": value}


def remainder(models: SessionModels, start: SessionContents) -> bytes:
    """A checkpoint of what the session's segments do not hold: other parameters, and moments without an optimizer."""
    rest = {name: t for name, t in start.parameters.items() if name not in models.layout.slots}
    has_optimizer = models.graphs["optimizer"] is None and (start.has_optimizer or start.step > 0)
    return write_checkpoint(replace(start, parameters=rest, has_optimizer=has_optimizer, is_exact=False, properties={}))


def make_bundle(
    models: SessionModels,
    start: SessionContents,
    signatures: Iterable[Feeds],
    files: Mapping[str, bytes] | None = None,
    metrics: Sequence[str | Mapping[str, Any]] = (),
    targets: Sequence[str] = (WASM,),
) -> bytes:
    """Bytes of a bundle of the session's models and its start.

    `signatures` are feeds of the steps to compile: train steps (overwriting and accumulating). Eval steps are among
    them if the names fit and there is an eval model. With the artifacts in `files` the page can start Python later for
    other shapes, checkpoints and export, which plans cannot do. Eval steps sum up `metrics` for a fit without Python.
    Steps are compiled for each of `targets`, but for the scheduler's, and for eval steps that a GPU cannot run: the
    kernels do. Raise FeedError for feeds that fit no step, and ModelError for a metric that is unknown, or whose
    targets are.
    """
    blobs = Blobs()
    header = session_header(models, start, blobs, with_weights=True)
    in_use: dict[str, tuple[int, int]] = {}
    summed = metrics_kind(models, metrics)
    for feeds in signatures:
        if models.graphs["eval"] is None or set(feeds) != set(models.inputs["eval"]):
            check_feed_names(models.inputs["train"], feeds)  # else they would be left out silently
        for kind in (TRAIN, EVAL, *([summed] if summed else [])):
            base = kind.base
            if models.graphs[base] is None or set(feeds) != set(models.inputs[base]):
                continue
            models.key(kind, feeds)
            ordered = {n: feeds[n] for n in models.inputs[base]}
            for overwrite, target in product((True, False) if kind == TRAIN else (True,), targets):
                try:
                    plan = models.compile_step(kind, ordered, overwrite, in_use, target=target)
                except UnsupportedError:
                    if kind == TRAIN or target == WASM:
                        raise
                    if WASM in targets:
                        continue
                    plan = models.compile_step(kind, ordered, overwrite, in_use)
                in_use |= plan.kept
                described = models.described(kind)
                header["plans"].append(plan_json(plan, kind, overwrite, ordered, blobs, described))
    if models.graphs["optimizer"] is not None:
        updates = [("optimizer", models.compile_optimizer(target)) for target in targets]
        for base, plan in (*updates, ("scheduler", models.compile_scheduler())):
            header["plans"].append(plan_json(plan, StepKind(base), True, {}, blobs))
        for clip in map(models.compile_clip, targets):
            header["plans"].append(plan_json(clip, StepKind("clip"), True, {LIMITS: CLIP_LIMITS}, blobs))
    if files:
        names = {"train_model": "trainModel", "eval_model": "evalModel", "optimizer_model": "optimizerModel"}
        cut = {names[name]: _CutModel(data).cut() for name, data in files.items()}
        cut["checkpoint"] = [remainder(models, start)]
        header["models"] = {name: [blobs.add(piece) for piece in pieces] for name, pieces in cut.items()}
    return pack(header, blobs)


def metrics_kind(models: SessionModels, metrics: Sequence[str | Mapping[str, Any]]) -> StepKind | None:
    """The kind of an eval step that sums up metrics; None where none of them needs a sum."""
    if models.graphs["eval"] is None:
        if metrics:
            raise messages.NO_EVAL_MODEL()
        return None
    request = request_of(models.own.asked(metrics_of(metrics)))
    return StepKind("eval", request) if request else None


def pack(header: Header, blobs: Blobs) -> bytes:
    """The file."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file = bytearray(MAGIC + struct.pack("<II", VERSION, len(text))).ljust(PREFIX_BYTES, b"\0")
    file += text
    file += blobs.data
    file[HASH] = _digest(memoryview(file)[PREFIX_BYTES:])
    return bytes(file)


def _digest(data: memoryview) -> bytes:
    """As `sha256OfFile` of the page, which need not have all of a file in memory."""
    hashes = [hashlib.sha256(data[k : k + HASHED_BYTES]).digest() for k in range(0, len(data), HASHED_BYTES)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(b"".join(hashes)).digest()


def signature_of(items: Iterable[Mapping[str, Any]]) -> dict[str, TensorType]:
    """Types of feeds out of JSON."""
    types = {}
    for feed in items:
        name, dtype, shape, value = feed["name"], feed["dtype"], tuple(feed["dims"]), feed.get("value")
        data = None if value is None else Tensor(name, dtype, shape, bytes.fromhex(value))
        types[name] = TensorType(dtype, shape, None if data is None else data.values())
    return types
