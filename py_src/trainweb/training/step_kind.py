"""The kind of a step: its name, and the results that are asked of it. `worker/step-kind.ts` is the same in a page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PREDICT = "predict"
GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class StepKind:
    """A kind of step: "train", "eval", "optimizer", "scheduler", "clip", "inference", PREDICT or GENERATE.

    `request` is a JSON value. For "eval" it has the metrics to sum up (`trainweb.metrics.request_of`), for PREDICT the
    names of outputs, for GENERATE the arguments of `tokens_kind`. None asks for what the model gives. `key` is the text
    by which bundles and caches name the kind.
    """

    base: str
    request: Any = field(default=None, compare=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        text = "" if self.request is None else " " + json.dumps(self.request, separators=(",", ":"), ensure_ascii=False)
        object.__setattr__(self, "key", self.base + text)

    @classmethod
    def of(cls, key: str) -> StepKind:
        """The kind that has this key."""
        base, _, text = key.partition(" ")
        return cls(base, json.loads(text) if text else None)

    @property
    def is_forward(self) -> bool:
        """True for a step that predicts or makes tokens."""
        return self.base in (PREDICT, GENERATE)


TRAIN, EVAL, INFERENCE = StepKind("train"), StepKind("eval"), StepKind("inference")


def tokens_kind(output: str, length: int, rows: int, *, adapter: bool) -> StepKind:
    """The kind of the step that gives the logits `output` of the last of `rows` new tokens.

    The cache has room for `length` tokens; `adapter=False` ignores adapters.
    """
    return StepKind(GENERATE, [output, length, rows, adapter])
