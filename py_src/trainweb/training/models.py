"""The models of a training session and what they say: parameters, feeds, results, and plans for given feeds.

Nothing here has kernel memory or changes: a session natively, and the page's worker, ask for plans and run them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.backend.base import N_SEGMENTS, STATE_BYTES
from trainweb.backend.chosen import WASM, target_of
from trainweb.backend.plan import Plan
from trainweb.checkpoint import digest_of, scaling_of
from trainweb.compiler import Binding, compile_model
from trainweb.compiler.context import Cache
from trainweb.compiler.explain import Explanation
from trainweb.control.deciding import deciding_inputs
from trainweb.errors import CheckpointError, ModelError, TrainwebError, UnsupportedError
from trainweb.ir.layout import GRADIENTS, PARAMETERS, PREPARED, STATE, STATE_LEARNING_RATE, STATE_SHARE, STATE_STEP
from trainweb.ir.shapes import TensorType
from trainweb.loss_counts import SHARE, LossCount, counted_loss, uneven_terms, weighted_gradients, with_terms
from trainweb.metrics import Described, with_metrics
from trainweb.model.checks import Limits
from trainweb.model.floats import cast_inputs
from trainweb.model.graph import ITEM_SIZE, NIBBLES, Graph, Tensor, Value
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.model.reader import read_model
from trainweb.model.uses import LEAST_ELEMENTS
from trainweb.ops.frame.infer import initializer_type
from trainweb.ops.frame.op import bind
from trainweb.ops.optim.operators import (
    AVERAGES,
    LIMITS,
    MOMENTS,
    OPTIMIZER_INPUTS,
    Optimizer,
    clip_graph,
    scheduler_graph,
)
from trainweb.training.forward import Forward, forward_of
from trainweb.training.outputs import ModelOutputs, outputs_of
from trainweb.training.parameters import Layout, ParameterSlot, Shape
from trainweb.training.plans import check_segments, evaluate
from trainweb.training.step_kind import StepKind

if TYPE_CHECKING:
    from trainweb.backend.engine import Engine
    from trainweb.compiler.pipeline import Observer

BUFFER_SUFFIX = "_grad.accumulation.buffer"
HIDDEN_SUFFIXES = ("_grad", "_grad.accumulation.buffer", "_grad.accumulation.out")
RESET = "lazy_reset_grad"
MODELS = ("train_model", "eval_model", "optimizer_model")
"""The files of a session besides its checkpoint, as `TrainingSession` calls them."""

CLIP_LIMITS = TensorType("float32", (2,))
OF_STATE = {
    "learning_rate": Binding(STATE, 4 * STATE_LEARNING_RATE, "float32", (1,)),
    "step": Binding(STATE, 4 * STATE_STEP, "int64", (1,)),
    SHARE: Binding(STATE, 4 * STATE_SHARE, "float32", (1,)),
}
"""Inputs of steps that the session keeps."""

Feeds = Mapping[str, TensorType]
InUse = Mapping[str, tuple[int, int]]
"""Values that plans keep in the segment of prepared values: offset and bytes by key."""


class SessionModels:
    """The models of a training session; `trainable` names the parameters of the checkpoint.

    `halves` are types of parameters whose values have 16 bits. Frozen matrices among them stay so in kernel memory;
    plans make float32 for kernels that need it. Raise ModelError, UnsupportedError or CheckpointError if models and
    names do not fit each other, and LimitError if kernel memory can never hold the weights.
    """

    def __init__(
        self,
        trainable: Mapping[str, bool],
        train: Graph,
        evaluation: Graph | None,
        optimizer: Graph | None,
        *,
        engine: Engine,
        limits: Limits,
        memory_budget: int | None,
        halves: Mapping[str, str] | None = None,
    ) -> None:
        self.graphs: dict[str, Graph | None] = {"train": train, "eval": evaluation, "optimizer": optimizer}
        _check_roles(train, evaluation)
        self.engine, self.limits, self.memory_budget = engine, limits, memory_budget
        slots = _slots(train, trainable)
        self.moving = _moving_parameters(train, {s.name for s in slots if s.trainable_offset < 0})
        """Parameters that a train step changes though they are not trained: running statistics and other buffers."""
        fixed = {s.name: s.shape for s in slots if s.trainable_offset < 0 and s.name not in self.moving}
        self.halves = stored_halves(halves or {}, fixed, self.graphs)
        placed = _placed(slots, self.halves)
        texts = optimizer_name(optimizer), scaling_of(train), digest_of(train)
        self.layout = Layout(placed, _moments(optimizer), *texts)
        steps = (("train", train), ("eval", evaluation))
        self.inputs = {kind: {} if graph is None else self._user_inputs(graph) for kind, graph in steps}
        self.outputs = {kind: [] if graph is None else _user_outputs(graph) for kind, graph in steps}
        self.deciding = {
            kind: frozenset() if graph is None else deciding_inputs(graph, self.inputs[kind]) for kind, graph in steps
        }
        self.segment_bytes = [0] * N_SEGMENTS
        for segment, nbytes in self.layout.segment_bytes().items():
            self.segment_bytes[segment] = nbytes
        self.segment_bytes[STATE] = STATE_BYTES
        check_segments(self.segment_bytes)
        self._fixed = {4 * s.offset for name, s in self.layout.slots.items() if name in fixed}
        """Byte offsets of parameters that no step changes."""
        self.counts = {"train": LossCount(), "eval": LossCount()}
        """Divisors of the losses of steps, by kind."""
        terms = [name for name in self.own.terms if name in self.outputs["train"]]
        for kind, graph in steps:
            if graph is not None and self.outputs[kind]:
                # The only term has the divisor of its weighted sum.
                loss, inputs = (terms if len(terms) == 1 else self.outputs[kind])[0], self.inputs[kind].values()
                self.graphs[kind], self.counts[kind] = counted_loss(graph, loss, inputs)
        self.uneven: list[str] = []
        """Terms of the loss whose gradients of several batches do not become those of one large batch."""
        if len(terms) > 1:
            self.uneven = uneven_terms(train, terms, self.inputs["train"].values())
            self.graphs["train"], self.counts["train"] = with_terms(train, self.outputs["train"][0], terms)
        self._adding = None
        """The training model for steps that add to the gradients: each batch counts by the divisor of its loss."""
        if self.outputs["train"] and not self.counts["train"].is_sum:
            loss, inputs, train_graph = self.outputs["train"][0], self.inputs["train"].values(), self.graphs["train"]
            assert train_graph is not None
            self._adding = weighted_gradients(train_graph, loss, self.counts["train"], inputs)
        self._evaluations: dict[str, tuple[Graph, list[Described]]] = {}
        self._forwards: dict[str, Forward] = {}

    def _user_inputs(self, graph: Graph) -> dict[str, Value]:
        return {
            v.name: v
            for v in graph.inputs
            if isinstance(v, Value)
            and v.name not in self.layout.slots
            and v.name != RESET
            and not v.name.endswith(BUFFER_SUFFIX)
        }

    def _is_mostly_frozen(self) -> bool:
        """True if most parameters are frozen, as with adapters, which are chosen to save memory.

        Quantized weights are frozen, too: they are constants.
        """
        graph = self.graphs["train"]
        constants = graph.initializers.values() if graph is not None else ()
        quantized = sum(t.size for t in constants if t.dtype in ("int8", "uint8", *NIBBLES))
        slots = self.layout.slots.values()
        return 2 * sum(s.size for s in self.layout.trained()) < sum(s.size for s in slots) + quantized

    def output_values(self, kind: str) -> list[Value]:
        """The outputs of a "train" or "eval" step, in the order of `outputs`."""
        graph = self.graphs[kind]
        values = {v.name: v for v in graph.outputs if isinstance(v, Value)} if graph is not None else {}
        return [values[name] for name in self.outputs[kind]]

    def signature(self, kind: StepKind, feeds: Mapping[str, Tensor]) -> dict[str, TensorType]:
        """Return the types of the feeds of a step, with the values that decide about shapes."""
        forward = self.forward(kind)
        deciding = self.deciding[kind.base] if forward is None else forward.deciding
        return signature_of_feeds(deciding, feeds)

    def forward(self, kind: StepKind) -> Forward | None:
        """The step that predicts or makes tokens; None for other kinds."""
        if not kind.is_forward:
            return None
        if kind.key not in self._forwards:
            graph = self.graphs["eval"]
            if graph is None:
                raise messages.NO_EVAL_MODEL()
            self._forwards[kind.key] = forward_of(graph, self.inputs["eval"], kind)
        return self._forwards[kind.key]

    def inputs_of(self, kind: StepKind) -> dict[str, Value]:
        """Return the inputs of a step."""
        forward = self.forward(kind)
        return self.inputs[kind.base] if forward is None else forward.inputs

    def described(self, kind: StepKind) -> list[Described]:
        """Return the sums that a step makes for metrics."""
        return self._evaluation(kind)[1] if kind.request and kind.base == "eval" else []

    def _evaluation(self, kind: StepKind) -> tuple[Graph, list[Described]]:
        if kind.key not in self._evaluations:
            graph = self.graphs["eval"]
            assert graph is not None
            inputs = list(self.inputs["eval"].values())
            self._evaluations = {kind.key: with_metrics(graph, kind.request, inputs)}  # one fit runs at a time
        return self._evaluations[kind.key]

    @cached_property
    def own(self) -> ModelOutputs:
        """The outputs of the base model, and what metrics compare."""
        return outputs_of(self.graphs["eval"], self.inputs["eval"], self.outputs["eval"])

    def own_outputs(self) -> list[str]:
        """Return the outputs of a step that predicts.

        Raise ModelError if the eval model does not note them, and its loss compares no or several tensors.
        """
        if not self.own.own:
            raise messages.NO_OWN_OUTPUTS(names=", ".join(self.outputs["eval"]))
        return self.own.own

    def results(self, kind: StepKind) -> list[str]:
        """Return the outputs of a step, and for a step with metrics also their sums and faults."""
        forward = self.forward(kind)
        if forward is not None:
            return forward.outputs
        return [*self.outputs[kind.base], *(n for d in self.described(kind) for n in (d.sums, d.faults) if n)]

    def key(self, kind: StepKind, feeds: Feeds, target: str = WASM) -> tuple[object, ...]:
        """Check the feeds; return the key under which a target's plans of a step for them are found.

        Raise FeedError for a feed that is missing, unknown, or of another dtype, rank or shape.
        """
        return (target, kind.key, *check_feeds(self.inputs_of(kind), feeds, allow_empty=kind.base != "train"))

    def compile_step(
        self,
        kind: StepKind,
        feeds: Feeds,
        overwrite: bool,
        in_use: InUse | None = None,
        observe: Observer | None = None,
        *,
        keep_all: bool = False,
        target: str = WASM,
    ) -> Plan:
        """Compile a "train", "eval", "predict" or "generate" step beside plans that keep `in_use`.

        With `overwrite` gradients overwrite instead of adding. `observe` sees the instructions after every pass. With
        `keep_all` every float tensor stays until the end; then nothing is cached, and the memory budget does not hold.
        `target` names the back end that the plan is for.
        """
        graph = self._graph_of(kind)
        if kind.base == "train" and not overwrite and self._adding is not None:
            graph = self._adding
        names = {v.name for v in graph.inputs}
        graph = cast_inputs(graph, {name: dtype for name, dtype in self.halves.items() if name in names})
        slots = self.layout.slots.values()
        bindings = {s.name: Binding(PARAMETERS, 4 * s.offset, s.dtype, s.shape) for s in slots}
        for s in self.layout.trained():
            bindings[s.name + BUFFER_SUFFIX] = Binding(GRADIENTS, 4 * s.trainable_offset, "float32", s.shape)
        bindings |= OF_STATE
        known = {RESET: TensorType("bool", (1,), (overwrite,))} if RESET in names else {}
        cache = None if keep_all else Cache(self._fixed, in_use)
        forward = self.forward(kind)
        if forward is not None and cache is not None:
            bindings |= cache_bindings(forward, cache)
        plan = compile_model(
            graph,
            {n: feeds[n] for n in self.inputs_of(kind)},
            [*self.results(kind), *self.counts_of(kind)],
            bindings={n: b for n, b in bindings.items() if n in names},
            known=known,
            overwrite=overwrite,
            evaluate=partial(evaluate, self.engine),
            segment_bytes=self.segment_bytes,
            arena_limit=self.limits.arena_bytes,
            memory_budget=None if keep_all else self.memory_budget,
            cache=cache,
            # Results of parameters that change between two runs would be invalid in the second.
            cache_trained=kind.base != "train" or not overwrite,
            saves_little=self._is_mostly_frozen() and not keep_all,
            observe=observe,
            keep_all=keep_all,
            target=target_of(target),
        )
        if plan.recomputation.instructions:
            _log_recomputation(kind.base, plan)
        return plan

    @property
    def weighs_batches(self) -> bool:
        """True if gradients of several batches can become the gradients of one large batch."""
        return self._adding is not None or self.counts["train"].is_sum

    def counts_of(self, kind: StepKind) -> list[str]:
        """The results of a step about its loss: the divisor and the terms, where there are some."""
        of = self.counts.get(kind.base, LossCount())
        return [name for name in (of.output, of.losses) if name is not None]

    def _graph_of(self, kind: StepKind) -> Graph:
        forward = self.forward(kind)
        if forward is not None:
            return forward.graph
        graph = self._evaluation(kind)[0] if kind.request else self.graphs[kind.base]
        assert graph is not None
        return graph

    def explain(self, kind: StepKind, feeds: Feeds, overwrite: bool, target: str = WASM) -> str:
        """Explain the compilation of a "train" or "eval" step: the lowered program, then each pass as a diff.

        Of a GPU's plan, the dispatches follow: template, grid and node.
        """
        parts: list[str] = []
        plan = self.compile_step(kind, feeds, overwrite, observe=Explanation(parts.append), target=target)
        if plan.body is not None:
            parts.append("\n".join(["dispatches on the GPU", *plan.body.text]))
        return "\n".join(parts)

    def compile_optimizer(self, target: str = WASM) -> Plan:
        """Compile an optimizer step for a back end."""
        graph = self.graphs["optimizer"]
        assert graph is not None
        return self._compile_update(graph, {}, target)

    def compile_clip(self, target: str = WASM) -> Plan:
        """Compile a step that clips the gradients to limits that it is fed."""
        return self._compile_update(clip_graph(), {LIMITS: CLIP_LIMITS}, target)

    def compile_scheduler(self, target: str = WASM) -> Plan:
        """Compile a scheduler step."""
        return self._compile_update(scheduler_graph(), {}, target)

    def _compile_update(self, graph: Graph, feeds: Feeds, target: str) -> Plan:
        """Compile a step that returns nothing: it updates the session's own numbers."""
        sequences, names = self.layout.sequences(), {v.name for v in graph.inputs}
        return compile_model(
            graph,
            feeds,
            [],
            bindings={name: place for name, place in OF_STATE.items() if name in names},
            sequences={v.name: sequences[v.name] for v in graph.inputs if isinstance(v, SequenceValue)},
            segment_bytes=self.segment_bytes,
            target=target_of(target),
        )

    def optimizer_operator(self) -> str:
        """The operator that updates parameters, AdamW say."""
        graph = self.graphs["optimizer"]
        assert graph is not None
        kinds = {node.op_type for node in graph.nodes if isinstance(bind(node, graph.opsets), Optimizer)}
        return " or ".join(sorted(kinds))


def cache_bindings(forward: Forward, cache: Cache) -> dict[str, Binding]:
    """Return places of a step's caches among the values that stay from run to run: the same for a length of text."""
    bindings: dict[str, Binding] = {}
    for name, t in forward.caches.items():
        offset = cache.place(f"{name} {list(t.shape)}", t.size * ITEM_SIZE[t.dtype])
        bindings[name] = Binding(PREPARED, offset, t.dtype, t.shape)
    return bindings


def _check_roles(train: Graph, evaluation: Graph | None) -> None:
    """Raise ModelError where one of the artifacts was given for another."""
    for what, graph in (("training", train), ("eval", evaluation)):
        if graph is None:
            continue
        if any(isinstance(v, SequenceValue) for v in graph.inputs):
            raise ModelError(f"The {what} model {graph.name!r} takes sequences of tensors: it is an optimizer model.")
        if not _user_outputs(graph):
            raise ModelError(f"The {what} model {graph.name!r} has no outputs but gradients.")
    buffer = next((v.name for v in evaluation.inputs if v.name.endswith(BUFFER_SUFFIX)), None) if evaluation else None
    if buffer is not None:
        raise ModelError(f"The eval model takes the gradient buffer {buffer!r}: it is a training model.")


def _moving_parameters(graph: Graph, frozen: Collection[str]) -> list[str]:
    nodes = (node for node in graph.nodes if any(name in frozen for name in node.inputs))
    read = (node.inputs[k] for node in nodes for k in bind(node, graph.opsets).state_inputs)
    return [name for name in dict.fromkeys(read) if name in frozen]


def stored_halves(
    types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], graphs: Mapping[str, Graph | None]
) -> dict[str, str]:
    """Return the `types` of weights that stay in 16 bits in kernel memory: matrices that are worth unpacking.

    Products and lookups read them so. The plan makes and caches float32 for other readers.
    """
    results = {v.name for graph in graphs.values() if graph is not None for v in graph.outputs}
    matrices = {name for name, shape in shapes.items() if len(shape) == 2 and prod(shape) >= LEAST_ELEMENTS}
    return {name: dtype for name, dtype in types.items() if name in matrices - results}


def _placed(slots: Iterable[ParameterSlot], halves: Mapping[str, str]) -> list[ParameterSlot]:
    """Give slots their types and their offsets among all."""
    placed: list[ParameterSlot] = []
    offset = 0
    for slot in slots:
        placed.append(replace(slot, offset=offset, dtype=halves.get(slot.name, "float32")))
        offset += placed[-1].words
    return placed


def _slots(graph: Graph, trainable: Mapping[str, bool]) -> list[ParameterSlot]:
    slots: list[ParameterSlot] = []
    input_names = {v.name for v in graph.inputs}
    trained = 0
    for value in graph.inputs:
        if not isinstance(value, Value):
            continue
        has_buffer = value.name + BUFFER_SUFFIX in input_names
        if value.name not in trainable:
            if has_buffer:
                raise CheckpointError(
                    f"The checkpoint has no parameter {value.name!r}, which the model trains; it is of another model."
                )
            continue
        if value.dtype != "float32":
            raise UnsupportedError(f"Parameter {value.name!r} is {value.dtype}; parameters must be float32.")
        if value.shape is None or any(not isinstance(d, int) or d < 0 for d in value.shape):
            raise ModelError(f"Parameter {value.name!r} has no static shape: {value.shape}.")
        shape = tuple(int(d) for d in value.shape if isinstance(d, int))
        is_trained = trainable[value.name]
        if is_trained and not has_buffer:
            raise ModelError(f"Gradient buffer input not provided for param: {value.name}")
        slot = ParameterSlot(value.name, shape, 0, trained if is_trained else -1)
        slots.append(slot)
        trained += slot.size if is_trained else 0
    return slots


def _user_outputs(graph: Graph) -> list[str]:
    return [v.name for v in graph.outputs if not v.name.endswith(HIDDEN_SUFFIXES)]


def _moments(graph: Graph | None) -> dict[str, Callable[[Shape], Shape]]:
    """Return the moments of an optimizer model, averages last; functions take a parameter's shape to theirs."""
    if graph is None:
        return {}
    if not graph.outputs:
        raise ModelError(f"The optimizer model {graph.name!r:.80} has no outputs: it computes nothing.")
    names = [v.name for v in graph.inputs]
    averaged = names[-1:] == [AVERAGES.input]
    names = names[: len(names) - averaged]
    possible = [*OPTIMIZER_INPUTS, *(m.input for m in MOMENTS)]
    if names != possible[: len(names)] or len(names) < len(OPTIMIZER_INPUTS):
        raise ModelError(f"Invalid graph inputs.\n\tExpected:{possible}\n\tActual:{names}")
    kinds = [bind(node, graph.opsets) for node in graph.nodes]
    shapes = {type(op).moment_shape.__func__: type(op) for op in kinds if isinstance(op, Optimizer)}  # type: ignore[attr-defined]
    if len(shapes) > 1:
        raise UnsupportedError("The optimizer model has optimizers that keep moments of different shapes.")
    kind = next(iter(shapes.values()), Optimizer)
    moments = MOMENTS[: len(names) - len(OPTIMIZER_INPUTS)]
    shapes_of: dict[str, Callable[[Shape], Shape]] = {
        m.saved: partial(kind.moment_shape, k) for k, m in enumerate(moments)
    }
    return shapes_of | ({AVERAGES.saved: lambda shape: shape} if averaged else {})


def optimizer_name(graph: Graph | None) -> str:
    """Return the name of the optimizer, "" without one: it gives the moments their meaning."""
    if graph is None:
        return ""
    kinds = (bind(node, graph.opsets) for node in graph.nodes)
    names = {op.op_type().removesuffix("V2").removesuffix("Optimizer") for op in kinds if isinstance(op, Optimizer)}
    return " and ".join(sorted(names))


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


def read_models(
    train: Any,
    evaluation: Any = None,
    optimizer: Any = None,
    limits: Limits | None = None,
    integrity: Mapping[str, str] | None = None,
    *,
    tells_which: bool = False,
) -> tuple[Graph, Graph | None, Graph | None]:
    """The graphs of a session's models, each given as a graph, as `read_model` takes it, or None.

    `integrity` has hashes by the names in `MODELS`. With `tells_which` errors start with the name of the model there.
    """
    hashes = integrity or {}
    for name, source in zip(MODELS, (train, evaluation, optimizer), strict=True):
        if name in hashes and source is None:
            raise TypeError(f"'integrity' has a hash of {name!r:.80}, which is not given.")

    def read(name: str, model: Any) -> Graph:
        if isinstance(model, Graph):
            return model.copy()
        try:
            return read_model(model, limits=limits, integrity=hashes.get(name))
        except TrainwebError as error:
            if tells_which:
                error.args = (f"{name}: {error}", *error.args[1:])
            raise

    evaluated, optimized = (
        None if source is None else read(name, source)
        for name, source in zip(MODELS[1:], (evaluation, optimizer), strict=True)
    )
    return read(MODELS[0], train), evaluated, optimized


def check_feeds(inputs: Mapping[str, Value], feeds: Feeds, *, allow_empty: bool = True) -> tuple[object, ...]:
    """Check that `feeds` fit these inputs; return the facts that a plan depends on, or raise FeedError.

    The first fault counts: a missing feed, then an unknown one, then faults in the order of the inputs. Within one
    feed the order is dtype, rank, dims, symbols and emptiness. The page checks in the same order.
    """
    check_feed_names(inputs, feeds)
    symbols: dict[str, tuple[int, str]] = {}
    for name, value in inputs.items():
        check_feed(value, feeds[name], symbols)
        if not allow_empty and feeds[name].size == 0:
            raise messages.EMPTY_BATCH(name=name, shape=list(feeds[name].shape))
    # Zeros of both signs have different texts, and NaN has one.
    return tuple((n, feeds[n].dtype, feeds[n].shape, repr(feeds[n].value)) for n in inputs)


def check_feed_names(inputs: Collection[str], feeds: Collection[str]) -> None:
    """Raise FeedError for an input without a feed, or a feed without an input."""
    missing = next((name for name in inputs if name not in feeds), None)
    unknown = next((name for name in feeds if name not in inputs), None)
    if missing is not None and unknown is not None:
        raise messages.MISNAMED_FEED(name=missing, other=unknown, names=", ".join(inputs))
    if missing is not None:
        raise messages.MISSING_FEED(name=missing)
    if unknown is not None:
        raise messages.UNKNOWN_FEED(name=unknown, names=", ".join(inputs))


def signature_of_feeds(deciding: Container[str], feeds: Mapping[str, Tensor]) -> dict[str, TensorType]:
    """Return the types of feeds, with the values of `deciding` feeds that are not too large for it."""
    return {n: initializer_type(t) if n in deciding else TensorType(t.dtype, t.shape) for n, t in feeds.items()}


def check_feed(value: Value, tensor: TensorType, symbols: dict[str, tuple[int, str]]) -> None:
    """Raise FeedError unless `tensor` fits the input `value`; `symbols` collects sizes of symbolic dims."""
    if tensor.dtype != value.dtype:
        raise messages.FEED_DTYPE(name=value.name, actual=tensor.dtype, expected=value.dtype)
    if value.shape is None:
        return
    if len(tensor.shape) != len(value.shape):
        raise messages.FEED_RANK(
            name=value.name,
            actual=len(tensor.shape),
            expected=len(value.shape),
            shape=list(tensor.shape),
            declared=list(value.shape),
        )
    for k, (size, dim) in enumerate(zip(tensor.shape, value.shape, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise messages.FEED_DIM(name=value.name, index=k, actual=size, expected=dim)
        if isinstance(dim, str):
            known, where = symbols.setdefault(dim, (size, value.name))
            if known != size:
                raise messages.FEED_SYMBOL(symbol=dim, first=known, where=where, size=size, name=value.name)
