"""`InferenceSession`: run a forward model on the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.backend.wasm.engine import get_engine
from trainweb.compiler import Binding, Plan, compile_model
from trainweb.compiler.context import Cache
from trainweb.errors import ModelError
from trainweb.ir.arena import align
from trainweb.ir.layout import PARAMETERS, STATE
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.ops.infer import FOLDED_INTEGERS
from trainweb.training.bundle import Header, declarations
from trainweb.training.host import (
    DEFAULT_MAX_PLANS,
    N_SEGMENTS,
    STATE_BYTES,
    LoadedPlan,
    PlanCache,
    PlanHost,
    evaluate,
)
from trainweb.training.models import Feeds, InUse, check_feeds

if TYPE_CHECKING:
    import numpy as np

    from trainweb.backend.wasm.engine.base import Engine


class InferenceModel:
    """A forward model and what it says; big float initializers lie in the segment of parameters."""

    def __init__(self, graph: Graph, *, engine: Engine, limits: Limits, memory_budget: int | None) -> None:
        self.graph, self.engine, self.limits, self.memory_budget = graph, engine, limits, memory_budget
        self.bindings: dict[str, Binding] = {}
        at = 0
        for name, t in graph.initializers.items():
            if t.dtype == "float32" and t.size > FOLDED_INTEGERS:
                self.bindings[name] = Binding(PARAMETERS, at, t.dtype, t.shape)
                at += align(t.nbytes)
        self.segment_bytes = [0] * N_SEGMENTS
        self.segment_bytes[PARAMETERS], self.segment_bytes[STATE] = at, STATE_BYTES
        self.inputs = {v.name: v for v in graph.inputs if isinstance(v, Value) and v.name not in graph.initializers}
        self.outputs = [v.name for v in graph.outputs]
        if not self.outputs:
            raise ModelError(f"The graph {graph.name!r} has no outputs: there is nothing to compute.")

    def weights(self) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Offsets and contents of the initializers in the segment of parameters."""
        return ((b.offset, self.graph.initializers[name].data) for name, b in self.bindings.items())

    def header(self) -> Header:
        """What a page needs to make a session, all but plans and weights."""
        return {
            "fingerprint": self.engine.description.fingerprint,
            "inputs": declarations(self.inputs.values()),
            "outputs": self.outputs,
            "segments": [{"bytes": size, "data": None} for size in self.segment_bytes],
        }

    def compile(self, feeds: Feeds, in_use: InUse | None = None) -> Plan:
        """Compile a run for these feeds beside plans that keep `in_use`."""
        return compile_model(
            self.graph,
            {n: feeds[n] for n in self.inputs},
            self.outputs,
            bindings=self.bindings,
            evaluate=partial(evaluate, self.engine),
            segment_bytes=self.segment_bytes,
            arena_limit=self.limits.arena_bytes,
            memory_budget=self.memory_budget,
            cache=Cache({binding.offset for binding in self.bindings.values()}, in_use),
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
        self.engine = engine or get_engine(reproducible=reproducible)
        self.model = InferenceModel(graph, engine=self.engine, limits=limits or Limits(), memory_budget=memory_budget)
        self.inputs, self.outputs = self.model.inputs, self.model.outputs
        self.host = PlanHost(self.engine, self.model.segment_bytes)
        for offset, data in self.model.weights():
            self.host.write_segment(PARAMETERS, offset, memoryview(data))
        self.plans = PlanCache(self.host, max_plans)

    def plan(self, feeds: Feeds) -> LoadedPlan:
        """The plan for these feeds."""
        self.host.check()
        return self.plans.step(check_feeds(self.inputs, feeds), partial(self.model.compile, feeds))

    def run(self, feeds: Mapping[str, Tensor], outputs: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Outputs by name."""
        for name in outputs or ():
            if name not in self.outputs:
                raise messages.UNKNOWN_FETCH(name=name, names=", ".join(self.outputs))
        loaded = self.plan({n: TensorType(t.dtype, t.shape) for n, t in feeds.items()})
        self.host.write_feeds(loaded, feeds)
        self.host.run(loaded)
        return self.host.read_outputs(loaded, outputs or self.outputs)


class InferenceSession:
    """Runs a model.

    Parameters
    ----------
    model : bytes, path or onnx.ModelProto
    external_data : dict of str to bytes, optional
        Contents of external data files for a model given as bytes, by location.
    integrity : str, optional
        The hash that the model must have, as in HTML: "sha256-" and Base64; sha384 and sha512, too.
    """

    def __init__(
        self, model: Any, *, external_data: dict[str, bytes] | None = None, integrity: str | None = None
    ) -> None:
        self._core = InferenceCore(read_model(model, external_data=external_data, integrity=integrity))

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return list(self._core.inputs)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return list(self._core.outputs)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Outputs in the order of `output_names` (None: all).

        Raises
        ------
        FeedError
            A feed is missing, unknown, or of the wrong dtype or shape.
        """
        from trainweb.training.arrays import as_feed, from_numpy, to_numpy
        from trainweb.training.session import check_feeds

        inputs = self._core.inputs
        converted = {
            n: as_feed(n, v, inputs[n].dtype) if n in inputs else from_numpy(n, v)
            for n, v in check_feeds(feeds).items()
        }
        names = list(output_names) if output_names is not None else self._core.outputs
        results = self._core.run(converted, names)
        return [to_numpy(results[n]) for n in names]

    def release(self) -> None:
        """Give kernel memory back."""
        self._core.host.release()
