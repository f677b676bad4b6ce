"""What the page's worker calls: sessions by handle, JSON and bytes across, no numpy.

Every function returns `(json, bytes or None)`; json is `{"ok": value}` or `{"error": {"name", "message", ...}}`,
and with bytes `{"ok": value, "data": {"format", "nbytes", "crc32"}}`, by which the worker knows that it got just these.
A repeated step needs none of them: the worker keeps the addresses that `plan` gave it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any
from zlib import crc32

from trainweb.checkpoint import checkpoint_buffer
from trainweb.errors import CheckpointError, ReleasedError, SessionError, TrainwebError
from trainweb.ir.layout import STATE
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits, check_memory_budget
from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.training.bundle import Start, make_bundle, read_start
from trainweb.training.core import Segments, SessionCore
from trainweb.training.export import export_graph
from trainweb.training.host import LoadedPlan
from trainweb.training.inference import InferenceCore
from trainweb.training.models import read_models
from trainweb.training.parameters import ParameterSlot, TensorStore
from trainweb.training.state import CheckpointState, property_value

if TYPE_CHECKING:
    from trainweb.artifacts import Artifacts
    from trainweb.backend.wasm.engine.base import Engine

Answer = tuple[str, "bytes | bytearray | memoryview | None"]

SAMPLES, SAMPLE_BYTES = 16, 4096
"""Blocks of an answer's bytes that its checksum is of, the first at its start and the last at its end."""

Handout = tuple[Any, "bytes | bytearray | memoryview | None", str]
"""A value, and bytes in a format: "checkpoint", "onnx", "bundle" or "tensor"."""

_engine: list[Engine] = []
_sessions: dict[int, Session] = {}
_next = [1]


@dataclass(slots=True)
class Remembered:
    """What it takes to write a bundle of a session that has trained since."""

    start: Start
    models: Callable[[], Mapping[str, bytes]]
    signatures: list[dict[str, TensorType]]


class Session:
    """A session of the page, and the plans it was told of.

    `artifacts` gives what `createFromModel` built; None for a session that was made of artifacts.
    """

    def __init__(self, core: SessionCore | InferenceCore, artifacts: Callable[[], Artifacts] | None = None) -> None:
        self.core = core
        self.artifacts = artifacts
        self.plans: dict[int, LoadedPlan] = {}
        self.remembered: Remembered | None = None

    def training(self) -> SessionCore:
        """The core, if it trains."""
        if not isinstance(self.core, SessionCore):
            raise SessionError("An InferenceSession cannot train.")
        return self.core


def answered(fn: Callable[..., Any]) -> Callable[..., Answer]:
    """Turn a result or a TrainwebError into an answer."""

    @wraps(fn)
    def call(*args: Any) -> Answer:
        try:
            result = fn(*args)
        except MemoryError:
            return json.dumps({"error": {"name": "MemoryError", "message": "", "nbytes": _size_of(args)}}), None
        except (TrainwebError, ValueError, TypeError, KeyError) as e:
            return json.dumps({"error": describe(e)}), None
        value, data, kind = result if isinstance(result, tuple) else (result, None, None)
        if data is None:
            return json.dumps({"ok": value}), None
        announced = {"format": kind, "nbytes": len(data), "crc32": sample_checksum(data)}
        return json.dumps({"ok": value, "data": announced}), data

    return call


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
    session = _sessions.get(args[0]) if args and isinstance(args[0], int) else None
    if session is not None and isinstance(session.core, SessionCore):
        return 4 * session.core.layout.size
    return max((int(getattr(a, "byteLength", 0)) for a in args if not isinstance(a, (int, str))), default=0)


def describe(e: Exception) -> dict[str, Any]:
    """Name, message and fields of an error."""
    message = str(e.args[0]) if isinstance(e, KeyError) and e.args else str(e)
    fields = {k: v for k, v in vars(e).items() if isinstance(v, (str, int, list, type(None)))}
    return {"name": type(e).__name__, "message": message, **fields}


def as_bytes(data: Any) -> Any:
    """A JavaScript typed array (or any buffer) as bytes; None stays."""
    return data.to_bytes() if hasattr(data, "to_bytes") else data


@answered
def start(js_engine: Any) -> None:
    """Use the worker's engine for every session."""
    from trainweb.backend.wasm.engine.pyodide import PyodideEngine

    _engine[:] = [PyodideEngine(js_engine)]


def _session(handle: int) -> Session:
    if handle not in _sessions:
        raise ReleasedError("This session was released; create a new one.")
    return _sessions[handle]


def _open(session: Session) -> int:
    handle = _next[0]
    _next[0] += 1
    _sessions[handle] = session
    return handle


def _settings(options_json: str) -> dict[str, Any]:
    """The options of a session that are not the engine's."""
    options = json.loads(options_json or "{}")
    return {
        "limits": Limits.of(options.get("limits")),
        "memory_budget": check_memory_budget(options.get("memory_budget")),
        "engine": _engine[0] if _engine else None,
        # The worker knows which plans it uses; addresses that it has must stay.
        "max_plans": sys.maxsize,
    }


def _create(
    state: CheckpointState,
    graphs: tuple[Graph, Graph | None, Graph | None],
    settings: dict[str, Any],
    artifacts: Callable[[], Artifacts] | None = None,
) -> dict[str, Any]:
    core = SessionCore(state, *graphs, **settings)
    return _info(core, artifacts)


def _info(core: SessionCore, artifacts: Any) -> dict[str, Any]:
    return {
        "handle": _open(Session(core, artifacts)),
        "trainingInputNames": list(core.inputs["train"]),
        "trainingOutputNames": core.outputs["train"],
        "evalInputNames": list(core.inputs["eval"]),
        "evalOutputNames": core.outputs["eval"],
        "statePtr": core.host.bases[STATE],
        "hasEval": core.models.graphs["eval"] is not None,
        "hasOptimizer": core.models.graphs["optimizer"] is not None,
        "nominal": core.state.is_nominal,
    }


@answered
def create(train: Any, checkpoint: Any, evaluation: Any, optimizer: Any, options_json: str) -> dict[str, Any]:
    """A session from artifacts."""
    settings = _settings(options_json)
    graphs = read_models(as_bytes(train), as_bytes(evaluation), as_bytes(optimizer), settings["limits"])
    return _create(CheckpointState.load_checkpoint(as_bytes(checkpoint)), graphs, settings)


@answered
def adopt(
    train: Any, checkpoint: Any, evaluation: Any, optimizer: Any, memory_json: str, options_json: str
) -> dict[str, Any]:
    """A session that trained without Python so far, on the memory where it left everything.

    `checkpoint` is that of a bundle; `memory_json` has the parameters and, by segment, "bases" and "sizes".
    The memory belongs to the session from now on, unless this fails.
    """
    settings, memory = _settings(options_json), json.loads(memory_json)
    graphs = read_models(as_bytes(train), as_bytes(evaluation), as_bytes(optimizer), settings["limits"])
    state = CheckpointState.load_checkpoint(as_bytes(checkpoint))
    store = state.store
    assert isinstance(store, TensorStore)
    store.is_nominal = memory["nominal"]
    slots = [
        ParameterSlot(p["name"], tuple(p["dims"]), p["offset"], p["trainableOffset"]) for p in memory["parameters"]
    ]
    for slot in slots:
        store.tensors[slot.name] = Tensor(slot.name, "float32", slot.shape, b"")
        store.trainable[slot.name] = slot.trainable_offset >= 0
    core = SessionCore(state, *graphs, segments=Segments(memory["bases"], memory["sizes"], slots), **settings)
    return _info(core, None)


CONFIG = {
    "loss": "loss",
    "optimizer": "optimizer",
    "requiresGrad": "requires_grad",
    "frozenParams": "frozen_params",
    "additionalOutputNames": "additional_output_names",
    "lossInputNames": "loss_input_names",
    "nominalCheckpoint": "nominal_checkpoint",
    "batchNorm": "batch_norm",
}
"""Keys of `createFromModel` and the arguments of `build_artifacts` they are."""


def _member(choices: Any, name: Any) -> Any:
    """The member of an enum by name, as the page gives it."""
    if name not in choices.__members__:
        raise SessionError(f"Unknown {choices.__name__} {name!r:.80}; there are {', '.join(choices.__members__)}.")
    return choices[name]


@answered
def create_from_model(model: Any, config_json: str, options_json: str) -> dict[str, Any]:
    """A session from a forward model: its artifacts are built here."""
    settings = _settings(options_json)
    built, nominal = _build(as_bytes(model), config_json, settings["limits"])
    return _create(CheckpointState(built.contents(nominal=nominal)), built.graphs, settings, lambda: built)


def _build(model: bytes, config_json: str, limits: Limits) -> tuple[Artifacts, bool]:
    """Artifacts of a forward model, and whether the session is to start from the nominal checkpoint."""
    from trainweb.artifacts import LossType, OptimType, build_artifacts

    config = json.loads(config_json)
    unknown = [k for k in config if k not in CONFIG]
    if unknown:
        raise SessionError(f"Unknown configuration {', '.join(unknown)}; there are {', '.join(CONFIG)}.")
    arguments = {CONFIG[k]: v for k, v in config.items() if v is not None}
    for key, choices in (("loss", LossType), ("optimizer", OptimType)):
        if key in arguments:
            arguments[key] = _member(choices, arguments[key])
    return build_artifacts(model, **arguments, limits=limits), arguments.get("nominal_checkpoint", False)


def _signature(signature: Any) -> dict[str, TensorType]:
    return {f["name"]: TensorType(f["dtype"], tuple(f["dims"])) for f in signature}


@answered
def adopt_model(handle: int, model: Any, config_json: str) -> None:
    """Tell an adopted session which model its artifacts were built from."""
    session, model = _session(handle), as_bytes(model)
    limits = session.training().models.limits
    session.artifacts = cache(lambda: _build(model, config_json, limits)[0])


@answered
def remember(handle: int, train: Any, evaluation: Any, optimizer: Any) -> None:
    """Keep what a session starts from, so that `bundle` can be called later; before its first step.

    Without models it is a session of `create_from_model`, whose artifacts are at hand.
    """
    session = _session(handle)
    given = [as_bytes(m) for m in (train, evaluation, optimizer)]

    def models() -> dict[str, bytes]:
        built = session.artifacts and session.artifacts()
        found = [built.training_model, built.eval_model, built.optimizer_model] if built else given
        names = ("train_model", "eval_model", "optimizer_model")
        return {name: bytes(m) for name, m in zip(names, found, strict=True) if m is not None}

    session.remembered = Remembered(Start.of(session.training()), models, [])


@answered
def recall(handle: int, bundle: Any) -> None:
    """Keep what an adopted session started from: the bundle itself."""
    started, models, signatures = read_start(bytes(as_bytes(bundle) or b""))
    _session(handle).remembered = Remembered(started, lambda: models, signatures)


@answered
def bundle(handle: int, signatures_json: str) -> Handout:
    """The bundle of a remembered session as it started, for these signatures besides those it had."""
    session = _session(handle)
    kept = session.remembered
    if kept is None:
        raise SessionError("This session keeps nothing to make a bundle of.")
    given = [_signature(s) for s in json.loads(signatures_json)]
    kept.signatures += [s for s in given if s not in kept.signatures]
    return None, make_bundle(session.training(), kept.signatures, kept.models(), kept.start), "bundle"


@answered
def plan(handle: int, kind: str, signature_json: str) -> dict[str, Any]:
    """The loaded plan for feeds of these dtypes and dims, and where they and the results lie."""
    session = _session(handle)
    feeds = _signature(json.loads(signature_json or "[]"))
    core = session.core
    if isinstance(core, InferenceCore):
        loaded = core.plan(feeds)
    elif kind in ("train", "eval"):
        core.check_step(kind)
        loaded = core.plan(kind, feeds)
    else:
        loaded = core.optimizer_plan() if kind == "optimizer" else core.scheduler_plan()
    session.plans[loaded.ptr] = loaded
    host = core.host

    def places(slots: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": s.name,
                "ptr": host.address(s, loaded),
                "nbytes": s.nbytes,
                "dtype": s.dtype,
                "dims": list(s.shape),
            }
            for s in slots.values()
        ]

    return {
        "ptr": loaded.ptr,
        "generation": host.generation,
        "arenaBytes": loaded.plan.arena_bytes,
        "inputs": places(loaded.plan.inputs),
        "outputs": places(loaded.plan.outputs),
    }


@answered
def explain(handle: int, ptr: int, status: int) -> None:
    """The error behind a non-zero status of a plan's last run."""
    session = _session(handle)
    raise session.core.host.explain(session.plans[ptr], status)


@answered
def listing(handle: int, ptr: int) -> dict[str, Any]:
    """Per instruction of a loaded plan, its disassembly and the node it came from."""
    plan = _session(handle).plans[ptr].plan
    return {"text": plan.text, "nodes": plan.nodes}


def _tensor(t: Tensor) -> Handout:
    return {"dtype": t.dtype, "dims": list(t.shape)}, t.data, "tensor"


def _update(core: SessionCore, name: str, dtype: str, dims: list[int], data: Any) -> None:
    core.update_parameter(Tensor(name, dtype, tuple(dims), data))


def _type_and_shape(core: SessionCore, name: str) -> dict[str, Any]:
    dtype, shape = core.get_parameter_type_and_shape(name)
    return {"dtype": dtype, "dims": list(shape)}


def _add_property(core: SessionCore, name: str, value: Any) -> None:
    core.host.check()
    core.state.property_values[name] = property_value(value)


def _get_property(core: SessionCore, name: str) -> Any:
    core.host.check()
    if name not in core.state.property_values:
        raise CheckpointError(f"Property {name!r} not found.")
    return core.state.property_values[name]


def _save(core: SessionCore, include_optimizer_state: bool) -> Handout:
    core.host.check()
    return None, checkpoint_buffer(core.state.to_checkpoint(include_optimizer_state)), "checkpoint"


METHODS: dict[str, Callable[..., Any]] = {
    "get_parameters_size": SessionCore.get_parameters_size,
    "get_contiguous_parameters": lambda core, only=True: _tensor(core.get_contiguous_parameters(only)),
    "get_learning_rate": SessionCore.get_learning_rate,
    "set_learning_rate": SessionCore.set_learning_rate,
    "register_linear_lr_scheduler": SessionCore.register_linear_lr_scheduler,
    "save_checkpoint": _save,
    "export_model_for_inferencing": lambda core, names: (None, export_graph(core, names), "onnx"),
    "get_parameter": lambda core, name: _tensor(core.get_parameter(name)),
    "get_parameter_type_and_shape": _type_and_shape,
    "add_property": _add_property,
    "get_property": _get_property,
    "memory": lambda core: asdict(core.memory()),
    "set_seed": lambda core, seed: core.set_seed(int(seed)),
}
METHODS_WITH_DATA: dict[str, Callable[..., Any]] = {
    "load_parameters_buffer": lambda core, only, data: core.load_parameters_buffer(data, only),
    "update_parameter": _update,
}
ARTIFACTS = ("training_model", "eval_model", "optimizer_model", "checkpoint")


@answered
def call(handle: int, method: str, args_json: str, data: Any = None) -> Any:
    """Any other call of a session; `data` comes last."""
    session = _session(handle)
    args = json.loads(args_json or "[]")
    if method == "artifact":
        return _artifact(session, *args)
    core = session.training()
    if method in METHODS_WITH_DATA:
        return METHODS_WITH_DATA[method](core, *args, as_bytes(data))
    return METHODS[method](core, *args)


def _artifact(session: Session, name: str) -> Handout:
    if session.artifacts is None:
        raise SessionError("This session was not made by createFromModel: it has no artifacts of its own.")
    if name not in ARTIFACTS:
        raise SessionError(f"There is no artifact {name!r}; there are {', '.join(ARTIFACTS)}.")
    built = session.artifacts()
    if name == "checkpoint":
        # Not kept: it is as large as the model.
        return None, checkpoint_buffer(built.contents(), generated=True), "checkpoint"
    return None, getattr(built, name), "onnx"


@answered
def release(handle: int) -> None:
    """Free a session; harmless when repeated."""
    session = _sessions.pop(handle, None)
    if session is not None:
        core = session.core
        if isinstance(core, SessionCore):
            core.release(give_back=False)  # nobody has the state
        else:
            core.host.release()


@answered
def inference_create(model: Any, options_json: str = "") -> dict[str, Any]:
    """An inference session."""
    settings = _settings(options_json)
    core = InferenceCore(read_model(as_bytes(model), limits=settings["limits"]), **settings)
    return {"handle": _open(Session(core)), "inputNames": list(core.inputs), "outputNames": core.outputs}
