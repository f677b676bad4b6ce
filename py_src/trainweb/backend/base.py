"""The seam between the compiler and a back end: what `compiler`, `training` and `fit` ask of one.

`backend/chosen.py` chooses it. Nothing else outside of backend/wasm imports backend/wasm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trainweb.backend.engine import Engine
from trainweb.backend.plan import Plan
from trainweb.ir.instructions import Buf, Instruction, Storage
from trainweb.ir.program import Program


class Backend(Protocol):
    """A module or an object with these functions."""

    def select_methods(self, program: Program, context: object, /) -> None:
        """Choose the kernel of each operation: the first pass of the pipeline."""

    def fuse_reductions(self, program: Program, context: object, /) -> None:
        """Let elementwise calls reduce their results: the pass after all fusions."""

    def workspace_bytes(
        self,
        instructions: Sequence[Instruction],
        feeds: Sequence[Buf],
        outputs: Sequence[Buf],
        inner: frozenset[Storage] | None = None,
    ) -> int:
        """Return the bytes of workspace that these instructions take.

        With `inner`, they are a loop's, and only its own storages are placed.
        """

    def compile_program(self, program: Program, segment_bytes: Sequence[int], arena_limit: int) -> Plan:
        """Place the storages of a program and encode its instructions.

        Parameters
        ----------
        segment_bytes
            Sizes of the segments; the sizes of the arena and the constants are computed.
        arena_limit
            Bytes of workspace that the plan may take.

        Raises
        ------
        LimitError
            It would take more.
        """

    def get_engine(self, *, reproducible: bool = False) -> Engine:
        """The engine of this platform, which loads plans and runs steps.

        Parameters
        ----------
        reproducible : bool
            Its results are the same bytes on every machine; False: it is the fastest.
        """

    def use_worker_engine(self, js_engine: Any) -> None:
        """Take the engine of a page's worker for all that asks for none."""
