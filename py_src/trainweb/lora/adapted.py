"""A forward model beside which parameters are trained: its artifacts, and what they learned."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainweb.arguments import checks_keywords, instance_of
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.artifacts.evidence import Evidence
from trainweb.checkpoint import write_file_atomically
from trainweb.checkpoint.contents import ParameterHolder
from trainweb.errors import CheckpointError
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import shown
from trainweb.model.floats import OTHER_FLOATS, converted
from trainweb.model.graph import Graph, Tensor
from trainweb.model.writer import write_model
from trainweb.spelling import ARGUMENT
from trainweb.training.state import CheckpointState

if TYPE_CHECKING:
    from trainweb.lora.config import LoraConfig
    from trainweb.lora.prompt_config import PromptConfig
    from trainweb.training.session_methods import SessionMethods

Source: TypeAlias = "SessionMethods | CheckpointState | ParameterHolder"
"""Holder of the parameters."""


@checks_keywords
class AdaptedModel(ABC):
    """A frozen forward model and the parameters that are trained beside it.

    Attributes
    ----------
    base : Graph
        The model without an adapter.
    graph : Graph
        The model with its adapter, whose parameters have PEFT's names.
    config : LoraConfig or PromptConfig
        Its settings.
    start : dict of str to Tensor
        New parameters, as training starts from them.
    parameter_names : list of str
        Trained parameters: the adapter, and with LoRA the parameters of `modules_to_save`.
    """

    base: Graph
    graph: Graph
    config: LoraConfig | PromptConfig
    start: dict[str, Tensor]
    parameter_names: list[str]
    _whole: Sequence[str] = ()
    """Trained parameters of the base."""
    _copies: Mapping[str, str] = {}
    """Trained parameters of the base, by the names of other modules that are tied to them."""
    _stopped: Sequence[str] = ()
    """Tensors that are constants for gradients."""

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
        held = {n: self._turned(self._read(n, source)) for n in self.parameter_names}
        return Adapter(held | {n: held[own].renamed(n) for n, own in self._copies.items()}, self.config)

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
        for tensor in self._checked(adapter).values():
            holder.set(tensor)

    def _checked(self, adapter: Adapter) -> dict[str, Tensor]:
        """The tensors of an adapter as this model stores them.

        Raises
        ------
        CheckpointError
            It is not one of this model.
        """
        if type(instance_of(Adapter, "adapter", adapter).config) is not type(self.config):
            given, own = adapter.config.peft_type, self.config.peft_type
            raise CheckpointError(f"The adapter has peft_type {given}, and this model was made for {own}.")
        beside = {n: base for n in adapter.tensors if (base := self._base_of(n)) is not None}
        tensors = {n: t for n, t in adapter.tensors.items() if n not in beside}
        expected = {n: self._turned(self._start(n)).shape for n in self.parameter_names}
        if set(tensors) != set(expected):
            missing, more = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
            said = [f"{what} {shown(names[0])}" for what, names in (("lacks", missing), ("has", more)) if names]
            raise CheckpointError(f"The adapter is of another model: it {' and '.join(said)}.")
        self._check_config(adapter.config)
        for name, base in beside.items():
            self._check_base(name, base, adapter.tensors)
        for name, tensor in tensors.items():
            if tensor.dtype not in ("float32", *OTHER_FLOATS) or tensor.shape != expected[name]:
                raise CheckpointError(
                    f"{name!r} of the adapter is {tensor.dtype}{list(tensor.shape)}, not float32{list(expected[name])}."
                )
            tensors[name] = converted(tensor, "float32")
            _check_finite(tensors[name], "of the adapter")
        return {name: self._turned(tensor) for name, tensor in tensors.items()}

    def merge(self, source: Source | Adapter, path: str | Path | None = None) -> bytes | None:
        """Write the forward model with what was learned in it to `path`, or return its bytes.

        LoRA's adapters are merged into the weights: the same computation, to rounding. Vectors of a prompt stay beside
        them.

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
        data = write_model(self.merged(source))
        if path is None:
            return data
        write_file_atomically(Path(path), data)
        return None

    @abstractmethod
    def merged(self, source: Source | Adapter) -> Graph:
        """Make the graph that `merge` writes.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        """

    def _held(self, source: Source | Adapter) -> dict[str, Tensor]:
        """Learned parameters, by name."""
        if isinstance(source, Adapter):
            return self._checked(source)
        held = {n: self._read(n, source) for n in self.parameter_names}
        for tensor in held.values():
            _check_finite(tensor, "of the session")
        return held

    @abstractmethod
    def _check_config(self, config: LoraConfig | PromptConfig) -> None:
        """Raise CheckpointError where an adapter of the same shapes would compute something else."""

    def _turned(self, tensor: Tensor) -> Tensor:
        """A parameter as PEFT stores it, or back."""
        return tensor

    def _base_of(self, name: str) -> str | None:
        """The tensor of the base that a key of PEFT's file repeats; None for what the adapter learned."""
        return None

    def _check_base(self, name: str, own: str, tensors: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError where a tensor of a file is not the one that it repeats; a prompt repeats none."""
        raise CheckpointError(f"{shown(name)} of the adapter is the base model's {shown(own)}.")

    def _start(self, name: str) -> Tensor:
        return self.start[name] if name in self.start else self.base.initializers[name]

    def _read(self, name: str, source: Source | None) -> Tensor:
        return self._start(name) if source is None else holder_of("source", source).get(name)


def arguments_of(adapted: AdaptedModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments of `build_artifacts`, with the choice of parameters: only the adapters are trained."""
    for name in ("model", "requires_grad", "frozen_params"):
        if given.get(name) is not None:
            raise TypeError(
                f"'{ARGUMENT[name]}' is not an argument here: the adapters are trained, and the base is frozen."
            )
    stopped = [*adapted._stopped, *(given.get("stop_gradient") or ())]
    return {
        **given,
        "model": adapted.graph,
        "requires_grad": adapted.parameter_names,
        "frozen_params": adapted._frozen(),
        "stop_gradient": stopped or None,
    }


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

    Raises
    ------
    TypeError
        The argument of this name is neither.
    ReleasedError
        The session was released.
    """
    if isinstance(source, ParameterHolder):
        return source
    state = source if isinstance(source, CheckpointState) else getattr(getattr(source, "core", None), "state", None)
    if state is None:
        raise TypeError(f"'{name}' must be a TrainingSession or a CheckpointState, got {type(source).__name__}.")
    return state._holder
