"""Train ONNX models inside a web page, and in CPython on the same WebAssembly kernels.

Names are imported at first use: loading and training need no numpy in the page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainweb._version import __version__

if TYPE_CHECKING:
    from trainweb import api, artifacts, compat, data, errors, federated, fit, lora, onnxblock, schedules
    from trainweb.compat.gradient_graph import GradientGraphBuilder
    from trainweb.fit.trainer import Trainer
    from trainweb.lora.quantize import quantize
    from trainweb.session.check import check
    from trainweb.session.inference_session import InferenceSession
    from trainweb.session.training_session import TrainingSession
    from trainweb.training.core import set_seed
    from trainweb.training.ort.options import RunOptions, SessionOptions
    from trainweb.training.state import CheckpointState
    from trainweb.training.store import CheckpointStore

_HOMES = {
    "CheckpointState": "trainweb.training.state",
    "CheckpointStore": "trainweb.training.store",
    "GradientGraphBuilder": "trainweb.compat.gradient_graph",
    "InferenceSession": "trainweb.session.inference_session",
    "RunOptions": "trainweb.training.ort.options",
    "SessionOptions": "trainweb.training.ort.options",
    "Trainer": "trainweb.fit.trainer",
    "TrainingSession": "trainweb.session.training_session",
    "check": "trainweb.session.check",
    "quantize": "trainweb.lora.quantize",
    "set_seed": "trainweb.training.core",
}
_MODULES = ("api", "artifacts", "compat", "data", "errors", "federated", "fit", "lora", "onnxblock", "schedules")

__all__ = [
    "CheckpointState",
    "CheckpointStore",
    "GradientGraphBuilder",
    "InferenceSession",
    "RunOptions",
    "SessionOptions",
    "Trainer",
    "TrainingSession",
    "__version__",
    "api",
    "artifacts",
    "check",
    "compat",
    "data",
    "errors",
    "federated",
    "fit",
    "lora",
    "onnxblock",
    "quantize",
    "schedules",
    "set_seed",
]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"trainweb.{name}")
    raise AttributeError(f"module 'trainweb' has no attribute {name!r}")
