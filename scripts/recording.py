"""Shared code of scripts that record PyTorch modules: exports as trained, and the same files on every machine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

EXPORTERS = ("dynamo", "plain", "script")
"""The dynamo exporter as it is called by default, the same with optimize=False, and the TorchScript exporter."""


def export(module: nn.Module, feeds: dict[str, torch.Tensor], outputs: list[str], path: Path, exporter: str) -> None:
    """Write the model as it trains: mode kept, all weights in the file, no paths of this machine.

    `exporter` is one of `EXPORTERS`, or "default": TorchScript as it is called by default, in evaluation mode.
    """
    names = {"input_names": list(feeds), "output_names": outputs}
    inputs = tuple(feeds.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter in ("script", "default"):
            options = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
            options = {"opset_version": 17, **(options if exporter == "script" else {})}
            torch.onnx.export(module, inputs, str(path), dynamo=False, **names, **options)
        else:
            options = {"optimize": exporter == "dynamo", "external_data": False, "verbose": False}
            torch.onnx.export(module, inputs, str(path), dynamo=True, **names, **options)
    strip(path)


READ = ("fx_node", "name_scopes", "folded_from", "InputSpec.kind", "graph_signature")
"""Ends of the names of notes that trainweb reads."""


def strip(path: Path) -> None:
    """Drop notes that nobody reads: stack traces hold paths of the machine that recorded, and are most of a file."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("doc_string")
    graph = model.graph
    every: list[Any] = [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    for noted in every:
        kept = [entry for entry in noted.metadata_props if entry.key.endswith(READ)]
        del noted.metadata_props[:]
        noted.metadata_props.extend(kept)
    onnx.save(model, path)
