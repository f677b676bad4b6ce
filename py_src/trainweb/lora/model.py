"""A forward model with adapters: its artifacts, what they learned, and the model with that merged in."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainweb.arguments import checks_keywords, instance_of
from trainweb.artifacts.recover import recover_parameters
from trainweb.errors import CheckpointError, ModelError, UnsupportedError
from trainweb.generation.past import refuse_integers, without_past
from trainweb.lora.adapted import AdaptedModel, Source
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import INITS, LoraConfig, chosen, listed, shown
from trainweb.lora.inject import add_adapter, check_layer, start_values
from trainweb.lora.kinds import LINEAR, Layer
from trainweb.lora.layers import default_targets, find_layers, is_stored_by_columns
from trainweb.lora.merge import column_norms, merged_weights
from trainweb.model.floats import computed_in_float32
from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers

if TYPE_CHECKING:
    from trainweb.lora.prompt_config import PromptConfig

BASE_LAYER = ".base_layer.weight"
"""End of PEFT's key of a base weight, which it saves along with adapters of embeddings."""


@checks_keywords
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
        raise ModelError(f"init is {shown(init)}; it must be one of {', '.join(INITS)}.")
    graph = model if isinstance(model, Graph) else read_model(model)
    graph = without_past(graph)
    base = recover_parameters(constants_to_initializers(computed_in_float32(graph)))
    layers = find_layers(base)
    if not any(layer.kind is LINEAR for layer in layers):
        refuse_integers(base)
    if config is None:
        whole = chosen(modules_to_save, _owners(base), "modules_to_save") if modules_to_save else []
        alpha = rank if alpha is None else alpha
        config = LoraConfig((), rank, alpha, dropout, use_rslora, use_dora, tuple(whole))
    elif targets is not None or modules_to_save:
        raise TypeError("'config' says what the targets and modules_to_save are: give it or them.")
    else:
        targets = instance_of(LoraConfig, "config", config).targets or None
    every = [layer.module for layer in layers]
    wanted = default_targets(base, layers) if targets is None else chosen(targets, every, "targets")
    used = [layer for layer in layers if layer.module in wanted]
    by_columns = config.fan_in_fan_out or any(is_stored_by_columns(base, layer) for layer in used)
    names = config.targets or tuple(layer.module for layer in used)
    config = replace(config, targets=names, fan_in_fan_out=by_columns)
    for layer in used:
        check_layer(layer, config, base.opset(""))
    return LoraModel(base, used, config, init, seed)


@checks_keywords
class LoraModel(AdaptedModel):
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
    config : LoraConfig
        The settings of the adapters.
    layers : list of Layer
        What is adapted.
    """

    config: LoraConfig

    def __init__(self, base: Graph, layers: list[Layer], config: LoraConfig, init: str, seed: int) -> None:
        self.base, self.config = base, config
        self.graph = base.copy()
        # The layers point to nodes of the base, which stays as it is.
        nodes = dict(zip(map(id, base.nodes), self.graph.nodes, strict=True))
        self.layers = [replace(layer, sites=[nodes[id(n)] for n in layer.sites]) for layer in layers]
        self._base_layers = layers
        owners = _owners(base)
        whole = chosen(config.modules_to_save, owners, "modules_to_save", any_of=True) if config.modules_to_save else []
        self._whole = [
            name
            for name, tensor in base.initializers.items()
            if tensor.dtype == "float32" and any(name.startswith(f"{module}.") for module in whole)
        ]
        turned = {
            x.weight
            for x in find_layers(base)
            if x.kind is LINEAR and not x.rows_first and not is_stored_by_columns(base, x)
        }
        self._columns_first = turned.intersection(self._whole)
        rng = random.Random(seed)
        tensors = [t for layer in self.layers for t in start_values(layer, config, init, rng)]
        self.start = {t.name: t for t in tensors}
        if config.use_dora:
            self.start |= column_norms(base, layers, config)
        self.parameter_names = [*self.start, *self._whole]
        self.graph.initializers |= self.start
        self._stopped = [name for layer in self.layers for name in add_adapter(self.graph, layer, config)]

    def merged(self, source: Source | Adapter) -> Graph:
        """Make the graph that `merge` writes.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        """
        held = self._held(source)
        packed = [f"{x.module} ({x.stored})" for x in self.layers if x.stored]
        if packed:
            raise UnsupportedError(
                f"An adapter cannot be merged into a weight of fewer bits than float32 has: {listed(packed)}. Merge it "
                "into the model in float32, inject(model, config=adapter.config).merge(adapter), and quantize that."
            )
        return merged_weights(self.base, self._base_layers, self.config, held)

    def _check_config(self, config: LoraConfig | PromptConfig) -> None:
        assert isinstance(config, LoraConfig)  # its tensors have names of LoRA
        if config.scaling != self.config.scaling or config.use_dora != self.config.use_dora:
            raise CheckpointError(
                f"The adapter was made with alpha {config.alpha:g} and rank {config.rank}, scaling "
                f"{config.scaling:g}; this model has {self.config.scaling:g}. Inject its own config."
            )

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
        """True for a weight of the base, which PEFT saves beside adapters of embeddings."""
        if not name.endswith(BASE_LAYER):
            return False
        layer = next((x for x in self.layers if x.module == name.removesuffix(BASE_LAYER)), None)
        own = self.base.initializers[layer.weight] if layer is not None else None
        if own is None or own.shape != tensor.shape or bytes(own.data) != bytes(tensor.data):
            raise CheckpointError(f"{shown(name)} of the adapter is not the weight that this base model has.")
        return True


def _owners(graph: Graph) -> list[str]:
    """Modules that have parameters, and the modules that these lie in."""
    owners: dict[str, None] = {}
    for name, tensor in graph.initializers.items():
        while tensor.dtype == "float32" and "." in name:
            name = name.rpartition(".")[0]
            owners[name] = None
    return list(owners)
