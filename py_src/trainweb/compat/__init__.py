"""Older names of the onnxruntime Python package: `trainweb.compat.onnxruntime`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["onnxruntime"]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name == "onnxruntime":
        return import_module("trainweb.compat.onnxruntime")
    raise AttributeError(f"module 'trainweb.compat' has no attribute {name!r}")
