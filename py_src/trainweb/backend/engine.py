"""The interface of engines: everything above uses the kernels through this class alone."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from trainweb.backend.description import Description
from trainweb.errors import EngineError
from trainweb.ir.layout import BATCHES_RAN, HEADER_CLASSES, HEADER_STATUS, RANGE_WORDS, TW_NO_MEMORY
from trainweb.spelling import ARGUMENT

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_INSTRUCTION = 0xFFFFFFFF
MORE = -1
"""Status that `run_slice` returns if the run is not finished."""


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """Outcome of the last run of a plan, from its header."""

    code: int
    """Status; 0 is success."""
    instruction: int | None
    """Number of the instruction that failed (or trapped)."""
    value: int
    position: int
    """The offending value and where it stands, e.g. an index and its place in the index tensor."""
    classes: int
    """The number of classes that an offending label is not one of."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Least and largest finite one of some numbers, how many are not finite, and the sum of all squares.

    Without a finite number, `least` is infinite.
    """

    least: float
    most: float
    nan: int
    infinite: int
    squares: float


class Engine(ABC):
    """Kernels, their memory and the function table."""

    build: str
    """Name of the .wasm in use, e.g. "kernels.relaxed"."""
    threads: int = 1
    """Number of threads that run kernels."""
    description: Description
    """Opcodes and arguments, read out of the .wasm."""
    lock = RLock()
    """Held while a session computes or is released: engines serve one Python thread at a time."""

    @abstractmethod
    def alloc(self, nbytes: int, *, zeroed: bool = False) -> int:
        """A 64-byte aligned block: zeros, which take no memory before they are written to, or undefined contents.

        Raise EngineError when the memory cannot grow.
        """

    @abstractmethod
    def free(self, ptr: int) -> None:
        """Give a block back. Raise EngineError for a block that is not live (freed twice, or never allocated)."""

    @abstractmethod
    def write(self, ptr: int, data: Buffer) -> None:
        """Copy any C-contiguous buffer to `ptr`."""

    @abstractmethod
    def read(self, ptr: int, nbytes: int) -> bytes:
        """A copy of `nbytes` bytes at `ptr`."""

    @abstractmethod
    def read_into(self, ptr: int, out: Buffer) -> None:
        """Fill the writable C-contiguous buffer `out` from `ptr`."""

    @abstractmethod
    def load_code(self, wasm: bytes) -> int:
        """Add a generated module's functions f0, f1, ... to the table; returns the slot of f0.

        The same module again has the same slot, until it was unloaded as often as it was loaded. Raise EngineError for
        an invalid module.
        """

    @abstractmethod
    def unload_code(self, slot: int) -> None:
        """Give back what `load_code` returned: its slots go to other functions."""

    @abstractmethod
    def profile(self, plan: int, times: int) -> None:
        """Have runs of a placed plan add the milliseconds of each instruction to float64s at `times` (0: no more)."""

    @abstractmethod
    def run(self, plan: int) -> int:
        """Run the plan placed at `plan`; returns a status (0: success). Raise EngineError when the kernels trap."""

    @abstractmethod
    def run_slice(self, plan: int, *, anew: bool, milliseconds: float) -> int:
        """As `run`, to the first boundary of instructions after `milliseconds`; `MORE`: the run is to go on.

        `anew` runs from the first instruction on; else the run continues where the slice before ended.
        """

    @abstractmethod
    def run_batches(self, session: int, block: int, count: int) -> int:
        """As `run`, batches of a fit that lie in a block (`layout batches` of kernels.def), up to one that fails."""

    def last_plan(self, block: int) -> int:
        """The plan of batches in a block that ran last."""
        return int.from_bytes(self.read(block + 4 * BATCHES_RAN, 4), "little")

    @abstractmethod
    def written(self, plan: int) -> int:
        """The segments that runs of a placed plan write, one bit each; 0 where it cannot run."""

    @abstractmethod
    def call(self, name: str, *args: float) -> int:
        """Call an export of `wasm_kernels/session/`; what it returns, as an unsigned number."""

    def demand(self, name: str, *args: float) -> None:
        """Call an export that returns a status. Raise EngineError without memory, or for a wrong argument."""
        if status := self.call(name, *args):
            raise self.failure(f"{name}{args}", status)

    def failure(self, what: str, status: int) -> EngineError:
        """The error of an export that returned a status."""
        if status == TW_NO_MEMORY:
            return self.no_memory(self.call("tw_missing"))
        return EngineError(f"{what} failed: {self.description.status_name(status)}.")

    def no_memory(self, nbytes: int) -> EngineError:
        """The error for so many bytes more."""
        return EngineError(
            f"The kernels' memory cannot hold {nbytes} bytes more ({self.bytes_in_use()} in use). "
            f"Take smaller batches ('{ARGUMENT.accumulate}' in fit), set '{ARGUMENT.memory_budget}', or freeze layers."
        )

    def range(self, ptr: int, count: int) -> NumberRange:
        """Return the range of float32 numbers. Raise EngineError unless they lie in an allocated block."""
        address = self.call("tw_range", ptr, count)
        if not address:
            raise EngineError(f"{count} numbers from {ptr:#x} on do not lie in an allocated block.")
        return NumberRange(*struct.unpack("<2f2Id", self.read(address, 4 * RANGE_WORDS)))

    @abstractmethod
    def bytes_in_use(self) -> int:
        """Bytes of all live blocks."""

    @abstractmethod
    def memory_size(self) -> int:
        """Bytes of the kernels' memory; it never shrinks."""

    def plan_status(self, plan: int) -> PlanStatus:
        """Outcome of the last `run` of a plan."""
        head = self.read(plan + 4 * HEADER_STATUS, 4 * (HEADER_CLASSES + 1 - HEADER_STATUS))
        code, instruction, *fault = struct.unpack("<IIqqI", head)
        return PlanStatus(code, None if instruction == NO_INSTRUCTION else instruction, *fault)

    def trap_error(self, plan: int, what: str) -> EngineError:
        """Return the error that `run` raises when kernels trap."""
        try:
            instruction = self.plan_status(plan).instruction
        except EngineError:
            instruction = None
        where = "" if instruction is None else f" in instruction {instruction}"
        return EngineError(f"The kernels trapped{where} of the plan at {plan:#x}: {what}")
