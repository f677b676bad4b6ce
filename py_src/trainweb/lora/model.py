"""A forward model with adapters: its artifacts, what they learned, and the model with that merged in."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainweb.arguments import instance_of
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.artifacts.evidence import Evidence
from trainweb.artifacts.recover import recover_parameters
from trainweb.checkpoint import write_file_atomically
from trainweb.errors import CheckpointError, ModelError
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import INITS, LoraConfig, chosen
from trainweb.lora.inject import add_adapter, check_layer, start_values
from trainweb.lora.layers import LINEAR, Layer, default_targets, find_layers
from trainweb.lora.merge import column_norms, merged_weights
from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.training.parameters import ParameterStore
from trainweb.training.state import CheckpointState

if TYPE_CHECKING:
    from trainweb.training.session import TrainingSession

Source: TypeAlias = "TrainingSession | CheckpointState | ParameterStore"
"""Who has the parameters."""

BASE_LAYER = ".base_layer.weight"
"""End of PEFT's key of a base weight, which it saves along with adapters of embeddings."""


def inject(
    model: Any,
    targets: Sequence[str] | str | None = None,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    init: str = "default",
    *,
    use_rslora: bool = False,
    use_dora: bool = False,
    modules_to_save: Sequence[str] | str = (),
    seed: int = 0,
    config: LoraConfig | None = None,
) -> LoraModel:
    """Put low-rank adapters beside weights of a forward model.

    Parameters
    ----------
    model : bytes, path, onnx.ModelProto or Graph
        The forward model, without a loss.
    targets : names or regular expression, optional
        Modules to adapt: products (MatMul, Gemm), convolutions, embedding tables (Gather). A list has names or their
        last parts ("q_proj"), a str may be a regular expression for whole names too, as in PEFT. None: the attention
        projections that PEFT adapts in the architecture (q_proj and v_proj, query and value, c_attn, ...), found by
        their names; in a model without such names all products but the last.
    rank : int
        Rank of the product B A.
    alpha : float, optional
        The product is multiplied by alpha / rank. `rank` by default.
    dropout : float
        Probability with which an element of an adapter's input is zero in training steps.
    init : {"default", "gaussian"}
        How A is drawn: uniform within 1 / sqrt(inputs), or normal with deviation 1 / rank. B starts as zero.
    use_rslora, use_dora, modules_to_save
        See `LoraConfig`.
    seed : int
        Of the numbers that are drawn.
    config : LoraConfig, optional
        All of it at once, as `Adapter.load(...).config` has it; then `targets` to `modules_to_save` are not given.

    Returns
    -------
    LoraModel

    Raises
    ------
    ModelError
        The model is malformed, there is no such module, or a setting is out of range.
    UnsupportedError
        A module cannot be adapted in this way.
    """
    if init not in INITS:
        raise ModelError(f"init is {init!r}; it must be one of {', '.join(INITS)}.")
    graph = model if isinstance(model, Graph) else read_model(model)
    base = recover_parameters(constants_to_initializers(graph))
    layers = find_layers(base)
    modules = [layer.module for layer in layers]
    if config is not None:
        instance_of(LoraConfig, "config", config)
    if config is None:
        wanted = default_targets(layers) if targets is None else chosen(targets, modules, "targets")
        whole = chosen(modules_to_save, _owners(base), "modules_to_save") if modules_to_save else []
        alpha = rank if alpha is None else alpha
        config = LoraConfig(tuple(wanted), rank, alpha, dropout, use_rslora, use_dora, tuple(whole))
    elif targets is not None or modules_to_save:
        raise TypeError("'config' says what the targets and modules_to_save are: give it or them.")
    adapted = set(chosen(config.targets, modules, "targets"))
    used = [layer for layer in layers if layer.module in adapted]
    for layer in used:
        check_layer(layer, config, base.opset(""))
    return LoraModel(base, used, config, init, seed)


class LoraModel:
    """A forward model and its adapters.

    Parameters
    ----------
    init : str
        How adapters start; see `inject`.
    seed : int
        Of their random numbers.

    Attributes
    ----------
    base : Graph
        The model without adapters.
    graph : Graph
        The model with adapters, whose parameters have PEFT's names.
    layers : list of Layer
        What is adapted.
    config : LoraConfig
        With what.
    parameter_names : list of str
        What is trained: the adapters, and the parameters of `modules_to_save`.
    """

    def __init__(self, base: Graph, layers: list[Layer], config: LoraConfig, init: str, seed: int) -> None:
        self.base, self.config = base, config
        self.graph = base.copy()
        # The layers point to nodes of the base, which stays as it is.
        nodes = dict(zip(map(id, base.nodes), self.graph.nodes, strict=True))
        self.layers = [
            Layer(x.module, x.kind, x.weight, x.rows_first, x.shape, x.group, [nodes[id(n)] for n in x.sites])
            for x in layers
        ]
        self._base_layers = layers
        whole = chosen(config.modules_to_save, _owners(base), "modules_to_save") if config.modules_to_save else []
        self._whole = [name for name in base.initializers if name.rpartition(".")[0] in whole]
        turned = {x.weight for x in find_layers(base) if x.kind == LINEAR and not x.rows_first}
        self._columns_first = turned.intersection(self._whole)
        rng = random.Random(seed)
        tensors = [t for layer in self.layers for t in start_values(layer, config, init, rng)]
        self.start = {t.name: t for t in tensors}
        if config.use_dora:
            self.start |= column_norms(base, layers, config)
        self.parameter_names = [*self.start, *self._whole]
        self.graph.initializers |= self.start
        self._stopped = [name for layer in self.layers for name in add_adapter(self.graph, layer, config)]

    def build_artifacts(self, **arguments: Any) -> Artifacts:
        """`trainweb.artifacts.build_artifacts` for the adapters alone: the base is frozen.

        Parameters
        ----------
        **arguments
            `loss`, `optimizer` and the others, but not `requires_grad` and `frozen_params`.
        """
        for name in ("model", "requires_grad", "frozen_params"):
            if name in arguments:
                raise TypeError(f"{name!r} is not an argument here: the adapters are trained, and the base is frozen.")
        stopped = [*self._stopped, *(arguments.pop("stop_gradient", None) or ())]
        return build_artifacts(
            self.graph,
            requires_grad=self.parameter_names,
            frozen_params=self._frozen(),
            stop_gradient=stopped or None,
            **arguments,
        )

    def _frozen(self) -> list[str]:
        """Parameters of the base, which stay apart from the models in the checkpoint."""
        evidence, trained = Evidence(self.base, self.base.initializers), set(self._whole)
        tensors = [t for t in self.base.initializers.values() if t.dtype == "float32" and t.name not in trained]
        return [t.name for t in tensors if evidence.decide(t).trained]

    def adapter(self, source: Source | None = None) -> Adapter:
        """What a session or a checkpoint learned; without one, what training starts from.

        Parameters
        ----------
        source : TrainingSession or CheckpointState, optional
            Who learned.
        """
        held = {n: self._read(n, source) for n in self.parameter_names}
        return Adapter({n: self._turned(t) for n, t in held.items()}, self.config)

    def load_adapter(self, target: Source, adapter: Adapter) -> None:
        """Go on with another adapter of the same targets and rank; nothing is compiled again, and moments stay.

        Parameters
        ----------
        target : TrainingSession or CheckpointState
            Who goes on with it.
        adapter : Adapter
            What is loaded.

        Raises
        ------
        CheckpointError
            It has other modules, another rank or another scaling.
        """
        tensors = {n: t for n, t in instance_of(Adapter, "adapter", adapter).tensors.items() if not self._is_base(n, t)}
        expected = {n: self._turned(self._start(n)).shape for n in self.parameter_names}
        if set(tensors) != set(expected):
            missing, more = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
            said = [f"{what} {names[0]!r}" for what, names in (("lacks", missing), ("has", more)) if names]
            raise CheckpointError(f"The adapter is of another model: it {' and '.join(said)}.")
        if adapter.config.scaling != self.config.scaling or adapter.config.use_dora != self.config.use_dora:
            raise CheckpointError(
                f"The adapter was made with alpha {adapter.config.alpha:g} and rank {adapter.config.rank}, scaling "
                f"{adapter.config.scaling:g}; this model has {self.config.scaling:g}. Inject its own config."
            )
        for name, tensor in tensors.items():
            if tensor.dtype != "float32" or tensor.shape != expected[name]:
                raise CheckpointError(
                    f"{name!r} of the adapter is {tensor.dtype}{list(tensor.shape)}, not float32{list(expected[name])}."
                )
        for tensor in tensors.values():
            _set(target, self._turned(tensor))

    def merge(self, source: Source | Adapter, path: str | Path | None = None) -> bytes | None:
        """The forward model with what was learned added to its weights: written to `path`, or returned as bytes.

        The same computation as with adapters, to rounding; there are no adapters in it.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        path : path, optional
            The file to write.
        """
        data = write_model(self.merged(source))
        if path is None:
            return data
        write_file_atomically(Path(path), data)
        return None

    def merged(self, source: Source | Adapter) -> Graph:
        """What `merge` writes, as a graph.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        """
        if isinstance(source, Adapter):
            held = {n: self._turned(t) for n, t in source.tensors.items() if not self._is_base(n, t)}
        else:
            held = {n: self._read(n, source) for n in self.parameter_names}
        return merged_weights(self.base, self._base_layers, self.config, held)

    def _start(self, name: str) -> Tensor:
        return self.start[name] if name in self.start else self.base.initializers[name]

    def _read(self, name: str, source: Source | None) -> Tensor:
        if source is None:
            return self._start(name)
        store = source.store if isinstance(source, CheckpointState) else source
        if isinstance(store, ParameterStore):
            return store.get(name)
        return _session("source", store).core.get_parameter(name)

    def _turned(self, tensor: Tensor) -> Tensor:
        """A weight of `modules_to_save` as PyTorch has it, (out, in), or back."""
        if tensor.name not in self._columns_first:
            return tensor
        rows, width = tensor.shape
        values = array("f", bytes(tensor.data))
        turned = array("f")
        for column in range(width):
            turned += values[column::width]
        return Tensor(tensor.name, tensor.dtype, (width, rows), turned.tobytes())

    def _is_base(self, name: str, tensor: Tensor) -> bool:
        """Whether it is a weight of the base, which PEFT saves beside adapters of embeddings."""
        if not name.endswith(BASE_LAYER):
            return False
        layer = next((x for x in self.layers if x.module == name.removesuffix(BASE_LAYER)), None)
        own = self.base.initializers[layer.weight] if layer is not None else None
        if own is None or own.shape != tensor.shape or bytes(own.data) != bytes(tensor.data):
            raise CheckpointError(f"{name!r} of the adapter is not the weight that this base model has.")
        return True


def _owners(graph: Graph) -> list[str]:
    """Modules that have parameters."""
    return list(dict.fromkeys(n.rpartition(".")[0] for n, t in graph.initializers.items() if t.dtype == "float32"))


def _set(target: Source, tensor: Tensor) -> None:
    store = target.store if isinstance(target, CheckpointState) else target
    if isinstance(store, ParameterStore):
        store.set(tensor)
    else:
        _session("target", store).core.update_parameter(tensor)


def _session(name: str, given: object) -> TrainingSession:
    from trainweb.training.session import TrainingSession  # it needs numpy

    return instance_of(TrainingSession, name, given)
