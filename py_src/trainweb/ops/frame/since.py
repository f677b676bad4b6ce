"""Since which opset ai.onnx has each operator: known below the operators, for what emits their nodes."""

from __future__ import annotations

from functools import cache

from trainweb.model.graph import TRAINWEB

SINCE: dict[str, int] = {}
"""First opsets by name; filled as operators are registered (`ops/frame/op.py`)."""


def domain_of(op_type: str, opset: int) -> str:
    """The domain of an operator of ai.onnx in a model of this opset: ai.trainweb if the model is older than it."""
    load_families()
    return TRAINWEB if opset < SINCE.get(op_type, 0) else ""


@cache
def load_families() -> None:
    """Register all operators; their files import `ops/frame/op.py`, so that they are loaded at first use."""
    from trainweb.ops import load

    load()
