"""`TrainingSession`, `TrainingParameters`, `GradientGraphBuilder`: the Python interface before onnxblock.

It served up to about onnxruntime-training 1.17. The session itself turns a forward model that ends in its loss into a
training graph, and one `run` is one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from trainweb.arguments import flag, instance_of, mapping, texts, unknown
from trainweb.artifacts.builder import add_loss
from trainweb.artifacts.parameters import select_parameters
from trainweb.autodiff.gradient import GRADIENT_SUFFIX, influences
from trainweb.checkpoint import SessionContents, write_file_atomically
from trainweb.checkpoint.contents import DEFAULT_LEARNING_RATE
from trainweb.compat.gradient_graph import GradientGraphBuilder
from trainweb.compat.older_optimizers import OPTIMIZERS, Adam, Lamb
from trainweb.errors import CheckpointError, FeedError, ModelError, SessionError, UnsupportedError
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock import optim
from trainweb.onnxblock.context import accessing, restarted_names
from trainweb.onnxblock.models import build_training_models
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.ops.frame.functions import write_interchangeable
from trainweb.session.inference_session import InferenceSession
from trainweb.session.training_session import TrainingSession as Session
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.core import set_seed
from trainweb.training.inert import warn_without_effect
from trainweb.training.ort.interface import CPU, PROVIDERS, ModelMetadata, NodeArg, SessionBase, check_providers
from trainweb.training.ort.options import (
    Attributes,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from trainweb.training.ort.values import IOBinding, OrtValue, as_array
from trainweb.training.state import CheckpointState

MOMENTS = {"momentum0": "Moment_1", "momentum1": "Moment_2"}
"""Moments by their names in checkpoints and in this interface."""
UPDATE_COUNT = "Update_Count"
DEFAULT_NORM = 1.0
"""`max_norm_clip` of weights that have no other."""
MODEL_GROUP = "full_precision"


@dataclass
class TrainingParameters(Attributes):
    """Settings of the training; attributes and defaults come from onnxruntime. A misspelt one is an AttributeError.

    Those for several devices and half precision must keep their defaults: `check` says of each why. Attributes that
    change no number here, such as recomputation, are accepted with a warning.

    Attributes
    ----------
    loss_output_name : str
        The output of the model to differentiate.
    weights_to_train, weights_not_to_train : set of str
        Names of initializers; all of float32 are trained, scalars too, unless some are named.
    immutable_weights : dict of str to dict
        By operator, the numbers that are never trained: ``{op_type: {index: value}}``, or pairs of both. A scalar is
        not trained that is this value, as a float32, at the input of that index, of each node that reads it.
    training_optimizer_name : str
        "SGDOptimizer", "AdamOptimizer" or "LambOptimizer"; "": gradients alone.
    optimizer_attributes_map, optimizer_int_attributes_map : dict of str to dict
        By weight, attributes of its optimizer that are not the default's.
    lr_params_feed_name : str
        Name of the input that has the learning rate in every step, of shape (1,).
    gradient_accumulation_steps : int
        Steps whose gradients are added up for an update.
    enable_grad_norm_clip : bool
        True if Adam and Lamb scale the gradients down when their joint norm is beyond `max_norm_clip` (1.0), an
        attribute of each weight.
    set_gradients_as_graph_outputs : bool
        True if ``<weight>_grad`` are outputs, too.
    model_after_graph_transforms_path, model_with_gradient_graph_path, model_with_training_graph_path : str
        Files to write: the model before, with and ready for training; "": none.
    initial_state : dict of str to dict
        See `set_optimizer_initial_state`.
    use_memory_efficient_gradient, gelu_recompute, attn_dropout_recompute, transformer_layer_recompute : bool
        Without effect: ``memory_budget`` decides, an option of the session.
    number_recompute_layers : int
        Without effect, too.
    use_mixed_precision, use_fp16_moments : bool
        False: everything is computed in float32.
    loss_scale : float
        Without effect: gradients in float32 need no scale.
    propagate_cast_ops_level, propagate_cast_ops_allow : int and list
        Without effect: there are no casts to move.
    world_rank, world_size, data_parallel_size, horizontal_parallel_size, pipeline_parallel_size : int
        0 and 1: there is one device.
    num_pipeline_micro_batches, pipeline_cut_info_string : int and str
        1 and "", as well.
    allreduce_post_accumulation, deepspeed_zero_stage, enable_adasum : bool and int
        False and 0, as well.
    sliced_schema, sliced_axes, sliced_tensor_names : dict and list
        Empty, as well.
    """

    loss_output_name: str = ""
    weights_to_train: set[str] = field(default_factory=set)
    weights_not_to_train: set[str] = field(default_factory=set)
    immutable_weights: dict[str, Mapping[int, float] | Sequence[tuple[int, float]]] = field(default_factory=dict)
    training_optimizer_name: str = ""
    optimizer_attributes_map: dict[str, dict[str, float]] = field(default_factory=dict)
    optimizer_int_attributes_map: dict[str, dict[str, int]] = field(default_factory=dict)
    lr_params_feed_name: str = "Learning_Rate"
    gradient_accumulation_steps: int = 1
    enable_grad_norm_clip: bool = True
    set_gradients_as_graph_outputs: bool = False
    use_memory_efficient_gradient: bool = False
    gelu_recompute: bool = False
    attn_dropout_recompute: bool = False
    transformer_layer_recompute: bool = False
    number_recompute_layers: int = 0
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    use_mixed_precision: bool = False
    use_fp16_moments: bool = False
    loss_scale: float = 0.0
    world_rank: int = 0
    world_size: int = 1
    data_parallel_size: int = 1
    horizontal_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_pipeline_micro_batches: int = 1
    pipeline_cut_info_string: str = ""
    allreduce_post_accumulation: bool = False
    deepspeed_zero_stage: int = 0
    enable_adasum: bool = False
    sliced_schema: dict[str, list[int]] = field(default_factory=dict)
    sliced_axes: dict[str, int] = field(default_factory=dict)
    sliced_tensor_names: list[str] = field(default_factory=list)
    model_after_graph_transforms_path: str = ""
    model_with_gradient_graph_path: str = ""
    model_with_training_graph_path: str = ""
    initial_state: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Start from these moments: {weight: {"Moment_1": array, "Moment_2": array, "Update_Count": int}}.

        Parameters
        ----------
        state : dict of str to dict
            Moments by weight.
        """
        self.initial_state = {name: dict(mapping(name, moments)) for name, moments in mapping("state", state).items()}

    def check(self) -> None:
        """Refuse what one device in float32 cannot do, and warn of what changes nothing.

        Raises
        ------
        UnsupportedError
            Another value than the default of an attribute that has one meaning here.
        ModelError
            No micro batch.
        """
        for name, value, default, why in self._others(FIXED):
            raise UnsupportedError(f"TrainingParameters.{name} is {value!r}; only {default!r} is supported: {why}")
        for name in ("enable_grad_norm_clip", "set_gradients_as_graph_outputs"):
            flag(f"TrainingParameters.{name}", getattr(self, name))
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
            raise ModelError(
                f"TrainingParameters.gradient_accumulation_steps is {steps!r:.40}; it must be an integer of at least 1."
            )
        by_reason: dict[str, list[str]] = {}
        for name, value, _, why in self._others(WITHOUT_EFFECT):
            by_reason.setdefault(why, []).append(f"TrainingParameters.{name}={value!r:.40}")
        warn_without_effect((f"{', '.join(settings)} ({why})" for why, settings in by_reason.items()))

    def _others(self, table: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any, Any, str]]:
        """Attributes of a table that do not have their default: name, value, default, and what the table says."""
        default = TrainingParameters()
        for names, why in table:
            for name in names.split():
                if getattr(self, name) != getattr(default, name):
                    yield name, getattr(self, name), getattr(default, name), why


FIXED = (
    ("use_mixed_precision use_fp16_moments", "everything is computed in float32."),
    (
        "world_rank world_size data_parallel_size horizontal_parallel_size pipeline_parallel_size "
        "num_pipeline_micro_batches pipeline_cut_info_string allreduce_post_accumulation deepspeed_zero_stage "
        "enable_adasum sliced_schema sliced_axes sliced_tensor_names",
        "there is one device.",
    ),
)
"""Attributes that have one value here, and why."""
WITHOUT_EFFECT = (
    ("loss_scale", "gradients in float32 need no scale"),
    ("propagate_cast_ops_level propagate_cast_ops_allow", "there are no casts to move"),
    (
        "use_memory_efficient_gradient gelu_recompute attn_dropout_recompute transformer_layer_recompute "
        "number_recompute_layers",
        "memory_budget, an option of the session, decides what is computed again",
    ),
)
"""Attributes that change no number here, and why."""


@dataclass(frozen=True)
class TrainingConfigurationResult:
    """Result of loading a model: the name of the loss scale's input, which does not exist.

    Attributes
    ----------
    loss_scale_input_name : str
        Empty.
    """

    loss_scale_input_name: str = ""


class NativeTrainingSession(SessionBase):
    """The class ``C.TrainingSession`` of onnxruntime: made first, then given its model by `load_model` or `read_bytes`.

    Parameters
    ----------
    sess_options : SessionOptions or dict, optional
        See `SessionOptions`.
    """

    _session: Session | None = None

    def __init__(self, sess_options: SessionOptions | Mapping[str, Any] | None = None) -> None:
        super().__init__(None, SessionOptions._of(sess_options))

    def load_model(
        self, path: Any, parameters: TrainingParameters, providers: Any = None, provider_options: Any = None
    ) -> TrainingConfigurationResult:
        """Build the training graph of a model in a file.

        Parameters
        ----------
        path : path
            A forward model that has its loss as an output.
        parameters : TrainingParameters
            The weights to train and the options of training.
        providers, provider_options
            See `check_providers`.

        Raises
        ------
        ModelError, UnsupportedError
            The model or the parameters cannot be trained with; names that are not known come with the nearest.
        SessionError
            The session has a model already.
        """
        return self._load(path, parameters, providers, provider_options)

    def read_bytes(
        self, data: Any, parameters: TrainingParameters, providers: Any = None, provider_options: Any = None
    ) -> TrainingConfigurationResult:
        """Build the training graph of a model given as bytes (or onnx.ModelProto); see `load_model`.

        Parameters
        ----------
        data : bytes or onnx.ModelProto
            A forward model that has its loss as an output.
        parameters : TrainingParameters
            The weights to train and the options of training.
        providers, provider_options : optional
            As `load_model`.
        """
        return self._load(data, parameters, providers, provider_options)

    def finalize(self) -> None:
        """End the training: give kernel memory back. Harmless when repeated."""
        self.release()

    def _load(
        self, model: Any, parameters: TrainingParameters, providers: Any, provider_options: Any
    ) -> TrainingConfigurationResult:
        if self._session is not None:
            raise SessionError("This session has a model already; make another session.")
        check_providers(providers, provider_options)
        instance_of(TrainingParameters, "parameters", parameters).check()
        self._source, self._parameters = model, parameters
        base = read_model(model, limits=self._options._core_settings()["limits"])
        inputs = [v.name for v in base.inputs]
        if parameters.training_optimizer_name and parameters.lr_params_feed_name in ("", *inputs):
            raise ModelError(
                f"TrainingParameters.lr_params_feed_name is {parameters.lr_params_feed_name!r}; it must be a name that "
                f"no input of the model has: {', '.join(inputs)}."
            )
        self._outputs = [v.name for v in base.outputs]
        if parameters.loss_output_name not in self._outputs:
            raise ModelError(
                f"The loss {parameters.loss_output_name!r} is not an output of the model; there are "
                f"{', '.join(self._outputs)}."
            )
        others = [name for name in self._outputs if name != parameters.loss_output_name]
        with restarted_names():
            graph, _ = add_loss(base, None, [parameters.loss_output_name], others)
            self._models = build_training_models(graph, *self._weights(base, graph))
            optimizer = self._optimizer(graph)
        self._graphs = self._models.training, self._models.evaluation, optimizer
        self._write_dumps(graph)
        self._inputs = [v for v in base.inputs if isinstance(v, Value)]
        self._values = {v.name: v for v in graph.outputs if isinstance(v, Value)}
        self._trained = [t.name for t in self._models.trainable]
        self._state = CheckpointState(SessionContents.of(self._models.trainable, self._models.frozen))
        self._micro_steps = 0
        self._set_moments(parameters.initial_state)
        self._open()
        return TrainingConfigurationResult()

    def _opened(self) -> Session:
        """The session of the model. Raise SessionError before there is one."""
        if self._session is None:
            raise SessionError("This session has no model yet: call load_model or read_bytes.")
        return self._session

    # Making of.

    def _weights(self, base: Graph, graph: Graph) -> tuple[list[str], list[str]]:
        p = self._parameters
        constants = constants_to_initializers(base).initializers
        to_train, not_to_train = (
            set(texts(f"TrainingParameters.{name}", getattr(p, name)))
            for name in ("weights_to_train", "weights_not_to_train")
        )
        wanted = sorted(to_train) if to_train else None
        for attribute, names in (("weights_to_train", to_train), ("weights_not_to_train", not_to_train)):
            for name in sorted(names):
                if name not in constants:
                    raise ModelError(unknown(f"TrainingParameters.{attribute}: the weight", name, constants))
        if wanted is None:
            reached = influences(graph, [p.loss_output_name])
            trainable = [n for n, t in base.initializers.items() if t.dtype == "float32" and n in reached]
        else:
            trainable = select_parameters(graph, base.initializers, constants, wanted, None).trainable
        fixed = not_to_train | self._immutable(base, constants)
        return [name for name in trainable if name not in fixed], []

    def _immutable(self, base: Graph, constants: Mapping[str, Tensor]) -> set[str]:
        """Scalars that are the number which `immutable_weights` says wherever they are read."""
        numbers = {op_type: dict(values) for op_type, values in self._parameters.immutable_weights.items()}
        consumers = base.consumers()
        types = {node.op_type for node in base.nodes}
        for op_type in numbers:
            if op_type not in types:
                raise ModelError(unknown("TrainingParameters.immutable_weights: the operator", op_type, types))

        def is_said(node: Node, name: str, number: float) -> bool:
            said = numbers.get(node.op_type, {})
            return any(node.inputs[i : i + 1] == [name] and np.float32(said[i]) == number for i in said if i >= 0)

        scalars = {n: float(to_numpy(t)) for n, t in constants.items() if t.shape == () and t.dtype == "float32"}
        return {
            name
            for name, number in scalars.items()
            if consumers.get(name) and all(is_said(node, name, number) for node in consumers[name])
        }

    def _optimizer(self, graph: Graph) -> Graph | None:
        p = self._parameters
        if not p.training_optimizer_name:
            return None
        if p.training_optimizer_name not in OPTIMIZERS:
            raise UnsupportedError(
                unknown("The optimizer", p.training_optimizer_name, OPTIMIZERS),
                op=p.training_optimizer_name,
                domain="com.microsoft",
            )
        self._check_attributes()
        block = optim.SGD() if p.training_optimizer_name == "SGDOptimizer" else self._adaptive()
        with accessing(Graph("optimizer", opsets={"": graph.opsets.get("", 1), "com.microsoft": 1})):
            block((self._models.trainable, self._models.frozen))
        return block.graph

    def _check_attributes(self) -> None:
        """Raise unless every attribute is one of the optimizer's, for a weight that is trained."""
        p = self._parameters
        weights = [t.name for t in self._models.trainable]
        for attribute, kind in (("optimizer_attributes_map", 0), ("optimizer_int_attributes_map", 1)):
            known = OPTIMIZERS[p.training_optimizer_name][kind]
            for weight, attributes in getattr(p, attribute).items():
                if weight not in weights:
                    raise ModelError(unknown(f"TrainingParameters.{attribute}: the weight", weight, weights))
                for name in attributes:
                    if name not in known:
                        raise ModelError(unknown(f"{p.training_optimizer_name}'s attribute", name, known))

    def _write_dumps(self, graph: Graph) -> None:
        """Write the graphs that the parameters ask for: before, with and ready for training."""
        p = self._parameters
        if p.model_after_graph_transforms_path:
            write_file_atomically(Path(p.model_after_graph_transforms_path), write_model(graph))
        if p.model_with_gradient_graph_path:
            weights = [t.name for t in self._models.trainable]
            builder = GradientGraphBuilder(write_model(graph), [p.loss_output_name], weights, p.loss_output_name)
            builder.build()
            builder.save(p.model_with_gradient_graph_path)
        if p.model_with_training_graph_path:
            write_file_atomically(Path(p.model_with_training_graph_path), write_interchangeable(self._models.training))

    def _adaptive(self) -> Adam | Lamb:
        """Adam or Lamb, with a group for each set of attributes that some weights have."""
        p = self._parameters
        kind = Lamb if p.training_optimizer_name == "LambOptimizer" else Adam
        norms: dict[str, float] = {}
        groups: list[tuple[tuple[dict[str, Any], float], list[str]]] = []
        for tensor in self._models.trainable:
            attributes: dict[str, float] = {}
            for by_weight in (p.optimizer_attributes_map, p.optimizer_int_attributes_map):
                attributes |= by_weight.get(tensor.name, {})
            norm = attributes.pop("max_norm_clip", DEFAULT_NORM) if p.enable_grad_norm_clip else DEFAULT_NORM
            if norm <= 0:
                raise ModelError(f"max_norm_clip of {tensor.name!r} must be greater than 0, got {norm}.")
            norms[tensor.name] = norm
            settings = kind.settings_of(attributes), norm
            alike = next((names for others, names in groups if others == settings), None)
            if alike is None:
                groups.append((settings, alike := []))
            alike.append(tensor.name)
        groups.sort(key=lambda group: -len(group[1]))
        block: Adam | Lamb = kind(**groups[0][0][0])
        for (settings_of, _), names in groups[1:]:
            block.group([re.escape(name) for name in names], **settings_of)
        block.norms = norms if p.enable_grad_norm_clip else {}
        return block

    def _open(self) -> None:
        training, evaluation, optimizer = self._graphs
        options = self._options._without_warning(enable_profiling=False)
        self._session = Session(
            self._state,
            write_model(training),
            write_model(evaluation),
            None if optimizer is None else write_model(optimizer),
            options,
        )
        self._profile(self._session._core.host)

    def get_modelmeta(self) -> ModelMetadata:
        self._opened()
        return super().get_modelmeta()

    # Steps.

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """Run one step: forward, backward and, when enough have been accumulated, the update.

        Parameters
        ----------
        output_names : sequence of str, optional
            Outputs of the model, `<weight>_grad` where `set_gradients_as_graph_outputs`; None: all.
        input_feed : dict of str to array_like
            The model's inputs, and the learning rate under `lr_params_feed_name` if there is an optimizer.
        run_options : dict or RunOptions, optional
            ``tag``, ``log_severity_level``, ``terminate``.
        """
        session, options = self._opened(), RunOptions._of(run_options)
        options._refuse_ema()
        feeds = {name: as_array(value) for name, value in input_feed.items()}
        rate = self._take_rate(feeds)
        names = texts("output_names", output_names) if output_names else [v.name for v in self.get_outputs()]
        with_gradients = self._parameters.set_gradients_as_graph_outputs
        gradients = {n + GRADIENT_SUFFIX: n for n in self._trained} if with_gradients else {}
        results = session.train_step(feeds, [n for n in names if n not in gradients], options)
        for name in names:
            if name in gradients:
                results[name] = np.array(self._state.parameters[gradients[name]].grad)
        self._micro_steps += 1
        if self._micro_steps % self._parameters.gradient_accumulation_steps == 0:
            if rate is not None:
                session.set_learning_rate(rate)
                session.optimizer_step()
            session.lazy_reset_grad()
        return [results[name] for name in names]

    def _take_rate(self, feeds: dict[str, Any]) -> float | None:
        """The learning rate, which is no feed any more; None without an optimizer."""
        if self._graphs[2] is None:
            return None
        name = self._parameters.lr_params_feed_name
        if name not in feeds:
            raise FeedError(f"The learning rate {name!r} is missing in the feeds.")
        return float(np.asarray(feeds.pop(name)).reshape(-1)[0])

    # State.

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """Weights by name, in the one group "full_precision".

        Parameters
        ----------
        include_mixed_precision_weights : bool
            Of no effect: there are none.
        """
        self._opened()
        flag("include_mixed_precision_weights", include_mixed_precision_weights)
        return {MODEL_GROUP: {name: p.data for name, p in self._state.parameters.items()}}

    def get_optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Moments and the update count by weight; empty without an optimizer."""
        self._opened()
        if self._graphs[2] is None:
            return {}
        contents = self._state._holder.contents()
        moments = {} if self._parameters.training_optimizer_name == "SGDOptimizer" else contents.moments
        return {
            weight: {MOMENTS[n]: to_numpy(t) for n, t in tensors.items()}
            | {UPDATE_COUNT: np.array([contents.step], np.int64)}
            for weight, tensors in moments.items()
        }

    def get_state(self) -> dict[str, np.ndarray]:
        """Weights and optimizer state, flat: "w", "Moment_1_w", "Moment_2_w", "Update_Count_w"."""
        flat = dict(self.get_model_state()[MODEL_GROUP])
        for weight, state in self.get_optimizer_state().items():
            flat |= {f"{name}_{weight}": array for name, array in state.items()}
        return flat

    def load_state(self, state: Mapping[str, Any], strict: bool = False) -> None:
        """Load what `get_state` returned; accumulated gradients are lost.

        Parameters
        ----------
        state : dict of str to ndarray
            What to load; other keys are left out.

        Raises
        ------
        CheckpointError
            A value of another type or shape, an update count below 0, or counts of weights that differ: one count is
            kept for all. With `strict`, a key that the session does not have. Nothing was changed.
        """
        session, known = self._opened(), self.get_state()
        strange = [key for key in mapping("state", state) if key not in known]
        if flag("strict", strict) and strange:
            raise CheckpointError(unknown("The key", strange[0], known))
        # Everything is checked before anything changes: a session survives what it refuses.
        values = {key: _of_type(key, value, known[key]) for key, value in state.items() if key in known}
        optimizer_state: dict[str, dict[str, Any]] = {}
        for key in [key for key in values if key not in self._state.parameters]:
            weight = next(w for w in self._trained if key.removesuffix(f"_{w}") in (*MOMENTS.values(), UPDATE_COUNT))
            optimizer_state.setdefault(weight, {})[key.removesuffix(f"_{weight}")] = values[key]
        _update_count(optimizer_state)
        session.release()
        for key in [key for key in values if key in self._state.parameters]:
            self._state.parameters[key].data = values[key]
        self._set_moments(optimizer_state)
        self._open()

    def _open_again(self) -> None:
        self._opened().release()
        self._open()

    def _set_moments(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        if not state:
            return
        contents, count = self._state._lent(), _update_count(state)
        moments = contents.moments
        for weight, values in state.items():
            if weight not in self._trained:
                raise CheckpointError(f"The optimizer state is for {weight!r}, which is not trained.")
            tensors = {n: from_numpy(n, values[old]) for n, old in MOMENTS.items() if old in values}
            moments[weight] = moments.get(weight, {}) | tensors
        contents.has_optimizer = True
        contents.step = contents.step if count is None else count
        contents.learning_rate, contents.schedule, contents.optimizer = DEFAULT_LEARNING_RATE, None, ""

    # Inputs and outputs.

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of `run`, with the learning rate last."""
        self._opened()
        inputs = [NodeArg.of(v) for v in self._inputs if v.name not in self._state.parameters]
        if self._graphs[2] is not None:
            inputs.append(NodeArg(self._parameters.lr_params_feed_name, "tensor(float)", [1]))
        return inputs

    def get_outputs(self) -> list[NodeArg]:
        self._opened()
        outputs = [NodeArg.of(self._values[name]) for name in self._outputs]
        if self._parameters.set_gradients_as_graph_outputs:
            weights = self._models.trainable
            outputs += [NodeArg(t.name + GRADIENT_SUFFIX, "tensor(float)", list(t.shape)) for t in weights]
        return outputs

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Return whether an output is float32.

        Parameters
        ----------
        output_name : str
            The output.
        """
        self._opened()
        return output_name in self._values and self._values[output_name].dtype == "float32"

    def get_partition_info_map(self) -> dict[str, Any]:
        """No weight is partitioned."""
        return {}

    def release(self) -> None:
        """Give kernel memory back."""
        if self._session is not None:
            self._session.release()


class TrainingSession(NativeTrainingSession):
    """Trains a forward model that has its loss as an output.

    Parameters
    ----------
    path_or_bytes : path, bytes or onnx.ModelProto
        The model.
    parameters : TrainingParameters
        The weights to train and the options of training.
    sess_options : SessionOptions or dict, optional
        See `SessionOptions`; with ``enable_profiling`` every run is timed, and `end_profiling` writes the trace.
    providers, provider_options : optional
        Execution providers, among them the CPU's; others are warned of.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        parameters: TrainingParameters,
        sess_options: SessionOptions | Mapping[str, Any] | None = None,
        providers: Any = None,
        provider_options: Any = None,
    ) -> None:
        super().__init__(sess_options)
        result = self._load(path_or_bytes, parameters, providers, provider_options)
        self.loss_scale_input_name = result.loss_scale_input_name


def _update_count(state: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The one update count of a state by weight; None where it has none."""
    counts: dict[int, str] = {}
    for weight, values in state.items():
        if UPDATE_COUNT not in values:
            continue
        array = np.asarray(values[UPDATE_COUNT])
        if array.size != 1 or array.dtype.kind not in "iu" or array.reshape(-1)[0] < 0:
            shown = f"{values[UPDATE_COUNT]!r:.80}"
            raise CheckpointError(f"The update count of {weight!r} is {shown}; it must be one integer of at least 0.")
        counts.setdefault(int(array.reshape(-1)[0]), weight)
    if len(counts) > 1:
        listed = ", ".join(f"{count} of {weight!r}" for count, weight in counts.items())
        raise CheckpointError(f"A session counts the updates of all weights at once; the state has {listed:.400}.")
    return next(iter(counts), None)


def _of_type(key: str, value: Any, wanted: np.ndarray) -> np.ndarray:
    """A value of a state, of the type and shape that the session has."""
    array = np.asarray(value)
    if key.startswith(UPDATE_COUNT) and array.size == 1 and array.dtype.kind in "iu":
        array = array.reshape(wanted.shape).astype(wanted.dtype)
    if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
        actual, expected = (f"{a.dtype}{list(a.shape)}" for a in (array, wanted))
        raise CheckpointError(f"The state's {key!r} is {actual}; the session has {expected}. Nothing was changed.")
    return array


def get_available_providers() -> list[str]:
    """Return the available execution providers: the CPU's."""
    return [CPU]


def get_all_providers() -> list[str]:
    """Execution providers that onnxruntime 1.19 knows."""
    return list(PROVIDERS)


def get_device() -> str:
    """Return the device of all computations."""
    return "CPU"


__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GradientGraphBuilder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NativeTrainingSession",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "TrainingConfigurationResult",
    "TrainingParameters",
    "TrainingSession",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_seed",
]
__dir__ = __all__.copy
