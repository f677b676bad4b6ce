"""Engines run plans: `wasmtime` natively, `pyodide` in the browser."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from trainweb import messages
from trainweb.backend.engine import Engine

__all__ = ["Engine", "get_engine", "use_worker_engine"]

_own: list[Engine] = []


def use_worker_engine(js_engine: Any) -> None:
    """Take the engine of a page's worker for all that asks for none, whatever build it has."""
    from trainweb.backend.wasm.engine.pyodide import PyodideEngine

    _own[:] = [PyodideEngine(js_engine)]


def get_engine(*, reproducible: bool = False) -> Engine:
    """The engine of this platform, one for all sessions; if `reproducible`, with the same bytes on every machine."""
    if _own:
        return _own[0]
    if sys.platform == "emscripten":
        return _pyodide_engine(reproducible)
    return _native_engine("kernels" if reproducible else "kernels.relaxed")


@cache
def _native_engine(build: str) -> Engine:
    try:
        from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
    except ModuleNotFoundError:
        raise messages.NEEDS_EXTRA(what="wasmtime", extra="native") from None
    return WasmtimeEngine(build)


@cache
def _pyodide_engine(reproducible: bool) -> Engine:
    from trainweb.backend.wasm.engine.pyodide import PyodideEngine

    return PyodideEngine(reproducible=reproducible)
