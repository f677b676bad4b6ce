"""The back ends by name, and the one that runs plans in Python's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from trainweb.backend import wasm
from trainweb.backend.base import Runtime, Target

WASM, WEBGPU = wasm.name, "webgpu"


class _Targets(Mapping[str, Target]):
    """The folders of this one by name. A page that asks for no plans for the GPU never imports what makes them."""

    def __getitem__(self, name: str) -> Target:
        if name not in (WASM, WEBGPU):
            raise KeyError(name)
        return cast(Target, import_module(f"trainweb.backend.{name}"))

    def __iter__(self) -> Iterator[str]:
        return iter((WASM, WEBGPU))

    def __len__(self) -> int:
        return 2


TARGETS: Mapping[str, Target] = _Targets()
RUNTIME: Runtime = wasm
