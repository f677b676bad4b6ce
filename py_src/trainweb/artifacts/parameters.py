"""Which initializers of a model are trained and which are frozen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainweb.artifacts.evidence import Decision, Evidence, lost_detaches, lost_parameters, straight_through
from trainweb.autodiff.gradient import influences
from trainweb.errors import ModelError
from trainweb.model.graph import Graph, Tensor
from trainweb.onnxblock.models import TRAINED_DTYPE
from trainweb.ops.shapes import ShapeInference
from trainweb.settings import matching

_NAMED = 12
"""Tensors that a warning names."""


@dataclass(slots=True)
class Selection:
    """Which parameters a training session has.

    Attributes
    ----------
    trainable, frozen : list of str
        Names, in the order of the model.
    decisions : list of Decision
        Of each float32 tensor from which the loss is reached, and of parameters that the exporter lost; without what
        an argument of the caller settled beyond doubt they are decided from the file.
    """

    trainable: list[str]
    frozen: list[str]
    decisions: list[Decision] = field(default_factory=list)


def select_parameters(
    graph: Graph,
    initializers: dict[str, Tensor],
    constants: dict[str, Tensor],
    requires_grad: Iterable[str] | str | None,
    frozen_params: Iterable[str] | str | None,
    stopped: Sequence[str] = (),
    *,
    inference: Callable[[], ShapeInference] | None = None,
) -> Selection:
    """The trainable and the frozen parameters, in graph order, with the reasons.

    Parameters
    ----------
    graph : Graph
        The model with its loss as first output.
    initializers : dict of str to Tensor
        Those of the model as it was given, without those a loss added.
    constants : dict of str to Tensor
        The same and the values of Constant nodes, which are parameters in models that have no
        others.
    stopped
        Tensors that no gradient goes through.
    inference
        Gives the types of the tensors of `graph`, where they may be known already.
    requires_grad, frozen_params
        Names or regular expressions; see `trainweb.artifacts.build_artifacts`.
    """
    frozen = _expand(frozen_params or (), constants, "frozen_params", required=False)
    if not any(_is_float(t) and t.shape for t in initializers.values()):
        initializers = constants
    if requires_grad is not None:
        trainable = _expand(requires_grad, constants, "requires_grad", required=True)
        both = [name for name in trainable if name in set(frozen)]
        if both:
            raise ModelError(f"A parameter cannot be frozen and require gradient at the same time: {', '.join(both)}.")
        return Selection(trainable, frozen, _as_named(constants, initializers, trainable, frozen))
    candidates = [t for t in initializers.values() if _is_float(t)]
    reached: set[str] = set()
    if candidates:
        reached = influences(graph, [graph.outputs[0].name], stopped, inference and inference())
    evidence = Evidence(graph, constants)
    named = set(frozen)
    decisions = [
        Decision(t.name, False, "named in frozen_params") if t.name in named else evidence.decide(t)
        for t in candidates
        if t.name in reached or t.name in named
    ]
    decisions += lost_parameters(graph) + (lost_detaches(graph) or straight_through(graph, reached - set(stopped)))
    _warn(decisions)
    return Selection([d.name for d in decisions if d.trained], frozen, decisions)


def _as_named(
    constants: dict[str, Tensor], initializers: dict[str, Tensor], trainable: list[str], frozen: list[str]
) -> list[Decision]:
    reasons = dict.fromkeys(frozen, (False, "named in frozen_params"))
    reasons |= dict.fromkeys(trainable, (True, "named in requires_grad"))
    others = {name: (False, "not named in requires_grad") for name, t in initializers.items() if _is_float(t)}
    every = {**others, **reasons}
    return [Decision(name, *every[name]) for name in constants if name in every]


def _warn(decisions: Iterable[Decision]) -> None:
    """Say once what the file does not settle."""
    doubtful = [d for d in decisions if d.doubtful]
    if not doubtful:
        return
    said = [f"{d.name!r} is {'trained' if d.trained else 'left out'} ({d.reason})" for d in doubtful]
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    warnings.warn(
        f"The file does not settle what is a parameter: {'; '.join(said[:_NAMED])}{more}. Name what is to be "
        "trained in requires_grad, or what is not in frozen_params; trainweb.check() lists all.",
        stacklevel=4,
    )


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype == TRAINED_DTYPE


def _expand(
    patterns: Iterable[str] | str, initializers: dict[str, Tensor], argument: str, *, required: bool
) -> list[str]:
    """Names that `patterns`, each a name or a regular expression for whole names, stand for."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, Iterable):
        raise TypeError(f"'{argument}' must be names of parameters, got {type(patterns).__name__}.")
    found: set[str] = set()
    for pattern in patterns:
        names = _matches(pattern, initializers)
        if not names and required:
            raise ModelError(
                f"Node arg {pattern} is not found. It is neither an initializer nor a regular "
                f"expression for one; there are {_some(list(initializers))}."
            )
        if not names:
            warnings.warn(f"{argument}: {pattern!r} is no initializer of the model.", stacklevel=4)
        found.update(names)
    return [name for name in initializers if name in found]


def _matches(pattern: str, initializers: dict[str, Tensor]) -> list[str]:
    if not isinstance(pattern, str):
        raise ModelError(f"Parameters, of requires_grad or frozen_params, are given by name, not {pattern!r:.80}.")
    found = matching(pattern, initializers)
    return found if found == [pattern] else [n for n in found if initializers[n].dtype == TRAINED_DTYPE]


def _some(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "") or "none"
