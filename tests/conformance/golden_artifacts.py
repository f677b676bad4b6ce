"""Artifacts built from the golden base models with the arguments that were recorded."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from trainweb import onnxblock
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts

GOLDEN = Path(__file__).parent.parent / "golden"


def trace_of(case: str) -> dict[str, Any]:
    return json.loads((GOLDEN / case / "trace.json").read_text())


def arguments_of(trace: dict[str, Any]) -> dict[str, Any]:
    """Arguments of build_artifacts as they were given to ONNX Runtime, which updates statistics that are frozen."""
    given = dict(trace["generate_artifacts"])
    given["frozen_params"] = [n for n in given.get("frozen_params") or () if n not in ("bn.mean", "bn.var")]
    if trace["block_source"]:
        scope: dict[str, Any] = {"onnxblock": onnxblock, "blocks": onnxblock.blocks}
        exec(trace["block_source"], scope)  # a user's block, as it stands
        return given | {"loss": scope[given["loss"]](), "optimizer": scope["optimizer"]}
    return given | {"loss": LossType[given["loss"]], "optimizer": OptimType[given["optimizer"]]}


@cache
def artifacts_of(case: str) -> Artifacts:
    return build_artifacts((GOLDEN / case / "base.onnx").read_bytes(), **arguments_of(trace_of(case)))
