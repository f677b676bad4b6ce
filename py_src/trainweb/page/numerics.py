"""Checked steps of a page: the worker runs them (`web/src/worker/numerics.ts`), and Python looks at the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from trainweb.backend.chosen import RUNTIME
from trainweb.backend.plan import InspectedNode, LoadedPlan, TensorPlace
from trainweb.training.debug.numerics import NumericsRules

if TYPE_CHECKING:
    from trainweb.backend.engine import NumberRange
    from trainweb.backend.plan import Plan
    from trainweb.training.models import SessionModels


class WorkerNumbers:
    """Numbers of a session that the worker runs, by the addresses of its segments and of their copies (or 0)."""

    def __init__(self, models: SessionModels, bases: list[int], copies: list[int]) -> None:
        self._engine, self._bases, self._copies = models.engine, bases, copies

    def output_range(self, loaded: LoadedPlan, slot: TensorPlace) -> NumberRange:
        """The range of a float32 output of the last run."""
        return self.segment_range(slot.segment, slot.offset, slot.nbytes // 4)

    def segment_range(self, segment: int, offset: int, count: int, copy: int | None = None) -> NumberRange:
        """The range of float32 numbers of a segment, or of its copy."""
        return self._engine.range((self._bases if copy is None else self._copies)[segment] + offset, count)

    def has_copy(self, copy: int, segment: int) -> bool:
        """Return True if the segment was copied."""
        return self._copies[segment] != 0

    def read_state(self, word: int) -> int | float:
        """A field of the session's state."""
        return RUNTIME.open_segments(self._engine, self._bases).read_state(word)


def _rules(models: SessionModels, memory_json: str) -> NumericsRules:
    """The rules for a session at these addresses: "bases" and "copies"."""
    return NumericsRules(models, WorkerNumbers(models, **json.loads(memory_json)))


def _plan(outputs_json: str, nodes_json: str = "[]") -> LoadedPlan:
    """The outputs of a plan that the worker has loaded, and its nodes if it keeps all tensors."""
    outputs = {
        name: TensorPlace(name, shape=tuple(dims), **place)
        for name, dims, place in ((o.pop("name"), o.pop("dims"), o) for o in json.loads(outputs_json))
    }
    nodes = [InspectedNode(**fields) for fields in json.loads(nodes_json)]
    return LoadedPlan(cast("Plan", SimpleNamespace(outputs=outputs, inspected_nodes=nodes)), 0, 0, 0, 0)


def check_inspected(
    models: SessionModels, kind: str, overwrite: bool, memory_json: str, outputs_json: str, nodes_json: str
) -> dict[str, int]:
    """Check a step that kept all tensors; without a fault, count NaN and infinities in its results."""
    rules, plan = _rules(models, memory_json), _plan(outputs_json, nodes_json)
    rules.check_inspected(kind, plan, overwrite)
    return rules.bad_results(kind, plan)


def check_results(models: SessionModels, kind: str, memory_json: str, outputs_json: str, before_json: str) -> None:
    """Check the step as it always runs; `before_json` has the counts of `check_inspected`, if any."""
    _rules(models, memory_json).check_results(kind, _plan(outputs_json), json.loads(before_json))


def check_optimizer(models: SessionModels, memory_json: str) -> None:
    """Check an optimizer step."""
    _rules(models, memory_json).check_optimizer()


CHECKS: dict[str, Callable[..., dict[str, int] | None]] = {
    "inspected": check_inspected,
    "results": check_results,
    "optimizer": check_optimizer,
}
"""By the step that ran."""
