"""Gradients that go straight through a step: `h + (q - h).detach()` is q, with the gradient of h.

ONNX has no detach. torch's dynamo exporter notes it; in files of other exporters only the detour over h is left of it,
which nobody writes for its value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainweb.artifacts.evidence import SIGNATURE, Decision, behind
from trainweb.autodiff.gradient import influenced
from trainweb.model.graph import Graph, Node
from trainweb.spelling import ARGUMENT


@dataclass(frozen=True, slots=True)
class Detour:
    """A sum that takes away what it adds: `back` (h) is added and subtracted, and `step` (q) remains, "" for zero.

    `name` is the difference that was detached (`is_difference`), or the whole sum of other forms.
    """

    name: str
    back: str
    step: str
    is_difference: bool


def detours(graph: Graph) -> list[Detour]:
    """Return all h + (q - h), h - (h - q), q + h - h and h - h, in node order."""
    producers = graph.producers()
    by_name: dict[str, Detour] = {}
    for node in graph.nodes:
        if node.op_type not in ("Add", "Sub") or len(node.inputs) != 2:
            continue
        for detour in _detours_at(node, producers):
            by_name.setdefault(detour.name, detour)
    return list(by_name.values())


def _detours_at(node: Node, producers: dict[str, Node]) -> list[Detour]:
    left, right = node.inputs
    if node.op_type == "Add":
        sums = []
        for difference, back in ((left, right), (right, left)):
            producer = producers.get(difference)
            if producer is not None and producer.op_type == "Sub" and producer.inputs[1] == back:
                sums.append(Detour(difference, back, producer.inputs[0], True))
        return sums
    if left == right:
        return [Detour(node.outputs[0], left, "", False)]
    producer = producers.get(right)
    if producer is not None and producer.op_type == "Sub" and producer.inputs[0] == left:
        return [Detour(right, left, producer.inputs[1], True)]
    producer = producers.get(left)
    if producer is not None and producer.op_type == "Add" and right in producer.inputs:
        step = producer.inputs[1 - producer.inputs.index(right)]
        return [Detour(node.outputs[0], right, step, False)]
    return []


def decide_detours(
    graph: Graph, trainable: Sequence[str], reached: Collection[str], stopped: Sequence[str]
) -> list[Decision]:
    """Decide each detour of a model with its loss by the parameters that have a gradient.

    If no parameter has one by way of the step (it rounds, compares or chooses), the gradients of the detour cancel.
    Without a detach nothing would be trained through it, so its difference was certainly detached. If one has, such as
    a codebook, the file does not show the detached tensor: doubtful. A step that does not come from h is none.

    The loss depends on `reached` by gradients; no gradient goes through `stopped`.
    """
    candidates = [d for d in detours(graph) if {d.name, d.back} <= set(reached) and d.name not in stopped]
    if not candidates:
        return []
    learned = influenced(graph, trainable, stopped)
    producers = graph.producers()
    candidates = [
        d for d in candidates if d.back in learned and (not d.is_difference or _comes_from(d, producers, learned))
    ]
    recorded = SIGNATURE in graph.notes
    return [
        _certain(d.name) if d.is_difference and d.step not in learned and not recorded else _doubtful(d)
        for d in candidates
    ]


def _comes_from(detour: Detour, producers: Mapping[str, Node], learned: Collection[str]) -> bool:
    """Return whether the step is computed from h, or from a trained tensor that h is computed from."""
    sources = behind([detour.back], producers) & set(learned)
    return not sources.isdisjoint(behind([detour.step], producers))


def _certain(name: str) -> Decision:
    reason = (
        "detached: what it subtracts is added to it, as gradients go straight through a step, and no parameter has a "
        "gradient otherwise; of any other detach the file has no trace: export with dynamo=True and optimize=False"
    )
    return Decision(name, False, reason)


def _doubtful(detour: Detour) -> Decision:
    if detour.is_difference:
        reason = (
            "what it subtracts is added to it, as gradients go straight through where it is detached, which the file "
            f"does not say: name it in {ARGUMENT.stop_gradient}, or export with dynamo=True and optimize=False"
        )
    else:
        reason = (
            "it takes away what it adds, as is written for the gradient where one of the two is detached, which the "
            "file does not say: export with dynamo=True and optimize=False"
        )
    return Decision(detour.name, False, reason, doubtful=True)
