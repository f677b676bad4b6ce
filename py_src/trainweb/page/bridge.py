"""Answers to the page's worker: compiled sessions, plans and files, as JSON and bytes, without numpy.

Python runs no session in a page: the worker does, in TypeScript. A handle stands for models that were read, which never
change; all else that an answer depends on comes with the question.

Every function returns `(json, bytes or None)`; json is `{"ok": value}` or `{"error": {"name", "message", ...}}`,
and with bytes `{"ok": value, "data": {"nbytes", "crc32", "parts"}}`, by which the worker checks the bytes.
`parts` lists the parts of the whole file in order. A number stands for that many of the bytes. A list
[kind, index, offset, nbytes] is a range of a file or segment that the worker copies (`Place` of `trainweb.model.lazy`).
Two types at its end mean that the worker converts floats; nbytes then counts bytes of the second type. A number of rows
after them means that the worker transposes the matrix that lies there.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from zlib import crc32

from trainweb import messages
from trainweb.backend.chosen import RUNTIME, WASM
from trainweb.checkpoint import SessionContents, checkpoint_parts, read_checkpoint
from trainweb.errors import EngineError, ReleasedError, SessionError, TrainwebError
from trainweb.ir.layout import PARAMETERS, STATE
from trainweb.model.checks import Limits, check_memory_budget
from trainweb.model.floats import ConvertedTensor, converted
from trainweb.model.graph import ITEM_SIZE, Graph, Tensor, Value
from trainweb.model.lazy import LARGE, LazyTensor, Part, Place, form_at_place
from trainweb.model.reader import read_model
from trainweb.model.remote import FileHost, RemoteFile
from trainweb.model.writer import model_parts
from trainweb.page.bundle import Blobs, declarations, inference_header, plan_json, session_header, signature_of
from trainweb.spelling import ARGUMENT, camel_case, page_name
from trainweb.training import weights
from trainweb.training.contents import (
    ContentsInMemory,
    for_file,
    for_session,
    go_on_from_file,
    leave,
    properties_json,
    read_properties,
    start_segments,
    start_state,
)
from trainweb.training.export import export_model
from trainweb.training.inference import InferenceModel
from trainweb.training.models import SessionModels, read_models
from trainweb.training.parameters import ParameterSlot
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import StepKind

if TYPE_CHECKING:
    from trainweb.artifacts import Artifacts
    from trainweb.backend.base import Segments
    from trainweb.backend.plan import Plan
    from trainweb.lora import LoraModel
    from trainweb.metrics import Described

Graphs = TypeVar("Graphs", bound="tuple[Graph | None, ...]")

Answer = tuple[str, "bytes | bytearray | memoryview | None"]

SAMPLES, SAMPLE_BYTES = 16, 4096
"""Blocks of an answer's bytes that its checksum is of, the first at its start and the last at its end."""

COLLECTED_AFTER = 50_000
"""Objects that are made between two runs of Python's garbage collector, some 10 MB at most of it garbage.

A compilation makes many and few in cycles: with Python's own 2,000 the collector took a tenth of its time."""

Handout = tuple[Any, "list[Part] | Part"]
"""A value, and a file."""

Open: TypeAlias = "Opened | InferenceModel | Artifacts | CheckpointState"
"""The objects that handles stand for."""

_files: list[FileHost] = []
_opened: dict[int, Open] = {}
_next = [1]


@dataclass(slots=True)
class Opened:
    """Models of a training session."""

    models: SessionModels
    """What they say."""
    origin: SessionContents
    """Parameters that the session has no segment for, and names of all."""
    artifacts: Artifacts | None = None
    """Gives what `create_from_model` built."""
    adapted: LoraModel | None = None
    """The model with its adapters, where it has some."""
    places: list[int] = field(default_factory=list)
    """Addresses of the session's segments as a call named them last; 0: it has no memory."""


def answered(fn: Callable[..., Any]) -> Callable[..., Answer]:
    """Turn a result or a TrainwebError into an answer."""

    @wraps(fn)
    def call(*args: Any) -> Answer:
        try:
            with ARGUMENT.spelled_for_a_page():
                result = fn(*args)
        except MemoryError:
            return json.dumps({"error": {"name": "MemoryError", "message": "", "nbytes": _size_of(args)}}), None
        except (TrainwebError, ValueError, TypeError, KeyError) as e:
            return json.dumps({"error": describe(e)}), None
        if not isinstance(result, tuple):
            return json.dumps({"ok": result}), None
        value, file = result
        data, parts = _split(file if isinstance(file, list) else [file])
        announced = {"nbytes": len(data), "crc32": sample_checksum(data), "parts": parts}
        return json.dumps({"ok": value, "data": announced}), data

    return call


def _split(file: list[Part]) -> tuple[Any, list[Any]]:
    """The bytes of a file that Python holds, and what the file is made of."""
    held: list[Any] = []
    parts: list[Any] = []
    for part in file:
        if isinstance(part, LazyTensor) and part.place is not None:
            parts.append([part.place.kind, part.place.index, part.place.offset, part.nbytes, *form_at_place(part)])
            continue
        held.append(part.data if isinstance(part, LazyTensor) else part)
        if parts and isinstance(parts[-1], int):
            parts[-1] += len(held[-1])
        else:
            parts.append(len(held[-1]))
    return held[0] if len(held) == 1 else b"".join(held), parts


def sample_checksum(data: Any) -> int:
    """CRC-32 of blocks spread over `data`, or of all of it where that is no more."""
    view = memoryview(data)
    if len(view) <= SAMPLES * SAMPLE_BYTES:
        return crc32(view)
    checksum, last = 0, len(view) - SAMPLE_BYTES
    for k in range(SAMPLES):
        start = k * last // (SAMPLES - 1)
        checksum = crc32(view[start : start + SAMPLE_BYTES], checksum)
    return checksum


def _size_of(args: tuple[Any, ...]) -> int:
    """Bytes that a call is about: parameters of the session, or the largest file that it was given."""
    opened = _opened.get(args[0]) if args and isinstance(args[0], int) else None
    if isinstance(opened, Opened):
        return opened.models.segment_bytes[PARAMETERS]
    return max((len(a) if isinstance(a, bytes) else int(getattr(a, "nbytes", 0)) for a in args), default=0)


def describe(e: Exception) -> dict[str, Any]:
    """Name, message and fields of an error."""
    message = str(e.args[0]) if isinstance(e, KeyError) and e.args else str(e)
    kinds = (str, int, list, dict, type(None))
    fields = {k: v for k, v in vars(e).items() if isinstance(v, kinds) and not k.startswith("_")}
    return {"name": type(e).__name__, "message": message, **fields}


class _WorkerFiles:
    """The files that the page's worker holds (web/src/python/python-files.ts)."""

    def __init__(self, js_files: Any) -> None:
        self._js = js_files

    def read(self, index: int, offset: int, nbytes: int) -> bytes:
        return bytes(_done(lambda: self._js.read(index, offset, nbytes).to_bytes()))

    def is_transpose(self, a: Place, b: Place, rows: int, width: int, size: int) -> bool:
        return bool(_done(lambda: self._js.isTranspose(a.index, a.offset, b.index, b.offset, rows, width, size)))


def _done(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:  # of JavaScript: the Blob's file was changed or removed, say
        raise EngineError(f"A file that the session was made of cannot be read any more: {error}.") from error


def as_source(file: Any) -> Any:
    """Return a source for readers: a file that the worker holds, as a whole if it is small; bytes and None stay."""
    if file is None or isinstance(file, bytes):
        return file
    remote = RemoteFile(file.index, file.nbytes, _files[0])
    return remote if len(remote) >= LARGE else remote[:]


@answered
def start(js_engine: Any, js_files: Any) -> None:
    """Use the worker's engine for everything, and read the files that it holds."""
    # Modules are never freed: the collector need not traverse them again.
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)
    RUNTIME.use_worker_engine(js_engine)
    _files[:] = [_WorkerFiles(js_files)]


def _open(opened: Open) -> int:
    handle = _next[0]
    _next[0] += 1
    _opened[handle] = opened
    return handle


def _find(handle: int) -> Open:
    if handle not in _opened:
        raise ReleasedError("These models were released.")
    return _opened[handle]


def _training(handle: int) -> Opened:
    opened = _find(handle)
    if not isinstance(opened, Opened):
        raise SessionError("An InferenceSession cannot train.")
    return opened


def _settings(options_json: str) -> dict[str, Any]:
    """The options of a session that its plans depend on."""
    options = json.loads(options_json or "{}")
    return {
        "limits": Limits.of(options.get("limits")),
        "memory_budget": check_memory_budget(options.get("memory_budget")),
        "engine": RUNTIME.get_engine(),
    }


def _sized(graphs: Graphs, options_json: str) -> Graphs:
    """The graphs with the sizes that the options give to symbolic dims."""
    sizes = json.loads(options_json or "{}").get("free_dimension_overrides")
    if not sizes:
        return graphs
    from trainweb.model.dimensions import fix_dimensions

    copies = tuple(None if graph is None else graph.copy() for graph in graphs)
    fix_dimensions(copies, sizes)
    return cast("Graphs", copies)


def _created(opened: Opened, state: CheckpointState) -> Handout:
    """The handle, and all of a session but its plans and its weights, which `fill` writes."""
    blobs = Blobs()
    header = session_header(opened.models, state._lent(), blobs, with_weights=False)
    return {"handle": _open(opened), "header": header}, blobs.data


@answered
def fill(handle: int, bases_json: str) -> Handout:
    """Answer with what a session starts from, for its segments, which hold zeros; once.

    The worker copies the weights that are in files: "copies" lists segment, offset, file, offset and bytes of each.
    If the file has them in another form, `form_at_place` follows. "places" lists file, offset and bytes of what
    may be read later on. "rest" lists segment, offset and bytes of all else, which is the file.
    """
    opened = _find(handle)
    copies: list[tuple[int | str, ...]] = []
    rest: list[tuple[int, int, int]] = []
    data: list[Part] = []

    def write(segment: int, offset: int, tensor: Tensor) -> None:
        place = tensor.place if isinstance(tensor, LazyTensor) else None
        if place is not None and place.kind == "file":
            copies.append((segment, offset, place.index, place.offset, place.nbytes, *form_at_place(tensor)))
        elif tensor.nbytes:
            rest.append((segment, offset, tensor.nbytes))
            data.append(tensor.data)

    if isinstance(opened, InferenceModel):
        for offset, tensor in opened.weights():
            write(PARAMETERS, offset, tensor)
        return {"copies": copies, "places": _places_of(opened.constants()), "rest": rest}, data
    opened = _training(handle)
    models, origin = opened.models, opened.origin
    frozen = {4 * slot.offset: slot.dtype for slot in models.layout.slots.values() if slot.trainable_offset < 0}
    places: dict[Place, tuple[int, str]] = {}
    for segment, pieces in start_segments(models.layout, origin).items():
        for offset, tensor in pieces:
            write(segment, offset, tensor)
            if segment == PARAMETERS and offset in frozen and isinstance(tensor, LazyTensor) and tensor.place:
                places[replace(tensor.place, conversion=())] = offset, frozen[offset]
    state = start_state(origin)
    rest.append((STATE, 0, len(state)))
    data.append(state)
    leave(origin, models.layout)
    if models.graphs["optimizer"] is not None:
        origin.moments.clear()
    _rebind(opened, places, _segments(opened, bases_json))
    return {"copies": copies, "places": _places_of(_held(opened)), "rest": rest}, data


def _rebind(opened: Opened, places: Mapping[Place, tuple[int, str]], memory: Segments) -> None:
    """Read frozen weights from the session, which does not change them, so that their files can go.

    `places` are offsets and types in the session's parameters, by the places of the weights before.
    """
    for tensor in _held(opened):
        place = tensor.place if isinstance(tensor, LazyTensor) else None
        target = None if place is None else places.get(replace(place, conversion=()))
        if target is None:
            continue
        offset, dtype = target
        there = Place("segment", PARAMETERS, offset, prod(tensor.shape) * ITEM_SIZE[dtype])
        read_into = partial(memory.read_segment_into, PARAMETERS, offset)
        moved = converted(LazyTensor(tensor.name, dtype, tensor.shape, read_into, there), tensor.dtype)
        assert isinstance(tensor, LazyTensor) and isinstance(moved, LazyTensor)
        tensor.place, tensor.read_into = moved.place, moved.read_into
        if isinstance(tensor, ConvertedTensor):
            tensor.source = moved.source if isinstance(moved, ConvertedTensor) else moved


def _held(opened: Opened) -> Iterator[Tensor]:
    """Tensors that later answers may be made of."""
    yield from opened.origin.parameters.values()
    for moments in opened.origin.moments.values():
        yield from moments.values()
    for graph in opened.models.graphs.values():
        yield from graph.tensors() if graph is not None else ()
    if opened.artifacts is not None:
        yield from opened.artifacts.parameters
    if opened.adapted is not None:
        yield from opened.adapted.base.tensors()


def _places_of(tensors: Iterable[Tensor]) -> list[tuple[int, int, int]]:
    places = (tensor.place for tensor in tensors if isinstance(tensor, LazyTensor))
    files = (place for place in places if place is not None and place.kind == "file")
    return sorted({(place.index, place.offset, place.nbytes) for place in files})


@answered
def create(train: Any, checkpoint: Any, evaluation: Any, optimizer: Any, options_json: str) -> Handout:
    """A session from artifacts."""
    settings = _settings(options_json)
    graphs = _sized(
        read_models(as_source(train), as_source(evaluation), as_source(optimizer), settings["limits"]), options_json
    )
    state = CheckpointState.load_checkpoint(as_source(checkpoint))
    origin = state._lent()
    models = SessionModels(origin.trainable, *graphs, **settings, halves=origin.halves)
    return _created(Opened(models, origin), state)


@answered
def open_models(
    train: Any, checkpoint: Any, evaluation: Any, optimizer: Any, parameters_json: str, options_json: str
) -> dict[str, Any]:
    """Open the models of a session that a bundle made; `checkpoint` is the bundle's.

    `parameters_json` has the parameters as the bundle does: the models must have the same in the same places.
    """
    settings = _settings(options_json)
    graphs = _sized(
        read_models(as_source(train), as_source(evaluation), as_source(optimizer), settings["limits"]), options_json
    )
    slots = [
        ParameterSlot(p["name"], tuple(p["dims"]), p["offset"], p["trainableOffset"], p["dtype"])
        for p in json.loads(parameters_json)
    ]
    origin = for_session(read_checkpoint(as_source(checkpoint)))
    origin.trainable = {**origin.trainable, **{s.name: s.trainable_offset >= 0 for s in slots}}
    halves = {s.name: s.dtype for s in slots if s.dtype != "float32"}
    models = SessionModels(origin.trainable, *graphs, **settings, halves=halves)
    if list(models.layout.slots.values()) != slots:
        raise messages.OTHER_PARAMETERS()
    return {"handle": _open(Opened(models, origin))}


def _external(locations_json: str, files: tuple[Any, ...]) -> dict[str, Any]:
    """External data by location; a file for each."""
    return dict(zip(json.loads(locations_json), map(as_source, files), strict=True))


@answered
def create_from_model(
    model: Any, config_json: str, options_json: str, locations_json: str = "[]", *files: Any
) -> Handout:
    """A session from a forward model: its artifacts are built here."""
    settings = _settings(options_json)
    external = _external(locations_json, files)
    built, nominal, adapted = _build(as_source(model), config_json, settings["limits"], external)
    state = CheckpointState(built.contents(nominal=nominal))
    origin = state._lent()
    graphs = _sized(built.graphs, options_json)
    models = SessionModels(origin.trainable, *graphs, **settings, halves=origin.halves)
    return _created(Opened(models, origin, built, adapted), state)


def _build(
    model: Any, config_json: str, limits: Limits, external: Mapping[str, Any]
) -> tuple[Artifacts, bool, LoraModel | None]:
    """Artifacts of a forward model, whether the session is to start from the nominal checkpoint, and adapters."""
    from trainweb.session.creation import artifacts_of

    arguments = {**_arguments(config_json), "external_data": external, "limits": limits}
    built, adapted = artifacts_of(model, arguments.pop("lora", None), arguments)
    return built, arguments.get("nominal_checkpoint", False), adapted


def _adapted(handle: int, bases_json: str) -> tuple[LoraModel, ContentsInMemory]:
    """The adapters of a session, and its parameters."""
    opened = _training(handle)
    if opened.adapted is None:
        raise messages.NO_ADAPTERS()
    return opened.adapted, _memory(opened, bases_json)


@answered
def export_weights(handle: int, form: str, bases_json: str) -> Handout:
    """All parameters of a session as a safetensors or npz file."""
    opened = _training(handle)
    return None, weights.export_weights(_memory(opened, bases_json), opened.models.layout.slots, form)


@answered
def load_weights(handle: int, file: Any, strict: bool, bases_json: str) -> None:
    """Overwrite parameters of a session with the contents of a safetensors or npz file."""
    opened, source = _training(handle), as_source(file)
    data = bytes(source[0 : len(source)])
    weights.load_weights(_memory(opened, bases_json), opened.models.layout.slots, data, strict=strict)


@answered
def load_checkpoint(handle: int, file: Any, bases_json: str) -> list[list[str]]:
    """Continue a session from a checkpoint file; returns its properties."""
    memory = _memory(_training(handle), bases_json)
    go_on_from_file(memory, as_source(file))
    return properties_json(memory.properties)


@answered
def adapter(handle: int, bases_json: str) -> Handout:
    """Return the trained adapters of a session as PEFT's two files."""
    adapted, memory = _adapted(handle, bases_json)
    result = adapted.adapter(memory)
    return result.config_json, result.weights


@answered
def load_adapter(handle: int, file: Any, config_json: str, bases_json: str) -> None:
    """Write PEFT's two files into the parameters of a session."""
    from trainweb.lora import Adapter

    adapted, memory = _adapted(handle, bases_json)
    source = as_source(file)
    adapted.load_adapter(memory, Adapter.from_bytes(bytes(source[0 : len(source)]), config_json))


@answered
def merge_adapter(handle: int, bases_json: str) -> Handout:
    """The forward model with what the adapters of a session learned in its weights."""
    adapted, memory = _adapted(handle, bases_json)
    return None, model_parts(adapted.merged(memory))


def _arguments(config_json: str) -> dict[str, Any]:
    """Arguments of `build_artifacts`: the page has checked them (page/training-config.ts), and names them as Python."""
    return {name: value for name, value in json.loads(config_json).items() if value is not None}


@answered
def inspect_model(
    model: Any, config_json: str, dims_json: str, locations_json: str = "[]", *files: Any
) -> dict[str, Any]:
    """Return the report of `trainweb.check` as data."""
    from trainweb.session.check import report_on

    arguments = {**_arguments(config_json), "external_data": _external(locations_json, files)}
    choices = tuple(arguments.pop(name, None) for name in ("requires_grad", "frozen_params", "loss", "optimizer"))
    engine = RUNTIME.get_engine()
    report = report_on(as_source(model), choices, arguments, (json.loads(dims_json), {}), engine).as_data()
    if isinstance(report["suggested_loss"], dict):
        report["suggested_loss"] = {page_name(name): value for name, value in report["suggested_loss"].items()}
    report["model_metadata"] = _about(report["model_metadata"])
    return {camel_case(name): value for name, value in report.items()}


def _about(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a model's metadata; its version is a text, as JSON rounds large integers."""
    if not metadata:
        return None
    return {camel_case(name): value for name, value in {**metadata, "version": str(metadata["version"])}.items()}


@answered
def compile_plan(
    handle: int, key: str, overwrite: bool, signature_json: str, in_use_json: str, target: str = WASM
) -> Handout:
    """A target's plan of a step for feeds of these dtypes and dims, beside plans that keep `in_use_json`."""
    opened, kind = _find(handle), StepKind.of(key)
    feeds = signature_of(json.loads(signature_json))
    in_use = {name: (offset, nbytes) for name, offset, nbytes in json.loads(in_use_json)}
    plan: Plan
    metrics: list[Described] = []
    if isinstance(opened, InferenceModel):
        plan = opened.compile(feeds, in_use, kind, target)
    elif kind.is_forward or kind.base in ("train", "eval"):
        models = _training(handle).models
        plan = models.compile_step(kind, feeds, overwrite, in_use, target=target)
        metrics = models.described(kind)
    else:
        models = _training(handle).models
        compilers = {"optimizer": models.compile_optimizer, "clip": models.compile_clip}
        plan = compilers.get(kind.base, models.compile_scheduler)(target=target)
    blobs = Blobs()
    return {**plan_json(plan, kind, overwrite, feeds, blobs, metrics), "text": plan.text}, blobs.data


@answered
def forward_inputs(handle: int, key: str) -> list[dict[str, Any]]:
    """The inputs of a step that predicts or makes tokens."""
    opened = _find(handle)
    forward = (opened if isinstance(opened, InferenceModel) else _training(handle).models).forward(StepKind.of(key))
    assert forward is not None
    return declarations(forward.inputs.values(), forward.deciding)


@answered
def compile_inspected(handle: int, key: str, overwrite: bool, signature_json: str) -> Handout:
    """The plan of a step that keeps every tensor, its nodes, for `check_numerics`, and the units that may be dead."""
    from dataclasses import asdict

    from trainweb.training.debug.units import rectified_units

    feeds, kind = signature_of(json.loads(signature_json)), StepKind.of(key)
    plan = _training(handle).models.compile_step(kind, feeds, overwrite, keep_all=True)
    blobs = Blobs()
    header = {**plan_json(plan, kind, overwrite, feeds, blobs), "text": plan.text}
    units = [asdict(dead) for dead in rectified_units(plan)]
    nodes = [asdict(node) for node in plan.inspected_nodes]
    return {"header": header, "outputs": [*plan.outputs], "nodes": nodes, "units": units}, blobs.data


@answered
def check_numerics(handle: int, step: str, *args: Any) -> dict[str, int] | None:
    """Look for a fault of a checked step; raises its error."""
    from trainweb.page import numerics

    return numerics.CHECKS[step](_training(handle).models, *args)


@answered
def explain(handle: int, key: str, overwrite: bool, signature_json: str, target: str = WASM) -> str:
    """Explain how the compiler makes a target's plan of a train or eval step."""
    feeds = signature_of(json.loads(signature_json))
    return _training(handle).models.explain(StepKind.of(key), feeds, overwrite, target)


def _segments(opened: Opened, bases_json: str) -> Segments:
    """The segments of a session, which have these addresses from now on."""
    opened.places[:] = json.loads(bases_json)
    return RUNTIME.open_segments(opened.models.engine, opened.places)


def _memory(opened: Opened, bases_json: str) -> ContentsInMemory:
    """The contents of a session whose segments have these addresses."""
    segments = _segments(opened, bases_json)
    has_optimizer = opened.models.graphs["optimizer"] is not None
    memory = ContentsInMemory(opened.models.layout, segments, opened.origin, has_optimizer=has_optimizer)
    memory.is_nominal = False
    return memory


@answered
def checkpoint(handle: int, include_optimizer_state: bool, properties_json: str, bases_json: str) -> Handout:
    """A checkpoint file of a session whose segments have these addresses."""
    contents = _memory(_training(handle), bases_json).contents()
    contents.properties = read_properties(json.loads(properties_json))
    file = for_file(contents, include_optimizer_state=include_optimizer_state)
    return None, checkpoint_parts(file)


@answered
def export(handle: int, output_names_json: str, bases_json: str) -> Handout:
    """The inference model of a session whose segments have these addresses."""
    opened = _training(handle)
    models, memory = opened.models, _memory(opened, bases_json)
    return None, export_model(models.graphs["eval"], models.layout.slots, memory, json.loads(output_names_json))


ARTIFACT_GRAPHS = {"training_model": 0, "eval_model": 1, "optimizer_model": 2}
"""Places of models among the graphs of artifacts."""


@answered
def artifact(handle: int, name: str, bases_json: str = "") -> Handout | None:
    """Return a file that `create_from_model` or `build_files` built; None if there is no optimizer model."""
    opened = _find(handle)
    if isinstance(opened, Opened) and bases_json:
        _segments(opened, bases_json)
    built = opened.artifacts if isinstance(opened, Opened) else opened
    if built is None or isinstance(built, (InferenceModel, CheckpointState)):
        raise messages.NO_ARTIFACTS()
    if name in ("checkpoint", "nominal_checkpoint"):
        contents = built.contents(nominal=name == "nominal_checkpoint")
        return None, checkpoint_parts(contents, generated=True)
    if name not in ARTIFACT_GRAPHS:
        names = ", ".join((*ARTIFACT_GRAPHS, "checkpoint", "nominal_checkpoint"))
        raise SessionError(f"There is no artifact {name!r}; there are {names}.")
    graph = built.graphs[ARTIFACT_GRAPHS[name]]
    return None if graph is None else (None, model_parts(graph))


@answered
def release(handle: int) -> None:
    """Forget models; harmless when repeated."""
    _opened.pop(handle, None)


@answered
def create_inference(model: Any, options_json: str = "", locations_json: str = "[]", *files: Any) -> dict[str, Any]:
    """An inference session, but for its weights, which `fill` writes."""
    settings = _settings(options_json)
    external = _external(locations_json, files)
    graph = read_model(as_source(model), external_data=external, limits=settings["limits"])
    (graph,) = _sized((graph,), options_json)
    opened = InferenceModel(graph, **settings)
    about = {
        "inputs": [_described(v) for v in opened.inputs.values()],
        "outputs": [_described(v) for v in graph.outputs if isinstance(v, Value)],
        "model": _about(graph.about),
    }
    return {"handle": _open(opened), "header": inference_header(opened) | {"about": about}}


def _described(value: Value) -> dict[str, Any]:
    """An input or output, as a page describes it."""
    dims = ["" if d is None else d for d in value.shape or ()]
    return {"name": value.name, "isTensor": True, "type": value.dtype, "shape": dims}


@answered
def output_metadata(handle: int, training: bool) -> list[dict[str, Any]]:
    """The outputs of a train (or eval) step, as a page describes them."""
    models, kind = _training(handle).models, "train" if training else "eval"
    return [_described(v) for v in models.output_values(kind)]


@answered
def moment_places(handle: int, name: str) -> list[dict[str, Any]]:
    """Return the places of a parameter's optimizer moments; an empty list for a frozen parameter."""
    layout = _training(handle).models.layout
    slot = layout.find(name)
    rows = []
    for moment in layout.moments if slot.trainable_offset >= 0 else ():
        segment, offset, shape = layout.moment(moment, slot)
        rows.append({"moment": moment, "segment": segment, "offset": offset, "dims": list(shape)})
    return rows


# Files without a session.


@answered
def build_files(model: Any, config_json: str, options_json: str, locations_json: str = "[]", *files: Any) -> int:
    """Build artifacts of a forward model, which `artifact` hands out."""
    limits = _settings(options_json)["limits"]
    built, _, _ = _build(as_source(model), config_json, limits, _external(locations_json, files))
    return _open(built)


@answered
def gradient_graph(
    model: Any, y_json: str, x_json: str, loss: str, options_json: str, locations_json: str = "[]", *files: Any
) -> Handout:
    """A model extended by gradients, as `GradientGraphBuilder` makes it."""
    from trainweb.compat.gradient_graph import GradientGraphBuilder

    builder = GradientGraphBuilder(
        as_source(model),
        json.loads(y_json),
        json.loads(x_json),
        loss,
        external_data=_external(locations_json, files),
        limits=_settings(options_json)["limits"],
    )
    builder.build()
    return None, builder.get_model()


@answered
def quantize(
    model: Any, bits_json: str, only_frozen_json: str, options_json: str, locations_json: str, *files: Any
) -> Handout:
    """A file with quantized weights, as `trainweb.quantize` makes it."""
    from trainweb.lora.quantize import quantize

    external, limits = _external(locations_json, files), _settings(options_json)["limits"]
    graph = read_model(as_source(model), external_data=external, limits=limits)
    return None, quantize(graph, json.loads(bits_json), only_frozen=json.loads(only_frozen_json))


@answered
def open_state(checkpoint: Any) -> dict[str, Any]:
    """A checkpoint state apart from sessions: its handle, and all of it but the data of its parameters."""
    state = CheckpointState.load_checkpoint(as_source(checkpoint))
    contents = state._lent()
    parameters = []
    for name, trainable in contents.trainable.items():
        dtype, shape = contents.type_of(name)
        parameters.append({"name": name, "dtype": dtype, "dims": list(shape), "trainable": trainable})
    return {"handle": _open(state), "parameters": parameters, "properties": properties_json(contents.properties)}


def _state(handle: int) -> CheckpointState:
    state = _find(handle)
    if not isinstance(state, CheckpointState):
        raise SessionError("A session is no CheckpointState.")
    return state


@answered
def state_parameter(handle: int, name: str) -> Handout:
    """The data of a parameter of a state."""
    tensor = _state(handle)._holder.get(name)
    return None, tensor if isinstance(tensor, LazyTensor) and tensor.place is not None else bytes(tensor.data)


@answered
def set_state_parameter(handle: int, name: str, dtype: str, dims_json: str, data: Any) -> None:
    """Overwrite a parameter of a state."""
    content = data if isinstance(data, bytes) else RemoteFile(data.index, data.nbytes, _files[0])[:]
    _state(handle)._holder.set(Tensor(name, dtype, tuple(json.loads(dims_json)), bytes(content)))


@answered
def save_state(handle: int, include_optimizer_state: bool, properties_text: str) -> Handout:
    """A checkpoint file of a state with these properties."""
    state = _state(handle)
    state._lent().properties = read_properties(json.loads(properties_text))
    return None, checkpoint_parts(state._to_checkpoint(include_optimizer_state))
