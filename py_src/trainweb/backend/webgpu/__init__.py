"""The back end for GPUs by WebGPU: a `Target`. A page runs its plans; Python does not."""

from collections.abc import Mapping

from trainweb.backend.base import Rewriting
from trainweb.backend.memory import place as workspace_bytes
from trainweb.backend.webgpu.compile import compile_program, has, name

passes: Mapping[str, Rewriting] = {}

__all__ = ["compile_program", "has", "name", "passes", "workspace_bytes"]
