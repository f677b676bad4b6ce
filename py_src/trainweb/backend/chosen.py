"""The back ends by name, and the one that runs plans in Python's process."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from trainweb.backend import wasm
from trainweb.backend.base import Runtime, Target

WASM, WEBGPU = wasm.name, "webgpu"
RUNTIME: Runtime = wasm
DEFAULT_TARGET: Target = wasm


def target_of(name: str) -> Target:
    """The folder of this name. A page that asks for no plans for the GPU never imports what makes them."""
    if name not in (WASM, WEBGPU):
        raise KeyError(name)
    return cast(Target, import_module(f"trainweb.backend.{name}"))
