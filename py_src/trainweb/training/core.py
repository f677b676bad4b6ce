"""The session without numpy: bytes in, bytes out. `TrainingSession` and the page's bridge stand on it."""

from __future__ import annotations

import math
import operator
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from trainweb import messages
from trainweb.arguments import mapping
from trainweb.backend.chosen import RUNTIME
from trainweb.checkpoint import write_checkpoint
from trainweb.checkpoint.contents import Property
from trainweb.errors import SessionError
from trainweb.ir.layout import (
    ARENA,
    COPY_TRIAL,
    GRADIENTS,
    PARAMETERS,
    PREPARED,
    STATE_INITIAL_LR,
    STATE_LAZY_RESET,
    STATE_LEARNING_RATE,
    STATE_RANDOM_OFFSET,
    STATE_SCHEDULER,
    STATE_SEED,
    STATE_STEP,
    STATE_TOTAL,
    STATE_WARMUP,
)
from trainweb.ir.program import Recomputation
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Tensor, Value, as_float32
from trainweb.model.lazy import join_parts
from trainweb.ops.frame.infer import may_decide
from trainweb.ops.optim.operators import LIMITS, MOMENTS
from trainweb.spelling import by_inputs
from trainweb.training.contents import NEW_SEED, ContentsInMemory, go_on_from_file, leave, write_contents
from trainweb.training.decoder import Decoder
from trainweb.training.export import export_model
from trainweb.training.forward import Forward
from trainweb.training.models import InUse, SessionModels
from trainweb.training.ort.options import INFO, VERBOSE, Log, RunOptions, SessionOptions
from trainweb.training.parameters import copied
from trainweb.training.plans import DEFAULT_MAX_PLANS, PlanCache
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import EVAL, GENERATE, PREDICT, TRAIN, StepKind
from trainweb.training.weights import export_weights, load_weights

if TYPE_CHECKING:
    from pathlib import Path

    from trainweb.backend.base import Host
    from trainweb.backend.engine import Engine
    from trainweb.backend.plan import LoadedPlan, Plan
    from trainweb.training.debug.numerics import NumericsCheck
    from trainweb.training.debug.units import DeadUnits


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """Kernel memory of a session, in bytes, and the cost of its `memory_budget`.

    Attributes
    ----------
    parameters : int
        The parameters.
    gradients : int
        Accumulated gradients.
    moments : int
        The optimizer's moments.
    arena : int
        Workspace that the plans share: feeds, activations, their gradients, outputs and scratch of kernels. The
        largest plan so far sets its size, and `memory_budget` limits it.
    prepared : int
        Values that depend only on parameters, which are kept from run to run; 0 with a `memory_budget`.
    plans : int
        Compiled steps and their constants.
    arena_without_budget : int
        Size of the workspace if no instruction ran again.
    recomputed_instructions : int
        Instructions that run again in a step.
    recomputed_flops : int
        Operations of products and convolutions in them.
    recomputed_share : float
        Estimated time of them, in parts of the time of the step without a budget.
    gpu : dict
        Bytes on the GPU, by segment; empty where steps run on the CPU.
    """

    parameters: int
    gradients: int
    moments: int
    arena: int
    prepared: int
    plans: int
    arena_without_budget: int
    recomputed_instructions: int
    recomputed_flops: int
    recomputed_share: float
    gpu: dict[str, int] = field(default_factory=dict)


NO_OPTIONS = RunOptions()


class SessionCore:
    """Training on bytes; `trainweb.TrainingSession` and `training/calls.py` describe the calls."""

    def __init__(
        self,
        state: CheckpointState,
        train_graph: Graph,
        eval_graph: Graph | None = None,
        optimizer_graph: Graph | None = None,
        *,
        engine: Engine | None = None,
        limits: Limits | None = None,
        memory_budget: int | None = None,
        reproducible: bool = False,
        max_plans: int = DEFAULT_MAX_PLANS,
        check_numerics: bool = False,
        log: Log | None = None,
    ) -> None:
        if not isinstance(state, CheckpointState):
            raise TypeError(f"'state' must be a CheckpointState, got {type(state).__name__}.")
        self.log = log or Log(SessionOptions())
        free_abandoned()
        origin = state._lent()
        self.state = state
        self.engine = engine or RUNTIME.get_engine(reproducible=reproducible)
        self.models = SessionModels(
            origin.trainable,
            train_graph,
            eval_graph,
            optimizer_graph,
            engine=self.engine,
            limits=limits or Limits(),
            memory_budget=memory_budget,
            halves=origin.halves,
        )
        self.layout, self.notices = self.models.layout, set[str]()
        self.preprocessing: list[Any] = []
        """Steps of tables that the rows of the last fit had."""
        self.inputs, self.outputs = self.models.inputs, self.models.outputs
        self.host = RUNTIME.open_host(self.engine, self.models.segment_bytes)
        self.plans = PlanCache(self.host, max_plans)
        self.parameters = ContentsInMemory(self.layout, self.host, origin, has_optimizer=optimizer_graph is not None)
        try:
            self.host.set_trained(self.layout.trained_runs())
            write_contents(self.host, self.layout, origin)
        except BaseException:
            self.host.release()
            raise
        leave(origin, self.layout)
        state._holder = state._latest = self.parameters
        self.decoder = Decoder()
        self.numerics: NumericsCheck | None = None
        if check_numerics:
            from trainweb.training.debug.numerics import NumericsCheck  # not on the way of a page's first step

            self.numerics = NumericsCheck(self.models, self.host, self.inspected_plan)
        _live.add(self)
        self._end = weakref.finalize(self, abandoned.append, partial(_release, state, self.parameters, self.host))
        self._end.atexit = False

    def release(self, *, give_back: bool = True) -> None:
        """Free kernel memory, and give the state back its contents unless nobody has it any more."""
        with self.engine.lock:
            if self._end.detach() is not None:
                _release(self.state, self.parameters, self.host, give_back=give_back)

    def _check(self) -> None:
        """Raise after release; take the contents back from the session of the state that used them last."""
        self.host.check()
        if self.state._holder is not self.parameters:
            self.parameters.take(self.state._lent())
            self.state._holder = self.parameters

    # Plans.

    def plan(self, kind: StepKind, feeds: Mapping[str, TensorType], options: RunOptions = NO_OPTIONS) -> LoadedPlan:
        """The plan of a step for these feeds; of a train step, the one for the current reset flag."""
        self._check()
        return self._plan(kind, feeds, self._overwrites(kind), options)

    def _overwrites(self, kind: StepKind) -> bool:
        """True unless the next step of a kind adds to the gradients."""
        return kind.base != "train" or bool(self.host.read_state(STATE_LAZY_RESET))

    def _plan(
        self, kind: StepKind, feeds: Mapping[str, TensorType], overwrite: bool, options: RunOptions = NO_OPTIONS
    ) -> LoadedPlan:
        key = self.models.key(kind, feeds)

        def compiled(in_use: InUse) -> Plan:
            start = perf_counter()
            plan = self.models.compile_step(kind, feeds, overwrite, in_use)
            shown = ", ".join(f"{n} {t.dtype}{list(t.shape)}" for n, t in feeds.items())
            self.log(INFO, options, f"compiled a {kind.base} step of {shown}: {perf_counter() - start:.3f} s")
            return plan

        return self.plans.step((*key, overwrite), compiled)

    def forward(self, kind: StepKind) -> Forward | None:
        """The step that predicts or makes tokens; None for other kinds."""
        return self.models.forward(kind)

    def token_plan(self, kind: StepKind, feeds: Mapping[str, Tensor]) -> LoadedPlan:
        """The plan of a step of new tokens."""
        self.check_step(GENERATE)
        return self.plan(kind, self.models.signature(kind, feeds))

    def inspected_plan(self, kind: StepKind, types: Mapping[str, TensorType], overwrite: bool) -> LoadedPlan:
        """The plan of a step that keeps every float tensor until its end."""
        key = ("inspected", *self.models.key(kind, types), overwrite)
        return self.plans.step(
            key, lambda in_use: self.models.compile_step(kind, types, overwrite, in_use, keep_all=True)
        )

    def train_plan(self, types: Mapping[str, TensorType], *, overwrite: bool) -> LoadedPlan:
        """The plan of a train step that overwrites gradients, or adds to them."""
        return self._plan(TRAIN, types, overwrite)

    def clip_plan(self) -> LoadedPlan:
        """The plan that clips gradients."""
        self._check_optimizer()
        return self.plans.other("clip", self.models.compile_clip)

    def optimizer_plan(self) -> LoadedPlan:
        """The plan of an optimizer step."""
        self._check_optimizer()
        if self.parameters.is_nominal:
            raise messages.NOMINAL(action="construct the optimizer of")
        return self.plans.other("optimizer", self.models.compile_optimizer)

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        shapes = by_inputs(mapping("shapes", shapes), self.inputs["train"])
        self.check_step("train")
        # The plan of the train step is compiled last: where only one plan is kept, it is this one.
        kinds = (TRAIN,) if self.models.graphs["eval"] is None else (EVAL, TRAIN)
        types = {kind: self._types(kind, shapes) for kind in reversed(kinds)}
        for kind in kinds:
            self._plan(kind, types[kind], overwrite=True)
        if self.models.graphs["optimizer"] is not None:
            self.optimizer_plan()

    def _types(self, kind: StepKind, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
        """Check the shapes; return the types of the feeds of a "train" or "eval" step."""
        inputs = self.inputs[kind.base]
        for name, shape in shapes.items():
            check_shape(name, shape)
        dtypes = {n: inputs[n].dtype if n in inputs else "" for n in shapes if n in inputs or kind == TRAIN}
        types = {n: TensorType(dtype, tuple(shapes[n])) for n, dtype in dtypes.items()}
        self.models.key(kind, types)
        deciding = next((n for n, t in types.items() if n in self.models.deciding[kind.base] and may_decide(t)), None)
        if deciding is not None:
            raise messages.DECIDING_SHAPE(name=deciding)
        return types

    def explain(self, kind: StepKind, feeds: Mapping[str, TensorType]) -> str:
        self.check_step(kind.base)
        self.models.key(kind, feeds)
        return self.models.explain(kind, feeds, self._overwrites(kind))

    def memory(self) -> SessionMemory:
        self._check()
        plans = [loaded.plan for loaded in self.host.loaded]
        largest = max((p.recomputation for p in plans), key=lambda r: r.full_bytes, default=Recomputation(0))
        sizes = self.host.sizes
        return SessionMemory(
            sizes[PARAMETERS],
            sizes[GRADIENTS],
            sum(sizes[segment] for segment in {m.segment for m in MOMENTS}),
            sizes[ARENA],
            sizes[PREPARED],
            self.host.plan_bytes(),
            largest.full_bytes,
            largest.instructions,
            largest.flops,
            largest.share,
        )

    @contextmanager
    def averaged(self, *, on: bool) -> Iterator[None]:
        """Let the averages stand for the trainable parameters meanwhile, if that is wanted."""
        if not on:
            yield
            return
        self._check()
        if not self.layout.has_averages:
            raise messages.NO_AVERAGES()
        if not self.host.read_state(STATE_STEP):
            yield  # the parameters are all that there is to average
            return
        self.host.exchange_averages()
        try:
            yield
        finally:
            self.host.exchange_averages()

    # Steps.

    def step(
        self,
        kind: StepKind,
        feeds: Mapping[str, Tensor],
        fetches: Sequence[str] | None = None,
        targets: Mapping[str, TensorType] | None = None,
        options: RunOptions = NO_OPTIONS,
    ) -> dict[str, Tensor]:
        """Run a "train", "eval" or "predict" step; results by name in the order of `fetches` (None: all).

        Sums for metrics are results, too. With `options.ema` all but a "train" step read the averages in place of the
        parameters.

        `targets` are the types of arrays that results will be written into: they must fit, or nothing runs.
        """
        base = kind.base
        if base == "train":
            options._refuse_ema()
        with self.engine.lock, options._noted(), self.averaged(on=options.ema):
            self.check_step(base)
            wanted = self._fetches(kind, fetches)
            loaded = self.plan(kind, self.models.signature(kind, feeds), options)
            self._check_targets(loaded, targets or {})
            options._check_terminate()
            start = perf_counter()

            def run() -> dict[str, Tensor]:
                self.host.write_feeds(loaded, feeds)
                self.host.run(loaded, options._stop)
                if base == "train":
                    self.host.write_state(STATE_LAZY_RESET, 0)
                return self.host.read_outputs(loaded, wanted)

            is_checked = self.numerics is not None and base != PREDICT
            results = run() if self.numerics is None or not is_checked else self.numerics.step(base, feeds, loaded, run)
            self.log(VERBOSE, options, f"{base} step: {1e3 * (perf_counter() - start):.3f} ms")
            return results

    def _check_targets(self, loaded: LoadedPlan, targets: Mapping[str, TensorType]) -> None:
        for name, target in targets.items():
            slot = loaded.plan.outputs[name]
            if (target.dtype, target.shape) != (slot.dtype, slot.shape):
                actual = f"{target.dtype}{list(target.shape)}"
                raise messages.FETCH_TYPE(name=name, dtype=slot.dtype, shape=list(slot.shape), actual=actual)

    def profile(self, kind: StepKind, feeds: Mapping[str, Tensor], runs: int) -> tuple[Plan, list[float]]:
        """Step once, then time `runs` steps. Return their plan and the mean milliseconds of each instruction.

        All that may fail for want of memory comes before the first step.
        """
        self.check_step(kind.base)
        check_count("runs", runs, least=1)
        types = {n: TensorType(t.dtype, t.shape) for n, t in feeds.items()}
        with self.host.timer(self._plan(kind, types, kind.base != "train").plan) as times:
            self.step(kind, feeds, [])
            loaded = self._plan(kind, types, kind.base != "train")
            return loaded.plan, self.host.profile(loaded, feeds, runs, times)

    def check_step(self, base: str) -> None:
        """Raise unless the session can run a step of kinds with this base now."""
        self._check()
        if base != "train" and self.models.graphs["eval"] is None:
            raise messages.NO_EVAL_MODEL()
        if self.parameters.is_nominal:
            raise messages.NOMINAL(action=f"perform {base.capitalize()}Step with")

    def _fetches(self, kind: StepKind, fetches: Sequence[str] | None) -> Sequence[str]:
        outputs = self.models.results(kind)
        if fetches is None:
            return outputs
        for name in fetches:
            if name not in outputs and name not in self.models.counts_of(kind):
                raise messages.UNKNOWN_FETCH(name=name, names=", ".join(outputs))
        return fetches

    def optimizer_step(self, options: RunOptions = NO_OPTIONS) -> None:
        """Update the parameters with the accumulated gradients."""
        options._refuse_ema()
        with self.engine.lock, options._noted():
            loaded = self.optimizer_plan()
            options._check_terminate()
            start = perf_counter()
            run = partial(self.host.run, loaded, options._stop)
            run() if self.numerics is None else self.numerics.optimizer_step(run)
            self.log(VERBOSE, options, f"optimizer step: {1e3 * (perf_counter() - start):.3f} ms")

    def clip_gradients(self, value: float | None, norm: float | None) -> None:
        """Clip the accumulated gradients: the magnitude of each, then their joint norm; None is no limit."""
        loaded = self.clip_plan()
        data = struct.pack("<2f", *(math.inf if limit is None else limit for limit in (value, norm)))
        self.host.write_feeds(loaded, {LIMITS: Tensor(LIMITS, "float32", (2,), data)})
        self.host.run(loaded)

    def lazy_reset_grad(self) -> None:
        self.host.write_state(STATE_LAZY_RESET, 1)

    # Learning rate.

    def _check_optimizer(self) -> None:
        self._check()
        if self.models.graphs["optimizer"] is None:
            raise messages.NO_OPTIMIZER_MODEL()

    def get_learning_rate(self) -> float:
        self._check_optimizer()
        return float(self.host.read_state(STATE_LEARNING_RATE))

    def set_learning_rate(self, lr: float) -> None:
        self._check_optimizer()
        self.host.write_state(STATE_LEARNING_RATE, checked_rate("learning_rate", lr))

    def register_linear_lr_scheduler(self, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        self._check_optimizer()
        warmup, total = warmup_step_count, total_step_count
        for name, value in (("warmup_step_count", warmup), ("total_step_count", total)):
            check_count(name, value)
        if warmup > total:
            raise messages.WARMUP_BEYOND_TOTAL(name="warmup_step_count", total=total, value=warmup)
        initial_lr = checked_rate("initial_lr", initial_lr)
        self.host.write_state(STATE_LEARNING_RATE, initial_lr)
        self.host.write_state(STATE_INITIAL_LR, initial_lr)
        self.host.write_state(STATE_SCHEDULER, 1)
        self.host.write_state(STATE_WARMUP, warmup)
        self.host.write_state(STATE_TOTAL, total)

    def scheduler_step(self) -> None:
        """Recompute the rate for the number of completed optimizer steps."""
        self._check_optimizer()
        if not self.host.read_state(STATE_SCHEDULER):
            raise messages.NO_SCHEDULER()
        self.host.run(self.plans.other("scheduler", self.models.compile_scheduler))

    # Parameters.

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        self._check()
        return self.layout.count(trainable_only)

    def get_contiguous_parameters(self, trainable_only: bool = True, ema: bool = False) -> Tensor:
        self._check()
        with self.averaged(on=ema):
            return self.parameters.get_contiguous(trainable_only)

    def load_parameters_buffer(self, buffer: bytes | bytearray | memoryview, trainable_only: bool = True) -> None:
        self._check()
        self.parameters.load_contiguous(buffer, trainable_only)

    def get_parameter_type_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        self._check()
        return "float32", self.layout.find(name).shape

    def get_parameter(self, name: str) -> Tensor:
        self._check()
        self.layout.find(name)
        return self.parameters.get(name)

    def update_parameter(self, tensor: Tensor) -> None:
        self._check()
        self.layout.find(tensor.name)
        self.parameters.set(tensor)

    def parameter_names(self, trainable_only: bool = False) -> list[str]:
        self._check()
        return [s.name for s in self.layout.slots.values() if not trainable_only or s.trainable_offset >= 0]

    def get_moments(self, name: str) -> dict[str, Tensor]:
        self._check_optimizer()
        self.layout.find(name)
        return {n: copied(t) for n, t in self.parameters.contents().moments.get(name, {}).items()}

    def step_count(self) -> int:
        self._check_optimizer()
        return int(self.host.read_state(STATE_STEP))

    def input_metadata(self, training: bool = True) -> list[Value]:
        self._check()
        return list(self.inputs["train" if training else "eval"].values())

    def output_metadata(self, training: bool = True) -> list[Value]:
        self._check()
        return self.models.output_values("train" if training else "eval")

    def get_gradient(self, name: str) -> Tensor:
        self._check()
        self.layout.find(name)
        gradient = self.parameters.gradient(name)
        if gradient is None:
            raise messages.FROZEN_GRADIENT(name=name)
        return gradient

    def gradient_norms(self) -> dict[str, float]:
        self._check()
        if self.parameters.is_nominal:
            raise messages.NOMINAL(action="copy parameters from")
        return {
            slot.name: math.sqrt(self.host.segment_range(GRADIENTS, 4 * slot.trainable_offset, slot.size).squares)
            for slot in self.layout.trained()
        }

    def keep_state(self) -> None:
        self._check()
        if self.parameters.is_nominal:
            raise messages.NOMINAL(action="save")
        self.host.save(COPY_TRIAL)

    def go_back(self) -> None:
        self._check()
        self.host.go_back(COPY_TRIAL)
        self.host.forget(COPY_TRIAL)

    def dead_units(self, batches: Sequence[Mapping[str, Tensor]]) -> list[DeadUnits]:
        from trainweb.training.debug.units import dead_units  # not on the way of a page's first step

        if not batches:
            raise messages.NO_BATCHES()
        self.check_step("eval")

        def plan(feeds: Mapping[str, Tensor]) -> LoadedPlan:
            return self.inspected_plan(EVAL, self.models.signature(EVAL, feeds), overwrite=True)

        return dead_units(self.host, plan, batches)

    # Properties and files.

    def add_property(self, name: str, value: Any) -> None:
        self._check()
        self.state.properties[name] = value

    def property_names(self) -> list[str]:
        self._check()
        return list(self.state.properties)

    def delete_property(self, name: str) -> None:
        self.get_property(name)
        del self.state.properties[name]

    def get_property(self, name: str) -> Property:
        self._check()
        if name not in self.state.properties:
            raise messages.UNKNOWN_PROPERTY(name=name)
        return self.state.properties[name]

    def get_property_kind(self, name: str) -> str:
        kinds: dict[type, str] = {int: "int", float: "float", str: "string"}
        return kinds[type(self.get_property(name))]

    def save_checkpoint(self, include_optimizer_state: bool = False) -> bytes:
        self._check()
        return write_checkpoint(self.state._to_checkpoint(include_optimizer_state))

    def load_checkpoint(self, checkpoint: bytes | str | Path) -> None:
        self._check()
        go_on_from_file(self.parameters, checkpoint)

    def export_model_for_inferencing(self, output_names: Sequence[str] | None, ema: bool) -> bytes:
        self._check()
        with self.averaged(on=ema):
            graph, names = self.models.graphs["eval"], self.layout.slots
            return join_parts(export_model(graph, names, self.parameters, output_names))

    def export_weights(self, format: str, ema: bool) -> bytes:
        self._check()
        with self.averaged(on=ema):
            return export_weights(self.parameters, self.layout.slots, format)

    def load_weights(self, weights: bytes, strict: bool) -> None:
        if not isinstance(weights, (bytes, bytearray, memoryview)):
            raise TypeError(f"'weights' must be bytes, got {type(weights).__name__}.")
        self._check()
        load_weights(self.parameters, self.layout.slots, bytes(weights), strict=strict)

    def get_seed(self) -> int:
        return int(self.host.read_state(STATE_SEED))

    def set_seed(self, value: int) -> None:
        self.host.write_state(STATE_SEED, value % 2**64)
        self.host.write_state(STATE_RANDOM_OFFSET, 0)


def check_count(name: str, value: Any, least: int = 0) -> None:
    """Raise SessionError unless `value` is an integer from `least` on, of 63 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise messages.NOT_A_COUNT(name=name, least=least, value=value)


def check_shape(name: str, shape: Any) -> None:
    """Raise FeedError unless `shape` is a sequence of sizes."""
    is_list = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not is_list or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise messages.NOT_A_SHAPE(name=name, actual=list(shape) if is_list else shape)


def checked_rate(name: str, value: Any) -> float:
    """`value` rounded to float32, if it can be a learning rate."""
    if isinstance(value, (bool, type)) or not hasattr(value, "__float__"):
        raise messages.NOT_A_NUMBER(name=name, actual=type(value).__name__)
    try:
        rate = as_float32(float(value))
    except TypeError as error:  # an array of objects
        raise messages.NOT_A_NUMBER(name=name, actual=type(value).__name__) from error
    except (OverflowError, ValueError):  # an integer of 400 digits, an array of several numbers
        rate = math.inf
    if not 0 <= rate < math.inf:
        raise messages.NOT_A_RATE(name=name, value=value)
    return rate


_live: weakref.WeakSet[SessionCore] = weakref.WeakSet()

abandoned: deque[Callable[[], None]] = deque()
"""Functions that release sessions dropped without `release`. Garbage is found at any time, even while kernels run: it
is freed when the next session is made."""


class Uncopied:
    """Base class of sessions: their state is in the kernels' memory, which a copy would share, or lack."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SessionError(
            "A session cannot be pickled or copied. Make another one, or save it by CheckpointStore.save and load that."
        )


def free_abandoned() -> None:
    """Release the sessions that were dropped; their states keep the contents."""
    while abandoned:
        abandoned.popleft()()


def _release(state: CheckpointState, parameters: ContentsInMemory, host: Host, *, give_back: bool = True) -> None:
    if state._holder is parameters and give_back:
        state._holder = parameters.give_back()
    host.release()


def set_seed(value: int) -> None:
    """Seed the random operators of every session, present and future.

    Parameters
    ----------
    value
        Any integer; of more than 64 bits the lowest 64 count.

    Raises
    ------
    TypeError
        No integer.
    """
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(f"'value' must be an integer, got {type(value).__name__}.") from error
    NEW_SEED[0] = value % 2**64
    for core in list(_live):
        if not core.host.released:
            core.set_seed(value)
