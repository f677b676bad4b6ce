"""The part of an eval model that makes predictions or tokens: without the loss, over the parameters of the session."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainweb.control.deciding import deciding_inputs
from trainweb.model.graph import Graph, Value
from trainweb.training.step_kind import GENERATE, StepKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainweb.ir.shapes import TensorType


@dataclass(frozen=True, slots=True)
class Forward:
    """A step that predicts, or one of new tokens: a part of the eval model, whose parameters are inputs.

    Values of `deciding` inputs determine shapes. `caches` are inputs that last from run to run, which the step updates.
    """

    graph: Graph
    inputs: dict[str, Value]
    outputs: list[str]
    deciding: frozenset[str]
    caches: Mapping[str, TensorType] = field(default_factory=dict)


def forward_of(graph: Graph, inputs: Mapping[str, Value], kind: StepKind) -> Forward:
    """The step of a kind that predicts or makes tokens, from an eval model and its fed inputs.

    Raise ModelError if an output is not a tensor of the eval model.
    """
    from trainweb.training.export import inference_graph  # which knows the models

    if kind.base == GENERATE:
        return _decoding(graph, *kind.request)
    outputs: list[str] = kind.request
    cut = inference_graph(graph, outputs, {})
    needed: Container[str] = {v.name for v in cut.inputs}
    fed = {name: value for name, value in inputs.items() if name in needed}
    return Forward(cut, fed, outputs, frozenset(deciding_inputs(cut, fed)))


def _decoding(graph: Graph, output: str, length: int, rows: int, adapter: bool) -> Forward:
    # Not on the way of a first step.
    from trainweb.autodiff.fake_quantization import refuse_rounding
    from trainweb.generation.incremental import decoding_graph, without_adapter
    from trainweb.generation.past import without_past
    from trainweb.training.export import inference_graph

    graph = without_past(graph)
    refuse_rounding(reversed(graph.nodes))
    if not adapter:
        graph = without_adapter(graph)
    decoding = decoding_graph(inference_graph(graph, [output], {}), length, rows)
    return Forward(decoding.graph, decoding.feeds, [output], frozenset(), decoding.caches)
