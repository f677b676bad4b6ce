"""Low-rank adapters for a forward model: the choice of modules, and checks of the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Annotated, Any

from trainweb import messages
from trainweb.arguments import check_settings, checks_keywords, instance_of
from trainweb.artifacts.recover import recover_parameters
from trainweb.autodiff.fake_quantization import refuse_rounding
from trainweb.errors import ModelError, UnsupportedError
from trainweb.generation.past import without_past
from trainweb.lora.adapted import LoraModel, owners
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import ALL_LINEAR, INITS, MERGE, LoraConfig, chosen, shown
from trainweb.lora.kinds import LINEAR, Layer, check_layer
from trainweb.lora.layers import computes_indices, default_targets, find_layers, is_stored_by_columns
from trainweb.lora.merge import lies_in, tied_layers, untied
from trainweb.model.floats import computed_in_float32
from trainweb.model.graph import Graph
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.settings import Choice, Count, Fraction, Modules, Positive, Seed, Text, YesNo
from trainweb.spelling import ARGUMENT


@checks_keywords
def inject(
    model: Any,
    targets: Annotated[Sequence[str] | str, Modules()] | None = None,
    rank: Count = 8,
    alpha: Positive | None = None,
    dropout: Fraction = 0.0,
    init: Annotated[str, Choice(("default", "gaussian"))] = "default",
    *,
    use_rslora: YesNo = False,
    use_dora: YesNo = False,
    modules_to_save: Annotated[Sequence[str] | str, Modules()] | None = None,
    seed: Seed = 0,
    base_model_name_or_path: Annotated[str, Text()] | None = None,
    task_type: Annotated[str, Text()] | None = None,
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
    use_rslora : bool
        Multiply the product by alpha / sqrt(rank) instead (https://arxiv.org/abs/2312.03732).
    use_dora : bool
        Also learn magnitudes of the columns of weights (DoRA, https://arxiv.org/abs/2402.09353).
    modules_to_save : names, optional
        Modules to train whole and to save with the adapters, such as a new head.
    seed : int
        Seed of the random numbers.
    base_model_name_or_path : str, optional
        Name or folder of the base at Hugging Face, which `save` notes for `AutoPeftModel` of PEFT.
    task_type : str, optional
        Task that `save` notes for it, such as "CAUSAL_LM".
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
    if held := [name for name in base.initializers if name.endswith(("lora_A.weight", "lora_embedding_A"))]:
        raise ModelError(
            f"The model has adapters already, such as {shown(held[0])}. Merge them before you export it, or leave out "
            f"'lora' and train them: {ARGUMENT.requires_grad} is ['.*lora_.*[AB].*']."
        )
    if not any(layer.kind is LINEAR for layer in find_layers(base)):
        refuse_rounding(reversed(base.nodes))
    of_peft = config is not None
    if config is None:
        alpha = rank if alpha is None else alpha
        config = LoraConfig((), rank, alpha, dropout, use_rslora, use_dora)
    elif targets is not None or modules_to_save:
        raise TypeError("'config' says what the targets and modules_to_save are: give it or them.")
    else:
        targets, modules_to_save = instance_of(LoraConfig, "config", config).targets or None, config.modules_to_save
    base_name = base_model_name_or_path or config.base_model_name_or_path
    config = replace(config, base_model_name_or_path=base_name, task_type=task_type or config.task_type)
    saved = chosen(modules_to_save, owners(base), "modules_to_save", of_peft=of_peft) if modules_to_save else []
    base = base if config.ensure_weight_tying else untied(base, saved)
    layers = find_layers(base)
    used = [layer for layer in _targeted(layers, targets, of_peft) if not lies_in(layer.module, saved)]
    if not used:
        raise ModelError("targets: modules_to_save has all of these modules, too. Such modules have no adapter.")
    config = replace(
        config,
        targets=config.targets or tuple(layer.module for layer in used),
        modules_to_save=config.modules_to_save or tuple(saved),
        fan_in_fan_out=config.fan_in_fan_out or any(is_stored_by_columns(base, layer) for layer in used),
    )
    for layer in used:
        check_layer(layer, config.of(layer.module), base.opset(""))
        if computes_indices(base, layer):
            raise UnsupportedError(
                f"An adapter of the table {layer.module!r} is not supported: {layer.module.rpartition('.')[2]!r} "
                "computes its indices, and PEFT would look up others. Name it in modules_to_save."
            )
        if config.ensure_weight_tying and len(tied_layers(layers, layer.weight)) > 1:
            raise UnsupportedError(
                f"ensure_weight_tying is not supported where the tied {layer.module!r} has an adapter.{MERGE}"
            )
    return LoraModel(base, used, config, init, seed)


def _targeted(layers: Sequence[Layer], targets: Sequence[str] | str | None, of_peft: bool) -> list[Layer]:
    """The layers that `targets` of `inject` stand for."""
    word = targets[0] if isinstance(targets, (list, tuple)) and len(targets) == 1 else targets
    if targets is None:
        wanted = default_targets(layers)
    elif isinstance(word, str) and word.lower() == ALL_LINEAR:
        wanted = default_targets(layers, {})
    else:
        wanted = chosen(targets, [layer.module for layer in layers], "targets", of_peft=of_peft)
    return [layer for layer in layers if layer.module in wanted]


def adapted_by(lora: Mapping[str, Any], model: Callable[[], Any]) -> LoraModel:
    """The model with the adapters that these settings ask for.

    Raise TypeError for an unknown name, and ModelError for a wrong value.
    """
    if not isinstance(lora, Mapping):
        raise messages.BAD_SETTING(name="lora", value=lora, expected="{'rank': 8}, or PEFT's {'adapter_config': TEXT}")
    settings = dict(lora)
    config, peft = settings.pop("config", None), settings.pop("adapter_config", None)
    if peft is not None:
        config = LoraConfig.from_peft(peft) if isinstance(peft, Mapping) else Adapter.parse_config(peft)
    check_settings("lora", settings, [*signature(inject).parameters, "adapter_config"])
    return inject(model(), config=config, **settings)
