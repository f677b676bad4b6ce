"""Training and eval models from a forward graph that ends in a loss."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainweb.arguments import warn
from trainweb.autodiff.gradient import GRADIENT_SUFFIX, build_gradients
from trainweb.errors import ModelError
from trainweb.model.graph import OWN_OUTPUTS, TRAINWEB, Graph, Node, Tensor, Value, take_name
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.onnxblock.context import ModelAccessor
from trainweb.onnxblock.transforms import (
    constants_to_initializers,
    for_evaluation,
    held_norms,
    prune,
    running_statistics,
    train_batch_norms,
)
from trainweb.ops.frame.shapes import ShapeInference

BUFFER_SUFFIX = "_grad.accumulation.buffer"
ACCUMULATED_SUFFIX = "_grad.accumulation.out"
RESET = "lazy_reset_grad"
"""Input of the training model: gradients overwrite (true) or add up."""
TRAINED_DTYPE = "float32"
HELD = (
    "Frozen statistics keep {count} of the batch normalizations in inference mode, though scale or bias is trained. "
    "ONNX Runtime updates such statistics. For that, leave them out of the frozen parameters; the checkpoint has them "
    "anyway."
)


@dataclass(slots=True)
class TrainingModels:
    """The models and parameters of a training; parameters are in the order of the models' inputs."""

    training: Graph
    evaluation: Graph
    trainable: list[Tensor]
    frozen: list[Tensor]


def with_outputs(accessor: ModelAccessor, names: Sequence[str]) -> Graph:
    """The model with other outputs; the types of the former ones are kept as value_info."""
    result = accessor.graph.with_nodes(accessor.graph.nodes)
    for former in accessor.graph.outputs:
        if isinstance(former, Value):
            result.value_info.setdefault(former.name, former)
    outputs: list[Value | SequenceValue] = []
    for name in dict.fromkeys(names):
        value = accessor.value(name)
        if not isinstance(value, Value):
            raise ModelError(f"Output {name!r} is a sequence.")
        outputs.append(Value(name, value.dtype, value.shape))
        result.value_info.pop(name, None)
    result.outputs = outputs
    return result


def build_training_models(
    graph: Graph,
    trainable: Sequence[str],
    frozen: Sequence[str],
    *,
    batch_norm: str | None = None,
    stopped: Sequence[str] = (),
    updates: Mapping[str, str] | None = None,
    former: ShapeInference | None = None,
) -> TrainingModels:
    """The training and the eval model of a graph whose first output is the loss; the graph is not changed.

    Initializers or inputs in `trainable` are differentiated. Initializers in `frozen` become inputs without gradient,
    and so do running statistics of batch normalizations that train. `batch_norm` says whether a BatchNormalization in
    inference mode trains, unless it is frozen; None: if all are in it. No gradient goes through `stopped`. `updates`
    has tensors whose value initializers have after each step, by these. `former` has types of the graph, where they
    were asked for before.
    """
    loss = graph.outputs[0]
    _check_loss(loss)
    # Some exporters give parameters and statistics as nodes.
    forward = constants_to_initializers(graph)
    _check_parameters(forward, trainable, frozen)
    trained = set(trainable)
    statistics = running_statistics(forward, trained, batch_norm, frozen)
    if count := held_norms(forward, trained, frozen):
        warn(HELD.format(count=count))
    updates = updates or {}
    held = {*trainable, *frozen, *statistics, *updates}
    parameters = [t for name, t in forward.initializers.items() if name in held]
    training = train_batch_norms(prune(_with_inputs(forward, parameters)), trained, batch_norm, frozen)
    wanted = [v.name for v in training.inputs if v.name in trained]
    training = build_gradients(training, loss.name, wanted, stopped=stopped, former=former)
    training = accumulate(training, wanted)
    _assign(training, updates)
    evaluation = for_evaluation(_with_inputs(graph, parameters))
    # The walk has found the operators' demands on the dims of inputs.
    refined = {v.name: v for v in training.inputs}
    evaluation.inputs = [refined.get(v.name, v) for v in evaluation.inputs]
    return TrainingModels(
        training,
        evaluation,
        [t for t in parameters if t.name in trained],
        [t for t in parameters if t.name not in trained],
    )


def note_own_outputs(models: TrainingModels, before: Collection[str], outputs: Iterable[str]) -> None:
    """Note the outputs of the base model in the eval model, which may give others and a loss made of them.

    A loss that trains its own layers is a part of the model: then nothing is noted. `before` are names of the base
    model's tensors, before a loss was added. The loss takes `outputs`.
    """
    graph, makers = models.evaluation, models.evaluation.producers()
    graph.metadata.pop(OWN_OUTPUTS, None)
    taken = [name for name in outputs if name in before and name in makers]
    loss, *others = (v.name for v in graph.outputs)
    if not taken or loss in taken or any(t.name not in before for t in models.trainable):
        return
    of_loss = {v.name for v in graph.inputs if v.name not in before}
    for node in graph.nodes:
        if not of_loss.isdisjoint(node.inputs):
            of_loss.update(node.outputs)
    names = [*taken, *(name for name in others if name not in of_loss)]
    graph.metadata[OWN_OUTPUTS] = json.dumps(list(dict.fromkeys(names)), ensure_ascii=False)


def _assign(graph: Graph, updates: Mapping[str, str]) -> None:
    """Give inputs new values at the end of a step."""
    used = set(graph.names())
    for name, value in updates.items():
        out = take_name(f"{name}.after", used)
        graph.nodes.append(Node("Assign", [name, value], [out], {}, TRAINWEB, f"{name}/Assign"))
        graph.opsets.setdefault(TRAINWEB, 1)


def accumulate(graph: Graph, trainable: Sequence[str]) -> Graph:
    """Accumulate the gradients in buffers, which become inputs; each has a flag as output."""
    inputs = {v.name: v for v in graph.inputs if isinstance(v, Value)}
    for name in trainable:
        value = inputs[name]
        graph.inputs.append(Value(name + BUFFER_SUFFIX, value.dtype, value.shape))
    for name in trainable:
        position, out = len(graph.outputs), name + ACCUMULATED_SUFFIX
        graph.nodes.append(
            Node(
                "InPlaceAccumulatorV2",
                [name + BUFFER_SUFFIX, name + GRADIENT_SUFFIX, RESET],
                [out],
                {},
                "com.microsoft",
                f"GradientAccumulator{position}",
            )
        )
        graph.outputs.append(Value(out, "bool", (1,)))
    graph.inputs.append(Value(RESET, "bool", (1,)))
    graph.opsets = {**graph.opsets, "com.microsoft": graph.opsets.get("com.microsoft", 1)}
    return graph


def _check_loss(loss: Value | SequenceValue) -> None:
    if not isinstance(loss, Value) or loss.dtype != TRAINED_DTYPE:
        raise ModelError(f"The loss {loss.name!r} is {loss.dtype}; it must be float32.")
    if loss.shape is None or any(dim != 1 for dim in loss.shape):
        raise ModelError(
            f"The loss {loss.name!r} has shape {list(loss.shape or ())}; it must be a scalar. "
            "Reduce it to its mean or sum."
        )


def _check_parameters(graph: Graph, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    inputs = {value.name: value for value in graph.inputs}
    both = sorted(set(trainable) & set(frozen))
    if both:
        raise ModelError(f"A parameter cannot be frozen and require gradient at the same time: {', '.join(both)}.")
    for name in trainable:
        value = graph.initializers.get(name) or inputs.get(name)
        if value is None:
            raise ModelError(f"Node arg {name} is not found.")
        if value.dtype != TRAINED_DTYPE:
            raise ModelError(f"Parameter {name!r} is {value.dtype}; only float32 parameters can be trained.")
    for name in frozen:
        if name in graph.initializers and graph.initializers[name].dtype != TRAINED_DTYPE:
            raise ModelError(
                f"Parameter {name!r} is {graph.initializers[name].dtype}; parameters in a checkpoint must be float32."
            )


def _with_inputs(graph: Graph, parameters: Sequence[Tensor]) -> Graph:
    """The same nodes, with parameters as inputs after the user's inputs."""
    names = {t.name for t in parameters}
    result = graph.with_nodes(n for n in graph.nodes if names.isdisjoint(n.outputs))
    result.inputs = [v for v in result.inputs if v.name not in names]
    result.inputs += [Value(t.name, t.dtype, t.shape) for t in parameters]
    result.initializers = {k: t for k, t in result.initializers.items() if k not in names}
    return result
