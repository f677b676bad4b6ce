"""Parts of the scripts that make models: the version of their files, the check, and the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import helper

OPSET = 17
IR_VERSION = 8  # the one that came with opset 17, so that older readers take the exported model


def checked_model(graph: onnx.GraphProto, **about: str) -> onnx.ModelProto:
    """Return a model of the graph, checked with inferred shapes; `about` are fields such as ``producer_name``."""
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, **about)
    onnx.checker.check_model(model, full_check=True)
    return model


def write_model(description: str | None, build_model: Callable[[], onnx.ModelProto]) -> None:
    """Write a model to the file that the command line names."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build_model(), output)
