"""A forward model with adapters: its artifacts, what they learned, and the model with that merged in."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainweb.arguments import checks_keywords, instance_of
from trainweb.artifacts.evidence import signature
from trainweb.artifacts.recover import recover_parameters
from trainweb.errors import CheckpointError, ModelError, UnsupportedError
from trainweb.generation.past import refuse_integers, without_past
from trainweb.lora.adapted import AdaptedModel, Source
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import ALL_LINEAR, INITS, MERGE, LoraConfig, chosen, listed, shown
from trainweb.lora.kinds import LINEAR, Layer, add_adapter, check_layer, start_values
from trainweb.lora.layers import default_targets, find_layers, is_stored_by_columns
from trainweb.lora.merge import column_norms, merged_weights
from trainweb.lora.tied import lies_in, tied_layers, untied
from trainweb.model.floats import OTHER_FLOATS, computed_in_float32, converted, declared_type, stored_type
from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers

if TYPE_CHECKING:
    from trainweb.lora.prompt_config import PromptConfig

BASE_LAYER = ".base_layer."
"""In PEFT's keys of base weights, which it saves along with adapters of embeddings."""


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
        last parts ("q_proj"), a str may be a regular expression for whole names too, as in PEFT. "all-linear" is all
        products but the last. None: the attention projections that PEFT adapts in the architecture (q_proj and v_proj,
        query and value, c_attn, ...), found by their names; in a model without such names all products but the last.
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
    if not any(layer.kind is LINEAR for layer in find_layers(base)):
        refuse_integers(base)
    of_peft = config is not None
    if config is None:
        alpha = rank if alpha is None else alpha
        config = LoraConfig((), rank, alpha, dropout, use_rslora, use_dora)
    elif targets is not None or modules_to_save:
        raise TypeError("'config' says what the targets and modules_to_save are: give it or them.")
    else:
        targets, modules_to_save = instance_of(LoraConfig, "config", config).targets or None, config.modules_to_save
    whole = chosen(modules_to_save, _owners(base), "modules_to_save", of_peft=of_peft) if modules_to_save else []
    base = base if config.ensure_weight_tying else untied(base, whole)
    layers = find_layers(base)
    used = [layer for layer in _targeted(base, layers, targets, of_peft) if not lies_in(layer.module, whole)]
    if not used:
        raise ModelError("targets: modules_to_save has all of these modules, too. Such modules have no adapter.")
    config = replace(
        config,
        targets=config.targets or tuple(layer.module for layer in used),
        modules_to_save=config.modules_to_save or tuple(whole),
        fan_in_fan_out=config.fan_in_fan_out or any(is_stored_by_columns(base, layer) for layer in used),
    )
    for layer in used:
        check_layer(layer, config.of(layer.module), base.opset(""))
        if config.ensure_weight_tying and len(tied_layers(layers, layer.weight)) > 1:
            raise UnsupportedError(
                f"ensure_weight_tying is not supported where the tied {layer.module!r} has an adapter.{MERGE}"
            )
    return LoraModel(base, used, config, init, seed)


def _targeted(base: Graph, layers: Sequence[Layer], targets: Sequence[str] | str | None, of_peft: bool) -> list[Layer]:
    """The layers that `targets` of `inject` stand for."""
    word = targets[0] if isinstance(targets, (list, tuple)) and len(targets) == 1 else targets
    if targets is None:
        wanted = default_targets(base, layers)
    elif isinstance(word, str) and word.lower() == ALL_LINEAR:
        wanted = default_targets(base, layers, {})
    else:
        wanted = chosen(targets, [layer.module for layer in layers], "targets", of_peft=of_peft)
    return [layer for layer in layers if layer.module in wanted]


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
        saved, every = config.modules_to_save, find_layers(base)
        whole = chosen(saved, _owners(base), "modules_to_save", of_peft=True) if saved else []
        shared = {x.weight for x in every if lies_in(x.module, whole) and len(tied_layers(every, x.weight)) > 1}
        buffers = {name for kind, name in signature(base).values() if kind == "BUFFER"}
        self._whole = [
            name
            for name, tensor in base.initializers.items()
            if tensor.dtype == "float32" and name not in buffers and (lies_in(name, whole) or name in shared)
        ]
        for layer in every:
            if lies_in(layer.module, whole) and layer.weight not in self._whole:
                raise UnsupportedError(
                    f"{layer.module!r} of modules_to_save cannot be saved: its weight is {shown(layer.weight)} in the "
                    "file, not a parameter of the module. Export it with dynamo=True, in float32."
                )
        self._weights = {f"{x.module}.weight": x.weight for x in every}
        self._copies = {n: w for n, w in self._weights.items() if w in shared and n != w}
        self._columns_first = {
            x.weight for x in every if x.kind is LINEAR and not x.rows_first and not is_stored_by_columns(base, x)
        }
        rng = random.Random(seed)
        tensors = [t for x in self.layers for t in start_values(x, config.of(x.module), init, rng)]
        self.start = {t.name: t for t in tensors}
        if config.use_dora:
            self.start |= column_norms(base, layers, config)
        self.parameter_names = [*self.start, *self._whole]
        self.graph.initializers |= self.start
        self._stopped = [n for x in self.layers for n in add_adapter(self.graph, x, config.of(x.module))]

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
        for module in (layer.module for layer in self.layers):
            given, own = config.of(module), self.config.of(module)
            if given.scaling != own.scaling or given.use_dora != own.use_dora:
                raise CheckpointError(
                    f"The adapter of {module!r} was made with alpha {given.alpha:g} and rank {given.rank}, scaling "
                    f"{given.scaling:g}; this model has {own.scaling:g}. Inject its own config."
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

    def _base_of(self, name: str) -> str | None:
        own = name.replace(BASE_LAYER, ".")
        own = self._weights.get(own, own)
        return own if own in self.base.initializers and name not in self.parameter_names else None

    def _check_base(self, name: str, own: str, tensors: Mapping[str, Tensor]) -> None:
        base, is_tied = self.base.initializers[own], own in self._whole
        if base.dtype != "float32":
            return  # a quantized weight, which only resembles that of the file
        if not _is_rounded(tensors[name], tensors[own] if is_tied else self._turned(base)):
            wanted = f"equal to {shown(own)}, which is tied to it" if is_tied else "the weight that this base model has"
            raise CheckpointError(f"{shown(name)} of the adapter is not {wanted}.")


def _is_rounded(tensor: Tensor, base: Tensor) -> bool:
    """True where one tensor is the other, or rounds to it in the type that it is stored in."""
    if tensor.shape != base.shape or tensor.dtype not in ("float32", *OTHER_FLOATS):
        return False
    types = dict.fromkeys((base.dtype, tensor.dtype, stored_type(base), declared_type(base)))
    return any(bytes(converted(tensor, t).data) == bytes(converted(base, t).data) for t in types)


def _owners(graph: Graph) -> list[str]:
    """Modules that have parameters, and the modules that these lie in."""
    owners: dict[str, None] = {}
    names = [name for name, tensor in graph.initializers.items() if tensor.dtype == "float32"]
    layers = find_layers(graph)
    for name in [
        *names,
        *(f"{x.module}.weight" for x in layers if x.weight in names and tied_layers(layers, x.weight)[1:]),
    ]:
        while "." in name:
            name = name.rpartition(".")[0]
            owners[name] = None
    return list(owners)
