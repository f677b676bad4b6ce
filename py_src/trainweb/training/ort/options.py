"""Options of sessions and of runs: trainweb's own, and onnxruntime's under its names. No numpy.

Options with a meaning here are obeyed. Options that change no number are accepted with a warning (`training/inert.py`).
All others are refused by name with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, ClassVar, Self

from trainweb import messages
from trainweb.arguments import instance_of, texts, unknown
from trainweb.errors import SessionError, UnknownNameError, UnsupportedError
from trainweb.ir.layout import MAX_THREADS
from trainweb.model.checks import Limits, check_memory_budget
from trainweb.model.integrity import check_names
from trainweb.training.inert import (
    ENTRIES_AS_IS,
    INERT,
    OTHER_BACKENDS,
    check_entry,
    check_value,
    warn_without_effect,
    without_effect,
)
from trainweb.training.models import MODELS
from trainweb.training.plans import DEFAULT_MAX_PLANS

VERBOSE, INFO, WARNING, ERROR, FATAL = range(5)
"""Severities as onnxruntime numbers them."""
DEBUG = ("check_numerics",)
"""Settings of ``debug``."""
OF_SESSION = -1
"""The severity of a run that takes its session's."""


class ExecutionMode(IntEnum):
    """Order of the operators of one run: one after another, or side by side."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order operators run."""

    DEFAULT = 0
    PRIORITY_BASED = 1


class GraphOptimizationLevel(IntEnum):
    """Level of optimization."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class Attributes:
    """Refuses unknown attributes, so that no attribute is set in vain."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [f.name for f in fields(self)]  # type: ignore[arg-type]
        if name not in known and not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(unknown(f"{type(self).__name__}'s attribute", name, known))
        super().__setattr__(name, value)

    _kind: ClassVar[str]
    """Name of an option in an error."""
    _sign: ClassVar[str]
    """An attribute that onnxruntime's object has."""

    @classmethod
    def _of(cls, source: Any) -> Self:
        """Check options: None, a dict, or an object with onnxruntime's attributes.

        Raise TypeError for an unknown name or a wrong type, and UnsupportedError for what has no meaning here.
        """
        if source is None:
            return cls()
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        if isinstance(source, Mapping):
            for name in source:
                if name not in known:
                    raise TypeError(unknown(cls._kind, name, known))
            options = cls(**source)
        elif isinstance(source, cls):
            options = source
        elif hasattr(source, cls._sign):
            # Not all can be read of onnxruntime's own, and some are trainweb's.
            options = cls(**{name: getattr(source, name) for name in known if hasattr(source, name)})
        else:
            raise TypeError(f"{cls._kind}s must be a dict or {cls.__name__}, got {type(source).__name__}.")
        options._check()
        return options

    def _check(self) -> None:
        """Raise unless every value can be obeyed."""


@dataclass
class RunOptions(Attributes):
    """Options of one step or run.

    Attributes
    ----------
    tag : str
        Named in what the run logs, and in a note on an error that it raises; also called ``logid``.
    log_severity_level : int
        The least severity that the run logs: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1: the session's. Lines
        go to the logger ``trainweb``, or to stderr where nobody handles them.
    log_verbosity_level : int
        0; there is one level of verbose lines.
    terminate : bool
        End the run with SessionError, the session being as before it. Set by another thread while the run is under
        way, it ends it at a boundary of two instructions, some 10 ms later. Runs with options that another thread
        could set, which a dict cannot be, copy the state that they write before they start.
    only_execute_path_to_fetches : bool
        False: a plan computes all outputs of its model.
    training_mode : bool
        True: what to run is decided by the call, a train or an eval step.
    ema : bool
        Of an eval step: read the averages of the parameters that the session keeps in their place.
    """

    _kind: ClassVar[str] = "Run option"
    _sign: ClassVar[str] = "terminate"
    tag: str = ""
    log_severity_level: int = OF_SESSION
    log_verbosity_level: int = 0
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = True
    ema: bool = False

    @property
    def logid(self) -> str:
        """The tag, as onnxruntime's Python calls it."""
        return self.tag

    @logid.setter
    def logid(self, value: str) -> None:
        self.tag = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry, with a warning: none changes anything here.

        Parameters
        ----------
        key, value : str
            The entry.
        """
        entry = instance_of(str, "key", key), instance_of(str, "value", value)
        self.__dict__.setdefault("_entries", {}).update([entry])
        warn_without_effect([f"{key}={value!r} ({OTHER_BACKENDS})"])

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added; UnknownNameError, a KeyError, for another.

        Parameters
        ----------
        key : str
            The entry.
        """
        entries: dict[str, str] = self.__dict__.get("_entries", {})
        if instance_of(str, "key", key) not in entries:
            raise UnknownNameError(f"Run configuration {key!r} was not set.")
        return entries[key]

    @classmethod
    def _of(cls, source: Any) -> RunOptions:
        if source is None:
            return cls()
        if isinstance(source, Mapping):
            return super()._of({"tag" if k == "logid" else k: v for k, v in source.items()})
        options = super()._of(source)
        if isinstance(source, cls):
            options.__dict__["_watched"] = True
        else:
            options.tag = getattr(source, "logid", "")
            check_type("tag", options.tag, str)
            options.__dict__["_watched"] = source
        return options

    def _check(self) -> None:
        """Raise unless every value can be obeyed."""
        check_type("tag", self.tag, str)
        check_type("terminate", self.terminate, bool)
        check_type("ema", self.ema, bool)
        check_severity(self.log_severity_level)
        check_count("log_verbosity_level", self.log_verbosity_level)
        if self.only_execute_path_to_fetches:
            raise UnsupportedError("only_execute_path_to_fetches is not supported: a plan computes all outputs.")
        if not self.training_mode:
            raise UnsupportedError("training_mode=False is not supported: run an eval step, or an InferenceSession.")

    @property
    def _stop(self) -> Callable[[], bool] | None:
        """A function that returns True when the run must end; None if nobody else can set these options."""
        watched = self.__dict__.get("_watched")
        if watched is None:
            return None
        owner = self if watched is True else watched
        return lambda: bool(owner.terminate)

    def _refuse_ema(self) -> None:
        """Raise SessionError where a run that is no eval step is to read averages."""
        if self.ema:
            raise messages.EMA_IN_TRAINING()

    def _check_terminate(self) -> None:
        """Raise SessionError if the run is to end."""
        if self.terminate:
            raise messages.TERMINATED()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Put the tag on errors."""
        try:
            yield
        except Exception as e:
            if self.tag:
                e.add_note(f"run tag: {self.tag}")
            raise


@dataclass
class SessionOptions(Attributes):
    """Options of a session: the first eight are trainweb's own, the others onnxruntime's.

    Attributes
    ----------
    threads : int
        At most 64. Accepted for symmetry with the page; native sessions run on one thread, with the same results.
        So is ``intra_op_num_threads``, which may be larger.
    device : str
        "wasm", or "auto", which is the same here. A page and Node take "webgpu", too.
    reproducible : bool
        Results that are the same bytes on every machine.
    memory_budget : int, optional
        Bytes that the workspace of a step may take: feeds, activations, their gradients, outputs and scratch of
        kernels, but not parameters, accumulated gradients, moments and constants. Beyond it the backward pass
        recomputes activations (gradient checkpointing), with the same results to the last bit; `memory` says at what
        cost. A step that needs more raises LimitError, which names the smallest possible budget.
    limits : dict
        arena_bytes, nodes, loop_iterations, file_bytes.
    max_plans : int
        How many compiled steps are kept, one for each shape of the feeds, with and without accumulation, and for
        training and evaluation; 16. The least recently used go first.
    integrity : dict, optional
        Hashes that files must have, by ``train_model``, ``eval_model``, ``optimizer_model``, as in HTML (``"sha256-"``
        and Base64). `CheckpointState.load_checkpoint` takes the hash of a checkpoint.
    debug : dict, optional
        ``check_numerics`` (bool): a step of a `TrainingSession` that makes a NaN or an infinity raises NumericsError.
        The error names the node, and the session stays as it was. Steps take several times as long, and need memory
        for all their tensors.
    log_severity_level, logid
        Of runs that say nothing else; see `RunOptions`. -1 is 2, warnings.
    free_dimension_overrides : dict of str to int
        Sizes of symbolic dimensions of the inputs, by name.
    enable_profiling, profile_file_prefix
        `InferenceSession` and `compat.onnxruntime`: time every run; ``end_profiling`` writes the trace.
    use_deterministic_compute : bool
        Accepted: the same session computes the same bytes whenever it is run.
    intra_op_num_threads : int
        As ``threads``.
    log_verbosity_level : int
        There is one level of verbose lines.
    inter_op_num_threads, execution_mode, execution_order, graph_optimization_level
        They change no number here. Other values than onnxruntime's defaults are accepted with a warning that says why.
    enable_cpu_mem_arena, enable_mem_pattern, enable_mem_reuse
        These as well.
    optimized_model_filepath : str
        Empty: a plan is not an ONNX model.
    """

    _kind: ClassVar[str] = "Session option"
    _sign: ClassVar[str] = "graph_optimization_level"
    threads: int = 0
    device: str = "wasm"
    reproducible: bool = False
    memory_budget: int | None = None
    limits: Mapping[str, int] | Limits | None = None
    max_plans: int = DEFAULT_MAX_PLANS
    integrity: Mapping[str, str] | None = None
    debug: Mapping[str, bool] | None = None

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    log_severity_level: int = OF_SESSION
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    free_dimension_overrides: dict[str, int] = field(default_factory=dict)

    @classmethod
    def _of(cls, source: Any) -> SessionOptions:
        options = super()._of(source)
        if not options.__dict__.get("_told"):
            warn_without_effect(without_effect(options, options._config))
        return options

    @property
    def _config(self) -> dict[str, str]:
        """The configuration by key, as `add_session_config_entry` was given it."""
        entries: dict[str, str] = self.__dict__.setdefault("_entries", {})
        return entries

    def _without_warning(self, **changes: Any) -> SessionOptions:
        """These options with some changed, of which the user was warned already."""
        other = replace(self, **changes)
        other.__dict__["_told"] = True
        return other

    def _check(self) -> None:
        """Raise unless every value can be obeyed."""
        for name in ("threads", "intra_op_num_threads", "inter_op_num_threads", "log_verbosity_level"):
            check_count(name, getattr(self, name))
        if self.threads > MAX_THREADS:
            raise TypeError(f"'threads' must be at most {MAX_THREADS}, got {self.threads}.")
        if self.device == "webgpu":
            raise messages.GPU_OUTSIDE_PAGE()
        if self.device not in ("wasm", "auto"):
            raise TypeError(f"'device' must be 'wasm' or 'auto', got {self.device!r:.80}.")
        for name in ("reproducible", "enable_profiling", "use_deterministic_compute"):
            check_type(name, getattr(self, name), bool)
        check_severity(self.log_severity_level)
        check_memory_budget(self.memory_budget)
        if isinstance(self.max_plans, bool) or not isinstance(self.max_plans, int) or self.max_plans < 1:
            raise messages.NOT_A_COUNT(name="max_plans", least=1, value=self.max_plans)
        Limits.of(self.limits)
        check_names(self.integrity, MODELS)
        check_debug(self.debug)
        for name, size in self.free_dimension_overrides.items():
            check_count(f"free_dimension_overrides[{name!r}]", size)
        for name in INERT:
            check_value(name, getattr(self, name))
        if self.optimized_model_filepath:
            raise UnsupportedError(
                f"optimized_model_filepath={self.optimized_model_filepath!r} is not supported: a plan is not an ONNX "
                "model; session.explain(feeds) prints it."
            )

    @property
    def _checks_numerics(self) -> bool:
        """True if steps are checked for NaN and infinities."""
        return bool((self.debug or {}).get("check_numerics", False))

    def _core_settings(self) -> dict[str, Any]:
        """Keyword arguments of `SessionCore` and `InferenceCore`."""
        return {
            "reproducible": self.reproducible,
            "memory_budget": self.memory_budget,
            "limits": Limits.of(self.limits),
            "max_plans": self.max_plans,
        }

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give a symbolic dimension of the inputs this size.

        Parameters
        ----------
        name : str
            The dimension.
        size : int
            Its size, at least 0.
        """
        check_count(f"the size of {name!r:.80}", size)
        instance_of(str, "name", name)
        self.free_dimension_overrides[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Refuse: dimensions are known by their names.

        Parameters
        ----------
        denotation : str
            The dimension.
        size : int
            Its size.
        """
        raise UnsupportedError(
            f"Free dimensions by denotation ({denotation!r} = {size}) are not supported; "
            "use add_free_dimension_override_by_name."
        )

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry. The session warns of entries that change nothing here.

        Parameters
        ----------
        key, value : str
            The entry.

        Raises
        ------
        UnsupportedError
            It would change numbers, or promise what is not done.
        """
        check_entry(instance_of(str, "key", key), instance_of(str, "value", value))
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry of the session's configuration; UnknownNameError, a KeyError, where it was not set.

        Parameters
        ----------
        key : str
            The entry.
        """
        entries = dict(ENTRIES_AS_IS[:1]) | self._config
        if instance_of(str, "key", key) not in entries:
            raise UnknownNameError(f"Session configuration {key!r} was not set.")
        return entries[key]

    def add_initializer(self, name: str, value: Any) -> None:
        """Refuse: initializers come with the model.

        Parameters
        ----------
        name : str
            The initializer.
        value : OrtValue
            Its value.
        """
        raise UnsupportedError(f"Initializer {name!r} cannot be given apart: put it into the model.")

    def add_external_initializers(self, names: Iterable[str], values: Any) -> None:
        """Refuse: initializers come with the model, or as its external data.

        Parameters
        ----------
        names : list of str
            The initializers.
        values : list of OrtValue
            Their values.
        """
        raise UnsupportedError(
            f"Initializers {', '.join(texts('names', names))} cannot be given apart: use external_data={{...}}."
        )

    def register_custom_ops_library(self, path: str) -> None:
        """Refuse: such libraries are native code.

        Parameters
        ----------
        path : path
            The library.
        """
        raise UnsupportedError(f"Custom operator libraries are native code, which does not run here: {path}.")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless `value` is of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r:.80}.")


def check_debug(debug: object) -> None:
    """Raise TypeError unless this can be ``debug``."""
    if debug is not None and not isinstance(debug, Mapping):
        raise TypeError(f"'debug' must be a dict of {', '.join(DEBUG)}, got {type(debug).__name__}.")
    for name, value in (debug or {}).items():
        if name not in DEBUG:
            raise TypeError(unknown("Option of debug", name, DEBUG))
        check_type(f"debug.{name}", value, bool)


def check_count(name: str, value: object) -> None:
    """Raise unless `value` is an integer >= 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r:.80}.")
    if value < 0:
        raise SessionError(f"{name} must be >= 0, got {value}.")


def check_severity(value: object) -> None:
    """Raise unless `value` is a severity."""
    if isinstance(value, bool) or not isinstance(value, int) or not OF_SESSION <= value <= FATAL:
        raise SessionError(f"log_severity_level must be an integer from {OF_SESSION} to {FATAL}, got {value!r}.")


class Log:
    """The log of a session: messages of its severity or above."""

    def __init__(self, options: SessionOptions) -> None:
        severity = options.log_severity_level
        self.severity, self.name = WARNING if severity == OF_SESSION else severity, options.logid

    def __call__(self, severity: int, run: RunOptions, text: str) -> None:
        """Log a line if the run, or else the session, wants such."""
        if severity < (self.severity if run.log_severity_level == OF_SESSION else run.log_severity_level):
            return
        import logging  # not on the way of a page's first step

        logger = logging.getLogger("trainweb")
        level = 10 * (severity + 1)
        names = "".join(f"[{name}] " for name in (self.name, run.tag) if name)
        record = logger.makeRecord("trainweb", level, __file__, 0, names + text, (), None)
        if logger.hasHandlers():
            # The option asked for it: the logger's own level does not filter it.
            logger.handle(record)
        else:
            logging.StreamHandler().handle(record)
