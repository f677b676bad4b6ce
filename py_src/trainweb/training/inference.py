"""Forward models on the kernels, on bytes; `InferenceSession` puts numpy arrays at the edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.backend.base import N_SEGMENTS, STATE_BYTES
from trainweb.backend.chosen import RUNTIME, WASM, target_of
from trainweb.compiler import Binding, Plan, compile_model
from trainweb.compiler.context import Cache
from trainweb.control.deciding import deciding_inputs
from trainweb.errors import ModelError
from trainweb.ir.arena import align
from trainweb.ir.layout import PARAMETERS, STATE
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.floats import HALVES, cast_inputs, computed_in_float32, converted, declared_type, stored_type
from trainweb.model.graph import ITEM_SIZE, Graph, Tensor, Value
from trainweb.ops.frame.infer import FOLDED_INTEGERS
from trainweb.training.decoder import Decoder
from trainweb.training.forward import Forward, forward_of
from trainweb.training.models import Feeds, InUse, cache_bindings, check_feeds, signature_of_feeds, stored_halves
from trainweb.training.plans import DEFAULT_MAX_PLANS, PlanCache, check_segments, evaluate
from trainweb.training.step_kind import INFERENCE, StepKind

if TYPE_CHECKING:
    from trainweb.backend.base import Stop
    from trainweb.backend.engine import Engine
    from trainweb.backend.plan import LoadedPlan


class InferenceModel:
    """A forward model and what it says; big float initializers lie in the segment of parameters."""

    def __init__(self, graph: Graph, *, engine: Engine, limits: Limits, memory_budget: int | None) -> None:
        graph = computed_in_float32(graph)
        self.graph, self.engine, self.limits, self.memory_budget = graph, engine, limits, memory_budget
        self.bindings: dict[str, Binding] = {}
        large = {n: t for n, t in graph.initializers.items() if t.dtype == "float32" and t.size > FOLDED_INTEGERS}
        types = {n: d for n, t in large.items() for d in {stored_type(t), declared_type(t)} if d in HALVES}
        self.halves = stored_halves(types, {name: t.shape for name, t in large.items()}, {"": graph})
        at = 0
        for name, t in large.items():
            binding = self.bindings[name] = Binding(PARAMETERS, at, self.halves.get(name, "float32"), t.shape)
            at += align(ITEM_SIZE[binding.dtype] * t.size)
        self.segment_bytes = [0] * N_SEGMENTS
        self.segment_bytes[PARAMETERS], self.segment_bytes[STATE] = at, STATE_BYTES
        check_segments(self.segment_bytes)
        self.inputs = {v.name: v for v in graph.inputs if isinstance(v, Value) and v.name not in graph.initializers}
        self.outputs = [v.name for v in graph.outputs]
        if not self.outputs:
            raise ModelError(f"The graph {graph.name!r} has no outputs: there is nothing to compute.")
        self.deciding = deciding_inputs(graph, self.inputs)
        self._forwards = {INFERENCE.key: Forward(graph, self.inputs, self.outputs, self.deciding)}

    def weights(self) -> Iterator[tuple[int, Tensor]]:
        """Offsets of the initializers in the segment of parameters, and what they are."""
        return ((b.offset, converted(self.graph.initializers[name], b.dtype)) for name, b in self.bindings.items())

    def constants(self) -> Iterator[Tensor]:
        """All others, which plans are compiled with."""
        bound = {id(self.graph.initializers[name]) for name in self.bindings}
        return (tensor for tensor in self.graph.tensors() if id(tensor) not in bound)

    def forward(self, kind: StepKind) -> Forward:
        """The step of a kind."""
        if kind.key not in self._forwards:
            self._forwards[kind.key] = forward_of(self.graph, self.inputs, kind)
        return self._forwards[kind.key]

    def compile(
        self, feeds: Feeds, in_use: InUse | None = None, kind: StepKind = INFERENCE, target: str = WASM
    ) -> Plan:
        """Compile a run for these feeds beside plans that keep `in_use`."""
        forward = self.forward(kind)
        cache = Cache({binding.offset for binding in self.bindings.values()}, in_use)
        return compile_model(
            cast_inputs(forward.graph, self.halves),
            {n: feeds[n] for n in forward.inputs},
            forward.outputs,
            bindings=self.bindings | cache_bindings(forward, cache),
            evaluate=partial(evaluate, self.engine),
            segment_bytes=self.segment_bytes,
            arena_limit=self.limits.arena_bytes,
            memory_budget=self.memory_budget,
            cache=cache,
            target=target_of(target),
        )


class InferenceCore:
    """Inference on bytes; big float initializers are stored once for all signatures."""

    def __init__(
        self,
        graph: Graph,
        *,
        engine: Engine | None = None,
        limits: Limits | None = None,
        memory_budget: int | None = None,
        reproducible: bool = False,
        max_plans: int = DEFAULT_MAX_PLANS,
    ) -> None:
        self.engine = engine or RUNTIME.get_engine(reproducible=reproducible)
        self.model = InferenceModel(graph, engine=self.engine, limits=limits or Limits(), memory_budget=memory_budget)
        self.inputs, self.outputs = self.model.inputs, self.model.outputs
        self.host = RUNTIME.open_host(self.engine, self.model.segment_bytes)
        for offset, tensor in self.model.weights():
            self.host.write_segment(PARAMETERS, offset, memoryview(tensor.data))
        self.plans = PlanCache(self.host, max_plans)
        self.decoder = Decoder()

    def plan(self, feeds: Feeds, kind: StepKind = INFERENCE) -> LoadedPlan:
        """The plan for these feeds."""
        self.host.check()
        key = (kind.key, *check_feeds(self.model.forward(kind).inputs, feeds))
        return self.plans.step(key, partial(self.model.compile, feeds, kind=kind))

    def forward(self, kind: StepKind) -> Forward:
        """The step of a kind."""
        return self.model.forward(kind)

    def token_plan(self, kind: StepKind, feeds: Mapping[str, Tensor]) -> LoadedPlan:
        """The plan of a step of new tokens."""
        return self.plan({name: TensorType(t.dtype, t.shape) for name, t in feeds.items()}, kind)

    def run(
        self, feeds: Mapping[str, Tensor], outputs: Sequence[str] | None = None, stop: Stop = None
    ) -> dict[str, Tensor]:
        """Outputs by name."""
        for name in outputs or ():
            if name not in self.outputs:
                raise messages.UNKNOWN_FETCH(name=name, names=", ".join(self.outputs))
        loaded = self.plan(signature_of_feeds(self.model.deciding, feeds))
        self.host.write_feeds(loaded, feeds)
        self.host.run(loaded, stop)
        return self.host.read_outputs(loaded, outputs or self.outputs)
