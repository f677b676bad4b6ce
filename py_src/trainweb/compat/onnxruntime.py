"""`TrainingSession`, `TrainingParameters`, `GradientGraphBuilder`: the Python interface before onnxblock.

It served up to about onnxruntime-training 1.17: a forward model that ends in its loss is turned into a training graph
in the session itself, and one `run` is one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from trainweb.artifacts.builder import add_loss
from trainweb.artifacts.parameters import select_parameters
from trainweb.autodiff.gradient import GRADIENT_SUFFIX
from trainweb.checkpoint import Checkpoint
from trainweb.compat.gradient_graph import GradientGraphBuilder
from trainweb.errors import CheckpointError, FeedError, ModelError, UnsupportedError
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock import optim
from trainweb.onnxblock.context import accessing, restarted_names
from trainweb.onnxblock.models import build_training_models
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.parameters import OptimizerState
from trainweb.training.session import TrainingSession as Session
from trainweb.training.state import CheckpointState

MOMENTS = {"momentum0": "Moment_1", "momentum1": "Moment_2"}
"""Moments by their names in checkpoints and in this interface."""
UPDATE_COUNT = "Update_Count"
MODEL_GROUP = "full_precision"


@dataclass
class TrainingParameters:
    """How to train; attributes and defaults are those of onnxruntime.

    Those for several devices, for half precision and for trading time against memory must keep their defaults, or
    values that change no result.
    """

    loss_output_name: str = ""
    weights_to_train: set[str] = field(default_factory=set)
    weights_not_to_train: set[str] = field(default_factory=set)
    immutable_weights: dict[str, dict[int, float]] = field(default_factory=dict)
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
        """Start from these moments: {weight: {"Moment_1": array, "Moment_2": array, "Update_Count": int}}."""
        self.initial_state = {name: dict(moments) for name, moments in state.items()}

    def check(self) -> None:
        """Refuse what one device without half precision cannot do."""
        fixed = {
            "use_mixed_precision",
            "use_fp16_moments",
            "world_rank",
            "world_size",
            "data_parallel_size",
            "horizontal_parallel_size",
            "pipeline_parallel_size",
            "num_pipeline_micro_batches",
            "pipeline_cut_info_string",
            "deepspeed_zero_stage",
            "enable_adasum",
            "sliced_schema",
            "sliced_axes",
            "sliced_tensor_names",
        }
        default = TrainingParameters()
        for f in fields(self):
            if f.name in fixed and getattr(self, f.name) != getattr(default, f.name):
                raise UnsupportedError(
                    f"TrainingParameters.{f.name} is {getattr(self, f.name)!r}; only {getattr(default, f.name)!r} "
                    "is supported."
                )
        if self.gradient_accumulation_steps < 1:
            raise ModelError("gradient_accumulation_steps must be at least 1.")


@dataclass(frozen=True)
class NodeArg:
    """An input or output of the session."""

    name: str
    type: str
    shape: list[Any]


class TrainingSession:
    """Trains a forward model that has its loss as an output.

    Parameters
    ----------
    path_or_bytes : path, bytes or onnx.ModelProto
        The model.
    parameters : TrainingParameters
        What to train and how.
    sess_options, providers, provider_options
        Accepted and ignored.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        parameters: TrainingParameters,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
    ) -> None:
        parameters.check()
        self._parameters, self._options = parameters, sess_options
        base = read_model(path_or_bytes)
        self._outputs = [v.name for v in base.outputs]
        if parameters.loss_output_name not in self._outputs:
            raise ModelError(
                f"The loss {parameters.loss_output_name!r} is no output of the model; there are "
                f"{', '.join(self._outputs)}."
            )
        others = [name for name in self._outputs if name != parameters.loss_output_name]
        with restarted_names():
            graph = add_loss(base, None, [parameters.loss_output_name], others)
            self._models = build_training_models(graph, *self._weights(base, graph))
            optimizer = self._optimizer(graph)
        self._graphs = self._models.training, self._models.evaluation, optimizer
        self._inputs = [v for v in base.inputs if isinstance(v, Value)]
        self._values = {v.name: v for v in graph.outputs if isinstance(v, Value)}
        self._trained = [t.name for t in self._models.trainable]
        self._state = CheckpointState(Checkpoint(list(self._models.trainable), list(self._models.frozen)))
        self._micro_steps = 0
        self._set_moments(parameters.initial_state)
        self._open()

    # Making of.

    def _weights(self, base: Graph, graph: Graph) -> tuple[list[str], list[str]]:
        p = self._parameters
        constants = constants_to_initializers(base).initializers
        wanted = sorted(p.weights_to_train) if p.weights_to_train else None
        trainable = select_parameters(graph, base.initializers, constants, wanted, None).trainable
        fixed = set(p.weights_not_to_train)
        for node in base.nodes:
            fixed.update(node.inputs[i] for i in p.immutable_weights.get(node.op_type, ()) if i < len(node.inputs))
        return [name for name in trainable if name not in fixed], []

    def _optimizer(self, graph: Graph) -> Graph | None:
        p = self._parameters
        if not p.training_optimizer_name:
            return None
        block: optim.AdamW | optim.SGD
        if p.training_optimizer_name == "SGDOptimizer":
            block = optim.SGD()
        elif p.training_optimizer_name == "AdamOptimizer":
            block = self._adam()
        else:
            raise UnsupportedError(
                f"Optimizer {p.training_optimizer_name!r} is not supported; "
                "there are 'SGDOptimizer' and 'AdamOptimizer'.",
                op=p.training_optimizer_name,
                domain="com.microsoft",
            )
        with accessing(Graph("optimizer", opsets={"": graph.opsets.get("", 1), "com.microsoft": 1})):
            block((self._models.trainable, self._models.frozen))
        return block.graph

    def _adam(self) -> optim.AdamW:
        attributes: dict[str, float] = {}
        for mapping in (self._parameters.optimizer_attributes_map, self._parameters.optimizer_int_attributes_map):
            kinds = [dict(sorted(a.items())) for a in mapping.values()]
            if any(kind != kinds[0] for kind in kinds):
                raise UnsupportedError("Optimizer attributes that differ between weights are not supported.")
            attributes |= kinds[0] if kinds else {}
        if attributes.get("weight_decay_mode", 0):
            raise UnsupportedError("AdamOptimizer with weight_decay_mode 1 is not supported.")
        clip = None
        if self._parameters.enable_grad_norm_clip:
            clip = optim.ClipGradNorm(attributes.get("max_norm_clip", 1.0))
        return optim.AdamW(
            bool(attributes.get("do_bias_correction", 1)),
            (attributes.get("alpha", 0.9), attributes.get("beta", 0.999)),
            attributes.get("epsilon", 1e-8),
            attributes.get("lambda", 0.0),
            clip,
            adam_mode=0 if attributes.get("do_bias_correction", 1) else 1,
        )

    def _open(self) -> None:
        training, evaluation, optimizer = self._graphs
        self._session = Session(
            self._state,
            write_model(training),
            write_model(evaluation),
            None if optimizer is None else write_model(optimizer),
        )

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
        run_options
            Accepted and ignored.
        """
        feeds = dict(input_feed)
        if self._graphs[2] is not None:
            name = self._parameters.lr_params_feed_name
            if name not in feeds:
                raise FeedError(f"The learning rate {name!r} is missing in the feeds.")
            self._session.set_learning_rate(float(np.asarray(feeds.pop(name)).reshape(-1)[0]))
        names = [v.name for v in self.get_outputs()] if output_names is None else list(output_names)
        gradients = {n + GRADIENT_SUFFIX: n for n in self._trained} if self._gradients_are_outputs else {}
        results = self._session.train_step(feeds, [n for n in names if n not in gradients])
        for name in names:
            if name in gradients:
                results[name] = np.asarray(self._state.parameters[gradients[name]].grad)
        self._micro_steps += 1
        if self._micro_steps % self._parameters.gradient_accumulation_steps == 0:
            if self._graphs[2] is not None:
                self._session.optimizer_step()
            self._session.lazy_reset_grad()
        return [results[name] for name in names]

    @property
    def _gradients_are_outputs(self) -> bool:
        return self._parameters.set_gradients_as_graph_outputs

    # State.

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """Weights by name, in the one group "full_precision"."""
        return {MODEL_GROUP: {name: p.data for name, p in self._state.parameters.items()}}

    def get_optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Moments and the update count by weight; empty without an optimizer."""
        if self._graphs[2] is None:
            return {}
        optimizer = self._state.optimizer
        adam = self._parameters.training_optimizer_name == "AdamOptimizer"
        moments = optimizer.moments if adam else {}
        return {
            weight: {MOMENTS[n]: to_numpy(t) for n, t in tensors.items()}
            | {UPDATE_COUNT: np.array([optimizer.step], np.int64)}
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

        Raises
        ------
        CheckpointError
            With `strict`, a key that the session does not have.
        """
        known = set(self.get_state())
        unknown = [key for key in state if key not in known]
        if strict and unknown:
            raise CheckpointError(f"The session has no {', '.join(unknown)}.")
        self._session.release()
        optimizer_state: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            for weight in self._trained:
                if key.removesuffix(f"_{weight}") in (*MOMENTS.values(), UPDATE_COUNT):
                    optimizer_state.setdefault(weight, {})[key.removesuffix(f"_{weight}")] = value
            if key in self._state.parameters:
                self._state.parameters[key].data = np.asarray(value)
        self._set_moments(optimizer_state)
        self._open()

    def _set_moments(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        if not state:
            return
        optimizer = self._state.optimizer
        moments, steps = optimizer.moments, {optimizer.step}
        for weight, values in state.items():
            if weight not in self._trained:
                raise CheckpointError(f"The optimizer state is for {weight!r}, which is not trained.")
            found = {n: from_numpy(n, values[old]) for n, old in MOMENTS.items() if old in values}
            moments[weight] = moments.get(weight, {}) | found
            if UPDATE_COUNT in values:
                steps = {int(np.asarray(values[UPDATE_COUNT]).reshape(-1)[0])}
        self._state.lent().optimizer = OptimizerState(steps.pop(), optimizer.initial_lr, moments)

    # What an InferenceSession has.

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of `run`, with the learning rate last."""
        inputs = [_node_arg(v) for v in self._inputs if v.name not in self._state.parameters]
        if self._graphs[2] is not None:
            inputs.append(NodeArg(self._parameters.lr_params_feed_name, "tensor(float)", [1]))
        return inputs

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of `run`."""
        outputs = [_node_arg(self._values[name]) for name in self._outputs]
        if self._gradients_are_outputs:
            weights = self._models.trainable
            outputs += [NodeArg(t.name + GRADIENT_SUFFIX, "tensor(float)", list(t.shape)) for t in weights]
        return outputs

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Whether an output is float32."""
        return output_name in self._values and self._values[output_name].dtype == "float32"

    def get_partition_info_map(self) -> dict[str, Any]:
        """No weight is partitioned."""
        return {}

    def get_providers(self) -> list[str]:
        """The one place computations run."""
        return ["CPUExecutionProvider"]

    def get_session_options(self) -> Any:
        """The options given."""
        return self._options

    def release(self) -> None:
        """Give kernel memory back."""
        self._session.release()


def _node_arg(value: Value) -> NodeArg:
    names = {"float32": "float", "float64": "double"}
    return NodeArg(value.name, f"tensor({names.get(value.dtype, value.dtype)})", list(value.shape or ()))


__all__ = ["GradientGraphBuilder", "NodeArg", "TrainingParameters", "TrainingSession"]
