"""The seam to back ends: what the compiler asks of a `Target`, and `training` and `fit` of the `Runtime`.

`backend/chosen.py` names them. Nothing else outside of a back end's folder imports the back end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from trainweb.backend.engine import Engine, NumberRange
from trainweb.backend.plan import LoadedPlan, Plan, TensorPlace
from trainweb.ir.instructions import Buf, Instruction, KernelCall, Storage
from trainweb.ir.layout import SEGMENT_NAMES, STATE_WORDS, FitCall
from trainweb.ir.program import Program
from trainweb.model.graph import Tensor

N_SEGMENTS = len(SEGMENT_NAMES)
STATE_BYTES = 4 * STATE_WORDS
ALL = 2**N_SEGMENTS - 1
"""The bits of all segments."""
Stop = Callable[[], bool] | None
"""Returns True to end the run."""


class Segments(Protocol):
    """The segments of a session, by number and byte offset."""

    released: bool

    def check(self) -> None:
        """Raise ReleasedError after release."""

    def read_segment(self, segment: int, offset: int, nbytes: int) -> bytes:
        """Bytes of a segment."""

    def read_segment_into(self, segment: int, offset: int, out: memoryview) -> None:
        """Fill a writable buffer from a segment."""

    def write_segment(self, segment: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Overwrite bytes of a segment."""

    def read_state(self, word: int) -> int | float:
        """A field of the session's state: one of the STATE_... of ir/layout.py."""

    def write_state(self, word: int, value: float) -> None:
        """Set a field of the session's state."""


@dataclass(frozen=True, slots=True)
class StagedBatches:
    """Batches of one size that a fit runs at once."""

    train: LoadedPlan
    adding: LoadedPlan
    """The train step that overwrites gradients, and the one that adds to them. A single batch is written in place; the
    two are then equal.
    """
    update: LoadedPlan
    """The optimizer step."""
    clip: LoadedPlan | None
    """Runs before it, if gradients are clipped."""
    limits: bytes
    """What `clip` is fed."""
    loss: str
    count: str | None
    """Outputs of a train step: the loss, and its divisor (None: the rows of a batch)."""
    rows: int
    """Rows of a batch."""
    feeds: Mapping[str, Tensor]
    """Each input, one batch after the other."""
    rates: Sequence[float]
    """Learning rates of the optimizer steps, the next one first; empty: the rate stays."""


class Host(Segments, Protocol):
    """A session in a back end: its segments, and the plans that are loaded and run on them."""

    sizes: list[int]
    """Bytes of each segment. The arena and what is prepared grow as plans need it."""
    loaded: list[LoadedPlan]
    observer: Callable[[LoadedPlan, Stop], None] | None
    """Runs plans in the place of `run`, with `timed`."""

    def load(self, plan: Plan, *, is_step: bool = True) -> LoadedPlan:
        """Take a plan in, growing the segments where it needs more. `excess` asks for steps alone."""

    def unload(self, loaded: LoadedPlan) -> None:
        """Give back what a plan takes."""

    def excess(self, most: int) -> LoadedPlan | None:
        """The step to unload before another is loaded where `most` may be: the one that ran longest ago."""

    def plan_bytes(self) -> int:
        """Bytes of the plans and their constants."""

    def write_feeds(self, loaded: LoadedPlan, feeds: Mapping[str, Tensor]) -> None:
        """Write every feed of a plan; a run may reuse their memory."""

    def run(self, loaded: LoadedPlan, stop: Stop = None) -> None:
        """Run a plan, and raise the error of a feed or of the plan.

        `stop` is called between instructions: True ends the run with SessionError. Its writes into segments that
        outlast it are undone, as they are when the caller interrupts it.
        """

    def read_outputs(self, loaded: LoadedPlan, names: Iterable[str]) -> dict[str, Tensor]:
        """Copies of outputs of the last run."""

    def output_range(self, loaded: LoadedPlan, slot: TensorPlace) -> NumberRange:
        """The range of a float32 output of the last run."""

    def segment_range(self, segment: int, offset: int, count: int, copy: int | None = None) -> NumberRange:
        """The range of float32 numbers of a segment, or of its copy."""

    def has_copy(self, copy: int, segment: int) -> bool:
        """Return True if `save` copied the segment."""

    def save(self, copy: int, segments: int = ALL) -> None:
        """Copy all that outlasts a run, or the segments of these bits."""

    def forget(self, copy: int) -> None:
        """Give back the memory of a copy."""

    def put_back(self, copy: int) -> None:
        """Restore the copied segments: to their contents just before the step that is undone.

        Values that plans keep stay valid: a step prepares them from the parameters that it starts from.
        """

    def go_back(self, copy: int) -> None:
        """Restore the copied segments after any number of steps."""

    def undone(self, copy: int, segments: int = ALL) -> AbstractContextManager[None]:
        """Copy the segments of these bits that outlast a run, and put them back when anything goes wrong."""

    def timer(self, plan: Plan) -> AbstractContextManager[int]:
        """Room for the milliseconds of a plan's instructions, which are 0."""

    def timed(self, loaded: LoadedPlan, stop: Stop = None) -> list[float]:
        """Run a plan once; milliseconds per instruction."""

    def profile(self, loaded: LoadedPlan, feeds: Mapping[str, Tensor], runs: int, times: int) -> list[float]:
        """Milliseconds per instruction, the mean over `runs` runs, added up in the room `times`."""

    def set_trained(self, runs: Sequence[tuple[int, int]]) -> None:
        """Say at which bytes of their segment the runs of trained parameters start, and how long they are."""

    def exchange_averages(self) -> None:
        """Let the trained parameters and their averages change places."""

    def fit(self, name: FitCall, *args: float) -> bytes:
        """Tell the counting of a fit what happened; its position (`layout fit` of `kernels.def`)."""

    def run_batches(self, batches: StagedBatches, count: int) -> tuple[bytes, list[float], Exception | None]:
        """Run so many batches of a fit, with the optimizer steps that are due, up to one that fails.

        Return the position of the fit then, the losses, and the error of a plan.
        """

    def end_fit(self) -> None:
        """The fit ends; a session that it did not change is as before."""

    def release(self) -> None:
        """Free everything; harmless when repeated."""


Rewriting = Callable[[Program, object], None]
"""A pass of one target, which is given the program and the compiler's context."""


class Target(Protocol):
    """A module that makes plans of programs."""

    name: str
    """As plans and their keys have it."""
    passes: Mapping[str, Rewriting]
    """Passes that only this target has, by the names of the functions. The pipeline says when they run."""

    def has(self, kind: type[KernelCall], /) -> bool:
        """Return True if plans may have calls of this kind: passes that make others are left out."""

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

        `segment_bytes` are sizes of the segments, of which the arena and the constants are computed. Raise LimitError
        if the workspace takes more than `arena_limit` bytes.
        """


class Runtime(Protocol):
    """A module that runs plans in Python's process."""

    def get_engine(self, *, reproducible: bool = False) -> Engine:
        """The engine of this platform.

        Parameters
        ----------
        reproducible : bool
            Its results are the same bytes on every machine; False: it is the fastest.
        """

    def open_host(self, engine: Engine, segment_bytes: list[int]) -> Host:
        """A session of the engine, with segments of these sizes."""

    def open_segments(self, engine: Engine, bases: list[int]) -> Segments:
        """The segments of a session that a page's worker has, at these addresses."""

    def use_worker_engine(self, js_engine: Any) -> None:
        """Take the engine of a page's worker for all that asks for none."""
