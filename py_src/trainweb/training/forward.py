"""The part of an eval model that makes predictions or tokens: without the loss, over the parameters of the session."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainweb.control.deciding import deciding_inputs
from trainweb.model.graph import Graph, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainweb.ir.shapes import TensorType

PREDICT = "predict"
"""The kind of a step that predicts; a space and the names of its outputs follow."""
GENERATE = "generate"
"""The kind of a step of new tokens; a space and what `kind_of_tokens` takes follow."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A step that predicts, or one of new tokens.

    Attributes
    ----------
    graph : Graph
        The part of the eval model; parameters are inputs.
    inputs : dict of str to Value
        Those that are fed.
    outputs : list of str
        Tensors that it gives.
    deciding : frozenset of str
        Inputs whose values decide about shapes.
    caches : dict of str to TensorType
        Inputs that last from run to run, which the step updates.
    """

    graph: Graph
    inputs: dict[str, Value]
    outputs: list[str]
    deciding: frozenset[str]
    caches: Mapping[str, TensorType] = field(default_factory=dict)


def kind_of_outputs(outputs: Sequence[str]) -> str:
    """The kind of the step that gives these outputs, as the page's worker names it, too."""
    return f"{PREDICT} {json.dumps(list(outputs), separators=(',', ':'), ensure_ascii=False)}"


def kind_of_tokens(output: str, length: int, rows: int, *, adapter: bool) -> str:
    """The kind of the step that gives `output` of the last of `rows` new tokens, as the page's worker names it, too.

    Parameters
    ----------
    output
        The logits.
    length
        Tokens that the cache has room for.
    adapter
        False ignores adapters.
    """
    return f"{GENERATE} {json.dumps([output, length, rows, adapter], separators=(',', ':'), ensure_ascii=False)}"


def forward_of(graph: Graph, inputs: Mapping[str, Value], kind: str) -> Forward:
    """The step of a kind.

    Parameters
    ----------
    graph
        The eval model.
    inputs
        What is fed to it.
    kind
        As `kind_of_outputs` or `kind_of_tokens` gives it.

    Raises
    ------
    ModelError
        An output is not a tensor of the eval model.
    """
    from trainweb.training.export import inference_graph  # which knows the models

    base, _, request = kind.partition(" ")
    if base == GENERATE:
        return _decoding(graph, *json.loads(request))
    outputs: list[str] = json.loads(request)
    cut = inference_graph(graph, outputs, {})
    needed: Container[str] = {v.name for v in cut.inputs}
    fed = {name: value for name, value in inputs.items() if name in needed}
    return Forward(cut, fed, outputs, frozenset(deciding_inputs(cut, fed)))


def _decoding(graph: Graph, output: str, length: int, rows: int, adapter: bool) -> Forward:
    # Not on the way of a first step.
    from trainweb.generation.incremental import decoding_graph, without_adapter
    from trainweb.generation.past import refuse_integers, without_past
    from trainweb.training.export import inference_graph

    graph = without_past(graph)
    refuse_integers(graph)
    if not adapter:
        graph = without_adapter(graph)
    decoding = decoding_graph(inference_graph(graph, [output], {}), length, rows)
    return Forward(decoding.graph, decoding.feeds, [output], frozenset(), decoding.caches)
