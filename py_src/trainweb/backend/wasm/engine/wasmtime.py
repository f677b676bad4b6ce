"""The native engine: the same .wasm as in the browser, run by the wasmtime package."""

from __future__ import annotations

import atexit
import ctypes
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from threading import RLock
from typing import TYPE_CHECKING, Any

import wasmtime as wt

from trainweb.backend.description import Description
from trainweb.backend.engine import Engine
from trainweb.errors import EngineError
from trainweb.ir.arena import Arena

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUILDS = ("kernels", "kernels.relaxed")
PROCESS = os.getpid()
"""The process that may compile with threads: one that it forks does not have them."""
LEAST_SHARED = 2**16
"""Bytes of the least module that threads compile sooner."""

MAX_PAGES = 2**16
"""Pages of 64 KiB that a 32-bit memory can have."""
MOST_INSTANCES = 2**31 - 1
"""Each plan with generated functions is one; wasmtime would stop after 10,000."""


def _close_at_exit(managed: Any) -> None:
    # wasmtime's own finalizers fail, and print that, once the interpreter has torn down its modules.
    reference = weakref.ref(managed)

    def close() -> None:
        if (alive := reference()) is not None:
            alive.close()

    atexit.register(close)


if hasattr(os, "register_at_fork"):
    # The thread that held the lock may not be there.
    os.register_at_fork(after_in_child=lambda: setattr(Engine, "lock", RLock()))


@cache
def _wasmtime_engine(*, has_threads: bool = False) -> wt.Engine:
    config = wt.Config()
    config.wasm_relaxed_simd = True
    config.parallel_compilation = has_threads
    engine = wt.Engine(config)
    _close_at_exit(engine)
    return engine


def _compiled(engine: wt.Engine, wasm: bytes) -> wt.Module:
    if len(wasm) < LEAST_SHARED or os.getpid() != PROCESS or engine is not _wasmtime_engine():
        return wt.Module(engine, wasm)
    return wt.Module.deserialize(engine, wt.Module(_wasmtime_engine(has_threads=True), wasm).serialize())


@cache
def _module(engine: wt.Engine, build: str) -> wt.Module:
    """The compiled kernels; once a process."""
    path = resources.files("trainweb.backend.wasm.engine") / f"{build}.wasm"
    try:
        module = _compiled(engine, path.read_bytes())
        _close_at_exit(module)
        return module
    except FileNotFoundError:
        raise EngineError(
            f"{build}.wasm is missing from trainweb.backend.wasm.engine; run `python wasm_kernels/build.py`"
        ) from None


@dataclass(slots=True)
class _Code:
    """Generated functions in the table, and how many users have them."""

    slot: int
    count: int
    uses: int = 1


class WasmtimeEngine(Engine):
    """Kernels on one thread, in a memory of their own.

    `build` is "kernels" (the same bytes on every machine) or "kernels.relaxed" (fused multiply-add where there is one).
    """

    def __init__(self, build: str = "kernels") -> None:
        if build not in BUILDS:
            raise EngineError(f"The native engine has the builds {', '.join(BUILDS)}, not {build!r}.")
        self.build = build
        self._store = self._new_store()
        _close_at_exit(self._store)
        module = _module(self._store.engine, build)
        static_pages = next(i.type.limits.min for i in module.imports if isinstance(i.type, wt.MemoryType))
        self._memory = wt.Memory(self._store, wt.MemoryType(wt.Limits(static_pages, MAX_PAGES)))
        now = wt.Func(self._store, wt.FuncType([], [wt.ValType.f64()]), lambda: time.perf_counter() * 1e3)
        self._instance = self._instantiate(module, {("env", "memory"): self._memory, ("env", "now"): now})
        self._exports = self._instance.exports(self._store)
        self._table: wt.Table = self._exports["__indirect_function_table"]  # type: ignore[assignment]
        self._code: dict[bytes, _Code] = {}
        self._slots = Arena()
        self._slots.size = self._table.size(self._store)
        self.description = Description.parse(self.read(self.call("tw_description"), self.call("tw_description_size")))
        self._run = self._exports["tw_run"]
        stack: Any = self._exports["__stack_pointer"]
        self._stack, self._stack_top = stack, stack.value(self._store)

    def _new_store(self) -> wt.Store:
        store = wt.Store(_wasmtime_engine())
        store.set_limits(instances=MOST_INSTANCES)
        return store

    def _instantiate(self, module: wt.Module, imports: dict[tuple[str, str], Any]) -> wt.Instance:
        try:
            wanted = [imports[i.module, i.name or ""] for i in module.imports]
        except KeyError as e:
            raise EngineError(f"The module imports {'.'.join(e.args[0])}, which the kernels do not have.") from e
        return wt.Instance(self._store, module, wanted)

    def call(self, name: str, *args: float) -> int:
        export: Any = self._exports[name]
        return int(export(self._store, *map(_signed, args))) & 0xFFFFFFFF

    def _address(self, ptr: int, nbytes: int) -> int:
        """Host address of [ptr, ptr + nbytes)."""
        size = self._memory.data_len(self._store)
        if not 0 <= ptr <= size or not 0 <= nbytes <= size - ptr:
            raise EngineError(f"[{ptr:#x}, +{nbytes}) is outside the kernels' memory of {size} bytes.")
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + ptr

    def alloc(self, nbytes: int, *, zeroed: bool = False) -> int:
        name = "tw_alloc_zeroed" if zeroed else "tw_alloc"
        ptr = self.call(name, nbytes) if 0 <= nbytes < 1 << 32 else 0
        if not ptr:
            raise self.no_memory(nbytes)
        return ptr

    def free(self, ptr: int) -> None:
        if self.call("tw_free", ptr):
            raise EngineError(f"{ptr:#x} is not an allocated block; was it freed twice?")

    def write(self, ptr: int, data: Buffer) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise EngineError("Only C-contiguous buffers can be written.")
        if view.nbytes:
            source = view.cast("B")
            address = self._address(ptr, view.nbytes)
            target = (ctypes.c_ubyte * view.nbytes).from_address(address)
            memoryview(target).cast("B")[:] = source

    def read(self, ptr: int, nbytes: int) -> bytes:
        return ctypes.string_at(self._address(ptr, nbytes), nbytes)

    def read_into(self, ptr: int, out: Buffer) -> None:
        view = memoryview(out)
        if not view.c_contiguous or view.readonly:
            raise EngineError("The output buffer must be C-contiguous and writable.")
        if view.nbytes:
            source = (ctypes.c_ubyte * view.nbytes).from_address(self._address(ptr, view.nbytes))
            view.cast("B")[:] = memoryview(source).cast("B")

    def load_code(self, wasm: bytes) -> int:
        if known := self._code.get(wasm):
            known.uses += 1
            return known.slot
        try:
            module = _compiled(self._store.engine, wasm)
        except wt.WasmtimeError as e:
            raise EngineError(f"The generated code is invalid: {e}") from e
        imports: dict[tuple[str, str], Any] = {("env", "memory"): self._memory}
        imports |= {("kernels", name): self._exports[name] for name in self._exports if name.startswith("v_")}
        exports = self._instantiate(module, imports).exports(self._store)
        code = _Code(self._slots.take(len(exports)), len(exports))
        missing = code.slot + code.count - self._table.size(self._store)
        if missing > 0:
            self._table.grow(self._store, missing, None)
        for k in range(code.count):
            self._table.set(self._store, code.slot + k, exports[f"f{k}"])
        try:
            self._register(wasm, code)
        except BaseException:
            self._vacate(code)
            raise
        self._code[wasm] = code
        return code.slot

    def _register(self, wasm: bytes, code: _Code) -> None:
        block = self.alloc(len(wasm))
        self.write(block, wasm)
        status = self.call("tw_register_code", block, len(wasm), code.slot, code.count)
        self.free(block)
        if status:
            raise EngineError(f"The kernels refused the generated code: {self.description.status_name(status)}.")

    def _vacate(self, code: _Code) -> None:
        for k in range(code.count):
            self._table.set(self._store, code.slot + k, None)
        self._slots.give(code.slot, code.count)

    def unload_code(self, slot: int) -> None:
        entry = next((item for item in self._code.items() if item[1].slot == slot), None)
        if entry is None:
            raise EngineError(f"no generated code starts at slot {slot}.")
        wasm, code = entry
        code.uses -= 1
        if not code.uses:
            del self._code[wasm]
            self.call("tw_unregister_code", slot)
            self._vacate(code)

    def profile(self, plan: int, times: int) -> None:
        if self.call("tw_profile", plan, times):
            raise EngineError(f"No plan was placed at {plan:#x}.")

    def run(self, plan: int) -> int:
        return self._guarded(self._run, plan)

    def run_slice(self, plan: int, *, anew: bool, milliseconds: float) -> int:
        return self._guarded(self._exports["tw_run_slice"], plan, int(anew), float(milliseconds))

    def run_batches(self, session: int, block: int, count: int) -> int:
        return self._guarded(self._exports["tw_fit_run"], session, block, count, plan=lambda: self.last_plan(block))

    def _guarded(self, run: Any, *args: float, plan: Callable[[], int] | None = None) -> int:
        try:
            return int(run(self._store, *map(_signed, args)))
        except wt.Trap as e:
            self._stack.set_value(self._store, self._stack_top)
            raise self.trap_error(int(args[0]) if plan is None else plan(), e.message.splitlines()[-1]) from e

    def written(self, plan: int) -> int:
        return self.call("tw_written", plan)

    def bytes_in_use(self) -> int:
        return self.call("tw_bytes_in_use")

    def memory_size(self) -> int:
        return int(self._memory.data_len(self._store))


def _signed(value: float) -> float:
    """An address as the i32 that wasmtime wants; other numbers as they are."""
    return value - (1 << 32) if isinstance(value, int) and value >= 1 << 31 else value
