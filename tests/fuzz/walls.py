"""A native engine for fuzzing: segments stand between pages that nobody may touch, and runs end when their fuel does.

Loads and stores of the kernels that leave the segments hit a protected page, and wasmtime makes a trap of it. Copies
and fills in bulk are done by the host, where it is a segmentation fault: fuzz in a process that may end.
"""

import ctypes
import mmap
from collections.abc import Sequence
from enum import Enum
from functools import cache

import wasmtime

from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine
from trainweb.errors import EngineError

PAGE = mmap.PAGESIZE
WALL_BYTES = 1 << 24
"""Between two segments; no page of it is ever touched, so it costs addresses alone."""
ROOM_BYTES = 1 << 29
FUEL = 1_000_000_000
"""About as many instructions: a second or two. A run that takes more counts as one that hangs."""
SLACK = 0xA5
NOTHING, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE


class Outcome(Enum):
    """How a run went."""

    RAN = "ran"
    REFUSED = "refused"
    FAILED = "failed"
    """Began, and found a value that is out of range."""
    OUTSIDE = "touched memory outside"
    TRAPPED = "trapped"
    HANGS = "hangs"

    @property
    def is_harm(self) -> bool:
        """True if no plan may do that."""
        return self in (Outcome.OUTSIDE, Outcome.TRAPPED, Outcome.HANGS)


@cache
def _metered() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    config.consume_fuel = True
    return wasmtime.Engine(config)


class WalledEngine(WasmtimeEngine):
    """The kernels with a meter, and room for segments between walls."""

    def __init__(self, build: str = "kernels") -> None:
        super().__init__(build)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._run_failures = {self.description.status[f"TW_BAD_{what}"] for what in ("INDEX", "LABEL", "VALUE")}
        block = self.alloc(ROOM_BYTES)
        self._room = -(-block // PAGE) * PAGE
        self._end = (block + ROOM_BYTES) // PAGE * PAGE
        self._slack: list[tuple[int, int]] = []

    def _new_store(self) -> wasmtime.Store:
        store = wasmtime.Store(_metered())
        store.set_fuel(1 << 62)
        return store

    def _protect(self, start: int, end: int, how: int) -> None:
        address = ctypes.c_void_p(self._address(start, end - start))
        if self._libc.mprotect(address, ctypes.c_size_t(end - start), how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def wall_in(self, sizes: Sequence[int], at_end: bool) -> list[int]:
        """Addresses of segments of these sizes, each at the end or at the start of pages between walls."""
        self._protect(self._room, self._end, NOTHING)
        self._slack = []
        bases, at = [], self._room
        for size in sizes:
            at += WALL_BYTES
            pages = -(-size // PAGE) * PAGE
            base = at + (pages - -(-size // 4) * 4 if at_end else 0)
            bases.append(base if size else 0)
            if pages:
                self._protect(at, at + pages, READ_WRITE)
                self._slack += [(at, base - at), (base + size, at + pages - base - size)]
            at += pages
        if at + WALL_BYTES > self._end:
            raise EngineError(f"{sum(sizes)} bytes of segments are too many to be walled in.")
        for start, nbytes in self._slack:
            self.write(start, bytes([SLACK]) * nbytes)
        return bases

    def open_room(self) -> None:
        """Take the walls away."""
        self._protect(self._room, self._end, READ_WRITE)

    def try_plan(self, plan: int) -> tuple[Outcome, str]:
        """Run a plan whose segments are walled in; what happened, in words."""
        self._store.set_fuel(FUEL)
        try:
            status = self.run(plan)
        except EngineError as error:
            trap = error.__cause__
            code = trap.trap_code if isinstance(trap, wasmtime.Trap) else None
            outcomes: dict[wasmtime.TrapCode | None, Outcome] = {
                wasmtime.TrapCode.OUT_OF_FUEL: Outcome.HANGS,
                wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS: Outcome.OUTSIDE,
            }
            return outcomes.get(code, Outcome.TRAPPED), str(error)
        finally:
            self._store.set_fuel(1 << 62)
        for start, nbytes in self._slack:
            if self.read(start, nbytes).count(SLACK) != nbytes:
                self.write(start, bytes([SLACK]) * nbytes)
                return Outcome.OUTSIDE, f"wrote between {start:#x} and {start + nbytes:#x}"
        if status == 0:
            return Outcome.RAN, ""
        failed = Outcome.FAILED if status in self._run_failures else Outcome.REFUSED
        return failed, self.description.status_name(status)
