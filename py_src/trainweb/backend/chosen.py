"""The back ends by name, and the one that runs plans in Python's process."""

from __future__ import annotations

from collections.abc import Mapping

from trainweb.backend import wasm
from trainweb.backend.base import Runtime, Target

WASM = wasm.name
TARGETS: Mapping[str, Target] = {target.name: target for target in (wasm,)}
RUNTIME: Runtime = wasm
