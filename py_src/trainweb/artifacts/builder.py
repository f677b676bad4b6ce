"""Builds training artifacts from a forward model, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, EnumMeta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from trainweb import messages
from trainweb.arguments import checks_keywords, flag, nearest, path_of, unknown, warn
from trainweb.artifacts.buffers import buffer_updates, without_gradient
from trainweb.artifacts.evidence import Decision
from trainweb.artifacts.parameters import QUANTIZED, Selection, select_parameters
from trainweb.artifacts.recover import exact_names, recover_parameters
from trainweb.artifacts.remarks import remark_on_file, remark_on_loss, remark_on_norms, remark_on_unread
from trainweb.artifacts.untie import forget_calls
from trainweb.checkpoint import SessionContents, scaling_of, write_checkpoint, write_file_atomically
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.control.operators import all_nodes, unsupported_nodes
from trainweb.errors import ModelError, UnknownNameError, UnsupportedError
from trainweb.generation.past import without_past
from trainweb.model.checks import Limits
from trainweb.model.dimensions import fix_dimensions
from trainweb.model.floats import Declared, cast_inputs, cast_outputs, in_float32, note_outputs, with_declared_types
from trainweb.model.graph import Dim, Graph, Tensor, Value
from trainweb.model.graph import Sequence as ValueSequence
from trainweb.model.reader import read_model
from trainweb.model.uses import SCALE
from trainweb.model.writer import round_attributes, write_model
from trainweb.onnxblock import loss as losses
from trainweb.onnxblock import optim
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.checkpoint import generated_checkpoint
from trainweb.onnxblock.context import ModelAccessor, accessing, restarted_names
from trainweb.onnxblock.models import (
    TRAINED_DTYPE,
    TrainingModels,
    build_training_models,
    note_own_outputs,
    with_outputs,
)
from trainweb.onnxblock.row_weights import EVERY, RowWeights, note_weights, weighed, weights_of
from trainweb.onnxblock.terms import LossTerms, is_by_output, label_arguments, named_loss
from trainweb.onnxblock.training import ForwardBlock
from trainweb.onnxblock.transforms import constants_to_initializers, prune
from trainweb.ops.frame.functions import write_interchangeable
from trainweb.settings import Choice, Names, Number, Patterns, Positive, Sizes, YesNo
from trainweb.spelling import ARGUMENT, LABELS

BATCH_NORM = ("train", "as_exported")
RATE = Number(least=0, most=float.fromhex("0x1.fffffep127"))
"""A learning rate is a float32."""


if TYPE_CHECKING:

    class _Losses(EnumMeta):
        def __getattr__(cls, name: str) -> LossType: ...

    class LossType(Enum, metaclass=_Losses):
        """Built-in losses: the classes of `onnxblock.loss`, by their names."""

    class _Optimizers(EnumMeta):
        def __getattr__(cls, name: str) -> OptimType: ...

    class OptimType(Enum, metaclass=_Optimizers):
        """Built-in optimizers: the classes of `onnxblock.optim`, by their names."""

else:
    LossType = Enum("LossType", list(losses.LOSSES), module=__name__)
    LossType.__doc__ = "Built-in losses: those of `onnxblock.loss`, by their names."
    OptimType = Enum("OptimType", list(optim.OPTIMIZERS), module=__name__)
    OptimType.__doc__ = "Built-in optimizers: those of `onnxblock.optim`, by their names."

LossLike = LossType | Block | str | Mapping[str, Any] | Sequence[Any] | None
OptimizerLike = OptimType | Block | str | Mapping[str, Any] | None
"""A member, a block, a name, or a mapping of the name as "type" and of settings."""


class Artifacts:
    """Start of a training session: graphs and parameters, and both as bytes, which are made when first asked for.

    Attributes
    ----------
    graphs : tuple of Graph
        Training, eval and optimizer model (None if no optimizer was asked for); not to be changed.
    train_model, eval_model : bytes
        ONNX models; the loss is the first output of both. `training_model` is another name of the first.
    optimizer_model : bytes or None
        None if no optimizer was asked for.
    checkpoint : bytes
        The parameters.
    nominal_checkpoint : bytes
        Their names only, for pages that load the weights as a buffer.
    decisions : list of Decision
        Trained and untrained tensors, with reasons.
    learning_rate : float or None
        The rate that the checkpoints keep; None: the default.
    """

    def __init__(
        self,
        models: TrainingModels,
        optimizer: Graph | None,
        decisions: Sequence[Decision] = (),
        learning_rate: float | None = None,
    ) -> None:
        self.learning_rate = learning_rate
        self.decisions = list(decisions)
        self.graphs: tuple[Graph, Graph, Graph | None] = (models.training, models.evaluation, optimizer)
        self._parameters = models.trainable, models.frozen
        for graph in self.graphs:
            if graph is not None:
                round_attributes(graph)

    def keys(self) -> list[str]:
        """Return the names of the files that a session takes: `TrainingSession(**artifacts)`."""
        return ["train_model", "eval_model", "optimizer_model", "checkpoint"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise UnknownNameError(unknown("The file", name, self.keys()))
        return getattr(self, name)

    @property
    def training_model(self) -> bytes:
        """The training model."""
        return self.train_model

    @cached_property
    def train_model(self) -> bytes:
        """The training model; its constants have the types that they were declared with."""
        return write_interchangeable(with_declared_types(self.graphs[0]))

    @cached_property
    def eval_model(self) -> bytes:
        """The eval model; its constants have the types that they were declared with."""
        return write_model(with_declared_types(self.graphs[1]))

    @cached_property
    def optimizer_model(self) -> bytes | None:
        """The optimizer model."""
        return None if self.graphs[2] is None else write_model(self.graphs[2])

    @cached_property
    def checkpoint(self) -> bytes:
        """The parameters."""
        return write_checkpoint(self.contents(), generated=True)

    @cached_property
    def nominal_checkpoint(self) -> bytes:
        """The names of the parameters."""
        return write_checkpoint(self.contents(nominal=True), generated=True)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, in float32."""
        return [*self._parameters[0], *self._parameters[1]]

    def contents(self, *, nominal: bool = False) -> SessionContents:
        """Return the contents of the (nominal) checkpoint."""
        contents = generated_checkpoint(*self._parameters, nominal=nominal)
        contents.scaling = scaling_of(self.graphs[0])
        if self.learning_rate is None:
            return contents
        return replace(contents, is_exact=True, learning_rate=self.learning_rate)

    def write(self, directory: Any, prefix: str = "", *, nominal: bool = False) -> None:
        """Write the files under their usual names after `prefix` into a directory that exists.

        Parameters
        ----------
        directory : path
            Where to.
        prefix : str
            Put before every name.
        nominal : bool
            Write the nominal checkpoint, too.
        """
        folder = path_of("directory", directory)
        path_of("prefix", prefix)
        if not folder.is_dir():
            raise FileNotFoundError(f"The artifact directory {str(folder)!r} does not exist.")
        files = {
            "training_model.onnx": self.training_model,
            "eval_model.onnx": self.eval_model,
            "optimizer_model.onnx": self.optimizer_model,
            "checkpoint": self.checkpoint,
            "nominal_checkpoint": self.nominal_checkpoint if flag("nominal", nominal) else None,
        }
        for name, data in files.items():
            if data is not None:
                write_file_atomically(folder / f"{prefix}{name}", data)


@checks_keywords
def build_artifacts(
    model: Any,
    requires_grad: Annotated[Iterable[str] | str, Names()] | None = None,
    frozen_params: Annotated[Iterable[str] | str, Names(may_be_empty=True)] | None = None,
    loss: LossLike = None,
    optimizer: OptimizerLike = None,
    *,
    additional_output_names: Annotated[Sequence[str], Names(may_be_empty=True)] | None = None,
    loss_input_names: Patterns | None = None,
    batch_norm: Annotated[str, Choice(BATCH_NORM)] | None = None,
    stop_gradient: Patterns | None = None,
    dims: Annotated[Mapping[str, int], Sizes()] | None = None,
    external_data: Mapping[str, bytes] | None = None,
    weights: Any = None,
    ort_format: bool = False,
    custom_op_library: Any = None,
    nominal_checkpoint: YesNo = False,
    limits: Limits | Mapping[str, int] | None = None,
    clip_grad_norm: Positive | None = None,
    clip_grad_value: Positive | None = None,
    ema: Mapping[str, Any] | None = None,
    integrity: str | None = None,
    learning_rate: float | None = None,
    sample_weight: str | Mapping[str, Any] | None = None,
) -> Artifacts:
    """Build training artifacts in memory.

    Parameters
    ----------
    model : bytes, path, onnx.ModelProto or Graph
        The forward model.
    requires_grad : names or regular expressions, optional
        Parameters to train. None: the float32 initializers that are parameters by the evidence of the file, lead to the
        loss, and are not in `frozen_params`. The exporter's records decide, else names, use and values. A warning names
        undecided tensors. A regular expression must match a whole name.
    frozen_params : names or regular expressions, optional
        Parameters kept in the checkpoint without gradient. trainweb adds the running statistics of batch normalizations
        that train, and buffers whose changes the exporter recorded. A batch normalization whose running mean or
        variance is named stays in inference mode, like Keras' ``trainable = False``. Initializers in neither list stay
        constants of the models.
    loss : LossType, Block, str or dict, optional
        Called with the names of the model's outputs, or with `loss_input_names`. None: the first output of the model
        already is the loss. A str is the name of a class of `onnxblock.loss`. A dict has that name as "type", and the
        arguments of the class. A dict of outputs has a loss for each, or a list of losses; each may have a "weight" in
        the sum of all. The labels of the output "age" then are the input "age_labels". A list is of the only output.
    optimizer : OptimType, Block, str or dict, optional
        None: there is no optimizer model. A str is the name of a class of `onnxblock.optim`. A dict has that name as
        "type", the arguments of the class and three more. "groups" is a list of dicts of the arguments of
        `Optimizer.group`. "decay_biases_and_norms" False turns off weight decay for parameters with fewer than two
        axes. "learning_rate" is the argument of that name. docs/operators.md lists all. Optimizer models with nodes of
        ai.trainweb run only in trainweb, because ONNX Runtime training has only AdamW and plain SGD.
    additional_output_names : list of str, optional
        Tensors that the training and the eval model return after the loss.
    loss_input_names : list of str, optional
        Arguments of the loss instead of all model outputs.
    batch_norm : {"train", "as_exported"}, optional
        Mode of the batch normalizations that are in inference mode in the file: train those with a trainable scale or
        bias, or with neither, or keep that mode. The ones in training mode stay in it, unless `frozen_params` holds
        their statistics. None: "train" with a warning if all are in inference mode, else each keeps its mode.
    stop_gradient : list of str, optional
        Tensors of the model that count as constants for gradients, like torch's `detach`. Parameters only before them
        are not trained.
    dims : mapping of str to int, optional
        Sizes of symbolic dimensions of the inputs, by name. A dimension without a name has its input and axis, such as
        "x[0]". The artifacts take only feeds of these sizes. A model whose control flow depends on a size may need it.
    external_data : mapping of str to bytes, optional
        External data by location, for models given as bytes.
    weights : bytes, path, or a list of these, optional
        Safetensors files for a model without weights, such as those of a Hugging Face repository; see
        `trainweb.model.read_model`.
    ort_format, custom_op_library
        Not supported.
    nominal_checkpoint : bool
        Ignored here: the result always has one.
    limits : Limits or dict, optional
        Limits of the forward model; see `trainweb.TrainingSession`.
    clip_grad_norm, clip_grad_value : float, optional
        Largest joint L2 norm of the gradients in an optimizer step, and largest magnitude of each element; values are
        clipped first. An optimizer that is a Block has `clip_grad` instead.
    ema : dict, optional
        Keep an exponential moving average of the trainable parameters beside them, for evaluation and exports on
        request: the arguments of `onnxblock.optim.ExponentialMovingAverage`, such as ``{"decay": 0.999}``. An optimizer
        that is a Block has `average` instead.
    integrity : str, optional
        The hash that the file of the model must have; see `trainweb.model.read_model`.
    learning_rate : float, optional
        The rate that sessions of trainweb start from; 0.001 by default. The checkpoint keeps it in a field that ONNX
        Runtime does not read.
    sample_weight : str or dict, optional
        Name of a new input with the weight of each row (N,). The loss, its validation and metrics weight rows as Keras
        does: the divisor of the loss stays, and metrics are divided by the sum of weights. Labels of weight 0 may be
        NaN. ``{"name": "present", "of": "labels"}`` takes weights in the shape of the labels, such as the mask of
        missing labels of several tasks. With a loss by outputs, a dict of outputs may have weights for each.

    Returns
    -------
    Artifacts

    Raises
    ------
    ModelError
        The model is malformed or has another hash, a name is unknown, or the loss is not a scalar.
    UnsupportedError
        An operator cannot be run.
    GradientError
        An operator on the way from the loss to a parameter cannot be differentiated.
    """
    flag("nominal_checkpoint", nominal_checkpoint)
    _refuse_unsupported(ort_format, custom_op_library, batch_norm)
    beside = {"clip_grad_norm": clip_grad_norm, "clip_grad_value": clip_grad_value, "ema": ema}
    optimizer, rate = rate_of(optimizer, learning_rate)
    for name in ("ema", "clip_grad_norm", "clip_grad_value"):
        if optimizer is None and beside[name] is not None:
            raise messages.NEEDS_OPTIMIZER(name=ARGUMENT[name])
    graph = _forward_graph(model, external_data, weights, limits, integrity, dims)
    terms = _terms_of(loss, loss_input_names, sample_weight, graph)
    row_weights = weights_of(sample_weight) if terms is None else terms.weights
    if terms is not None:
        loss, loss_input_names = terms, terms.outputs
    graph = without_unread(graph, loss_input_names, additional_output_names)
    check_operators(graph, loss_input_names)
    source = _read(graph, requires_grad, frozen_params)
    with restarted_names():
        before, compared = set(source.graph.names()), loss_input_names or [v.name for v in source.graph.outputs]
        graph, types = _with_loss(source, loss, loss_input_names, additional_output_names, compared, row_weights)
        stopped = _name_list(stop_gradient, "stop_gradient")
        chosen = _choose(source, graph, types, requires_grad, frozen_params, stopped)
        if optimizer is not None and not chosen.trainable:
            raise ModelError(
                "There is nothing to train: no parameter requires a gradient. "
                f"'{ARGUMENT.requires_grad}' names those to train."
                f"{QUANTIZED if any(decision.reason == SCALE for decision in chosen.decisions) else ''}"
            )
        settled = chosen.frozen if requires_grad is None else [*chosen.trainable, *chosen.frozen]
        models = _train(source, graph, types, chosen, batch_norm, settled)
        note_own_outputs(models, before, [] if loss is None else compared)
        if terms is not None:
            terms.note(models.evaluation)
        note_weights(models.evaluation, row_weights)
        update = None if optimizer is None else build_optimizer(_optimizer_block(optimizer, beside), models, graph)
        return Artifacts(models, update, chosen.decisions, rate)


@dataclass(frozen=True, slots=True)
class _Source:
    """A forward model in float32, without control flow and with the parameters that its exporter lost.

    `outputs` and `declared` types come from the file. `constants` are the initializers and values of Constant nodes.
    """

    graph: Graph
    outputs: list[Value | ValueSequence]
    declared: Declared
    initializers: dict[str, Tensor]
    constants: dict[str, Tensor]


def _read(graph: Graph, requires_grad: Any, frozen_params: Any) -> _Source:
    graph, declared = in_float32(graph)
    outputs = graph.outputs
    if has_control_flow(graph):
        graph = expand_control_flow(graph, differentiable=True)
    graph = recover_parameters(graph, exact_names(requires_grad, frozen_params))
    constants = constants_to_initializers(graph).initializers
    return _Source(graph, outputs, declared, dict(graph.initializers), constants)


def _with_loss(
    source: _Source,
    loss: LossLike,
    loss_input_names: Sequence[str] | None,
    additional: Sequence[str] | None,
    compared: Sequence[str],
    weights: Mapping[str, RowWeights],
) -> tuple[Graph, ModelAccessor | None]:
    """The graph with a loss, and its types; None where labels are cast to float32."""
    inputs, unread = {v.name for v in source.graph.inputs}, remark_on_unread(source.graph)
    graph, accessor = add_loss(source.graph, loss, loss_input_names, additional, weights.get(EVERY))
    inputs.update(one.name for one in weights.values())
    types = _types_of_labels(graph, inputs, source.declared, compared)
    graph = cast_inputs(graph, types)
    each = [(term.loss, [term.output]) for term in loss.terms] if isinstance(loss, LossTerms) else [(loss, compared)]
    is_by_output = isinstance(loss, LossTerms)
    remarks = [remark for one in each for remark in remark_on_loss(graph, *one, is_by_output=is_by_output)]
    for remark in (*remark_on_file(graph, source.constants), *unread, *remarks):
        warn(remark)
    return graph, None if types else accessor


def _choose(
    source: _Source,
    graph: Graph,
    types: ModelAccessor | None,
    requires_grad: Iterable[str] | str | None,
    frozen_params: Iterable[str] | str | None,
    stopped: list[str],
) -> Selection:
    _check_stopped(graph, stopped)
    stopped = [*stopped, *(name for name in without_gradient(graph) if name not in stopped)]
    inference = None if types is None else types.inference
    names = requires_grad, frozen_params, stopped
    chosen = select_parameters(graph, source.initializers, source.constants, *names, inference=inference)
    forget_calls(graph)
    return chosen


def _train(
    source: _Source,
    graph: Graph,
    types: ModelAccessor | None,
    chosen: Selection,
    batch_norm: str | None,
    settled: Sequence[str],
) -> TrainingModels:
    trainable, frozen = chosen.trainable, chosen.frozen
    for remark in remark_on_norms(graph, chosen, batch_norm):
        warn(remark)
    models = build_training_models(
        graph,
        trainable,
        frozen,
        batch_norm=batch_norm,
        stopped=chosen.stopped,
        updates=buffer_updates(graph, settled),
        former=None if types is None else types.inferred(),
    )
    declared = source.declared.outputs
    models.training = cast_outputs(models.training, declared)
    models.evaluation = note_outputs(cast_outputs(models.evaluation, declared), source.outputs, declared)
    return models


def _refuse_unsupported(ort_format: bool, custom_op_library: Any, batch_norm: str | None) -> None:
    """Raise for a setting that asks for something else than trainweb does."""
    if flag("ort_format", ort_format):
        raise UnsupportedError(
            "ort_format=True is not supported: artifacts are ONNX files. For ONNX Runtime convert them with "
            "python -m onnxruntime.tools.convert_onnx_models_to_ort."
        )
    if custom_op_library is not None:
        raise UnsupportedError("Custom operator libraries are native code, which a page cannot run.")
    if batch_norm is not None and batch_norm not in BATCH_NORM:
        raise ModelError(f"{ARGUMENT.batch_norm} is {batch_norm!r}; it must be one of {', '.join(BATCH_NORM)}.")


def rate_of(optimizer: Any, learning_rate: float | None) -> tuple[Any, float | None]:
    """The optimizer without its learning rate, and the rate of the session; None: the default.

    Raise ModelError for two different rates, an invalid one, or one without an optimizer.
    """
    if isinstance(optimizer, Mapping) and "learning_rate" in optimizer:
        optimizer = dict(optimizer)
        rate = optimizer.pop("learning_rate")
        RATE.check("optimizer.learning_rate", rate)
        if learning_rate is not None and learning_rate != rate:
            raise messages.TWO_RATES(first=learning_rate, where="optimizer", second=rate)
        learning_rate = rate
    if learning_rate is not None:
        RATE.check("learning_rate", learning_rate)
        if optimizer is None:
            raise messages.NEEDS_OPTIMIZER(name=ARGUMENT.learning_rate)
    return optimizer, learning_rate


def _forward_graph(
    model: Any,
    external_data: Mapping[str, bytes] | None,
    weights: Any,
    limits: Limits | Mapping[str, int] | None,
    integrity: str | None,
    dims: Mapping[str, int] | None,
) -> Graph:
    """The forward model of whole texts, with the sizes of `dims`."""
    if not isinstance(model, Graph):
        graph = read_model(model, external_data=external_data, weights=weights, limits=limits, integrity=integrity)
    elif external_data is None and weights is None and limits is None and integrity is None:
        graph = model
    else:
        raise TypeError("external_data, weights, limits and integrity are for files, and the model is a Graph.")
    graph = without_past(graph)
    if dims:
        Sizes().check("dims", dims)
        graph = graph.copy()
        fix_dimensions([graph], graph.placed(dims))
    return graph


def without_unread(graph: Graph, loss_input_names: Sequence[str] | None, additional: Sequence[str] | None) -> Graph:
    """Return the graph without unsupported operators that no requested result depends on, and without their results."""
    unsupported = {id(node) for node, _ in unsupported_nodes(graph)}
    if not unsupported or not loss_input_names:
        return graph
    for name in set(loss_input_names) - set(graph.names()):
        raise _unknown_tensor(name, graph)
    asked = graph.with_nodes(graph.nodes)
    asked.outputs = [Value(name, TRAINED_DTYPE, None) for name in (*loss_input_names, *(additional or ()))]
    read = {id(node) for node in prune(asked).nodes}
    nodes, lost = [], set[str]()
    for node in graph.nodes:
        inside = {id(inner) for inner in all_nodes(graph.with_nodes([node]))}
        if id(node) not in read and (not lost.isdisjoint(node.inputs) or not unsupported.isdisjoint(inside)):
            lost.update(node.outputs)
        else:
            nodes.append(node)
    result = graph.with_nodes(nodes)
    result.outputs = [value for value in graph.outputs if value.name not in lost]
    return result


def describe_choice(graph: Graph, loss_input_names: Sequence[str] | None) -> str:
    """Say how a loss does without unsupported operators, such as those that make labels of a classifier's scores."""
    names = (v.name for v in graph.outputs if not any(unsupported_nodes(without_unread(graph, [v.name], None))))
    choice = f"{ARGUMENT.loss_input_names}={[next(names, 'NAME')]}"
    return "" if loss_input_names else f" If the loss needs no such operator, choose its input: {choice}."


def check_operators(graph: Graph, loss_input_names: Sequence[str] | None) -> None:
    """Raise for the first operator that is not there, and name the others: before anything else is found wrong."""
    faults = list(unsupported_nodes(graph))
    if not faults:
        return
    node, error = faults[0]
    others = sorted({n.op_type for n, _ in faults} - {node.op_type})
    more = f" Not supported either: {', '.join(others)}." if others else ""
    more += describe_choice(graph, loss_input_names)
    raise UnsupportedError(f"{error}{more}", op=error.op, domain=error.domain, opset=error.opset, node=error.node)


def _check_stopped(graph: Graph, stopped: Sequence[str]) -> None:
    known = set(graph.names())
    for name in stopped:
        if name not in known:
            raise ModelError(f"{ARGUMENT.stop_gradient}: the model has no tensor {name!r}.")
        if name == graph.outputs[0].name:
            raise ModelError(f"{ARGUMENT.stop_gradient}: {name!r} is the loss; nothing would be trained.")


def add_loss(
    graph: Graph,
    loss: LossLike,
    loss_input_names: Sequence[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    weights: RowWeights | None = None,
) -> tuple[Graph, ModelAccessor]:
    """`graph` with a loss as its first output, then the additional outputs; without a loss block its own come first.

    The accessor, which was used for it, knows the types of the same tensors.
    """
    additional = _name_list(additional_output_names, "additional_output_names")
    arguments = _name_list(loss_input_names, "loss_input_names") or [v.name for v in graph.outputs]
    if not arguments:
        raise ModelError(f"The graph {graph.name!r} has no outputs: there is nothing to train by.")
    with accessing(graph) as accessor:
        accessor.correct_outputs()
        for name in (*arguments, *additional):
            if not accessor.has(name):
                raise _unknown_tensor(name, graph)
        # Without a loss block nothing is made of the outputs: they stay what they are.
        if loss is None:
            losses_of_graph = [weighed(None, lambda: arguments[0], weights), *arguments[1:]]
        else:
            losses_of_graph = _call_loss(loss, arguments, weights)
        return with_outputs(accessor, [*losses_of_graph, *additional]), accessor


def _unknown_tensor(name: str, graph: Graph) -> ModelError:
    known = [value.name for value in graph.outputs]
    tensors = [*known, *graph.producers()]
    near = f"did you mean {nearest(name, tensors)!r}? " if tensors else ""
    outputs = f"{near}The outputs are {', '.join(known) or 'none'}."
    return ModelError(f"The provided name {name} is not a graph value info or a graph output; {outputs}")


def _types_of_labels(graph: Graph, fed: Collection[str], declared: Declared, compared: Iterable[str]) -> dict[str, str]:
    """Return the types of float inputs that a loss added to a model: the type of the output compared with them."""
    dtype = next((declared.outputs[name] for name in compared if name in declared.outputs), None)
    added = [v for v in graph.inputs if v.name not in fed and v.dtype == "float32"]
    return {} if dtype is None else {v.name: dtype for v in added}


def _no_loss_yet(graph: Graph, loss_input_names: Sequence[str] | None) -> Value | None:
    """The output that a loss is to be made of, None where the first can be one."""
    outputs = {v.name: v for v in graph.outputs if isinstance(v, Value)}
    value = outputs.get(next(iter(loss_input_names or outputs), ""))
    if value is None or value.shape is None or all(dim in (1, None) for dim in value.shape):
        return None
    return value


def suggest_loss(graph: Graph, loss_input_names: Sequence[str] | None = None) -> str | dict[str, Any] | None:
    """The loss that an output is most likely made for, of classes or of numbers, with the settings that it needs.

    None where the output can be a loss itself.
    """
    value = _no_loss_yet(graph, loss_input_names)
    if value is None or value.shape is None:
        return None
    axis = _class_axis(value.shape)
    if axis is None:
        return losses.MSELoss.__name__
    cross_entropy = losses.CrossEntropyLoss.__name__
    return cross_entropy if axis == -1 else {"type": cross_entropy, "class_axis": axis}


IMAGE_CHANNELS = (1, 3)


def _class_axis(shape: tuple[Dim, ...]) -> int | None:
    """The axis that most likely holds scores of classes, None where the numbers are most likely no scores."""
    axis = -1
    if len(shape) > 3:
        # Of a map of scores: channels stand second, unless what stands there is as large as what stands beside it.
        is_last = isinstance(shape[-1], int) and (shape[1] == shape[2] != shape[3] or not isinstance(shape[1], int))
        axis = -1 if is_last else 1
        if shape[axis] in IMAGE_CHANNELS:
            return None
    size = shape[axis]
    return axis if isinstance(size, int) and size > 1 and len(shape) > 1 else None


def describe_missing_loss(graph: Graph, loss_input_names: Sequence[str] | None = None) -> str | None:
    """Describe a missing loss to a user who wants to train; None if the first output can be one."""
    value = _no_loss_yet(graph, loss_input_names)
    if value is None or value.shape is None:
        return None
    axis = _class_axis(value.shape)
    where = "" if axis in (None, -1) else f" along axis {axis}"
    fits = "MSELoss or L1Loss" if axis is None else f"CrossEntropyLoss for classes{where}, MSELoss or L1Loss"
    # By names that both languages take: it is read in pages, too.
    shape = ", ".join(map(str, value.shape))
    return (
        f"Output {value.name!r} has shape [{shape}] and is not a loss yet: name one, such as "
        f"{fits} for numbers, BCEWithLogitsLoss for yes and no."
    )


def _name_list(names: Sequence[str] | None, argument: str) -> list[str]:
    if names is None:
        return []
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{ARGUMENT[argument]} must be a list of names, not {names!r:.80}.")
    return list(names)


def describe_open_choice(graph: Graph, loss: LossLike) -> str | None:
    """Describe a loss that takes only some of the model's outputs; None if it takes all of them."""
    names = [value.name for value in graph.outputs]
    if not isinstance(loss, (LossType, str, Mapping)) or is_by_output(loss):
        return None
    if len(names) == (block := named_loss(loss))._n_inputs:
        return None
    return messages.LOSS_INPUTS.fill(**_inputs_of(block, names))


def _inputs_of(block: losses.Loss, names: Sequence[str]) -> dict[str, Any]:
    return {"loss": type(block).__name__, "n": block._n_inputs, "names": ", ".join(names), "first": (*names, "")[0]}


def _terms_of(loss: LossLike, loss_input_names: Sequence[str] | None, weights: Any, graph: Graph) -> LossTerms | None:
    """The terms of a loss by outputs, or of a list of losses of the only output; None for other losses."""
    if isinstance(loss, (list, tuple)):
        names = _name_list(loss_input_names, "loss_input_names") or [value.name for value in graph.outputs]
        if len(names) != 1 or not loss:
            expected = f"losses by outputs, such as {{{(*names, '')[0]!r}: ['MSELoss', ...]}}"
            raise messages.BAD_SETTING(name="loss", value=loss, expected=expected)
        return LossTerms({names[0]: loss}, weights, "loss")
    if not is_by_output(loss):
        return None
    if loss_input_names:
        expected = "left out with a loss for each output"
        raise messages.BAD_SETTING(name=ARGUMENT.loss_input_names, value=loss_input_names, expected=expected)
    assert isinstance(loss, Mapping)
    return LossTerms(loss, weights)


def _call_loss(loss: LossLike, names: Sequence[str], weights: RowWeights | None) -> list[str]:
    """Names of the loss, and of its terms if it has several."""
    if isinstance(loss, LossTerms):
        return list(loss(*names))
    block = named_loss(loss)
    if not isinstance(loss, Block) and len(names) != block._n_inputs:
        raise messages.LOSS_INPUTS(**_inputs_of(block, names))
    # ONNX Runtime's LossType keeps its names of the input of labels.
    labels = dict.fromkeys(label_arguments(block), LABELS[0]) if isinstance(loss, (str, Mapping)) else {}
    return [weighed(block, lambda: _name_of_loss(block(*names, **labels)), weights)]


def _name_of_loss(result: object) -> str:
    result = result[0] if isinstance(result, (list, tuple)) and result else result
    if not isinstance(result, str):
        raise ModelError(f"The loss block returned {result!r:.80} instead of the name of the loss.")
    return result


def _optimizer_block(optimizer: OptimizerLike, beside: Mapping[str, Any]) -> Block:
    if isinstance(optimizer, (OptimType, str, Mapping)):
        source = optimizer.name if isinstance(optimizer, OptimType) else optimizer
        return optim.make_optimizer(source, **beside)
    if not isinstance(optimizer, Block):
        raise ModelError(f"Unknown optimizer provided {optimizer!r:.80}. Give an OptimType or an onnxblock.Block.")
    if beside["ema"] is not None:
        raise ModelError("The optimizer is a Block: give it average(ExponentialMovingAverage(decay)) instead of ema.")
    if any(clip is not None for clip in beside.values()):
        raise ModelError(
            "The optimizer is a Block: give it clip_grad=ClipGradNorm(max_norm) instead of clip_grad_norm."
        )
    return optimizer


def build_optimizer(optimizer: Block, models: TrainingModels, graph: Graph) -> Graph:
    """The optimizer model for the parameters of `models`."""
    block = optimizer if isinstance(optimizer, ForwardBlock) else _AsModel(optimizer)
    opset = graph.opsets.get("", 1)
    empty = Graph("graph", opsets={"": opset, "com.microsoft": 1})
    with accessing(empty):
        block((models.trainable, models.frozen))
    return block.graph


class _AsModel(ForwardBlock):
    """A plain block as a model."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = block

    def build(self, *args: Any) -> Any:
        return self._block(*args)
