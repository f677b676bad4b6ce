"""The part of an eval model that makes predictions: without the loss, over the parameters of the session."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainweb.control.deciding import deciding_inputs
from trainweb.model.graph import Graph, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

PREDICT = "predict"
"""The kind of a step that predicts; a space and the names of its outputs follow."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A step that predicts.

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
    """

    graph: Graph
    inputs: dict[str, Value]
    outputs: list[str]
    deciding: frozenset[str]


def kind_of_outputs(outputs: Sequence[str]) -> str:
    """The kind of the step that gives these outputs, as the page's worker names it, too."""
    return f"{PREDICT} {json.dumps(list(outputs), separators=(',', ':'), ensure_ascii=False)}"


def forward_of(graph: Graph, inputs: Mapping[str, Value], kind: str) -> Forward:
    """The step of a kind.

    Parameters
    ----------
    graph
        The eval model.
    inputs
        What is fed to it.
    kind
        As `kind_of_outputs` gives it.

    Raises
    ------
    ModelError
        An output is no tensor of the eval model.
    """
    from trainweb.training.export import inference_graph  # which knows the models

    outputs: list[str] = json.loads(kind.partition(" ")[2])
    cut = inference_graph(graph, outputs, {})
    needed: Container[str] = {v.name for v in cut.inputs}
    fed = {name: value for name, value in inputs.items() if name in needed}
    return Forward(cut, fed, outputs, frozenset(deciding_inputs(cut, fed)))
