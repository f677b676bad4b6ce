"""A forward model with adapters: its artifacts, what they learned, and the model with that merged in."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainweb.arguments import checks_keywords, instance_of
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.artifacts.evidence import Evidence, signature
from trainweb.checkpoint import written
from trainweb.checkpoint.contents import ParameterHolder
from trainweb.errors import CheckpointError, UnsupportedError
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import NOTES, LoraConfig, chosen, listed, shown
from trainweb.lora.kinds import LINEAR, Layer, add_adapter, start_values
from trainweb.lora.layers import find_layers, is_stored_by_columns
from trainweb.lora.merge import column_norms, lies_in, merged_weights, tied_layers
from trainweb.model.floats import OTHER_FLOATS, converted, declared_type, stored_type
from trainweb.model.graph import Graph, Tensor
from trainweb.model.writer import write_model
from trainweb.onnxblock.transforms import all_statistics
from trainweb.spelling import ARGUMENT
from trainweb.training.state import CheckpointState

if TYPE_CHECKING:
    from trainweb.training.session_methods import SessionMethods

Source: TypeAlias = "SessionMethods | CheckpointState | ParameterHolder"
"""Holder of the parameters."""
BASE_LAYER = ".base_layer."
"""In PEFT's keys of base weights, which it saves along with adapters of embeddings."""


@checks_keywords
class LoraModel:
    """A frozen forward model and its adapters; `inject` makes it.

    Parameters
    ----------
    base : Graph
        The model without adapters.
    layers : list of Layer
        What is adapted.
    config : LoraConfig
        The settings of the adapters.
    init : str
        How adapters start; see `inject`.
    seed : int
        Of their random numbers.

    Attributes
    ----------
    base, config, layers
        As given; `layers` have nodes of `graph`.
    graph : Graph
        The model with its adapters, whose parameters have PEFT's names.
    start : dict of str to Tensor
        New parameters, as training starts from them.
    parameter_names : list of str
        Trained parameters: the adapters, and the parameters of `modules_to_save`.
    """

    def __init__(self, base: Graph, layers: list[Layer], config: LoraConfig, init: str, seed: int) -> None:
        self.base, self.config = base, config
        self.graph = base.copy()
        # The layers point to nodes of the base, which stays as it is.
        nodes = dict(zip(map(id, base.nodes), self.graph.nodes, strict=True))
        self.layers = [replace(layer, sites=[nodes[id(n)] for n in layer.sites]) for layer in layers]
        self._base_layers = layers
        saved, every = config.modules_to_save, find_layers(base)
        saved_modules = chosen(saved, owners(base), "modules_to_save", of_peft=True) if saved else []
        shared = {x.weight for x in every if lies_in(x.module, saved_modules) and len(tied_layers(every, x.weight)) > 1}
        self._statistics = all_statistics(base) & base.initializers.keys()
        """Running statistics. PEFT saves those of `modules_to_save`, and merges into a model that has all."""
        self._saved = [name for name in base.initializers if name in self._statistics and lies_in(name, saved_modules)]
        buffers = {name for kind, name in signature(base).values() if kind == "BUFFER"} | self._statistics
        self._whole = [
            name
            for name, tensor in base.initializers.items()
            if tensor.dtype == "float32" and name not in buffers and (lies_in(name, saved_modules) or name in shared)
        ]
        for layer in every:
            if lies_in(layer.module, saved_modules) and layer.weight not in self._whole:
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

    def build_artifacts(self, **arguments: Any) -> Artifacts:
        """Run `trainweb.artifacts.build_artifacts` for only the adapters: the base is frozen.

        Parameters
        ----------
        **arguments
            `loss`, `optimizer` and the others, but not `requires_grad` and `frozen_params`.
        """
        return build_artifacts(**arguments_of(self, arguments))

    def _frozen(self) -> list[str]:
        """Parameters of the base, which stay apart from the models in the checkpoint."""
        evidence, trained = Evidence(self.base, self.base.initializers), set(self._whole)
        tensors = [t for t in self.base.initializers.values() if t.dtype == "float32" and t.name not in trained]
        return [t.name for t in tensors if evidence.decide(t).trained]

    def adapter(self, source: Source | None = None) -> Adapter:
        """Read the adapter of a session or checkpoint; without one, the adapter that training starts from.

        Parameters
        ----------
        source : TrainingSession or CheckpointState, optional
            Who learned.
        """
        held = {n: self._turned(self._read(n, source)) for n in [*self.parameter_names, *self._saved]}
        counts = {n: Tensor.of(n, "int64", (), (0,)) for n in self._counts()}
        copies = {n: held[weight].renamed(n) for n, weight in self._copies.items()}
        return Adapter(held | copies | counts, self.config)

    def load_adapter(self, target: Source, adapter: Adapter) -> None:
        """Continue with another adapter of the same targets and rank, without compiling again. Moments stay.

        Parameters
        ----------
        target : TrainingSession or CheckpointState
            The session or state that goes on with it.
        adapter : Adapter
            What is loaded.

        Raises
        ------
        CheckpointError
            It has other modules, another rank or another scaling, or NaN or infinity; nothing changed.
        """
        holder = holder_of("target", target)
        tensors = self._checked(adapter)
        for name in self._saved:
            if name not in holder.trainable and name in tensors and tensors[name].data != self._start(name).data:
                raise CheckpointError(
                    f"The adapter has other running statistics {shown(name)} than the model, which holds its own. "
                    f"Build it with {ARGUMENT.batch_norm}='train', or merge the adapter."
                )
        for name, tensor in tensors.items():
            if name not in self._saved or name in holder.trainable:
                holder.set(tensor)
        notes = {name: value for name in NOTES if (value := getattr(adapter.config, name)) is not None}
        self.config = replace(self.config, **notes)

    def _checked(self, adapter: Adapter) -> dict[str, Tensor]:
        """The tensors of an adapter as this model stores them. Raise CheckpointError for one of another model."""
        names = instance_of(Adapter, "adapter", adapter).tensors
        beside = {n: base for n in names if (base := self._base_of(n)) is not None}
        tensors = {n: t for n, t in adapter.tensors.items() if n not in beside and n not in self._counts()}
        expected = {n: self._turned(self._start(n)).shape for n in [*self.parameter_names, *self._saved]}
        missing = sorted(set(expected).difference(tensors, self._saved))  # earlier builds saved no statistics
        more = sorted(set(tensors) - set(expected))
        if missing or more:
            said = [f"{what} {shown(names[0])}" for what, names in (("lacks", missing), ("has", more)) if names]
            raise CheckpointError(
                f"The adapter is of another model, or of other targets: it {' and '.join(said)}. {_own_settings()}"
            )
        self._check_config(adapter.config)
        for name, base in beside.items():
            self._check_base(name, base, adapter.tensors)
        for name, tensor in tensors.items():
            if tensor.dtype not in ("float32", *OTHER_FLOATS) or tensor.shape != expected[name]:
                raise CheckpointError(
                    f"{name!r} of the adapter is {tensor.dtype}{list(tensor.shape)}, not float32{list(expected[name])}."
                    f" {_own_settings()}"
                )
            tensors[name] = converted(tensor, "float32")
            _check_finite(tensors[name], "of the adapter")
        return {name: self._turned(tensor) for name, tensor in tensors.items()}

    def merge(self, source: Source | Adapter, path: str | Path | None = None) -> bytes | None:
        """Write the forward model with adapters merged into its weights to `path`, or return its bytes.

        It is the same computation, to rounding.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        path : path, optional
            The file to write.

        Raises
        ------
        CheckpointError
            The adapter is not one of this model, as `load_adapter` says it, or a number is NaN or infinity.
        UnsupportedError
            An adapted weight is quantized.
        """
        return written("path", path, write_model(self.merged(source)))

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

    def _held(self, source: Source | Adapter) -> dict[str, Tensor]:
        """Learned parameters, by name."""
        if isinstance(source, Adapter):
            return self._checked(source)
        held = {n: self._read(n, source) for n in [*self.parameter_names, *self._statistics]}
        for tensor in held.values():
            _check_finite(tensor, "of the session")
        return held

    def _counts(self) -> set[str]:
        """Counters of batches of the saved norms: PEFT demands them, and norms with a momentum do not read them."""
        return {f"{name.rpartition('.')[0]}.num_batches_tracked" for name in self._saved}

    def _check_config(self, config: LoraConfig) -> None:
        """Raise CheckpointError where an adapter of the same shapes would compute something else."""
        for module in (layer.module for layer in self.layers):
            other, mine = config.of(module), self.config.of(module)
            if other.scaling != mine.scaling or other.use_dora != mine.use_dora:
                raise CheckpointError(
                    f"The adapter of {module!r} was made with alpha {other.alpha:g} and rank {other.rank}, scaling "
                    f"{other.scaling:g}; this model has {mine.scaling:g}. {_own_settings()}"
                )

    def _turned(self, tensor: Tensor) -> Tensor:
        """A weight of `modules_to_save` as PEFT stores it, (out, in), or back."""
        if tensor.name not in self._columns_first:
            return tensor
        rows, width = tensor.shape
        values = array("f", bytes(tensor.data))
        turned = array("f")
        for column in range(width):
            turned += values[column::width]
        return Tensor(tensor.name, tensor.dtype, (width, rows), turned.tobytes())

    def _base_of(self, name: str) -> str | None:
        """The tensor of the base that a key of PEFT's file repeats; None for what the adapter learned."""
        base_name = name.replace(BASE_LAYER, ".")
        base_name = self._weights.get(base_name, base_name)
        is_own = name in self.parameter_names or name in self._saved
        return base_name if base_name in self.base.initializers and not is_own else None

    def _check_base(self, name: str, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError where a tensor of a file is not the one that it repeats."""
        base, is_tied = self.base.initializers[key], key in self._whole
        if base.dtype != "float32":
            return  # a quantized weight, which only resembles that of the file
        if not _is_rounded(tensors[name], tensors[key] if is_tied else self._turned(base)):
            wanted = f"equal to {shown(key)}, which is tied to it" if is_tied else "the weight that this base model has"
            raise CheckpointError(f"{shown(name)} of the adapter is not {wanted}.")

    def _start(self, name: str) -> Tensor:
        return self.start[name] if name in self.start else self.base.initializers[name]

    def _read(self, name: str, source: Source | None) -> Tensor:
        holder = None if source is None else holder_of("source", source)
        return (
            holder.get(name)
            if holder and (name in self.parameter_names or name in holder.trainable)
            else self._start(name)
        )


def arguments_of(adapted: LoraModel, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `build_artifacts`, with the choice of parameters: only the adapters are trained."""
    for name in ("model", "requires_grad", "frozen_params"):
        if arguments.get(name) is not None:
            raise TypeError(
                f"'{ARGUMENT[name]}' is not an argument here: the adapters are trained, and the base is frozen."
            )
    stopped = [*adapted._stopped, *(arguments.get("stop_gradient") or ())]
    return {
        **arguments,
        "model": adapted.graph,
        "requires_grad": adapted.parameter_names,
        "frozen_params": adapted._frozen(),
        "stop_gradient": stopped or None,
    }


def _own_settings() -> str:
    """Say how to make a session for an adapter."""
    return (
        "Make the session with the adapter's settings: give 'lora' the text of its adapter_config.json as "
        f"'{ARGUMENT.adapter_config}'."
    )


def _check_finite(tensor: Tensor, where: str) -> None:
    values = array("f", bytes(tensor.data))
    # The sum of float32 numbers, in float64, is finite where all of them are.
    if math.isfinite(sum(values)):
        return
    at = next(k for k, value in enumerate(values) if not math.isfinite(value))
    raise CheckpointError(
        f"{tensor.name!r} {where} has {values[at]} at position {at} of {len(values)}: it must be finite. Go back to a "
        "state from before it diverged."
    )


def holder_of(name: str, source: Source) -> ParameterHolder:
    """The parameters of a session, of a checkpoint state, or these themselves.

    Raise TypeError for another argument, which has this name, and ReleasedError for a session that was released.
    """
    if isinstance(source, ParameterHolder):
        return source
    state = source if isinstance(source, CheckpointState) else getattr(getattr(source, "_core", None), "state", None)
    if state is None:
        raise TypeError(f"'{name}' must be a TrainingSession or a CheckpointState, got {type(source).__name__}.")
    return state._holder


def _is_rounded(tensor: Tensor, base: Tensor) -> bool:
    """True where one tensor is the other, or rounds to it in the type that it is stored in."""
    if tensor.shape != base.shape or tensor.dtype not in ("float32", *OTHER_FLOATS):
        return False
    types = dict.fromkeys((base.dtype, tensor.dtype, stored_type(base), declared_type(base)))
    return any(bytes(converted(tensor, t).data) == bytes(converted(base, t).data) for t in types)


def owners(graph: Graph) -> list[str]:
    """Modules that have parameters, and the modules that these lie in. A parameter without a module is its own."""
    names = [name for name, tensor in graph.initializers.items() if tensor.dtype == "float32"]
    modules = dict.fromkeys(name for name in names if "." not in name)
    layers = find_layers(graph)
    for name in [
        *names,
        *(f"{x.module}.weight" for x in layers if x.weight in names and tied_layers(layers, x.weight)[1:]),
    ]:
        while "." in name:
            name = name.rpartition(".")[0]
            modules[name] = None
    return list(modules)
