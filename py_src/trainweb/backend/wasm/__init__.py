"""The back end for the WebAssembly kernels: a `Target`, and the `Runtime` that runs its plans."""

from collections.abc import Mapping

from trainweb.backend.base import Rewriting
from trainweb.backend.memory import place as workspace_bytes
from trainweb.backend.wasm.compile import compile_program, has, name
from trainweb.backend.wasm.engine import get_engine, use_worker_engine
from trainweb.backend.wasm.host import PlanHost, SegmentMemory
from trainweb.backend.wasm.passes.methods import select_methods
from trainweb.backend.wasm.passes.reductions import fuse_reductions

open_host, open_segments = PlanHost, SegmentMemory
passes: Mapping[str, Rewriting] = {"select_methods": select_methods, "fuse_reductions": fuse_reductions}

__all__ = [
    "compile_program",
    "get_engine",
    "has",
    "name",
    "open_host",
    "open_segments",
    "passes",
    "use_worker_engine",
    "workspace_bytes",
]
