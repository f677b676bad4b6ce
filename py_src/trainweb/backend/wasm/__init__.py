"""The back end for the WebAssembly kernels: a `Backend`."""

from trainweb.backend.wasm.compile import compile_program, workspace_bytes
from trainweb.backend.wasm.engine import get_engine, use_worker_engine
from trainweb.backend.wasm.host import PlanHost, SegmentMemory
from trainweb.backend.wasm.passes.methods import select_methods
from trainweb.backend.wasm.passes.reductions import fuse_reductions

open_host, open_segments = PlanHost, SegmentMemory

__all__ = [
    "compile_program",
    "fuse_reductions",
    "get_engine",
    "open_host",
    "open_segments",
    "select_methods",
    "use_worker_engine",
    "workspace_bytes",
]
