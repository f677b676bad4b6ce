"""Cut the eval model to an inference model with the current parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.errors import ModelError
from trainweb.model.floats import as_noted, with_declared_types
from trainweb.model.graph import DECLARED_TYPE, LOSS_TERMS, OWN_OUTPUTS, SAMPLE_WEIGHT, Graph, Tensor, Value
from trainweb.model.lazy import Part
from trainweb.model.writer import model_parts
from trainweb.ops.frame.shapes import infer_shapes
from trainweb.training.outputs import noted_names

if TYPE_CHECKING:
    from trainweb.checkpoint.contents import ParameterHolder


SHOWN_TENSORS = 8
"""Tensors that an error lists."""


def export_model(
    graph: Graph | None, names: Iterable[str], holder: ParameterHolder, output_names: Sequence[str] | None
) -> list[Part]:
    """The file of the inference model, cut from the eval model; see `TrainingSession.export_model_for_inferencing`."""
    if graph is None:
        raise messages.NO_EVAL_MODEL_TO_EXPORT()
    if holder.is_nominal:
        raise messages.NOMINAL(action="export the model with")
    if not output_names:
        raise ModelError("Expected a non empty vector of graph output names. Got an empty vector.")
    contents = holder.contents()
    parameters = {name: _noted(contents.parameters[name], contents.declared.get(name)) for name in names}
    exported = as_noted(inference_graph(graph, list(output_names), parameters))
    return model_parts(with_declared_types(exported))


def _noted(tensor: Tensor, declared: str | None) -> Tensor:
    if declared is None:
        return tensor
    noted = tensor.renamed(tensor.name)
    noted.notes = {**tensor.notes, DECLARED_TYPE: declared}
    return noted


def _some_of(names: Iterable[str]) -> str:
    """The last names, which are the nearest to the outputs."""
    listed = [name for name in names if name]
    return ("..., " if len(listed) > SHOWN_TENSORS else "") + ", ".join(listed[-SHOWN_TENSORS:])


def inference_graph(graph: Graph, outputs: Sequence[str], parameters: dict[str, Tensor]) -> Graph:
    """The part of `graph` that makes `outputs`, with `parameters` as initializers."""
    producers = graph.producers()
    inputs = {v.name: v for v in graph.inputs}
    known = set(producers) | set(inputs) | set(graph.initializers)
    for name in outputs:
        if not name:
            raise ModelError("Name of graph output cannot be empty.")
        if name not in known:
            own_outputs = noted_names(graph, OWN_OUTPUTS) or [v.name for v in graph.outputs]
            raise ModelError(
                f"Expected graph output for inference graph {name} could not be found. The model gives "
                f"{', '.join(own_outputs)}; other tensors of it are "
                f"{_some_of(n for n in producers if n not in own_outputs)}."
            )
    needed = graph.behind(outputs)
    nodes = [n for n in graph.nodes if not needed.isdisjoint(n.outputs)]
    declared = {v.name: v for v in graph.outputs} | graph.value_info
    declared = {name: v for name, v in declared.items() if not isinstance(v, Value) or v.shape is not None}
    result = graph.copy()
    for note in (OWN_OUTPUTS, LOSS_TERMS, SAMPLE_WEIGHT):
        result.metadata.pop(note, None)
    result.nodes, result.outputs = nodes, []
    result.inputs = [v for v in graph.inputs if v.name in needed and v.name not in parameters]
    result.initializers = {n: t for n, t in graph.initializers.items() if n in needed}
    result.initializers.update({n: t for n, t in parameters.items() if n in needed})
    results = {o for n in nodes for o in n.outputs}
    # Of parameters it has the exporter's notes, by which a later build knows them.
    described = results | result.initializers.keys()
    result.value_info = {n: v for n, v in graph.value_info.items() if n in described and n not in outputs}
    # Without the loss: types that the model does not declare are inferred on the remaining nodes.
    types = declared if all(n in declared for n in outputs) else {**infer_shapes(result), **declared}
    result.outputs = [types[n] for n in outputs]
    return result
