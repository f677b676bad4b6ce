"""Which initializers of a model are trained and which are frozen."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from trainweb.arguments import warn
from trainweb.artifacts.evidence import (
    Decision,
    Evidence,
    folded_layers,
    generated_names,
    listed_parameters,
    lost_detaches,
    lost_parameters,
)
from trainweb.artifacts.straight_through import decide_detours, detours
from trainweb.autodiff.gradient import influences
from trainweb.errors import ModelError
from trainweb.model.graph import Graph, Tensor
from trainweb.model.uses import BITS
from trainweb.onnxblock.models import TRAINED_DTYPE
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.settings import matching
from trainweb.spelling import ARGUMENT

UNSETTLED = "The file does not settle what is a parameter"
"""Beginning of the warning that names doubtful tensors."""
_LOST = " The exporter's optimizer removed or merged it: export with optimize=False."
_NAMED = 4
"""Tensors of a reason that a warning names."""


QUANTIZED = " Its weights have fewer bits than float32: train the model before it is quantized."
_UNPACKING = re.compile("Integer|NBits|[Qq]uant|QLinear|QGemm")
"""Operators that read weights of fewer bits."""


@dataclass(slots=True)
class Selection:
    """The trainable and frozen parameters of a training session, in the order of the model.

    `decisions` are about each float32 tensor from which the loss is reached, and about parameters that the exporter
    lost. The file decides what no argument of the caller settles; tensors that lost a detach are among them. No
    gradient goes through `stopped` tensors: the given ones, and tensors that the file shows to be detached. `held` are
    names and expressions of the frozen parameters, of which the file may lack some. `folded` are batch normalizations
    that the exporter folded into trained layers.
    """

    trainable: list[str]
    frozen: list[str]
    decisions: list[Decision] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)


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
    """The trainable and the frozen parameters of a model with its loss, in graph order, with the reasons.

    `initializers` are the model's, without the loss's; `constants` also has values of Constant nodes. No gradient goes
    through `stopped` tensors. `inference` knows types of the graph already. For `requires_grad` and `frozen_params` see
    `trainweb.artifacts.build_artifacts`.
    """
    held = [frozen_params] if isinstance(frozen_params, str) else frozen_params or ()
    frozen = _expand(held, constants, "frozen_params", listed_parameters(graph))
    held, generated = list(held), generated_names(graph)
    # An expression for all names freezes no constants of formulas, which the exporter named.
    frozen = [name for name in frozen if constants[name].shape or name in held or not generated.fullmatch(name)]
    if not any(_is_float(t) and t.shape for t in initializers.values()):
        initializers = constants
    if requires_grad is not None:
        trainable = _expand(requires_grad, constants, "requires_grad", listed_parameters(graph))
        both = [name for name in trainable if name in set(frozen)]
        if both:
            raise ModelError(f"A parameter cannot be frozen and require gradient at the same time: {', '.join(both)}.")
        decisions = _as_named(constants, initializers, trainable, frozen)
        reached = _reached(graph, stopped, inference) if detours(graph) else set()
        return _with_detaches(Selection(trainable, frozen, decisions, held=held), graph, reached, stopped)
    candidates = [t for t in initializers.values() if _is_float(t)]
    reached = _reached(graph, stopped, inference) if candidates else set()
    evidence = Evidence(graph, constants)
    named = set(frozen)
    decisions = [
        Decision(t.name, False, f"named in {ARGUMENT.frozen_params}") if t.name in named else evidence.decide(t)
        for t in candidates
        if t.name in reached or t.name in named
    ]
    decisions += _out_of_reach(graph, evidence, [t for t in candidates if t.name not in reached | named], stopped)
    decisions += [d for d in lost_parameters(graph) if not any(matching(pattern, [d.name]) for pattern in held)]
    chosen = Selection([d.name for d in decisions if d.trained], frozen, decisions, held=held)
    _warn_of_packed(graph, constants, chosen)
    return _with_detaches(chosen, graph, reached, stopped)


def _reached(graph: Graph, stopped: Sequence[str], inference: Callable[[], ShapeInference] | None) -> set[str]:
    return influences(graph, [graph.outputs[0].name], stopped, inference and inference())


def _out_of_reach(graph: Graph, evidence: Evidence, unreached: list[Tensor], stopped: Sequence[str]) -> list[Decision]:
    """Parameters that the loss depends on, but by no gradient: for example, a module has its own backward."""
    if not unreached:
        return []
    behind_detach, reached = _read(graph, ()), _read(graph, stopped)
    detached = "only a detach lies between it and the loss, as also where nn.Embedding has a max_norm"
    unwritten = (
        "only what has no gradient lies between it and the loss (rounding, comparing, choosing); a backward of its "
        "own, of an autograd.Function, is in no file: write h + (q - h).detach() for gradients that go straight through"
    )
    would_be = [evidence.decide(t) for t in unreached if t.name in behind_detach]
    return [
        Decision(d.name, False, unwritten if d.name in reached else detached, doubtful=d.name in reached)
        for d in would_be
        if d.trained and not d.doubtful
    ]


def _read(graph: Graph, stopped: Collection[str]) -> set[str]:
    """Tensors whose values the loss is made of, without what lies only behind `stopped`."""
    live = {graph.outputs[0].name}
    for node in reversed(graph.nodes):
        if node.op_type not in ("Shape", "Size") and not live.isdisjoint(node.outputs):
            live.update(name for name in node.inputs if name not in stopped)
    return live


def _with_detaches(chosen: Selection, graph: Graph, reached: set[str], stopped: Sequence[str]) -> Selection:
    """Return the selection with the file's detached tensors, and warn of all doubtful ones."""
    lost = lost_detaches(graph)
    detours = lost or decide_detours(graph, chosen.trainable, reached, stopped)
    chosen.decisions += detours
    chosen.stopped = [*stopped, *(d.name for d in detours if not d.doubtful)]
    _warn(graph, chosen)
    return chosen


def _as_named(
    constants: dict[str, Tensor], initializers: dict[str, Tensor], trainable: list[str], frozen: list[str]
) -> list[Decision]:
    reasons = dict.fromkeys(frozen, (False, f"named in {ARGUMENT.frozen_params}"))
    reasons |= dict.fromkeys(trainable, (True, f"named in {ARGUMENT.requires_grad}"))
    not_named = False, f"not named in {ARGUMENT.requires_grad}"
    others = {name: not_named for name, t in initializers.items() if _is_float(t)}
    every = {**others, **reasons}
    return [Decision(name, *every[name]) for name in constants if name in every]


def _warn(graph: Graph, chosen: Selection) -> None:
    """Say once what the file does not settle, besides norms in trained layers, of which a remark tells."""
    doubtful = [d for d in chosen.decisions if d.doubtful]
    trained = {d.name for d in doubtful if d.trained}
    layers = {norm: names for norm, names in folded_layers(graph).items() if trained.issuperset(names)}
    chosen.folded, parts = list(layers), {name for names in layers.values() for name in names}
    doubtful = [d for d in doubtful if d.name not in parts and d.name.rpartition(".")[0] not in layers]
    if not doubtful:
        return
    groups: dict[tuple[bool, str], list[str]] = {}
    for d in doubtful:
        groups.setdefault((d.trained, d.reason), []).append(repr(d.name))
    said = [
        f"{_some(names, _NAMED)} {'is' if len(names) == 1 else 'are'} {'trained' if trained else 'left out'} ({reason})"
        for (trained, reason), names in groups.items()
    ]
    warn(
        f"{UNSETTLED}: {'; '.join(said)}. Name what is to be "
        f"trained in {ARGUMENT.requires_grad}, or what is not in {ARGUMENT.frozen_params}; "
        f"{'inspectModel' if ARGUMENT.in_page else 'trainweb.check()'} lists all."
    )


def _warn_of_packed(graph: Graph, constants: dict[str, Tensor], chosen: Selection) -> None:
    """Say what share of the numbers is trained where weights have fewer bits than float32."""
    read = {name for node in graph.nodes if _UNPACKING.search(node.op_type) for name in node.inputs}
    packed = [t for name, t in constants.items() if name in read and BITS[t.dtype] <= 8 and len(t.shape) > 1]
    if packed and chosen.trainable:
        trained = sum(constants[name].size for name in chosen.trainable)
        every = trained + sum(t.size for t in (*packed, *(constants[name] for name in chosen.frozen)))
        warn(f"Only {trained} of {every} numbers in the file's parameters are trained.{QUANTIZED}")


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype == TRAINED_DTYPE


def _expand(
    patterns: Iterable[str] | str, initializers: dict[str, Tensor], argument: str, listed: Collection[str]
) -> list[str]:
    """Names that `patterns`, each a name or a regular expression for whole names, stand for.

    `listed` names the parameters of the source module, of which the file may lack some.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, Iterable):
        raise TypeError(f"'{ARGUMENT[argument]}' must be names of parameters, got {type(patterns).__name__}.")
    matches: set[str] = set()
    for pattern in patterns:
        names = _matches(pattern, initializers)
        lost = _LOST if matching(pattern, listed) else ""
        if not names and not (lost and argument == "frozen_params"):
            if any(name.startswith(f"{pattern}.") for name in initializers):
                lost = f" For all parameters of the module write '{pattern}\\\\..*'."
            if "but" in pattern and "head" in pattern:
                lost = ' To freeze all but a new head, give "all but head" instead of names.'
            raise ModelError(
                f"Node arg {pattern:.80} is not found. In {ARGUMENT[argument]}, it is neither an initializer nor a "
                f"regular expression for one; there are {_some(list(initializers))}.{lost}"
            )
        matches.update(names)
    return [name for name in initializers if name in matches]


def _matches(pattern: str, initializers: dict[str, Tensor]) -> list[str]:
    if not isinstance(pattern, str):
        where = f"{ARGUMENT.requires_grad} or {ARGUMENT.frozen_params}"
        raise ModelError(f"Parameters, of {where}, are given by name, not {pattern!r:.80}.")
    matches = matching(pattern, initializers)
    return matches if matches == [pattern] else [n for n in matches if initializers[n].dtype == TRAINED_DTYPE]


def _some(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "") or "none"
