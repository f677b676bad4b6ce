"""Which initializers of a model are trained and which are frozen."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence

from trainweb.autodiff.gradient import influences
from trainweb.errors import ModelError
from trainweb.model.graph import Graph, Tensor
from trainweb.onnxblock.models import TRAINED_DTYPE
from trainweb.onnxblock.transforms import all_statistics


def select_parameters(
    graph: Graph,
    initializers: dict[str, Tensor],
    constants: dict[str, Tensor],
    requires_grad: Iterable[str] | str | None,
    frozen_params: Iterable[str] | str | None,
) -> tuple[list[str], list[str]]:
    """Names of the trainable and of the frozen parameters, in graph order.

    Parameters
    ----------
    graph : Graph
        The model with its loss as first output.
    initializers : dict of str to Tensor
        Those of the model as it was given, without those a loss added.
    constants : dict of str to Tensor
        The same and the values of Constant nodes, which are parameters in models that have no
        others.
    requires_grad, frozen_params
        Names or regular expressions; see `trainweb.artifacts.build_artifacts`.
    """
    frozen = _expand(frozen_params or (), constants, "frozen_params", required=False)
    if requires_grad is not None:
        trainable = _expand(requires_grad, constants, "requires_grad", required=True)
        both = [name for name in trainable if name in set(frozen)]
        if both:
            raise ModelError(f"A parameter cannot be frozen and require gradient at the same time: {', '.join(both)}.")
        return trainable, frozen
    left_out = {*frozen, *all_statistics(graph)}
    if not any(_is_parameter(t) for t in initializers.values()):
        initializers = constants
    candidates = [name for name, t in initializers.items() if _is_parameter(t) and name not in left_out]
    reached = influences(graph, [graph.outputs[0].name]) if candidates else set()
    return [name for name in candidates if name in reached], frozen


def _is_parameter(tensor: Tensor) -> bool:
    # A scalar is a constant of a formula (1/sqrt(d), an epsilon) unless its name was given.
    return tensor.dtype == TRAINED_DTYPE and len(tensor.shape) > 0


def _expand(
    patterns: Iterable[str] | str, initializers: dict[str, Tensor], argument: str, *, required: bool
) -> list[str]:
    """Names that `patterns`, each a name or a regular expression for whole names, stand for."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
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
        raise ModelError(f"Parameters are given by name, not {pattern!r:.80}.")
    if pattern in initializers:
        return [pattern]
    try:
        expression = re.compile(pattern)
    except re.error:
        return []
    return [n for n, t in initializers.items() if t.dtype == TRAINED_DTYPE and expression.fullmatch(n)]


def _some(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "") or "none"
