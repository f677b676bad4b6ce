"""The session without numpy: bytes in, bytes out. `TrainingSession` and the page's bridge stand on it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.plan import Recomputation
from trainweb.checkpoint import LazyTensor
from trainweb.compiler import Binding, Plan, compile_model
from trainweb.compiler.passes.prologue import Prepared
from trainweb.errors import (
    BufferSizeError,
    CheckpointError,
    FeedError,
    ModelError,
    SessionError,
    UnsupportedError,
)
from trainweb.ir.program import (
    ARENA,
    GRADIENTS,
    MOMENTUM0,
    MOMENTUM1,
    PARAMETERS,
    PREPARED,
    STATE,
    Buf,
    BufSequence,
    Storage,
)
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Tensor, Value, as_float32
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.model.reader import read_model
from trainweb.ops.op import bind
from trainweb.ops.optim import scheduler_graph
from trainweb.training import seed
from trainweb.training.host import N_SEGMENTS, LoadedPlan, PlanHost, evaluate
from trainweb.training.state import (
    DEFAULT_LEARNING_RATE,
    CheckpointState,
    OptimizerState,
    check_same_type,
    in_use,
)

if TYPE_CHECKING:
    from trainweb.backend.wasm.engine.base import Engine

BUFFER_SUFFIX = "_grad.accumulation.buffer"
HIDDEN_SUFFIXES = ("_grad", "_grad.accumulation.buffer", "_grad.accumulation.out")
RESET = "lazy_reset_grad"
LR_WORD, STEP_WORD, INITIAL_LR_WORD, SCHEDULER_WORD, SEED_WORD = 1, 2, 4, 5, 10
OPTIMIZER_INPUTS = ("learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments")
MOMENT_SEGMENTS = {"momentum0": MOMENTUM0, "momentum1": MOMENTUM1}


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """Place of a parameter: element offsets among all and among trainable parameters (-1: frozen)."""

    name: str
    shape: tuple[int, ...]
    offset: int
    trainable_offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Segments:
    """Kernel memory of a session that ran without Python: addresses by segment, and what lies in it."""

    bases: list[int]
    sizes: list[int]
    slots: list[ParameterSlot]


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What a session takes of the kernels' memory, in bytes, and what `memory_budget` costs it.

    Attributes
    ----------
    parameters, gradients, moments : int
        Parameters, accumulated gradients and the optimizer's moments.
    arena : int
        Workspace that the plans share: feeds, activations, their gradients, outputs and scratch of kernels. It
        is that of the largest plan so far, and what `memory_budget` limits.
    prepared : int
        Values that depend on parameters alone, which are kept from run to run; none with a `memory_budget`.
    plans : int
        Plans themselves and their constants.
    arena_without_budget : int
        What the arena would be if nothing was computed again.
    recomputed_instructions, recomputed_flops : int
        Instructions that run again in a step, and the operations of products and convolutions in them.
    recomputed_share : float
        Estimated time of them, in parts of the time of the step without a budget.
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


class SessionCore:
    """Training on bytes; see `trainweb.TrainingSession` for the meaning of the calls."""

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
        segments: Segments | None = None,
    ) -> None:
        if state.core is not None:
            raise in_use()
        self.state = state
        self.graphs: dict[str, Graph | None] = {
            "train": train_graph,
            "eval": eval_graph,
            "optimizer": optimizer_graph,
        }
        self.limits, self.memory_budget = limits or Limits(), memory_budget
        self.engine = engine or get_engine(reproducible=reproducible)
        self.slots = self._layout(train_graph)
        self.size = sum(s.size for s in self.slots.values())
        self.trainable_size = sum(s.size for s in self.slots.values() if s.trainable_offset >= 0)
        self.inputs = {"train": self._user_inputs(train_graph), "eval": {}}
        self.outputs = {"train": self._user_outputs(train_graph), "eval": []}
        if eval_graph is not None:
            self.inputs["eval"] = self._user_inputs(eval_graph)
            self.outputs["eval"] = self._user_outputs(eval_graph)
        self.moments = self._moment_names(optimizer_graph)
        sizes = [0] * N_SEGMENTS
        sizes[PARAMETERS] = 4 * self.size
        sizes[GRADIENTS] = 4 * self.trainable_size
        for name in self.moments:
            sizes[MOMENT_SEGMENTS[name]] = 4 * self.trainable_size
        self._plans: dict[object, LoadedPlan] = {}
        self.prepared = Prepared(self._fixed_parameters(train_graph))
        if segments is not None:
            own = slice(PARAMETERS, STATE)
            if segments.slots != list(self.slots.values()) or segments.sizes[own] != sizes[own]:
                raise ModelError("The models have other parameters than the plans that were compiled from them.")
            self.host = PlanHost(self.engine, sizes, segments.bases)
        else:
            self.host = PlanHost(self.engine, sizes)
            try:
                self._attach()
            except BaseException:
                self.host.release()
                raise
        state.core = self
        _live.add(self)

    # What the models say.

    def _layout(self, graph: Graph) -> dict[str, ParameterSlot]:
        slots: dict[str, ParameterSlot] = {}
        input_names = {v.name for v in graph.inputs}
        offset = trainable = 0
        for value in graph.inputs:
            if value.name not in self.state.tensors or not isinstance(value, Value):
                continue
            if value.dtype != "float32":
                raise UnsupportedError(f"Parameter {value.name!r} is {value.dtype}; parameters must be float32.")
            if value.shape is None or any(not isinstance(d, int) or d < 0 for d in value.shape):
                raise ModelError(f"Parameter {value.name!r} has no static shape: {value.shape}.")
            shape = tuple(int(d) for d in value.shape if isinstance(d, int))
            is_trainable = self.state.trainable[value.name]
            if is_trainable and value.name + BUFFER_SUFFIX not in input_names:
                raise ModelError(f"Gradient buffer input not provided for param: {value.name}")
            slot = ParameterSlot(value.name, shape, offset, trainable if is_trainable else -1)
            slots[value.name] = slot
            offset += slot.size
            trainable += slot.size if is_trainable else 0
        return slots

    def _fixed_parameters(self, graph: Graph) -> set[int]:
        """Byte offsets of parameters that no step changes: frozen ones that are no running statistics."""
        fixed = {s.name: 4 * s.offset for s in self.slots.values() if s.trainable_offset < 0}
        for node in graph.nodes:
            if not fixed.keys().isdisjoint(node.inputs):
                for k in bind(node, graph.opsets).state_inputs:
                    fixed.pop(node.inputs[k], None)
        return set(fixed.values())

    def _user_inputs(self, graph: Graph) -> dict[str, Value]:
        return {
            v.name: v
            for v in graph.inputs
            if isinstance(v, Value)
            and v.name not in self.slots
            and v.name != RESET
            and not v.name.endswith(BUFFER_SUFFIX)
        }

    def _user_outputs(self, graph: Graph) -> list[str]:
        return [v.name for v in graph.outputs if not v.name.endswith(HIDDEN_SUFFIXES)]

    def _moment_names(self, graph: Graph | None) -> list[str]:
        if graph is None:
            return []
        names = tuple(v.name for v in graph.inputs)
        if names not in (OPTIMIZER_INPUTS, OPTIMIZER_INPUTS[:-1]):
            raise ModelError(f"Invalid graph inputs.\n\tExpected:{list(OPTIMIZER_INPUTS)}\n\tActual:{list(names)}")
        return ["momentum0", "momentum1"][: len(names) - 4]

    # State to memory and back.

    def _attach(self) -> None:
        state = self.state
        if not state.is_nominal:
            for slot in self.slots.values():
                tensor = state.tensors[slot.name]
                check_same_type(tensor, "float32", slot.shape)
                self.host.write_segment(PARAMETERS, 4 * slot.offset, memoryview(tensor.data))
            self._attach_moments()
        self.host.write_state("I", 0, 1)
        self.host.write_state("f", LR_WORD, DEFAULT_LEARNING_RATE)
        self.host.write_state("q", STEP_WORD, state.optimizer.step)
        self.host.write_state("f", INITIAL_LR_WORD, state.optimizer.initial_lr)
        self.host.write_state("QQ", SEED_WORD, seed.current(), 0)

    def _attach_moments(self) -> None:
        state = self.state
        if not self.moments or not state.optimizer.moments:
            return
        for slot in self.slots.values():
            if slot.trainable_offset < 0:
                continue
            saved = state.optimizer.moments.get(slot.name, {})
            for name in self.moments:
                if name not in saved:
                    raise CheckpointError(
                        f"The checkpoint's optimizer state has no {name} for {slot.name!r}, which this optimizer needs."
                    )
                check_same_type(saved[name], "float32", slot.shape)
                segment = MOMENT_SEGMENTS[name]
                self.host.write_segment(segment, 4 * slot.trainable_offset, memoryview(saved[name].data))

    def contents(self) -> tuple[dict[str, Tensor], OptimizerState]:
        """Parameters and optimizer state as they are when their data is read."""
        parameters: dict[str, Tensor] = {}
        moments: dict[str, dict[str, Tensor]] = {}
        for slot in self.slots.values():
            parameters[slot.name] = self._lazy(slot.name, slot, PARAMETERS, slot.offset)
            if slot.trainable_offset >= 0 and self.moments:
                moments[slot.name] = {
                    name: self._lazy(name, slot, MOMENT_SEGMENTS[name], slot.trainable_offset) for name in self.moments
                }
        if self.graphs["optimizer"] is None:
            return parameters, self.state.optimizer
        (step,) = self.host.read_state("q", STEP_WORD)
        (initial_lr,) = self.host.read_state("f", INITIAL_LR_WORD)
        return parameters, OptimizerState(int(step), initial_lr, moments)

    def _lazy(self, name: str, slot: ParameterSlot, segment: int, offset: int) -> Tensor:
        return LazyTensor(name, "float32", slot.shape, partial(self.host.read_segment_into, segment, 4 * offset))

    def read_back(self) -> None:
        """Copy parameters, moments, step and initial rate into the state."""
        state = self.state
        parameters, state.optimizer = self.contents()
        if not state.is_nominal:
            state.tensors.update({name: _loaded(tensor) for name, tensor in parameters.items()})
        if self.graphs["optimizer"] is not None:
            moments = state.optimizer.moments
            state.optimizer.moments = {p: {n: _loaded(t) for n, t in named.items()} for p, named in moments.items()}
            state.has_optimizer_state = True

    def release(self, *, read_back: bool = True) -> None:
        """Free kernel memory, and give the state back its contents unless nobody will ask for them."""
        if self.host.released:
            return
        if read_back:
            self.read_back()
        self.host.release()
        self._plans.clear()
        self.state.core = None

    # Plans.

    def signature(self, kind: str, feeds: Mapping[str, TensorType]) -> tuple[object, ...]:
        """Key of the plan for these feeds, once they are checked.

        Raises
        ------
        FeedError
            A feed is missing, unknown, or of the wrong dtype, rank or shape.
        """
        key = check_feeds(self.inputs[kind], feeds)
        for name, given in feeds.items():
            if kind == "train" and given.size == 0:
                raise FeedError(f"Feed {name!r} has shape {list(given.shape)}: an empty batch cannot be trained on.")
        return (kind, *key)

    def plan(self, kind: str, feeds: Mapping[str, TensorType]) -> LoadedPlan:
        """The plan of a step for these feeds: "train" for the current reset flag, or "eval"."""
        self.host.check()
        key = self.signature(kind, feeds)
        overwrite = bool(self.host.read_state("I", 0)[0]) if kind == "train" else True
        key = (*key, overwrite)
        if key not in self._plans:
            self._plans[key] = self.host.load(self.compile_step(kind, feeds, overwrite))
        return self.host.ready(self._plans[key])

    def compile_step(self, kind: str, feeds: Mapping[str, TensorType], overwrite: bool) -> Plan:
        """Compile a "train" or "eval" step; `overwrite`: gradients overwrite instead of adding."""
        graph = self.graphs[kind]
        assert graph is not None
        names = {v.name for v in graph.inputs}
        bindings = {s.name: Binding(PARAMETERS, 4 * s.offset, "float32", s.shape) for s in self.slots.values()}
        for s in self.slots.values():
            if s.trainable_offset >= 0:
                bindings[s.name + BUFFER_SUFFIX] = Binding(GRADIENTS, 4 * s.trainable_offset, "float32", s.shape)
        known = {RESET: TensorType("bool", (1,), (overwrite,))} if RESET in names else {}
        plan = compile_model(
            graph,
            {n: feeds[n] for n in self.inputs[kind]},
            self.outputs[kind],
            self.engine.description,
            bindings={n: b for n, b in bindings.items() if n in names},
            known=known,
            overwrite=overwrite,
            evaluate=partial(evaluate, self.engine),
            segment_bytes=self.host.sizes,
            arena_limit=self.limits.arena_bytes,
            memory_budget=self.memory_budget,
            prepared=self.prepared,
            # Of parameters that change between two runs nothing would be left over for the second.
            prepare_trained=kind == "eval" or not overwrite,
        )
        if plan.recomputation.instructions:
            _log_recomputation(kind, plan)
        return plan

    def optimizer_plan(self) -> LoadedPlan:
        """The plan of an optimizer step."""
        self.host.check()
        graph = self.graphs["optimizer"]
        if graph is None:
            raise SessionError("This TrainingSession has no OptimizerModel loaded.")
        if self.state.is_nominal:
            raise CheckpointError("The optimizer state cannot be constructed. Please load the model parameters first.")
        if "optimizer" not in self._plans:
            self._plans["optimizer"] = self.host.load(self.compile_optimizer())
        return self.host.ready(self._plans["optimizer"])

    def compile_optimizer(self) -> Plan:
        """Compile an optimizer step."""
        graph = self.graphs["optimizer"]
        assert graph is not None
        segments = {
            "params": PARAMETERS,
            "gradients": GRADIENTS,
            "first_order_moments": MOMENTUM0,
            "second_order_moments": MOMENTUM1,
        }
        names = [v.name for v in graph.inputs if isinstance(v, SequenceValue)]
        return compile_model(
            graph,
            {},
            [],
            self.engine.description,
            bindings={
                "learning_rate": Binding(STATE, 4 * LR_WORD, "float32", (1,)),
                "step": Binding(STATE, 4 * STEP_WORD, "int64", (1,)),
            },
            sequences={n: BufSequence(self._runs(segments[n])) for n in names},
            segment_bytes=self.host.sizes,
        )

    def memory(self) -> SessionMemory:
        """What the session takes of the kernels' memory now."""
        self.host.check()
        plans = [loaded.plan for loaded in self.host.loaded]
        largest = max((p.recomputation for p in plans), key=lambda r: r.full_bytes, default=Recomputation(0))
        sizes = self.host.sizes
        return SessionMemory(
            sizes[PARAMETERS],
            sizes[GRADIENTS],
            sizes[MOMENTUM0] + sizes[MOMENTUM1],
            sizes[ARENA],
            sizes[PREPARED],
            sum(len(p.words) for p in plans) + sum(map(len, {p.constants for p in plans})),
            largest.full_bytes,
            largest.instructions,
            largest.flops,
            largest.share,
        )

    def known_plan(self, key: object) -> Plan | None:
        """The plan of a step that was compiled before, by its signature and reset flag, or by name."""
        loaded = self._plans.get(key)
        return loaded.plan if loaded else None

    def _runs(self, segment: int) -> list[Buf]:
        """The trainable parameters' flat runs in a segment, cut alike in every segment."""
        runs: list[tuple[int, int, int]] = []
        for s in self.slots.values():
            if s.trainable_offset < 0 or not s.size:
                continue
            if runs and runs[-1][0] + runs[-1][2] == s.offset:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + s.size)
            else:
                runs.append((s.offset, s.trainable_offset, s.size))
        return [
            Buf(Storage(segment, 4 * n, 4 * (at if segment == PARAMETERS else flat)), "float32", (n,))
            for at, flat, n in runs
        ]

    # Steps.

    def step(
        self,
        kind: str,
        feeds: Mapping[str, Tensor],
        fetches: Sequence[str] | None = None,
        targets: Mapping[str, TensorType] | None = None,
    ) -> dict[str, Tensor]:
        """Run a "train" or "eval" step; results by name in the order of `fetches` (None: all).

        `targets` are the types of arrays that results will be written into: they must fit, or nothing runs.
        """
        self.check_step(kind)
        wanted = self._fetches(kind, fetches)
        loaded = self.plan(kind, {n: TensorType(t.dtype, t.shape) for n, t in feeds.items()})
        for name, target in (targets or {}).items():
            slot = loaded.plan.outputs[name]
            if (target.dtype, target.shape) != (slot.dtype, slot.shape):
                got = f"{target.dtype}{list(target.shape)}"
                raise FeedError(f"Fetch {name!r} is {slot.dtype}{list(slot.shape)}; its array is {got}.")
        self.host.write_feeds(loaded, feeds)
        self.host.run(loaded)
        if kind == "train":
            self.host.write_state("I", 0, 0)
        return self.host.read_outputs(loaded, wanted)

    def check_step(self, kind: str) -> None:
        """Raise unless the session can run a "train" or "eval" step now."""
        self.host.check()
        if kind == "eval" and self.graphs["eval"] is None:
            raise SessionError("This TrainingSession has no EvalModel loaded.")
        if self.state.is_nominal:
            step = "TrainStep" if kind == "train" else "EvalStep"
            raise CheckpointError(
                f"Cannot perform {step} with a nominal state. Please load the model parameters first."
            )

    def _fetches(self, kind: str, fetches: Sequence[str] | None) -> Sequence[str]:
        if fetches is None:
            return self.outputs[kind]
        for name in fetches:
            if name not in self.outputs[kind]:
                raise FeedError(
                    f"'fetches' contains invalid output name: {name}; the outputs are {', '.join(self.outputs[kind])}."
                )
        return fetches

    def optimizer_step(self) -> None:
        """Update the parameters with the accumulated gradients."""
        self.host.run(self.optimizer_plan())

    def lazy_reset_grad(self) -> None:
        """Let the next train step overwrite the gradients."""
        self.host.write_state("I", 0, 1)

    # Learning rate.

    def _check_optimizer(self) -> None:
        self.host.check()
        if self.graphs["optimizer"] is None:
            raise SessionError("No optimizer session initialized: this TrainingSession has no OptimizerModel loaded.")

    def get_learning_rate(self) -> float:
        """The current rate."""
        self._check_optimizer()
        return float(self.host.read_state("f", LR_WORD)[0])

    def set_learning_rate(self, lr: float) -> None:
        """Set the current rate."""
        self._check_optimizer()
        self.host.write_state("f", LR_WORD, as_float32(float(lr)))

    def register_linear_lr_scheduler(self, warmup: int, total: int, initial_lr: float) -> None:
        """Register lr(step) = initial_lr * (step / warmup, then (total - step) / (total - warmup))."""
        self._check_optimizer()
        for name, value in (("warmup_step_count", warmup), ("total_step_count", total)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
                raise ValueError(f"{name} must be an integer >= 0, got {value!r}.")
        initial_lr = as_float32(float(initial_lr))
        self.host.write_state("f", LR_WORD, initial_lr)
        self.host.write_state("fIqq", INITIAL_LR_WORD, initial_lr, 1, warmup, total)

    def scheduler_step(self) -> None:
        """Recompute the rate for the number of completed optimizer steps."""
        self.host.run(self.scheduler_plan())

    def scheduler_plan(self) -> LoadedPlan:
        """The plan of a scheduler step."""
        self._check_optimizer()
        if not self.host.read_state("I", SCHEDULER_WORD)[0]:
            raise SessionError(
                "No learning rate scheduler was registered. Please register a valid learning rate scheduler"
            )
        if "scheduler" not in self._plans:
            self._plans["scheduler"] = self.host.load(self.compile_scheduler())
        return self.host.ready(self._plans["scheduler"])

    def compile_scheduler(self) -> Plan:
        """Compile a scheduler step."""
        return compile_model(
            scheduler_graph(),
            {},
            [],
            self.engine.description,
            bindings={"learning_rate": Binding(STATE, 4 * LR_WORD, "float32", (1,))},
            segment_bytes=self.host.sizes,
        )

    # Parameters.

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements."""
        self.host.check()
        return self.trainable_size if trainable_only else self.size

    def get_contiguous_parameters(self, trainable_only: bool = True) -> Tensor:
        """All (trainable) parameters, one after the other in the order of the training model's inputs."""
        self.host.check()
        if self.state.is_nominal:
            raise CheckpointError(
                "Cannot copy parameters from a nominal checkpoint state. Please load the model parameters first."
            )
        if not trainable_only:
            return Tensor("parameters", "float32", (self.size,), self.host.read_segment(PARAMETERS, 0, 4 * self.size))
        data, at = bytearray(4 * self.trainable_size), 0
        for run in self._runs(PARAMETERS):
            part = memoryview(data)[at : at + run.nbytes]
            self.host.read_segment_into(PARAMETERS, run.storage.offset or 0, part)
            at += run.nbytes
        return Tensor("parameters", "float32", (self.trainable_size,), data)

    def load_parameters_buffer(self, data: bytes | bytearray | memoryview, trainable_only: bool = True) -> None:
        """Overwrite all (trainable) parameters with little-endian float32 bytes."""
        self.host.check()
        if self.state.is_nominal and trainable_only:
            raise CheckpointError(
                "For nominal checkpoint state, all parameters need to be loaded into the model "
                "(trainable_only = false)."
            )
        expected = 4 * self.get_parameters_size(trainable_only)
        if len(data) != expected:
            raise BufferSizeError(
                "Size of the buffer passed into loadParametersBuffer must match the number of parameters in the model. "
                f"Please use getParametersSize method to check. Expected: {expected} bytes, Actual: {len(data)} bytes."
            )
        view = memoryview(data)
        if not trainable_only:
            self.host.write_segment(PARAMETERS, 0, view)
            self.state.is_nominal = False
            return
        at = 0
        for run in self._runs(PARAMETERS):
            self.host.write_segment(PARAMETERS, run.storage.offset or 0, view[at : at + run.nbytes])
            at += run.nbytes

    def _slot(self, name: str) -> ParameterSlot:
        self.host.check()
        if name not in self.slots:
            raise CheckpointError(f"The model has no parameter {name!r}; it has {', '.join(self.slots)}.")
        return self.slots[name]

    def get_parameter(self, name: str) -> Tensor:
        """A copy of one parameter."""
        slot = self._slot(name)
        if self.state.is_nominal:
            raise CheckpointError("Cannot get parameter from a nominal state. Please load the parameter states first")
        data = self.host.read_segment(PARAMETERS, 4 * slot.offset, 4 * slot.size)
        return Tensor(name, "float32", slot.shape, data)

    def update_parameter(self, tensor: Tensor) -> None:
        """Overwrite one parameter; gradients and moments stay."""
        slot = self._slot(tensor.name)
        if self.state.is_nominal:
            raise CheckpointError(
                "Cannot copy parameter to a nominal state. Please load all the parameter states first"
            )
        check_same_type(tensor, "float32", slot.shape)
        self.host.write_segment(PARAMETERS, 4 * slot.offset, memoryview(tensor.data))

    def get_gradient(self, name: str) -> Tensor:
        """A copy of one accumulated gradient."""
        slot = self._slot(name)
        if slot.trainable_offset < 0:
            raise CheckpointError(f"Parameter {name!r} is frozen: it has no gradient.")
        data = self.host.read_segment(GRADIENTS, 4 * slot.trainable_offset, 4 * slot.size)
        return Tensor(name, "float32", slot.shape, data)

    def set_seed(self, value: int) -> None:
        """Seed this session's random operators."""
        self.host.write_state("QQ", SEED_WORD, value % 2**64, 0)


def read_models(
    train: Any, evaluation: Any = None, optimizer: Any = None, limits: Limits | None = None
) -> tuple[Graph, Graph | None, Graph | None]:
    """The graphs of a session's models, each given as `read_model` takes it, or None."""
    evaluated, optimized = (None if m is None else read_model(m, limits=limits) for m in (evaluation, optimizer))
    return read_model(train, limits=limits), evaluated, optimized


def _loaded(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.data)


def _log_recomputation(kind: str, plan: Plan) -> None:
    from logging import getLogger  # not on the way of a page's first step

    r = plan.recomputation
    getLogger("trainweb").info(
        "the workspace of a %s step takes %d bytes instead of %d: %d instructions run again, some %.0f %% more time",
        kind,
        plan.arena_bytes,
        r.full_bytes,
        r.instructions,
        100 * r.share,
    )


_live: weakref.WeakSet[SessionCore] = weakref.WeakSet()


def set_seed(value: int) -> None:
    """Seed the random operators of every session, present and future.

    Parameters
    ----------
    value
        Any 64-bit integer.
    """
    seed.set_current(int(value))
    for core in list(_live):
        if not core.host.released:
            core.set_seed(int(value))


def check_feeds(inputs: Mapping[str, Value], feeds: Mapping[str, TensorType]) -> tuple[object, ...]:
    """Raise FeedError unless `feeds` are those of a model with these inputs; otherwise what a plan depends on."""
    for name in inputs:
        if name not in feeds:
            raise FeedError(f"input '{name}' is missing in 'feeds'.")
    symbols: dict[str, tuple[int, str]] = {}
    for name, given in feeds.items():
        if name not in inputs:
            raise FeedError(f"invalid input '{name}': the model's inputs are {', '.join(inputs)}.")
        check_feed(inputs[name], given, symbols)
    return tuple((n, feeds[n].dtype, feeds[n].shape) for n in inputs)


def check_feed(value: Value, given: TensorType, symbols: dict[str, tuple[int, str]]) -> None:
    """Raise FeedError unless `given` fits the input `value`; `symbols` collects sizes of symbolic dims."""
    if given.dtype != value.dtype:
        raise FeedError(
            f"Unexpected input data type of {value.name!r}. Actual: ({given.dtype}), expected: ({value.dtype}). "
            f"Convert it with .astype({value.dtype!r})."
        )
    if value.shape is None:
        return
    if len(given.shape) != len(value.shape):
        raise FeedError(
            f"Invalid rank for input: {value.name} Got: {len(given.shape)} Expected: {len(value.shape)} "
            f"(shape {list(given.shape)} for {list(value.shape)})."
        )
    for k, (size, dim) in enumerate(zip(given.shape, value.shape, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise FeedError(
                f"Got invalid dimensions for input: {value.name} for the following indices "
                f"index: {k} Got: {size} Expected: {dim}"
            )
        if isinstance(dim, str):
            known, where = symbols.setdefault(dim, (size, value.name))
            if known != size:
                raise FeedError(
                    f"Feeds disagree on the dimension {dim!r}: {known} in {where!r}, {size} in {value.name!r}."
                )
